"""Commands in processes of their own, which start in milliseconds (Linux).

A process imports kformer once and forks for each command. So a command is a real process, which
can be killed or limited, and leaves nothing behind in the next one; and it does not spend seconds
on imports. Nothing is computed before the fork, so no backend has started its threads.
"""

import contextlib
import dataclasses
import importlib
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
_MODULES = (
    "kformer kformer.trainer kformer.training kformer.distillation.text kformer.interop "
    "kformer.export kformer.translating.streaming kformer.utils.progress kformer_cli.app tensorflow"
).split()


@dataclasses.dataclass
class Outcome:
    """How a process ended.

    Attributes:
        code: int. The exit code; minus the signal's number after a kill; None after a timeout.
        out, err: str. What it printed.
        value: what the function returned.
        operations: list of str, the file operations that the hook counted, if it ended by itself.
        peak: int. Bytes that it took in memory above what it had at its start.
        seconds: float.
    """

    code: int | None
    out: str
    err: str
    value: object = None
    operations: tuple = ()
    peak: int = 0
    seconds: float = 0.0

    @property
    def error(self):
        """The sentence of a refusal, or None if this is no proper refusal."""
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        proper = self.code in (1, 2) and len(lines) == 1 and self.err.rstrip().endswith(lines[0])
        has_trace = "Traceback" in self.err or "KFORMER_TRACEBACK" in self.err
        return lines[0] if proper and not has_trace else None

    def __str__(self):
        return f"exit code {self.code}, {self.err.strip()[-600:] or 'nothing'} on standard error"


class Zygote:
    """The process that forks, seen from the campaign.

    Args:
        backend: str.
        work: path of a folder for what the processes print, and for JAX's compilations.
        core: str, default None. The cores that it may use, as in "0" or "0,1".
    """

    def __init__(self, backend, work):
        self.backend = backend
        self._folder = pathlib.Path(work) / f"processes-{backend}-{os.getpid()}"
        self._folder.mkdir(parents=True, exist_ok=True)
        threads = dict.fromkeys(
            ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "NPROC"), "1"
        )
        cache = pathlib.Path(work).resolve() / "jax"
        environment = {
            **os.environ,
            **threads,
            "TF_NUM_INTEROP_THREADS": "1",
            "KERAS_BACKEND": backend,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(ROOT),
            "XLA_FLAGS": "--xla_backend_optimization_level=0",
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.reliability_parts.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=open(self._folder / "zygote.err", "w"),  # noqa: SIM115
            text=True,
            env=environment,
            cwd=ROOT,
        )
        self._count = 0

    def _ask(self, **request):
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            text = (self._folder / "zygote.err").read_text(errors="replace")
            raise RuntimeError(f"The process that forks has ended: {text[-2000:]}")
        return json.loads(line)

    def start(self, call, arguments, *, hook=None, memory=None, stdin=None):
        """Starts a function in a process of its own.

        Args:
            call: str, "module:function".
            arguments: dict of JSON values.
            hook: dict, default None. The arguments of `hook.install`.
            memory: int, default None. Bytes of address space above what the process has.
            stdin: str, default None. Its standard input.

        Returns:
            A `Running`.
        """
        self._count += 1
        base = self._folder / str(self._count % 100)
        for ending in (".out", ".err", ".json"):
            base.with_suffix(ending).unlink(missing_ok=True)
        base.with_suffix(".in").write_text(stdin or "", errors="surrogateescape")
        request = {"call": call, "arguments": arguments, "hook": hook, "memory": memory}
        return Running(self, self._ask(start=request, base=str(base))["pid"], base)

    def wait(self, pid, seconds):
        return self._ask(wait=pid, seconds=seconds)["status"]

    def run(self, call, arguments, *, seconds=300, kill_after=None, **options):
        """Runs a function in a process of its own to its end; returns the `Outcome`.

        Args:
            seconds: float, default 300. It is killed after so many, and its code is None.
            kill_after: float, default None. When to kill it with SIGKILL.
        """
        running = self.start(call, arguments, **options)
        if kill_after is not None and running.wait(kill_after) is None:
            running.kill()
        return running.outcome(seconds)

    def command(self, *arguments, **options):
        """Runs a `kformer` command."""
        call = "benchmarks.reliability_parts.zygote:kformer_main"
        return self.run(call, {"arguments": list(map(str, arguments))}, **options)

    def close(self):
        self._process.stdin.close()
        self._process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Running:
    """A process that a `Zygote` has started."""

    def __init__(self, zygote, pid, base):
        self._zygote, self.pid, self._base = zygote, pid, base
        self._status, self._start = None, time.monotonic()

    def wait(self, seconds):
        """Waits for its end; returns its status, or None if it still lives."""
        if self._status is None:
            self._status = self._zygote.wait(self.pid, seconds)
        return self._status

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def outcome(self, seconds=300):
        code = self.wait(seconds)
        if code is None:
            self.kill()
            self.wait(30)
        read = [self._base.with_suffix(end) for end in (".out", ".err", ".json")]
        out, err, value = (
            path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
            for path in read
        )
        with contextlib.suppress(ValueError):
            result = json.loads(value)
            took = time.monotonic() - self._start
            return Outcome(
                code, out, err, result["value"], result["operations"], result["peak"], took
            )
        return Outcome(code, out, err, seconds=time.monotonic() - self._start)


def kformer_main(arguments):
    """Runs a command in this process; its exit code is the process's."""
    from kformer_cli.main import main

    raise SystemExit(main(arguments))


def _resident():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _child(request, base):
    """Runs in the forked process, which ends here."""
    os.setsid()
    for ending, flags, number in (
        (".in", os.O_RDONLY, 0),
        (".out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 1),
        (".err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 2),
    ):
        os.dup2(os.open(base + ending, flags, 0o600), number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    before, code, value, operations = _resident(), 0, None, []
    if request["memory"]:
        now = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
        limit = now * resource.getpagesize() + request["memory"]
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        if request["hook"]:
            from benchmarks.reliability_parts import hook

            operations = hook.install(**request["hook"])
        module, function = request["call"].split(":")
        value = getattr(importlib.import_module(module), function)(**request["arguments"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 3
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        result = {"value": value, "operations": list(operations), "peak": peak}
        # Not by `open`, which the hook may have replaced.
        file = os.open(base + ".json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.write(file, json.dumps(result).encode())
    os._exit(code)


def _wait(pid, seconds):
    end = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            return None
        time.sleep(0.002)


def serve():
    """Answers the requests of a `Zygote`."""
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for name in _MODULES:
        importlib.import_module(name)
    for line in iter(requests.readline, ""):
        request = json.loads(line)
        if "start" in request:
            pid = os.fork()
            if not pid:
                _child(request["start"], request["base"])
            answer = {"pid": pid}
        else:
            answer = {"status": _wait(request["wait"], request["seconds"])}
        print(json.dumps(answer), file=replies, flush=True)


if __name__ == "__main__":
    serve()
