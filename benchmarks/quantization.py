"""What bfloat16 and int8 cost in quality and memory, by a run and its test set.

    python benchmarks/quantization.py RUN --source FILE --reference FILE --work DIR
        [--beams 1,5] [--dtypes float32,bfloat16,int8] [--instructions ,AVX2] [--limit 1000]

Exports the run in each dtype. The first table has BLEU, how many texts equal those of float32, and
how many are the same alone and in batches of 64. `--instructions` names what oneDNN may use of the
CPU (`ONEDNN_MAX_CPU_ISA`); nothing stands for all of it. The second table has the size on disk, and
of a process that has called each signature with one text and with 32: the seconds to load the model
and for the first call, and the memory that it takes, beyond that of TensorFlow. Each line is a
process of its own.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.tables import print_command, print_head, print_row  # noqa: E402

# Translates with TensorFlow and the ops of tensorflow_text alone.
PROGRAM = """
import json, sys, time
import tensorflow as tf
import tensorflow_text

folder, batch_size = sys.argv[1], int(sys.argv[2])
texts = json.load(sys.stdin)

def resident():
    with open("/proc/self/status") as file:
        [line] = [line for line in file if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024

tf.linalg.matmul([[1.0]], [[1.0]])  # What TensorFlow allocates once.
before, start = resident(), time.perf_counter()
model = tf.saved_model.load(folder)
loaded = time.perf_counter()
signatures = dict(model.signatures)
serve = signatures["serving_default"]
serve(text=tf.constant(texts[:1]))
first = time.perf_counter()
for name in sorted(signatures):
    for count in (1, 32):
        signatures[name](text=tf.constant(texts[:count]))
memory = resident() - before
found = []
for start_row in range(0, len(texts), batch_size) if batch_size else ():
    batch = serve(text=tf.constant(texts[start_row:start_row + batch_size]))["translation"].numpy()
    found += [text.decode() for text in batch]
print(json.dumps({
    "texts": found, "load": loaded - start, "first": first - loaded, "memory": memory,
    "signatures": sorted(signatures),
}))
"""


def main():
    options = parse()
    sources = read(options.source)[: options.limit]
    references = read(options.reference)[: options.limit]
    print_command()
    print_head(("beam", "dtype", "instructions", "BLEU", "texts as float32's", "alone as in 64s"))
    for beam in options.beams:
        expected = None
        for dtype in options.dtypes:
            folder = export(options, dtype, beam)
            for instructions in options.instructions:
                found = translate(folder, sources, 64, instructions)["texts"]
                alone = translate(folder, sources, 1, instructions)["texts"]
                expected = expected or found
                print_row(
                    beam,
                    dtype,
                    instructions or "all",
                    f"{bleu(found, references):.2f}",
                    f"{equal(found, expected)} of {len(sources)}",
                    f"{equal(found, alone)} of {len(sources)}",
                )
    print()
    print_head(("beam", "dtype", "on disk, MB", "loading, s", "first call, s", "memory, MiB"))
    for beam in options.beams:
        for dtype in options.dtypes:
            folder = export(options, dtype, beam)
            found = translate(folder, sources[:32], 0)
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            cells = [found["load"], found["first"], found["memory"]]
            print_row(beam, dtype, f"{size / 1e6:.1f}", *(f"{cell:.1f}" for cell in cells))
    print(f"<!-- signatures: {', '.join(found['signatures'])} -->")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--reference", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--beams", type=lambda value: list(map(int, names(value))), default=[1, 5])
    parser.add_argument("--dtypes", type=names, default=["float32", "bfloat16", "int8"])
    parser.add_argument("--instructions", type=names, default=["", "AVX2"])
    parser.add_argument("--limit", type=int, default=1000)
    return parser.parse_args()


def names(value):
    return value.split(",")


def read(path):
    return path.read_text(encoding="utf-8").splitlines()


def export(options, dtype, beam):
    """The folder of an export with its version, made at the first call."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import kformer
    from kformer.export.saved_model.folder import find_version

    folder = options.work / f"{dtype}-{beam}"
    if not folder.exists():
        translator = kformer.Translator.load(options.run)
        translator.export(folder, dtype=dtype, beam_size=beam)
    return find_version(folder)


def translate(folder, texts, batch_size, instructions=""):
    """What the program prints."""
    variables = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    variables.pop("ONEDNN_MAX_CPU_ISA", None)
    if instructions:
        variables["ONEDNN_MAX_CPU_ISA"] = instructions
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), str(batch_size)],
        input=json.dumps(texts),
        stdout=subprocess.PIPE,
        text=True,
        env=variables,
        check=True,
    )
    return json.loads(run.stdout)


def equal(texts, others):
    return sum(one == other for one, other in zip(texts, others, strict=True))


def bleu(texts, references):
    """sacreBLEU of text that is tokenized already."""
    import sacrebleu

    return sacrebleu.corpus_bleu(texts, [references], tokenize="none", force=True).score


if __name__ == "__main__":
    main()
