"""Folders that a stranger made to do harm: opened in a process with limits, nothing may happen.

`attacks` changes one thing in a run, in an interrupted training, or in a published model, and
`attacks_toolkits` in the files of another toolkit; then the command that reads such a folder runs.
It may succeed, or refuse with one sentence. It may not run code (a canary, and an audit hook that
sees every process and connection), read or write outside the folder (a secret, whose text must
appear nowhere, and a list of what is there), take more memory than three times the folder's bytes
and 512 MiB, or take more than a minute.
"""

import os
import pathlib
import shutil
import sys

from benchmarks.reliability_parts import attacks, attacks_toolkits
from benchmarks.reliability_parts.damage import LINES
from benchmarks.reliability_parts.samples import corpus, trained
from tests.interop.toolkits.fixtures import DATA

_SECRET = "a-secret-that-nothing-may-read"
_SECONDS = 60
_MODULE = "benchmarks.reliability_parts.malicious"


def guarded(arguments, canary):
    """Runs a command in this process; any process or connection that it starts makes the canary."""

    def watch(event, details):
        if event in ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn"):
            os.close(os.open(canary, os.O_WRONLY | os.O_CREAT))
        if event == "socket.connect":
            os.close(os.open(canary, os.O_WRONLY | os.O_CREAT))

    sys.addaudithook(watch)
    from kformer_cli.main import main

    raise SystemExit(main(arguments))


def changed_copy(seed, number, source, folder, secret, canary, only=None, toolkit=False):
    """Copies a sample and attacks the copy, in a process of its own (it may need much memory)."""
    import numpy as np

    shutil.copytree(source, folder)
    rng = np.random.default_rng([seed, number, 2])
    folder, secret, canary = map(pathlib.Path, (folder, secret, canary))
    if toolkit:
        return attacks_toolkits.attack(folder, rng, secret, canary)
    return attacks.attack(folder, rng, secret, canary, only)


class Malicious:
    """Attacks on one backend's samples.

    Args:
        zygote: `Zygote`.
        work: path.
        only: str, default None. The one attack, on the published model; or "toolkits", for all
            attacks on the files of other toolkits.
    """

    def __init__(self, zygote, work, only=None):
        self._only = only
        self._zygote = zygote
        self._work = pathlib.Path(work).resolve() / f"malicious-{zygote.backend}-{os.getpid()}"
        self._work.mkdir(parents=True, exist_ok=True)
        folder = trained(zygote, work)
        published = folder / "published"
        if not published.exists():
            small = corpus(zygote, work) / "small"
            outcome = zygote.command("export", small, "--format", "hf", "--output", published)
            if outcome.code:
                raise RuntimeError(f"The published sample could not be made: {outcome}")
        translated = folder / "ctranslate2"
        if not translated.exists():
            small = corpus(zygote, work) / "small"
            zygote.command("export", small, "--format", "ctranslate2", "--output", translated)
        self._toolkits = {name: DATA / name for name in attacks_toolkits.OPTIONS}
        self._toolkits["ctranslate2"] = translated
        self._samples = {
            "run": (folder / "whole", ["translate", "MODEL"]),
            "training": (folder / "interrupted", ["train", "--output", "MODEL", "--resume"]),
            "published": (published, ["import", "MODEL", "--output", "OUTPUT"]),
        }

    def trial(self, tally, number, rng):
        """One folder."""
        shutil.rmtree(self._work, ignore_errors=True)
        outside = self._work / "a" / "b" / "c"
        outside.mkdir(parents=True)
        model, secret, canary = outside / "model", outside / "secret.txt", outside / "canary"
        secret.write_text(_SECRET)
        toolkit = self._only == "toolkits" or self._only is None and rng.random() < 0.5
        if toolkit:
            name = str(rng.choice(list(self._toolkits)))
            source, command = self._toolkits[name], ["import", "MODEL", "--output", "OUTPUT"]
            command += map(str, attacks_toolkits.OPTIONS[name])
        else:
            name = "published" if self._only else str(rng.choice(list(self._samples)))
            source, command = self._samples[name]
        arguments = {"source": str(source), "folder": str(model), "number": number}
        arguments |= {"seed": tally.seed, "secret": str(secret), "canary": str(canary)}
        arguments |= {"only": self._only, "toolkit": toolkit}
        made = self._zygote.run(f"{_MODULE}:changed_copy", arguments)
        if made.code:
            raise RuntimeError(f"The attack could not be made: {made}")
        kind, what = made.value
        before = attacks.made_outside(self._work)
        size = sum(path.lstat().st_size for path in (model, *model.rglob("*")))
        output = outside / "output"
        paths = {"MODEL": str(model), "OUTPUT": str(output)}
        outcome = self._zygote.run(
            f"{_MODULE}:guarded",
            {
                "arguments": [paths.get(part, part) for part in command],
                "canary": str(canary),
            },
            seconds=_SECONDS,
            stdin=LINES,
            memory=6 << 30,
        )
        fault = self._fault_of(outcome, before, model, output, canary, size)
        tally.add(f"{name}: {kind}", fault and f"{what}: {fault}")
        tally.note("refused" if outcome.code else "read without harm")

    def _fault_of(self, outcome, before, model, output, canary, size):
        if canary.exists():
            return f"it ran code or left the folder: {outcome}"
        if outcome.code is None:
            return f"it takes more than {_SECONDS} s"
        if outcome.code and outcome.error is None:
            return f"no single sentence: {outcome}"
        if outcome.peak > 3 * size + (512 << 20):
            return f"it took {outcome.peak >> 20} MiB for {size >> 20} MiB; {outcome}"
        if len(outcome.err) > 5000:
            return f"{len(outcome.err)} characters on standard error: {outcome.err[:300]}"
        if _SECRET in outcome.out + outcome.err or _holds_secret(output):
            return "it read the secret"
        inside = tuple(f"{path.relative_to(self._work)}" for path in (model, output))
        new = set(attacks.made_outside(self._work).items()) ^ set(before.items())
        new = [path for path, _ in new if not path.startswith(inside)]
        # A folder's own size may change when its entries do.
        new = [path for path in new if not (self._work / path).is_dir()]
        return f"outside the folder these changed: {new}" if new else None


def _holds_secret(folder):
    return any(
        _SECRET.encode() in path.read_bytes() for path in folder.rglob("*") if path.is_file()
    )
