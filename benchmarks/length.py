"""How does the cost of a token grow with the tokens before it? Cached decoding, beside its
attention alone and beside no cache.

    python benchmarks/length.py [--backends tensorflow,jax,torch] [--shape small] [--batch 8]
    [--lengths 16,64,128,256,512] [--threads 1]
                                [--repeats 7] [--plot FILE]

A row's figures are milliseconds per token of a batch when so many tokens are in the cache:

- cached: one step of a search, of which all but the attention over the cache costs the same at
  every length;
- attention: what of it may grow, alone: each layer's keys and values with one token more, and
  attention over them;
- uncached: the decoder over all tokens so far, which a search without a cache would have to run for
  each token.

"growth" is what a step has grown since the first length, as a multiple of what its attention has:
at most about 1, if nothing else grows. Each backend has a process of its own, pinned to `--threads`
processors. `--plot` draws the same (needs Matplotlib)."""

import argparse
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.inference import ARCHITECTURE, pin, processor  # noqa: E402

STEPS = 16
VOCABULARY = 10_000
MAX_LENGTH = 2_048


def measure(options):
    """Seconds per token: a dict of lists, one number for each length."""
    import keras
    from keras import ops

    import kformer
    from kformer.decoding import DecoderState, decoder_for
    from kformer.decoding.fast.decoder import backend_ops
    from kformer.layers import StaticKeyValueCache
    from kformer.utils import backend

    if keras.backend.backend() == "torch":
        import torch

        torch.set_num_threads(options.threads)
    keras.utils.set_random_seed(0)
    model = kformer.Transformer.from_preset(
        options.shape, VOCABULARY, max_length=MAX_LENGTH, **ARCHITECTURE
    )
    layers = [layer.self_attention for layer in model.network.decoder_layers]
    heads, head_dim = layers[0].num_heads, layers[0].head_size
    decoder = decoder_for(model)
    fast = decoder.name == "fast"
    source_ids = (
        np.random.default_rng(0).integers(4, VOCABULARY, (options.batch, 8)).astype("int32")
    )

    def zeros(length):
        return ops.zeros((options.batch, heads, length, head_dim), dtype="float32")

    def loop(body, state, steps):
        return backend.while_loop(
            lambda state: state[0] < steps,
            lambda state: (state[0] + 1, *body(*state[1:])),
            (zero(), *state),
        )

    def zero():
        return ops.zeros((), dtype="int32")

    def cached(source_ids, length=None, steps=None):
        """`steps` steps behind `length` tokens."""
        step, state = decoder.begin(source_ids, 1, length + 3 * STEPS)
        cache = state.cache
        if fast:
            full = tuple(zeros(length) for _ in layers)
            cache = cache._replace(keys=full, values=full)
        state = DecoderState(cache, ops.zeros((), dtype="int32") + length)
        ids = ops.zeros((options.batch,), dtype="int32") + 4

        def body(ids, state):
            logits, state = step(ids, state)
            return ops.cast(ops.argmax(logits, axis=-1), "int32"), state

        return loop(body, (ids, state), steps)[1]

    def attention(source_ids, length=None, steps=None):
        """What of `cached` may grow."""
        new = ops.ones((options.batch, heads, 1, head_dim), dtype="float32") * ops.cast(
            source_ids[0, 0], "float32"
        )
        if fast:
            run = backend_ops()

            def body(total, keys, values, index):
                pairs = [
                    (run.extend(key, new, index), run.extend(value, new, index))
                    for key, value in zip(keys, values, strict=True)
                ]
                for key, value in pairs:
                    total = total + ops.sum(
                        run.attend_cache(new + 0 * total, key, value, 1.0, index)
                    )
                return total, *(tuple(part) for part in zip(*pairs, strict=True)), index + 1

            caches = tuple(zeros(length) for _ in layers)
            state = (ops.zeros((), dtype="float32"), caches, caches, zero() + length)
        else:

            def body(total, caches):
                caches = [cache.append(new, new) for cache in caches]
                for cache in caches:
                    key, value = cache.view()
                    scores = ops.einsum("bnth,bnsh->bnts", new + 0 * total, key)
                    scores = ops.softmax(ops.where(cache.causal_mask(1), scores, -1e30), axis=-1)
                    total = total + ops.sum(ops.matmul(scores, value))
                return total, tuple(caches)

            room = zeros(length + 3 * STEPS)
            caches = tuple(StaticKeyValueCache(room, room, zero() + length) for _ in layers)
            state = (ops.zeros((), dtype="float32"), caches)
        return loop(body, state, steps)[1]

    def uncached(source_ids, length=None, steps=None):
        """The decoder over all tokens, once."""
        encoded, mask = model.encode(source_ids)
        target_ids = ops.zeros((options.batch, length), dtype="int32") + 4
        return model.network.decode(target_ids, encoded, mask, training=False)[:, -1]

    def seconds(run, length, *numbers):
        """The least of the repeats for each number of steps, asked for in turns: what a machine
        does beside only adds.
        """
        values = {steps: [] for steps in numbers}
        for repeat in range(1 + options.repeats):
            for steps in numbers:
                start = time.perf_counter()
                run(source_ids, length=length, steps=steps)
                values[steps] += (
                    [time.perf_counter() - start] if repeat else []
                )  # The first compiles.
        return [min(values[steps]) for steps in numbers]

    names = ("length", "steps")
    result = {"cached": [], "attention": [], "uncached": []}
    for length in options.lengths:
        for function in (cached, attention):
            run = backend.compile_function(function, model, static_argnames=names)
            # What precedes the loop is in both.
            longer, shorter = seconds(run, length, 3 * STEPS, STEPS)
            result[function.__name__].append((longer - shorter) / (2 * STEPS))
        run = backend.compile_function(uncached, model, static_argnames=names)
        result["uncached"] += seconds(run, length, 0)
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
        f"{processor()}, {options.threads} thread(s); shape {options.shape}, {options.batch} rows; "
        "milliseconds per step of a batch\n"
    )
    print(f"command: python benchmarks/{' '.join([pathlib.Path(__file__).name, *sys.argv[1:]])}\n")
    print(
        "| backend | tokens in the cache | cached | attention | growth | uncached "
        "|\n|---|---|---|---|---|---|",
        flush=True,
    )
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
        for place, length in enumerate(options.lengths):
            step, attention, uncached = (
                1000 * found[name][place] for name in ("cached", "attention", "uncached")
            )
            grown, allowed = (
                step - 1000 * found["cached"][0],
                attention - 1000 * found["attention"][0],
            )
            growth = f"{grown / allowed:.2f}" if place and allowed > 0 else ""
            print(
                f"| {backend} | {length} | {step:.2f} | {attention:.2f} | {growth} | "
                f"{uncached:.1f} |",
                flush=True,
            )
    if options.plot:
        draw(options, results)


def draw(options, results):
    """One chart per backend."""
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
