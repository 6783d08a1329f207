"""The training of `kformer train`, from two text files to a run directory."""

from kformer.trainer.interruption import TrainingInterrupted
from kformer.trainer.options import TrainOptions
from kformer.trainer.run import TrainResult, train_run

__all__ = ["TrainOptions", "TrainResult", "TrainingInterrupted", "train_run"]
