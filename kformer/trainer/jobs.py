"""Several trainings at once on one machine, each in a process of its own.

A small model keeps few cores busy, so two trainings of one thread each are faster than two of two
threads after each other. It does not fill a GPU either.
"""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import keras

from kformer.trainer.result import TrainResult
from kformer.training.machine import configuration, count_cores
from kformer_options.child_process import environment, sigterm_as_interruption
from kformer_options.names import named, on_command_line
from kformer_options.training import THREAD_VARIABLES

# How the last line of a process begins: with what its training returned, or with why it failed.
RESULT, ERROR = "result: ", "error: "
# JAX and TensorFlow take most of a GPU's memory at their start, unless these say otherwise.
_SHARED_GPU = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
# How the lines of a training's progress begin, and the seconds between two of the first kind.
_STEPS = "step "
PROGRESS = (_STEPS, "epoch ")
_SECONDS = 60.0


def check_jobs(jobs, is_effort, others):
    """Checks that several trainings at once are possible.

    Args:
        jobs: int. The trainings at once.
        is_effort: bool. Whether the training is made of several ones.
        others: dict of the names to the values of options that share one training.

    Raises:
        ValueError: they are not.
    """
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise ValueError(f"{named('jobs')} must be a whole number from 1, but {jobs!r} was given.")
    if jobs == 1:
        return
    if not is_effort:
        raise ValueError(
            f"{named('jobs')}={jobs} is for the parts of {named('effort')} 2 or 3: give that, or "
            f"leave {named('jobs')} out."
        )
    for name, value in others.items():
        if value not in (None, 1):
            raise ValueError(
                f"{named('jobs')} trains several models at once, and {named(name)} one model on "
                "several devices: leave one of them out."
            )


class Jobs:
    """Makes parts of a training, several at once, whose trainings run in processes of their own.

    Args:
        jobs: int. The parts at once.
    """

    def __init__(self, jobs):
        self._jobs = jobs
        self._lock, self._own = threading.Lock(), threading.local()
        self._running, self._is_stopped = set(), False
        self._is_command = on_command_line()  # Now, since the threads of `make` do not know.
        if jobs > 1:
            for name, value in _SHARED_GPU.items():
                os.environ.setdefault(name, value)

    def make(self, parts):
        """Makes parts. Each training has an equal share of the cores.

        Args:
            parts: list of objects with a method `make`.

        Yields:
            tuple: a part that is made, and the seconds that it took.

        Raises:
            KeyboardInterrupt: Ctrl-C or SIGTERM ended the trainings, after a checkpoint each.
            ValueError: a training failed. The others end with a checkpoint.
        """
        self._left = len(parts)
        with (
            sigterm_as_interruption(),
            concurrent.futures.ThreadPoolExecutor(self._jobs) as pool,
        ):
            made = {pool.submit(self._make, part): part for part in parts}
            try:
                for future in concurrent.futures.as_completed(made):
                    yield made[future], future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self._stop()
                raise

    def _make(self, part):
        with self._lock:
            self._own.threads = max(1, count_cores() // min(self._jobs, self._left))
            self._left -= 1
        began = time.perf_counter()
        part.make()
        return time.perf_counter() - began

    def train(self, path, *, report, show_progress, resume=False, **options):
        """Takes the place of `train_run`: the same, in another process.

        Args:
            path, resume, report, show_progress, **options: as for `train_run`.

        Returns:
            `TrainResult`.
        """
        work = {"path": path, "resume": resume, "options": options, "machine": configuration()}
        work |= {"show_progress": show_progress, "is_command": self._is_command}
        threads = getattr(self._own, "threads", max(1, count_cores() // self._jobs))
        with self._lock:
            if self._is_stopped:
                raise ValueError("The training was stopped.")
            process = _start(work, threads)
            self._running.add(process)
        try:
            last = _follow(process, report)
        finally:
            with self._lock:
                self._running.discard(process)
            process.stdin.close()
        code = process.wait()
        if code == 0 and last.startswith(RESULT):
            result = json.loads(last.removeprefix(RESULT))
            return TrainResult(pathlib.Path(path), **result)
        raise ValueError(
            last.removeprefix(ERROR)
            if last.startswith(ERROR)
            else f"The process of the training in {path} ended with exit code {code}: {last}"
        )

    def _stop(self):
        """Ends the trainings after their step, with a checkpoint."""
        with self._lock:
            self._is_stopped = True
            for process in self._running:
                with contextlib.suppress(OSError):
                    process.send_signal(signal.SIGTERM)


def _start(work, threads):
    """Starts a process, and tells it its work."""
    own = {**dict.fromkeys(THREAD_VARIABLES, str(threads)), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "kformer_cli.job_process"],
        env=environment(KERAS_BACKEND=keras.backend.backend(), **own),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # So that Ctrl-C comes once, from here.
    )
    with contextlib.suppress(BrokenPipeError):  # Its last line says why it has ended.
        process.stdin.write(json.dumps(work, default=os.fspath) + "\n")
        process.stdin.flush()
    return process


def _follow(process, report):
    """Reports what a process prints, and returns the last line."""
    last, shown = "", time.perf_counter()
    for line in process.stdout:
        last = line = line.rstrip("\n")
        if line.startswith((RESULT, ERROR)) or not line:
            continue
        if line.startswith(_STEPS):
            if time.perf_counter() - shown < _SECONDS:
                continue
            shown = time.perf_counter()
        report(line)
    return last
