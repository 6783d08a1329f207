"""`python -m tests`: the tests, in processes of their own, two at a time.

python -m tests                           short: one backend, and a smoke test of the others
python -m tests --all                     everything, on each backend
python -m tests --all --backends jax      everything, on one of them
python -m tests --jobs 1                  one process after the other, with the output as it comes
python -m tests tests/layers -k mask      a part: other arguments go to pytest
"""

import argparse
import concurrent.futures
import importlib.util
import os
import pathlib
import queue
import subprocess
import sys
import tempfile
import time

# The first one that is installed is the one that the short form tests: its tests are the quickest.
BACKENDS = ("torch", "tensorflow", "jax")
ROOT = pathlib.Path(__file__).resolve().parent.parent
# Which tests a process runs: see `pytest_collection_modifyitems` in conftest.py.
SHORT, SMOKE, ANY, EACH = "short", "smoke", "any", "each"
# (kind, number of processes) for each backend, as `--all` has them. The longest come first, and
# what starts quickly last, in parts: so no core waits long for the other at the end.
_ALL = (("torch", 1), ("tensorflow", 2), ("jax", 4), (ANY, 3))
_NO_TESTS = 5  # pytest's exit code when all were deselected


def cores_of_jobs(jobs):
    """Returns the CPU cores of each of `jobs` processes, as text.

    An empty text means all cores: there are too few of them, or the system cannot choose.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if jobs == 1 or len(cores) < jobs:
        return [""] * jobs
    return [",".join(map(str, cores[index::jobs])) for index in range(jobs)]


def processes_of(backends, everything):
    """Returns a list of (backend, kind of tests, share of the files such as "1/2")."""
    first = next((name for name in BACKENDS if name in backends), None)
    if not everything:
        others = [(name, SMOKE, "1/1") for name in backends if name != first]
        return [*((first, SHORT, f"{index}/2") for index in (1, 2)), *others]
    return [
        (first if name == ANY else name, ANY if name == ANY else EACH, f"{index + 1}/{count}")
        for name, count in _ALL
        if name in (*backends, ANY)
        for index in range(count)
    ]


def parse(arguments):
    """Returns (options, names of the backends, arguments for pytest)."""
    parser = argparse.ArgumentParser(
        prog="python -m tests", description="Runs pytest; unknown arguments are passed on to it."
    )
    parser.add_argument(
        "--all", action="store_true", help="every test on every backend, not the short form"
    )
    parser.add_argument(
        "--backends",
        help="separated by commas (default: those that are installed; with --all, all of "
        f"{','.join(BACKENDS)})",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=min(2, os.cpu_count() or 1),
        help="processes at the same time (default here: %(default)s)",
    )
    options, pytest_arguments = parser.parse_known_args(arguments)
    if importlib.util.find_spec("pytest") is None:
        parser.error('the tests need pytest: pip install -e ".[test]"')
    if options.backends is not None:
        backends = [name for name in options.backends.split(",") if name]
    else:
        backends = [name for name in BACKENDS if options.all or importlib.util.find_spec(name)]
    unknown = [name for name in backends if name not in BACKENDS]
    if unknown or not backends:
        parser.error(f"unknown backend {', '.join(unknown)!r}: choose among {', '.join(BACKENDS)}")
    return options, backends, pytest_arguments


def main(arguments=None):
    options, backends, pytest_arguments = parse(arguments)
    # Each process has cores of its own: threads that wait for each other on shared ones double the
    # time.
    free_cores = queue.SimpleQueue()
    for cores in cores_of_jobs(max(1, options.jobs)):
        free_cores.put(cores)

    # What one process of JAX compiled, in this and others; most programs of the tests are small.
    cache = tempfile.TemporaryDirectory(prefix="kformer-tests-")
    of_jax = {
        "JAX_COMPILATION_CACHE_DIR": cache.name,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

    def run(process):
        """Runs one process: returns its line of the summary, and whether its tests passed."""
        backend, kind, share = process
        cores = free_cores.get()
        environment = {
            **os.environ,
            "KERAS_BACKEND": backend,
            "KFORMER_TESTS": kind,
            "KFORMER_TESTED_BACKENDS": ",".join(backends),
            "KFORMER_TEST_FILES": share,
            "KFORMER_TEST_CORES": cores,
            # Later processes import what the first compiled, whatever a container is set to.
            "PYTHONDONTWRITEBYTECODE": "",
            **(of_jax if backend == "jax" else {}),
        }
        output = subprocess.PIPE if options.jobs > 1 else None
        start = time.perf_counter()
        result = subprocess.run(
            [sys.executable, "-m", "pytest", *pytest_arguments],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=output and subprocess.STDOUT,
        )
        seconds = time.perf_counter() - start
        free_cores.put(cores)
        name = f"{backend} {kind} {share}"
        if result.returncode == _NO_TESTS:
            return f"{name:<24}{'no test of these':<24}{seconds:6.0f} s", None
        print(f"== {name}", (result.stdout or b"").decode(errors="replace"), sep="\n", flush=True)
        passed = result.returncode == 0
        outcome = "passed" if passed else f"FAILED (exit code {result.returncode})"
        return f"{name:<24}{outcome:<24}{seconds:6.0f} s", passed

    if options.jobs > 1:
        print(
            f"Testing {', '.join(backends)}, {options.jobs} processes at a time; what pytest "
            "prints follows as each ends.",
            flush=True,
        )
    with cache, concurrent.futures.ThreadPoolExecutor(max(1, options.jobs)) as pool:
        processes = processes_of(backends, options.all)
        summary, passed = zip(*pool.map(run, processes), strict=True)
    print("== summary", *summary, sep="\n", flush=True)
    # Arguments that select no test at all are a mistake.
    return 0 if any(passed) and False not in passed else 1


if __name__ == "__main__":
    sys.exit(main())
