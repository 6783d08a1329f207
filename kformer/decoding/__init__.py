"""Search: from a step function to the ids of the best continuations."""

from kformer.decoding.beam import beam_search, length_penalty
from kformer.decoding.beam_huggingface import huggingface_beam_search
from kformer.decoding.constraints import Constraints, SpecialTokens
from kformer.decoding.decoders import Decoder, DecoderState, EnsembleDecoder, LayerDecoder
from kformer.decoding.fast.decoder import FastDecoder
from kformer.decoding.row_constraints import Joins, RowConstraints
from kformer.decoding.run_search import SearchResult, decoder_for, search
from kformer.decoding.sampling import Sampling, sample
from kformer.decoding.scoring import Scorer
from kformer.decoding.searcher import Searcher
from kformer_options.search import SearchOptions

__all__ = [
    "Constraints",
    "Decoder",
    "DecoderState",
    "EnsembleDecoder",
    "FastDecoder",
    "Joins",
    "LayerDecoder",
    "RowConstraints",
    "Sampling",
    "Scorer",
    "SearchOptions",
    "SearchResult",
    "Searcher",
    "SpecialTokens",
    "beam_search",
    "decoder_for",
    "huggingface_beam_search",
    "length_penalty",
    "sample",
    "search",
]
