"""Work in several processes is killed, damaged and gone on with.

`kformer translate --workers 2` is killed, with its workers, at a random time; then a finished shard
or the manifest may be damaged, or the input changed. The same command again ends with the bytes of
a job that nobody killed, or refuses in one sentence what has changed; nothing stays beside.
`kformer train --effort 2 --jobs 2` is killed in the same way, up to five times, and resumed to its
end: its weights and its search are those of a training that nobody killed. And a job of two workers
meets a full disk, as the largest size of a file; with room again it ends as ever. Of two hosts on
loopback (JAX) one is killed: the other ends with one sentence, and both go on to the same end.
`--only workers`, `efforts`, `full_disk` or `hosts` tries one of them; `--only unchecked` is
`full_disk` where nobody is told that a file could not be written, and must fail.
"""

import contextlib
import csv
import hashlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np

from benchmarks.common import ROOT, environment
from benchmarks.reliability_parts.hostile_values import pick
from kformer.examples import generate_pairs

_RUN = ROOT / "tests" / "frozen_run"
_LINES = 4_000
# As the module of this name it is imported by each process of a job.
_DEAF = """
import builtins, contextlib, io

class Deaf(io.FileIO):
    def write(self, content):
        with contextlib.suppress(OSError):
            super().write(content)
        return len(content)

class Opener:
    def __init__(self, open):
        self.open = open

    def __call__(self, path, mode="r", *arguments, **options):
        if mode == "wb":
            return io.BufferedWriter(Deaf(path, mode))
        return self.open(path, mode, *arguments, **options)

builtins.open = Opener(open)
"""
_EFFORT = {"preset": "tiny", "epochs": 2, "batch_tokens": 256, "vocabulary_size": 400}


def run(tally, options):
    """Runs the part: each command is a process of its own."""
    work = options.work.resolve() / "jobs"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    for kind in (_Workers, _Efforts, _FullDisk, _Hosts):
        if options.only not in (None, kind.name) and (options.only, kind) != (
            "unchecked",
            _FullDisk,
        ):
            continue
        part = kind(work)
        part.is_checked = options.only != "unchecked"
        for _, rng in tally.trials():
            tally.guard(kind.name, part.trial, tally, rng)


def _start(*words, **options):
    command = [sys.executable, "-m", "kformer_cli", *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    options = {"env": environment("torch"), **options}
    return subprocess.Popen(command, start_new_session=True, **pipes, **options)


def _done(*words, **options):
    """The exit code of a command, and what it said on standard error."""
    process = _start(*words, **options)
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
        self._folder = work / self.name
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


class _FullDisk(_Workers):
    """Such jobs on a disk that is full for a while."""

    name = "full_disk"

    def trial(self, tally, rng):
        self._output.unlink(missing_ok=True)
        most = int(10 ** rng.uniform(1, np.log10(1.2 * len(self._expected))))
        options = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))}
        if not self.is_checked:
            deaf = self._folder.parent / "deaf"
            deaf.mkdir(exist_ok=True)
            (deaf / "sitecustomize.py").write_text(_DEAF, encoding="utf-8")
            options["env"] = environment("torch", PYTHONPATH=f"{deaf}{os.pathsep}{ROOT}")
        fault, (code, said) = None, _done(*self._command, **options)
        if code:
            tally.note("refusals of a full disk")
            if code != 1 or said.count("error: ") != 1 or "Traceback" in said:
                fault = f"exit code {code}: {said[-500:]}"
            code, again = _done(*self._command)
            fault = fault or (f"then exit code {code}: {again[-500:]}" if code else None)
        if not fault and self._output.read_bytes() != self._expected:
            fault = "the output differs"
        left = sorted(path.name for path in self._folder.iterdir())
        if left != ["output", "text"]:
            fault = fault or f"left beside: {left}"
        tally.add("full disk", fault and f"files of at most {most:,} bytes: {fault}")


class _Efforts:
    """Trainings of `kformer train --effort 2 --jobs 2`."""

    name = "efforts"

    def __init__(self, work):
        self._folder = work / "efforts"
        self._folder.mkdir()
        self._text = _texts(self._folder, 300)
        self._expected, seconds = self._made("whole", None, None)
        self._seconds = seconds

    def _command(self, run):
        words = ["train", "--effort", "2", "--jobs", "2", "--output", run, *self._text]
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
            if (run / "config.json").exists():  # Else it was killed before there was a training.
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


class _Hosts:
    """Trainings of two hosts, which are processes of this machine."""

    name = "hosts"

    def __init__(self, work):
        self._folder = work / "hosts"
        self._folder.mkdir()
        words = {"preset": "tiny", "epochs": 3, "batch_tokens": 256, "vocabulary_size": 400}
        self._options = _texts(self._folder, 150)
        for name, value in {**words, "checkpoint_every": 4, "max_shapes": 1}.items():
            self._options += [f"--{name.replace('_', '-')}", value]
        begin = time.monotonic()
        for code, said in map(_end, self._start("whole", *self._options)):
            if code:
                raise RuntimeError(said)
        self._seconds = time.monotonic() - begin
        self._expected = _losses(self._folder / "whole")

    def _start(self, run, *words):
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        addresses = [f"127.0.0.1:{free.getsockname()[1]}" for free in sockets]
        for free in sockets:
            free.close()
        words = ["train", "--output", self._folder / run, *words, "--hosts", ",".join(addresses)]
        variables = {"KFORMER_HEARTBEAT_SECONDS": "6", "OMP_NUM_THREADS": "1"}
        options = {"env": environment("jax", **variables)}
        return [_start(*words, "--host-index", index, **options) for index in range(2)]

    def trial(self, tally, rng):
        run = self._folder / "killed"
        shutil.rmtree(run, ignore_errors=True)
        processes, lost = self._start("killed", *self._options), int(rng.integers(2))
        time.sleep(rng.uniform(0, self._seconds))
        is_late = processes[lost].poll() is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(processes[lost].pid, signal.SIGKILL)
        tally.note("kills that came too late" if is_late else "kills")
        code, said = _end(processes[1 - lost])
        processes[lost].communicate()
        last, fault = said.strip().splitlines()[-1], None
        if code and not (code == 1 and last.startswith("error: ")):
            fault = f"host {lost} was lost; exit code {code}: {said[-500:]}"
        time.sleep(2)  # A child of the lost host sees that it is gone, and frees the lock.
        words = ["--resume"] if (run / "config.json").exists() else self._options
        for code, again in map(_end, self._start("killed", *words)) if not fault else ():
            fault = f"then exit code {code}: {again[-500:]}" if code else fault
        if not fault and not np.allclose(_losses(run), self._expected, rtol=0, atol=1e-5):
            fault = "other losses than without a kill"
        tally.add(f"host {lost} is killed", fault)


def _end(process):
    said = process.communicate(timeout=900)[1]
    return process.returncode, said


def _losses(run):
    with open(run / "history.csv", encoding="utf-8") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def _texts(folder, count):
    """The options of a small training text, which is written into a folder."""
    options = []
    for split, pairs in (("train", count), ("valid", 20)):
        for side in ("source", "target"):
            lines = generate_pairs(pairs, split=split, categories=("time",))
            text = "".join(f"{getattr(pair, side)}\n" for pair in lines)
            path = folder / f"{split}.{side}"
            path.write_text(text, encoding="utf-8")
            options += [f"--{split}-{side}", path]
    return options


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
