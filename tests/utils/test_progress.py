"""Progress: plain lines in a log, a line that changes in place on a terminal."""

import io

import pytest
from rich.console import Console

from kformer.utils.progress import Progress

pytestmark = pytest.mark.any_backend


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("kformer.utils.progress.time.perf_counter", lambda: now[0])
    return now


def test_plain_lines_and_a_summary(clock):
    console = Console(file=io.StringIO(), force_terminal=False, width=20)
    with Progress(3000, console=console) as progress:
        for done in (500, 1000, 2000, 2100, 3000):
            clock[0] += 6
            progress(done)
    assert console.file.getvalue().splitlines() == [
        "1,000 of 3,000 lines, 83.3 per second, 24 s left",
        "2,100 of 3,000 lines, 87.5 per second, 10 s left",
        "3,000 lines in 30.0 s, 100 per second",
    ]


def test_without_a_total_and_for_one_line(clock):
    said = []
    with Progress(report=said.append, name="pipe", seconds=0) as progress:
        clock[0] += 2
        progress(1)
    assert said == ["pipe: 1 line, 0.5 per second", "1 line in 2.0 s, 0.5 per second"]


def test_a_line_on_a_terminal_goes_away(clock):
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with pytest.raises(KeyboardInterrupt), Progress(10, console=console) as progress:
        clock[0] += 1
        progress(5)
        assert "5 of 10 lines, 5.0 per second, 1 s left" in console.file.getvalue()
        raise KeyboardInterrupt
    text = console.file.getvalue()
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor
    assert text.endswith("\x1b[2K") and " in " not in text
