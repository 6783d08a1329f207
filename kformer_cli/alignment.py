"""The command that aligns words: `align`."""

import pathlib
from typing import Annotated

from kformer_cli.checks import check_output, check_sides
from kformer_cli.environment import quiet_imports
from kformer_cli.options import option


def align(
    source: Annotated[
        pathlib.Path,
        option("--source", metavar="FILE", help="Source text, with spaces between words."),
    ],
    target: Annotated[
        pathlib.Path,
        option("--target", metavar="FILE", help="Its translations: line n of line n."),
    ],
    output: Annotated[
        pathlib.Path | None,
        option(
            "--output",
            metavar="FILE",
            help="Where the alignments go; the file appears when it is whole. Default: standard "
            "output.",
        ),
    ] = None,
    iterations: Annotated[
        int, option("--iterations", min=1, show_default=True, help="Steps of EM.")
    ] = 5,
):
    """Align the words of a parallel text, without a model: which word was translated by which.

    A line for each pair of sentences has the aligned words in Pharaoh's format, such as "0-0 1-2":
    the index of a source word and that of a target word, from 0. It learns from the text alone, of
    which it needs some thousand pairs.

    Example: [bold]kformer align --source train.en --target train.de --output train.align[/bold]
    """
    check_sides([(source, "--source"), (target, "--target")])
    check_output(output)
    with quiet_imports():
        from kformer.data.word_alignment import align_words, pharaoh
        from kformer.streaming import open_output
        from kformer.utils.lines import read_lines
    sides = read_lines(source, "source"), read_lines(target, "target")
    with open_output(output) as out:
        for alignment in align_words(*sides, iterations=iterations):
            out.write(pharaoh(alignment).encode() + b"\n")
