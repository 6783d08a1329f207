"""History and checkpoints as `fit` goes on: every step once, and each checkpoint at its step."""

import csv
import json
import os
import pathlib

import keras
import numpy as np
import pytest

from kformer.saving import TrainingState, load_checkpoint
from kformer.training import (
    Checkpoint,
    MaskedCrossentropy,
    StepHistory,
    TensorBoardLog,
    WarmupInverseSqrt,
)
from kformer.training.callbacks import tensorboard
from kformer.training.callbacks.history import scheduled_rates
from tests.training.callbacks.test_tensorboard import FakeBoard, Observed
from tests.training.toy import ToyData, compiled_toy, train


def rows_of(run_dir):
    with open(run_dir / "history.csv", newline="") as file:
        return list(csv.DictReader(file))


class OneStep(WarmupInverseSqrt):
    """A schedule that takes one step alone."""

    def __call__(self, step):
        return super().__call__(int(step))


class Stop(keras.callbacks.Callback):
    """Stops the training after so many batches of an epoch."""

    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def on_train_batch_end(self, batch, logs=None):
        if batch + 1 == self.batches:
            self._model.stop_training = True


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Three epochs of seven steps, with a checkpoint every five."""
    run_dir = tmp_path_factory.mktemp("run")
    train(run_dir)
    return run_dir


def test_the_history_has_each_step_once_with_its_own_loss(run):
    rows = rows_of(run)
    assert [int(row["step"]) for row in rows] == list(range(1, 22))
    assert [int(row["epoch"]) for row in rows] == [1] * 7 + [2] * 7 + [3] * 7
    model, data = compiled_toy(), ToyData().from_step(0)
    for step in range(9):
        values = model.train_on_batch(*data[step], return_dict=True)
        assert float(rows[step]["loss"]) == pytest.approx(values["loss"], rel=1e-6)
        assert float(values["batch_loss"]) == pytest.approx(values["loss"], rel=1e-6)
    schedule = WarmupInverseSqrt(16, 20, 2.0)
    rates = [float(schedule(step)) for step in range(21)]
    np.testing.assert_allclose([float(row["learning_rate"]) for row in rows], rates, rtol=1e-6)
    assert all(float(row["seconds"]) > 0 for row in rows)


def test_a_schedule_is_asked_for_many_steps_at_once_unless_it_is_someone_elses(monkeypatch):
    calls, call = [], WarmupInverseSqrt.__call__

    def counted(self, step):
        calls.append(step)
        return call(self, step)

    monkeypatch.setattr(WarmupInverseSqrt, "__call__", counted)
    others = keras.optimizers.schedules.PiecewiseConstantDecay([3, 7], [1.0, 0.5, 0.1])
    ours, own = (kind(16, 20, 2.0) for kind in (WarmupInverseSqrt, OneStep))
    for schedule, expected in ((ours, 2), (others, 0), (own, 131)):
        optimizer = keras.optimizers.Adam(schedule)
        calls.clear()
        # A number of steps that fills a call and begins another, and one step.
        several, one = (scheduled_rates(optimizer, each) for each in (list(range(9, 139)), [5]))
        assert len(calls) == expected
        singly = [float(schedule(step)) for step in (*range(9, 139), 5)]
        np.testing.assert_allclose([float(rate) for rate in (*several, *one)], singly, 1e-6)


class Halving(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that cannot be saved."""

    def __call__(self, step):
        return 0.5 ** keras.ops.cast(step, "float32")


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.any_backend(quickest="torch")
def test_the_rates_are_those_of_the_updates(tmp_path, monkeypatch, scaled):
    """Whoever sets them, and whatever cannot be saved; TensorBoard's are the same."""
    monkeypatch.setattr(tensorboard, "Board", FakeBoard)

    class Setting(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if not scheduled:
                self.model.optimizer.learning_rate = 0.5 ** (2 * self.epoch + batch)

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

    for scheduled in (False, True):
        model, start = compiled_toy(), Halving() if scheduled else 1.0
        optimizer = keras.optimizers.SGD(start)
        model.compile(
            keras.optimizers.LossScaleOptimizer(optimizer, 1.0) if scaled else optimizer,
            MaskedCrossentropy(),
        )
        log = TensorBoardLog(tmp_path, every=1)
        model.fit(
            ToyData(2), epochs=2, callbacks=[StepHistory(tmp_path), log, Setting()], verbose=0
        )
        expected = [1.0, 0.5, 0.25, 0.125]
        assert [float(row["learning_rate"]) for row in rows_of(tmp_path)] == expected
        assert [rate for rate, _ in log._board.numbers["learning_rate"]] == expected


def test_validation_stands_in_the_row_of_the_epochs_last_step(run):
    rows = rows_of(run)
    names = ["val_accuracy", "val_loss", "val_nll", "val_perplexity"]
    assert [name for name in rows[0] if name.startswith("val_")] == names
    for row in rows:
        assert all(bool(row[name]) == (int(row["step"]) % 7 == 0) for name in names)
    assert float(rows[-1]["val_perplexity"]) == pytest.approx(
        np.exp(float(rows[-1]["val_nll"])), rel=1e-4
    )


def test_checkpoints_stand_at_their_steps(run):
    assert sorted(os.listdir(run / "checkpoints")) == ["step-15", "step-20", "step-21"]
    states = [
        json.loads((run / "checkpoints" / f"step-{n}" / "state.json").read_text())
        for n in (15, 20, 21)
    ]
    assert [(state["epoch"], state["step_in_epoch"]) for state in states] == [
        (2, 1),
        (2, 6),
        (3, 0),
    ]
    assert states[0]["data"] == {"seed": 0}


@pytest.mark.any_backend(quickest="torch")
def test_a_checkpoint_due_at_an_epochs_end_waits_for_the_validation(tmp_path):
    train(tmp_path, epochs=2, every=7)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["step-14", "step-7"]
    assert load_checkpoint(tmp_path / "checkpoints" / "step-7")[1] == TrainingState(
        7, 1, 0, {"seed": 0}
    )


@pytest.mark.any_backend(quickest="torch")
def test_a_training_stopped_in_an_epoch_is_resumed_there(run, tmp_path):
    model = compiled_toy()
    history = StepHistory(tmp_path)
    checkpoint = Checkpoint(tmp_path, every=100, history=history, data={"seed": 0})
    callbacks = [history, checkpoint, Stop(4)]
    model.fit(ToyData().from_step(0), steps_per_epoch=7, epochs=3, callbacks=callbacks, verbose=0)
    assert load_checkpoint(tmp_path)[1] == TrainingState(4, 0, 4, {"seed": 0})
    train(tmp_path, resume=True)
    assert [row["loss"] for row in rows_of(tmp_path)] == [row["loss"] for row in rows_of(run)]


def test_rows_after_the_checkpoint_go_when_training_resumes(run, tmp_path):
    (tmp_path / "history.csv").write_bytes((run / "history.csv").read_bytes() + b"22,4,0.")
    history = StepHistory(tmp_path, resume_from=TrainingState(15, 2, 1))
    history.on_train_begin()
    assert rows_of(tmp_path) == rows_of(run)[:15]
    anew = StepHistory(tmp_path)
    anew.on_train_begin()
    assert rows_of(tmp_path) == []
    with pytest.raises(ValueError, match="does not reach up to step 15"):
        StepHistory(tmp_path, resume_from=TrainingState(15, 2, 1)).on_train_begin()


@pytest.mark.any_backend
def test_a_damaged_history_is_refused(tmp_path):
    for lines in ("step,epoch\n1,1\n1,1\n", "step,epoch\n1\n", "epoch,step\n1,1\n"):
        (tmp_path / "history.csv").write_text(lines)
        with pytest.raises(ValueError, match="history.csv is damaged"):
            StepHistory(tmp_path, resume_from=TrainingState(1)).on_train_begin()


@pytest.mark.any_backend(quickest="torch")
def test_epochs_of_unknown_length_and_more_than_a_hundred_steps(tmp_path):
    """Of a generator Keras does not know the length at first: validation comes after the last row
    was written.
    """
    model, data = compiled_toy(learning_rate=0.01), ToyData().from_step(0)
    history = StepHistory(tmp_path, count_tokens=lambda step: 1000 + step)
    checkpoint = Checkpoint(tmp_path, every=115, history=history)
    batches = (data[i] for i in range(115))
    callbacks = [history, checkpoint]
    with pytest.warns(UserWarning, match="ran out of data"):
        model.fit(batches, epochs=1, validation_data=ToyData(2), callbacks=callbacks, verbose=0)
    rows = rows_of(tmp_path)
    assert [int(row["step"]) for row in rows] == list(range(1, 116))
    assert [row["step"] for row in rows if row["val_nll"]] == ["115"]
    assert [row["target_tokens"] for row in rows[:2]] == ["1001", "1002"]
    assert {row["learning_rate"] for row in rows} == {"0.01"}
    assert load_checkpoint(tmp_path)[1].step == 115


def test_a_model_that_can_report_its_batch_loss_is_made_to(tmp_path):
    model, data = Observed([keras.layers.Embedding(19, 4), keras.layers.Dense(19)]), ToyData(2)
    model.compile("sgd", loss=MaskedCrossentropy())
    model.fit(data, epochs=1, verbose=0)  # traced without the metric
    model.fit(data, epochs=2, verbose=0, callbacks=[StepHistory(tmp_path)])
    assert [float(row["loss"]) > 0 for row in rows_of(tmp_path)] == [True] * 4
    assert len({row["loss"] for row in rows_of(tmp_path)}) == 4


def test_what_is_wrong_is_said(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    x = np.zeros((2, 2), "float32")
    with pytest.raises(ValueError, match=r"LatestValue\(name='batch_loss'\)"):
        model.fit(x, x[:, :1], callbacks=[StepHistory(tmp_path)], verbose=0)
    model = compiled_toy()
    history = StepHistory(tmp_path)
    with pytest.raises(ValueError, match="must come before its Checkpoint"):
        callbacks = [Checkpoint(tmp_path, every=1, history=history), history]
        model.fit(ToyData(2), epochs=1, callbacks=callbacks, verbose=0)
    with pytest.raises(ValueError, match="every must be a whole number"):
        Checkpoint(tmp_path, every=0)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device here")
def test_a_full_disk_names_the_file(tmp_path):
    history = StepHistory(tmp_path)
    history.set_model(compiled_toy())
    history.on_train_begin()
    history.on_epoch_begin(0)
    history.path = pathlib.Path("/dev/full")  # A write to it fails as one to a full disk does.
    history._columns, history._rows = ["step", "learning_rate", "loss"], [{"step": 1, "loss": 2.0}]
    with pytest.raises(OSError, match="No space left") as raised:
        history.write()
    assert raised.value.filename == "/dev/full"
