"""Measures memory: of a training step, of a large corpus, and of attention as sequences grow.

    python benchmarks/memory.py step [--presets tiny,base] [--batch-tokens 4096,16384] [--length 32]
    python benchmarks/memory.py corpus --pairs 10000000 --train-steps 60 --memory-limit 2048
    python benchmarks/memory.py attention [--backends tensorflow,jax,torch] [--lengths 512,8192]
        [--window 128] [--hidden 512] [--heads 8] [--repeats 5] [--causal]

step. The memory of a training step by preset, computed without a GPU (JAX). The state (weights,
their average and Adam's two moments, 4 bytes each) is counted. What else a step needs (gradients
and activations, in float32) is what XLA plans for the step, compiled on this machine: nothing runs.
On a GPU XLA's plan differs by the kernels that it has there. Rows have `--length` tokens on both
sides.

corpus. How fast a large corpus becomes batches, and the memory that it takes. Generates pairs of
synthetic sentences (words sampled from a Zipf distribution, lengths log-normal, a source and a
target of similar length), trains a tokenizer on the first of them, prepares all of them, and reads
batches over two epochs. With `--train-steps` it also trains a tiny model with `fit`. Peak memory is
the largest resident set of the process so far. KERAS_BACKEND selects the backend. Above
`--memory-limit` (MiB) the exit status is 1.

attention. Time and memory of one layer, forward and backward: full, local and linear. Every kind
and length runs in a process of its own, with one sequence. Time is the minimum over the repeats.
Memory is the peak of the process less what it had before the first call. The table gives both, and
their ratios to full attention of the same length on the same backend.
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.common import (  # noqa: E402
    BACKENDS,
    cpu_name,
    environment,
    integers,
    names,
    print_command,
    print_head,
    print_row,
)

# A step.

# What Marian, Multi30k and the paper use is near these.
VOCABULARY = {"tiny": 8000, "small": 8000, "base": 32_000, "big": 32_000}


def report_step(options):
    print_command()
    head = ["preset", "vocabulary", "parameters", "tokens of a batch", "state, GiB", "step", "all"]
    print_head(head)
    for preset in options.presets:
        for tokens in options.batch_tokens:
            print_row(preset, *step_cells(preset, tokens, options.length))


def step_cells(preset, tokens, length):
    """The cells of one kind of step."""
    import kformer

    size = VOCABULARY[preset]
    model = kformer.Transformer.from_preset(preset, vocabulary_size=size)
    model.compile(**kformer.training.paper_recipe(model, ema_momentum=0.999))
    ids = np.full((tokens // length, length), 5, "int32")
    state_bytes, step_bytes = plan(model, {"source_ids": ids, "target_ids": ids}, ids)
    gib = [f"{value / 2**30:.2f}" for value in (state_bytes, step_bytes, state_bytes + step_bytes)]
    return [f"{size:,}", f"{model.count_params():,}", f"{tokens:,}", *gib]


def plan(model, inputs, labels):
    """The bytes of the state and those that XLA plans beside it: (int, int)."""
    import jax

    model.optimizer.build(model.trainable_variables)
    model._symbolic_build(data_batch=(inputs, labels))
    groups = (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )
    state = tuple([variable.value for variable in group] for group in groups)
    step = jax.jit(model.train_step, donate_argnums=0)
    analysis = step.lower(state, (inputs, labels)).compile().memory_analysis()
    state_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    return state_bytes, analysis.temp_size_in_bytes


# A corpus.

CHUNK = 100_000
SYLLABLES = [
    a + b
    for a in ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "sch", "tr")
    for b in "aeiou"
]


def make_words(random, count=20_000):
    """Distinct words of one to four syllables, each followed by a space.

    Returns:
        The bytes of all words, and the start and length of each.
    """
    words = set()
    while len(words) < count:
        words.add("".join(random.choice(SYLLABLES, random.integers(1, 5))))
    words = [f"{word} ".encode() for word in sorted(words, key=lambda word: (len(word), word))]
    lengths = np.array([len(word) for word in words])
    return np.frombuffer(b"".join(words), np.uint8), np.cumsum(lengths) - lengths, lengths


def write_lines(file, words, lengths, random):
    """Writes sentences of the given numbers of words; one gather makes the whole chunk."""
    letters, begins, sizes = words
    ranks = np.minimum(random.zipf(1.2, lengths.sum()), len(sizes)) - 1
    ends = np.cumsum(sizes[ranks])
    text = letters[
        np.arange(ends[-1]) + np.repeat(begins[ranks] - (ends - sizes[ranks]), sizes[ranks])
    ]
    text[ends[np.cumsum(lengths) - 1] - 1] = ord("\n")
    file.write(text.tobytes())


def generate(folder, pairs, seed=0):
    random = np.random.default_rng(seed)
    vocabularies = make_words(random), make_words(random)
    with open(folder / "source.txt", "wb") as source, open(folder / "target.txt", "wb") as target:
        for begin in range(0, pairs, CHUNK):
            lengths = np.clip(random.lognormal(2.3, 0.5, min(CHUNK, pairs - begin)), 1, 60).astype(
                int
            )
            write_lines(source, vocabularies[0], lengths, random)
            write_lines(
                target,
                vocabularies[1],
                np.maximum(1, lengths + random.integers(-2, 4, len(lengths))),
                random,
            )
    return folder / "source.txt", folder / "target.txt"


def read_first(path, count):
    with open(path, encoding="utf-8") as file:
        return [line.rstrip("\n") for _, line in zip(range(count), file, strict=False)]


def peak_memory():
    """The largest resident set so far, in MiB (Linux counts in KiB, macOS in bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        1024**2 if sys.platform == "darwin" else 1024
    )


class Table:
    def __init__(self):
        print_head(["step", "seconds", "rate", "peak memory, MiB"])
        self.start = time.perf_counter()

    def row(self, name, count=None, unit=""):
        seconds = time.perf_counter() - self.start
        rate = f"{count / seconds:,.{0 if count > 99 * seconds else 2}f} {unit}/s" if count else ""
        print_row(name, f"{seconds:,.1f}", rate, f"{peak_memory():,.0f}")
        self.start = time.perf_counter()


def train(dataset, tokenizer, steps):
    """Trains a tiny model for a number of steps."""
    import keras

    import kformer

    model = kformer.Transformer.from_preset("tiny", vocabulary_size=tokenizer.vocabulary_size)
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=kformer.MaskedCrossentropy(),
        metrics=[kformer.MaskedAccuracy()],
    )
    model.fit(dataset.from_step(0), steps_per_epoch=steps, shuffle=False, verbose=0)


def report_corpus(options):
    import keras

    import kformer

    print_command()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        folder = pathlib.Path(folder)
        table = Table()
        files = generate(folder, options.pairs)
        table.row("generate text", options.pairs, "pairs")
        texts = [line for path in files for line in read_first(path, 20_000)]
        size = 8000 if options.pairs >= 20_000 else 1000
        tokenizer = kformer.Tokenizer.train(texts=texts, vocabulary_size=size, model_type="unigram")
        table.row("train tokenizer on 20,000 pairs")
        corpus = kformer.data.prepare(
            *files, tokenizer, folder / "pairs", num_threads=options.num_threads
        )
        table.row("prepare", options.pairs, "pairs")
        dataset = kformer.data.ParallelDataset.from_prepared(
            corpus, batch_tokens=options.batch_tokens
        )
        table.row("choose shapes")
        for epoch in range(2):
            dataset.set_epoch(epoch)
            dataset[0]
            table.row(f"arrange epoch {epoch}")
            steps = min(options.batches, len(dataset))
            tokens = sum(int((dataset[i][1] != dataset.pad_id).sum()) for i in range(steps))
            table.row(f"read {steps} batches of epoch {epoch}", tokens, "target tokens")
        if options.train_steps:
            train(dataset, tokenizer, options.train_steps)
            name = f"{options.train_steps} steps of fit, tiny, {keras.backend.backend()}"
            table.row(name, options.train_steps, "steps")
        size = sum(path.stat().st_size for path in (folder / "pairs").iterdir()) / 2**20
        peak = peak_memory()
        text = sum(path.stat().st_size for path in files) / 2**20
        print(f"\n{dataset.summary()}\n\nText {text:,.0f} MiB, ids {size:,.0f} MiB.")
        if peak > (limit := options.memory_limit):
            sys.exit(f"The peak of {peak:,.0f} MiB is above the limit of {limit:,.0f} MiB.")


# Attention.

KINDS = ("full", "local", "linear")


def measure_attention(options):
    """Seconds and MiB of one kind and length, measured in this process."""
    import keras
    import numpy as np

    from kformer.layers import MultiHeadAttention

    window = {"window": options.window} if options.kind == "local" else {}
    layer = MultiHeadAttention(options.heads, kind=options.kind, **window, seed=0)
    layer.build((1, None, options.hidden))
    x = np.random.default_rng(0).normal(size=(1, options.length, options.hidden)).astype("float32")
    step = ATTENTION_STEPS[keras.backend.backend()](layer, x, options.causal)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(options.repeats + 1):  # The first compiles.
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": min(seconds[1:]), "mebibytes": (peak - before) / 1024}


def tensorflow_step(layer, x, causal):
    import tensorflow as tf

    x = tf.constant(x)

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(x, use_causal_mask=causal, training=True) ** 2)
        return tape.gradient(loss, layer.trainable_variables)

    return lambda: step()[0].numpy()


def torch_step(layer, x, causal):
    import torch

    x = torch.tensor(x)

    def step():
        layer.zero_grad()
        (layer(x, use_causal_mask=causal, training=True) ** 2).sum().backward()

    return step


def jax_step(layer, x, causal):
    import jax

    variables = (
        [variable.value for variable in layer.trainable_variables],
        [variable.value for variable in layer.non_trainable_variables],
    )

    def loss(trainable):
        output, _ = layer.stateless_call(
            trainable, variables[1], x, use_causal_mask=causal, training=True
        )
        return (output**2).sum()

    step = jax.jit(jax.grad(loss))
    return lambda: jax.block_until_ready(step(variables[0]))


ATTENTION_STEPS = {"tensorflow": tensorflow_step, "torch": torch_step, "jax": jax_step}


def run_attention(options, backend, kind, length):
    """Seconds and MiB, measured in a process of its own; `None` if it fails, usually of memory."""
    command = [sys.executable, __file__, "attention", "--kind", kind, "--length", length]
    for name in ("window", "hidden", "heads", "repeats"):
        command += [f"--{name}", getattr(options, name)]
    command += ["--causal"] if options.causal else []
    process = subprocess.run(
        [*map(str, command)], env=environment(backend), capture_output=True, text=True
    )
    return None if process.returncode else json.loads(process.stdout.splitlines()[-1])


def report_attention(options):
    if options.kind:
        print(json.dumps(measure_attention(options)))
        return
    print(f"{cpu_name()}, {os.cpu_count()} CPU cores\n")
    print_command()
    columns = [f"{kind}, {unit}" for kind in KINDS for unit in ("ms", "MiB")]
    print_head(["backend", "length", *columns, "local / full", "linear / full"])
    for backend in options.backends:
        for length in options.lengths:
            found = {kind: run_attention(options, backend, kind, length) for kind in KINDS}
            cells = []
            for row in found.values():
                cells += ["-", "-"] if row is None else [f"{1000 * row['seconds']:.1f}"]
                cells += [] if row is None else [f"{row['mebibytes']:.0f}"]
            for kind in KINDS[1:]:
                full, other = found["full"], found[kind]
                if full is None or other is None:
                    cells.append("-")
                    continue
                ratios = [other[name] / max(full[name], 1e-9) for name in full]
                cells.append(f"{ratios[0]:.2f} time, {ratios[1]:.2f} memory")
            print_row(backend, f"{length:,}", *cells)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    part = parts.add_parser("step", help="of a training step by preset, computed")
    part.add_argument("--presets", type=names, default=list(VOCABULARY))
    part.add_argument("--batch-tokens", type=integers, default=[4096, 16384])
    part.add_argument("--length", type=int, default=32)

    part = parts.add_parser("corpus", help="of a large corpus, prepared and trained on")
    part.add_argument("--pairs", type=int, default=1_000_000)
    part.add_argument("--batches", type=int, default=500, help="to read from each of two epochs")
    part.add_argument("--batch-tokens", type=int, default=4096)
    part.add_argument("--train-steps", type=int, default=0, help="steps of fit with a tiny model")
    part.add_argument("--num-threads", type=int, help="threads of the tokenizer")
    part.add_argument("--folder", help="where to put the files (default: a temporary folder)")
    limit = {"type": float, "default": float("inf"), "help": "MiB; above it the exit status is 1"}
    part.add_argument("--memory-limit", **limit)

    part = parts.add_parser("attention", help="of attention as sequences grow")
    part.add_argument("--backends", type=names, default=list(BACKENDS))
    lengths = [2**power for power in range(8, 14)]
    part.add_argument("--lengths", type=integers, default=lengths)
    part.add_argument("--window", type=int, default=128)
    part.add_argument("--hidden", type=int, default=512)
    part.add_argument("--heads", type=int, default=8)
    part.add_argument("--repeats", type=int, default=5)
    part.add_argument("--causal", action="store_true")
    part.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    part.add_argument("--length", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part == "step":
        os.environ["KERAS_BACKEND"] = "jax"
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    reports = {"step": report_step, "corpus": report_corpus, "attention": report_attention}
    reports[options.part](options)


if __name__ == "__main__":
    main()
