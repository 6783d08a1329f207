"""The training of `kformer train`, from two text files to a run directory."""

from kformer.trainer.card import model_card
from kformer.trainer.interruption import TrainingInterrupted
from kformer.trainer.run import train_run
from kformer.trainer.training import TrainResult
from kformer.training.options import TrainOptions

__all__ = ["TrainOptions", "TrainResult", "TrainingInterrupted", "model_card", "train_run"]
