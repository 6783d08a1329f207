"""What a part has tried, and what failed."""

import sys
import time
import traceback

import numpy as np

from benchmarks.common import print_head, print_row


class Tally:
    """Counts trials by kind, and ends a part when its budget is spent.

    Args:
        name: str. The part.
        seed: int. Each trial has random numbers of its own, which depend on the seed and on the
            trial's number alone: `--first 37 --count 1` repeats trial 37.
        count: int. Most trials.
        minutes: float or None. Most minutes.
        first: int, default 0. The number of the first trial.
    """

    def __init__(self, name, seed, count, minutes=None, first=0):
        self.name, self.seed, self.first = name, seed, first
        self._last = first + count
        self._minutes = minutes
        self.rows, self.failures, self.notes = {}, [], {}
        self._trial = first

    def trials(self):
        """Yields (number, numpy generator) of each trial until the budget is spent.

        A part asks again for each backend, which has the whole budget.
        """
        end = None if self._minutes is None else time.monotonic() + 60 * self._minutes
        for number in range(self.first, self._last):
            if end is not None and time.monotonic() > end:
                return
            self._trial = number
            yield number, np.random.default_rng([self.seed, number])

    def add(self, kind, fault=None, count=1):
        """Counts `count` trials of a kind; `fault` is a sentence, or None if all went well."""
        row = self.rows.setdefault(kind, [0, 0])
        row[0] += count
        if fault:
            row[1] += 1
            again = f"--seed {self.seed} --first {self._trial} --count 1"
            self.failures.append(f"{self.name} {kind} ({again}): {fault}")
            print(f"FAILED {self.failures[-1]}", file=sys.stderr, flush=True)

    def note(self, what):
        """Counts something that is neither tried nor failed, such as a kill that came too late."""
        self.notes[what] = self.notes.get(what, 0) + 1

    def guard(self, kind, trial, *arguments):
        """Runs a trial that counts by itself; an exception is a failure, not the end."""
        try:
            trial(*arguments)
        except Exception:
            self.add(kind, traceback.format_exc().strip()[-1500:])

    @property
    def tried(self):
        return sum(row[0] for row in self.rows.values())

    def report(self):
        """Prints the table; returns the exit code."""
        print()
        print_head([self.name, "tried", "failed"])
        for kind, (tried, failed) in sorted(self.rows.items()):
            print_row(kind, f"{tried:,}", f"{failed:,}")
        failed = sum(row[1] for row in self.rows.values())
        print_row("all", f"{self.tried:,}", f"{failed:,}")
        for what, times in sorted(self.notes.items()):
            print(f"({times:,} {what})")
        sys.stdout.flush()
        return 1 if failed or not self.tried else 0
