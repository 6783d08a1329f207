"""Averages of weights: the optimizer's moving average, and the mean of several checkpoints."""

import contextlib
import itertools
import warnings

import keras

from kformer.models.frozen import FROZEN_OPTIONS
from kformer.models.lora import merge_lora
from kformer.saving.checkpoints import load_weights, whole_checkpoints
from kformer.saving.run_directory import load_run
from kformer.utils.checks import check_whole
from kformer_options.wording import counted


@contextlib.contextmanager
def averaged_weights(model):
    """Within this context the moving average of the weights replaces the weights.

    Args:
        model: a compiled model. Without a moving average (`use_ema=True` in its optimizer, as with
            `paper_recipe(ema_momentum=0.999)`) nothing changes.
    """
    swap_average(model)
    try:
        yield
    finally:
        swap_average(model)


def swap_average(model):
    """Swaps the weights and their moving average, if the optimizer keeps one.

    Before the first step there is none: Keras begins it with zeros.
    """
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    has_average = optimizer.use_ema and optimizer.built
    if not has_average or not keras.ops.convert_to_numpy(optimizer.iterations):
        return
    averages = optimizer._model_variables_moving_average
    for variable, average in zip(model.trainable_variables, averages, strict=True):
        value = keras.ops.convert_to_numpy(variable).copy()
        variable.assign(average)
        average.assign(value)


class AveragedValidation(keras.callbacks.Callback):
    """Base class of callbacks with which `fit` validates the moving average of the weights."""

    swaps_average = True  # `fit` refuses `keras.callbacks.SwapEMAWeights` beside it.
    _shows_average = False

    def on_train_begin(self, logs=None):
        self._hide_average()  # Where an exception ended a validation.

    def on_test_begin(self, logs=None):
        # Of several such callbacks one does it, since two would undo it.
        if not getattr(self.model.optimizer, "shows_average", False):
            swap_average(self.model)
            self.model.optimizer.shows_average = self._shows_average = True

    def on_test_end(self, logs=None):
        if self._shows_average:
            self._hide_average()

    def _hide_average(self):
        if getattr(self.model.optimizer, "shows_average", False):
            swap_average(self.model)
            self.model.optimizer.shows_average = self._shows_average = False


def check_measured(logs, measure, remedy):
    """Checks that the logs of an epoch have a measure, if the epoch was validated.

    Args:
        logs: dict or `None`. What Keras hands to `on_epoch_end`.
        measure: str.
        remedy: str, for the message.

    Raises:
        ValueError: there was a validation, but it has no such measure.
    """
    if "val_loss" in (logs or {}) and f"val_{measure}" not in logs:
        measures = ", ".join(name[4:] for name in logs if name.startswith("val_"))
        raise ValueError(f"The validation measured {measures}, but not {measure}: {remedy}.")


def average_checkpoints(run_dir, last=10):
    """The mean of the weights of a training's last checkpoints, as in the paper.

    `kformer train --keep 10 --checkpoint-every N` keeps that many checkpoints.

    Args:
        run_dir: path. The run directory.
        last: int of at least 1, default 10. The number of checkpoints. If there are fewer, all are
            used, with a warning.

    Returns:
        `(model, steps)`: the model, not compiled, and the list of the steps in the mean.

    Raises:
        FileNotFoundError: there is no complete checkpoint.
        ValueError: a checkpoint belongs to another model, or `last` is below 1.

    Example:
    ```python
    model, steps = kformer.training.average_checkpoints("runs/en-de", last=1)
    ```

    References:
        Vaswani et al. 2017, "Attention is all you need", section 6.1: the last 5 checkpoints for
        base, 20 for big.
    """
    check_whole("last", last)
    paths = list(itertools.islice(whole_checkpoints(run_dir), last))
    if not paths:
        raise FileNotFoundError(f"{run_dir} has no whole checkpoint to average.")
    if len(paths) < last:
        has = f"{run_dir} has {counted(len(paths), 'checkpoint')}, not {last}"
        warnings.warn(f"{has}: keep more of them (--keep).", stacklevel=2)
    steps = sorted(int(path.name.removeprefix("step-")) for path in paths)
    # The mean of products of adapters is not the product of their means.
    return _mean((path, merge_lora(load_weights(path))) for path in paths), steps


def average_runs(runs):
    """The mean of the weights of several runs, a "model soup".

    It translates as fast as one of them, and often better than each, if they began from one model
    (as fine-tunings of one run, with other seeds or texts). Runs that began from different random
    weights have no useful mean: let them translate together, as an ensemble.

    Args:
        runs: list of paths of run directories, at least two.

    Returns:
        `(model, tokenizer, config)`: the model, not compiled, and tokenizer and config of the first
        run.

    Raises:
        FileNotFoundError: a run is missing or not whole.
        ValueError: there is one run alone, or a run has another tokenizer or another model than the
            first.

    Example:
    ```python
    model, tokenizer, config = kformer.training.average_runs(["runs/en-de", "runs/en-de"])
    ```

    References:
        Wortsman et al. 2022, "Model soups: averaging weights of multiple fine-tuned models improves
        accuracy without increasing inference time".
    """
    if len(runs) < 2:
        raise ValueError("An average of runs needs two at least; one has checkpoints to average.")
    first = []

    def models():
        for run in runs:
            model, tokenizer, config = load_run(run)
            first.extend([] if first else [tokenizer, config])
            if not first[0].writes_like(tokenizer):
                raise ValueError(f"{run} has another tokenizer than {runs[0]}: they have no mean.")
            yield run, model

    return _mean(models()), *first


def _kind(model):
    """Returns a model's configuration without the options that matter only in a training."""
    rates = getattr(getattr(model, "config", None), "rates", ())  # A model may be the user's own.
    of_training = {"name", "seed", "dtype", "trainable", *FROZEN_OPTIONS, *rates}
    return {name: value for name, value in model.get_config().items() if name not in of_training}


def _mean(models):
    """Returns the last of several models, with the mean of their weights.

    Args:
        models: iterable of pairs of a path, for messages, and a model.
    """
    sums, count = None, 0
    for path, model in models:
        count += 1
        # In double precision: the mean of equal numbers is that number.
        arrays = map(keras.ops.convert_to_numpy, _float_weights(model))
        values = [array.astype("float64") for array in arrays]
        kind = _kind(model), [value.shape for value in values]
        if sums is None:
            sums, first, first_kind = values, path, kind
        elif kind != first_kind:
            raise ValueError(f"{path} has another model than {first}, so they have no mean.")
        else:
            sums = [total + value for total, value in zip(sums, values, strict=True)]
    for variable, total in zip(_float_weights(model), sums, strict=True):
        variable.assign((total / count).astype("float32"))
    return model


def _float_weights(model):
    """Returns the floating-point weights of a model, frozen ones included, in order."""
    return [weight for weight in model.weights if keras.backend.is_float_dtype(weight.dtype)]
