"""The command that lets teachers translate a training text: `distill`."""

import dataclasses
import pathlib
import sys
from typing import Annotated

import typer

from kformer_cli.checks import check_search, check_sides
from kformer_cli.environment import UsageError, quiet_imports
from kformer_cli.options import BATCH, LIMITS, MACHINE, SEARCH, option, set_options, with_options
from kformer_options.model_folders import check_trained
from kformer_options.wording import counted

Teachers = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...", help="The teacher's run directory; of several, all translate together."
    ),
]
Source = Annotated[
    pathlib.Path, option("--source", metavar="FILE", help="Source side of the training text.")
]
OutputSource = Annotated[
    pathlib.Path,
    option("--output-source", metavar="FILE", help="Where the new text's source side goes."),
]
OutputTarget = Annotated[
    pathlib.Path, option("--output-target", metavar="FILE", help="Where the translations go.")
]
Reference = Annotated[
    pathlib.Path | None,
    option(
        "--reference",
        metavar="FILE",
        help="Its target side, for --backward, --closest and --keep-original.",
    ),
]
Backward = Annotated[
    list[str] | None,
    option(
        "--backward",
        metavar="RUN",
        help="A run that translates the target side back; its pairs come along. Give the option "
        "again for more, which then translate together.",
    ),
]
RoundTrips = Annotated[
    bool,
    option(
        "--round-trips",
        help="What --backward makes is translated again, by a run of the first: pairs that are "
        "new on both sides.",
    ),
]
Separately = Annotated[
    bool,
    option(
        "--separately",
        help="Let each run translate by itself, instead of all together: as many texts as runs.",
    ),
]
Closest = Annotated[
    bool,
    option(
        "--closest",
        help="Take the translation of the beam that is most like the reference, instead of the "
        "likeliest.",
    ),
]
KeepOriginal = Annotated[
    bool, option("--keep-original", help="Also write the given pairs, after the new ones.")
]
_SEARCH = {
    "beam_size": dataclasses.replace(
        SEARCH["beam_size"], help_text="Live hypotheses per sentence."
    ),
    "length_penalty": SEARCH["length_penalty"],
    **LIMITS,
}


@with_options({**_SEARCH, **BATCH, **MACHINE}, beam_size=5, batch_size=64)
def distill(
    teachers: Teachers,
    source: Source,
    output_source: OutputSource,
    output_target: OutputTarget,
    reference: Reference = None,
    backward: Backward = None,
    round_trips: RoundTrips = False,
    separately: Separately = False,
    closest: Closest = False,
    keep_original: KeepOriginal = False,
    **options,
):
    """Translate a training text by teachers, to train a small model on (sequence-level knowledge
    distillation).

    A student learns more from what a good teacher writes than from what people write, and more
    still if several teachers translate separately, and others backwards. Train it with `kformer
    train` on the two files; give it the teacher's tokenizer, so that it may teach in turn.

    Example: [bold]kformer distill runs/1 runs/2 runs/3 --source train.en --reference train.de
    --closest --output-source kd.en --output-target kd.de[/bold]
    """
    needs = {"--backward": backward, "--closest": closest, "--keep-original": keep_original}
    _check(output_source, output_target, {} if reference else needs, round_trips and not backward)
    if reference is not None and not any(needs.values()):
        raise UsageError(
            f"--reference is for {', '.join(needs)}: give one of them, or leave it out."
        )
    check_search({**options, "closest": closest})
    check_sides([(source, "--source"), (reference, "--reference")])
    for run in (*teachers, *(backward or ())):
        check_trained(run)
    with quiet_imports():
        from kformer.distillation.text import distill
        from kformer.translating import streaming
        from kformer.utils.lines import read_lines
        from kformer.utils.progress import Progress
        from kformer_options.text_files import check_same_length
    sources = read_lines(source, "source")
    references = None
    if reference is not None:
        references = read_lines(reference, "reference")
        check_same_length(f"'{source}'", len(sources), f"'{reference}'", len(references))
    forward, back = _load(teachers, separately), _load(backward or [], separately)
    settings = {"round_trips": round_trips, "closest": closest, "keep_original": keep_original}
    settings |= set_options(options, [*_SEARCH, "batch_size"])
    texts = len(forward) + len(back) * (2 if round_trips else 1)
    # Opened first, so that a path that cannot be written is an error before the long work.
    with (
        streaming.open_output(output_source) as first,
        streaming.open_output(output_target) as second,
    ):
        with Progress(len(sources) * texts) as progress:
            text = distill(
                forward, sources, references, backward=back, progress=progress, **settings
            )
        for file, lines in ((first, text.sources), (second, text.targets)):
            file.writelines(streaming.one_line(line).encode() + b"\n" for line in lines)
    print(
        f"{counted(len(text.sources), 'pair')} ({text.num_empty:,} with an empty translation and "
        f"{text.num_truncated:,} too long for a teacher left out)",
        file=sys.stderr,
    )


def _check(output_source, output_target, without_reference, has_no_way_back):
    """Refuses options that do not fit together.

    Args:
        output_source, output_target: paths.
        without_reference: dict of options that need `--reference`, which is not given, and values.
        has_no_way_back: bool. Whether there are to be round trips, and nobody to go back.
    """
    for flag in filter(without_reference.get, without_reference):
        raise UsageError(
            f"{flag} needs the target side of the training text: give it by --reference."
        )
    if output_source.resolve() == output_target.resolve():
        raise UsageError(
            f"--output-source and --output-target name one file, '{output_source}': give two."
        )
    if has_no_way_back:
        raise UsageError(
            "--round-trips go back and forth: give a run of the other direction by --backward."
        )


def _load(runs, separately):
    """Translators of these runs: one for each run, or one of all together."""
    from kformer.translating.translator import Translator

    groups = [[run] for run in runs] if separately else [runs] if runs else []
    return [Translator.load(group) for group in groups]
