"""Measures the cost of attention as sequences grow: full, local and linear, forward and backward.

    python benchmarks/attention.py [--backends tensorflow,jax,torch] [--lengths 256,...,8192]
        [--window 128] [--hidden 512] [--heads 8] [--repeats 5] [--causal] [--plot FILE]

Every kind and length runs in a process of its own: one sequence through one layer, loss and
gradients. Time is the minimum over the repeats. Memory is the peak of the process less what it had
before the first call. The table gives both, and their ratios to full attention of the same length
on the same backend. `--plot` plots the time into FILE and the memory into NAME-memory.
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.tables import print_command, print_head, print_row  # noqa: E402

KINDS = ("full", "local", "linear")


def measure(options):
    """Seconds and MiB of one kind and length, measured in this process."""
    import keras
    import numpy as np

    from kformer.layers import MultiHeadAttention

    window = {"window": options.window} if options.kind == "local" else {}
    layer = MultiHeadAttention(options.heads, kind=options.kind, **window, seed=0)
    layer.build((1, None, options.hidden))
    x = np.random.default_rng(0).normal(size=(1, options.length, options.hidden)).astype("float32")
    step = STEPS[keras.backend.backend()](layer, x, options.causal)
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


STEPS = {"tensorflow": tensorflow_step, "torch": torch_step, "jax": jax_step}


def run(options, backend, kind, length):
    command = [sys.executable, __file__, "--kind", kind, "--length", str(length)]
    for name in ("window", "hidden", "heads", "repeats"):
        command += [f"--{name}", str(getattr(options, name))]
    command += ["--causal"] if options.causal else []
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    if process.returncode:
        return None  # Usually out of memory.
    return json.loads(process.stdout.splitlines()[-1])


def report(options):
    from benchmarks.inference import cpu_name

    print(f"{cpu_name()}, {os.cpu_count()} CPU cores\n")
    print_command()
    columns = [f"{kind}, {unit}" for kind in KINDS for unit in ("ms", "MiB")]
    print_head(["backend", "length", *columns, "local / full", "linear / full"])
    curves = {"seconds": {}, "mebibytes": {}}
    for backend in options.backends:
        for length in options.lengths:
            found = {kind: run(options, backend, kind, length) for kind in KINDS}
            cells = []
            for kind, row in found.items():
                cells += (
                    ["-", "-"]
                    if row is None
                    else [f"{1000 * row['seconds']:.1f}", f"{row['mebibytes']:.0f}"]
                )
                if row is not None:
                    for name in curves:
                        curves[name].setdefault(f"{kind}, {backend}", {})[length] = row[name]
            for kind in KINDS[1:]:
                both = found["full"] is not None and found[kind] is not None
                ratios = (
                    [
                        found[kind][name] / max(found["full"][name], 1e-9)
                        for name in ("seconds", "mebibytes")
                    ]
                    if both
                    else None
                )
                cells.append(
                    "-" if ratios is None else f"{ratios[0]:.2f} time, {ratios[1]:.2f} memory"
                )
            print_row(backend, f"{length:,}", *cells)
    if options.plot:
        from kformer import plots

        memory = options.plot.with_stem(f"{options.plot.stem}-memory")
        for (name, lines), path in zip(curves.items(), (options.plot, memory), strict=True):
            plots.save(
                plots.plot_lengths(lines, name, title="a layer of attention, forward and backward"),
                path,
            )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backends", type=lambda text: text.split(","), default=list(STEPS))
    lengths = [2**power for power in range(8, 14)]
    parser.add_argument(
        "--lengths", type=lambda text: [int(part) for part in text.split(",")], default=lengths
    )
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--plot", type=pathlib.Path)
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--length", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.kind:
        print(json.dumps(measure(options)))
    else:
        report(options)


if __name__ == "__main__":
    main()
