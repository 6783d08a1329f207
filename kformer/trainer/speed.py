"""Measures how fast a training is on this machine, before it begins."""

import csv
import shutil
import statistics

from kformer.data import ParallelDataset
from kformer.saving.run_directory import read_config
from kformer.text import Tokenizer
from kformer.trainer.data import TextOfTraining
from kformer.trainer.lines import lines_of
from kformer.trainer.training import SILENT
from kformer.training.defaults import choose_epochs
from kformer.training.hosts import Hosts
from kformer.training.options import TrainOptions
from kformer.utils.backend import devices_in_use
from kformer_options.combinations import OF_THE_VALIDATION

# The steps that are trained, and the last of them that count: the first ones compile.
_STEPS, _COUNTED = 24, 12


def measure_speed(run, options, train):
    """Trains a few steps, and returns what they say about the whole training.

    Args:
        run: `pathlib.Path` of a run directory that is made, and removed at the end.
        options: dict of the options of the training, with its tokenizer.
        train: function with the arguments of `train_one`.

    Returns:
        dict with `tokens_per_second` (float, target tokens), and of the whole training
        `epoch_tokens` (int, target tokens of an epoch), `steps_per_epoch`, `batch_tokens` and
        `epochs` (int).
    """
    shutil.rmtree(run, ignore_errors=True)
    unused = ("epochs", "log_dir", "valid_source", "valid_target", *OF_THE_VALIDATION)
    short = {**options, **dict.fromkeys(unused), "steps": _STEPS, "warmup_steps": 1}
    short = {name: value for name, value in short.items() if value is not None}
    train(run, short, False, SILENT)
    with open(run / "history.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))[-_COUNTED:]
    # The median, since a step whose shape is new compiles.
    seconds = statistics.median(float(row["seconds"]) / int(row["target_tokens"]) for row in rows)
    settled = read_config(run)["training"]
    short, tokenizer = TrainOptions(**short), Tokenizer.load(run / "tokenizer")
    lines = lines_of(run, short, SILENT)
    text = TextOfTraining(run, short, lines, tokenizer, settled["max_length"], SILENT, Hosts())
    corpus = text.corpus
    batches = {name: settled[name] for name in ("batch_tokens", "packed")}
    batches |= {"max_shapes": settled["max_shapes"] or 1, "num_devices": devices_in_use()}
    steps = ParallelDataset.from_prepared(corpus, **batches).steps_per_epoch
    shutil.rmtree(run, ignore_errors=True)
    return {
        "tokens_per_second": round(1 / max(seconds, 1e-9), 1),
        "epoch_tokens": corpus.num_target_tokens,
        "steps_per_epoch": steps,
        "batch_tokens": settled["batch_tokens"],
        "epochs": options["epochs"] or choose_epochs(steps, settled["accumulate"])[0],
    }
