"""Compares the quality of translations with that of fair peers, trained on the same files.

    python benchmarks/quality_peers.py DATA --from en --to de --work DIR [--pairs N] [--seeds 1]
        [--systems kformer,torch,joeynmt] [--joey-python FILE] [--threads N] [--backend NAME]
        [--rates 0.002,0.005] [--joey-rates 0.001,0.002] [--dropouts 0.2,0.3] [--trial 0.3]
        [--finalists 2] [--longer 2] [--tokenize NAME] [--train-options "--preset small ..."]

DATA is a folder with `train`, `val` and `test` (or `test2016`) in both languages (`train.en`, ...);
`--pairs` takes the first pairs of `train` alone. kformer is `kformer train` with the four files, a
seed and nothing else, and its translations are those of the search that it chose.

The peers have kformer's tokenizer, its tokens per batch, about its number of parameters, and as
many seconds for their steps as `kformer train` took from start to end. Seconds are of CPU time, so
that other work on the machine counts for none:

- torch: a pre-norm `torch.nn.Transformer` in a plain loop (`quality_torch.py`);
- joeynmt: Joey NMT, of which `--joey-python` names the interpreter (`quality_joey.py`).

With `--longer` each is also trained for so many times the seconds, Joey NMT in the sizes of its
published configuration.

Each peer is tried with each of its rates and each of `--dropouts`, if these are several, for a
share `--trial` of the time. The negative log-likelihood of the validation set chooses a rate for
each dropout. The `--finalists` best of these are trained for the whole time, since a dropout shows
its worth in the end, and the validation set's BLEU chooses. It chooses torch's length penalty, too,
while Joey NMT keeps its published one. What it chose alone is scored on the test set. BLEU is
sacreBLEU's (`--tokenize`, by default `none` if a folder's name is `tok`, `zh` for Chinese, else
`13a`). Joey NMT's likelihood is that of smoothed labels.

Finished parts in DIR are used again, so it belongs to one folder of data and one set of options. An
interrupted training starts again, since its time counts.
"""

import argparse
import csv
import importlib.metadata
import json
import math
import os
import pathlib
import shlex
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks import quality_joey  # noqa: E402
from benchmarks.inference import cpu_name  # noqa: E402
from benchmarks.multi30k import kformer, read, write  # noqa: E402
from benchmarks.quality_joey import cpu_seconds  # noqa: E402
from benchmarks.quality_torch import settings_of  # noqa: E402
from benchmarks.tables import print_command, print_head, print_row  # noqa: E402


def write_json(path, value):
    write(path, [json.dumps(value)])


def once(path, make):
    """What a JSON file holds; `make()` makes it if there is none."""
    if not path.exists():
        write_json(path, make())
    return json.loads(path.read_text(encoding="utf-8"))


def lines(job, part, side):
    """The lines of a part of the data; `side` is "source" or "target"."""
    return read(pathlib.Path(f"{job['data']}/{part}.{job[side]}"))


def scores(job, part, texts):
    """BLEU, chrF and their signatures."""
    from sacrebleu.metrics import BLEU, CHRF

    found, references = {}, lines(job, part, "target")
    for name, metric in (("bleu", BLEU(tokenize=job["tokenize"], force=True)), ("chrf", CHRF())):
        found[name] = metric.corpus_score(texts, [references]).score
        found[f"{name}_signature"] = str(metric.get_signature())
    return found


def prepare(options):
    """The folder with the data: DATA, or one in DIR with the first pairs."""
    if options.pairs is None:
        return options.data
    folder = options.work / "data"
    folder.mkdir(exist_ok=True)
    for part in ("train", "val", options.test):
        for language in (options.source, options.target):
            name = f"{part}.{language}"
            count = options.pairs if part == "train" else None
            write(folder / name, read(options.data / name)[:count])
    return folder


def train_kformer(options, job, seed):
    """Trains a run; returns its folder and the seconds of the whole command."""
    run = options.work / f"kformer-{seed}"

    def train():
        shutil.rmtree(run, ignore_errors=True)
        arguments = []
        for side in ("source", "target"):
            for name, part in (("train", "train"), ("valid", "val")):
                arguments += [f"--{name}-{side}", f"{job['data']}/{part}.{job[side]}"]
        begin, words = cpu_seconds(), shlex.split(options.train_options)
        kformer(options, "train", "--output", run, *arguments, "--seed", seed, *words)
        return cpu_seconds() - begin

    return run, once(run.with_suffix(".seconds"), train)


def score_kformer(options, job, run):
    """The cells of a run's row."""

    def evaluate(part):
        files = [f"{job['data']}/{part}.{job[side]}" for side in ("source", "target")]
        arguments = ["--source", files[0], "--reference", files[1], "--json"]
        words = ["--tokenize", job["tokenize"]]
        return json.loads(kformer(options, "evaluate", run, *arguments, *words, capture=True))

    found = {
        part: once(run.with_name(f"{run.name}-{part}.json"), lambda part=part: evaluate(part))
        for part in ("val", job["test"])
    }
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    with open(run / "history.csv", encoding="utf-8", newline="") as file:
        history = [row for row in csv.DictReader(file) if row["val_nll"]]
    settings = settings_of(run)
    return {
        "rate": settings["learning_rate"],
        "dropout": settings["dropout"],
        # Several trainings of one run read different texts.
        "epochs": math.nan if "part" in config else len(history),
        "parameters": parameters_of(run),
        "nll": min(float(row["val_nll"]) for row in history),
        "penalty": config.get("search", {}).get("length_penalty", 0.6),
        "val": found["val"]["bleu"],
        **found[job["test"]],
    }


def parameters_of(run):
    from kformer import Tokenizer
    from kformer.models import PRESETS

    size = Tokenizer.load(run / "tokenizer").vocabulary_size
    return PRESETS[settings_of(run)["preset"]].parameters_at(size)


def torch_result(options, job, name):
    """The result of a training in a process of its own."""
    result, description = (options.work / f"{name}.{ending}" for ending in ("result", "job"))
    write_json(description, job)
    script = pathlib.Path(__file__).with_name("quality_torch.py")
    environment = {**os.environ, "KERAS_BACKEND": "torch", "OMP_NUM_THREADS": str(job["threads"])}
    subprocess.run([sys.executable, script, description, result], env=environment, check=True)
    return json.loads(result.read_text(encoding="utf-8"))


def joey_result(options, job, name):
    job = {**job, "python": options.joey_python, "folder": str((options.work / name).resolve())}
    pace = options.work / f"joeynmt-{job['sizes']['hidden']}-pace.json"
    job["pace"] = once(pace, lambda: quality_joey.pace_of(job))
    result = quality_joey.train(job)
    if not job["is_trial"]:
        val, texts = (
            quality_joey.translations(job, f"{job['data']}/{part}.{job['source']}")
            for part in ("val", job["test"])
        )
        result |= {"penalty": quality_joey.ALPHA, "val": scores(job, "val", val)["bleu"]}
        result["texts"] = texts
    return result


def finalists(options, system, job, rates):
    """The rate and the dropout of each training at full length; prints a row of each trial."""
    choices = [(rate, dropout) for rate in rates for dropout in options.dropouts]
    if len(choices) == 1:
        return choices
    best = {}
    for rate, dropout in choices:
        trial = {**job, "rate": rate, "dropout": dropout, "is_trial": True}
        trial["seconds"] *= options.trial
        found = result_of(options, system, f"{system}-trial-{rate}-{dropout}", trial)
        best[dropout] = min(best.get(dropout, (math.inf,)), (found["nll"], rate, dropout))
        print_found(f"{system}, trial", {**trial, **found})
    return [choice for _, *choice in sorted(best.values())[: options.finalists]]


def result_of(options, system, name, job):
    path = options.work / f"{name}.json"
    return once(path, lambda: RESULTS[system](options, job, name))


def print_found(system, found):
    """Prints the row of a training, with what is known of it."""
    row = [system, found["seed"], f"{found['rate']:.3g}", found["dropout"]]
    row += [f"{found['parameters']:,}", f"{found['seconds']:,.0f}", f"{found['epochs']:.1f}"]
    row += [f"{found['nll']:.3f}", found.get("penalty", "")]
    measures = [found.get(name) for name in ("val", "bleu", "chrf")]
    print_row(*row, *("" if score is None else f"{score:.2f}" for score in measures))


RESULTS = {"torch": torch_result, "joeynmt": joey_result}


def report(options):
    names = ("keras", options.backend, "torch", "sacrebleu")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    print(f"{cpu_name()}; {versions}\n")
    print_command()
    head = ["system", "seed", "rate", "dropout", "parameters", "training, s", "epochs", "val NLL"]
    print_head([*head, "length penalty", "val BLEU", "test BLEU", "chrF"])
    job = {
        "data": str(prepare(options).resolve()),
        **{name: getattr(options, name) for name in ("source", "target", "test", "tokenize")},
        "threads": options.threads,
        "is_trial": False,
    }
    runs = []
    for seed in options.seeds:
        run, seconds = train_kformer(options, job, seed)
        found = {"seed": seed, "seconds": seconds, **score_kformer(options, job, run)}
        print_found("kformer", found)
        runs.append({"run": str(run.resolve()), "seed": seed, "seconds": seconds})
    for system, rates in (("torch", options.rates), ("joeynmt", options.joey_rates)):
        if system in options.systems:
            train_peer(options, system, job, runs, rates)
    print(f"\nBLEU: {found['bleu_signature']}; chrF: {found['chrf_signature']}")


def train_peer(options, system, job, runs, rates):
    """Tunes a peer on the first seed, and trains it on all."""
    chosen = None
    for run in runs:
        settings = {**job, **run}
        if system == "joeynmt":
            settings["sizes"] = quality_joey.sizes_of(pathlib.Path(run["run"]))
        trained = []
        for rate, dropout in chosen or finalists(options, system, settings, rates):
            full = {**settings, "rate": rate, "dropout": dropout}
            name = f"{system}-{rate}-{dropout}-{run['seed']}"
            trained.append({**full, **result_of(options, system, name, full)})
        *others, best = sorted(trained, key=lambda found: found["val"])
        chosen = [(best["rate"], best["dropout"])]
        for other in others:
            print_found(system, other)
        print_found(system, tested(job, best))
    if options.longer:
        settings = {**best, **runs[0], "seconds": options.longer * runs[0]["seconds"]}
        if system == "joeynmt":
            settings |= quality_joey.PUBLISHED
        found = result_of(options, system, f"{system}-longer", settings)
        print_found(f"{system}, longer", tested(job, {**settings, **found}))


def tested(job, found):
    """A result with the scores of its translations of the test set."""
    return {**found, **scores(job, job["test"], found["texts"])}


def numbers(kind):
    return lambda text: [kind(number) for number in text.split(",")]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument(
        "--work", type=pathlib.Path, required=True, help="folder for runs and results"
    )
    parser.add_argument("--from", dest="source", default="en")
    parser.add_argument("--to", dest="target", default="de")
    parser.add_argument("--pairs", type=int, help="the first pairs of train alone")
    parser.add_argument("--seeds", type=numbers(int), default=[1])
    parser.add_argument("--systems", type=numbers(str), default=["kformer", "torch"])
    parser.add_argument("--joey-python", help="interpreter of Joey NMT's environment")
    parser.add_argument("--rates", type=numbers(float), default=[0.002, 0.005])
    parser.add_argument("--joey-rates", type=numbers(float), default=[0.001, 0.002])
    parser.add_argument("--dropouts", type=numbers(float), default=[0.2, 0.3])
    parser.add_argument("--trial", type=float, default=0.3, help="share of the time")
    parser.add_argument("--finalists", type=int, default=2, help="trainings at full length")
    parser.add_argument("--longer", type=float, help="times the seconds, of one training more")
    parser.add_argument("--tokenize", help="sacreBLEU's tokenizer")
    parser.add_argument("--train-options", default="", help="of `kformer train`, in one string")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--backend", default=os.environ.get("KERAS_BACKEND", "tensorflow"))
    options = parser.parse_args()
    if "joeynmt" in options.systems and not options.joey_python:
        parser.error("joeynmt needs --joey-python, the interpreter of an environment that has it")
    if not options.tokenize:
        usual = {"zh": "zh"}.get(options.target, "13a")
        options.tokenize = "none" if options.data.name == "tok" else usual
    options.test = "test2016" if (options.data / f"test2016.{options.source}").exists() else "test"
    options.work.mkdir(parents=True, exist_ok=True)
    report(options)


if __name__ == "__main__":
    main()
