"""Trainings that are killed and resumed end as an uninterrupted one does, bit for bit.

A training is killed before one of its file operations, in the middle of a write, or at a random
time, up to three times, and resumed after each. Then history, weights, checkpoints, tokenizer and
prepared data must be those of a training that nobody killed, and nothing else may be in the folder.
A kill counts if the process was alive and its result not yet printed.
"""

import os
import pathlib
import shutil

from benchmarks.reliability_parts.samples import (
    corpus,
    difference,
    digests,
    let_an_hour_pass,
    train_arguments,
)

_MOST_KILLS = 3
_VARIANTS = {
    "new": {},
    "validated by BLEU": {"select": "bleu", "keep": 1, "tokenizer_type": "unigram"},
    "average and sampled segmentation": {"ema": 0.9, "subword_sampling": 0.1, "keep": 3},
    "packed": {"packed": None, "max_shapes": None},
    "started from a run": {"start_from": "small", "accumulate": 2},
}


class Trainings:
    """Kills of trainings on one backend.

    Args:
        zygote: `Zygote`.
        work: path.
        only: ignored; other parts have one kind to try.
    """

    def __init__(self, zygote, work, only=None):
        self._zygote = zygote
        self._work = pathlib.Path(work).resolve() / f"trainings-{zygote.backend}-{os.getpid()}"
        self._work.mkdir(parents=True, exist_ok=True)
        self._corpus = corpus(zygote, work)
        self._uninterrupted = {}

    def arguments(self, variant, run):
        changes = dict(_VARIANTS[variant])
        if "start_from" in changes:
            changes["start_from"] = self._corpus / changes["start_from"]
        arguments = train_arguments(self._corpus, run, **changes)
        for flag in [flag for flag, value in changes.items() if value is None]:
            at = arguments.index(f"--{flag.replace('_', '-')}")
            arguments[at : at + 2] = [arguments[at]] if flag == "packed" else []
        return arguments

    def uninterrupted(self, variant):
        """(digests of the run, its operations, its seconds) of a training that nobody kills."""
        if variant not in self._uninterrupted:
            run = self._work / "run"
            shutil.rmtree(run, ignore_errors=True)
            outcome = self._zygote.command(
                *self.arguments(variant, run), hook={"root": str(run)}, seconds=900
            )
            if outcome.code:
                raise RuntimeError(f"An uninterrupted training failed: {outcome}")
            self._uninterrupted[variant] = digests(run), outcome.operations, outcome.seconds
        return self._uninterrupted[variant]

    def trial(self, tally, number, rng):
        """Trains, kills and resumes once, and counts the kills."""
        variant = str(rng.choice(list(_VARIANTS)))
        expected, operations, seconds = self.uninterrupted(variant)
        run = self._work / "run"
        shutil.rmtree(run, ignore_errors=True)
        arguments, kills = self.arguments(variant, run), []
        kind = f"{self._zygote.backend}, {variant}"
        for _ in range(rng.integers(1, _MOST_KILLS + 1)):
            how, options = random_kill(rng, operations, seconds, run)
            outcome = self._zygote.command(*arguments, seconds=900, **options)
            arguments = [*arguments, *(["--resume"] if "--resume" not in arguments else [])]
            if outcome.code == -9 and str(run) not in outcome.out:
                kills.append(how)
            elif outcome.code:
                tally.add(kind, f"after the kills {kills}: {outcome}")
                return
            else:
                tally.note("kills that came too late")
                break
        if not kills:
            return
        let_an_hour_pass(run)
        outcome = self._zygote.command(*arguments, seconds=900)
        fault = difference(digests(run), expected) if outcome.code == 0 else str(outcome)
        tally.add(kind, fault and f"after the kills {kills}: {fault}", count=len(kills))
        for how in kills:
            tally.note(f"kills {how.split(' ')[0]} {how.split(' ')[1]}")


def random_kill(rng, operations, seconds, root):
    """How to kill: words for the report, and options of `Zygote.command`."""
    hook = {"root": str(root)}
    kind = rng.choice(["operation", "write", "time"], p=[0.45, 0.3, 0.25])
    if kind == "time":
        after = float(rng.uniform(0, seconds))
        return f"at time {after:.2f} s", {"hook": hook, "kill_after": after}
    names = list(operations)
    if kind == "write":
        at = int(rng.choice([i for i, name in enumerate(names, 1) if name == "write"]))
        return f"inside write {at}", {"hook": {**hook, "kill_at": at, "half": True}}
    at = int(rng.integers(1, len(names) + 1))
    return f"before operation {at} ({names[at - 1]})", {"hook": {**hook, "kill_at": at}}
