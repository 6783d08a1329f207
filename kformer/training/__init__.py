"""What `model.fit` takes: losses, metrics, schedules, recipe, callbacks and averages of weights."""

from kformer.models.lora import enable_lora, merge_lora
from kformer.training.averages import average_checkpoints, average_runs
from kformer.training.callbacks.best_model import BestModel
from kformer.training.callbacks.checkpoint import Checkpoint
from kformer.training.callbacks.direction_validation import DirectionValidation
from kformer.training.callbacks.general_validation import GeneralValidation
from kformer.training.callbacks.history import StepHistory
from kformer.training.callbacks.progress import TrainingProgress
from kformer.training.callbacks.tensorboard import TensorBoardLog
from kformer.training.contrastive import ContrastiveLoss, RetrievalAccuracy
from kformer.training.devices import distribution
from kformer.training.fitting import fit_from
from kformer.training.losses import MaskedCrossentropy
from kformer.training.machine import configure_machine
from kformer.training.metrics import LatestValue, MaskedAccuracy, NegativeLogLikelihood, Perplexity
from kformer.training.recipe import paper_recipe
from kformer.training.recommendation import Recipe, recommend
from kformer.training.schedules import WarmupInverseSqrt

__all__ = [
    "BestModel",
    "Checkpoint",
    "ContrastiveLoss",
    "DirectionValidation",
    "GeneralValidation",
    "LatestValue",
    "MaskedAccuracy",
    "MaskedCrossentropy",
    "NegativeLogLikelihood",
    "Perplexity",
    "Recipe",
    "RetrievalAccuracy",
    "StepHistory",
    "TensorBoardLog",
    "TrainingProgress",
    "WarmupInverseSqrt",
    "average_checkpoints",
    "average_runs",
    "configure_machine",
    "distribution",
    "enable_lora",
    "fit_from",
    "merge_lora",
    "paper_recipe",
    "recommend",
]
