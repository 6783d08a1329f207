"""Compares the backends on real text: loss curves, logits, and the ids that searches return.

    python benchmarks/backends.py curves --train-source F --train-target F --work DIR [--steps 50]
    python benchmarks/backends.py train --train-source F --train-target F --work DIR [--epochs 3]
    python benchmarks/backends.py export DIR --source F --work DIR [--limit N]
    python benchmarks/backends.py search RUN --source F --work DIR [--limit N]

- `curves` starts each backend from one saved model (preset tiny, dropout 0) and prints the largest
  difference of a batch's loss over the first steps.
- `train` runs `kformer train` on each backend from one run without dropout, and prints the curves
  side by side, epoch by epoch.
- `export` translates with each of the runs that `train` wrote to DIR on its own backend, exports
  it, and compares with the SavedModel in a process that can import neither Keras nor kformer.
- `search` loads one run on each backend and compares logits, greedy ids and the ids of a beam of 4,
  sentence by sentence. Where ids differ it prints the difference of the scores, which must be a tie
  (below 1e-4).

Each backend runs in a process of its own.
"""

import argparse
import csv
import json
import os
import pathlib
import subprocess
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.tables import print_head  # noqa: E402

BACKENDS = ("tensorflow", "jax", "torch")
# Translates the lines of a JSON file with a SavedModel: only core TensorFlow and tensorflow_text.
SERVE = """
import importlib.util, json, pathlib, sys
sys.modules["keras"] = sys.modules["kformer"] = None
import tensorflow as tf
# Only its kernels, as a server links them: `import tensorflow_text` would import Keras.
folder = pathlib.Path(importlib.util.find_spec("tensorflow_text").origin).parent
tf.load_op_library(str(next(folder.glob("python/ops/_sentencepiece_tokenizer*.so"))))
serve = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
lines = json.load(open(sys.argv[2]))
texts = []
for start in range(0, len(lines), 32):
    found = serve(text=tf.constant(lines[start : start + 32]))["translation"].numpy()
    texts += [text.decode() for text in found]
json.dump(texts, open(sys.argv[3], "w"))
"""


def curves(options):
    """Saves one backend's losses to `DIR/curve-BACKEND.npy`.

    The first backend makes the tokenizer and the model.
    """
    import keras

    import kformer
    from kformer.training import LatestValue

    work = pathlib.Path(options.work)
    files = [options.train_source, options.train_target]
    if not (work / "tokenizer").exists():
        kformer.Tokenizer.train(files, vocabulary_size=8000, model_type="unigram").save(
            work / "tokenizer"
        )
    tokenizer = kformer.Tokenizer.load(work / "tokenizer")
    if not (work / "start.keras").exists():
        kformer.Transformer.from_preset(
            "tiny", vocabulary_size=tokenizer.vocabulary_size, dropout=0.0
        ).save(work / "start.keras")
    model = keras.saving.load_model(work / "start.keras")
    data = kformer.data.ParallelDataset(*files, tokenizer, batch_tokens=2048, seed=0)
    schedule = kformer.WarmupInverseSqrt(model.hidden_dim, warmup_steps=2000)
    model.compile(
        optimizer=keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9),
        loss=kformer.MaskedCrossentropy(label_smoothing=0.1),
    )
    model.loss_observer = LatestValue(name="batch_loss")
    losses = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda step, logs: losses.append(float(logs["batch_loss"]))
    )
    model.fit(
        data.from_step(0),
        steps_per_epoch=options.steps,
        epochs=1,
        verbose=0,
        callbacks=[note],
        shuffle=False,
    )
    np.save(work / f"curve-{keras.backend.backend()}.npy", losses)


def search(options):
    """Saves one backend's logits and search results to `DIR/search-BACKEND.npz`."""
    import keras

    import kformer

    translator = kformer.Translator.load(options.run)
    lines = pathlib.Path(options.source).read_text(encoding="utf-8").split("\n")[: options.limit]
    lines = [line for line in lines if line]
    results = {}
    for name, beam_size in (("greedy", 1), ("beam 4", 4)):
        found = translator.translate(lines, beam_size=beam_size)
        results[f"{name} ids"] = np.array(
            [" ".join(map(str, result.hypotheses[0].ids)) for result in found]
        )
        results[f"{name} scores"] = np.array([result.score for result in found])
    rows = translator.tokenizer.tokenize(lines[:64], special_tokens=True)
    padded = np.full((len(rows), max(map(len, rows))), translator.model.pad_id, "int32")
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids)] = ids
    logits = translator.model({"source_ids": padded, "target_ids": padded[:, :20]}, training=False)
    results["logits"] = keras.ops.convert_to_numpy(logits)
    np.savez(pathlib.Path(options.work) / f"search-{keras.backend.backend()}.npz", **results)


def export(options):
    """Compares the translations of one backend's run with those of its SavedModel."""
    import keras

    import kformer

    backend = keras.backend.backend()
    work = pathlib.Path(options.work)
    translator = kformer.Translator.load(pathlib.Path(options.run) / backend)
    lines = pathlib.Path(options.source).read_text(encoding="utf-8").split("\n")[: options.limit]
    lines = [line for line in lines if line]
    (work / "lines.json").write_text(json.dumps(lines))
    for name, beam_size in (("greedy", 1), ("beam 4", 4)):
        mine = [result.text for result in translator.translate(lines, beam_size=beam_size)]
        folder = translator.export(work / f"saved-{backend}-{beam_size}", beam_size=beam_size)
        served = work / f"served-{backend}-{beam_size}.json"
        command = [sys.executable, "-c", SERVE, str(folder), str(work / "lines.json"), str(served)]
        subprocess.run(command, check=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
        equal = [a == b for a, b in zip(mine, json.loads(served.read_text()), strict=True)]
        different = len({*mine})
        print(f"| {backend} | {name} | {sum(equal)} of {len(lines)} | {different} |", flush=True)
        for index in np.flatnonzero(np.logical_not(equal)):
            theirs = json.loads(served.read_text())[index]
            print(f"  line {index + 1}: {mine[index]!r}, SavedModel {theirs!r}")


def train(options):
    """Runs `kformer train` on each backend from one start, and prints the curves side by side."""
    work = pathlib.Path(options.work)
    command = [
        sys.executable,
        "-m",
        "kformer_cli",
        "train",
        "--resume",
        "--batch-tokens",
        "2048",
    ]
    command += ["--train-source", options.train_source, "--train-target", options.train_target]
    start = [
        "--output",
        str(work / "start"),
        "--preset",
        "tiny",
        "--dropout",
        "0",
        "--steps",
        "1",
        "--backend",
        BACKENDS[0],
    ]
    subprocess.run([*command, *start], check=True)
    rows = {}
    for backend in BACKENDS:
        more = [
            "--output",
            str(work / backend),
            "--start-from",
            str(work / "start"),
            "--epochs",
            str(options.epochs),
        ]
        subprocess.run(
            [*command, *more, "--learning-rate", "0.001", "--backend", backend], check=True
        )
        with open(work / backend / "history.csv", encoding="utf-8", newline="") as file:
            rows[backend] = list(csv.DictReader(file))
    losses = {
        backend: np.array([float(row["loss"]) for row in rows[backend]]) for backend in BACKENDS
    }
    epochs = np.array([int(row["epoch"]) for row in rows[BACKENDS[0]]])
    spread = np.ptp(np.stack(list(losses.values())), axis=0)
    print(
        "| epoch, mean loss | "
        + " | ".join(BACKENDS)
        + " | largest difference of a batch |\n|---|---|---|---|---|"
    )
    for epoch in np.unique(epochs):
        cells = [f"{losses[backend][epochs == epoch].mean():.4f}" for backend in BACKENDS]
        print(f"| {epoch} | " + " | ".join(cells) + f" | {spread[epochs == epoch].max():.1e} |")
    print(f"\nlargest difference over the first 50 steps: {spread[:50].max():.2e}")


def compare_curves(options):
    losses = {
        backend: np.load(pathlib.Path(options.work) / f"curve-{backend}.npy")
        for backend in BACKENDS
    }
    print("| step | " + " | ".join(BACKENDS) + " | largest difference |\n|---|---|---|---|---|")
    spread = np.ptp(np.stack(list(losses.values())), axis=0)
    for step in sorted({0, 1, 4, 9, 19, 29, 39, options.steps - 1} & set(range(options.steps))):
        print(
            f"| {step + 1} | "
            + " | ".join(f"{losses[backend][step]:.6f}" for backend in BACKENDS)
            + f" | {spread[step]:.1e} |"
        )
    print(f"\nlargest difference over {options.steps} steps: {spread.max():.2e}")


def compare_search(options):
    found = {
        backend: np.load(pathlib.Path(options.work) / f"search-{backend}.npz")
        for backend in BACKENDS
    }
    head = ["pair", "largest difference of logits", "greedy ids equal", "ties"]
    head += ["beam 4 ids equal", "ties"]
    print_head(head)
    for other in BACKENDS[1:]:
        first, second = found[BACKENDS[0]], found[other]
        cells = [f"{np.abs(first['logits'] - second['logits']).max():.1e}"]
        listed = []
        for name in ("greedy", "beam 4"):
            differs = np.flatnonzero(first[f"{name} ids"] != second[f"{name} ids"])
            gaps = np.abs(first[f"{name} scores"] - second[f"{name} scores"])[differs]
            total = len(first[f"{name} ids"])
            cells += [
                f"{total - len(differs)} of {total}",
                f"{(gaps < 1e-4).sum()} of {len(differs)}",
            ]
            listed += [
                f"  {name}, line {line + 1}: scores differ by {gap:.1e}"
                for line, gap in zip(differs, gaps, strict=True)
            ]
        print(f"| {BACKENDS[0]}, {other} | " + " | ".join(cells) + " |", *listed, sep="\n")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("curves")
    one.add_argument("--train-source", required=True)
    one.add_argument("--train-target", required=True)
    one.add_argument("--steps", type=int, default=50)
    three = commands.add_parser("train")
    three.add_argument("--train-source", required=True)
    three.add_argument("--train-target", required=True)
    three.add_argument("--epochs", type=int, default=3)
    two = commands.add_parser("search")
    four = commands.add_parser("export")
    for command in (two, four):
        command.add_argument(
            "run",
            help="`export`: the folder with the runs" if command is four else "a run directory",
        )
        command.add_argument("--source", required=True)
        command.add_argument("--limit", type=int, default=None)
    for command in (one, two, three, four):
        command.add_argument(
            "--work", required=True, help="folder for what the processes hand over"
        )
        command.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        {"curves": curves, "search": search, "export": export}[options.command](options)
        return
    pathlib.Path(options.work).mkdir(parents=True, exist_ok=True)
    if options.command == "train":
        train(options)
        return
    if options.command == "export":
        print("| trained and translated on | search | strings equal | different strings |")
        print("|---|---|---|---|", flush=True)
    for backend in BACKENDS:
        subprocess.run(
            [sys.executable, *sys.argv, "--worker"],
            env={**os.environ, "KERAS_BACKEND": backend},
            check=True,
        )
    if options.command != "export":
        {"curves": compare_curves, "search": compare_search}[options.command](options)


if __name__ == "__main__":
    main()
