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
import tempfile
import threading
import time

import keras

from kformer.trainer.training import TrainResult, train_one
from kformer.training.machine import configuration, count_cores
from kformer_options.child_process import environment, sigterm_as_interruption
from kformer_options.names import on_command_line
from kformer_options.training import THREAD_VARIABLES

# The errors of a process by their kinds.
_ERRORS = {"error": RuntimeError, "mistake": ValueError}
# JAX and TensorFlow take most of a GPU's memory at their start, unless these say otherwise.
_SHARED_GPU = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}


class Jobs:
    """Makes parts of a training, several at once, whose trainings run in processes of their own.

    Args:
        count: int. The parts at once. One trains in this process.

    Attributes:
        count: int.
    """

    def __init__(self, count):
        self.count = count
        self._lock, self._threads = threading.Lock(), threading.local()
        self._running, self._is_stopped = set(), False
        self._is_command = on_command_line()  # Now, since the threads of `make` do not know.
        if count > 1:
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
            RuntimeError, ValueError: a training failed. The others end with a checkpoint.
        """
        self._num_waiting = len(parts)
        with sigterm_as_interruption(), concurrent.futures.ThreadPoolExecutor(self.count) as pool:
            futures = [pool.submit(self._make, part) for part in parts]
            try:
                for future in concurrent.futures.as_completed(futures):
                    yield future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                with self._lock:
                    self._is_stopped = True
                    for process in self._running:
                        with contextlib.suppress(OSError):
                            process.send_signal(signal.SIGTERM)
                raise

    def _make(self, part):
        with self._lock:
            self._threads.count = max(1, count_cores() // min(self.count, self._num_waiting))
            self._num_waiting -= 1
        return timed(part)

    def train(self, path, options, resume, reports):
        """Trains a run: in this process, or in another one where several trainings run at once.

        Args:
            path, options, resume, reports: as for `kformer.trainer.training.train_one`.

        Returns:
            `TrainResult`.
        """
        if self.count == 1:
            return train_one(path, options, resume, reports)
        work = {"path": path, "options": options, "resume": resume, "machine": configuration()}
        work |= {"shows_progress": reports.progress is not None, "is_command": self._is_command}
        threads = getattr(self._threads, "count", max(1, count_cores() // self.count))
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
            with self._lock:
                if self._is_stopped:
                    raise ValueError("The training was stopped.")
                process = _start(work, threads, log)
                self._running.add(process)
            result = error = None
            with process.stdin, process.stdout:
                for line in process.stdout:
                    kind, value = json.loads(line)
                    if kind == "result":
                        result = TrainResult(pathlib.Path(path), *value)
                    elif kind in _ERRORS:
                        error = _ERRORS[kind](value)
                    else:
                        getattr(reports, kind)(value)
            code = process.wait()
            with self._lock:
                self._running.discard(process)
            if result is not None:
                return result
            log.seek(0)
            *_, last = "", *filter(str.strip, log)
        raise error or RuntimeError(
            f"The process of the training in {path} ended with exit code {code}: {last.strip()}"
        )


def timed(part):
    """Makes a part, and returns it with the seconds that it took."""
    start = time.perf_counter()
    part.make()
    return part, time.perf_counter() - start


def _start(work, threads, log):
    """Starts the process of `kformer.trainer.job_process`, and writes its work to it."""
    variables = dict.fromkeys(THREAD_VARIABLES, str(threads))
    process = subprocess.Popen(
        [sys.executable, "-m", "kformer.trainer.job_process"],
        env=environment(KERAS_BACKEND=keras.backend.backend(), **variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        encoding="utf-8",
        start_new_session=True,  # So that Ctrl-C comes once, from here.
    )
    with contextlib.suppress(BrokenPipeError):  # The log has the reason why it has ended.
        process.stdin.write(json.dumps(work, default=os.fspath) + "\n")
        process.stdin.flush()
    return process
