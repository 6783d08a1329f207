"""Exports, imports, averages, saves, distillations and translations that are killed.

A command is killed as a training is (see `trainings`), with nothing where its output goes, or with
an older output there. Right after the kill the output is as it was before, or whole; then the same
command runs again, and its output is that of a command that nobody killed, with nothing beside it.
A kill counts if the process was alive and its output not yet whole. The two files of `distill` are
looked at one by one.
"""

import os
import pathlib
import shutil

from benchmarks.reliability_parts.damage import LINES
from benchmarks.reliability_parts.samples import (
    corpus,
    difference,
    digests,
    let_an_hour_pass,
    trained,
)
from benchmarks.reliability_parts.trainings import random_kill

_SAVE = "benchmarks.reliability_parts.commands:save"


def save(run, output):
    """Saves a run's translator to another folder, by Python."""
    import kformer

    kformer.Translator.load(run).save(output)


class Commands:
    """The commands, with the samples that they read.

    Args:
        zygote: `Zygote`.
        work: path.
        only: str, default None. The one command to kill.
    """

    def __init__(self, zygote, work, only=None):
        self._only = only
        self._zygote = zygote
        texts, runs = corpus(zygote, work), trained(zygote, work)
        self._work = pathlib.Path(work).resolve() / f"commands-{zygote.backend}-{os.getpid()}"
        self._work.mkdir(parents=True, exist_ok=True)
        (self._work / "input.txt").write_text(LINES * 5, encoding="utf-8")
        (self._work / "old.txt").write_text("an old line\n" * 3, encoding="utf-8")
        small, whole, published = texts / "small", runs / "whole", runs / "published"
        if not published.exists():
            self._done("export", small, "--format", "hf", "--output", published)
        output = self._work / "trial" / "output"
        files = ["--output-source", output / "source", "--output-target", output / "target"]
        text = ["--source", self._work / "input.txt", "--beam-size", "2"]
        translation = ["--input", self._work / "input.txt", "--output", output / "file"]
        # Name: the command, and the command whose output is there before (None: nothing is).
        self._commands = {
            "average": (["average", whole, "--last", "2", "--output", output],) * 2,
            "distill": (["distill", whole, *text, *files],) * 2,
            "translate": (["translate", whole, *translation],) * 2,
            "save": (["save", small, output], ["save", whole, output]),
            "import": (["import", published, "--output", output], None),
        }
        for name in ("saved_model", "ctranslate2", "hf", "onnx"):
            command = ["export", small, "--output", output, "--format", name]
            self._commands[f"export {name}"] = (command, None)
        older = ["average", whole, "--last", "1", "--output", output]
        self._commands["average"] = (self._commands["average"][0], older)
        older = [*self._commands["export saved_model"][0], "--beam-size", "2"]
        self._commands["export saved_model"] = (self._commands["export saved_model"][0], older)
        self._references = {}
        self.folder = output.parent

    def run(self, command, **options):
        options.setdefault("seconds", 600)
        if command[0] == "save":
            arguments = {"run": str(command[1]), "output": str(command[2])}
            return self._zygote.run(_SAVE, arguments, **options)
        return self._zygote.command(*command, **options)

    def _done(self, *command, **options):
        outcome = self.run(command, **options)
        if outcome.code:
            raise RuntimeError(f"{command[0]} failed: {outcome}")
        return outcome

    def command(self, name):
        """The command of a name, as a list."""
        return self._commands[name][0]

    def may_be_over(self, name):
        """Whether a command takes the path of an older output."""
        return self._commands[name][1] is not None

    def _before(self, name, older):
        """Makes the folder of a trial, with an older output or none."""
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "output").mkdir(parents=True)
        if name not in ("distill", "translate"):
            (self.folder / "output").rmdir()
        if older is None:
            return
        if name in ("distill", "translate"):
            for file in ("source", "target") if name == "distill" else ("file",):
                shutil.copy(self._work / "old.txt", self.folder / "output" / file)
        else:
            self._done(*older)

    def reference(self, name, is_over):
        """What is there before and after a command that nobody kills, and how it went.

        Args:
            name: str.
            is_over: bool. Whether an older output is there.

        Returns:
            The folder as it was before; its digests before and after; the set of the files that
            differ between two whole outputs; and the `Outcome`.
        """
        older = self._commands[name][1] if is_over else None
        key = name, older is not None
        if key not in self._references:
            results = []
            for _ in range(2):
                self._before(name, older)
                kept = self._work / f"before-{name.replace(' ', '-')}-{older is not None}"
                shutil.rmtree(kept, ignore_errors=True)
                shutil.copytree(self.folder, kept)
                before = digests(self.folder)
                hook = {"root": str(self.folder)}
                outcome = self._done(*self._commands[name][0], hook=hook)
                results.append(digests(self.folder))
            # What differs from one whole output to the next is not compared, but must be there.
            free = {path for path in results[0] if results[0][path] != results[1].get(path)}
            whole = but(results[0], free)
            self._references[key] = kept, but(before, free), whole, free, outcome
        return self._references[key]

    def trial(self, tally, number, rng):
        """Kills one command."""
        name = self._only or str(rng.choice(list(self._commands)))
        command = self._commands[name][0]
        is_over = self.may_be_over(name) and rng.random() < 0.6
        kept, before, whole, free, outcome = self.reference(name, is_over)
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(kept, self.folder)
        how, options = random_kill(rng, outcome.operations, outcome.seconds, self.folder)
        killed = self.run(command, **options)
        if killed.code != -9:
            if killed.code:
                tally.add(name, f"kill {how}: {killed}")
            tally.note("kills that came too late")
            return
        fault = half_written(name, but(digests(self.folder), free), before, whole)
        is_whole = visible(but(digests(self.folder), free)) == visible(whole)
        if is_whole:
            tally.note("kills that came when the output was whole")
        else:
            tally.note("kills that count")
        # An export or import refuses a folder that is there; a SavedModel gets one more version.
        if not fault and not (is_whole and name.startswith(("import", "export"))):
            let_an_hour_pass(self.folder)
            again = self.run(command)
            found = but(digests(self.folder), free)
            fault = str(again) if again.code else difference(found, whole)
        past = "over an older output" if is_over else "anew"
        tally.add(f"{name}, {past}", fault and f"kill {how}: {fault}")


def but(found, free):
    return {path: "free" if path in free else digest for path, digest in found.items()}


def visible(found):
    """What a reader finds: without empty folders and what is written aside, whose names begin with
    a dot.

    New parts of a run wait in `.replacing` until they are moved; a reader takes them from there.
    """
    waiting = {path: path.replace("/.replacing/", "/") for path in found if "/.replacing/" in path}
    parts = {"/".join(path.split("/")[:2]) for path in waiting.values()}
    found = {
        path: digest
        for path, digest in found.items()
        if "/".join(path.split("/")[:2]) not in parts or path in waiting
    }
    found = {waiting.get(path, path): digest for path, digest in found.items()}
    return {
        path: digest
        for path, digest in found.items()
        if not any(part.startswith(".") for part in path.split("/")) and path[-1] != "/"
    }


def half_written(name, found, before, whole):
    """A sentence if an output is neither as before nor whole."""
    found, before, whole = visible(found), visible(before), visible(whole)
    if name == "distill":
        parts = [
            {path: value for path, value in each.items() if path.endswith(side)}
            for side in ("source", "target")
            for each in (found, before, whole)
        ]
        states = [parts[0:3], parts[3:6]]
    else:
        states = [(found, before, whole)]
    for now, old, new in states:
        if now not in (old, new):
            return f"neither as before ({difference(now, old)}) nor whole ({difference(now, new)})"
    return None
