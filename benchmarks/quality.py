"""Measures the quality of translations: beside peers, after fine-tuning, by search, and of words.

    python benchmarks/quality.py peers DATA --from en --to de --work DIR [--pairs N] [--seeds 1]
        [--systems kformer,torch,joeynmt] [--joey-python FILE] [--threads N] [--backend NAME]
        [--rates 0.002,0.005] [--joey-rates 0.001,0.002] [--dropouts 0.2,0.3] [--trial 0.3]
        [--finalists 2] [--longer 2] [--tokenize NAME] [--train-options "--preset small ..."]
    python benchmarks/quality.py fine-tuning OLD NEW --work DIR [--pairs N] [--seen N] ...
    python benchmarks/quality.py search RUN --source F --reference F [--ways greedy,mbr-64,terms]
    python benchmarks/quality.py confidence RUN --valid-source F --valid-target F --source F
        --reference F
    python benchmarks/quality.py alignment [--pairs 4000] [--epochs 12]

peers. kformer beside fair peers, trained on the same files. DATA is a folder with `train`, `val`
and `test` (or `test2016`) in both languages (`train.en`, ...); `--pairs` takes the first pairs of
`train` alone. kformer is `kformer train` with the four files, a seed and nothing else, and its
translations are those of the search that it chose. The peers have kformer's tokenizer, its tokens
per batch, about its number of parameters, and as many seconds for their steps as `kformer train`
took from start to end. Seconds are of CPU time, so that other work on the machine counts for none.
torch is a pre-norm `torch.nn.Transformer` in a plain loop; joeynmt is Joey NMT, of which
`--joey-python` names the interpreter (`peers.py` has both). With `--longer` each is also trained
for so many times the seconds, Joey NMT in the sizes of its published configuration.

Each peer is tried with each of its rates and each of `--dropouts`, if these are several, for a
share `--trial` of the time. The negative log-likelihood of the validation set chooses a rate for
each dropout. The `--finalists` best of these are trained for the whole time, since a dropout shows
its worth in the end, and the validation set's BLEU chooses. It chooses torch's length penalty, too,
while Joey NMT keeps its published one. What it chose alone is scored on the test set. BLEU is
sacreBLEU's (`--tokenize`, by default `none` if a folder's name is `tok`, `zh` for Chinese, else
`13a`). Joey NMT's likelihood is that of smoothed labels.

fine-tuning. What fine-tuning gains on a new text, what it forgets of the old one, and what it
costs. OLD and NEW are folders with `train`, `val` and a test set in a source language of their own
and in one target language. A first model is trained on the old text and on the last `--seen` pairs
of the new one, so that it has met the new language, with a tokenizer for each side that was trained
on both texts. Each method then trains it on the first `--pairs` pairs of the new text, and from
there back on the old text: `full` trains all weights, `lora-R` adapters of rank R, `mixed` and
`mixed-lora-R` the same with as many old pairs in each epoch. All else is what `kformer train
--start-from` chooses by itself. The table has the share of the parameters that train, the peak
memory of the training's process and its seconds, and sacreBLEU (`13a`) on both test sets.

search. BLEU, chrF and seconds of ways to search, each of the same sentences: `greedy`, `beam` (the
run's own search), `mbr-N` (minimum Bayes risk over N samples, of each of `--temperatures`), and
`terms` (one to three words of each reference are forced, which are sampled with a seed). "terms, %"
is how many of these words occur.

confidence. Fits the temperature on the validation set. Prints the expected calibration error of the
tokens of both sets without it and with it, and what the confidence in the run's own translations of
the test set is worth: scores of the most and of the least confident half, beside halves by length.

alignment. The alignment error rate on text whose alignment is known. Generates sentences of 500
words, which are as frequent as in real text (Zipf's law), and their translations: each word has one
translation, or two that follow each other, or none; neighbours change places. Trains a small model
and prints the error rate (0 for the same pairs of words, 1 for no common one) on 500 further pairs:
of the diagonal, of the statistical aligner on those pairs alone and on all of the text, of the
model's attention, before and after `calibrate`, and of models that guided alignment trained. In a
second corpus each word has one translation, and the order is reversed.

Finished parts in DIR are used again, so it belongs to one set of options; an interrupted training
of `peers` starts again, since its time counts. KERAS_BACKEND selects the backend of the last three.
"""

import argparse
import csv
import json
import math
import os
import pathlib
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks import peers  # noqa: E402
from benchmarks.common import (  # noqa: E402
    cpu_name,
    environment,
    integers,
    kformer,
    measured,
    names,
    numbers,
    once,
    print_command,
    print_head,
    print_row,
    read,
    versions,
    write,
)

# Beside peers.


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
        begin, words = peers.cpu_seconds(), shlex.split(options.train_options)
        kformer(options, "train", "--output", run, *arguments, "--seed", seed, *words)
        return peers.cpu_seconds() - begin

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
    settings = peers.settings_of(run)
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
    return PRESETS[peers.settings_of(run)["preset"]].parameters_at(size)


def torch_result(options, job, name):
    """The result of a training in a process of its own."""
    result, description = (options.work / f"{name}.{ending}" for ending in ("result", "job"))
    write(description, [json.dumps(job)])
    script = pathlib.Path(__file__).with_name("peers.py")
    variables = environment("torch", OMP_NUM_THREADS=str(job["threads"]))
    subprocess.run([sys.executable, script, description, result], env=variables, check=True)
    return json.loads(result.read_text(encoding="utf-8"))


def joey_result(options, job, name):
    job = {**job, "python": options.joey_python, "folder": str((options.work / name).resolve())}
    pace = options.work / f"joeynmt-{job['sizes']['hidden']}-pace.json"
    job["pace"] = once(pace, lambda: peers.joey_pace(job))
    result = peers.train_joey(job)
    if not job["is_trial"]:
        val, texts = (
            peers.joey_translations(job, f"{job['data']}/{part}.{job['source']}")
            for part in ("val", job["test"])
        )
        result |= {"penalty": peers.JOEY_ALPHA, "val": peers.scores(job, "val", val)["bleu"]}
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


def report_peers(options):
    if not options.tokenize:
        usual = {"zh": "zh"}.get(options.target, "13a")
        options.tokenize = "none" if options.data.name == "tok" else usual
    options.test = "test2016" if (options.data / f"test2016.{options.source}").exists() else "test"
    options.work.mkdir(parents=True, exist_ok=True)
    print(f"{cpu_name()}; {versions('keras', options.backend, 'torch', 'sacrebleu')}\n")
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
            settings["sizes"] = peers.joey_sizes(pathlib.Path(run["run"]))
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
            settings |= peers.JOEY_PUBLISHED
        found = result_of(options, system, f"{system}-longer", settings)
        print_found(f"{system}, longer", tested(job, {**settings, **found}))


def tested(job, found):
    """A result with the scores of its translations of the test set."""
    return {**found, **peers.scores(job, job["test"], found["texts"])}


# Fine-tuning.

COLUMNS = ("training", "trained", "MiB", "seconds", "old BLEU, chrF", "new BLEU, chrF")


def write_texts(options):
    """Writes the texts as `NAME.source` and `NAME.target`; returns the path of a name's side."""
    folder = options.work / "text"
    folder.mkdir(parents=True, exist_ok=True)
    for side in ("source", "target"):
        texts = {}
        for name in ("old", "new"):
            data = getattr(options, name)
            language = options.target if side == "target" else getattr(options, f"{name}_source")
            texts[f"{name}-train"] = read(data / f"train.{language}")
            texts[f"{name}-valid"] = read(data / f"val.{language}")
            test = options.old_test if name == "old" else options.new_test
            texts[f"{name}-test"] = read(data / f"{test}.{language}")
        texts["both"] = texts["old-train"] + texts["new-train"]
        seen = texts["new-train"][-options.seen :] if options.seen else []
        texts["new-train"] = texts["new-train"][: len(texts["new-train"]) - len(seen)]
        for name in ("old-train", "new-train"):
            texts[name] = texts[name][: options.pairs]
        texts["first"] = texts["old-train"] + seen
        for name, lines in texts.items():
            write(folder / f"{name}.{side}", lines)
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


def report_fine_tuning(options):
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
            epochs = options.epochs if name == "there" else options.back_epochs or options.epochs
            course = ("--start-from", start, "--epochs", epochs)
            measure(options, text, run, *texts, *method_arguments(method, text, old), *course)
            start = run
    print(f"\nBLEU: {options.signature}")


# By search.


def sample_terms(references, seed):
    """One to three different words of each reference, in any order."""
    rng = random.Random(seed)
    terms = []
    for reference in references:
        words = sorted({word for word in reference.split() if word.isalpha()})
        terms.append(rng.sample(words, min(rng.randint(1, 3), len(words))))
    return terms


def ways_of(options, terms):
    """The options of each way to search, by name."""
    ways = {}
    for name in options.ways:
        if name.startswith("mbr-"):
            for temperature in options.temperatures:
                way = {"mbr": int(name.removeprefix("mbr-")), "temperature": temperature}
                ways[f"{name}, temperature {temperature:g}"] = way
        else:
            ways[name] = {"greedy": {"beam_size": 1}, "beam": {}, "terms": {"terms": terms}}[name]
    return ways


def report_search(options):
    import kformer

    sources, references = (
        read(path)[: options.sentences] for path in (options.source, options.reference)
    )
    terms = sample_terms(references, seed=0)
    translator = kformer.Translator.load(options.run)
    translator(sources[:8])  # compiled
    print(f"{cpu_name()}\n")
    print_command()
    print_head(["", "BLEU", "chrF", "terms, %", "s"])
    for name, way in ways_of(options, terms).items():
        start = time.perf_counter()
        texts = translator(sources, **way)
        seconds = time.perf_counter() - start
        occurs = [
            word in text.split() for words, text in zip(terms, texts, strict=True) for word in words
        ]
        share = f"{100 * sum(occurs) / max(1, len(occurs)):.1f}"
        print_row(name, *scores_of(texts, references, options.tokenize), share, f"{seconds:.1f}")


def scores_of(texts, references, tokenize):
    """BLEU and chrF as text."""
    import sacrebleu

    bleu = sacrebleu.corpus_bleu(texts, [references], tokenize=tokenize, force=True)
    return [f"{metric.score:.2f}" for metric in (bleu, sacrebleu.corpus_chrf(texts, [references]))]


# Confidence.


def report_confidence(options):
    import numpy as np

    import kformer
    from kformer.translating.confidence import calibration_error, token_statistics
    from kformer.translating.pairs import PairReader

    valid = read(options.valid_source), read(options.valid_target)
    test = read(options.source), read(options.reference)
    translator = kformer.Translator.load(options.run)
    temperature = translator.calibrate(*valid)["confidence"]["temperature"]
    print_command()
    print_head(["tokens of", "number", "error, temperature 1", f"error, temperature {temperature}"])
    for name, sides in (("the validation set", valid), ("the test set", test)):
        reader = PairReader(translator.model, translator.tokenizer)
        pairs = reader.tokenize(*sides, translator.options)
        errors = []
        for beta in (1.0, 1 / temperature):
            tokens = token_statistics(reader, pairs, beta)
            errors.append(f"{calibration_error(tokens['top'], tokens['hit']):.4f}")
        print_row(name, f"{len(tokens['hit']):,}", *errors)
    print()
    print_head(["sentences", "BLEU", "chrF"])
    sources, references = test
    texts = translator(sources)
    confidence = [each.mean for each in translator.confidence(sources, texts)]
    orders = {
        ("more confident", "less confident"): np.argsort(-np.array(confidence)),
        ("shorter", "longer"): np.argsort([len(source) for source in sources]),
    }
    print_row("all", *scores_of(texts, references, options.tokenize))
    for labels, order in orders.items():
        for label, half in zip(labels, np.array_split(order, 2), strict=True):
            chosen = [texts[i] for i in half], [references[i] for i in half]
            print_row(f"the {label} half", *scores_of(*chosen, options.tokenize))


# Alignment.

WORDS, HELD_OUT = 500, 500  # words of a language; pairs that are not trained on


class Language:
    """Makes sentences, their translations and the alignments.

    Args:
        seed: int.
        reversed_order: bool. Whether each word has one translation, from the last to the first.
    """

    def __init__(self, seed, reversed_order):
        self._rng, self._reversed = random.Random(seed), reversed_order
        self._weights = [1 / (rank + 1) for rank in range(WORDS)]
        kinds = [1] if reversed_order else [0, 1, 1, 1, 1, 1, 1, 1, 2]
        self._kinds = [self._rng.choice(kinds) for _ in range(WORDS)]
        self._kinds[0] = 1

    def pair(self):
        """Returns a source text, a target text, and the pairs of their words' indices."""
        length = self._rng.randint(4, 16)
        words = self._rng.choices(range(WORDS), self._weights, k=length - 1) + [0]
        order = list(range(length))
        if self._reversed:
            order.reverse()
        else:
            for i in range(length - 1):
                if self._rng.random() < 0.3:
                    order[i], order[i + 1] = order[i + 1], order[i]
        target, pairs = [], []
        for i in order:
            for part in range(self._kinds[words[i]]):
                pairs.append((i, len(target)))
                target.append(f"{spelled(words[i], 'aeiou')}{part or ''}")
        source = [spelled(word, "xyz") for word in words]
        return " ".join(source), " ".join(target), sorted(pairs)


def spelled(number, vowels):
    consonants, text = "bdfgklmnprst", ""
    for _ in range(3):
        number, low = divmod(number, len(consonants))
        text += consonants[low] + vowels[low % len(vowels)]
    return text


def report_alignment(options):
    print_command()
    for name, is_reversed in (("neighbours change places", False), ("reversed", True)):
        language = Language(options.seed, is_reversed)
        pairs = [language.pair() for _ in range(options.pairs + 2 * HELD_OUT)]
        print()
        print_head([name, "error rate", "s"])
        for label, error, seconds in alignment_rows(pairs, options.epochs):
            print_row(label, f"{error:.4f}", f"{seconds:.1f}")


def alignment_rows(pairs, epochs):
    from kformer.data import align_words, alignment_error_rate

    sources, targets, expected = zip(*pairs, strict=True)
    count = len(pairs) - 2 * HELD_OUT
    gold = expected[-HELD_OUT:]
    test = sources[-HELD_OUT:], targets[-HELD_OUT:]
    valid = sources[count:-HELD_OUT], targets[count:-HELD_OUT]

    def timed(label, function, *arguments):
        start = time.perf_counter()
        found = function(*arguments)[-HELD_OUT:]
        return label, alignment_error_rate(found, gold), time.perf_counter() - start

    yield timed("the diagonal", diagonal, *test)
    yield timed(f"statistical, {HELD_OUT:,} pairs", align_words, *test)
    yield timed(f"statistical, {len(pairs):,} pairs", align_words, sources, targets)
    translator, seconds = aligner_of((sources[:count], targets[:count]), valid, epochs)
    label, error, _ = timed("attention", translator.align, *test)
    yield f"{label} (training: {seconds:.0f} s)", error, seconds
    chosen = translator.calibrate(*valid)["alignment"]
    yield timed(f"attention, calibrated ({head_name(chosen)})", translator.align, *test)
    known = [list(each) for each in expected[count:-HELD_OUT]]
    chosen = translator.calibrate(*valid, alignments=known)["alignment"]
    label = f"attention, calibrated with known alignments ({head_name(chosen)})"
    yield timed(label, translator.align, *test)
    train = sources[:count], targets[:count]
    for name, words in (
        ("the statistical aligner's words", align_words(*train)),
        ("known words", [list(each) for each in expected[:count]]),
    ):
        translator, seconds = aligner_of(train, valid, epochs, words)
        label, error, _ = timed(f"guided by {name}", translator.align, *test)
        yield f"{label} (training: {seconds:.0f} s)", error, seconds


def diagonal(sources, targets):
    found = []
    for source, target in zip(sources, targets, strict=True):
        here, there = len(source.split()), len(target.split())
        found.append([(min(j * here // max(there, 1), here - 1), j) for j in range(there)])
    return found


def aligner_of(train, valid, epochs, words=None):
    """A translator, guided by aligned words if there are any, and the seconds of its training."""
    import kformer
    from kformer.translating.word_alignment import ALIGNMENT, guided_source

    start = time.perf_counter()
    train = [list(side) for side in train]
    tokenizer = kformer.Tokenizer.train(texts=[*train[0], *train[1]], vocabulary_size=2000)
    with tempfile.TemporaryDirectory() as folder:
        corpus = kformer.data.prepare(*train, tokenizer, f"{folder}/pairs")
        guided = {}
        if words is not None:
            guided["alignments"] = kformer.data.TokenAlignments(corpus, tokenizer, *train, words)
        data = kformer.data.ParallelDataset.from_prepared(corpus, **guided)
        check = kformer.data.ParallelDataset(*map(list, valid), tokenizer, shuffle=False)
        recipe = kformer.training.recommend(data, check, epochs=epochs)
        model = kformer.Transformer.from_preset(**recipe.model)
        recipe.compile(model)
        model.fit(data, **recipe.fit, verbose=0)
    config = {} if words is None else {ALIGNMENT: guided_source(model)}
    translator = kformer.Translator(model, tokenizer, config=config)
    return translator, time.perf_counter() - start


def head_name(chosen):
    head = "mean" if chosen["head"] is None else f"head {chosen['head']}"
    return f"layer {chosen['layer']}, {head}"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    part = parts.add_parser("peers", help="beside torch.nn.Transformer and Joey NMT")
    part.add_argument("data", type=pathlib.Path)
    part.add_argument("--work", type=pathlib.Path, required=True, help="folder for runs")
    part.add_argument("--from", dest="source", default="en")
    part.add_argument("--to", dest="target", default="de")
    part.add_argument("--pairs", type=int, help="the first pairs of train alone")
    part.add_argument("--seeds", type=integers, default=[1])
    part.add_argument("--systems", type=names, default=["kformer", "torch"])
    part.add_argument("--joey-python", help="interpreter of Joey NMT's environment")
    part.add_argument("--rates", type=numbers, default=[0.002, 0.005])
    part.add_argument("--joey-rates", type=numbers, default=[0.001, 0.002])
    part.add_argument("--dropouts", type=numbers, default=[0.2, 0.3])
    part.add_argument("--trial", type=float, default=0.3, help="share of the time")
    part.add_argument("--finalists", type=int, default=2, help="trainings at full length")
    part.add_argument("--longer", type=float, help="times the seconds, of one training more")
    part.add_argument("--tokenize", help="sacreBLEU's tokenizer")
    part.add_argument("--train-options", default="", help="of `kformer train`, in one string")
    part.add_argument("--threads", type=int, default=1)
    part.add_argument("--backend", default=os.environ.get("KERAS_BACKEND", "tensorflow"))

    part = parts.add_parser("fine-tuning", help="what fine-tuning gains and forgets")
    part.add_argument("old", type=pathlib.Path)
    part.add_argument("new", type=pathlib.Path)
    part.add_argument("--work", type=pathlib.Path, required=True, help="folder for runs")
    part.add_argument("--old-source", default="de")
    part.add_argument("--new-source", default="zh")
    part.add_argument("--target", default="en")
    part.add_argument("--old-test", default="test2016")
    part.add_argument("--new-test", default="test")
    part.add_argument("--pairs", type=int, help="of each text; all by default")
    part.add_argument("--seen", type=int, default=4000)
    part.add_argument("--vocabulary", type=int, default=6000, help="pieces of each side")
    part.add_argument("--first-epochs", type=int, default=20)
    part.add_argument("--epochs", type=int, default=8, help="of each fine-tuning")
    part.add_argument("--back-epochs", type=int, help="back to the old text; --epochs by default")
    methods = ["full", "lora-8", "lora-32", "mixed", "mixed-lora-32"]
    part.add_argument("--methods", type=names, default=methods)
    part.add_argument("--beam", type=int, default=4)
    part.add_argument("--seed", type=int, default=1)
    part.add_argument("--threads", type=int)
    part.add_argument("--backend", default="torch")

    part = parts.add_parser("search", help="ways to search, side by side")
    part.add_argument("run")
    part.add_argument("--source", type=pathlib.Path, required=True)
    part.add_argument("--reference", type=pathlib.Path, required=True)
    ways = ["greedy", "beam", "mbr-16", "mbr-64", "terms"]
    part.add_argument("--ways", type=names, default=ways, help="default: " + ",".join(ways))
    part.add_argument("--temperatures", type=numbers, default=[1.0, 0.5], help="of mbr-N")
    part.add_argument("--sentences", type=int, help="the first N alone")
    part.add_argument("--tokenize", default="none", help="sacreBLEU's tokenizer")

    part = parts.add_parser("confidence", help="how far confidence can be trusted")
    part.add_argument("run")
    for name in ("--valid-source", "--valid-target", "--source", "--reference"):
        part.add_argument(name, type=pathlib.Path, required=True)
    part.add_argument("--tokenize", default="none", help="sacreBLEU's tokenizer")

    part = parts.add_parser("alignment", help="the alignment error rate on generated text")
    part.add_argument("--pairs", type=int, default=4000)
    part.add_argument("--epochs", type=int, default=12)
    part.add_argument("--seed", type=int, default=0)

    options = parser.parse_args()
    if options.part == "peers" and "joeynmt" in options.systems and not options.joey_python:
        parser.error("joeynmt needs --joey-python, the interpreter of an environment that has it")
    reports = {"peers": report_peers, "fine-tuning": report_fine_tuning, "search": report_search}
    reports |= {"confidence": report_confidence, "alignment": report_alignment}
    reports[options.part](options)


if __name__ == "__main__":
    main()
