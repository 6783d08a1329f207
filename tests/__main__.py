"""`python -m tests`: the tests on each backend in turn, one process each. Other arguments go to pytest.

python -m tests                              everything on the three backends
python -m tests --backends jax,torch         two of them
python -m tests tests/layers -k mask         a part
"""

import argparse
import os
import pathlib
import subprocess
import sys
import time

BACKENDS = ("tensorflow", "jax", "torch")
_NO_TESTS = 5  # pytest's exit code when all were deselected


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m tests", description="Runs pytest once per backend; unknown arguments are passed on to it."
    )
    parser.add_argument("--backends", default=",".join(BACKENDS), help="separated by commas (default: %(default)s)")
    options, pytest_arguments = parser.parse_known_args(arguments)
    backends = [name for name in options.backends.split(",") if name]
    unknown = [name for name in backends if name not in BACKENDS]
    if unknown or not backends:
        parser.error(f"unknown backend {', '.join(unknown)!r}: choose among {', '.join(BACKENDS)}")

    root = pathlib.Path(__file__).resolve().parent.parent
    summary, failed = [], False
    for index, backend in enumerate(backends):
        # Tests that need no particular backend run under the first one only.
        skips = index > 0
        environment = {**os.environ, "KERAS_BACKEND": backend, "KFORMER_SKIP_ANY_BACKEND": "1" if skips else "0"}
        print(f"== {backend}", flush=True)
        start = time.perf_counter()
        code = subprocess.run([sys.executable, "-m", "pytest", *pytest_arguments], cwd=root, env=environment).returncode
        passed = code == 0 or (code == _NO_TESTS and skips)
        failed |= not passed
        seconds = time.perf_counter() - start
        summary.append(f"{backend:<12}{'passed' if passed else f'FAILED (exit code {code})':<24}{seconds:6.0f} s")
    print("== summary", *summary, sep="\n", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
