"""Loss, metrics, schedule and callbacks for training with `model.fit`; checkpoints and run
directories.
"""

from kformer.training.averages import average_checkpoints
from kformer.training.best_model import BestModel
from kformer.training.callbacks import Checkpoint, StepHistory
from kformer.training.checkpoints import (
    TrainingState,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from kformer.training.contrastive import ContrastiveLoss, RetrievalAccuracy
from kformer.training.fitting import fit_from
from kformer.training.losses import MaskedCrossentropy
from kformer.training.machine import configure_machine
from kformer.training.metrics import LatestValue, MaskedAccuracy, NegativeLogLikelihood, Perplexity
from kformer.training.progress import TrainingProgress
from kformer.training.quality import TranslationQuality
from kformer.training.recipe import paper_recipe
from kformer.training.run_directory import load_run, read_config, save_run
from kformer.training.schedules import WarmupInverseSqrt
from kformer.training.train_options import TrainOptions
from kformer.training.train_run import train_run

__all__ = [
    "BestModel",
    "Checkpoint",
    "ContrastiveLoss",
    "LatestValue",
    "MaskedAccuracy",
    "MaskedCrossentropy",
    "NegativeLogLikelihood",
    "Perplexity",
    "RetrievalAccuracy",
    "StepHistory",
    "TrainOptions",
    "TrainingProgress",
    "TrainingState",
    "TranslationQuality",
    "WarmupInverseSqrt",
    "average_checkpoints",
    "configure_machine",
    "fit_from",
    "latest_checkpoint",
    "load_checkpoint",
    "load_run",
    "paper_recipe",
    "read_config",
    "save_checkpoint",
    "save_run",
    "train_run",
]
