"""Measures models of several depths, alone and as students of one set of teachers.

    python benchmarks/students.py DATA --work DIR [--preset tiny] [--kinds taught,alone]
        [--shapes standard,balanced,student,student-ssru] [--seeds 1] [--teachers RUN] [--speed]
        [--lists 50,200] [--from en] [--to de] [--test test2016] [--tokenize none] [--threads N]
        [--backend NAME] [--option "--steps 300"]

DATA is as for `efforts.py`. The shapes are presets of one size (`--preset`): `standard` is that
preset itself, `balanced` has two layers in the decoder, `student` one; of `tiny` and `small` all
have about as many parameters. A shape taught is `kformer train --effort 2` with that shape for the
student, alone it is one training. The first taught run trains the teachers, of the standard preset,
and all others take them; `--teachers` takes those of an earlier run. A run is resumed if it was
interrupted, and one that is done is not trained again, so further shapes, kinds and seeds may be
added, to a DIR for each size. `--option` is for all trainings, such as a short try.

The test set is opened last, as in `efforts.py`. Minutes are those of the steps of what was trained
for the row (the student and its last training; the teachers' come once). `--speed` measures the
SavedModel, float32 and int8, and CTranslate2 on one core by `kformer speed`, once for each shape:
the machine should do nothing else then. `--lists` measures them with the lists of sentences, too,
of so many translations of each source token (`kformer shortlist --candidates`), and tells how many
translations of the validation set stay as they were.

Two calls may fill one DIR at once, a core each by `--threads 1`, if no run is in both: one with
`--kinds taught`, the other one with `--kinds alone`. (A second call of taught ones finds no
teachers until the first one has come to its student.) A last call with all kinds and `--speed` has
the whole table.
"""

import argparse
import functools
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.common import (  # noqa: E402
    cpu_name,
    environment,
    integers,
    interval,
    kformer,
    names,
    once,
    print_command,
    print_head,
    print_row,
    read,
    spent_on,
    tokenizer_of,
    versions,
)
from benchmarks.efforts import config_of, evaluate, texts_of, write_choices  # noqa: E402

# What follows the name of the size in that of the preset, and further options.
SHAPES = {
    "standard": ("", []),
    "balanced": ("_balanced", []),
    "student": ("_student", []),
    "student-ssru": ("_student", ["--model-option", "decoder_autoregression=ssru"]),
}
KINDS = ("taught", "alone")
ENGINES = ("saved_model", "saved_model-int8", "ctranslate2-int8")


def train(options, kind, shape, seed):
    """Trains or resumes a run to its end, and returns its folder."""
    run = options.work / f"{options.source}-{options.target}-{kind}-{shape}-seed-{seed}"
    ending, own = SHAPES[shape]
    own = ["--seed", seed, *own, *shlex.split(options.option)]
    preset = options.preset + ending
    if kind == "alone":
        own += ["--preset", preset]
    else:
        own += ["--effort", 2, "--preset", options.preset, "--student", preset]
        teachers = options.work / "teachers.json"  # Which run trained them.
        name = once(
            teachers, lambda: str(options.teachers.resolve() if options.teachers else run.name)
        )
        if name != run.name:
            own += ["--teachers-from", options.work / name]
    if not (run / "done").exists():
        kformer(options, "train", "--output", run, "--resume", *texts_of(options), *own)
        (run / "done").touch()
    return run


def trained_minutes(run):
    """The minutes of the steps of a run, or of its student and last training."""
    parts = [run / "parts" / name for name in ("student", "last-1")]
    return sum(spent_on(part)[0] for part in (parts if parts[0].exists() else [run])) / 60


def parameters_of(options, run):
    """The parameters of a run's model."""
    code = "import sys, kformer; print(kformer.Translator.load(sys.argv[1]).model.count_params())"
    command = [sys.executable, "-c", code, str(run)]
    variables = environment(options.backend)
    return int(subprocess.run(command, env=variables, check=True, capture_output=True).stdout)


def measured_speeds(options, run):
    """Sentences per second on one core, by engine, search and batch."""
    command = ["speed", run, "--source", _path(options, options.test, "source")]
    command += [part for engine in ENGINES for part in ("--engine", engine)]
    settings = argparse.Namespace(backend="tensorflow", threads=1)
    found = json.loads(kformer(settings, *command, "--json", capture=True))
    return {
        f"{engine['engine']}, {'greedy' if cell['beam_size'] == 1 else 'beam 4'}, "
        f"{cell['batch_size']}": cell["sentences_per_second"]
        for engine in found["engines"]
        for cell in engine["speeds"]
    }


def with_lists(options, run, candidates):
    """A copy of a run that has lists of sentences, and what they do on the validation set."""
    copy = run.with_name(f"{run.name}-lists-{candidates}")

    def make():
        unused = shutil.ignore_patterns("checkpoints", "data", "parts", "speed.json")
        shutil.copytree(run, copy, ignore=unused, dirs_exist_ok=True)
        command = ["shortlist", copy, "--candidates", candidates, "--json"]
        for option, split in (("", "train"), ("valid-", "val")):
            for side in ("source", "target"):
                command += [f"--{option}{side}", _path(options, split, side)]
        settings = argparse.Namespace(backend=options.backend, threads=None)
        (trial,) = json.loads(kformer(settings, *command, capture=True))["trials"]
        return trial

    return copy, once(run / f"lists-{candidates}.json", make)


def _path(options, split, side):
    """The file of a split in the language of a side."""
    return options.data / f"{split}.{getattr(options, side)}"


def print_speeds(options, runs):
    """Prints the table of speeds: a row for each shape, and one for each length of its lists."""
    rows, first = [], {}
    for (_, shape, _), run in runs.items():
        first.setdefault(shape, run)
    for shape, run in first.items():
        measured = [(run, {})]
        measured += [with_lists(options, run, candidates) for candidates in options.lists]
        for each, trial in measured:
            make = functools.partial(measured_speeds, options, each)
            rows.append((shape, trial, once(each / "speed.json", make)))
    cells = list(dict.fromkeys(cell for *_, row in rows for cell in row))
    lists = ("candidates", "frequent", "tokens", "equal", "bleu", "full_bleu") * bool(options.lists)
    print_head(["sentences per second", *lists, *cells])
    for shape, trial, row in rows:
        of_lists = (f"{trial[name]:.4g}" if trial else "" for name in lists)
        print_row(shape, *of_lists, *(row.get(cell, "") for cell in cells))


def report(options):
    print(f"{cpu_name()}; {versions('keras', options.backend, 'tensorflow', 'sacrebleu')}\n")
    print_command()
    jobs = [
        (k, shape, seed)
        for seed in options.seeds
        for k in options.kinds
        for shape in options.shapes
    ]
    runs = {job: train(options, *job) for job in jobs}
    digest = write_choices(options, runs.values())
    head = ["model", "trained", "seed", "parameters", "the run has", "val BLEU"]
    print_head([*head, f"{options.test} BLEU", "±", "chrF", "minutes"])
    for (kind, shape, seed), run in runs.items():
        valid = once(run / "val.json", lambda: evaluate(options, run, "val")[0])  # noqa: B023
        result = once(run / "test.json", lambda: evaluate(options, run, options.test)[0])  # noqa: B023
        output, references = run / f"{options.test}.out", _path(options, options.test, "target")
        width = interval(read(output), read(references), tokenizer_of(result))
        config = config_of(run)
        cells = [f"{parameters_of(options, run):,}", config.get("part", "its training")]
        cells += [f"{valid['bleu']:.2f}", f"{result['bleu']:.2f}", f"{width:.2f}"]
        print_row(shape, kind, seed, *cells, f"{result['chrf']:.2f}", f"{trained_minutes(run):.0f}")
    print(f"\nchosen on the validation set before: {digest}; {result['bleu_signature']}\n")
    if options.speed:
        print_speeds(options, runs)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder for the runs")
    parser.add_argument("--shapes", type=names, default=list(SHAPES))
    parser.add_argument("--kinds", type=names, default=["taught"], help=f"of {', '.join(KINDS)}")
    parser.add_argument("--seeds", type=integers, default=[1])
    parser.add_argument("--preset", default="tiny", help="the size: tiny, small or base")
    parser.add_argument("--teachers", type=pathlib.Path, help="an earlier run with --effort 2")
    parser.add_argument("--speed", action="store_true", help="measure the SavedModels, too")
    parser.add_argument("--lists", type=integers, default=[], help="with --speed: lengths of lists")
    parser.add_argument("--from", dest="source", default="en")
    parser.add_argument("--to", dest="target", default="de")
    parser.add_argument("--test", default="test2016", help="the name of the test set's files")
    parser.add_argument("--tokenize", help="of `kformer evaluate`; none for text in tokens")
    parser.add_argument("--option", default="", help="more options of `kformer train`")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--backend", default=os.environ.get("KERAS_BACKEND", "tensorflow"))
    options = parser.parse_args()
    options.pairs = None
    options.work.mkdir(parents=True, exist_ok=True)
    report(options)


if __name__ == "__main__":
    main()
