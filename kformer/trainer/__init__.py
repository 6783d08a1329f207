"""What `kformer train` does: a whole training, from two files of text to a run directory."""

from kformer.trainer.interruption import TrainingInterrupted
from kformer.trainer.options import TrainOptions
from kformer.trainer.run import TrainResult, train_run

__all__ = ["TrainOptions", "TrainResult", "TrainingInterrupted", "train_run"]
