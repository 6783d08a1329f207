"""Measures the speed of translations beside that of other libraries, with the same weights.

    python benchmarks/inference.py [--shapes tiny,base] [--batches 1,8,32,64]
        [--searches greedy,beam4] [--threads 1] [--repeats 5] [--systems A,B] [--work DIR] [--quick]

Makes a model of random weights for each shape and exports it to each format. Every system then
generates exactly 24 tokens for sentences of 10 to 30 tokens. The systems are the SavedModel as a
user loads it (strings in, strings out), its signature for single texts (with batches of one), its
core (ids in, ids out), the core of the Python `Translator` on JAX and PyTorch (there also with
`torch.compile` around a step), Hugging Face's `generate`, and CTranslate2 in float32 and int8.

Each system has one process, pinned to `--threads` CPU cores, for all of its cells. The systems are
called in turns, so that other load on the machine affects all of them alike.

"of floor" is the share of what this machine could do at best. A step needs at least the time of its
products at the speed of a large product, and at least the time to read its weights once.
"""

import argparse
import importlib.metadata
import itertools
import json
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.tables import print_command, print_head, print_row  # noqa: E402
from benchmarks.turns import Worker, answer, in_turns  # noqa: E402

STEPS = 24
# The peers' models have these norms and positions; a preset of kformer has others.
ARCHITECTURE = {"normalize_first": False, "position_encoding": "sinusoidal"}
SHAPES = {"tiny": 10_000, "small": 10_000, "base": 32_000, "nllb": 256_206}
# Of the smaller NLLB model (600 million parameters); the other shapes are presets.
NLLB = {
    "num_encoder_layers": 12,
    "num_decoder_layers": 12,
    "hidden_dim": 1024,
    "intermediate_dim": 4096,
    "num_heads": 16,
}
SEARCHES = {"greedy": 1, "beam4": 4, "beam5": 5}
CORES = ("core", "core-jax", "core-torch", "core-torch-compiled")
SYSTEMS = (
    "saved_model",
    "saved_model-single",
    "saved_model-bfloat16",
    "saved_model-int8",
    *CORES,
    "hf",
    "ctranslate2-float32",
    "ctranslate2-int8",
)
PACKAGES = ("tensorflow", "keras", "torch", "jax", "transformers", "ctranslate2")


def sizes_of(shape):
    """The sizes of a shape's model."""
    from kformer.models import PRESETS

    return NLLB if shape == "nllb" else PRESETS[shape].config


def make(options, shape, folder):
    """Makes a translator of random weights, its exports, and the sentences."""
    import keras

    import kformer

    pairs = kformer.examples.generate_pairs(4000, split="train")
    tokenizer = kformer.Tokenizer.train(
        texts=[text for pair in pairs for text in (pair.source, pair.target)],
        vocabulary_size=1000,
        model_type="unigram",
    )
    keras.utils.set_random_seed(0)
    model = kformer.Transformer(SHAPES[shape], **sizes_of(shape) | ARCHITECTURE)
    translator = kformer.Translator(model, tokenizer)
    export(options, translator, folder)
    words = " ".join(pair.source for pair in pairs).split()
    rng, texts = np.random.default_rng(0), []
    while len(texts) < max(options.batches):
        text = " ".join(rng.choice(words, 24))
        ids = tokenizer.tokenize(text, special_tokens=True)[: rng.integers(10, 31)]
        texts.append(tokenizer.detokenize(ids[:-1], side="source"))
    (folder / "texts.json").write_text(json.dumps(texts))


def export(options, translator, folder):
    """Writes what the systems load."""
    from kformer.export import export_huggingface
    from kformer.export.ctranslate2 import export_ctranslate2

    limits = {"min_length": STEPS - 1, "max_length": STEPS - 1, "length_offset": STEPS}
    dtypes = {"float32": ("saved_model", "saved_model-single")}
    dtypes |= {dtype: (f"saved_model-{dtype}",) for dtype in ("bfloat16", "int8")}
    for search, (dtype, systems) in itertools.product(options.searches, dtypes.items()):
        if not set(systems) & set(options.systems):
            continue
        suffix = "" if dtype == "float32" else f"-{dtype}"
        translator.export(
            folder / f"saved-{search}{suffix}",
            beam_size=SEARCHES[search],
            n_best=1,
            dtype=dtype,
            single=dtype == "float32" and "saved_model-single" in options.systems,
            signatures=["serving_default"],
            **limits,
        )
    translator.save(folder / "run")
    if "hf" in options.systems:
        export_huggingface(translator, folder / "hf")
    for quantization in ("float32", "int8"):
        name = f"ctranslate2-{quantization}"
        if name in options.systems:
            export_ctranslate2(translator, folder / name, quantization=quantization)


class SavedModel:
    """Strings in, strings out, with TensorFlow alone."""

    def __init__(self, folder, options, search, suffix="", signature="serving_default"):
        import tensorflow as tf
        import tensorflow_text  # noqa: F401 - it registers the tokenizer's ops

        tf.config.threading.set_intra_op_parallelism_threads(options.threads)
        self._constant = tf.constant
        self._serve = tf.saved_model.load(str(folder / f"saved-{search}{suffix}" / "1")).signatures[
            signature
        ]

    def __call__(self, texts):
        return self._serve(text=self._constant(texts))["translation"].numpy()


class Core:
    """The same search without the tokenizer, ids in and ids out."""

    def __init__(self, folder, options, search, backend="tensorflow", compiled=False):
        import kformer

        if backend == "torch":
            import torch

            torch.set_num_threads(options.threads)
        if compiled:
            from kformer.decoding.fast.decoder import FastNetwork

            FastNetwork.step = torch.compile(FastNetwork.step, dynamic=True)
        limits = {"min_length": STEPS - 1, "max_length": STEPS - 1, "length_offset": STEPS}
        self.translator = kformer.Translator.load(folder / "run")
        search_options = self.translator.search_options({"beam_size": SEARCHES[search], **limits})
        self.search, self.rows = (
            kformer.decoding.Searcher(self.translator.model, search_options),
            {},
        )

    def __call__(self, texts):
        key = len(texts)
        if key not in self.rows:  # Tokenized in the first call, which is not timed.
            rows = self.translator.tokenizer.tokenize(texts, side="source", special_tokens=True)
            shape = (key, max(map(len, rows)))
            self.rows[key] = np.full(shape, self.translator.model.pad_id, "int32")
            for row, ids in zip(self.rows[key], rows, strict=True):
                row[: len(ids)] = ids
        return self.search(self.rows[key]).ids


class HuggingFace:
    """`generate`; the ids are tensors already."""

    def __init__(self, folder, options, search):
        import torch
        import transformers

        torch.set_num_threads(options.threads)
        self._torch = torch
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "hf")
        self.model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder / "hf").eval()
        special = {
            f"{name}_token_id": getattr(self.model.config, f"{name}_token_id")
            for name in ("pad", "eos", "decoder_start")
        }
        beams = SEARCHES[search]
        self.generation = transformers.GenerationConfig(
            **special, num_beams=beams, min_new_tokens=STEPS, max_new_tokens=STEPS
        )
        self.inputs = {}

    def __call__(self, texts):
        key = len(texts)
        if key not in self.inputs:
            self.inputs[key] = self.tokenizer(texts, padding=True, return_tensors="pt")
        with self._torch.inference_mode():
            return self.model.generate(**self.inputs[key], generation_config=self.generation)


class CTranslate2:
    """`translate_batch`; the pieces are lists already."""

    def __init__(self, folder, options, search, quantization):
        import ctranslate2

        import kformer

        self.tokenizer = kformer.Tokenizer.load(folder / "run" / "tokenizer")
        self.engine = ctranslate2.Translator(
            str(folder / f"ctranslate2-{quantization}"),
            inter_threads=1,
            intra_threads=options.threads,
        )
        self.beams, self.rows = SEARCHES[search], {}

    def __call__(self, texts):
        key = len(texts)
        if key not in self.rows:
            self.rows[key] = [
                self.tokenizer.tokens(row, side="source") for row in self.tokenizer.tokenize(texts)
            ]
        lengths = {"min_decoding_length": STEPS, "max_decoding_length": STEPS}
        return self.engine.translate_batch(
            self.rows[key], beam_size=self.beams, max_batch_size=0, **lengths
        )


def open_system(name, folder, options, search):
    if name.startswith("ctranslate2"):
        return CTranslate2(folder, options, search, name.partition("-")[2])
    if name == "saved_model-single":
        return SavedModel(folder, options, search, signature="single")
    if name.startswith("saved_model-"):
        return SavedModel(folder, options, search, suffix="-" + name.partition("-")[2])
    if name.startswith("core-"):
        return Core(
            folder, options, search, *name.split("-")[1:2], compiled=name.endswith("compiled")
        )
    return {"saved_model": SavedModel, "core": Core, "hf": HuggingFace}[name](
        folder, options, search
    )


def work(options, system, folder):
    """Runs in a system's process: answers a request, a search and a batch size, with its time."""
    texts, opened = json.loads((folder / "texts.json").read_text()), {}

    def handle(search, batch):
        reply, start = {}, time.perf_counter()
        if search not in opened:
            opened[search] = open_system(system, folder, options, search)
            reply["load"] = time.perf_counter() - start
        start = time.perf_counter()
        opened[search](texts[:batch])
        reply["seconds"] = time.perf_counter() - start
        reply["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return reply

    answer(handle)


class System(Worker):
    """A system's process, its peak memory and the seconds of loading."""

    def __init__(self, options, system, folder):
        command = [
            sys.executable,
            __file__,
            *sys.argv[1:],
            "--part",
            system,
            "--folder",
            str(folder),
        ]
        backend = system.split("-")[1] if system.startswith("core-") else "tensorflow"
        super().__init__(system, command, {**environment(options), "KERAS_BACKEND": backend})
        self.memory, self.loads = 0, {}

    def seconds(self, search, batch):
        """Seconds of one call."""
        reply = self.ask(search, batch)
        self.memory = reply["memory"]
        if "load" in reply:
            self.loads[search] = reply["load"]
        return reply["seconds"]


def measure(options, workers, search, batch):
    """Seconds of each system's first call, and lists of those of later calls, made in turns."""
    first = {worker.system: worker.seconds(search, batch) for worker in workers}
    warm = max(worker.seconds(search, batch) for worker in workers)
    rounds = max(options.repeats, min(50, int(0.5 / warm)))
    seconds = {worker.system: [] for worker in workers}
    for worker in in_turns(workers, rounds):
        seconds[worker.system].append(worker.seconds(search, batch))
    return first, seconds


def floor(options):
    """Speed of a large product and of reading memory, the best of several tries."""
    import torch

    torch.set_num_threads(options.threads)
    # It selects the faster of PyTorch's libraries on every maker's CPUs.
    torch.set_float32_matmul_precision("medium")
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    numbers = torch.randn(2**26)
    speeds, rates = [], []
    for _ in range(10):
        start = time.perf_counter()
        a @ b
        speeds.append(2 * 1024**3 / (time.perf_counter() - start))
        start = time.perf_counter()
        numbers.sum()
        rates.append(numbers.nbytes / (time.perf_counter() - start))
    return {"flops": max(speeds), "bytes": max(rates)}


def floor_of(machine, shape, batch, beams):
    """Tokens per second that the speed of the machine's products and of its memory allow.

    Counts the decoder and the projection; each weight is read once a step.
    """
    config = sizes_of(shape)
    hidden, inner, layers = (
        config["hidden_dim"],
        config["intermediate_dim"],
        config["num_decoder_layers"],
    )
    # Queries, keys, values and output of self-attention; query and output of cross-attention;
    # feed-forward.
    weights = layers * (6 * hidden**2 + 2 * hidden * inner) + hidden * SHAPES[shape]
    step = max(2 * weights * batch * beams / machine["flops"], 4 * weights / machine["bytes"])
    return batch / step


def environment(options, pinned=True):
    """The environment variables of a process."""
    variables = {
        **os.environ,
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "HF_HUB_OFFLINE": "1",
    }
    if pinned:
        variables |= dict.fromkeys(
            ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"), str(options.threads)
        )
        variables["TF_NUM_INTEROP_THREADS"] = "1"
    return variables


def run_part(options, arguments, kind):
    """Runs a part in a process of its own; returns its result."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        command = [sys.executable, __file__, *sys.argv[1:], *arguments, "--result", file.name]
        process = subprocess.run(
            command, env=environment(options, kind != "make"), capture_output=True, text=True
        )
        if process.returncode:
            raise SystemExit(f"{' '.join(arguments)} failed:\n{process.stderr[-3000:]}")
        return json.loads(file.read() or "null")


def pin(options):
    """Restricts this process to the last `threads` of the CPU cores that it may use."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-options.threads :])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--shapes", type=names, default=["tiny", "base"])
    parser.add_argument(
        "--batches",
        type=lambda text: [int(size) for size in text.split(",")],
        default=[1, 8, 32, 64],
    )
    parser.add_argument("--searches", type=names, default=["greedy", "beam4"])
    parser.add_argument("--systems", type=names, default=list(SYSTEMS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--work",
        type=pathlib.Path,
        help="folder for the exports; existing ones, of the same systems, are used again",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="the smallest shape, two batch sizes: a minute, for tests",
    )
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.shapes, options.batches, options.repeats = ["tiny"], [1, 8], 2
    if options.part:
        kind, _, shape = options.part.partition(":")
        if kind != "make":
            pin(options)
        if kind in ("make", "floor"):
            result = make(options, shape, options.folder) if kind == "make" else floor(options)
            return options.result.write_text(json.dumps(result))
        return work(options, kind, options.folder)
    with tempfile.TemporaryDirectory() as scratch:
        report(options, options.work or pathlib.Path(scratch))


def report(options, work):
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in PACKAGES)
    print(
        f"{cpu_name()}, {options.threads} thread(s); {versions}; {STEPS} tokens per sentence, "
        "float32 unless named otherwise\n"
    )
    print_command()
    machine = run_part(options, ["--part", "floor"], "floor")
    print(f"floor: {machine['flops'] / 1e9:.0f} GFLOP/s, {machine['bytes'] / 1e9:.1f} GB/s\n")
    head = ["shape", "search", "batch", "system", "tokens/s, median", "spread", "of floor"]
    head += ["/ hf", "/ ct2", "/ ct2 int8", "first, s"]
    print_head(head)
    for shape in options.shapes:
        folder = work / shape
        if not (folder / "texts.json").exists():
            folder.mkdir(parents=True, exist_ok=True)
            run_part(options, ["--part", f"make:{shape}", "--folder", str(folder)], "make")
        workers = [System(options, name, folder) for name in options.systems]
        for search in options.searches:
            for batch in options.batches:
                able = [
                    worker
                    for worker in workers
                    if batch == 1 or worker.system != "saved_model-single"
                ]
                print_cells(machine, shape, search, batch, *measure(options, able, search, batch))
        for worker in workers:
            worker.close()
            loads = ", ".join(
                f"{search} {seconds:.1f} s" for search, seconds in worker.loads.items()
            )
            notes = f"loaded in {loads}; peak memory {worker.memory / 2**20:.0f} MiB"
            print(f"<!-- {shape} {worker.system}: {notes}; {disk(folder, worker.system)} -->")


def disk(folder, name):
    """Size on disk of what a system loads."""
    paths = {"saved_model": "saved-greedy", "saved_model-single": "saved-greedy"}
    paths |= dict.fromkeys(CORES, "run")
    paths |= {f"saved_model-{dtype}": f"saved-greedy-{dtype}" for dtype in ("bfloat16", "int8")}
    files = [file for file in (folder / paths.get(name, name)).rglob("*") if file.is_file()]
    return f"{sum(file.stat().st_size for file in files) / 1e6:.1f} MB on disk"


def print_cells(machine, shape, search, batch, first, seconds):
    speed = {name: batch * STEPS / statistics.median(values) for name, values in seconds.items()}
    best = floor_of(machine, shape, batch, SEARCHES[search])
    for name, values in seconds.items():
        low, high = (batch * STEPS / edge(values) for edge in (max, min))
        ratios = [
            f"{speed[name] / speed[peer]:.2f}" if peer in speed else ""
            for peer in ("hf", "ctranslate2-float32", "ctranslate2-int8")
        ]
        numbers = [f"{speed[name]:,.0f}", f"{low:,.0f} to {high:,.0f}", f"{speed[name] / best:.2f}"]
        print_row(shape, search, batch, name, *numbers, *ratios, f"{first[name]:.2f}")


def cpu_name():
    """The CPU's name as the system gives it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(
                line.partition(":")[2].strip() for line in file if line.startswith("model name")
            )
    except (OSError, StopIteration):
        return platform.processor()


if __name__ == "__main__":
    main()
