"""Measures the speed of training with `model.fit` beside that of other libraries.

    python benchmarks/training.py [--source F --target F] [--shapes tiny,small,base]
        [--backends tensorflow,jax,torch] [--systems A,B] [--packed] [--threads 1] [--steps N]
        [--repeats 5] [--batch-tokens 4096] [--max-shapes 8] [--device cpu|gpu] [--quick]

A row has real target tokens per second (labels that are not padding) over windows of `--steps`
steps: an epoch of `fit`, or as many steps of a PyTorch loop. All systems train on the same batches.
The files are the two sides of a corpus; the default is generated pairs. The run trains the
tokenizer. The model's vocabulary has 9,712 tokens (32,000 for base) for every tokenizer.

- kformer: as `kformer train` sets it up, with its recipe and metrics and the backend's defaults;
- kformer-tuned: with glibc's malloc set to keep memory;
- kformer-tuned-medium: the same and `--matmul-precision medium`: TensorFlow and PyTorch multiply in
  bfloat16 in a training step;
- kformer-tuned-jit: kformer-tuned and `jit_compile=True`, XLA on TensorFlow (JAX always compiles;
  on PyTorch it takes minutes);
- kformer-tuned-packed[-jit]: kformer-tuned[-jit] with several pairs in a row (`--packed`);
- keras_hub: `TransformerEncoder`, `TransformerDecoder` and `TokenAndPositionEmbedding`, Keras's own
  loss and `jit_compile="auto"`;
- keras_hub-tuned[-medium, -jit]: the settings of kformer-tuned[-jit], and kformer's loss; medium is
  PyTorch's own precision;
- torch: `torch.nn.Transformer` with its defaults, eager;
- torch-tuned[-medium]: malloc as above, a fused Adam, and logits of the real tokens alone; with
  `--device gpu` also `torch.compile`;
- marian, marian-tuned[-medium]: Hugging Face's `MarianMTModel`, in the same loop and with the same
  settings.

All have the same sizes, one table for both embeddings and the projection, norms before the
sub-layers, dropout (rate of the preset) on the embeddings and on the output of each sub-layer,
label smoothing 0.1, Adam, and the gradient's norm clipped at 1. The peers differ where they cannot
do this: KerasHub has learned positions, and its dropout is on the attention probabilities too
(removed in `tuned`, by a private attribute); Keras's loss on integer labels has no label smoothing,
so `keras_hub` computes less; Marian has norms after the sub-layers and no final norms; none of them
packs.

Each row has one process, pinned to `--threads` CPU cores. The processes of a shape run at the same
time and train in turns, one window each, so that other load on the machine affects all alike (their
memory adds up: choose `--systems`). "first step" is the time from the call of `fit` to the end of
its first step, "compile" the time that the first step of every shape took beyond that of later
steps, "memory" the process's peak and its growth since libraries and data were loaded (with
`--device gpu` the GPU's peak). "of floor" is the share of the speed of a large product: the
multiply-adds of forward and backward passes at the corpus's real lengths give tokens per second. It
is measured before and after a shape's windows, and the better one counts.

`--device gpu` runs JAX and PyTorch in bfloat16 (Keras's mixed policy, PyTorch's autocast).
"""

import argparse
import importlib.util
import itertools
import math
import os
import pathlib
import re
import resource
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.common import (  # noqa: E402
    BACKENDS,
    Worker,
    answer,
    cpu_name,
    floor,
    in_turns,
    names,
    pin,
    print_command,
    print_head,
    print_row,
    versions,
)

# Vocabulary, and steps of a window.
SHAPES = {"tiny": (9_712, 16), "small": (9_712, 8), "base": (32_000, 4), "big": (32_000, 4)}
KERAS = ("kformer", "keras_hub")
SYSTEMS = [
    f"{name}{variant}"
    for name in KERAS
    for variant in ("", "-tuned", "-tuned-medium", "-tuned-jit")
]
SYSTEMS += [
    f"{name}{variant}"
    for name in ("torch", "marian")
    for variant in ("", "-tuned", "-tuned-medium")
]
PACKED = ["kformer-tuned-packed", "kformer-tuned-packed-jit"]
PACKAGES = (*BACKENDS, "keras", "transformers", "keras-hub")
# The module that a system needs beside Keras.
NEEDS = {"marian": "transformers", "keras_hub": "keras_hub", "torch": "torch"}
# The process keeps freed memory, so the kernel need not zero and map it again at every step.
MALLOC = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_TOP_PAD_": str(2**26),
}
SCANNED = 500  # Steps among which those of a window are chosen.


def make(options):
    """Makes the tokenizer and the prepared corpus; returns its summary and operations."""
    import kformer

    files = [options.folder / name for name in ("source.txt", "target.txt")]
    if options.source:
        for path, given in zip(files, (options.source, options.target), strict=True):
            path.write_bytes(given.read_bytes())
        size = SHAPES["tiny"][0]
    else:
        pairs = kformer.examples.generate_pairs(8000, split="train")
        for path, side in zip(files, ("source", "target"), strict=True):
            path.write_text("".join(f"{getattr(pair, side)}\n" for pair in pairs), encoding="utf-8")
        size = 1000
    kformer.Tokenizer.train(
        [str(path) for path in files], vocabulary_size=size, model_type="unigram"
    ).save(options.folder / "tokenizer")
    dataset = open_dataset(options)
    source, target = (dataset.corpus.lengths(side).astype(float) for side in ("source", "target"))
    lengths = {
        "S": source,
        "T": target,
        "SS": source**2,
        "TT": target * (target + 1) / 2,
        "ST": source * target,
    }
    means = {name: float(values.mean()) for name, values in lengths.items()}
    return {
        "summary": dataset.summary(),
        "operations": {shape: operations_of(shape, means) for shape in options.shapes},
    }


def operations_of(shape, means):
    """Floating-point operations of a training step for each target token, only of products.

    Args:
        shape: str, a preset.
        means: dict of the corpus's mean lengths: S, T and their products.
    """
    from kformer.models import PRESETS

    config = PRESETS[shape].config
    hidden, inner = config["hidden_dim"], config["intermediate_dim"]
    source, target = means["S"], means["T"]
    # Queries, keys, values and output, feed-forward, scores and context; a query of the decoder
    # attends to the positions before it.
    encoder = source * (4 * hidden**2 + 2 * hidden * inner) + 2 * hidden * means["SS"]
    decoder = (
        target * (6 * hidden**2 + 2 * hidden * inner)
        + 2 * source * hidden**2
        + 2 * hidden * (means["TT"] + means["ST"])
    )
    layers = config["num_encoder_layers"] * encoder + config["num_decoder_layers"] * decoder
    products = layers + target * hidden * SHAPES[shape][0]
    # A product has two of its size in the backward pass, and two operations for each multiply-add.
    return 3 * 2 * products / target


def open_dataset(options, packed=False):
    """A `ParallelDataset` that repeats the steps of a window.

    It begins with a step of each shape, the first one twice.
    """
    import kformer
    from kformer.data import ParallelDataset

    class Chosen(ParallelDataset):
        opening = window = None

        def choose(self, steps):
            """Chooses steps for a window, with short and long batches in an epoch's shares."""
            batches = [self.batch_at(step) for step in range(min(self.steps_per_epoch, SCANNED))]
            shapes = [(*labels.shape, *inputs["source_ids"].shape) for inputs, labels in batches]
            order = sorted(range(len(shapes)), key=lambda step: shapes[step])
            self.window = sorted(
                order[(2 * i + 1) * len(order) // (2 * steps)] for i in range(steps)
            )
            firsts = list({shapes[step]: step for step in self.window}.values())
            self.opening = [firsts[0], *firsts]

        def batch_at(self, step):
            if self.window is not None:
                ahead = step - len(self.opening)
                step = self.opening[step] if ahead < 0 else self.window[ahead % len(self.window)]
            return super().batch_at(step)

    files = (str(options.folder / "source.txt"), str(options.folder / "target.txt"))
    tokenizer = kformer.Tokenizer.load(options.folder / "tokenizer")
    shapes = {"packed": True} if packed else {"max_shapes": options.max_shapes}
    return Chosen(
        *files,
        tokenizer,
        batch_tokens=options.batch_tokens,
        cache_dir=options.folder / "data",
        **shapes,
    )


def work(options):
    """Runs in a system's process: answers requests to open, to train a window, and for memory."""
    from benchmarks.peers import gpu_peak, open_system
    from kformer.models import PRESETS

    name, *variants = options.part.split("-")
    steps = options.steps or SHAPES[options.shape][1]
    dataset = open_dataset(options, packed="packed" in variants)
    dataset.choose(steps)
    opening, before = len(dataset.opening), peak()
    config, vocabulary_size = PRESETS[options.shape].config, SHAPES[options.shape][0]
    system = open_system(name, variants, config, vocabulary_size, dataset.pad_id, options.device)
    tokens = [
        int((dataset.batch_at(step)[1] != dataset.pad_id).sum()) for step in range(opening + steps)
    ]
    windows = itertools.count()

    def train(first, count):
        begin = time.perf_counter()
        loss, seconds = system.train(dataset, first, count)
        assert math.isfinite(loss), f"The loss is {loss}."
        return time.perf_counter() - begin, seconds

    def handle(request):
        if request == "open":
            start, warm = (train(first, count)[0] for first, count in ((0, 1), (1, opening - 1)))
            return {
                "start": start,
                "warm": warm,
                "opening tokens": sum(tokens[:opening]),
                "tokens": sum(tokens[opening:]),
            }
        if request == "memory":
            return [gpu_peak()] if options.device == "gpu" else [peak(), peak() - before]
        return train(opening + next(windows) * steps, steps)[1]

    answer(handle)


def peak():
    """Peak memory of the process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def gpu_floor():
    """FLOP/s of a large bfloat16 product on the GPU."""
    import torch

    from benchmarks.peers import check_gpu

    check_gpu("torch")
    a, b = (torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    speeds = []
    for _ in range(10):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(5):
            a @ b
        torch.cuda.synchronize()
        speeds.append(5 * 2 * 8192**3 / (time.perf_counter() - start))
    return {"flops": max(speeds)}


def check_memory(workers):
    """Ends the run if memory may not suffice for one more process: swapping spoils times."""
    found = re.search(r"MemAvailable: *(\d+) kB", pathlib.Path("/proc/meminfo").read_text())
    if workers and int(found[1]) * 1024 < 2 * (
        needed := max(worker.ask("memory")[0] for worker in workers)
    ):
        raise SystemExit(
            f"{len(workers)} systems of up to {needed / 2**30:.1f} GiB each leave too little "
            "memory for one more: measure fewer together, by --systems and --backends."
        )


def open_worker(options, backend, arguments, tuned=False):
    """A part in a process of its own."""
    command = [sys.executable, __file__, *sys.argv[1:], *arguments]
    return Worker(arguments[1], command, environment(options, backend, tuned))


def environment(options, backend, tuned=False):
    """The environment variables of a part."""
    variables = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "HF_HUB_OFFLINE": "1",
    }
    variables |= dict.fromkeys(
        ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "NPROC"), str(options.threads)
    )
    variables["TF_NUM_INTEROP_THREADS"] = "1"
    variables.pop("JAX_COMPILATION_CACHE_DIR", None)  # Compilations are measured.
    if options.device == "cpu":
        variables |= {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    return variables | (MALLOC if tuned else {})


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=pathlib.Path)
    parser.add_argument("--target", type=pathlib.Path)
    parser.add_argument("--shapes", type=names)
    parser.add_argument(
        "--backends", type=names, help="of kformer and KerasHub; those that are installed"
    )
    parser.add_argument(
        "--systems", type=names, help="of the table above; those that are installed"
    )
    parser.add_argument("--packed", action="store_true", help="kformer's packed batches, too")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--steps",
        type=int,
        help="steps of a window; by default 16 for tiny, 8 for small, 4 for base",
    )
    parser.add_argument("--repeats", type=int, help="windows; 5")
    parser.add_argument("--batch-tokens", type=int)
    parser.add_argument("--max-shapes", type=int, help="distinct shapes of batches; 8")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="tiny, as things come, small batches of one shape: a minute or two, for tests",
    )
    for name in ("--part", "--shape"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if (options.source is None) != (options.target is None):
        parser.error("a corpus has two sides: give --source and --target, or neither")
    fill_in(options)
    if options.part:
        pin(options)
        if options.part in ("make", "floor"):
            return answer(
                lambda: (
                    make(options)
                    if options.part == "make"
                    else gpu_floor()
                    if options.device == "gpu"
                    else floor(options)
                )
            )
        return work(options)
    with tempfile.TemporaryDirectory() as folder:
        raise SystemExit(report(options, folder))


def fill_in(options):
    """Fills in the unset options."""
    quick, gpu = options.quick, options.device == "gpu"
    options.shapes = options.shapes or (
        ["tiny"] if quick else ["base", "big"] if gpu else ["tiny", "small", "base"]
    )
    options.repeats = options.repeats or (2 if quick else 5)
    options.batch_tokens = options.batch_tokens or (512 if quick else 4096)
    options.max_shapes = options.max_shapes or (1 if quick else 8)
    options.steps = options.steps or (2 if quick else None)
    possible = BACKENDS[1:] if gpu else BACKENDS
    options.backends = options.backends or [
        name for name in possible if importlib.util.find_spec(name)
    ]
    if gpu and "tensorflow" in options.backends:
        raise SystemExit(
            "On a GPU only JAX and PyTorch are measured: leave tensorflow out of --backends."
        )
    if options.systems is None:
        plain = ("kformer", "keras_hub", "torch", "marian")
        systems = plain if quick else (*plain, "keras_hub-tuned", "torch-tuned") if gpu else SYSTEMS
        options.systems = [
            name
            for name in systems
            if importlib.util.find_spec(NEEDS.get(name.partition("-")[0], "keras"))
        ]
    options.systems += PACKED if options.packed else []
    known = {*SYSTEMS, *PACKED}
    if not known.issuperset(options.systems):
        raise SystemExit(
            f"Unknown system in {', '.join(options.systems)}: choose of {', '.join(sorted(known))}."
        )


def cells_of(options):
    """Pairs of system and backend."""
    for name in options.systems:
        for backend in options.backends if name.partition("-")[0] in KERAS else ["torch"]:
            only = BACKENDS
            if "medium" in name:
                only = ("tensorflow", "torch") if name.startswith("kformer") else ("torch",)
            if backend in (("tensorflow",) if "jit" in name else only):
                yield name, backend


def report(options, folder):
    """Prints the table; returns the exit status."""
    precision = "bfloat16 on a GPU" if options.device == "gpu" else "float32"
    print(f"{cpu_name()}, {options.threads} thread(s), {precision}; {versions(*PACKAGES)}\n")
    print_command()
    backend = options.backends[0]

    def part(name):
        worker = open_worker(options, backend, ["--part", name, "--folder", folder])
        result = worker.ask()
        worker.close()
        return result

    flops = part("floor")["flops"]
    corpus = part("make")
    print(f"{corpus['summary']}\n", flush=True)
    head = ["shape", "backend", "system", "tokens/s, median", "spread", "of floor"]
    head += ["/ torch", "/ torch tuned", "/ KerasHub", "/ KerasHub tuned", "/ Marian"]
    head += ["first step, s", "compile, s", "memory, MiB"]
    print_head(head)
    failures = []
    for shape in options.shapes:
        cells = measure(options, shape, folder, failures)
        flops = max(flops, part("floor")["flops"])  # Other load may have slowed the first one.
        best = flops / corpus["operations"][shape]
        for name, backend in cells:
            print_row(*row_of(shape, name, backend, cells, best))
    print(f"\nfloor: {flops / 1e9:,.0f} GFLOP/s", *failures, sep="\n")
    return bool(failures)


def measure(options, shape, folder, failures):
    """Trains all systems of a shape in turns.

    Args:
        failures: list that gets a line for each system that fails.

    Returns:
        Dict from a system and a backend to its figures.
    """
    cells, workers = {}, {}
    for name, backend in cells_of(options):
        if options.device == "cpu":
            check_memory(workers)
        arguments = ["--part", name, "--folder", folder, "--shape", shape]
        worker = open_worker(options, backend, arguments, "tuned" in name)
        try:
            cells[name, backend] = {**worker.ask("open"), "seconds": []}
            workers[worker] = name, backend
        except SystemExit as error:
            reason = str(error).strip().splitlines()[-1]
            failures.append(f"<!-- {shape} {name} on {backend} failed: {reason} -->")
    for worker in in_turns(list(workers), options.repeats):
        cells[workers[worker]]["seconds"].append(worker.ask("window"))
    for worker, name in workers.items():
        cell = cells[name]
        cell["memory"] = worker.ask("memory")
        cell["speeds"] = sorted(cell["tokens"] / seconds for seconds in cell["seconds"])
        worker.close()
    return cells


def row_of(shape, name, backend, cells, best):
    """A line of the table; of a peer's tuned variants the fastest is compared."""
    cell = cells[name, backend]
    speed = statistics.median(cell["speeds"])
    ratios = []
    for peer, tuned in (
        ("torch", ""),
        ("torch", "-tuned"),
        ("keras_hub", ""),
        ("keras_hub", "-tuned"),
        ("marian", "*"),
    ):
        home = backend if peer in KERAS else "torch"
        names = [
            name
            for name in SYSTEMS
            if name.partition("-")[0] == peer and (tuned == "*" or ("tuned" in name) == bool(tuned))
        ]
        theirs = [
            statistics.median(cells[name, home]["speeds"])
            for name in names
            if (name, home) in cells
        ]
        ratios.append(f"{speed / max(theirs):.2f}" if theirs else "")
    compiling = cell["start"] + cell["warm"] - cell["opening tokens"] / speed
    total, *growth = (f"{size / 2**20:,.0f}" for size in cell["memory"])
    memory = total + "".join(f" (+{size})" for size in growth)
    numbers = [
        f"{speed:,.0f}",
        f"{cell['speeds'][0]:,.0f} to {cell['speeds'][-1]:,.0f}",
        f"{speed / best:.2f}",
    ]
    return [
        shape,
        backend,
        name,
        *numbers,
        *ratios,
        f"{cell['start']:.1f}",
        f"{max(compiling, 0):.1f}",
        memory,
    ]


if __name__ == "__main__":
    main()
