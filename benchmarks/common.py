"""What the benchmarks share: tables, processes that are measured in turns, commands, files."""

import csv
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from kformer_options.installed import cpu_name as cpu_name

ROOT = pathlib.Path(__file__).resolve().parent.parent
BACKENDS = ("tensorflow", "jax", "torch")

# Runs a command of kformer, and writes the peak of its resident memory in KiB. The peak that
# `wait4` returns includes what the parent had when it started the process.
_MEASURED = """
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


# Tables.


def print_command(setting=""):
    """Prints the command line of this process.

    Args:
        setting: str, default "". Environment variables before it, as "NAME=VALUE ".
    """
    command = " ".join([pathlib.Path(sys.argv[0]).name, *sys.argv[1:]])
    print(f"command: {setting}python benchmarks/{command}\n")


def print_head(columns):
    """Prints the first two lines of a Markdown table."""
    print_row(*columns)
    print(f"{'|---' * len(columns)}|", flush=True)


def print_row(*cells):
    """Prints a row of a Markdown table."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def versions(*packages):
    """The versions of those packages that are installed, as text."""
    found = []
    for name in dict.fromkeys(packages):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


# Options.


def names(text):
    """The type of an option that takes names, separated by commas."""
    return [name for name in text.split(",") if name]


def integers(text):
    """The type of an option that takes integers, separated by commas."""
    return list(map(int, names(text)))


def numbers(text):
    """The type of an option that takes numbers, separated by commas."""
    return list(map(float, names(text)))


# Files.


def read(path):
    """The lines of a file."""
    lines = pathlib.Path(path).read_text(encoding="utf-8").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def write(path, lines):
    """Writes the lines of a file, as a whole or not at all."""
    aside = path.with_name(path.name + ".partial")
    aside.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    aside.rename(path)


def once(path, make):
    """The content of a JSON file; `make()` makes it if there is none."""
    if not path.exists():
        write(path, [json.dumps(make())])
    return json.loads(path.read_text(encoding="utf-8"))


def size_on_disk(*paths):
    """Bytes of files, and of all files in folders."""
    files = [file for path in paths for file in (path, *path.rglob("*")) if file.is_file()]
    return sum(file.stat().st_size for file in files)


# Processes.


def environment(backend, **variables):
    """The environment variables of a process that runs this checkout's kformer."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "HF_HUB_OFFLINE": "1", "PYTHONPATH": path}
    return {**os.environ, **quiet, "KERAS_BACKEND": backend, **variables}


def kformer(options, *arguments, capture=False):
    """Runs a command of kformer.

    Args:
        options: namespace with `backend` and `threads`.
        *arguments: the command and its arguments.
        capture: bool, default False. Whether to return its standard output.
    """
    threads = ["--threads", options.threads] if options.threads else []
    command = [sys.executable, "-m", "kformer_cli", *arguments, *threads]
    output = subprocess.PIPE if capture else sys.stderr
    process = subprocess.run(
        [*map(str, command)], env=environment(options.backend), text=True, stdout=output
    )
    if process.returncode:
        raise SystemExit(f"kformer {arguments[0]} failed with exit code {process.returncode}.")
    return process.stdout


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
    """
    peak = log.with_suffix(".peak")
    settings = ["--threads", threads] if threads else []
    command = list(map(str, [sys.executable, "-c", _MEASURED, peak, *arguments, *settings]))
    begin = time.perf_counter()
    with open(log, "w", encoding="utf-8") as file:
        process = subprocess.run(command, env=environment(backend), stdout=file, stderr=file)
    seconds, text = time.perf_counter() - begin, log.read_text(encoding="utf-8")
    if process.returncode:
        raise SystemExit(f"kformer {' '.join(command[4:])} failed:\n{text[-2000:]}")
    return seconds, int(peak.read_text()) / 1024, text


def pin(options):
    """Restricts this process to the last `threads` of the CPU cores that it may use."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-options.threads :])


def answer(handle):
    """Runs in a system's process: answers each line of standard input.

    A line is a JSON list; the answer is `handle(*list)` as JSON.
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Keeps what libraries print out of the replies.
    for line in sys.stdin:
        print(json.dumps(handle(*json.loads(line))), file=replies, flush=True)


class Worker:
    """The parent's side of a system's process.

    Args:
        system: str, its name.
        command: list of strings; the process calls `answer`.
        environment: dict of strings, its environment variables.
    """

    def __init__(self, system, command, environment):
        self.system = system
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - read later
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
        self._process = subprocess.Popen(command, env=environment, text=True, **pipes)

    def ask(self, *request):
        """The answer to a request."""
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise SystemExit(f"{self.system} failed:\n{self._errors.read()[-3000:]}")
        return json.loads(line)

    def close(self):
        self._process.stdin.close()
        self._process.wait()


def in_turns(workers, rounds, first=0):
    """The workers of several rounds one by one; every second round has the reverse order.

    Other load on the machine then affects all of them alike.

    Args:
        workers: list.
        rounds: int, how often each worker comes.
        first: int, default 0. The number of the first round; even rounds are reversed.
    """
    for number in range(first, first + rounds):
        yield from workers if number % 2 else reversed(workers)


def floor(options):
    """Speed of a large product and of reading memory, the best of several tries."""
    import torch

    torch.set_num_threads(options.threads)
    # It selects the faster of PyTorch's libraries on every maker's CPUs.
    torch.set_float32_matmul_precision("medium")
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    vector = torch.randn(2**26)
    speeds, rates = [], []
    for _ in range(10):
        start = time.perf_counter()
        a @ b
        speeds.append(2 * 1024**3 / (time.perf_counter() - start))
        start = time.perf_counter()
        vector.sum()
        rates.append(vector.nbytes / (time.perf_counter() - start))
    return {"flops": max(speeds), "bytes": max(rates)}


# Trainings and their quality.


def spent_on(run):
    """The seconds of a run's steps, and their target tokens."""
    with open(run / "history.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    seconds = sum(float(row["seconds"]) for row in rows)
    return seconds, sum(int(row["target_tokens"]) for row in rows)


def tokenizer_of(result):
    """The tokenizer of BLEU in what `kformer evaluate --json` prints, such as "13a"."""
    return dict(part.split(":") for part in result["bleu_signature"].split("|"))["tok"]


def interval(hypotheses, references, tokenize):
    """Half of the width of BLEU's 95 % interval by bootstrap."""
    from sacrebleu.metrics import BLEU

    metric = BLEU(tokenize=tokenize, force=True)
    return metric.corpus_score(hypotheses, [references], n_bootstrap=1000)._ci
