"""A callback that saves checkpoints, from which a training can continue."""

import pathlib

from kformer.saving.checkpoints import TrainingState, save_checkpoint
from kformer.training.callbacks.step_counter import StepCounter
from kformer.utils.checks import check_whole


class Checkpoint(StepCounter):
    """Saves a checkpoint every so many steps of `fit`, and when the training ends.

    A process that is killed loses at most `every` steps. `kformer.training.fit_from` continues from
    the latest checkpoint, through the same losses. A checkpoint that is due at the last step of an
    epoch is saved after the validation. At the end of `fit`, the saved weights are those of the
    training, not their moving average.

    Args:
        run_dir: path. The run directory; checkpoints go to `run_dir/checkpoints/step-N`.
        every: int of at least 1, default 500. The number of steps between two checkpoints.
        keep: int of at least 1, default 2. The number of checkpoints to keep.
        resume_from: `TrainingState` or `None`, default `None`. The state that the training
            continues from.
        history: `StepHistory` or `None`, default `None`. The history of this training, which must
            come before this callback in the list. Its rows are written before each checkpoint.
        data: dict of JSON values or `None`, default `None`. Identifies the data; it is stored in
            the checkpoint.

    Raises:
        ValueError: `every` or `keep` is below 1, or the history comes after this callback.

    Example:
    ```python
    model, tokenizer, _ = kformer.saving.load_run("runs/en-de")
    train = kformer.data.ParallelDataset("train.en", "train.de", tokenizer, batch_tokens=512)
    model.compile(**kformer.training.paper_recipe(model))
    history = kformer.training.StepHistory("runs/new")
    checkpoint = kformer.training.Checkpoint("runs/new", every=500, history=history)
    kformer.training.fit_from(model, train, steps=2, callbacks=[history, checkpoint], verbose=0)
    ```
    """

    def __init__(self, run_dir, every=500, keep=2, resume_from=None, history=None, data=None):
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
        if self._is_due or ends:
            self.save()

    def on_train_end(self, logs=None):
        # A later callback may have stopped the training. With a moving average it is too late to
        # save: `fit` has already replaced the weights by their average.
        optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
        if not optimizer.use_ema:
            self.save()

    def save(self):
        """Saves a checkpoint of the latest step now, unless there is one.

        It can be called at the end of a batch or of an epoch; at the end of an epoch's last batch
        the validation would be missing.
        """
        if self.step > self._saved_step:
            self._save(*self.next_batch())

    def _save(self, epoch, step_in_epoch):
        if self.history is not None:
            if self.history.step != self.step:
                raise ValueError("Among the callbacks StepHistory must come before its Checkpoint.")
            self.history.write()
        state = TrainingState(self.step, epoch, step_in_epoch, self.data)
        # `self.model` updates the variables on JAX; `self._model` does not.
        self._write(self.model, state)
        self._saved_step = self.step
        self._is_due = False

    def _write(self, model, state):
        save_checkpoint(self.run_dir, model, state, keep=self.keep)
