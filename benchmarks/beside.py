"""Compares the speed of this checkout of kformer with that of another one.

    python benchmarks/beside.py --checkout PATH [--alternations 11] [--shapes tiny,base]
        [--batches 1,32] [--searches greedy,beam4] [--backends tensorflow,jax,torch]
        [--cells inference,training] [--threads 1] [--processes 1] [--work DIR] [--quick]

The other checkout may be any older commit. Each side runs in processes of its own, with its own
checkout first on `sys.path`, and answers by its own `benchmarks/inference.py` and
`benchmarks/training.py`. The cells are

- inference: the SavedModel (strings in, strings out) and its core (ids in, ids out) on TensorFlow,
  exactly 24 tokens for each sentence, per shape, search and batch size;
- training: `fit` of the shape tiny, per backend.

Both sides use the same weights: the other checkout saves a run for each shape, with random weights
and every option of the architecture given, and both load it and export it. Before a cell is
measured, the sides must translate alike, and train on the same number of tokens.

The sides are asked one after the other and never at the same time, call by call, and the order is
swapped at every call. One alternation is about a second of such calls; it gives one ratio of new to
old speed, from the median call of each side. A cell's ratio is the geometric mean over its
alternations, with a 95 % interval by bootstrap over them.

The exit status is 0 if the geometric mean of the cells' ratios is at least 0.98 and no cell's
interval lies below 0.96.
"""

import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)
from benchmarks import inference, training  # noqa: E402
from benchmarks.common import (  # noqa: E402
    Worker,
    cpu_name,
    in_turns,
    integers,
    names,
    pin,
    print_command,
    print_head,
    print_row,
)

SIDES = ("old", "new")
SYSTEMS = ("saved_model", "core")
MEAN, LOWEST = 0.98, 0.96
SIZES = ("num_encoder_layers", "num_decoder_layers", "hidden_dim", "intermediate_dim", "num_heads")


class Cells:
    """The ratios of the cells, and the table.

    Args:
        random: NumPy generator of the bootstrap.
    """

    def __init__(self, random):
        self.random = random
        self.logs = []

    def add(self, name, amount, seconds):
        """Adds a cell and prints its row.

        Args:
            name: list of strings, the first columns of the row.
            amount: tokens of a call.
            seconds: dict of a list for each side, the seconds of a call for each alternation.
        """
        logs = np.log(seconds["old"]) - np.log(seconds["new"])
        self.logs.append(logs)
        speeds = [f"{amount / statistics.median(seconds[side]):,.0f}" for side in SIDES]
        ratio, low, high = self.interval([logs])
        row = [*name, *speeds, f"{ratio:.3f}", f"{low:.3f} to {high:.3f}", str(len(logs))]
        print_row(*row)

    def interval(self, cells):
        """Geometric mean of the cells' ratios, with its 95 % interval by bootstrap."""
        draws = [self.random.choice(logs, (10_000, len(logs))).mean(axis=1) for logs in cells]
        low, high = np.quantile(np.mean(draws, axis=0), [0.025, 0.975])
        return [math.exp(x) for x in (np.mean([logs.mean() for logs in cells]), low, high)]

    def verdict(self):
        """Prints the geometric mean over all cells; returns the exit status."""
        mean, low, high = self.interval(self.logs)
        slow = sum(self.interval([logs])[2] < LOWEST for logs in self.logs)
        print(f"\ngeometric mean of {len(self.logs)} cells: {mean:.3f} ({low:.3f} to {high:.3f})")
        print(f"cells whose interval lies below {LOWEST}: {slow}")
        passed = mean >= MEAN and not slow
        print("passed" if passed else f"failed: the mean must be at least {MEAN}, and no cell slow")
        return not passed


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkout", type=pathlib.Path, required=True)
    parser.add_argument("--cells", type=names, default=["inference", "training"])
    parser.add_argument("--shapes", type=names, default=["tiny", "base"])
    parser.add_argument("--batches", type=integers, default=[1, 32])
    parser.add_argument("--searches", type=names, default=["greedy", "beam4"])
    parser.add_argument("--backends", type=names, default=list(training.BACKENDS))
    parser.add_argument("--alternations", type=int, default=11)
    parser.add_argument("--processes", type=int, default=1, help="restarts of each side, in turns")
    parser.add_argument("--window", type=float, default=0.6, help="seconds of a side's calls")
    parser.add_argument("--steps", type=int, default=4, help="training steps of a call")
    parser.add_argument("--max-shapes", type=int, default=4, help="distinct shapes of batches")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--work", type=pathlib.Path, help="folder; what it has is used again")
    parser.add_argument(
        "--quick", action="store_true", help="few cells and alternations: minutes, for tests"
    )
    for name in ("--part", "--shape"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.checkout = options.checkout.resolve()
    options.device = "cpu"
    if options.quick:
        options.shapes, options.alternations, options.processes = ["tiny"], 3, 1
        options.window, options.steps, options.max_shapes = 0.2, 1, 1
    if options.part:
        return {"run": make_run, "export": export}[options.part](options)
    if not (options.checkout / "benchmarks" / "inference.py").exists():
        parser.error(f"{options.checkout} is not a checkout of kformer with benchmarks")
    pin(options)  # The processes inherit it.
    with tempfile.TemporaryDirectory() as folder:
        raise SystemExit(report(options, options.work or pathlib.Path(folder)))


def report(options, work):
    """Measures all cells and prints the table; returns the exit status."""
    begin = time.perf_counter()
    print(f"{cpu_name()}, {options.threads} thread(s)")
    print(f"new: {commit_of(ROOT)}; old: {commit_of(options.checkout)}")
    print_command()
    head = ["cell", "shape", "search or backend", "batch", "old, tokens/s", "new, tokens/s"]
    head += ["new / old", "95 % interval", "alternations"]
    print_head(head)
    cells = Cells(np.random.default_rng(0))
    if "inference" in options.cells:
        for shape in options.shapes:
            make_inference(options, work, shape)
            for system in SYSTEMS:
                measure_inference(options, work, shape, system, cells)
    if "training" in options.cells:
        for backend in options.backends:
            measure_training(options, work, backend, cells)
    status = cells.verdict()
    print(f"{(time.perf_counter() - begin) / 60:.0f} minutes")
    return status


def commit_of(checkout):
    """The first digits of a checkout's commit, with a mark if files differ from it."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude", "*"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def checkout_of(options, side):
    return ROOT if side == "new" else options.checkout


# Inference.


def make_inference(options, work, shape):
    """One run of a shape, and its exports by each side."""
    folder = work / shape
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "texts.json").exists():
        run_part(options, "old", "run", shape, folder)
    for side in SIDES:
        if not (folder / side / "texts.json").exists():
            run_part(options, side, "export", shape, folder)
    found = [json.loads((folder / side / "found.json").read_text()) for side in SIDES]
    if found[0] != found[1]:
        raise SystemExit(f"{shape}: the checkouts translate differently:\n{found[0]}\n{found[1]}")


def run_part(options, side, part, shape, folder):
    """Runs a part of this file with a side's checkout first on `sys.path`."""
    command = [sys.executable, __file__, *sys.argv[1:]]
    command += ["--part", part, "--shape", shape, "--folder", str(folder)]
    command += ["--checkout", str(checkout_of(options, side))]
    process = subprocess.run(
        command, env=inference.environment(options), capture_output=True, text=True
    )
    if process.returncode:
        raise SystemExit(f"{side}, {part} failed:\n{process.stderr[-3000:]}")


def import_kformer(checkout):
    """kformer of a checkout, which must not be an installed one."""
    sys.path[0] = str(checkout)
    import kformer

    assert pathlib.Path(kformer.__file__).is_relative_to(checkout), kformer.__file__
    return kformer


def make_run(options):
    """A run of random weights and the sentences, by names that every commit has."""
    kformer = import_kformer(options.checkout)
    pairs = getattr(kformer, "examples", kformer.data).generate_pairs(4000, split="train")
    texts = [text for pair in pairs for text in (pair.source, pair.target)]
    tokenizer = kformer.Tokenizer.train(texts=texts, vocabulary_size=1000, model_type="unigram")
    sizes = kformer.models.PRESETS[options.shape].config
    model = kformer.Transformer(
        inference.SHAPES[options.shape],
        **{name: sizes[name] for name in SIZES},
        **inference.ARCHITECTURE,
        seed=0,
    )
    kformer.Translator(model, tokenizer).save(options.folder / "run")
    words = " ".join(pair.source for pair in pairs).split()
    rng, texts = np.random.default_rng(0), []
    while len(texts) < max(options.batches):
        text = " ".join(rng.choice(words, 24))
        ids = tokenizer.tokenize(text, special_tokens=True)[: rng.integers(10, 31)]
        texts.append(tokenizer.detokenize(ids[:-1], side="source"))
    (options.folder / "texts.json").write_text(json.dumps(texts))


def export(options):
    """A side's folder as its `benchmarks/inference.py` reads it, and a few translations."""
    kformer = import_kformer(options.checkout)
    folder = options.folder / ("new" if options.checkout == ROOT else "old")
    translator = kformer.Translator.load(options.folder / "run")
    translator.save(folder / "run")
    limits = {"min_length": inference.STEPS - 1, "max_length": inference.STEPS - 1}
    texts, found = json.loads((options.folder / "texts.json").read_text()), {}
    for search in options.searches:
        chosen = {"beam_size": inference.SEARCHES[search], "length_offset": inference.STEPS}
        translator.export(folder / f"saved-{search}", n_best=1, **chosen, **limits)
        found[search] = translator(texts[:2], **chosen, **limits)
    (folder / "found.json").write_text(json.dumps(found))
    (folder / "texts.json").write_text(json.dumps(texts))


def measure_inference(options, work, shape, system, cells):
    """The cells of a shape and a system."""
    keys = [(search, batch) for search in options.searches for batch in options.batches]
    seconds = {key: {side: [] for side in SIDES} for key in keys}
    for alternations in shares(options):
        workers = [open_inference(options, work / shape / side, side, system) for side in SIDES]
        calls = {}
        for key in keys:
            for worker in workers:
                worker.ask(*key)
            warm = max(worker.ask(*key)["seconds"] for worker in workers)
            calls[key] = max(1, round(options.window / warm))
        for number in range(alternations):
            for key in keys:
                found = {side: [] for side in SIDES}
                for worker in in_turns(workers, calls[key], number):
                    found[worker.system].append(worker.ask(*key)["seconds"])
                for side in SIDES:
                    seconds[key][side].append(statistics.median(found[side]))
        for worker in workers:
            worker.close()
    for search, batch in keys:
        amount = batch * inference.STEPS
        cells.add([system, shape, search, str(batch)], amount, seconds[search, batch])


def open_inference(options, folder, side, system):
    """A side's `benchmarks/inference.py` as a worker."""
    script = checkout_of(options, side) / "benchmarks" / "inference.py"
    command = [sys.executable, str(script), "--threads", str(options.threads)]
    command += ["--part", system, "--folder", str(folder)]
    return Worker(side, command, side_environment(options, side, inference.environment(options)))


def side_environment(options, side, environment):
    """An environment in which a side's checkout comes before an installed kformer."""
    return {**environment, "PYTHONPATH": str(checkout_of(options, side))}


def shares(options):
    """Alternations of each pair of processes."""
    size, rest = divmod(options.alternations, options.processes)
    return [size + (number < rest) for number in range(options.processes)]


# Training.


def measure_training(options, work, backend, cells):
    """The cell of a backend."""
    seconds = {side: [] for side in SIDES}
    for side in SIDES:
        make_training(options, work / "training" / side, side, backend)
    texts = [(work / "training" / side / "source.txt").read_bytes() for side in SIDES]
    if texts[0] != texts[1]:
        raise SystemExit("The checkouts generate different texts to train on.")
    for alternations in shares(options):
        workers, tokens = [], []
        for side in SIDES:
            folder = work / "training" / side
            workers.append(open_training(options, folder, side, backend, "kformer"))
            tokens.append(workers[-1].ask("open")["tokens"])
        if tokens[0] != tokens[1]:
            raise SystemExit(f"The windows have {tokens[0]} and {tokens[1]} tokens.")
        for worker in in_turns(workers, 1):
            worker.ask("window")
        for worker in in_turns(workers, alternations):
            seconds[worker.system].append(worker.ask("window"))
        for worker in workers:
            worker.close()
    cells.add(["training", "tiny", backend, ""], tokens[0], seconds)


def make_training(options, folder, side, backend):
    """A side's tokenizer and prepared corpus."""
    if not (folder / "tokenizer").exists():
        folder.mkdir(parents=True, exist_ok=True)
        worker = open_training(options, folder, side, backend, "make")
        worker.ask()
        worker.close()


def open_training(options, folder, side, backend, part):
    """A side's `benchmarks/training.py` as a worker."""
    script = checkout_of(options, side) / "benchmarks" / "training.py"
    command = [sys.executable, str(script), "--shapes", "tiny", "--systems", "kformer"]
    command += ["--backends", backend, "--threads", str(options.threads)]
    command += ["--steps", str(options.steps), "--max-shapes", str(options.max_shapes)]
    command += ["--part", part, "--folder", str(folder), "--shape", "tiny"]
    environment = training.environment(options, backend)
    return Worker(side, command, side_environment(options, side, environment))


if __name__ == "__main__":
    main()
