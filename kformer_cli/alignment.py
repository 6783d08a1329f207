"""The commands about words: `align` and `calibrate`."""

import json
import pathlib

import typer

from kformer_cli.checks import check_sides
from kformer_cli.environment import quiet_imports, refuse
from kformer_cli.options import (
    BATCH,
    LANGUAGES,
    MACHINE,
    Json,
    Run,
    option,
    set_options,
    with_options,
)
from kformer_options.model_folders import check_trained
from kformer_options.names import named
from kformer_options.text_files import check_output


@with_options({**LANGUAGES, **BATCH, **MACHINE}, batch_size=32)
def align(
    source: pathlib.Path = option("Source text.", required=True, metavar="FILE"),
    target: pathlib.Path = option(
        "Its translations: line n of line n.", required=True, metavar="FILE"
    ),
    run: str | None = typer.Argument(
        None,
        metavar="RUN",
        help="A run directory, whose attention is read. Without it a statistical aligner learns "
        "from the text alone.",
    ),
    output: pathlib.Path | None = option(
        "Where the alignments go; the file appears when it is whole. Default: standard output, or "
        "none with --gold.",
        metavar="FILE",
    ),
    gold: pathlib.Path | None = option(
        "Alignments to compare with, in Pharaoh's format: the alignment error rate is printed.",
        metavar="FILE",
    ),
    iterations: int | None = option("Without a run: steps of EM. Default: 5.", min=1),
    as_json: Json = False,
    **options,
):
    """Align the words of a parallel text: which word was translated by which.

    A line for each pair of sentences has the aligned words in Pharaoh's format, such as "0-0 1-2":
    the index of a source word and that of a target word, from 0. A word is what stands between
    spaces, or a Chinese or Japanese character. A run aligns by the attention that kformer calibrate
    chose. Without a run the aligner learns from the text, of which it needs a few thousand pairs.

    Examples: [bold]kformer align --source train.en --target train.de --output train.align[/bold]

    [bold]kformer align runs/en-de --source test.en --target test.de --gold test.align[/bold]
    """
    check_sides([(source, "--source"), (target, "--target"), (gold, "--gold")])
    if run is not None:
        check_trained(run)
    check_output(output, source, target, gold)
    refuse(
        run is not None and iterations is not None,
        "--iterations is for the statistical aligner: leave it out, or the run.",
    )
    languages = set_options(options, LANGUAGES)
    for name in languages:
        refuse(run is None, f"{named(name)} is for a run: give one, or leave it out.")
    refuse(as_json and gold is None, "--json prints the error rate: give --gold, or leave it out.")
    with quiet_imports():
        from kformer.data import word_alignment
        from kformer.translating import streaming
        from kformer.utils.lines import read_lines
        from kformer.utils.progress import Progress
    sides = read_lines(source, "source"), read_lines(target, "target")
    expected = None if gold is None else word_alignment.read_pharaoh(gold, *sides)
    if run is None:
        alignments = word_alignment.align_words(*sides, iterations=iterations or 5)
    else:
        translator = streaming.load_run_translator(run, **languages)
        with Progress(len(sides[0])) as progress:
            settings = {"batch_size": options["batch_size"], "progress": progress}
            alignments = translator.align(*sides, **settings)
    if output is not None or expected is None:
        with streaming.open_output(output) as out:
            for alignment in alignments:
                out.write(word_alignment.pharaoh(alignment).encode() + b"\n")
    if expected is not None:
        error = word_alignment.alignment_error_rate(alignments, expected)
        print(json.dumps({"alignment_error_rate": error}) if as_json else f"AER  {error:.4f}")


@with_options({**LANGUAGES, **BATCH, **MACHINE}, batch_size=32)
def calibrate(
    run: Run,
    source: pathlib.Path = option(
        "Source text, such as the validation set's.", required=True, metavar="FILE"
    ),
    target: pathlib.Path = option("Its translations by people.", required=True, metavar="FILE"),
    alignments: pathlib.Path | None = option(
        "Aligned words of this text, in Pharaoh's format. Default: those that a statistical "
        "aligner finds.",
        metavar="FILE",
    ),
    as_json: Json = False,
    **options,
):
    """Calibrate a run: its confidence, the attention that aligns words, and its coverage.

    The run keeps the temperature under which the given translations are most probable, and the
    layer and head of the attention whose alignments have the fewest errors, and the weights that
    tell a translation that left something out. kformer translate --confidence, --alignment and
    --coverage, and kformer align use them. Translations do not change.

    Example: [bold]kformer calibrate runs/en-de --source val.en --target val.de[/bold]
    """
    check_sides([(source, "--source"), (target, "--target"), (alignments, "--alignments")])
    check_trained(run)
    with quiet_imports():
        from kformer.data.word_alignment import read_pharaoh
        from kformer.saving.run_directory import update_config
        from kformer.translating import streaming
        from kformer.utils.lines import read_lines
    sides = read_lines(source, "source"), read_lines(target, "target")
    expected = None if alignments is None else read_pharaoh(alignments, *sides)
    translator = streaming.load_run_translator(run, **set_options(options, LANGUAGES))
    entries = translator.calibrate(*sides, alignments=expected, batch_size=options["batch_size"])
    update_config(run, entries)
    if as_json:
        print(json.dumps(entries))
        return
    confidence, words = entries["confidence"], entries["alignment"]
    print(
        "temperature  {temperature:.4f}   calibration error {error_before:.4f} without it, "
        "{error:.4f} with it, {tokens:,} tokens".format_map(confidence)
    )
    head = "mean of the heads" if words["head"] is None else f"head {words['head']}"
    row = "after" if words["after"] else "before"
    print(
        f"alignment    layer {words['layer']}, {head}, {row} a token is read; alignment error "
        f"rate {words['error']:.4f}"
    )
    if entries.get("coverage"):
        print("coverage     fitted: one of fifty translations of this text is doubtful")
    else:
        print("coverage     not fitted: it needs some hundred sentences")
