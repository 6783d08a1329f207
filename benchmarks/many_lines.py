"""Translates many short lines by the command, in little memory.

    python benchmarks/many_lines.py --work DIR [--lines 1000000] [--threads 2]
        [--memory-limit 4096] [--backend tensorflow]

A tiny model of random weights and its SavedModel translate the lines with `kformer translate`,
greedily, in a process of its own whose virtual memory is limited to `--memory-limit` MiB, as by
`ulimit -v`. The table has the time, the lines of the output, and the peaks of virtual and resident
memory. The exit status is 0 if both outputs have all lines, and are equal.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks.tables import print_command, print_head, print_row  # noqa: E402

# Runs the command under a limit, and prints its seconds, exit status and peaks in MiB.
PROGRAM = """
import json, resource, sys, time
limit = int(sys.argv[1]) * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
start = time.time()
from kformer_cli.main import main
try:
    code = main(sys.argv[2:])
except SystemExit as end:
    code = end.code
with open("/proc/self/status") as file:
    fields = dict(line.split(":", 1) for line in file)
peaks = [int(fields[name].split()[0]) // 1024 for name in ("VmPeak", "VmHWM")]
print(json.dumps([time.time() - start, code or 0, *peaks]))
"""
SIZES = {
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "hidden_dim": 32,
    "intermediate_dim": 64,
    "num_heads": 2,
    "max_length": 64,
}


def main():
    options = parse()
    options.work.mkdir(parents=True, exist_ok=True)
    models, source = make(options)
    print_command()
    print_head(("model", "lines", "seconds", "peak virtual, MiB", "peak resident, MiB"))
    outputs, failed = [], False
    for name, model in models.items():
        output = options.work / f"{name}.out"
        output.unlink(missing_ok=True)
        seconds, code, virtual, resident = translate(options, model, source, output)
        outputs.append(output.read_bytes() if output.exists() else b"")
        count = outputs[-1].count(b"\n")
        failed |= code != 0 or count != options.lines
        print_row(name, f"{count:,}", f"{seconds:.0f}", virtual, resident)
    sys.exit(failed or outputs[0] != outputs[1])


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory-limit", type=int, default=4096, help="MiB")
    parser.add_argument("--backend", default="tensorflow")
    return parser.parse_args()


def make(options):
    """The models by name, and the file of lines."""
    os.environ["KERAS_BACKEND"] = options.backend
    import kformer

    pairs = kformer.examples.generate_pairs(1000, seed=1, split="train", categories=("time",))
    texts = [pair.source for pair in pairs]
    models = {"run": options.work / "run", "saved_model": options.work / "saved"}
    if not models["run"].exists():
        tokenizer = kformer.Tokenizer.train(
            texts=[text for pair in pairs for text in (pair.source, pair.target)],
            vocabulary_size=400,
        )
        model = kformer.Transformer(tokenizer.vocabulary_size, seed=1, **SIZES)
        limits = {"max_length": 6, "length_ratio": 1.0, "length_offset": 0}
        search = kformer.decoding.SearchOptions(beam_size=1, **limits)
        translator = kformer.Translator(model, tokenizer, search)
        translator.save(models["run"])
        translator.export(models["saved_model"])
    source = options.work / f"{options.lines}.txt"
    with open(source, "w", encoding="utf-8") as file:
        file.writelines(texts[i * 7919 % len(texts)] + "\n" for i in range(options.lines))
    return models, source


def translate(options, model, source, output):
    """Seconds, exit status, and the peaks of virtual and resident memory in MiB."""
    command = ["translate", model, "--input", source, "--output", output, "--batch-size", 256]
    command += ["--threads", options.threads, "--backend", options.backend]
    # Threads of PyTorch that spin while they wait take the cores from those that compute.
    waiting = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(options.memory_limit), *map(str, command)],
        env={**os.environ, **waiting, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
        cwd=ROOT,
        check=True,
    )
    return json.loads(run.stdout)


if __name__ == "__main__":
    main()
