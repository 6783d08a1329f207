"""How good are translations of Multi30k by a small model? Subwords, training, distillation and
scores by one command.

    python benchmarks/multi30k.py DATA --work DIR [--recipe plain] [--seeds 1,2,3]
        [--from en] [--to de] [--protocol tok] [--test]
        [--teachers 3] [--backward-teachers 2] [--threads N] [--jobs N] [--epochs N]
        [--vocabulary N] [--backend NAME] [--matmul-precision NAME] [--length-penalties 1.0]

DATA is a folder with `train`, `val` and `test2016` in both languages (`train.en`, ...), tokenised
and lowercased for the protocol `tok` (BLEU with `tokenize=none`, comparable with published tables)
or as written for `raw` (sacreBLEU's own tokenisation, cased).

Recipes:
- default: `kformer train` with the four files and nothing else.
- plain: the paper's positions, dropout 0.3, label smoothing 0.1, an average of the weights, a
  cooldown.
- rope: plain with rotary positions, which are `kformer train`'s default.
- words: plain with a tenth of the tokens hidden from the model that reads them.
- unsmoothed: plain without label smoothing.
- subwords: plain with a segmentation that is resampled in every epoch (BPE-dropout).
- consistency: plain with every batch twice and a loss for the difference of both predictions
  (R-Drop).
- student: plain, on the translations of the runs of plain with the first `--teachers` seeds
  together, and on the given pairs.
- taught: plain of its seed, trained further on the given pairs and each teacher's translations,
  with the teachers' distribution at each token.
- diversified: plain with a dropout of 0.2, on the given pairs, on the translation of their source
  by each of these runs, and on the translation of their target by `--backward-teachers` runs of
  plain of the other direction.
- roundtrip: on diversified's pairs and on the translation by one of these runs of each source that
  the other direction made; with rotary positions and a dropout of 0.1; in the end on the given
  pairs alone.

The epochs of a recipe are as many as make about the time of plain's (a third more for diversified,
half as much more for roundtrip), or with `--epochs` those given. The students of one command share
their teachers and their text. Every run is that of the preset `tiny`, in a folder of its own under
DIR. What is there already is used again, and a training that was interrupted goes on, so that the
command can be given again after any interruption; a run that was begun with other options is an
error, but after a change of this file DIR must be a new one. With `--jobs 2` two trainings run at a
time, best with `--threads 1`: small models gain little by a second thread; the seconds are those of
trainings side by side. Scores are those of a beam of 5, translations at most 1.2 times as long as
the source and four tokens, with the length penalty of 1.0; of several that are given the best on
the validation text is taken, which is longer for its source than the test set is, so that it asks
for too high a penalty. For a student the scores of its teachers together come first. The test set
is looked at only with `--test`, with the bootstrap's 95 % interval of BLEU."""

import argparse
import concurrent.futures
import csv
import importlib.metadata
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.inference import processor  # noqa: E402

EVERY = ["--batch-tokens", "2048", "--ema", "0.999", "--select", "bleu"]
COMMON = [*EVERY, "--learning-rate", "0.005", "--warmup-steps", "1000", "--cooldown", "0.3"]
SINUSOIDAL = ["--model-option", "position_encoding=sinusoidal"]
PLAIN = [*COMMON, *SINUSOIDAL, "--dropout", "0.3"]
# From the weights of a trained run, whose dropout stays.
FURTHER = [*EVERY, "--learning-rate", "0.004", "--warmup-steps", "1000", "--cooldown", "0.4"]
# Options of `kformer train`, and epochs: `None` leaves them to it, or to `PAIRS`.
RECIPES = {
    "default": ([], None),
    "plain": (PLAIN, 28),
    "rope": ([*COMMON, "--dropout", "0.3"], 28),
    "words": ([*PLAIN, "--word-dropout", "0.1"], 28),
    "unsmoothed": ([*PLAIN, "--label-smoothing", "0"], 28),
    "subwords": ([*PLAIN, "--subword-sampling", "0.1", "--packed"], 22),
    "consistency": ([*PLAIN, "--consistency", "5"], 13),
    "student": (PLAIN, 14),
    "taught": (FURTHER, 9),
    "diversified": ([*COMMON, *SINUSOIDAL, "--dropout", "0.2"], None),
    "roundtrip": ([*COMMON, "--dropout", "0.1"], None),
}
# What follows, from the weights of a recipe's run, on the given pairs alone: of most others one
# side is what a model wrote.
LAST = {
    "roundtrip": (
        [*EVERY, "--learning-rate", "0.003", "--warmup-steps", "200", "--cooldown", "0.5"],
        8,
    )
}
BOTH_WAYS = ("diversified", "roundtrip")
# Pairs that these see, whatever the text that their teachers made: 8 epochs of diversified, 6 of
# roundtrip.
PAIRS = 1_050_000
LEARN_FROM_TEACHERS = ("student", "taught", *BOTH_WAYS)
VOCABULARY = 10_000
# Without the limits below, the best of two of three runs of plain on the validation text; 4 % too
# short on the training text, with 0.6 5 %.
TEACHERS_PENALTY = 1.4

# Most tokens of a translation. Without them a high length penalty favours, once in a hundred
# sentences, one that repeats itself.
LIMITS = ("--length-ratio", 1.2, "--length-offset", 4)


def kformer(options, *arguments, capture=False):
    """Runs the command; returns what it printed where that is wanted."""
    environment = {**os.environ, "KERAS_BACKEND": options.backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    root = str(pathlib.Path(__file__).resolve().parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(
        [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    threads = ["--threads", str(options.threads)] if options.threads else []
    command = [
        sys.executable,
        "-c",
        "import sys; from kformer_cli.main import main; sys.exit(main())",
        *map(str, arguments),
        *threads,
    ]
    process = subprocess.run(
        command, env=environment, text=True, stdout=subprocess.PIPE if capture else sys.stderr
    )
    if process.returncode:
        raise SystemExit(f"kformer {arguments[0]} failed with exit code {process.returncode}.")
    return process.stdout


def tokenizer_of(options):
    """The folder of the tokenizer that all runs of two languages but the default's share."""
    languages = sorted((options.source, options.target))
    folder = (
        options.work / f"tokenizer-{options.protocol}-{'-'.join(languages)}-{options.vocabulary}"
    )
    if not (folder / "tokenizer.json").exists():
        from kformer import Tokenizer

        files = [str(options.data / f"train.{language}") for language in languages]
        Tokenizer.train(files, vocabulary_size=options.vocabulary, model_type="bpe").save(folder)
    return folder


def run_of(options, recipe, seed):
    """The folder of a run."""
    return options.work / f"{options.protocol}-{options.source}-{options.target}-{recipe}-{seed}"


def train(options, recipe, seed, texts=None):
    """A run's directory, trained to its end; the seconds that its steps took, and the target tokens
    that it saw.
    """
    run = run_of(options, recipe, seed)
    settings, epochs = RECIPES[recipe]
    if recipe == "taught":
        teachers = [run_of(options, "plain", 1 + number) for number in range(options.teachers)]
        settings = [
            *settings,
            *(argument for teacher in teachers for argument in ("--teacher", teacher)),
        ]
        settings += ["--start-from", teachers[(seed - 1) % len(teachers)]]
    elif recipe != "default":
        settings = [*settings, "--tokenizer", tokenizer_of(options)]
    if recipe in BOTH_WAYS:
        epochs = max(1, round(PAIRS / len(read(texts["source"]))))
    train_run(options, run, settings, epochs, seed, texts or {})
    seconds, tokens = spent_on(run)
    if recipe in LAST:
        settings, epochs = LAST[recipe]
        last = run.with_name(f"{run.name}-last")
        train_run(options, last, [*settings, "--start-from", run], epochs, seed, {})
        run, (more_seconds, more_tokens) = last, spent_on(last)
        seconds, tokens = seconds + more_seconds, tokens + more_tokens
    return run, seconds, tokens


def train_run(options, run, settings, epochs, seed, texts):
    """One training, or the rest of it, which refuses other options than it began with: on `texts`,
    or on the given pairs.
    """
    epochs = options.epochs or epochs
    arguments = ["--resume", *settings, "--seed", seed, *(["--epochs", epochs] if epochs else [])]
    for side, language in (("source", options.source), ("target", options.target)):
        arguments += [f"--train-{side}", texts.get(side, options.data / f"train.{language}")]
        arguments += [f"--valid-{side}", options.data / f"val.{language}"]
    if options.matmul_precision:
        arguments += ["--matmul-precision", options.matmul_precision]
    kformer(options, "train", "--output", run, *arguments)


def spent_on(run):
    """The seconds of a run's steps, and the target tokens that they saw."""
    with open(run / "history.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return sum(float(row["seconds"]) for row in rows), sum(
        int(row["target_tokens"]) for row in rows
    )


def in_turn(options, function, arguments):
    """`function(*argument)` for each, in this order, `--jobs` at a time; each spends its time in a
    process of its own.
    """
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        return list(pool.map(lambda argument: function(*argument), arguments))


def texts_of(options):
    """The files of what a student learns from."""
    teachers = (
        f"{options.teachers}-{options.backward_teachers}"
        if options.recipe in BOTH_WAYS
        else options.teachers
    )
    name = f"{options.recipe}-{options.protocol}-{options.source}-{options.target}-{teachers}"
    return {side: options.work / f"{name}.{side}" for side in ("source", "target")}


def teachers_of(options):
    """Runs of teachers, and of those of the other direction where the recipe needs them; seconds
    and target tokens of the former.
    """
    other = argparse.Namespace(
        **{**vars(options), "source": options.target, "target": options.source}
    )
    is_taught = all(path.exists() for path in texts_of(options).values())
    backward_teachers = (
        options.backward_teachers if options.recipe in BOTH_WAYS and not is_taught else 0
    )
    tokenizer_of(options)  # Once, before several ask for it.
    counts = ((options, options.teachers), (other, backward_teachers))
    arguments = [(side, "plain", 1 + number) for side, count in counts for number in range(count)]
    found = in_turn(options, train, arguments)
    forward = [
        result for result, (side, *_) in zip(found, arguments, strict=True) if side is options
    ]
    backward = [
        result[0] for result, (side, *_) in zip(found, arguments, strict=True) if side is other
    ]
    seconds, tokens = (sum(result[index] for result in forward) for index in (1, 2))
    return [result[0] for result in forward], backward, seconds, tokens


def teach(options, runs, backward):
    """The training text of a student: what the teachers' runs translate, and the given pairs."""
    texts = texts_of(options)
    if all(path.exists() for path in texts.values()):
        return texts
    given = {
        side: options.data / f"train.{language}"
        for side, language in (("source", options.source), ("target", options.target))
    }
    if options.recipe == "student":
        arguments = [
            "--source",
            given["source"],
            "--reference",
            given["target"],
            "--closest",
            "--keep-original",
        ]
        arguments += ["--output-source", texts["source"], "--output-target", texts["target"]]
        kformer(options, "distill", *runs, *arguments, "--beam-size", 5)
        return texts
    # `kformer distill --separately --backward RUN --round-trips --keep-original`, with the penalty
    # and limits of `translations`, does this at once; run by run it can be interrupted.
    arguments = [(options, run, given["source"]) for run in runs] + [
        (options, run, given["target"]) for run in backward
    ]
    said = in_turn(options, translations, arguments)
    given = [read(given[side]) for side in ("source", "target")]
    pairs = dict.fromkeys(zip(*given, strict=True))
    for lines in said[: len(runs)]:
        pairs |= dict.fromkeys(zip(given[0], lines, strict=True))
    for lines in said[len(runs) :]:
        pairs |= dict.fromkeys(zip(lines, given[1], strict=True))
    if options.recipe == "roundtrip":
        pairs |= dict.fromkeys(round_trips(options, runs, given[0], said[len(runs) :]))
    sources, targets = zip(*(pair for pair in pairs if all(pair)), strict=True)
    write(texts["source"], sources)
    write(texts["target"], targets)
    return texts


def round_trips(options, runs, given, texts):
    """Pairs of each new sentence of `texts`, one text of each backward run, and what one of the
    teachers' runs says to it.
    """
    known, arguments = {*given, ""}, []
    for number, lines in enumerate(texts):
        path = (
            options.work / f"{options.protocol}-{options.source}-{options.target}"
            f".back-{1 + number}-of-{len(texts)}"
        )
        write(path, [line for line in dict.fromkeys(lines) if line not in known])
        known.update(lines)
        # In the reverse order: a run and that of its seed in the other direction began alike.
        arguments.append((options, runs[(len(texts) - 1 - number) % len(runs)], path))
    said = in_turn(options, translations, arguments)
    return [
        pair
        for (*_, path), lines in zip(arguments, said, strict=True)
        for pair in zip(read(path), lines, strict=True)
    ]


def translations(options, run, source):
    """A run's translations of a text, by a SavedModel, which needs less time for the same."""
    path = run / f"{source.name}.translated"
    if not path.exists():
        saved = run / "saved_model"
        if not saved.exists():
            kformer(
                options,
                "export",
                run,
                "--output",
                saved,
                "--beam-size",
                5,
                "--length-penalty",
                TEACHERS_PENALTY,
                *LIMITS,
            )
        kformer(
            options,
            "translate",
            saved,
            "--input",
            source,
            "--output",
            path,
            "--beam-size",
            5,
            "--batch-size",
            256,
        )
    return read(path)


def read(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def write(path, lines):
    aside = path.with_name(path.name + ".partial")
    aside.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    aside.rename(path)


def score(options, runs, part, penalty, limits=LIMITS):
    """BLEU and chrF of a run, or of several together, on a part of the data; and what was said."""
    run, *others = runs
    output = run / f"{part}-{penalty}{f'-of-{len(runs)}' if others else ''}.out"
    arguments = [
        "--source",
        options.data / f"{part}.{options.source}",
        "--reference",
        options.data / f"{part}.{options.target}",
    ]
    arguments += [
        "--beam-size",
        5,
        "--length-penalty",
        penalty,
        *limits,
        "--json",
        "--output",
        output,
    ]
    arguments += [argument for other in others for argument in ("--ensemble", other)]
    if options.tokenize:
        arguments += ["--tokenize", options.tokenize]
    return json.loads(kformer(options, "evaluate", run, *arguments, capture=True)), output


def interval(options, output, part):
    """Half of the width of the bootstrap's 95 % interval of BLEU."""
    from sacrebleu.metrics import BLEU

    lines = [read(path) for path in (output, options.data / f"{part}.{options.target}")]
    metric = BLEU(tokenize=options.tokenize or "13a", force=True)
    found = metric.corpus_score(lines[0], [lines[1]], n_bootstrap=1000)
    return found._ci


def report(options):
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}"
        for name in ("keras", options.backend, "sacrebleu")
    )
    print(
        f"{processor()}; {versions}\n\ncommand: python "
        f"benchmarks/{' '.join([pathlib.Path(__file__).name, *sys.argv[1:]])}\n"
    )
    head = ["recipe", "seed", "length penalty", "val BLEU", "chrF"] + [
        "test2016 BLEU",
        "±",
        "chrF",
    ] * options.test
    head += ["target tokens seen", "training, s"]
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|", flush=True)
    tests, signatures = [], {}

    def row(name, seed, runs, seconds, tokens):
        """Prints a row; returns the scores on the test set, or `None`."""
        found = in_turn(
            options,
            score,
            [(options, runs, "val", penalty) for penalty in options.length_penalties],
        )
        found = {
            penalty: scores
            for penalty, (scores, _) in zip(options.length_penalties, found, strict=True)
        }
        penalty = max(found, key=lambda penalty: found[penalty]["bleu"])
        signatures.update({name: found[penalty][f"{name}_signature"] for name in ("bleu", "chrf")})
        row, result = (
            [name, seed, penalty, f"{found[penalty]['bleu']:.2f}", f"{found[penalty]['chrf']:.2f}"],
            None,
        )
        if options.test:
            result, output = score(options, runs, "test2016", penalty)
            row += [
                f"{result['bleu']:.2f}",
                f"{interval(options, output, 'test2016'):.2f}",
                f"{result['chrf']:.2f}",
            ]
        print(f"| {' | '.join(map(str, [*row, f'{tokens:,}', f'{seconds:,.0f}']))} |", flush=True)
        return result

    texts = None
    if options.recipe in LEARN_FROM_TEACHERS:
        runs, backward, seconds, tokens = teachers_of(options)
        texts = teach(options, runs, backward)
    elif options.recipe != "default":
        tokenizer_of(options)
    found = in_turn(
        options, train, [(options, options.recipe, seed, texts) for seed in options.seeds]
    )
    if texts:
        together = "teachers together" if len(runs) > 1 else "teacher"
        row(f"{len(runs)} {together}", f"1 to {len(runs)}", runs, seconds, tokens)
    for seed, (run, seconds, tokens) in zip(options.seeds, found, strict=True):
        result = row(options.recipe, seed, [run], seconds, tokens)
        if result:
            tests.append(result["bleu"])
    if texts and options.recipe in BOTH_WAYS:
        other = argparse.Namespace(
            **{**vars(options), "source": options.target, "target": options.source}
        )
        spent = [
            spent_on(run_of(other, "plain", 1 + number))
            for number in range(options.backward_teachers)
        ]
        seconds, tokens = (sum(part) for part in zip(*spent, strict=True))
        print(
            f"\n{len(spent)} of the other direction: {tokens:,} target tokens in {seconds:,.0f} s; "
            "the text has "
            f"{len(read(texts['source'])):,} pairs"
        )
    if tests:
        print(f"\nmean of {len(tests)} seeds on test2016: {statistics.mean(tests):.2f} BLEU")
    print(f"\nBLEU: {signatures['bleu']}; chrF: {signatures['chrf']}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument(
        "--work", type=pathlib.Path, required=True, help="folder for tokenizer, runs and texts"
    )
    parser.add_argument("--recipe", choices=RECIPES, default="plain")
    parser.add_argument(
        "--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[1, 2, 3]
    )
    parser.add_argument(
        "--teachers", type=int, default=3, help="runs that teach a student together"
    )
    parser.add_argument(
        "--backward-teachers",
        type=int,
        default=2,
        help="runs of the other direction that add sources",
    )
    parser.add_argument("--from", dest="source", default="en")
    parser.add_argument("--to", dest="target", default="de")
    parser.add_argument("--protocol", choices=("tok", "raw"), default="tok")
    parser.add_argument(
        "--test", action="store_true", help="score the test set, too: once, when all is chosen"
    )
    parser.add_argument("--epochs", type=int, help="in place of the recipe's")
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument(
        "--length-penalties",
        type=lambda text: [float(penalty) for penalty in text.split(",")],
        default=[1.0],
    )
    parser.add_argument("--matmul-precision", help="of `kformer train`")
    parser.add_argument("--backend", default=os.environ.get("KERAS_BACKEND", "tensorflow"))
    options = parser.parse_args()
    options.tokenize = (
        "none" if options.protocol == "tok" else None
    )  # None leaves it to `kformer evaluate`.
    if options.jobs < 1:
        parser.error(f"--jobs must be at least 1, but {options.jobs} was given")
    options.work.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    report(options)
    print(f"\n{time.perf_counter() - began:,.0f} s in all")


if __name__ == "__main__":
    main()
