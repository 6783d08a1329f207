"""Measures what the efforts of `kformer train` bring: BLEU on a test set, and their time.

    python benchmarks/efforts.py DATA --work DIR [--effort 2] [--seeds 1,2,3] [--from en] [--to de]
        [--test test2016] [--tokenize none] [--pairs N] [--threads N] [--jobs N] [--backend NAME]
        [--option "--preset tiny"]

DATA is a folder with `train`, `val` and the test set in both languages (`train.en`, ...). Each seed
is one command, `kformer train --effort N` with the four files and nothing else; it is resumed if it
was interrupted. `--pairs` takes the first lines of the training text alone, for a curve over its
size.

The test set is opened last: what the training chose on the validation set (which of its parts the
run has, and the search) is first written to DIR/chosen-....json, whose digest the table's foot
names. `kformer evaluate` then has no search options of its own. ± is half of the bootstrap's 95 %
interval over the test set's sentences.
"""

import argparse
import hashlib
import json
import math
import os
import pathlib
import shlex
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.common import (  # noqa: E402
    cpu_name,
    integers,
    interval,
    kformer,
    print_command,
    print_head,
    print_row,
    read,
    spent_on,
    tokenizer_of,
    versions,
    write,
)

CHOICES = ("search", "search_reason", "part")


def texts_of(options):
    """The options of a training for its files."""
    texts = {}
    for side, language in (("source", options.source), ("target", options.target)):
        path = options.data / f"train.{language}"
        if options.pairs:
            lines, path = read(path)[: options.pairs], options.work / f"{options.pairs}.{language}"
            write(path, lines)
        texts |= {f"--train-{side}": path, f"--valid-{side}": options.data / f"val.{language}"}
    return [part for option in texts.items() for part in option]


def train(options, seed):
    """Trains or resumes a run to its end, and returns its folder."""
    name = f"{options.source}-{options.target}-{options.pairs or 'all'}"
    run = options.work / f"{name}-effort-{options.effort}-seed-{seed}"
    effort = ["--effort", options.effort] if options.effort > 1 else []
    effort += ["--jobs", options.jobs] if options.jobs else []
    own = [*effort, "--seed", seed, *shlex.split(options.option)]
    kformer(options, "train", "--output", run, "--resume", *texts_of(options), *own)
    return run


def trainings_of(run):
    """The runs of a run's parts, or the run itself."""
    return [path.parent for path in sorted(run.glob("parts/*/paths.json"))] or [run]


def evaluate(options, run, part):
    """BLEU and chrF of a run by its own search, and the file of its translations."""
    output = run / f"{part}.out"
    sides = [options.data / f"{part}.{language}" for language in (options.source, options.target)]
    arguments = ["--source", sides[0], "--reference", sides[1], "--json", "--output", output]
    arguments += ["--tokenize", options.tokenize] if options.tokenize else []
    return json.loads(kformer(options, "evaluate", run, *arguments, capture=True)), output


def parts_seconds(run):
    """The sum of the parts' seconds with validation and translation; of effort 1 its steps'.

    NaN where a part was interrupted, whose whole time is not known.
    """
    done = run / "parts" / "done.json"
    if not done.exists():
        return spent_on(run)[0]
    parts = json.loads(done.read_text(encoding="utf-8"))
    return sum(
        math.nan if value is None else value for name, value in parts.items() if name != "speed"
    )


def config_of(run):
    return json.loads((run / "config.json").read_text(encoding="utf-8"))


def write_choices(options, runs):
    """Writes what trainings chose on the validation set. Returns the digest that names the file."""
    chosen = {run.name: {name: config_of(run).get(name) for name in CHOICES} for run in runs}
    text = json.dumps(chosen, indent=1, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    (options.work / f"chosen-{digest}.json").write_text(text + "\n", encoding="utf-8")
    return digest


def report(options):
    print(f"{cpu_name()}; {versions('keras', options.backend, 'sacrebleu')}\n")
    print_command()
    runs = [train(options, seed) for seed in options.seeds]
    configs, digest = list(map(config_of, runs)), write_choices(options, runs)
    found = [evaluate(options, run, "val") for run in runs]
    head = ["effort", "seed", "the run has", "length penalty", "val BLEU", f"{options.test} BLEU"]
    print_head([*head, "±", "chrF", "target tokens seen", "training, s", "parts, s"])
    scores = []
    for seed, run, config, (valid, _) in zip(options.seeds, runs, configs, found, strict=True):
        result, output = evaluate(options, run, options.test)
        references = options.data / f"{options.test}.{options.target}"
        width = interval(read(output), read(references), tokenizer_of(result))
        spent = [sum(part) for part in zip(*map(spent_on, trainings_of(run)), strict=True)]
        scores.append(result["bleu"])
        penalty = (config.get("search") or {}).get("length_penalty", 0.6)
        cells = [config.get("part", "its training"), penalty, f"{valid['bleu']:.2f}"]
        cells += [f"{result['bleu']:.2f}", f"{width:.2f}", f"{result['chrf']:.2f}"]
        cells += [f"{spent[1]:,}", f"{spent[0]:,.0f}", f"{parts_seconds(run):,.0f}"]
        print_row(options.effort, seed, *cells)
    mean = statistics.mean(scores)
    spread = f", {min(scores):.2f} to {max(scores):.2f}" if len(scores) > 1 else ""
    print(f"\nmean over the seeds on {options.test}: {mean:.2f} BLEU{spread}")
    signatures = ", ".join(result[f"{metric}_signature"] for metric in ("bleu", "chrf"))
    print(f"chosen on the validation set before: {digest}; {signatures}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder for the runs")
    parser.add_argument("--effort", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--seeds", type=integers, default=[1, 2, 3])
    parser.add_argument("--from", dest="source", default="en")
    parser.add_argument("--to", dest="target", default="de")
    parser.add_argument("--test", default="test2016", help="the name of the test set's files")
    parser.add_argument("--tokenize", help="of `kformer evaluate`; none for text in tokens")
    parser.add_argument("--pairs", type=int, help="the first pairs alone")
    parser.add_argument("--option", default="", help="more options of `kformer train`")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--jobs", type=int, help="of `kformer train`")
    parser.add_argument("--backend", default=os.environ.get("KERAS_BACKEND", "tensorflow"))
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    report(options)


if __name__ == "__main__":
    main()
