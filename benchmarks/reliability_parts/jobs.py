"""Work in several processes is killed, damaged and gone on with.

`kformer translate --workers 2` is killed, with its workers, at a random time; then a finished shard
or the manifest may be damaged, or the input changed. The same command again ends with the bytes of
a job that nobody killed, or refuses in one sentence what has changed; nothing stays beside.
`kformer train --effort 2 --jobs 2` is killed in the same way, up to five times, and resumed to its
end: its weights and its search are those of a training that nobody killed. `--only workers` or
`efforts` tries one of them.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time

from benchmarks.common import ROOT, environment
from benchmarks.reliability_parts.hostile_values import pick
from kformer.examples import generate_pairs

_RUN = ROOT / "tests" / "frozen_run"
_LINES = 4_000
_EFFORT = {"preset": "tiny", "epochs": 2, "batch_tokens": 256, "vocabulary_size": 400}


def run(tally, options):
    """Runs the part: each command is a process of its own."""
    work = options.work.resolve() / "jobs"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    kinds = [kind for kind in (_Workers, _Efforts) if options.only in (None, kind.name)]
    for kind in kinds:
        part = kind(work)
        for _, rng in tally.trials():
            tally.guard(kind.name, part.trial, tally, rng)


def _start(*words):
    command = [sys.executable, "-m", "kformer_cli", *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment("torch"), start_new_session=True, **pipes)


def _done(*words):
    """The exit code of a command, and what it said on standard error."""
    process = _start(*words)
    said = process.communicate(timeout=900)[1]
    return process.returncode, said


def _killed(tally, seconds, *words):
    """Whether a command was killed, with all its processes, before its end."""
    process = _start(*words)
    try:
        process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        tally.note("kills")
        return True
    return False


class _Workers:
    """Jobs of `kformer translate --workers 2`."""

    name = "workers"

    def __init__(self, work):
        self._folder = work / "workers"
        self._folder.mkdir()
        self._text, self._output = self._folder / "text", self._folder / "output"
        pairs = generate_pairs(_LINES, split="test")
        self._lines = "".join(f"{pair.source}\n" for pair in pairs)
        self._command = ["translate", _RUN, "--input", self._text, "--output", self._output]
        self._command += ["--workers", "2", "--batch-size", "16"]
        self._text.write_text(self._lines, encoding="utf-8")
        code, said = _done(*self._command)
        if code:
            raise RuntimeError(said)
        self._expected = self._output.read_bytes()

    def trial(self, tally, rng):
        self._output.unlink(missing_ok=True)
        self._text.write_text(self._lines, encoding="utf-8")
        _killed(tally, rng.uniform(3, 25), *self._command)
        what = pick(rng, ["as it was", "as it was", "shard", "manifest", "input"])
        parts = self._output.with_name("output.parts")
        files = [path for path in parts.rglob("*") if path.is_file()] if parts.exists() else []
        named = {
            "shard": [path for path in files if path.name.isdecimal()],
            "manifest": [path for path in files if path.suffix == ".json"],
        }
        if named.get(what):
            path = pick(rng, sorted(named[what]))
            content = bytearray(path.read_bytes())
            at = int(rng.integers(len(content)))
            content[at] ^= 1 + int(rng.integers(255))
            path.write_bytes(content[: at + 1] if rng.integers(2) else content)
        elif what == "input":
            self._text.write_text(self._lines.replace("half", "a quarter", 1), encoding="utf-8")
        fault, (code, said) = None, _done(*self._command)
        if code and (what in ("manifest", "input")) and said.count("error: ") == 1:
            tally.note(f"refusals of another {what}")
            self._text.write_text(self._lines, encoding="utf-8")
            shutil.rmtree(parts)
            code, said = _done(*self._command)
        if code or "Traceback" in said:
            fault = f"exit code {code}: {said[-500:]}"
        elif what != "input" and self._output.read_bytes() != self._expected:
            fault = "the output differs"
        left = sorted(path.name for path in self._folder.iterdir())
        if left != ["output", "text"]:
            fault = fault or f"left beside: {left}"
        tally.add(f"workers: {what}", fault)


class _Efforts:
    """Trainings of `kformer train --effort 2 --jobs 2`."""

    name = "efforts"

    def __init__(self, work):
        self._folder = work / "efforts"
        self._folder.mkdir()
        for split, count in (("train", 300), ("valid", 20)):
            for side in ("source", "target"):
                pairs = generate_pairs(count, split=split, categories=("time",))
                text = "".join(f"{getattr(pair, side)}\n" for pair in pairs)
                (self._folder / f"{split}.{side}").write_text(text, encoding="utf-8")
        self._expected, seconds = self._made("whole", None, None)
        self._seconds = seconds

    def _command(self, run):
        names = [f"{split}.{side}" for split in ("train", "valid") for side in ("source", "target")]
        words = ["train", "--effort", "2", "--jobs", "2", "--output", run]
        for name in names:
            words += [f"--{name.replace('.', '-')}", self._folder / name]
        for name, value in _EFFORT.items():
            words += [f"--{name.replace('_', '-')}", value]
        return words

    def _made(self, name, tally, rng):
        run = self._folder / name
        shutil.rmtree(run, ignore_errors=True)
        words, begin = self._command(run), time.monotonic()
        for _ in range(0 if rng is None else int(rng.integers(1, 6))):
            if not _killed(tally, rng.uniform(4, self._seconds), *words):
                break
            words = ["train", "--output", run, "--resume", "--jobs", "2"]
        else:
            code, said = _done(*words)
            if code:
                raise RuntimeError(said[-1500:])
        return _digest(run), time.monotonic() - begin

    def trial(self, tally, rng):
        digest, _ = self._made("killed", tally, rng)
        names = [name for name in digest if digest[name] != self._expected[name]]
        tally.add("efforts", names and f"other {', '.join(names)} than without a kill" or None)


def _digest(run):
    """Digests of what a training promises to make again: weights, tokenizer, search."""
    code = (
        "import sys; from kformer.saving import load_run; "
        "from kformer.saving.checkpoints import fingerprint; "
        "print(fingerprint(load_run(sys.argv[1])[0]))"
    )
    command, pipes = [sys.executable, "-c", code, str(run)], {"capture_output": True, "text": True}
    weights = subprocess.run(command, env=environment("torch"), check=True, **pipes)
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    tokenizer = b"".join(path.read_bytes() for path in sorted((run / "tokenizer").iterdir()))
    return {
        "weights": weights.stdout,
        "search": json.dumps(config.get("search"), sort_keys=True),
        "tokenizer": hashlib.sha256(tokenizer).hexdigest(),
    }
