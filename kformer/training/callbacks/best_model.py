"""A callback that keeps the best model of a training, and stops a training that gets no better."""

import pathlib

import numpy as np

from kformer.models.frozen import assign_weights, weight_values
from kformer.models.lora import merge_lora
from kformer.saving.model_files import save_model
from kformer.training.averages import AveragedValidation, averaged_weights, check_measured
from kformer.utils.checks import check_choice, check_whole

# What `mode="auto"` takes of a measure.
_MODES = dict.fromkeys(("nll", "mixed_nll", "general_nll", "loss", "perplexity"), "min")
_MODES |= dict.fromkeys(("bleu", "chrf", "accuracy", "retrieval_accuracy"), "max")
# A `TranslationQuality` measures these, perhaps more seldom than there are validations.
_MEASURED_APART = ("bleu", "chrf")


class BestModel(AveragedValidation):
    """Replaces `model.keras` at the end of each epoch that is better than all before.

    Without validation every epoch counts as better. If the optimizer keeps a moving average of the
    weights, the average is validated and saved. (`keras.callbacks.ModelCheckpoint` and
    `EarlyStopping` only see the weights themselves, and `SwapEMAWeights` would undo it.) LoRA
    adapters are merged in what is saved.

    Args:
        run_dir: path or `None`. The run directory, or another folder for the model; it is created
            if needed. `None` keeps the best weights in memory instead, and gives them to the model
            when `fit` ends.
        measure: str, default "nll". The measure of a validation, named as in the logs of an epoch
            without `val_`: "nll" (lower is better; a metric of `paper_recipe`), "loss" (the same),
            "mixed_nll" (the same; needs a `GeneralValidation` before this callback in the list),
            "bleu" (higher is better; needs a `kformer.evaluation.TranslationQuality` before it) or
            any other.
        patience: int of at least 1 or `None`, default `None`. The training stops after this many
            validations without a better one; `None` never stops it.
        validations: list of dicts with `epoch` and the measure, default empty. The validations
            before a training that continues.
        mode: str, default "auto". "min" if lower values are better, "max" if higher ones are;
            "auto" knows it of kformer's own measures.

    Attributes:
        best: dict with the `epoch` (from 1) and the measure of the best validation so far, or
            `None` before the first.

    Raises:
        ValueError: with "auto" the measure is unknown; the patience is below 1; a validation lacks
            the measure; or `keras.callbacks.SwapEMAWeights` is among the callbacks of `fit` of a
            model of kformer, or of `kformer.training.fit_from`.

    Example:
    ```python
    model, tokenizer, _ = kformer.saving.load_run("runs/en-de")
    train = kformer.data.ParallelDataset("train.en", "train.de", tokenizer, batch_tokens=512)
    valid = kformer.data.ParallelDataset("val.en", "val.de", tokenizer, batch_tokens=512)
    model.compile(**kformer.training.paper_recipe(model))
    best = kformer.training.BestModel("runs/best", patience=5)
    model.fit(train, validation_data=valid, epochs=1, callbacks=[best], verbose=0)
    model = keras.models.load_model("runs/best/model.keras")
    ```
    """

    def __init__(self, run_dir, measure="nll", patience=None, validations=(), mode="auto"):
        super().__init__()
        check_choice("mode", mode, ("auto", "min", "max"))
        if mode == "auto" and measure not in _MODES:
            raise ValueError(
                f"Whether a higher {measure} is better is not known: give mode='max' or mode='min'."
            )
        if patience is not None:
            check_whole("patience", patience)
        self.path = None if run_dir is None else pathlib.Path(run_dir) / "model.keras"
        self._weights = []
        self._sign = 1 if (_MODES[measure] if mode == "auto" else mode) == "max" else -1
        self.measure, self.patience = measure, patience
        self.best, self._waited = None, 0
        for validation in validations:
            self._is_better(validation)

    @property
    def value(self):
        return self.best[self.measure]

    @property
    def has_waited(self):
        """Whether as many validations as `patience` were not better."""
        return self.patience is not None and self._waited >= self.patience

    def _is_better(self, validation):
        value, best = validation[self.measure], np.nan if self.best is None else self.value
        # NaN never counts as an improvement, and any number is better than NaN.
        is_better = self._sign * value > self._sign * best
        is_better = is_better or self.best is None or (np.isnan(best) and not np.isnan(value))
        self._waited = 0 if is_better else self._waited + 1
        if is_better:
            self.best = validation
        return is_better

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)

    def on_epoch_end(self, epoch, logs=None):
        if self.measure not in _MEASURED_APART:
            choose = "add it to the metrics, put its callback before BestModel, or give one of "
            check_measured(logs, self.measure, f"{choose}these as measure")
        value = (logs or {}).get(f"val_{self.measure}")
        if value is None:
            if self.best is not None:
                return  # An epoch without validation is not compared.
        # Rounded as in history.csv, from which a training that continues reads it.
        elif not self._is_better({"epoch": epoch + 1, self.measure: float(np.float32(value))}):
            self.model.stop_training = self.model.stop_training or self.has_waited
            return
        with averaged_weights(self.model):
            if self.path is None:
                # Counts go on (those of a dropout), so that no mask comes twice.
                self._weights = weight_values(self.model)
            else:
                self.save(self.model)

    def on_train_end(self, logs=None):
        # After Keras has replaced the weights by their latest average.
        if self._weights:
            assign_weights(self.model, self._weights)

    def save(self, model):
        save_model(merge_lora(model), self.path, with_optimizer=False)
