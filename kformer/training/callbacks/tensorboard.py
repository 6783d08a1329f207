"""What TensorBoard shows of a training, on any backend and without TensorFlow."""

import time
import weakref

from kformer.training.callbacks.history import observe_losses, scheduled_rates, set_rate
from kformer.training.callbacks.step_counter import StepCounter


class Board:
    """Writes numbers and texts into a folder that TensorBoard reads.

    Args:
        log_dir: path. The folder; it is created if needed.

    Raises:
        ImportError: the package tensorboard is not installed.
    """

    def __init__(self, log_dir):
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(log_dir))
        # A training may be continued with the same callback, so its end is too early to close.
        weakref.finalize(self, self._writer.close)

    def number(self, name, value, step):
        """Adds a number at a step."""
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb

        self._add(scalar_pb(name, float(value)), step)

    def text(self, name, text, step):
        """Adds a text in Markdown at a step."""
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._add(text_pb(name, text), step)

    def _add(self, summary, step):
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))

    def flush(self):
        """Writes what is still in memory to the disk."""
        self._writer.flush()


class TensorBoardLog(StepCounter):
    """Writes a training for TensorBoard: `loss`, `learning_rate`, `tokens_per_second`, and all
    validation metrics.

    It needs the package tensorboard, but not TensorFlow. (`keras.callbacks.TensorBoard` needs
    both.)

    Args:
        log_dir: path. The folder for TensorBoard.
        every: int, default 10. Steps from one entry to the next; the loss and the speed are means
            over these steps. The speed includes the time for checkpoints and measurements within an
            epoch, but not for what is done between two epochs. With `steps_per_execution` an entry
            comes after the first execution that reaches its step, and of each execution only the
            last loss is known. If the model reports no `batch_loss` (see `StepHistory`), the mean
            is right for batches of equally many rows.
        resume_from: `TrainingState` or `None`, default `None`. The state that the training
            continues from.
        count_tokens: callable or `None`, default `None`. Maps the number of a step (from 1) to the
            number of real target tokens in its batch. Without it there is no speed.

    Raises:
        ImportError: the package tensorboard is not installed.

    Example:
    ```python
    model, tokenizer, _ = kformer.saving.load_run("runs/en-de")
    train = kformer.data.ParallelDataset("train.en", "train.de", tokenizer, batch_tokens=512)
    model.compile(**kformer.training.paper_recipe(model))
    log = kformer.training.TensorBoardLog("board", every=1)
    model.fit(train, steps_per_epoch=2, callbacks=[log], verbose=0)
    # tensorboard --logdir board
    ```
    """

    def __init__(self, log_dir, every=10, resume_from=None, count_tokens=None):
        super().__init__(resume_from)
        self.every, self.count_tokens = every, count_tokens
        self._board = Board(log_dir)
        self._losses = []
        self._restart_clock()

    def _restart_clock(self):
        self._tokens, self._start = 0, time.perf_counter()

    def set_model(self, model):
        super().set_model(model)
        observe_losses(model)

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        self._sum = 0.0
        self._restart_clock()  # The time for a validation does not count.

    def on_train_batch_end(self, batch, logs=None):
        before = self.step
        super().on_train_batch_end(batch, logs)
        self._losses.append(self._latest_loss(before, logs))
        self._rate = set_rate(self._model)
        if self.count_tokens is not None:
            self._tokens += sum(map(self.count_tokens, range(before + 1, self.step + 1)))
        if before // self.every != self.step // self.every:
            self._write()

    def _latest_loss(self, before, logs):
        if "batch_loss" in logs:
            return float(logs["batch_loss"])
        # Keras's loss is the mean of the epoch so far.
        total = float(logs.get("loss", "nan")) * (self.step - self._steps_before)
        latest = (total - self._sum) / (self.step - before)
        self._sum = total
        return latest

    def _write(self):
        rate = self._rate or scheduled_rates(self._model.optimizer, [self.step - 1])[0]
        values = {"loss": sum(self._losses) / len(self._losses), "learning_rate": rate}
        if self._tokens:
            values["tokens_per_second"] = self._tokens / (time.perf_counter() - self._start)
        for name, value in values.items():
            self._board.number(name, value, self.step)
        self._losses = []
        self._restart_clock()

    def on_epoch_end(self, epoch, logs=None):
        for name, value in (logs or {}).items():
            if name.startswith("val_") and not name.startswith("val_batch_"):
                self._board.number(name.replace("val_", "validation/", 1), value, self.step)
        self._board.flush()

    def on_train_end(self, logs=None):
        if self._losses:
            self._write()
        self._board.flush()
