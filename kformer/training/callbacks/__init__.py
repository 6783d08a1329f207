"""Callbacks for `model.fit`: checkpoints, a history by steps, the best model, progress."""

from kformer.training.callbacks.best_model import BestModel
from kformer.training.callbacks.checkpoint import Checkpoint
from kformer.training.callbacks.history import StepHistory
from kformer.training.callbacks.progress import TrainingProgress

__all__ = ["BestModel", "Checkpoint", "StepHistory", "TrainingProgress"]
