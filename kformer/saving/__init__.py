"""The run directory and its checkpoints: format, reading, writing, verifying."""

from kformer.saving.checkpoints import (
    TrainingState,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from kformer.saving.run_directory import load_run, read_config, save_run

__all__ = [
    "TrainingState",
    "latest_checkpoint",
    "load_checkpoint",
    "load_run",
    "read_config",
    "save_checkpoint",
    "save_run",
]
