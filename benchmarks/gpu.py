"""Measures training and translation on a GPU by one command.

    python benchmarks/gpu.py [--shapes base,big] [--batch-tokens 8192,32768] [--steps 20]
        [--max-shapes 8] [--device gpu|cpu] [--quick]

Trains with `model.fit` on JAX and PyTorch in bfloat16, padded and packed, beside a tuned
`torch.nn.Transformer`, by `training.py` once for each size of batch; its column "of floor" is the
share of the speed that a large bfloat16 product has on the card. Where TensorFlow finds a GPU,
`inference.py` measures the SavedModel too, in float32 and bfloat16. `--device cpu --quick` tries
the commands on a machine without a GPU, in two minutes.
"""

import argparse
import importlib.util
import pathlib
import subprocess
import sys

BENCHMARKS = pathlib.Path(__file__).resolve().parent
TRAINING = ["kformer", "kformer-tuned-packed", "torch-tuned"]
INFERENCE = ["saved_model", "saved_model-bfloat16"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", default="base,big")
    parser.add_argument("--batch-tokens", default="8192,32768")
    parser.add_argument("--steps", default="20", help="steps of a window")
    parser.add_argument("--max-shapes", default="8", help="of a batch; each is compiled")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--quick", action="store_true", help="the smallest shape and batches")
    options = parser.parse_args()
    backends = [name for name in ("jax", "torch") if importlib.util.find_spec(name)]
    systems = [name for name in TRAINING if "torch" in backends or name.startswith("kformer")]
    failed = 0
    for tokens in ["512"] if options.quick else options.batch_tokens.split(","):
        arguments = ["--device", options.device, "--backends", ",".join(backends)]
        arguments += ["--systems", ",".join(systems), "--batch-tokens", tokens]
        sizes = ["--shapes", options.shapes, "--steps", options.steps]
        sizes += ["--max-shapes", options.max_shapes]
        failed |= run("training.py", *arguments, *(["--quick"] if options.quick else sizes))
    if options.device == "cpu" or tensorflow_has_gpu():
        sizes = ["--quick"] if options.quick else ["--shapes", options.shapes]
        failed |= run("inference.py", "--systems", ",".join(INFERENCE), *sizes)
    else:
        print("TensorFlow finds no GPU here, so no SavedModel is measured.")
    sys.exit(failed)


def run(script, *arguments):
    """Runs a benchmark, which prints its own table; returns whether it failed."""
    print(f"\n## {script}\n", flush=True)
    return subprocess.run([sys.executable, BENCHMARKS / script, *arguments]).returncode != 0


def tensorflow_has_gpu():
    """Whether TensorFlow is installed and finds a GPU; in a process of its own, since it would
    take the GPU's memory.
    """
    program = "import tensorflow, sys; sys.exit(not tensorflow.config.list_physical_devices('GPU'))"
    return subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0


if __name__ == "__main__":
    main()
