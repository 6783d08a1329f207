"""Measures the speed of translations beside that of other libraries, with the same weights.

    python benchmarks/inference.py [--shapes tiny,base,base-6+1] [--batches 1,8,32,64]
        [--searches greedy,beam4] [--threads 1] [--repeats 5] [--systems A,B] [--work DIR] [--quick]
    python benchmarks/inference.py --run RUN --source FILE [--reference FILE] [--sentences N]
        [--batches 64] [--searches greedy,beam5] ...

Without a run: a model of random weights for each shape is exported to each format, and every system
generates exactly 24 tokens for sentences of 10 to 30 tokens, in tokens per second. The systems are
the SavedModel as a user loads it (strings in, strings out), its signature for single texts (with
batches of one), its core (ids in, ids out), the core of the Python `Translator` on JAX and PyTorch
(there also with `torch.compile` around a step), Hugging Face's `generate`, and CTranslate2 in
float32 and int8.

A shape such as `base-6+1` is a student of a preset's width, with so many layers of encoder and
decoder (`base-6+1-ssru`: with an SSRU), which generates from a list of 2,000 tokens; CTranslate2
reads the list from `vmap.txt`. In `base-6+1-lists` each sentence has a list of its own, of the same
2,000 tokens, so that it shows what these cost beside one for all. Their systems include
`ctranslate2-standard-int8`, CTranslate2 in int8 with the preset's own model and all tokens; the
column "/ standard" compares with that.

With a run: its weights, the lines of a file, and sentences per second from strings to strings. Each
system is given all lines at once and batches them as it likes: SavedModels by `--batches`
sentences, `Translator` on each backend (`core`, `core-jax`, `core-torch`) too, CTranslate2 by
tokens, `generate` by 32, sorted by length. With `--reference` the table has BLEU.

Each system has one process, pinned to `--threads` CPU cores, for all of its cells. The systems are
called in turns, so that other load on the machine affects all of them alike. The first call is not
counted.

"of floor" is the share of what this machine could do at best. A step needs at least the time of its
products at the speed of a large product, and at least the time to read its weights once.
"""

import argparse
import functools
import itertools
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.common import (  # noqa: E402
    Worker,
    answer,
    cpu_name,
    floor,
    in_turns,
    integers,
    names,
    pin,
    print_command,
    print_head,
    print_row,
    read,
    size_on_disk,
    versions,
)

STEPS = 24
# The peers' models have these norms and positions; a preset of kformer has others.
ARCHITECTURE = {"normalize_first": False, "position_encoding": "sinusoidal"}
SHAPES = {
    **{"tiny": 10_000, "small": 10_000, "base": 32_000, "nllb": 256_206},
    **{"tiny_balanced": 10_000, "small_balanced": 10_000, "base_balanced": 32_000},
    **{"tiny_student": 10_000, "small_student": 10_000, "base_student": 32_000},
}
# Of the smaller NLLB model (600 million parameters); the other shapes are presets.
NLLB = {
    "num_encoder_layers": 12,
    "num_decoder_layers": 12,
    "hidden_dim": 1024,
    "intermediate_dim": 4096,
    "num_heads": 16,
}
STUDENTS_TOKENS = 2000
OF_A_STUDENT = (
    "saved_model",
    "saved_model-single",
    "saved_model-int8",
    "ctranslate2-int8",
    "ctranslate2-standard-int8",
)
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
OF_A_RUN = ("saved_model", "core", "core-torch", "ctranslate2-float32", "ctranslate2-int8")
PACKAGES = ("tensorflow", "keras", "torch", "jax", "transformers", "ctranslate2")


def sizes_of(shape):
    """The sizes of a shape's model."""
    from kformer.models import PRESETS

    preset, *student = shape.split("-")
    sizes = NLLB if shape == "nllb" else PRESETS[preset].config
    if student:
        encoder, decoder = map(int, student[0].split("+"))
        sizes = sizes | {"num_encoder_layers": encoder, "num_decoder_layers": decoder}
        if "ssru" in student:
            sizes |= {"decoder_autoregression": "ssru"}
    return sizes


def systems_of(options, shape):
    """The systems that can run a shape's model."""
    able = OF_A_STUDENT if "-" in shape else [x for x in options.systems if "standard" not in x]
    if "ssru" in shape:  # CTranslate2 has none.
        able = [name for name in able if name != "ctranslate2-int8"]
    return [name for name in options.systems if name in able]


def make(options, shape, folder):
    """Makes a translator of random weights, its exports, and the sentences."""
    import keras

    import kformer

    if options.run:
        texts = read(options.source)[: options.sentences]
        export(options, kformer.Translator.load(options.run), folder, {})
        (folder / "texts.json").write_text(json.dumps(texts))
        return
    pairs = kformer.examples.generate_pairs(4000, split="train")
    tokenizer = kformer.Tokenizer.train(
        texts=[text for pair in pairs for text in (pair.source, pair.target)],
        vocabulary_size=1000,
        model_type="unigram",
    )
    preset, *student = shape.split("-")

    def translator_of(shape):
        keras.utils.set_random_seed(0)
        model = kformer.Transformer(SHAPES[preset], **sizes_of(shape) | ARCHITECTURE)
        return kformer.Translator(model, tokenizer)

    limits = {"min_length": STEPS - 1, "max_length": STEPS - 1, "length_offset": STEPS}
    options.systems, translator = systems_of(options, shape), translator_of(shape)
    if "lists" in student:
        rows = [list(range(200, STUDENTS_TOKENS))] * (tokenizer.vocabulary_size + 1)
        translator.token_lists = kformer.data.TokenLists(range(200), rows)
    elif student:
        limits["shortlist"] = list(range(STUDENTS_TOKENS))
    export(options, translator, folder, limits)
    if "ctranslate2-int8" in options.systems and student:
        file = folder / "ctranslate2-int8" / "shared_vocabulary.json"
        tokens = json.loads(file.read_text(encoding="utf-8"))[:STUDENTS_TOKENS]
        file.with_name("vmap.txt").write_text("\t" + " ".join(tokens) + "\n", encoding="utf-8")
    if "ctranslate2-standard-int8" in options.systems:
        from kformer.export.ctranslate2 import export_ctranslate2

        export_ctranslate2(
            translator_of(preset), folder / "ctranslate2-standard-int8", dtype="int8"
        )
    words = " ".join(pair.source for pair in pairs).split()
    rng, texts = np.random.default_rng(0), []
    while len(texts) < max(options.batches):
        text = " ".join(rng.choice(words, 24))
        ids = tokenizer.tokenize(text, special_tokens=True)[: rng.integers(10, 31)]
        texts.append(tokenizer.detokenize(ids[:-1], side="source"))
    (folder / "texts.json").write_text(json.dumps(texts))


def export(options, translator, folder, limits):
    """Writes what the systems load.

    Args:
        options: namespace with `searches` and `systems`.
        translator: `Translator`.
        folder: path.
        limits: dict, the search options of the SavedModels.
    """
    from kformer.export import export_huggingface
    from kformer.export.ctranslate2 import export_ctranslate2

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
            export_ctranslate2(translator, folder / name, dtype=quantization)


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
        exported = folder / f"ctranslate2-{quantization}"
        self.engine = ctranslate2.Translator(
            str(exported), inter_threads=1, intra_threads=options.threads
        )
        self.list = {"use_vmap": True} if (exported / "vmap.txt").exists() else {}
        self.beams, self.rows = SEARCHES[search], {}

    def __call__(self, texts):
        key = len(texts)
        if key not in self.rows:
            self.rows[key] = [
                self.tokenizer.tokens(row, side="source") for row in self.tokenizer.tokenize(texts)
            ]
        lengths = {"min_decoding_length": STEPS, "max_decoding_length": STEPS}
        return self.engine.translate_batch(
            self.rows[key], beam_size=self.beams, max_batch_size=0, **lengths, **self.list
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


def open_text_system(name, folder, options, search, batch_size):
    """A function from texts to their translations by the model of `--run`."""
    beams = SEARCHES[search]
    if name.startswith("ctranslate2"):
        from kformer.export.ctranslate2_reader import CTranslate2Translator

        translator = CTranslate2Translator(folder / name)
        batches = {"batch_size": 4096, "batch_type": "tokens"}
        return lambda texts: translator(texts, beam_size=beams, **batches)
    if name == "hf":
        return hugging_face_texts(folder / name, options, beams)
    if name.startswith("core"):
        import kformer

        if name == "core-torch":
            import torch

            torch.set_num_threads(options.threads)
        translator = kformer.Translator.load(options.run)
        return functools.partial(translator, beam_size=beams, batch_size=batch_size)
    from kformer.export import SavedModelTranslator

    suffix = name.removeprefix("saved_model")
    saved = SavedModelTranslator(folder / f"saved-{search}{suffix}")
    return functools.partial(saved, batch_size=batch_size)


def hugging_face_texts(folder, options, beams):
    import torch
    import transformers

    torch.set_num_threads(options.threads)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()

    def translate(texts):
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        results = [None] * len(texts)
        for start in range(0, len(order), 32):
            batch = order[start : start + 32]
            inputs = tokenizer([texts[i] for i in batch], padding=True, return_tensors="pt")
            limit = 2 * inputs["input_ids"].shape[1] + 32
            with torch.inference_mode():
                ids = model.generate(**inputs, num_beams=beams, max_new_tokens=limit)
            translations = tokenizer.batch_decode(ids, skip_special_tokens=True)
            for i, text in zip(batch, translations, strict=True):
                results[i] = text
        return results

    return translate


def work(options, system, folder):
    """Runs in a system's process: answers a request, a search and a batch size, with its time."""
    opened = {}
    texts = json.loads((folder / "texts.json").read_text())

    def handle(search, batch):
        reply, start = {}, time.perf_counter()
        key = (search, batch) if options.run else search
        if key not in opened:
            if options.run:
                opened[key] = open_text_system(system, folder, options, search, batch)
            else:
                opened[key] = open_system(system, folder, options, search)
            reply["load"] = time.perf_counter() - start
        start = time.perf_counter()
        result = opened[key](texts if options.run else texts[:batch])
        reply["seconds"] = time.perf_counter() - start
        reply["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {**reply, "texts": result} if options.run else reply

    answer(handle)


class System(Worker):
    """A system's process, its peak memory and the seconds of loading."""

    def __init__(self, options, system, folder):
        command = [sys.executable, __file__, *sys.argv[1:], "--part", system, "--folder", folder]
        backend = system.split("-")[1] if system.startswith("core-") else "tensorflow"
        super().__init__(
            system, [*map(str, command)], {**environment(options), "KERAS_BACKEND": backend}
        )
        self.memory, self.loads, self.texts = 0, {}, None

    def seconds(self, search, batch):
        """Seconds of one call."""
        reply = self.ask(search, batch)
        self.memory, self.texts = reply["memory"], reply.get("texts")
        if "load" in reply:
            self.loads[search] = reply["load"]
        return reply["seconds"]


def measure(options, workers, search, batch):
    """Seconds of each system's first call, and lists of those of later calls, made in turns."""
    first = {worker.system: worker.seconds(search, batch) for worker in workers}
    rounds = options.repeats
    if not options.run:
        warm = max(worker.seconds(search, batch) for worker in workers)
        rounds = max(rounds, min(50, int(0.5 / warm)))
    seconds = {worker.system: [] for worker in workers}
    for worker in in_turns(workers, rounds):
        seconds[worker.system].append(worker.seconds(search, batch))
    return first, seconds


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
    tokens = STUDENTS_TOKENS if "-" in shape else SHAPES[shape]
    weights = layers * (6 * hidden**2 + 2 * hidden * inner) + hidden * tokens
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


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", type=names, default=["tiny", "base"])
    parser.add_argument("--batches", type=integers, help="default: 1,8,32,64; with a run 64")
    parser.add_argument("--searches", type=names, help="default: greedy,beam4; with a run beam5")
    parser.add_argument("--systems", type=names, help=f"of {', '.join(SYSTEMS)}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--run", help="a run directory, instead of shapes")
    parser.add_argument("--source", help="the sentences that the run translates")
    parser.add_argument("--reference", help="their translations, for BLEU")
    parser.add_argument("--sentences", type=int, help="the first N alone")
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
    if bool(options.run) != bool(options.source):
        parser.error("give --run and --source, or neither")
    fill_in(options)
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


def fill_in(options):
    """Fills in the unset options."""
    if options.quick:
        options.shapes, options.batches, options.repeats = ["tiny"], options.batches or [1, 8], 2
    if options.run:
        options.shapes = ["run"]
    options.batches = options.batches or ([64] if options.run else [1, 8, 32, 64])
    options.searches = options.searches or (["beam5"] if options.run else ["greedy", "beam4"])
    default = dict.fromkeys((*SYSTEMS, *OF_A_STUDENT))
    options.systems = options.systems or list(OF_A_RUN if options.run else default)


def report(options, work):
    head = ["shape", "search", "batch", "system"]
    head += ["sentences/s, median" if options.run else "tokens/s, median", "spread"]
    head += ["BLEU" if options.run else "of floor", "/ hf", "/ ct2", "/ ct2 int8"]
    head += ["/ standard", "first, s"]
    print(f"{cpu_name()}, {options.threads} thread(s); {versions(*PACKAGES)}; ", end="")
    print("float32 unless named otherwise\n")
    print_command()
    machine = None
    if not options.run:
        machine = run_part(options, ["--part", "floor"], "floor")
        print(f"{STEPS} tokens per sentence; floor: {machine['flops'] / 1e9:.0f} GFLOP/s, ", end="")
        print(f"{machine['bytes'] / 1e9:.1f} GB/s\n")
    print_head(head)
    for shape in options.shapes:
        folder = work / shape
        if not (folder / "texts.json").exists():
            folder.mkdir(parents=True, exist_ok=True)
            run_part(options, ["--part", f"make:{shape}", "--folder", str(folder)], "make")
        able = options.systems if options.run else systems_of(options, shape)
        workers = [System(options, name, folder) for name in able]
        for search, batch in itertools.product(options.searches, options.batches):
            able = [each for each in workers if batch == 1 or "single" not in each.system]
            first, seconds = measure(options, able, search, batch)
            if options.run:
                amount = len(json.loads((folder / "texts.json").read_text()))
                shares = {each.system: bleu(options, each.texts) for each in able}
            else:
                amount, best = batch * STEPS, floor_of(machine, shape, batch, SEARCHES[search])
                speeds = {name: amount / statistics.median(seconds[name]) for name in seconds}
                shares = {name: f"{speed / best:.2f}" for name, speed in speeds.items()}
            print_cells([shape, search, batch], amount, first, seconds, shares)
        for worker in workers:
            worker.close()
            loads = ", ".join(
                f"{search} {seconds:.1f} s" for search, seconds in worker.loads.items()
            )
            notes = f"loaded in {loads}; peak memory {worker.memory / 2**20:.0f} MiB"
            size = disk(folder, worker.system, options.searches[0])
            print(f"<!-- {shape} {worker.system}: {notes}; {size} -->")


def disk(folder, name, search):
    """Size on disk of what a system loads."""
    paths = dict.fromkeys(("saved_model", "saved_model-single"), f"saved-{search}")
    paths |= dict.fromkeys(CORES, "run")
    paths |= {f"saved_model-{dtype}": f"saved-{search}-{dtype}" for dtype in ("bfloat16", "int8")}
    return f"{size_on_disk(folder / paths.get(name, name)) / 1e6:.1f} MB on disk"


def bleu(options, texts):
    """BLEU of a system's translations as text."""
    if options.reference is None:
        return ""
    import sacrebleu

    references = read(options.reference)[: len(texts)]
    return f"{sacrebleu.corpus_bleu(texts, [references]).score:.2f}"


def print_cells(cells, amount, first, seconds, shares):
    """Prints a row for each system.

    Args:
        cells: list, the first cells of each row.
        amount: int, the tokens or sentences of a call.
        first: dict of the seconds of each system's first call.
        seconds: dict of a list of those of later calls.
        shares: dict of the text of each system's cell behind the speeds.
    """
    speed = {name: amount / statistics.median(values) for name, values in seconds.items()}
    for name, values in seconds.items():
        low, high = (amount / edge(values) for edge in (max, min))
        ratios = [
            f"{speed[name] / speed[peer]:.2f}" if peer in speed else ""
            for peer in (
                "hf",
                "ctranslate2-float32",
                "ctranslate2-int8",
                "ctranslate2-standard-int8",
            )
        ]
        figures = [f"{speed[name]:,.0f}", f"{low:,.0f} to {high:,.0f}", shares[name]]
        print_row(*cells, name, *figures, *ratios, f"{first[name]:.2f}")


if __name__ == "__main__":
    main()
