"""`python -m tests`: the tests on each backend, in processes of their own, two at a time.

python -m tests                           on the three backends; the tests that need no
                                          particular one run in a process of their own
python -m tests --backends jax,torch      on two of them
python -m tests --jobs 1                  one after the other, with the output as it comes
python -m tests tests/layers -k mask      a part: other arguments go to pytest
"""

import argparse
import concurrent.futures
import os
import pathlib
import queue
import subprocess
import sys
import time

BACKENDS = ("tensorflow", "jax", "torch")
ROOT = pathlib.Path(__file__).resolve().parent.parent
_ANY = "any"  # The process of the tests that need no particular backend.
# The longest come first, so that no core waits long for the other at the end; for the same reason
# those of TensorFlow and JAX are several processes each, and the last ones are short.
_PROCESSES = (
    ("torch", ""),
    ("tensorflow", "1/2"),
    ("tensorflow", "2/2"),
    (_ANY, ""),
    ("jax", "1/4"),
    ("jax", "2/4"),
    ("jax", "3/4"),
    ("jax", "4/4"),
)
_NO_TESTS = 5  # pytest's exit code when all were deselected


def shares(jobs):
    """The CPU cores of each of `jobs` processes, as text.

    An empty text means all cores: there are too few of them, or the system cannot choose.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if jobs == 1 or len(cores) < jobs:
        return [""] * jobs
    return [",".join(map(str, cores[index::jobs])) for index in range(jobs)]


def parse(arguments):
    """(options, names of the backends, arguments for pytest)."""
    parser = argparse.ArgumentParser(
        prog="python -m tests",
        description="Runs pytest once per backend; unknown arguments are passed on to it.",
    )
    parser.add_argument(
        "--backends", default=",".join(BACKENDS), help="separated by commas (default: %(default)s)"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=min(2, os.cpu_count() or 1),
        help="backends tested at the same time (default here: %(default)s)",
    )
    options, pytest_arguments = parser.parse_known_args(arguments)
    backends = [name for name in options.backends.split(",") if name]
    unknown = [name for name in backends if name not in BACKENDS]
    if unknown or not backends:
        parser.error(f"unknown backend {', '.join(unknown)!r}: choose among {', '.join(BACKENDS)}")
    return options, backends, pytest_arguments


def main(arguments=None):
    options, backends, pytest_arguments = parse(arguments)
    # Each process has cores of its own: threads that wait for each other on shared ones double the
    # time.
    free = queue.SimpleQueue()
    for share in shares(max(1, options.jobs)):
        free.put(share)

    def test(process):
        """Runs one process's tests: its line of the summary, and whether they passed."""
        share = free.get()
        try:
            return test_on(*process, share)
        finally:
            free.put(share)

    def test_on(name, files, share):
        quickest = (
            "torch" if "torch" in backends else backends[0]
        )  # to begin, and to train a little
        backend, part = (quickest, "only") if name == _ANY else (name, "not")
        environment = {
            **os.environ,
            "KERAS_BACKEND": backend,
            "KFORMER_ANY_BACKEND_TESTS": part,
            "KFORMER_TESTED_BACKENDS": ",".join(backends),
            "KFORMER_TEST_FILES": files,
            "KFORMER_TEST_PROCESSORS": share,
        }
        keeps = subprocess.PIPE if options.jobs > 1 else None
        start = time.perf_counter()
        command = [sys.executable, "-m", "pytest", *pytest_arguments]
        run = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=keeps, stderr=keeps and subprocess.STDOUT
        )
        seconds = time.perf_counter() - start
        name = f"{name} {files}".strip()
        if run.returncode == _NO_TESTS:
            return f"{name:<16}{'no test of these':<24}{seconds:6.0f} s", None
        passed = run.returncode == 0
        result = "passed" if passed else f"FAILED (exit code {run.returncode})"
        print(f"== {name}", (run.stdout or b"").decode(errors="replace"), sep="\n", flush=True)
        return f"{name:<16}{result:<24}{seconds:6.0f} s", passed

    if options.jobs > 1:
        print(
            f"Testing {', '.join(backends)}, {options.jobs} at a time; what pytest prints follows "
            "as each ends.",
            flush=True,
        )
    with concurrent.futures.ThreadPoolExecutor(max(1, options.jobs)) as pool:
        processes = [each for each in _PROCESSES if each[0] in (*backends, _ANY)]
        summary, passed = zip(*pool.map(test, processes), strict=True)
    print("== summary", *summary, sep="\n", flush=True)
    # Arguments that select no test at all are a mistake.
    return 0 if any(passed) and False not in passed else 1


if __name__ == "__main__":
    sys.exit(main())
