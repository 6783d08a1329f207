"""Damaged files: a flipped bit, a file cut short, emptied or missing.

One file of a run, of an interrupted training (its prepared data, tokenizer and checkpoints) or of a
SavedModel is damaged. Then the command either refuses it with one sentence that names the file or
its folder, or gives exactly the result that it gives without the damage, since it rebuilt the file,
fell back to an older checkpoint, or does not need it. A traceback, a crash, much memory, no end, or
another result without a word is a failure.
"""

import os
import pathlib
import shutil

from benchmarks.reliability_parts.samples import (
    corpus,
    difference,
    digests,
    let_an_hour_pass,
    trained,
)

LINES = "half past four in the afternoon\nnoon\nten minutes to seven in the morning\n"
_MOST_BYTES = 1 << 30
_TEXTS = ("train.source", "train.target", "valid.source", "valid.target")
_HOW = ("a flipped bit", "cut short", "emptied", "missing")


def export_sample(zygote, work):
    """The SavedModel of the finished sample run, which is made if it is missing (TensorFlow)."""
    folder = trained(zygote, work)
    output = folder / "saved_model"
    if not output.exists():
        outcome = zygote.command("export", folder / "whole", "--output", output, "--n-best", "2")
        if outcome.code:
            raise RuntimeError(f"The sample's export failed: {outcome}")
    return output


def damage(path, how, rng):
    """Damages a file. Returns where, in words, or None if it has no bytes to be damaged."""
    data = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
        return "removed"
    if not data:
        return None
    if how == "emptied":
        path.write_bytes(b"")
        return "emptied"
    at = int(rng.integers(len(data)))
    if how == "cut short":
        path.write_bytes(data[:at])
        return f"cut to {at} of {len(data)} bytes"
    bit = int(rng.integers(8))
    data[at] ^= 1 << bit
    path.write_bytes(data)
    return f"bit {bit} of byte {at} of {len(data)} flipped"


class Damage:
    """Damaged copies of the samples, and the commands that read them.

    Args:
        zygote: `Zygote`.
        work: path.
        only: str, default None. The one file or folder of a run to damage, by its first name.
    """

    def __init__(self, zygote, work, only=None):
        self._only = only
        self._zygote = zygote
        self._samples = trained(zygote, work)
        self._folder = pathlib.Path(work).resolve() / f"damage-{zygote.backend}-{os.getpid()}"
        self._folder.mkdir(parents=True, exist_ok=True)
        self.copy = self._folder / "run"
        self._targets = {"run": ("whole", self._translate), "training": ("interrupted", None)}
        if zygote.backend == "tensorflow":
            export_sample(zygote, work)
            self._targets["SavedModel"] = ("saved_model", self._translate)
        self._expected = {}
        self._expected_run = None
        self._texts = corpus(zygote, work)

    def _command(self, *arguments, **options):
        return self._zygote.command(*arguments, seconds=120, **options)

    def _translate(self):
        # With scores, so that other weights cannot go unseen.
        search = ["--beam-size", "4", "--n-best", "2", "--scores"]
        return self._command("translate", self.copy, *search, stdin=LINES)

    def _fresh(self, sample):
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self._samples / sample, self.copy)

    def _result(self, target):
        """The outcome on the copy, and what is compared: the translations, or the whole run."""
        sample, act = self._targets[target]
        if act is not None:
            outcome = act()
            return outcome, outcome.out
        outcome = self._command("train", "--output", self.copy, "--resume")
        return outcome, digests(self.copy) if outcome.code == 0 else None

    def _undamaged(self, target):
        if target not in self._expected:
            self._fresh(self._targets[target][0])
            outcome, result = self._result(target)
            if outcome.code:
                raise RuntimeError(f"The undamaged {target} failed: {outcome}")
            self._expected[target] = result
        return self._expected[target]

    def trial(self, tally, number, rng):
        """Damages one file and looks at what becomes of it."""
        target = "run" if self._only else str(rng.choice(list(self._targets)))
        expected = self._undamaged(target)
        self._fresh(self._targets[target][0])
        groups = {}
        for path in sorted(path for path in self.copy.rglob("*") if path.is_file()):
            groups.setdefault(path.relative_to(self.copy).parts[0], []).append(path)
        group = groups[self._only or str(rng.choice(list(groups)))]
        path = group[int(rng.integers(len(group)))]
        how = str(rng.choice(_HOW, p=[0.6, 0.2, 0.1, 0.1]))
        where = damage(path, how, rng)
        if where is None:
            return
        let_an_hour_pass(self.copy)
        outcome, result = self._result(target)
        name = path.relative_to(self.copy)
        if str(name) == "history.csv" and isinstance(result, dict):
            # A log: nothing vouches for a number in it. Everything else must be the same.
            expected = {**expected, "history.csv": result.get("history.csv")}
        fault = self._fault_of(outcome, result, expected)
        tally.add(f"{target}: {how}", fault and f"{name}, {where}: {fault}")
        tally.note("refused" if outcome.code else "with the same result")

    def _fault_of(self, outcome, result, expected):
        """A sentence about what is wrong with an outcome, or None."""
        if outcome.code is None:
            return "it runs without end"
        if outcome.peak > _MOST_BYTES:
            return f"it took {outcome.peak >> 20} MiB; {outcome}"
        if outcome.code:
            if outcome.error is None:
                return f"no single sentence: {outcome}"
            # Without the paths of the text, the sentence names the text that is not found.
            if not any(name in outcome.error for name in (str(self.copy), *_TEXTS)):
                return f"the sentence names no file of the run: {outcome.error}"
            return None
        if isinstance(result, dict):
            differs = difference(result, expected)
            return differs and f"another run without a word: {differs}"
        return None if result == expected else f"another result without a word: {result!r:.300}"
