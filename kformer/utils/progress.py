"""Progress of long work: a bar on a terminal, plain lines anywhere else."""

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as RichProgress

from kformer_options.wording import counted

# Seconds between two changes of a line on a terminal.
_REFRESH = 0.2


class Display:
    """Shows a changing text: on a terminal or in a notebook in place, else as plain lines.

    Args:
        total: int, default `None`. The amount of work; `None` if nobody knows.
        title: str, default `None`. The title of a bar that stays when the work ends. Without a
            title there is no bar but a line, which goes away.
        seconds: float, default 10.0. The time between two plain lines.
        console: a `rich.console.Console`, default `None`, which is standard error.
        report: function of a line, default `None`. It takes the plain lines instead of the console.
    """

    def __init__(self, total=None, title=None, *, seconds=10.0, console=None, report=None):
        self.total, self.seconds = total, seconds
        self.console = console or Console(stderr=True)
        self._title, self._report = title, report
        self._live = None
        self._shown = time.perf_counter()

    def start(self, done=0):
        """Shows the bar or line, where there is a terminal."""
        if self._live is not None or not (self.console.is_terminal or self.console.is_jupyter):
            return
        columns = [TextColumn("{task.description}", markup=False)]
        if self._title is not None:
            columns = [TextColumn(self._title), BarColumn(), MofNCompleteColumn(), *columns]
        is_bar = self._title is not None  # A line leaves standard output to the results.
        self._live = RichProgress(
            *columns,
            console=self.console,
            auto_refresh=is_bar,
            redirect_stdout=is_bar,
            redirect_stderr=is_bar,
            transient=not is_bar,
        )
        self._task = self._live.add_task("", total=self.total, completed=done)
        self._live.start()

    def update(self, done, describe, prefix="", *, last=False):
        """Shows how much is done.

        Args:
            done: int.
            describe: function without arguments. It returns the text.
            prefix: str, default "". The begin of a plain line.
            last: bool, default `False`. Whether a plain line is printed although it is early.
        """
        now = time.perf_counter()
        if self._live is not None:
            if self._title is not None or now - self._shown >= _REFRESH:
                self._shown = now
                self._live.update(
                    self._task, completed=done, description=describe(), refresh=self._title is None
                )
        elif last or now - self._shown >= self.seconds:
            self._shown = now
            self.print(prefix + describe())

    def print(self, line):
        """Prints a line of its own."""
        if self._report is not None:
            self._report(line)
        else:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self):
        """Ends the bar or line, and gives the cursor back."""
        if self._live is not None:
            self._live.stop()
            self._live = None


class Progress:
    """Shows how many lines (or other things) are done, the rate and the time left.

    As a context manager it uses a line that changes in place on a terminal, and prints a summary at
    the end. Without `with` it only prints plain lines.

    Args:
        total: int, default `None`. The number of lines; `None` if nobody knows.
        what: str, default "lines". What is counted.
        name: str, default `None`. The name of the work, in front of a plain line.
        seconds: float, default 10.0. The time between two plain lines.
        console, report: as in `Display`.

    Attributes:
        before: int. How many were done before this work began: the rate is without them.

    Call arguments:
        done: int. How many are done.
        total: int, default `None`. How many there are, if it was not known before.

    Example:
        ```python
        from kformer.utils.progress import Progress

        with Progress(100) as progress:
            for done in range(1, 101):
                progress(done)
        ```
    """

    def __init__(
        self, total=None, what="lines", *, name=None, seconds=10.0, console=None, report=None
    ):
        self.total, self.what, self.done, self.before = total, what, 0, 0
        self._prefix = f"{name}: " if name else ""
        self._display = Display(total, seconds=seconds, console=console, report=report)
        self._start = time.perf_counter()

    def __call__(self, done, total=None):
        self.done, self.total = done, self.total if total is None else total
        if done != self.total:  # The summary reports the end.
            self._display.update(done, self.describe, self._prefix)

    def __enter__(self):
        self._display.start()
        return self

    def __exit__(self, kind, *rest):
        self._display.close()
        if kind is None and self.done:
            seconds, done = time.perf_counter() - self._start, self.done - self.before
            rate = _number(done / max(seconds, 1e-9))
            before = f" ({self.before:,} were done before)" if self.before else ""
            what = self._counted(done)
            self._display.print(f"{what} in {seconds:.1f} s, {rate} per second{before}")

    def _counted(self, number):
        noun, *verb = self.what.split()
        return " ".join([counted(number, noun.removesuffix("s")), *verb])

    def describe(self):
        """Returns how many are done, the rate and the time left, as text."""
        rate = (self.done - self.before) / max(time.perf_counter() - self._start, 1e-9)
        if self.total is None:
            return f"{self._counted(self.done)}, {_number(rate)} per second"
        left = (self.total - self.done) / rate if rate else 0.0
        counts = f"{self.done:,} of {self.total:,} {self.what}"
        return f"{counts}, {_number(rate)} per second, {left:.0f} s left"


def _number(rate):
    return f"{rate:,.1f}" if rate < 100 else f"{rate:,.0f}"
