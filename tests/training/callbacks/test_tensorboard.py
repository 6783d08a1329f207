"""What a training writes for TensorBoard, and at which steps."""

import gc
import threading
import types

import keras
import numpy as np
import pytest

from kformer.training import TensorBoardLog, WarmupInverseSqrt
from kformer.training.callbacks import tensorboard

pytestmark = pytest.mark.any_backend


class Observed(keras.Sequential):
    """Has the attribute through which a `Transformer` reports the loss of each batch."""

    loss_observer = None

    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        if self.loss_observer is not None:
            self.loss_observer.update_state(loss)
        return loss


class FakeBoard:
    def __init__(self, log_dir):
        self.numbers = {}

    def number(self, name, value, step):
        self.numbers.setdefault(name, []).append((float(value), step))

    def flush(self):
        pass


@pytest.fixture
def numbers_of(monkeypatch):
    """A function that trains with a log and returns its entries by name.

    The loss of a step is its number, each step takes a second, and so does all between epochs.
    """
    clock = types.SimpleNamespace(now=0.0)
    monkeypatch.setattr(tensorboard, "Board", FakeBoard)
    monkeypatch.setattr(tensorboard.time, "perf_counter", lambda: clock.now)
    model = types.SimpleNamespace(optimizer=keras.optimizers.Adam(WarmupInverseSqrt(16, 20)))

    def numbers_of(epochs, steps, at_once=1, **options):
        log = TensorBoardLog("board", **options)
        log.set_model(model)
        log.set_params({"steps": steps})
        for epoch in range(epochs):
            clock.now += 1
            log.on_epoch_begin(epoch)
            for batch in range(at_once - 1, steps, at_once):
                clock.now += at_once
                log.on_train_batch_end(batch, {"batch_loss": epoch * steps + batch + 1})
            log.on_epoch_end(epoch)
        log.on_train_end()
        return log._board.numbers

    return numbers_of


def test_a_loss_is_the_mean_over_all_steps_since_the_last_entry(numbers_of):
    assert numbers_of(epochs=4, steps=7)["loss"] == [(5.5, 10), (15.5, 20), (24.5, 28)]


@pytest.mark.parametrize("observed", [False, True])
def test_a_loss_is_no_running_mean_of_the_epoch(monkeypatch, observed):
    """Without `batch_loss` by another callback, whether the model can report it or not."""
    monkeypatch.setattr(tensorboard, "Board", FakeBoard)
    keras.utils.set_random_seed(0)
    model = (Observed if observed else keras.Sequential)([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, losses = np.random.default_rng(0).normal(size=(6, 2)).astype("float32"), []
    means = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: losses.append(float(logs["loss"]))
    )
    log = TensorBoardLog("board", every=1)
    model.fit(x, x[:, :1], batch_size=2, shuffle=False, callbacks=[means, log], verbose=0)
    singly = [losses[0], 2 * losses[1] - losses[0], 3 * losses[2] - 2 * losses[1]]
    assert [loss for loss, _ in log._board.numbers["loss"]] == pytest.approx(singly, rel=1e-4)


def test_an_entry_is_written_where_several_steps_at_once_pass_its_step(numbers_of):
    found = numbers_of(epochs=1, steps=24, at_once=4)["loss"]
    assert found == [(8.0, 12), (18.0, 20), (24.0, 24)]


@pytest.mark.parametrize("at_once", [1, 4])
def test_the_speed_counts_all_tokens_and_no_time_between_epochs(numbers_of, at_once):
    found = numbers_of(epochs=2, steps=8, at_once=at_once, count_tokens=lambda step: 10 * step)
    # The mean of the steps' numbers since the epoch's begin or the entry before.
    means = {1: [9.5, 13.5], 4: [10.5, 14.5]}[at_once]
    assert [value for value, _ in found["tokens_per_second"]] == [10 * mean for mean in means]


def test_the_rate_is_that_of_the_entrys_own_step(numbers_of):
    numbers = numbers_of(epochs=1, steps=30, every=1)
    schedule = WarmupInverseSqrt(16, 20)
    assert [step for _, step in numbers["learning_rate"]] == list(range(1, 31))
    for (loss, step), (rate, _) in zip(numbers["loss"], numbers["learning_rate"], strict=True):
        assert loss == step and rate == pytest.approx(float(schedule(step - 1)), rel=1e-6)


@pytest.mark.parametrize("writes", [False, True])
def test_a_log_that_is_no_longer_used_leaves_no_thread(tmp_path, writes):
    before = set(threading.enumerate())
    log = TensorBoardLog(tmp_path)
    if writes:
        log._board.number("loss", 1.0, 1)
    assert set(threading.enumerate()) > before
    del log
    gc.collect()
    assert set(threading.enumerate()) == before
    (path,) = tmp_path.iterdir()
    assert (b"loss" in path.read_bytes()) == writes
