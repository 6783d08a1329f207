"""Power cuts: every state that a disk may be in when the power goes is opened.

A command runs once while all that it does to its files is recorded (`recorder`): writes, names and
syncs, in order. A trial cuts the record at a random event, and builds a state that the disk may be
in then (`disk_states`: what was not synced may be there, or not, or in part). A training is resumed
from that state, and must end as one without a cut, bit for bit. Of the other commands the output
must be as it was before, or whole; and the same command must then succeed.
"""

import os
import pathlib
import shutil

from benchmarks.reliability_parts.commands import Commands, but, half_written, visible
from benchmarks.reliability_parts.disk_states import HOW, Disk
from benchmarks.reliability_parts.samples import (
    corpus,
    difference,
    digests,
    let_an_hour_pass,
    train_arguments,
)

# Commands that write one file or folder; `distill` writes as `translate` does.
_OTHERS = ("average", "save", "import", "translate", "export saved_model", "export hf")


class PowerCut:
    """Records and their states.

    Args:
        zygote: `Zygote`.
        work: path.
        only: str, default None. The one command to cut, or "training".
    """

    def __init__(self, zygote, work, only=None):
        self._only = only
        self._zygote = zygote
        self._texts = corpus(zygote, work)
        self._commands = Commands(zygote, work) if only != "training" else None
        self._work = pathlib.Path(work).resolve() / f"power-cut-{zygote.backend}-{os.getpid()}"
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir(parents=True)
        self._records = {}

    def _recorded(self, name, root, run):
        """The `Disk` of a command, which is recorded the first time."""
        if name not in self._records:
            record = self._work / f"record-{len(self._records)}"
            hook = {"root": str(root), "record": str(record)}
            outcome = run(hook=hook, seconds=900)
            if outcome.code:
                raise RuntimeError(f"The recorded {name} failed: {outcome}")
            self._records[name] = Disk(record)
        return self._records[name]

    def _state(self, disk, rng, root):
        """Puts a state of the disk in a folder; returns what it is, in words."""
        count, how = int(rng.integers(len(disk.events) + 1)), str(rng.choice(HOW))
        shutil.rmtree(root, ignore_errors=True)
        disk.write(count, how, rng, root)
        last = disk.events[count - 1] if count else "the beginning"
        return f"cut after event {count} of {len(disk.events)} {last}, {how}"

    def trial(self, tally, number, rng):
        """One cut."""
        if self._only == "training" or (self._only is None and rng.random() < 0.5):
            self._training(tally, rng)
        else:
            self._other(tally, rng)

    def _training(self, tally, rng):
        root = self._work / "training"
        arguments = train_arguments(self._texts, root / "run", keep=1)
        if "training" not in self._records:
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir()
        disk = self._recorded("training", root, lambda **o: self._zygote.command(*arguments, **o))
        if not hasattr(self, "_expected"):
            self._expected = digests(root / "run")
        where = self._state(disk, rng, root)
        let_an_hour_pass(root)
        outcome = self._zygote.command(*arguments, "--resume", seconds=900)
        differs = None if outcome.code else difference(digests(root / "run"), self._expected)
        fault = str(outcome) if outcome.code else differs
        tally.add("training", fault and f"{where}: {fault}")

    def _other(self, tally, rng):
        name = self._only or str(rng.choice(_OTHERS))
        commands = self._commands
        is_over = commands.may_be_over(name) and rng.random() < 0.6
        root, command = commands.folder, commands.command(name)
        kept, before, whole, free, _ = commands.reference(name, is_over)

        def run(**options):
            shutil.rmtree(root, ignore_errors=True)
            shutil.copytree(kept, root)
            return commands.run(command, **options)

        disk = self._recorded((name, is_over), root, run)
        where = self._state(disk, rng, root)
        found = but(digests(root), free)
        fault = half_written(name, found, before, whole)
        is_whole = visible(found) == visible(whole)
        if not fault and not (is_whole and name.startswith(("import", "export"))):
            (root / "output").parent.mkdir(parents=True, exist_ok=True)
            if name == "translate":
                (root / "output").mkdir(exist_ok=True)
            let_an_hour_pass(root)
            again = commands.run(command)
            found = visible(but(digests(root), free))
            fault = str(again) if again.code else difference(found, visible(whole))
        tally.add(name + (", over an older one" if is_over else ""), fault and f"{where}: {fault}")
