"""A callback that keeps the history of a training step by step."""

import csv
import pathlib
import time

import keras
import numpy as np

from kformer.training.callbacks.step_counter import StepCounter
from kformer.training.metrics import LatestValue
from kformer.training.schedules import WarmupInverseSqrt
from kformer.utils import files
from kformer.utils.rows import round_up

# Values that a model reports of each batch only for the history.
_NO_METRICS = ("batch_loss", "batch_tokens")
_STEPS_AT_ONCE = 128
_CSV = {"newline": "", "encoding": "utf-8"}


class StepHistory(StepCounter):
    """Writes `history.csv` in the run directory: one row per step, each step exactly once.

    | Column | |
    |---|---|
    | `step` | number of the batch, from 1; with gradient accumulation several make an update |
    | `epoch` | number of the epoch, from 1 |
    | `loss` | loss of this batch, with all digits of its float32 |
    | `learning_rate` | rate at this step (with loss scaling, skipped updates are steps too) |
    | `target_tokens` | real target tokens in the batch; blank if they are not counted |
    | `seconds` | wall time since the previous step, with the data, and with checkpoints between |
    | `val_*` | one column per validation metric, filled in the row of an epoch's last step |

    With `steps_per_execution=k` only every k-th step has a row, whose `seconds` are those of all k.
    A callback that changes the learning rate at the end of a batch must come after this one.

    `pandas.read_csv("history.csv")` reads the file; `.dropna(subset=["val_nll"])` keeps the
    validations.

    Rows are written at each checkpoint (put this callback before `Checkpoint`, and pass it to
    `Checkpoint`), at the end of an epoch, and every 100 steps. When the training begins, rows after
    the step that it resumes from are removed; a new training removes all rows.

    The model reports the loss of each batch with a `LatestValue` metric named `batch_loss`; the
    example of `LatestValue` shows how. A model with the attribute `loss_observer`, such as
    `kformer.Transformer`, gets this metric from the callback.

    Args:
        run_dir: path. The run directory; it is created if needed.
        resume_from: `TrainingState` or `None`, default `None`. The state that the training
            continues from.
        count_tokens: callable or `None`, default `None`. Maps the number of a step (from 1) to the
            number of real target tokens in its batch. `None` takes `logs["batch_tokens"]`, if the
            model has such a metric.

    Raises:
        ValueError: the model does not report `batch_loss`, or `history.csv` ends before the step
            that the training resumes from.

    Example:
    ```python
    model, tokenizer, _ = kformer.saving.load_run("runs/en-de")
    train = kformer.data.ParallelDataset("train.en", "train.de", tokenizer, batch_tokens=512)
    model.compile(**kformer.training.paper_recipe(model))
    history = kformer.training.StepHistory("runs/new")
    model.fit(train, steps_per_epoch=2, callbacks=[history], verbose=0)
    ```
    """

    _FIRST_COLUMNS = ("step", "epoch", "loss", "learning_rate", "target_tokens", "seconds")
    _ROWS_BETWEEN_WRITES = 100

    def __init__(self, run_dir, resume_from=None, count_tokens=None):
        super().__init__(resume_from)
        self.path = pathlib.Path(run_dir) / "history.csv"
        self.count_tokens = count_tokens
        self._columns = None
        self._rows = []

    def set_model(self, model):
        super().set_model(model)
        observe_losses(model)

    def on_train_begin(self, logs=None):
        if self._columns is not None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        columns, rows = read_rows(self.path)
        rows = [row for row in rows if int(row["step"]) <= self.step]
        last_step = int(rows[-1]["step"]) if rows else 0
        if last_step != self.step:
            end = f"step {self.step}, from which the training resumes"
            raise ValueError(f"{self.path} does not reach up to {end}.")
        self._columns = columns if rows else []
        self._rewrite(rows)

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        self._clock = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        if "batch_loss" not in logs:
            raise ValueError(
                "The history needs the loss of each batch: give the model a "
                "kformer.training.LatestValue(name='batch_loss') that its compute_loss updates."
            )
        # By a callback before this one.
        measured = {name: _shortest(logs[name]) for name in logs if name.startswith("val_")}
        trained = [f"val_{name}" for name in logs if name not in (*_NO_METRICS, *measured)]
        self._add_columns([*trained, *measured])
        now = time.perf_counter()
        tokens = self.count_tokens(self.step) if self.count_tokens else logs.get("batch_tokens")
        tokens = "" if tokens is None else int(tokens)
        loss, seconds = _shortest(logs["batch_loss"]), f"{now - self._clock:.4f}"
        values = self.step, self.epoch + 1, loss, set_rate(self._model), tokens, seconds
        self._rows.append({**dict(zip(self._FIRST_COLUMNS, values, strict=True)), **measured})
        self._clock = now
        if len(self._rows) > self._ROWS_BETWEEN_WRITES:
            self._write(self._rows[:-1])  # The last row may still get validation values.
            self._rows = self._rows[-1:]

    def on_epoch_end(self, epoch, logs=None):
        logs = {name: value for name, value in (logs or {}).items() if name.startswith("val_")}
        names = [name for name in logs if name[4:] not in _NO_METRICS]
        values = {name: _shortest(logs[name]) for name in names}
        self._add_columns(values)
        if values and self._rows:
            self._rows[-1].update(values)
        elif values:
            # The row is already written: Keras did not know the length of the epoch, and a
            # checkpoint was due at its last step.
            rows = read_rows(self.path)[1]
            rows[-1].update(values)
            self._rewrite(rows)
        self.write()

    def on_train_end(self, logs=None):
        self.write()

    def write(self):
        """Writes all rows to the disk."""
        self._write(self._rows)
        self._rows = []

    def _write(self, rows):
        if not rows:
            return
        rates = scheduled_rates(self._model.optimizer, [row["step"] - 1 for row in rows])
        for row, rate in zip(rows, rates, strict=False):
            row["learning_rate"] = rate
        with files.naming_full_disk(self.path), open(self.path, "a", **_CSV) as file:
            csv.DictWriter(file, self._columns, lineterminator="\n").writerows(rows)
        files.sync_to_disk(self.path)

    def _add_columns(self, names):
        """Adds missing columns to the file, which is normally new and empty then."""
        columns = [*dict.fromkeys([*self._columns, *self._FIRST_COLUMNS, *names])]
        if columns != self._columns:
            self.write()
            rows = read_rows(self.path)[1]
            self._columns = columns
            self._rewrite(rows)

    def _rewrite(self, rows):
        with files.replacing(self.path) as aside, open(aside, "w", **_CSV) as file:
            if self._columns:
                writer = csv.DictWriter(file, self._columns, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)


def number_in(path, row, column, kind):
    """The number in a column of a row of `history.csv`.

    Args:
        path: path of the file, for the message.
        row: dict of column to str.
        column: str.
        kind: `int` or `float`.

    Raises:
        ValueError: there is no number.
    """
    try:
        return kind(row.get(column))
    except (TypeError, ValueError):
        raise ValueError(
            f"{path} is damaged: a row has {row.get(column)!r} as its {column}, which is no "
            "number; correct the row, or begin a new training in another folder."
        ) from None


def _shortest(value):
    """The shortest decimal number that reads back as the same float32."""
    return str(np.float32(value))


def read_rows(path):
    """The columns and rows of a history, without an incomplete last line."""
    if not path.exists():
        return [], []
    lines = path.read_bytes().decode(errors="replace").split("\n")[:-1]
    reader = csv.reader(lines)
    columns = next(reader, [])
    rows = []
    for values in reader:
        is_row = columns[:1] == ["step"] and len(values) == len(columns) and values[0].isdecimal()
        if not is_row or rows and int(values[0]) <= int(rows[-1]["step"]):
            raise ValueError(
                f"{path} is damaged: it is not a history, or its steps do not go up, at "
                f"{','.join(values)[:80]!r}."
            )
        rows.append(dict(zip(columns, values, strict=True)))
    return columns, rows


def observe_losses(model):
    """Makes a model report the loss of each batch, if it has the attribute `loss_observer`."""
    if getattr(model, "loss_observer", True) is None:
        model.loss_observer = LatestValue(name="batch_loss")
        # Functions that are already traced do not use the metric.
        model.train_function = model.test_function = None


def set_rate(model):
    """Returns the learning rate of the latest batch as a text, if it has no schedule.

    Args:
        model: compiled Keras model, of a callback's `_model`, as `model` costs JAX a copy.

    Returns:
        str, or `None` if the optimizer has a schedule; see `scheduled_rates`.
    """
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if _schedule_of(optimizer) is not None:
        return None
    # JAX's values are not in the variables while it trains.
    values = (getattr(model, "_jax_state", None) or {}).get("optimizer_variables", ())
    for variable, value in zip(model.optimizer.variables, values, strict=False):
        if variable is optimizer._learning_rate:
            return _shortest(value)
    return _shortest(keras.ops.convert_to_numpy(optimizer.learning_rate))


def scheduled_rates(optimizer, steps):
    """Returns a schedule's learning rates after these numbers of updates, as texts.

    Args:
        optimizer: Keras optimizer.
        steps: list of int.

    Returns:
        list of str, empty if the optimizer has no schedule; see `set_rate`.
    """
    schedule = _schedule_of(getattr(optimizer, "inner_optimizer", optimizer))
    if schedule is None:
        return []
    if type(schedule) is WarmupInverseSqrt:
        # A call for each step would take milliseconds. Few lengths: JAX compiles for each.
        padded = np.resize(steps, round_up(len(steps), _STEPS_AT_ONCE))
        values = keras.ops.convert_to_numpy(schedule(padded))[: len(steps)]
    else:  # One of the user, a subclass too, may take one step alone.
        values = [keras.ops.convert_to_numpy(schedule(step)) for step in steps]
    return [_shortest(value) for value in values]


def _schedule_of(optimizer):
    rate = optimizer._learning_rate
    return rate if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule) else None
