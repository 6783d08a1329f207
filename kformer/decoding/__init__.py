"""Search: from a step function to the ids of the best continuations."""

from kformer.decoding.beam_search import beam_search, length_penalty
from kformer.decoding.options import SearchOptions
from kformer.decoding.sampling import sample
from kformer.decoding.scoring import Scorer
from kformer.decoding.search import Searcher, SearchResult, search
from kformer.decoding.step import DecoderState, decoder_step

__all__ = [
    "DecoderState",
    "Scorer",
    "SearchOptions",
    "SearchResult",
    "Searcher",
    "beam_search",
    "decoder_step",
    "length_penalty",
    "sample",
    "search",
]
