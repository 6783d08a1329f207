"""Checks that runs which another checkout of kformer made are of use to this one.

    python benchmarks/old_runs.py --checkout PATH [--backends torch,jax,tensorflow] [--threads 1]
        [--work DIR]

The other checkout may be any older commit. Its own `kformer` command makes, from generated text,

- a training on each backend, killed (`kill -9`) in mid-epoch and then resumed to its end, with
  other options of the model, the data and the tokenizer on each backend;
- a training that started from another run (`--start-from`), killed and resumed likewise;
- a run that was exported for `transformers` and imported again, if `transformers` is installed;
- a SavedModel.

Then this checkout resumes the killed trainings, and must write the same history and the same
weights, bit for bit, or refuse in one sentence. It translates with each finished run, greedily and
with the four best of a beam of 4, with the other checkout's SavedModel, and with a SavedModel that
it exports from the other's run; every text must be the other checkout's.

What DIR has of the other checkout's runs is used again; what this checkout makes is made again. The
exit status is 1 if anything differs.
"""

import argparse
import csv
import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Options of the training on each backend: together they cover what a run directory has to keep.
TRAININGS = {
    "torch": "--max-shapes 2 --dropout 0.1 --subword-sampling 0.1",
    "jax": "--packed --tokenizer-type unigram --separate-vocabularies",
    "tensorflow": "--max-shapes 2 --norm post --model-option position_encoding=sinusoidal",
}
TOKENIZER = "--vocabulary-size 360"
FINETUNED = "--max-shapes 2"
COMMON = "--batch-tokens 512 --steps 60 --checkpoint-every 7 --learning-rate 0.003"
PAIRS = {"train": 600, "valid": 40, "test": 100}
KILLED = 24  # Steps, not a multiple of those between checkpoints, nor of those of an epoch.
SEARCHES = {"greedy": ["--beam-size", "1"], "beam 4": ["--beam-size", "4", "--n-best", "4"]}


class Checkout:
    """A checkout and its `kformer` command.

    Args:
        path: path of the checkout.
        options: namespace with `threads`.
    """

    def __init__(self, path, options):
        self.path = path
        self.threads = options.threads
        old = (path / "kformer_command.py").exists()
        self.command = [sys.executable, "-m", "kformer_command" if old else "kformer_cli"]

    def environment(self, backend):
        variables = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(self.path)}
        variables |= {"TF_CPP_MIN_LOG_LEVEL": "3", "KFORMER_TRACEBACK": "0"}
        return variables

    def start(self, backend, *arguments):
        """Starts `kformer ARGUMENTS`; returns the process."""
        command = [*self.command, *map(str, arguments), "--threads", str(self.threads)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, env=self.environment(backend), cwd=self.path, **pipes)

    def run(self, backend, *arguments):
        """Runs `kformer ARGUMENTS`; returns (exit status, standard output, standard error)."""
        process = self.start(backend, *arguments)
        output, errors = process.communicate()
        return process.returncode, output, errors

    def must(self, backend, *arguments):
        """The standard output of `kformer ARGUMENTS`, which must succeed."""
        status, output, errors = self.run(backend, *arguments)
        if status:
            raise Failed(f"kformer {' '.join(map(str, arguments))}: {errors.strip()[-1500:]}")
        return output

    def python(self, code, *arguments):
        """Runs Python code with this checkout's kformer, on PyTorch."""
        command = [sys.executable, "-c", code, *map(str, arguments)]
        subprocess.run(command, env=self.environment("torch"), cwd=self.path, check=True)

    def translations(self, backend, run, work, search):
        """What `kformer translate` writes for the test set."""
        arguments = ["--input", work / "test.source", *search]
        return self.must(backend, "translate", run, *arguments)


class Failed(Exception):
    """A command failed that should not."""


WRITE_TEXT = """
import pathlib, sys
import kformer
root, work = map(pathlib.Path, sys.argv[1:3])
assert pathlib.Path(kformer.__file__).is_relative_to(root), kformer.__file__
generate = getattr(kformer, "examples", kformer.data).generate_pairs
for name, count in zip(sys.argv[3::2], map(int, sys.argv[4::2])):
    pairs = generate(count, seed=0, split=name, categories=("time",))
    for side in ("source", "target"):
        lines = [getattr(pair, side) + "\\n" for pair in pairs]
        (work / f"{name}.{side}").write_text("".join(lines), encoding="utf-8")
"""


def train_and_kill(old, backend, work, name, arguments):
    """A training that is killed, as `NAME-killed`, and resumed by its own checkout, as `NAME`."""
    if (work / name).exists():
        return
    killed, making = work / f"{name}-killed", work / f"{name}-making"
    for folder in (killed, making):
        shutil.rmtree(folder, ignore_errors=True)
    files = []
    for split, option in (("train", "train"), ("valid", "valid")):
        for side in ("source", "target"):
            files += [f"--{option}-{side}", work / f"{split}.{side}"]
    process = old.start(backend, "train", *files, "--output", making, *COMMON.split(), *arguments)
    while process.poll() is None and rows_of(making) < KILLED:
        time.sleep(0.01)
    if process.poll() is not None:
        raise Failed(f"{name} ended before it was killed: {process.communicate()[1][-1500:]}")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    shutil.copytree(making, killed, symlinks=True)
    old.must(backend, "train", "--output", making, "--resume")
    making.rename(work / name)


def rows_of(run):
    """Steps in a run's history so far."""
    try:
        return len((run / "history.csv").read_bytes().splitlines()) - 1
    except FileNotFoundError:
        return 0


def make(old, work, backends):
    """The other checkout's runs; returns the names of those that were made, with their backend."""
    if not (work / "test.target").exists():
        counts = [str(part) for pair in PAIRS.items() for part in pair]
        old.python(WRITE_TEXT, old.path, work, *counts)
    runs = {}
    for backend in backends:
        train_and_kill(
            old, backend, work, backend, [*TOKENIZER.split(), *TRAININGS[backend].split()]
        )
        runs[backend] = backend
    first = backends[0]
    train_and_kill(
        old, first, work, "finetuned", [*FINETUNED.split(), "--start-from", work / first]
    )
    runs["finetuned"] = first
    if "tensorflow" in runs and importlib.util.find_spec("transformers"):
        if not (work / "imported").exists():
            shutil.rmtree(work / "huggingface", ignore_errors=True)
            folder = ["--output", work / "huggingface"]
            old.must("tensorflow", "export", work / "tensorflow", "--format", "hf", *folder)
            old.must("torch", "import", work / "huggingface", "--output", work / "imported")
        runs["imported"] = "torch"
    return runs


def losses_of(run):
    """Rows of a run's history without the columns that differ from run to run."""
    with open(run / "history.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    timed = ("seconds", "time", "tokens_per_second")
    return [{k: v for k, v in row.items() if not any(t in k for t in timed)} for row in rows]


def weights_of(run):
    """The bytes of a run's weights."""
    import h5py
    import numpy as np

    found = {}

    def note(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = (item.dtype, item.shape, np.asarray(item).tobytes())

    with (
        zipfile.ZipFile(run / "model.keras") as archive,
        archive.open("model.weights.h5") as file,
        h5py.File(file) as weights,
    ):
        weights.visititems(note)
    return found


class Report:
    """Prints a line for each check, and counts those that fail."""

    def __init__(self):
        self.failures = 0

    def check(self, name, passed, detail=""):
        self.failures += not passed
        print(f"{'ok  ' if passed else 'FAIL'} {name}{detail and ': '}{detail}", flush=True)


def check_resume(report, old, new, work, name, backend):
    """This checkout resumes a copy of what was killed."""
    resumed = work / f"{name}-resumed"
    shutil.rmtree(resumed, ignore_errors=True)
    shutil.copytree(work / f"{name}-killed", resumed, symlinks=True)
    status, _, errors = new.run(backend, "train", "--output", resumed, "--resume")
    if status:
        lines = [line for line in errors.splitlines() if not line.startswith("warning")]
        refused = len(lines) == 1 and lines[0].startswith("error: ")
        detail = f"refused: {lines[0]}" if refused else errors[-1500:]
        report.check(f"{name}: resume", refused, detail)
        return
    for what, function in (("history", losses_of), ("weights", weights_of)):
        theirs, ours = function(work / name), function(resumed)
        detail = "" if theirs == ours else first_difference(theirs, ours)
        report.check(f"{name}: resume, {what} of {len(theirs)}", theirs == ours, detail)


def first_difference(theirs, ours):
    """Where two histories or two sets of weights differ."""
    if isinstance(theirs, dict):
        names = sorted({*theirs, *ours})
        return next(name for name in names if theirs.get(name) != ours.get(name))
    for number, (one, other) in enumerate(zip(theirs, ours, strict=False), start=1):
        if one != other:
            names = [key for key in {**one, **other} if one.get(key) != other.get(key)]
            values = [f"{key} {one.get(key)} and {other.get(key)}" for key in names]
            return f"row {number}: {', '.join(values)}"
    return f"{len(theirs)} and {len(ours)} rows"


def check_text(report, name, theirs, ours):
    differ = [i for i, (a, b) in enumerate(zip(theirs, ours, strict=False), 1) if a != b]
    detail = ""
    if len(theirs) != len(ours):
        detail = f"{len(theirs)} and {len(ours)} lines"
    elif differ:
        i = differ[0] - 1
        detail = f"{len(differ)} lines differ, first line {i + 1}: {theirs[i]!r} and {ours[i]!r}"
    report.check(f"{name}, {len(theirs)} lines", not detail, detail)


def check_translations(report, old, new, work, name, backend):
    """Both checkouts translate with the other's finished run."""
    for search, options in SEARCHES.items():
        file = work / f"{name}.{search.replace(' ', '')}"
        if not file.exists():
            text = old.translations(backend, work / name, work, options)
            file.write_text(text, encoding="utf-8")
        ours = new.translations(backend, work / name, work, options)
        theirs = file.read_text(encoding="utf-8").splitlines()
        check_text(report, f"{name}: {search}", theirs, ours.splitlines())


def check_export(report, old, new, work, name):
    """The other's SavedModel under this checkout, and this checkout's SavedModel of its run."""
    theirs = work / "saved-old"
    if not theirs.exists():
        old.must("tensorflow", "export", work / name, "--output", theirs)
    ours = work / "saved-new"
    shutil.rmtree(ours, ignore_errors=True)
    new.must("tensorflow", "export", work / name, "--output", ours)
    expected = old.translations("tensorflow", theirs, work, []).splitlines()
    for what, saved in (("its SavedModel", theirs), ("SavedModel exported again", ours)):
        found = new.translations("tensorflow", saved, work, []).splitlines()
        check_text(report, f"{name}: {what}", expected, found)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkout", type=pathlib.Path, required=True)
    parser.add_argument("--backends", type=lambda text: text.split(","), default=list(TRAININGS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--work", type=pathlib.Path, help="folder; old runs in it are used again")
    options = parser.parse_args()
    old, new = Checkout(options.checkout.resolve(), options), Checkout(ROOT, options)
    with tempfile.TemporaryDirectory() as folder:
        work = (options.work or pathlib.Path(folder)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        runs = make(old, work, options.backends)
        report = Report()
        for name, backend in runs.items():
            checks = [check_translations]
            if name != "imported":
                checks.insert(0, check_resume)
            for check in checks:
                try:
                    check(report, old, new, work, name, backend)
                except Failed as error:
                    report.check(name, False, str(error))
        try:
            check_export(report, old, new, work, options.backends[0])
        except Failed as error:
            report.check("export", False, str(error))
    print("passed" if not report.failures else f"{report.failures} checks failed")
    raise SystemExit(bool(report.failures))


if __name__ == "__main__":
    main()
