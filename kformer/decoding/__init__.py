"""Search: from a step function to the ids of the best continuations."""

from kformer.decoding.beam import beam_search, length_penalty
from kformer.decoding.decoders import DecoderState, decoder_step
from kformer.decoding.options import SearchOptions
from kformer.decoding.run_search import SearchResult, search
from kformer.decoding.sampling import sample
from kformer.decoding.scoring import Scorer
from kformer.decoding.searcher import Searcher
from kformer.utils.moved import moved_names

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

__getattr__ = moved_names(__name__)
