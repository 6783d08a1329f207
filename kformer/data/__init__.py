"""Pairs of text as deterministic, length-bucketed batches."""

from kformer.data.corpora.description import Corpora, Corpus
from kformer.data.corpora.job import CleaningReport, clean
from kformer.data.corpus import PreparedCorpus
from kformer.data.mixed_corpus import MixedCorpus
from kformer.data.parallel_dataset import ParallelDataset
from kformer.data.preparation import prepare
from kformer.data.soft_targets import SoftTargets
from kformer.data.token_alignments import TokenAlignments
from kformer.data.token_lists import TokenLists
from kformer.data.word_alignment import align_words, alignment_error_rate

__all__ = [
    "CleaningReport",
    "Corpora",
    "Corpus",
    "MixedCorpus",
    "ParallelDataset",
    "PreparedCorpus",
    "SoftTargets",
    "TokenAlignments",
    "TokenLists",
    "align_words",
    "alignment_error_rate",
    "clean",
    "prepare",
]
