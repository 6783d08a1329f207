"""The progress bar of a training."""

import collections
import datetime
import time

from kformer.training.callbacks.step_counter import StepCounter
from kformer.utils.progress import Display


class TrainingProgress(StepCounter):
    """A progress bar over the whole training: steps, loss, target tokens per second and time left.

    On a terminal or in a notebook the bar stays at the bottom, and a line is printed at the end of
    each epoch. Anywhere else, such as in a log file, a plain line is printed every `seconds`
    seconds. The speed is that of the last 100 steps. It includes the time for the data, and for
    checkpoints and measurements within an epoch, but not for what is done between two epochs, such
    as a validation.

    Args:
        total_steps: int. The last step of the training, counted from its beginning.
        resume_from: `TrainingState` or `None`, default `None`. The state that the training
            continues from.
        count_tokens: callable or `None`, default `None`. Maps the number of a step (from 1) to the
            number of real target tokens in its batch. `None` takes `logs["batch_tokens"]`; without
            either, the speed is in steps per second.
        seconds: float, default 10.0. The time between two plain lines.
        console: `rich.console.Console` or `None`, default `None`. `None` writes to standard error,
            so that results can be piped.

    Example:
    ```python
    model, tokenizer, _ = kformer.saving.load_run("runs/en-de")
    train = kformer.data.ParallelDataset("train.en", "train.de", tokenizer, batch_tokens=512)
    model.compile(**kformer.training.paper_recipe(model))
    with kformer.training.TrainingProgress(2) as progress:
        model.fit(train, steps_per_epoch=2, callbacks=[progress], verbose=0)
    ```
    """

    _WINDOW = 100

    def __init__(
        self, total_steps, resume_from=None, count_tokens=None, seconds=10.0, console=None
    ):
        super().__init__(resume_from)
        self.total_steps = total_steps
        self.count_tokens = count_tokens
        self._display = Display(total_steps, "training", seconds=seconds, console=console)
        self._busy = 0.0
        self._tokens = 0
        self._marks = collections.deque(maxlen=self._WINDOW)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        """Removes the bar from the terminal, also after an exception or Ctrl-C."""
        self.close()

    def close(self):
        self._display.close()

    def on_train_begin(self, logs=None):
        self._display.start(self.step)

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        self._clock = time.perf_counter()

    def on_train_batch_begin(self, batch, logs=None):
        # Keras fetches the batch before this call, so a slow dataset counts as busy time.
        now = time.perf_counter()
        self._busy += now - self._clock
        self._clock = now

    def on_train_batch_end(self, batch, logs=None):
        before = self.step
        super().on_train_batch_end(batch, logs)
        now = time.perf_counter()
        self._busy += now - self._clock
        self._clock = now
        tokens = self._tokens_since(before, logs or {})
        self._tokens = None if tokens is None or self._tokens is None else self._tokens + tokens
        self._marks.append((self._busy, self.step, self._tokens))
        self._display.update(
            self.step,
            lambda: self.describe(logs),
            f"step {self.step}/{self.total_steps}  ",
            last=self.step >= self.total_steps,
        )

    def _tokens_since(self, before, logs):
        if self.count_tokens is not None:
            return sum(map(self.count_tokens, range(before + 1, self.step + 1)))
        # With `steps_per_execution` the logs have the last batch, which stands for the others.
        tokens = logs.get("batch_tokens")
        return None if tokens is None else int(tokens) * (self.step - before)

    def on_epoch_end(self, epoch, logs=None):
        hidden = ("batch_loss", "batch_tokens", "val_batch_")
        logs = {name: value for name, value in (logs or {}).items() if not name.startswith(hidden)}
        values = [f"{name} {value:.4g}" for name, value in logs.items()]
        self._display.print("  ".join([f"epoch {epoch + 1}  step {self.step}", *values]))

    def on_train_end(self, logs=None):
        self.close()

    def describe(self, logs=None):
        """The loss, the speed and the time left, as text."""
        texts = [f"loss {logs['loss']:.4f}"] if logs and "loss" in logs else []
        start, first_step, first_tokens = self._marks[0]
        end, last_step, last_tokens = self._marks[-1]
        if end > start:
            if last_tokens is None:
                texts.append(f"{(last_step - first_step) / (end - start):,.1f} steps/s")
            else:
                texts.append(f"{(last_tokens - first_tokens) / (end - start):,.0f} target tokens/s")
            seconds = (self.total_steps - self.step) * (end - start) / (last_step - first_step)
            texts.append(f"{datetime.timedelta(seconds=round(max(seconds, 0)))} left")
        return "  ".join(texts)
