"""What a training shows: plain lines in a log, a bar on a terminal."""

import io
import re

import pytest
from rich.console import Console

from kformer.saving import TrainingState
from kformer.training import TrainingProgress, fit_from
from tests.training.toy import ToyData, compiled_toy


def plain_console():
    return Console(file=io.StringIO(), force_terminal=False, width=200)


def test_plain_lines_in_a_log():
    console = plain_console()
    progress = TrainingProgress(14, count_tokens=lambda step: 40, seconds=0, console=console)
    fit_from(
        compiled_toy(),
        ToyData(),
        epochs=2,
        callbacks=[progress],
        validation_data=ToyData(2),
        verbose=0,
    )
    lines = console.file.getvalue().splitlines()
    steps = [line for line in lines if line.startswith("step ")]
    assert [line.split()[1] for line in steps] == [f"{n}/14" for n in range(1, 15)]
    assert re.fullmatch(
        r"step 5/14  loss \d\.\d{4}  [\d,]+ target tokens/s  0:\d\d:\d\d left", steps[4]
    )
    assert steps[-1].endswith("0:00:00 left")
    epochs = [line for line in lines if line.startswith("epoch ")]
    assert (
        re.match(r"epoch 1  step 7  .*nll \d.*val_nll \d.*val_perplexity \d", epochs[0])
        and len(epochs) == 2
    )
    assert "batch_loss" not in console.file.getvalue() and "\x1b" not in console.file.getvalue()


class Logs:
    """Calls a callback as `fit` does, with a clock of our own."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(
            "kformer.training.callbacks.progress.time.perf_counter", lambda: self.now
        )
        self.progress = None

    def steps(self, count, fetch, work, first=0.0, at_once=1, **logs):
        """So many batches, some of them at once; the first takes so much longer, since the step is
        compiled.
        """
        for batch in range(0, count, at_once):
            self.now += fetch + (0 if batch else first)
            self.progress.on_train_batch_begin(batch)
            self.now += work
            self.progress.on_train_batch_end(batch + at_once - 1, {"loss": 1.0, **logs})


@pytest.mark.any_backend
def test_rate_and_time_left_are_those_of_the_latest_steps(monkeypatch):
    logs = Logs(monkeypatch)
    progress = logs.progress = TrainingProgress(
        1000, count_tokens=lambda step: 300, console=plain_console()
    )
    progress.on_epoch_begin(0)
    logs.steps(100, fetch=0.5, work=1.0, first=60.0)
    assert progress.describe() == "200 target tokens/s  0:22:30 left"
    logs.now += 600  # validation
    progress.on_epoch_begin(1)
    logs.steps(100, fetch=0.0, work=3.0)
    assert progress.describe() == "100 target tokens/s  0:40:00 left"


@pytest.mark.any_backend
@pytest.mark.parametrize("logs", [{}, {"batch_tokens": 1000.0}])
def test_several_steps_at_once_count_all_their_tokens(monkeypatch, logs):
    clock = Logs(monkeypatch)
    count = None if logs else lambda step: 1000
    progress = clock.progress = TrainingProgress(160, count_tokens=count, console=plain_console())
    progress.on_epoch_begin(0)
    clock.steps(80, fetch=0.0, work=8.0, at_once=8, **logs)
    assert progress.describe() == "1,000 target tokens/s  0:01:20 left"


@pytest.mark.any_backend
def test_a_resumed_training_counts_from_where_it_stands(monkeypatch):
    console = plain_console()
    logs = Logs(monkeypatch)
    progress = logs.progress = TrainingProgress(
        20, resume_from=TrainingState(12, 1, 5), seconds=0, console=console
    )
    progress.on_epoch_begin(1)
    logs.steps(2, fetch=0.0, work=0.5)
    assert "step 14/20  loss 1.0000  2.0 steps/s  0:00:03 left" in console.file.getvalue()
    assert (progress.step, progress.step_in_epoch) == (14, 7)


@pytest.mark.any_backend
def test_a_bar_on_a_terminal_goes_away_after_an_exception(monkeypatch):
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with pytest.raises(KeyboardInterrupt), TrainingProgress(9, console=console) as progress:
        logs = Logs(monkeypatch)
        logs.progress = progress
        progress.on_train_begin()
        progress.on_epoch_begin(0)
        logs.steps(3, fetch=0.0, work=0.1)
        progress._display._live.refresh()
        raise KeyboardInterrupt
    text = console.file.getvalue()
    assert "3/9" in text and "10.0 steps/s" in text
    assert (
        text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1
    )  # the cursor is hidden, and shown again
