"""`model.fit` from any step on, also from the middle of an epoch."""

import keras

from kformer.saving.checkpoints import TrainingState
from kformer.training.callbacks.step_counter import StepCounter


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
    """Calls `model.fit` so that the training goes on from `state` exactly as if it had not been
    interrupted.

    Keras's `fit` can begin at any epoch, but not within one. So the rest of an epoch that was
    interrupted, and a last epoch that is cut short by `steps`, are calls of `fit` of their own;
    batches, updates and epoch ends are those of one uninterrupted call. (The running averages in
    Keras's progress bar, and callbacks that compare epochs, as `EarlyStopping`, begin anew with
    each call.)

    Args:
        model: a compiled model, as `load_checkpoint` returns it.
        dataset: data whose batch is a function of the step: `dataset.from_step(n)` gives the
            endless `PyDataset` of the batches after the n-th, and `len(dataset)` the number of
            batches in an epoch. `kformer.data.ParallelDataset` is such data.
        state: `TrainingState`, or `None` for the beginning.
        epochs: int, the epoch to stop after, counted from the beginning of the whole training.
        steps: int, the step to stop after, counted from the beginning of the whole training. One of
            the two must be given; of both, what comes first counts.
        steps_per_epoch: int; `None` takes `len(dataset)`.
        callbacks: list of Keras callbacks. `StepHistory` and `Checkpoint` need `resume_from=state`.
        fit_arguments: further arguments of `model.fit`, as `validation_data` or `verbose`.

    Returns:
        A dict of lists, the metrics at the end of each epoch, as in the `history` of the object
        that `model.fit` returns. It is empty if there is nothing left to do.

    Raises:
        ValueError: neither `epochs` nor `steps` is given, or the data's epochs have another length
            than those of `state`.

    Example:
        >>> model, state = kformer.saving.load_checkpoint("runs/en-de")
        >>> history = kformer.training.StepHistory("runs/en-de", resume_from=state)
        >>> checkpoint = kformer.training.Checkpoint("runs/en-de", resume_from=state, history=history)
        >>> kformer.training.fit_from(model, train, state, epochs=20, callbacks=[history, checkpoint])
    """
    state = TrainingState(0) if state is None else state
    steps_per_epoch = len(dataset) if steps_per_epoch is None else steps_per_epoch
    if epochs is None and steps is None:
        raise ValueError("Say how long to train: give epochs, steps or both.")
    if state.step != state.epoch * steps_per_epoch + state.step_in_epoch:
        raise ValueError(
            f"The training stands at step {state.step}, after {state.epoch} epochs and {state.step_in_epoch} batches, "
            f"but with this data an epoch has {steps_per_epoch} batches: resume with the data that it began with."
        )
    limits = [] if steps is None else [steps]
    limits += [] if epochs is None else [epochs * steps_per_epoch]
    for callback in callbacks or []:
        if isinstance(callback, StepCounter):
            callback.steps_per_epoch = steps_per_epoch
    history = {}
    calls = plan_fits(state.step, min(limits), steps_per_epoch)
    for number, (first_epoch, end_epoch, length) in enumerate(calls):
        keeper = _TrainedWeights()
        result = model.fit(
            dataset.from_step(state.step if number == 0 else first_epoch * steps_per_epoch),
            initial_epoch=first_epoch,
            epochs=end_epoch,
            steps_per_epoch=length,
            callbacks=[*(callbacks or []), keeper],
            **{"shuffle": False, **fit_arguments},
        )
        for name, values in result.history.items():
            history.setdefault(name, []).extend(values)
        if model.stop_training:
            break
        if number + 1 < len(calls):
            keeper.restore()
    return history


def plan_fits(start, end, steps_per_epoch):
    """The calls of `fit` that take the batches from step `start` to step `end`.

    Args:
        start: int, number of steps already done.
        end: int, the step to stop after.
        steps_per_epoch: int.

    Returns:
        A list of `(first epoch, epoch to stop before, batches in each of its epochs)`; at most
        three.

    Example:
        >>> plan_fits(25, 58, 10)
        [(2, 3, 5), (3, 5, 10), (5, 6, 8)]
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
    """Remembers the weights before `fit` puts their moving average there, where the next call must
    not start.
    """

    def on_epoch_end(self, epoch, logs=None):
        optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
        self._values = []
        if optimizer.use_ema and epoch + 1 == self.params["epochs"]:
            self._values = [
                keras.ops.convert_to_numpy(v).copy() for v in self.model.trainable_variables
            ]

    def restore(self):
        for variable, value in zip(self.model.trainable_variables, self._values, strict=False):
            variable.assign(value)
