"""Pairs of text as deterministic, length-bucketed batches."""

from kformer.data.corpus import PreparedCorpus
from kformer.data.parallel_dataset import ParallelDataset
from kformer.data.preparation import prepare
from kformer.data.soft_targets import SoftTargets
from kformer.utils.moved import moved_names

__all__ = ["ParallelDataset", "PreparedCorpus", "SoftTargets", "prepare"]

__getattr__ = moved_names(__name__)
