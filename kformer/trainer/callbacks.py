"""The callbacks of a training. On several hosts the first alone writes the run directory."""

import shutil

import keras
import numpy as np

from kformer.evaluation.callback import DirectionQuality, TranslationQuality
from kformer.text import Tokenizer
from kformer.trainer.data import data_of, validation_lines
from kformer.training.callbacks.best_model import BestModel
from kformer.training.callbacks.checkpoint import Checkpoint
from kformer.training.callbacks.direction_validation import DirectionValidation
from kformer.training.callbacks.general_validation import GeneralValidation, StepByStep
from kformer.training.callbacks.history import StepHistory
from kformer.training.callbacks.tensorboard import TensorBoardLog
from kformer.utils.backend import devices_in_use
from kformer_options.names import named


class _UnsavedCheckpoint(Checkpoint):
    """The checkpoints of a host that is not the first: it knows of them and writes none."""

    def _write(self, model, state):
        pass


class UnsavedModel(BestModel):
    """The best model of a host that is not the first."""

    def save(self, model):
        pass


class _Divergence(keras.callbacks.Callback):
    """Ends a training whose weights are not numbers any more, before they are saved.

    Args:
        history: `StepHistory`. Its rows are written first.
        options: `TrainOptions`, settled.

    Raises:
        ValueError: the weights have NaN or infinite values.
    """

    def __init__(self, history, options):
        super().__init__()
        self._history, self._options = history, options

    def on_train_batch_end(self, batch, logs=None):
        # The loss of one batch may be no number without harm: loss scaling leaves its update out.
        values = map(keras.ops.convert_to_numpy, self.model.trainable_variables)
        if np.isfinite(logs["batch_loss"]) or all(np.isfinite(value).all() for value in values):
            return
        self._history.write()
        remedy = f"a {named('learning_rate')} below {self._options.learning_rate:g}"
        if self._options.lora_rank:
            remedy += f", or a {named('lora_alpha')} below {self._options.lora_alpha:g}"
        raise ValueError(
            f"The training diverged: at step {self._history.step:,} the loss is "
            f"{float(logs['batch_loss'])}, and the weights are not numbers any more. Begin a new "
            f"training with {remedy}."
        )


def training_callbacks(path, prepared, best, hosts, folder_of_host, valid, general):
    """The callbacks of a training, the checkpoint last.

    Args:
        path: `pathlib.Path` of the run directory.
        prepared: `Prepared`.
        best: `BestModel`.
        hosts: `Hosts`.
        folder_of_host: `pathlib.Path`. A folder for what this host writes if it is not the first.
        valid: list with the batches of each validation set.
        general: the batches of the general validation set, or `None`.

    Returns:
        `StepHistory`, and a list with it and all others.
    """
    options, train, state = prepared.options, prepared.train, prepared.state
    is_first = hosts.is_first
    if not is_first and state is not None:
        shutil.copy(path / "history.csv", folder_of_host)

    def count_tokens(step):
        return train.count_tokens(step - 1)

    history = StepHistory(path if is_first else folder_of_host, state, count_tokens)
    kind = Checkpoint if is_first else _UnsavedCheckpoint
    data = data_of(train, prepared.valid, prepared.general)
    checkpoint = kind(path, options.checkpoint_every, options.keep, state, history, data)
    callbacks = [history, _Divergence(history, options), best, checkpoint]
    if devices_in_use() > 1:
        callbacks.insert(0, StepByStep())
    log_dir = options.log_dir if is_first else None
    if log_dir:
        log = TensorBoardLog(log_dir, resume_from=state, count_tokens=count_tokens)
        callbacks.insert(0, log)
    if general is not None:
        callbacks.insert(0, GeneralValidation(general, options.general_share))
    names = ["-".join(text.direction or ()) for text in prepared.validation]
    if len(names) > 1:
        datasets = dict(zip(names, valid, strict=True))
        callbacks.insert(0, DirectionValidation(datasets, every=options.valid_every))
    measures = options.quality_every or (options.log_dir and prepared.validation)
    if options.select == "bleu" or measures:
        tokenizer = Tokenizer.load(path / "tokenizer")
        intervals = {"every": options.quality_every, "epochs": options.valid_every}
        settings = {**intervals, "log_dir": log_dir, "resume_from": state}
        sets = {
            name: (text.of(tokenizer), *validation_lines(text))
            for name, text in zip(names, prepared.validation, strict=True)
        }
        if len(names) > 1:
            quality = DirectionQuality(sets, **settings)
        else:
            quality = TranslationQuality(*sets[names[0]], **settings)
        callbacks.insert(0, quality)
    return history, callbacks
