"""Two processes write one run at the same time.

Every pair of commands that write a run starts, the second some time after the first, on a folder
that is not there, holds an interrupted training, or an older model. Each ends well or refuses with
one sentence; and the folder is then what one of the two alone makes of it, or both in one order or
the other, one after the other. Sometimes the first is killed while the second waits its turn: then
the second, or the same command once more, goes on as if the first had been alone.
"""

import os
import pathlib
import shutil
import sys

from benchmarks.reliability_parts.samples import (
    corpus,
    difference,
    digests,
    train_arguments,
    trained,
)
from benchmarks.reliability_parts.zygote import kformer_main

_MODULE = "benchmarks.reliability_parts.writers"
STARTS = ("nothing", "interrupted", "an older model")


def save(run, output):
    """Saves a translator by Python; an error is one line, as those of the command line."""
    import kformer

    try:
        kformer.Translator.load(run).save(output)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None


def write(name, arguments):
    """Runs a command or `save` in this process."""
    if name == "save":
        save(*arguments)
    else:
        kformer_main(arguments)


class Writers:
    """The commands that write a run.

    Args:
        zygote: `Zygote`.
        work: path.
        only: ignored; other parts have one kind to try.
    """

    def __init__(self, zygote, work, only=None):
        self._zygote = zygote
        texts, runs = corpus(zygote, work), trained(zygote, work)
        self._samples = {"interrupted": runs / "interrupted", "an older model": texts / "small"}
        published = runs / "published"
        if not published.exists():
            zygote.command("export", texts / "small", "--format", "hf", "--output", published)
        self._work = pathlib.Path(work).resolve() / f"writers-{zygote.backend}-{os.getpid()}"
        self._run = self._work / "run"
        training = train_arguments(texts, self._run)
        commands = {
            "train": training,
            "resume": [*training, "--resume"],
            "average": ["average", runs / "whole", "--last", "2", "--output", self._run],
            "import": ["import", published, "--output", self._run],
            "save": [runs / "whole", self._run],
        }
        self._commands = {name: list(map(str, command)) for name, command in commands.items()}
        self.pairs = [(one, other) for one in commands for other in commands]
        self._expected = {}

    def _start(self, name):
        arguments = {"name": name, "arguments": self._commands[name]}
        return self._zygote.start(f"{_MODULE}:write", arguments)

    def _fresh(self, start):
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir(parents=True)
        if start in self._samples:
            shutil.copytree(self._samples[start], self._run)

    def _one_after_the_other(self, start, names):
        """What commands make of the folder, each after the other's end."""
        key = start, names
        if key not in self._expected:
            self._fresh(start)
            outcomes = [self._start(name).outcome(600) for name in names]
            self._expected[key] = digests(self._run), outcomes
        return self._expected[key]

    def trial(self, tally, number, rng):
        """One pair."""
        names = self.pairs[number % len(self.pairs)]
        start = str(rng.choice(STARTS))
        _, (first, *_) = self._one_after_the_other(start, names[:1])
        delay = float(rng.uniform(0, 1.1 * first.seconds))
        self._fresh(start)
        running = [self._start(names[0])]
        running[0].wait(delay)
        running.append(self._start(names[1]))
        is_killed = rng.random() < 0.2
        if is_killed:
            running[1].wait(float(rng.uniform(0, first.seconds)))
            running[0].kill()
        outcomes = [process.outcome(600) for process in running]
        fault = next((str(one) for one in outcomes if one.code != -9 and _failed(one)), None)
        was_killed = outcomes[0].code == -9
        if was_killed and not fault:
            tally.note("first processes killed")
            fault = self._finished(names)
        # A killed import, average or save leaves nothing, or what only the second has made.
        if not fault and (not was_killed or {*names} <= {"train", "resume"}):
            found = digests(self._run)
            orders = (names, names[::-1], names[:1], names[1:])
            results = [self._one_after_the_other(start, order)[0] for order in orders]
            if found not in results:
                fault = f"not what either makes of it: {difference(found, results[0])}"
        what = f"{' and '.join(names)}, {start} there, {delay:.2f} s apart"
        tally.add(f"{names[0]}, {names[1]}", fault and f"{what}: {fault}; {outcomes[1]}")
        tally.note("refusals of a process" if any(one.code == 1 for one in outcomes) else "pairs")

    def _finished(self, names):
        """After the first was killed and the second has ended: the first goes on to its end."""
        again = {"train": "resume"}.get(names[0], names[0])
        outcome = self._start(again).outcome(600)
        if _failed(outcome):
            return f"after the kill: {outcome}"
        return None


def _failed(outcome):
    return outcome.code != 0 and outcome.error is None
