"""The command that lets teachers translate a training text: `distill`."""

import dataclasses
import pathlib
import sys

import typer

from kformer_cli.checks import check_search, check_sides
from kformer_cli.environment import quiet_imports, refuse
from kformer_cli.options import (
    BATCH,
    LANGUAGES,
    LIMITS,
    MACHINE,
    SEARCH,
    flag,
    option,
    set_options,
    with_options,
)
from kformer_options.model_folders import check_trained
from kformer_options.text_files import check_output
from kformer_options.wording import counted

_SEARCH = {
    "beam_size": dataclasses.replace(
        SEARCH["beam_size"], help_text="Live hypotheses per sentence."
    ),
    "length_penalty": SEARCH["length_penalty"],
    **LIMITS,
}


@with_options(
    {**_SEARCH, **LANGUAGES, **BATCH, **MACHINE},
    first="source output_source output_target reference backward closest beam_size "
    "target_language batch_size backend",
    beam_size=5,
    batch_size=64,
)
def distill(
    teachers: list[str] = typer.Argument(
        metavar="RUN...", help="The teacher's run directory; of several, all translate together."
    ),
    source: pathlib.Path = option(
        "Source side of the training text.", required=True, metavar="FILE"
    ),
    output_source: pathlib.Path = option(
        "Where the new text's source side goes.", required=True, metavar="FILE"
    ),
    output_target: pathlib.Path = option(
        "Where the translations go.", required=True, metavar="FILE"
    ),
    reference: pathlib.Path | None = option(
        "Its target side, for --backward, --closest and --keep-original.", metavar="FILE"
    ),
    backward: list[str] | None = option(
        "A run that translates the target side back; its pairs come along. Give the option again "
        "for more, which then translate together.",
        metavar="RUN",
    ),
    round_trips: bool = flag(
        "--round-trips",
        "What --backward makes is translated again, by a run of the first: pairs that are new on "
        "both sides.",
    ),
    separately: bool = flag(
        "--separately",
        "Let each run translate by itself, instead of all together: as many texts as runs.",
    ),
    closest: bool = flag(
        "--closest",
        "Take the translation of the beam that is most like the reference, instead of the "
        "likeliest.",
    ),
    keep_original: bool = flag(
        "--keep-original", "Also write the given pairs, after the new ones."
    ),
    **options,
):
    """Translate a training text by teachers, to train a small model on (sequence-level knowledge
    distillation).

    A student learns more from what a good teacher writes than from what people write, and more
    still if several teachers translate separately, and others backwards. Train it with `kformer
    train` on the two files; give it the teacher's tokenizer, so that it may teach in turn. A run of
    --backward translates from the target language to the source language.

    Example: [bold]kformer distill runs/1 runs/2 runs/3 --source train.en --reference train.de
    --closest --output-source kd.en --output-target kd.de[/bold]
    """
    needs = {"--backward": backward, "--closest": closest, "--keep-original": keep_original}
    for name, value in needs.items():
        refuse(
            value and reference is None,
            f"{name} needs the target side of the training text: give it by --reference.",
        )
    refuse(
        output_source.resolve() == output_target.resolve(),
        f"--output-source and --output-target name one file, '{output_source}': give two.",
    )
    refuse(
        round_trips and not backward,
        "--round-trips go back and forth: give a run of the other direction by --backward.",
    )
    refuse(
        reference is not None and not any(needs.values()),
        f"--reference is for {', '.join(needs)}: give one of them, or leave it out.",
    )
    check_search({**options, "closest": closest})
    check_sides([(source, "--source"), (reference, "--reference")])
    for output in (output_source, output_target):
        check_output(output, source, reference)
    for run in (*teachers, *(backward or ())):
        check_trained(run)
    with quiet_imports():
        from kformer.distillation.text import distill
        from kformer.translating import streaming
        from kformer.utils.lines import read_lines
        from kformer.utils.progress import Progress
    sources = read_lines(source, "source")
    references = None if reference is None else read_lines(reference, "reference")
    languages = [options[name] for name in LANGUAGES]
    forward, back = _load(teachers, separately), _load(backward or [], separately)
    # An unknown target language is an error; a source language that a model does not read is none.
    forward = [each.for_languages(target=languages[1]) for each in forward]
    forward = [each.for_direction(*languages) for each in forward]
    back = [each.for_direction(*reversed(languages)) for each in back]
    settings = {"round_trips": round_trips, "closest": closest, "keep_original": keep_original}
    settings |= set_options(options, [*_SEARCH, "batch_size"])
    texts = len(forward) + len(back) * (2 if round_trips else 1)
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


def _load(runs, separately):
    """Translators of these runs: one for each run, or one of all together."""
    from kformer.translating.translator import Translator

    groups = [[run] for run in runs] if separately else [runs] if runs else []
    return [Translator.load(group) for group in groups]
