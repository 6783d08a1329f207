"""An imported model that four devices share: the program `imported_split.py PUBLISHED FOLDER`.

It makes virtual CPU devices, which a process cannot change later, and writes what it found to
`FOLDER/found.json`.
"""

import json
import os
import pathlib
import sys

os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
)

from kformer.saving import load_checkpoint  # noqa: E402
from kformer.training import distribution  # noqa: E402
from kformer_cli.main import main  # noqa: E402
from tests.training.shares import largest_share  # noqa: E402


def losses(run):
    rows = (run / "history.csv").read_text().splitlines()
    column = rows[0].split(",").index("loss")
    return [float(row.split(",")[column]) for row in rows[1:]]


def train(run, *options):
    assert main(["train", "--output", str(run), *map(str, options)]) == 0


def found_in(published, folder):
    imported = folder / "imported"
    assert main(["import", str(published), "--output", str(imported)]) == 0
    options = ["--train-source", folder / "text", "--train-target", folder / "text"]
    options += ["--start-from", imported, "--batch-tokens", 128, "--max-shapes", 1]
    options += ["--seed", 0, "--dropout", 0.1, "--cooldown", 0, "--ema", 0, "--warmup-steps", 4]
    split = ["--devices", 4, "--model-parallel", 4]
    train(folder / "split", *options, *split, "--steps", 3)
    with distribution(4, 4).scope():
        share = largest_share(load_checkpoint(folder / "split")[0])
    train(folder / "split", "--resume", *split, "--steps", 6)
    train(folder / "one", *options, "--steps", 6)
    return {"share": share, "split": losses(folder / "split"), "one": losses(folder / "one")}


if __name__ == "__main__":
    result = found_in(*map(pathlib.Path, sys.argv[1:]))
    (pathlib.Path(sys.argv[2]) / "found.json").write_text(json.dumps(result), encoding="utf-8")
