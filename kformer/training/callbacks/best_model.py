"""A callback that keeps the best model of a training, and ends the training when none is better for
long.
"""

import pathlib

import keras
import numpy as np

from kformer.saving.model_files import save_model
from kformer.training.averages import averaged_weights, swap_average
from kformer.utils.checks import check_choice, check_whole


class BestModel(keras.callbacks.Callback):
    """Replaces `model.keras` of a run directory at the end of each epoch that was better than those
    before.

    Without validation every epoch counts as better. Where the optimizer keeps a moving average of
    the weights, it is the average that is validated and saved (`keras.callbacks.ModelCheckpoint`
    and `EarlyStopping` know the weights that are averaged alone).

    Args:
        run_dir: the run directory, or another folder for the model; it is made if it is not there.
        measure: what the validation is judged by, "nll" (less is better; a metric of
            `paper_recipe`) or "bleu" (more is; a `TranslationQuality` before this callback in the
            list).
        patience: int, the validations without a better one after which the training stops; `None`
            for none.
        validations: list of dicts with `epoch` and the measure, those before this training goes on.

    Attributes:
        best: dict with the `epoch` (from 1) and the measure of the best validation so far; `None`
            before the first.

    Raises:
        ValueError: an unknown measure, or a patience below 1.

    Example:
        >>> best = kformer.training.BestModel("runs/best", patience=5)
        >>> model.fit(train, validation_data=valid, epochs=30, callbacks=[best])
        >>> model = keras.models.load_model("runs/best/model.keras")
    """

    def __init__(self, run_dir, measure="nll", patience=None, validations=()):
        super().__init__()
        check_choice("measure", measure, ("nll", "bleu"))
        if patience is not None:
            check_whole("patience", patience)
        self.path = pathlib.Path(run_dir) / "model.keras"
        self.measure, self.patience = measure, patience
        self.best, self._waited = None, 0
        for validation in validations:
            self._is_better(validation)

    @property
    def value(self):
        return self.best[self.measure]

    @property
    def has_waited(self):
        """Whether there were as many validations without a better one as there is patience for."""
        return self.patience is not None and self._waited >= self.patience

    def _is_better(self, validation):
        sign = -1 if self.measure == "nll" else 1
        value = validation[self.measure]
        # No number is better than one that is none.
        is_better = (
            self.best is None
            or sign * value > sign * self.value
            or (np.isnan(self.value) and not np.isnan(value))
        )
        self._waited = 0 if is_better else self._waited + 1
        if is_better:
            self.best = validation
        return is_better

    def on_train_begin(self, logs=None):
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def on_test_begin(self, logs=None):
        swap_average(self.model)

    def on_test_end(self, logs=None):
        swap_average(self.model)

    def on_epoch_end(self, epoch, logs=None):
        value = (logs or {}).get(f"val_{self.measure}")
        if value is None:
            if self.best is not None:
                return  # An epoch without validation says nothing about being better.
        # As history.csv has it, where a training that goes on reads it.
        elif not self._is_better({"epoch": epoch + 1, self.measure: float(np.float32(value))}):
            self.model.stop_training = self.model.stop_training or self.has_waited
            return
        with averaged_weights(self.model):
            self.save(self.model)

    def save(self, model):
        save_model(model, self.path, with_optimizer=False)
