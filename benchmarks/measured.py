"""The `kformer` command in a process of its own, with its time and its memory."""

import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Runs the command, and writes the peak of its resident memory in KiB. The peak that `wait4` returns
# would not do: it includes what the parent had when it began the process.
PROGRAM = """
import sys
from kformer_cli.main import main
try:
    code = main(sys.argv[2:])
except SystemExit as end:
    code = end.code
with open("/proc/self/status") as file:
    fields = dict(line.split(":", 1) for line in file)
with open(sys.argv[1], "w") as file:
    file.write(fields["VmHWM"].split()[0])
sys.exit(code)
"""


def measured(log, *arguments, backend, threads=None):
    """Runs a command of kformer; what it prints goes into a file.

    Args:
        log: `pathlib.Path` of that file.
        *arguments: the command and its arguments.
        backend: str.
        threads: int or `None`, default `None`.

    Returns:
        The seconds of the whole process, the peak of its resident memory in MiB, and what it
        printed.

    Raises:
        SystemExit: the command failed.
    """
    peak = log.with_suffix(".peak")
    settings = ["--threads", threads] if threads else []
    command = list(map(str, [sys.executable, "-c", PROGRAM, peak, *arguments, *settings]))
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    begin = time.perf_counter()
    with open(log, "w", encoding="utf-8") as file:
        outputs = {"stdout": file, "stderr": file}
        environment["PYTHONPATH"] = str(ROOT)
        process = subprocess.run(command, env=environment, **outputs)
    seconds, text = time.perf_counter() - begin, log.read_text(encoding="utf-8")
    if process.returncode:
        raise SystemExit(f"kformer {' '.join(command[4:])} failed:\n{text[-2000:]}")
    return seconds, int(peak.read_text()) / 1024, text
