"""The base class of callbacks that know the global step."""

import keras

from kformer.saving.checkpoints import TrainingState


class StepCounter(keras.callbacks.Callback):
    """Base class of callbacks that know the global step, also in a training that was resumed in the
    middle of an epoch.

    Counting goes on over several calls of `fit` with the same callback. Where `compile` was given
    `steps_per_execution=k`, Keras reports every k-th step alone.

    Args:
        resume_from: the `TrainingState` that the training goes on from, or `None` for one from the
            start.

    Attributes:
        step: the number of batches trained on so far.
        epoch: the index of the current epoch, from 0.
        step_in_epoch: how many batches of the epoch are done.
        steps_per_epoch: the true length of an epoch, where a call of `fit` has only a part of one;
            `fit_from` sets it.
    """

    steps_per_epoch = None

    def __init__(self, resume_from=None):
        super().__init__()
        self.resume_from = resume_from or TrainingState(0)
        self.step = self.resume_from.step
        self.epoch = self.resume_from.epoch
        self.step_in_epoch = self.resume_from.step_in_epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch != self.epoch or self.step > self.resume_from.step:
            self.step_in_epoch = 0
        self.epoch = epoch
        self._steps_before = self.step
        self._skipped = self.step_in_epoch

    def on_train_batch_end(self, batch, logs=None):
        self.step = self._steps_before + batch + 1
        self.step_in_epoch = self._skipped + batch + 1

    def is_last_batch(self):
        """Whether Keras ends the epoch after the latest batch, as far as it knows; the whole epoch
        or a part of one.
        """
        steps = (self.params or {}).get("steps")
        return steps is not None and self.step - self._steps_before >= steps

    def next_batch(self):
        """Index of the epoch that the next batch belongs to, and how many of that epoch's batches
        are done.
        """
        if self.steps_per_epoch is not None:
            is_complete = self.step_in_epoch >= self.steps_per_epoch
        else:
            is_complete = self.is_last_batch() or (self.params or {}).get("steps") is None
        return (self.epoch + 1, 0) if is_complete else (self.epoch, self.step_in_epoch)
