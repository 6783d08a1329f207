"""The base class of callbacks that count the steps of a whole training."""

import keras

from kformer.saving.checkpoints import TrainingState


class StepCounter(keras.callbacks.Callback):
    """Base class of callbacks that count the steps of a whole training.

    The count includes the steps before a resume, even in the middle of an epoch, and continues over
    several calls of `fit` with the same callback. With `steps_per_execution=k` in `compile`, Keras
    reports only every k-th step.

    Args:
        resume_from: `TrainingState` or `None`, default `None`. The state that the training
            continues from; `None` for a new training.

    Attributes:
        step: int. The number of batches trained on so far.
        epoch: int. The index of the current epoch, from 0.
        step_in_epoch: int. The number of batches of the epoch that are done.
        steps_per_epoch: int or `None`. The length of a whole epoch, if a call of `fit` has only a
            part of one; `fit_from` sets it.
        last_epoch: int or `None`. The last epoch of the whole training, from 1, if a call of `fit`
            has only some of them; `fit_from` sets it.
    """

    steps_per_epoch = last_epoch = None

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
        # With several steps at once Keras counts those of the last call as if they were complete.
        done = min(batch + 1, (self.params or {}).get("steps") or batch + 1)
        self.step = self._steps_before + done
        self.step_in_epoch = self._skipped + done

    def _is_due(self, epoch, every):
        """Whether what is done after each `every`-th epoch, and after the last, is due after this
        one.
        """
        last = self.last_epoch or (self.params or {}).get("epochs")
        return (epoch + 1) % every == 0 or epoch + 1 == last

    def is_last_batch(self):
        """Whether this call of `fit` ends the epoch, or its part of one, after the latest batch."""
        steps = (self.params or {}).get("steps")
        return steps is not None and self.step - self._steps_before >= steps

    def next_batch(self):
        """The epoch of the next batch, and the number of that epoch's batches that are done."""
        if self.steps_per_epoch is not None:
            is_complete = self.step_in_epoch >= self.steps_per_epoch
        else:
            is_complete = self.is_last_batch() or (self.params or {}).get("steps") is None
        return (self.epoch + 1, 0) if is_complete else (self.epoch, self.step_in_epoch)
