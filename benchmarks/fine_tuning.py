"""What fine-tuning gains on a new text, what it forgets of the old one, and what it costs.

    python benchmarks/fine_tuning.py OLD NEW --work DIR [--old-source de] [--new-source zh]
        [--target en] [--old-test test2016] [--pairs N] [--seen N] [--first-epochs N] [--epochs N]
        [--back-epochs N] [--methods full,lora-8,...] [--beam N] [--seed N] [--threads N]
        [--backend NAME]

OLD and NEW are folders with `train`, `val` and a test set in a source language of their own and in
one target language. A first model is trained on the old text and on the last `--seen` pairs of the
new one, so that it has met the new language, with a tokenizer for each side that was trained on
both texts. Each method then trains it on the first `--pairs` pairs of the new text, and from there
back on the old text:

    full              all weights
    lora-R            adapters of rank R
    mixed             all weights, with as many old pairs in each epoch
    mixed-lora-R      adapters, with as many old pairs in each epoch

A mixed training chooses the best model by both validation sets, the others by the one of the text
that they train on. All else is what `kformer train --start-from` chooses by itself. The table has
the share of the parameters that train, the peak memory of the training's process and its seconds,
and sacreBLEU (`13a`) on both test sets.

Files in DIR are used again: it belongs to one set of options, and an interrupted run goes on.
"""

import argparse
import json
import pathlib
import re
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.inference import cpu_name  # noqa: E402
from benchmarks.measured import measured  # noqa: E402
from benchmarks.multi30k import kformer  # noqa: E402
from benchmarks.tables import print_command, print_head, print_row  # noqa: E402

COLUMNS = ("training", "trained", "MiB", "seconds", "old BLEU, chrF", "new BLEU, chrF")


def read(folder, name, language):
    return (folder / f"{name}.{language}").read_text(encoding="utf-8").splitlines()


def write_texts(options):
    """Writes the texts as `NAME.source` and `NAME.target`; returns the path of a name's side."""
    folder = options.work / "text"
    folder.mkdir(parents=True, exist_ok=True)
    for side in ("source", "target"):
        texts = {}
        for name in ("old", "new"):
            data = getattr(options, name)
            language = options.target if side == "target" else getattr(options, f"{name}_source")
            texts[f"{name}-train"] = read(data, "train", language)
            texts[f"{name}-valid"] = read(data, "val", language)
            test = options.old_test if name == "old" else options.new_test
            texts[f"{name}-test"] = read(data, test, language)
        texts["both"] = texts["old-train"] + texts["new-train"]
        seen = texts["new-train"][-options.seen :] if options.seen else []
        texts["new-train"] = texts["new-train"][: len(texts["new-train"]) - len(seen)]
        for name in ("old-train", "new-train"):
            texts[name] = texts[name][: options.pairs]
        texts["first"] = texts["old-train"] + seen
        for name, lines in texts.items():
            path = folder / f"{name}.{side}"
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


def sides(option, folder, name):
    """The options of the two sides of a text."""
    return [
        part
        for side in ("source", "target")
        for part in (f"--{option}-{side}", folder / f"{name}.{side}")
    ]


def train(options, run, *arguments):
    """Trains a run in a process of its own, unless it is there.

    Returns:
        dict with its `seconds`, the peak of its `memory` in MiB and the `share` of the parameters
        that train, in percent.
    """
    record = run.with_suffix(".json")
    if not record.exists():
        shutil.rmtree(run, ignore_errors=True)
        settings = ("--seed", options.seed, "--no-choose-search")
        machine = {"backend": options.backend, "threads": options.threads}
        log = run.with_suffix(".log")
        found = measured(log, "train", "--output", run, *arguments, *settings, **machine)
        seconds, memory, text = found
        share = re.search(r"parameters train \(([\d.]+) %\)", text)
        spent = {
            "seconds": round(seconds),
            "memory": round(memory),
            "share": float(share[1]) if share else 100.0,
        }
        record.write_text(json.dumps(spent), encoding="utf-8")
    return json.loads(record.read_text(encoding="utf-8"))


def score(options, run, text, name):
    """BLEU and chrF of a run on a test set."""
    record = run.with_name(f"{run.name}-{name}.bleu.json")
    if not record.exists():
        files = (
            "--source",
            text / f"{name}-test.source",
            "--reference",
            text / f"{name}-test.target",
        )
        search = ("--tokenize", "13a", "--beam-size", options.beam)
        found = kformer(options, "evaluate", run, *files, *search, "--json", capture=True)
        record.write_text(found, encoding="utf-8")
    found = json.loads(record.read_text(encoding="utf-8"))
    options.signature = found["bleu_signature"]
    return f"{found['bleu']:.2f}, {found['chrf']:.2f}"


def measure(options, text, run, *arguments):
    """Trains a run, and prints its row."""
    spent = train(options, run, *arguments)
    scores = [score(options, run, text, name) for name in ("old", "new")]
    cells = (f"{spent['share']:g} %", f"{spent['memory']:,}", f"{spent['seconds']:,}", *scores)
    print_row(run.name, *cells)


def method_arguments(method, text, other):
    """The options of a method; `other` is the text that is not to be forgotten."""
    arguments = []
    if rank := re.search(r"lora-(\d+)$", method):
        arguments += ["--lora-rank", rank[1]]
    if method.startswith("mixed"):
        arguments += sides("general", text, f"{other}-train")
        arguments += sides("general-valid", text, f"{other}-valid")
    return arguments


def main():
    options = parse()
    options.work.mkdir(parents=True, exist_ok=True)
    text = write_texts(options)
    tokenizer = options.work / "tokenizer"
    if not tokenizer.exists():
        from kformer import Tokenizer

        sizes = (options.vocabulary, options.vocabulary)
        files = [str(text / f"both.{side}") for side in ("source", "target")]
        Tokenizer.train(*files, vocabulary_size=sizes).save(tokenizer)
    print_command()
    print(f"{cpu_name()}, {options.backend}, {options.threads or 'all'} threads\n")
    print_head(COLUMNS)
    first = options.work / "first"
    begin = ("--tokenizer", tokenizer, *sides("train", text, "first"))
    valid = sides("valid", text, "old-valid")
    measure(options, text, first, *begin, *valid, "--epochs", options.first_epochs)
    for method in options.methods:
        start = first
        for name, new, old in (("there", "new", "old"), ("back", "old", "new")):
            run = options.work / f"{method}-{name}"
            texts = (*sides("train", text, f"{new}-train"), *sides("valid", text, f"{new}-valid"))
            more = method_arguments(method, text, old)
            epochs = options.epochs if name == "there" else options.back_epochs or options.epochs
            course = ("--start-from", start, "--epochs", epochs)
            measure(options, text, run, *texts, *more, *course)
            start = run
    print(f"\nBLEU: {options.signature}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("old", type=pathlib.Path)
    parser.add_argument("new", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--old-source", default="de")
    parser.add_argument("--new-source", default="zh")
    parser.add_argument("--target", default="en")
    parser.add_argument("--old-test", default="test2016")
    parser.add_argument("--new-test", default="test")
    parser.add_argument("--pairs", type=int, help="of each text; all by default")
    parser.add_argument("--seen", type=int, default=4000)
    parser.add_argument("--vocabulary", type=int, default=6000, help="pieces of each side")
    parser.add_argument("--first-epochs", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=8, help="of each fine-tuning")
    parser.add_argument("--back-epochs", type=int, help="back to the old text; --epochs by default")
    parser.add_argument("--methods", default="full,lora-8,lora-32,mixed,mixed-lora-32")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--backend", default="torch")
    options = parser.parse_args()
    options.methods = options.methods.split(",")
    return options


if __name__ == "__main__":
    main()
