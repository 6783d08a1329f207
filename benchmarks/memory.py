"""Computes the memory of a training step by preset, without a GPU.

    python benchmarks/memory.py [--presets tiny,base] [--batch-tokens 4096,16384] [--length 32]

The state (weights, their average and Adam's two moments, 4 bytes each) is counted. What else a step
needs (gradients and activations, in float32) is what XLA plans for the step, compiled on this
machine: nothing runs. On a GPU XLA's plan differs by the kernels that it has there. Rows have
`--length` tokens on both sides.
"""

import argparse
import os

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402
import numpy as np  # noqa: E402

import kformer  # noqa: E402

# What Marian, Multi30k and the paper use is near these.
VOCABULARY = {"tiny": 8000, "small": 8000, "base": 32_000, "big": 32_000}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--presets", default="tiny,small,base,big")
    parser.add_argument("--batch-tokens", default="4096,16384")
    parser.add_argument("--length", type=int, default=32)
    options = parser.parse_args()
    print("| preset | vocabulary | parameters | tokens of a batch | state | step | all |")
    print("|---|---|---|---|---|---|---|")
    for preset in options.presets.split(","):
        for tokens in map(int, options.batch_tokens.split(",")):
            report(preset, tokens, options.length)


def report(preset, tokens, length):
    """Prints the row of one kind of step."""
    size = VOCABULARY[preset]
    model = kformer.Transformer.from_preset(preset, vocabulary_size=size)
    model.compile(**kformer.training.paper_recipe(model, ema_momentum=0.999))
    ids = np.full((tokens // length, length), 5, "int32")
    state_bytes, step_bytes = plan(model, {"source_ids": ids, "target_ids": ids}, ids)
    gib = [f"{value / 2**30:.2f}" for value in (state_bytes, step_bytes, state_bytes + step_bytes)]
    cells = [preset, f"{size:,}", f"{model.count_params():,}", f"{tokens:,}", *gib]
    print(f"| {' | '.join(cells)} |", flush=True)


def plan(model, inputs, labels):
    """The bytes of the state and those that XLA plans beside it: (int, int)."""
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


if __name__ == "__main__":
    main()
