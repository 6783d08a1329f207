"""Measures how the cost of a token grows with the number of tokens before it.

    python benchmarks/length.py [--backends tensorflow,jax,torch] [--shape small] [--batch 8]
        [--lengths 16,64,128,256,512] [--threads 1] [--repeats 7] [--plot FILE]

A row has milliseconds per step of a batch, with so many tokens in the cache:

- cached: one step of a search. Only its attention over the cache depends on the length;
- attention: only the part that may grow: each layer's keys and values with one more token, and
  attention over them;
- uncached: the decoder over all tokens so far, which a search without a cache would compute for
  each token.

"growth" is the growth of a step since the first length, divided by that of its attention: about 1
at most, if nothing else grows. Each backend has a process of its own, pinned to `--threads` CPU
cores. `--plot` plots the same (needs Matplotlib).
"""

import argparse
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
from keras import ops

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.inference import ARCHITECTURE, cpu_name, pin  # noqa: E402
from benchmarks.tables import print_command, print_head, print_row  # noqa: E402

STEPS = 16
VOCABULARY = 10_000
MAX_LENGTH = 2_048


class Decoder:
    """A model with caches of zeros, and the three functions that are measured.

    Args:
        options: namespace with `shape` and `batch`.
    """

    def __init__(self, options):
        import kformer
        from kformer.decoding import decoder_for

        self.model = kformer.Transformer.from_preset(
            options.shape, VOCABULARY, max_length=MAX_LENGTH, **ARCHITECTURE
        )
        attention = self.model.network.decoder_layers[0].self_attention
        self.layers = len(self.model.network.decoder_layers)
        self.heads, self.head_dim = attention.num_heads, attention.head_size
        self.decoder, self.batch = decoder_for(self.model), options.batch
        self.fast = self.decoder.name == "fast"
        random = np.random.default_rng(0)
        self.source_ids = random.integers(4, VOCABULARY, (options.batch, 8)).astype("int32")

    def keys(self, length):
        """Keys or values of zeros, `[B, N, length, H]`."""
        shape = (self.batch, self.heads, length, self.head_dim)
        return ops.zeros(shape, dtype="float32")

    def loop(self, body, state, steps):
        from kformer.utils import backend

        return backend.while_loop(
            lambda state: state[0] < steps,
            lambda state: (state[0] + 1, *body(*state[1:])),
            (integer(0), *state),
        )

    def cached(self, source_ids, length=None, steps=None):
        """Runs `steps` steps after `length` tokens."""
        from kformer.decoding import DecoderState

        step, state = self.decoder.begin(source_ids, 1, length + 3 * STEPS)
        cache = state.cache
        if self.fast:
            full = tuple(self.keys(length) for _ in range(self.layers))
            cache = cache._replace(keys=full, values=full)
        state = DecoderState(cache, integer(length))
        ids = ops.zeros((self.batch,), dtype="int32") + 4

        def body(ids, state):
            logits, state = step(ids, state)
            return ops.cast(ops.argmax(logits, axis=-1), "int32"), state

        return self.loop(body, (ids, state), steps)[1]

    def attention(self, source_ids, length=None, steps=None):
        """Runs only the part of `cached` that may grow."""
        new = ops.ones((self.batch, self.heads, 1, self.head_dim), dtype="float32")
        new = new * ops.cast(source_ids[0, 0], "float32")
        total = ops.zeros((), dtype="float32")
        if self.fast:
            caches = tuple(self.keys(length) for _ in range(self.layers))
            return self.loop(fast_attention(new), (total, caches, caches, integer(length)), steps)[
                1
            ]
        from kformer.layers import StaticKeyValueCache

        buffer = self.keys(length + 3 * STEPS)
        caches = (StaticKeyValueCache(buffer, buffer, integer(length)) for _ in range(self.layers))
        return self.loop(layer_attention(new), (total, tuple(caches)), steps)[1]

    def uncached(self, source_ids, length=None, steps=None):
        """Runs the decoder over all tokens, once."""
        encoded, mask = self.model.encode(source_ids)
        target_ids = ops.zeros((self.batch, length), dtype="int32") + 4
        return self.model.network.decode(target_ids, encoded, mask, training=False)[:, -1]


def integer(value):
    return ops.zeros((), dtype="int32") + value


def fast_attention(new):
    """A step of the fast decoder's attention over caches."""
    from kformer.decoding.fast.decoder import backend_ops

    run = backend_ops()

    def body(total, keys, values, index):
        pairs = [
            (run.extend(key, new, index), run.extend(value, new, index))
            for key, value in zip(keys, values, strict=True)
        ]
        for key, value in pairs:
            total = total + ops.sum(run.attend_cache(new + 0 * total, key, value, 1.0, index))
        return total, *(tuple(part) for part in zip(*pairs, strict=True)), index + 1

    return body


def layer_attention(new):
    """A step of the layers' attention over caches."""

    def body(total, caches):
        caches = [cache.append(new, new) for cache in caches]
        for cache in caches:
            key, value = cache.view()
            scores = ops.einsum("bnth,bnsh->bnts", new + 0 * total, key)
            scores = ops.softmax(ops.where(cache.causal_mask(1), scores, -1e30), axis=-1)
            total = total + ops.sum(ops.matmul(scores, value))
        return total, tuple(caches)

    return body


def measure(options):
    """Seconds per token: a dict of lists, one number for each length."""
    import keras

    from kformer.utils import backend

    if keras.backend.backend() == "torch":
        import torch

        torch.set_num_threads(options.threads)
    keras.utils.set_random_seed(0)
    decoder = Decoder(options)

    def seconds(function, length, *numbers):
        """The minimum over the repeats for each number of steps, measured in turns.

        Other load on the machine only adds time.
        """
        names = ("length", "steps")
        run = backend.compile_function(function, decoder.model, static_argnames=names)
        values = {steps: [] for steps in numbers}
        for repeat in range(1 + options.repeats):
            for steps in numbers:
                start = time.perf_counter()
                run(decoder.source_ids, length=length, steps=steps)
                if repeat:  # The first call compiles.
                    values[steps].append(time.perf_counter() - start)
        return [min(values[steps]) for steps in numbers]

    result = {"cached": [], "attention": [], "uncached": []}
    for length in options.lengths:
        for name in ("cached", "attention"):
            # Both include what precedes the loop.
            longer, shorter = seconds(getattr(decoder, name), length, 3 * STEPS, STEPS)
            result[name].append((longer - shorter) / (2 * STEPS))
        result["uncached"] += seconds(decoder.uncached, length, 0)
    return result


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = lambda text: text.split(",")  # noqa: E731
    installed = [name for name in ("tensorflow", "jax", "torch") if importlib.util.find_spec(name)]
    parser.add_argument("--backends", type=names, default=installed)
    parser.add_argument("--shape", default="small")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument(
        "--lengths",
        type=lambda text: [int(length) for length in text.split(",")],
        default=[16, 64, 128, 256, 512],
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--plot", type=pathlib.Path)
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        pin(options)
        print("RESULT " + json.dumps(measure(options)))
        return
    print(
        f"{cpu_name()}, {options.threads} thread(s); shape {options.shape}, {options.batch} rows; "
        "milliseconds per step of a batch\n"
    )
    print_command()
    print_head(["backend", "tokens in the cache", "cached", "attention", "growth", "uncached"])
    results = {}
    for backend in options.backends:
        threads = dict.fromkeys(
            ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"),
            str(options.threads),
        )
        process = subprocess.run(
            [sys.executable, __file__, *sys.argv[1:], "--part"],
            env={**os.environ, **threads, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            text=True,
        )
        if process.returncode:
            raise SystemExit(f"{backend} failed:\n{process.stderr[-3000:]}")
        results[backend] = found = json.loads(process.stdout.rpartition("RESULT ")[2])
        for index, length in enumerate(options.lengths):
            step, attention, uncached = (
                1000 * found[name][index] for name in ("cached", "attention", "uncached")
            )
            grown, allowed = (
                step - 1000 * found["cached"][0],
                attention - 1000 * found["attention"][0],
            )
            growth = f"{grown / allowed:.2f}" if index and allowed > 0 else ""
            cells = [f"{step:.2f}", f"{attention:.2f}", growth, f"{uncached:.1f}"]
            print_row(backend, length, *cells)
    if options.plot:
        plot(options, results)


def plot(options, results):
    """Writes one chart per backend."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, charts = plt.subplots(
        1, len(results), figsize=(4.5 * len(results), 3.5), squeeze=False, layout="constrained"
    )
    for chart, (backend, found) in zip(charts[0], results.items(), strict=True):
        for name, values in found.items():
            chart.plot(options.lengths, [1000 * value for value in values], marker="o", label=name)
        chart.set(title=backend, xlabel="tokens in the cache", ylabel="ms per step", yscale="log")
        chart.legend()
    figure.savefig(options.plot)


if __name__ == "__main__":
    main()
