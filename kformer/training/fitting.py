"""`model.fit` from any step, including the middle of an epoch."""

import math

import keras

from kformer.models.frozen import assign_weights, weight_values
from kformer.saving.checkpoints import TrainingState
from kformer.training.callbacks.step_counter import StepCounter
from kformer.utils.dataset_views import trained_on
from kformer_options.wording import counted


def fit_from(
    model,
    dataset,
    state=None,
    *,
    epochs=None,
    steps=None,
    steps_per_epoch=None,
    callbacks=None,
    **fit_arguments,
):
    """Calls `model.fit` so that a training continues as if it had not been interrupted.

    Keras's `fit` can begin at any epoch, but not within one. So the rest of an interrupted epoch is
    a call of `fit` of its own, and so is a last epoch that `steps` cuts short. Batches, updates and
    epoch ends are those of one uninterrupted call. Running means in Keras's progress bar, and
    callbacks that compare epochs (`EarlyStopping`), start again with each call.

    Args:
        model: a compiled Keras model, as `load_checkpoint` returns it.
        dataset: data whose batch is a function of the step, such as `kformer.data.ParallelDataset`:
            `dataset.from_step(n)` returns the endless `PyDataset` of the batches after the n-th,
            and `len(dataset)` is the number of batches in an epoch.
        state: `TrainingState` or `None`, default `None`. `None` starts from the beginning.
        epochs: int or `None`, default `None`. The epoch to stop after, counted from the beginning
            of the whole training.
        steps: int or `None`, default `None`. The step to stop after, counted in the same way. One
            of `epochs` and `steps` is needed; with both, the first to be reached ends the training.
        steps_per_epoch: int or `None`, default `None`. `None` means `len(dataset)`.
        callbacks: list of Keras callbacks or `None`, default `None`. `StepHistory` and `Checkpoint`
            need `resume_from=state`.
        **fit_arguments: further arguments of `model.fit`, such as `validation_data` or `verbose`.
            With a whole number as `validation_freq` the last epoch is validated, too.

    Returns:
        dict of lists: the metrics at the end of each epoch, as in Keras's `History.history`. It is
        empty if nothing is left to do.

    Raises:
        ValueError: neither `epochs` nor `steps` is given; the epochs of the data have another
            length than those of `state`; or the model's `steps_per_execution` does not divide the
            steps.

    Example:
    ```python
    model, tokenizer, _ = kformer.saving.load_run("runs/en-de")
    train = kformer.data.ParallelDataset("train.en", "train.de", tokenizer, batch_tokens=512)
    model.compile(**kformer.training.paper_recipe(model))
    checkpoint = kformer.training.Checkpoint("runs/new")
    kformer.training.fit_from(model, train, steps=2, callbacks=[checkpoint], verbose=0)
    # Later, perhaps in another process:
    model, state = kformer.saving.load_checkpoint("runs/new")
    kformer.training.fit_from(model, train, state, steps=3, verbose=0)
    ```
    """
    state = TrainingState(0) if state is None else state
    steps_per_epoch = len(dataset) if steps_per_epoch is None else steps_per_epoch
    if epochs is None and steps is None:
        raise ValueError("Say how long to train: give epochs, steps or both.")
    if state.step != state.epoch * steps_per_epoch + state.step_in_epoch:
        raise ValueError(
            f"The training stands at step {state.step}, after {counted(state.epoch, 'epoch')} and "
            f"{counted(state.step_in_epoch, 'step')}, but with this data an epoch has "
            f"{counted(steps_per_epoch, 'step')}: resume with the data that it began with."
        )
    at_once = model.steps_per_execution or 1
    limits = [] if steps is None else [steps]
    limits += [] if epochs is None else [epochs * steps_per_epoch]
    last_epoch = math.ceil(min(limits) / steps_per_epoch)
    for callback in callbacks or []:
        if isinstance(callback, StepCounter):
            callback.steps_per_epoch, callback.last_epoch = steps_per_epoch, last_epoch
    if isinstance(every := fit_arguments.get("validation_freq"), int):
        fit_arguments["validation_freq"] = validated_epochs(every, last_epoch)
    history = {}
    calls = plan_fits(state.step, min(limits), steps_per_epoch)
    for *_, length in calls:
        if length % at_once:
            raise ValueError(
                f"steps_per_execution={at_once} does not divide the {counted(length, 'step')} of "
                "an epoch or of a part of one, so that more would be done: compile the model with "
                "steps_per_execution=1."
            )
    for number, (first_epoch, end_epoch, length) in enumerate(calls):
        keeper = _TrainedWeights(is_needed=number + 1 < len(calls))
        start = state.step if number == 0 else first_epoch * steps_per_epoch
        span = {"initial_epoch": first_epoch, "epochs": end_epoch, "steps_per_epoch": length}
        options = {"x": dataset.from_step(start), **span, "shuffle": False}
        options["callbacks"] = [*(callbacks or []), keeper]
        result = model.fit(**trained_on({**options, **fit_arguments}))
        for name, values in result.history.items():
            history.setdefault(name, []).extend(values)
        if model.stop_training:
            break
        keeper.restore()
    return history


def validated_epochs(every, last):
    """The epochs after which a training is validated: each `every`-th, and the last.

    Args:
        every: int. The epochs from one validation to the next.
        last: int. The last epoch, from 1.

    Returns:
        list of int, for Keras's `validation_freq`, which as a number leaves the last epoch out.
    """
    return sorted({*range(every, last, every), last})


def plan_fits(start, end, steps_per_epoch):
    """The calls of `fit` for the batches from step `start` to step `end`.

    `plan_fits(25, 58, 10)` is `[(2, 3, 5), (3, 5, 10), (5, 6, 8)]`.

    Args:
        start: int. The number of steps already done.
        end: int. The step to stop after.
        steps_per_epoch: int.

    Returns:
        list of at most three tuples: first epoch, epoch to stop before, batches in each of these
        epochs.
    """
    calls = []
    while start < end:
        epoch, done = divmod(start, steps_per_epoch)
        whole = (end - start) // steps_per_epoch
        if done == 0 and whole:
            calls.append((epoch, epoch + whole, steps_per_epoch))
            start += whole * steps_per_epoch
        else:
            length = min(steps_per_epoch - done, end - start)
            calls.append((epoch, epoch + 1, length))
            start += length
    return calls


class _TrainedWeights(keras.callbacks.Callback):
    """Keeps the weights that `fit` replaces when it ends: Keras by their moving average, and a
    `BestModel` by the best ones.

    Args:
        is_needed: bool. Whether another call of `fit` follows, which must start from these weights.
    """

    def __init__(self, is_needed):
        super().__init__()
        self._is_needed, self._values = is_needed, []

    def on_epoch_end(self, epoch, logs=None):
        if self._is_needed and epoch + 1 == self.params["epochs"]:
            self._values = weight_values(self.model)

    def restore(self):
        if self._values:
            assign_weights(self.model, self._values)
