"""The commands about words: `align` and `calibrate`."""

import json
import pathlib
from typing import Annotated

import typer

from kformer_cli.checks import check_output, check_sides
from kformer_cli.environment import quiet_imports
from kformer_cli.options import BATCH, MACHINE, Json, Run, option, with_options
from kformer_options.model_folders import check_trained

_Run = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="A run directory, whose attention is read. Without it a statistical aligner learns "
        "from the text alone.",
    ),
]
_Gold = Annotated[
    pathlib.Path | None,
    option(
        "--gold",
        metavar="FILE",
        help="Alignments to compare with, in Pharaoh's format: the alignment error rate is "
        "printed.",
    ),
]


@with_options({**BATCH, **MACHINE}, batch_size=32)
def align(
    source: Annotated[pathlib.Path, option("--source", metavar="FILE", help="Source text.")],
    target: Annotated[
        pathlib.Path, option("--target", metavar="FILE", help="Its translations: line n of line n.")
    ],
    run: _Run = None,
    output: Annotated[
        pathlib.Path | None,
        option(
            "--output",
            metavar="FILE",
            help="Where the alignments go; the file appears when it is whole. Default: standard "
            "output, or none with --gold.",
        ),
    ] = None,
    gold: _Gold = None,
    iterations: Annotated[
        int | None, option("--iterations", min=1, help="Without a run: steps of EM. Default: 5.")
    ] = None,
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
    check_output(output)
    if run is not None and iterations is not None:
        raise typer.BadParameter(
            "--iterations is for the statistical aligner: leave it out, or the run."
        )
    if as_json and gold is None:
        raise typer.BadParameter("--json prints the error rate: give --gold, or leave it out.")
    with quiet_imports():
        from kformer.data.word_alignment import (
            align_words,
            alignment_error_rate,
            pharaoh,
            read_pharaoh,
        )
        from kformer.translating import streaming
        from kformer.utils.lines import read_lines
        from kformer.utils.progress import Progress
    sides = read_lines(source, "source"), read_lines(target, "target")
    expected = None if gold is None else read_pharaoh(gold, *sides)
    if run is None:
        found = align_words(*sides, iterations=iterations or 5)
    else:
        translator = streaming.load_run_translator(run)
        with Progress(len(sides[0])) as progress:
            found = translator.align(*sides, batch_size=options["batch_size"], progress=progress)
    if output is not None or expected is None:
        with streaming.open_output(output) as out:
            out.writelines(pharaoh(alignment).encode() + b"\n" for alignment in found)
    if expected is not None:
        error = alignment_error_rate(found, expected)
        print(json.dumps({"alignment_error_rate": error}) if as_json else f"AER  {error:.4f}")


@with_options({**BATCH, **MACHINE}, batch_size=32)
def calibrate(
    run: Run,
    source: Annotated[
        pathlib.Path,
        option("--source", metavar="FILE", help="Source text, such as the validation set's."),
    ],
    target: Annotated[
        pathlib.Path, option("--target", metavar="FILE", help="Its translations by people.")
    ],
    alignments: Annotated[
        pathlib.Path | None,
        option(
            "--alignments",
            metavar="FILE",
            help="Aligned words of this text, in Pharaoh's format. Default: those that a "
            "statistical aligner finds.",
        ),
    ] = None,
    as_json: Json = False,
    **options,
):
    """Calibrate a run: fit its confidence, and choose the attention that aligns words.

    The run keeps the temperature under which the given translations are most probable, and the
    layer and head of the attention whose alignments have the fewest errors. kformer translate
    --confidence, --alignment and kformer align use them. Translations do not change.

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
    translator = streaming.load_run_translator(run)
    found = translator.calibrate(*sides, alignments=expected, batch_size=options["batch_size"])
    update_config(run, found)
    if as_json:
        print(json.dumps(found))
        return
    sure, words = found["confidence"], found["alignment"]
    print(
        f"temperature  {sure['temperature']:.4f}   calibration error {sure['error_before']:.4f} "
        f"without it, {sure['error']:.4f} with it, {sure['tokens']:,} tokens"
    )
    head = "mean of the heads" if words["head"] is None else f"head {words['head']}"
    row = "after" if words["after"] else "before"
    print(
        f"alignment    layer {words['layer']}, {head}, {row} a token is read; alignment error "
        f"rate {words['error']:.4f}"
    )
