"""A callback that saves checkpoints, from which a training goes on."""

import pathlib

from kformer.saving.checkpoints import TrainingState, save_checkpoint
from kformer.training.callbacks.step_counter import StepCounter
from kformer.utils.checks import check_whole


class Checkpoint(StepCounter):
    """Saves a checkpoint in `fit` every so many steps, and when the training ends.

    A process that is killed loses at most `every` steps; `kformer.training.fit_from` goes on from
    the latest checkpoint, through the very same losses. A checkpoint that is due at an epoch's last
    step is saved after the validation. At the end of `fit`, the weights saved are those of the
    training, not their moving average.

    Args:
        run_dir: the run directory; checkpoints go to `run_dir/checkpoints/step-N`.
        every: int, number of steps between two checkpoints.
        keep: int, how many checkpoints stay.
        resume_from: a `TrainingState`, or `None`.
        history: the `StepHistory` of this training, which has to stand before this callback in the
            list: its rows reach the disk before each checkpoint.
        data: dict of JSON values that tell the data apart, to be kept in the checkpoint.

    Example:
        >>> history = kformer.training.StepHistory("runs/en-de")
        >>> checkpoint = kformer.training.Checkpoint("runs/en-de", every=500, history=history)
        >>> kformer.training.fit_from(model, train, epochs=20, callbacks=[history, checkpoint])
    """

    def __init__(self, run_dir, every=500, keep=3, resume_from=None, history=None, data=None):
        super().__init__(resume_from)
        self.run_dir = pathlib.Path(run_dir)
        self.every = check_whole("every", every)
        self.keep = check_whole("keep", keep)
        self.history = history
        self.data = self.resume_from.data if data is None else data
        self._saved_step = self.step
        self._is_due = False

    def on_train_batch_end(self, batch, logs=None):
        before = self.step
        super().on_train_batch_end(batch, logs)
        self._is_due = before // self.every != self.step // self.every
        if self._is_due and not self.is_last_batch():
            self._save(self.epoch, self.step_in_epoch)

    def on_epoch_end(self, epoch, logs=None):
        ends = epoch + 1 == (self.params or {}).get("epochs") or self._model.stop_training
        if (self._is_due or ends) and self.step > self._saved_step:
            self._save(*self.next_batch())

    def on_train_end(self, logs=None):
        # Another callback may have stopped the training after this one's turn. With a moving
        # average it is too late: `fit` has already put the averages in the weights' place.
        optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
        if self.step > self._saved_step and not optimizer.use_ema:
            self._save(*self.next_batch())

    def _save(self, epoch, step_in_epoch):
        if self.history is not None:
            if self.history.step != self.step:
                raise ValueError(
                    "The StepHistory must stand before the Checkpoint that it is given to in the list of callbacks."
                )
            self.history.write()
        state = TrainingState(self.step, epoch, step_in_epoch, self.data)
        # `self.model` brings the variables up to date on JAX; `self._model` does not.
        save_checkpoint(self.run_dir, self.model, state, keep=self.keep)
        self._saved_step = self.step
        self._is_due = False
