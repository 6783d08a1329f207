"""Pairs of text as deterministic, length-bucketed batches; and the embedded corpus, which needs no
download.
"""

from kformer.data import embedded
from kformer.data.corpus import PreparedCorpus
from kformer.data.embedded import generate_pairs, iterate_pairs
from kformer.data.parallel_dataset import ParallelDataset
from kformer.data.preparation import prepare
from kformer.data.soft_targets import SoftTargets

__all__ = [
    "ParallelDataset",
    "PreparedCorpus",
    "SoftTargets",
    "embedded",
    "generate_pairs",
    "iterate_pairs",
    "prepare",
]
