"""The commands that plot: `plot attention`, `training`, `positions` and `lengths`."""

import json
import pathlib
import sys

import typer

from kformer_cli.checks import check_text
from kformer_cli.command import Command, Group
from kformer_cli.environment import quiet_imports, refuse
from kformer_cli.options import (
    LANGUAGES,
    MACHINE,
    SEARCH,
    Json,
    Run,
    flag,
    option,
    set_options,
    with_options,
)
from kformer_options.figure_files import check_figure
from kformer_options.model_folders import check_run, check_trained
from kformer_options.text_files import check_output

plot = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    help="Plot attention maps, training curves, positions, or time against length. Needs "
    'Matplotlib: pip install "kformer\\[plots]".',
)

_OUTPUT = option("The picture: .png, .svg or .pdf.", required=True, metavar="FILE")
_BEAM = {"beam_size": SEARCH["beam_size"]}


@plot.command(cls=Command)
@with_options({**_BEAM, **LANGUAGES, **MACHINE})
def attention(
    run: Run,
    source: str = option("A sentence to translate.", required=True, metavar="TEXT"),
    output: pathlib.Path = option(
        "The picture: .png, .svg, .pdf, or .html to look around in.", required=True, metavar="FILE"
    ),
    target: str | None = option("Its translation. Default: the model's own.", metavar="TEXT"),
    kind: str | None = option(
        "cross (decoder on encoder), encoder or decoder. A page has all three. Default: cross."
    ),
    layer: list[int] | None = option(
        "A layer to plot, from 1. Give it again for more. Default: the last one; with --mean or "
        "--head all. A page has all."
    ),
    head: list[int] | None = option(
        "A head to plot, from 1. Give it again for more. Default: all heads."
    ),
    mean: bool = flag("--mean", "Plot the mean of a layer's heads, or of those given by --head."),
    **options,
):
    """Plot which token attended to which, in a real translation by a real model.

    Example: [bold]kformer plot attention runs/en-de --source "A man rides a horse." --output
    attention.png[/bold]
    """
    layers, heads = _from_zero(layer, "layer"), _from_zero(head, "head")
    refuse(
        target is not None and options["beam_size"] is not None,
        "With --target nothing is searched for: leave --beam-size out.",
    )
    is_page = output.suffix.lower() in (".html", ".htm")
    settings = {"kind": kind, "layer": layer, "head": head, "mean": mean}
    if is_page:
        flags = ", ".join(f"--{name}" for name, value in settings.items() if value)
        refuse(flags, f"A page has all layers and heads: leave out {flags}, or write a .png.")
    else:
        check_figure(output)
    check_output(output)
    refuse(not source.strip(), "--source is empty, so there is no attention: give a sentence.")
    check_trained(run)
    with quiet_imports():
        from kformer import plots
        from kformer.translating import streaming
    translator = streaming.load_run_translator(run, **set_options(options, LANGUAGES))
    maps = plots.attention_maps(translator, source, target, **set_options(options, _BEAM))
    if is_page:
        page = plots.attention_html(maps, model=pathlib.Path(run).resolve().name)
        plots.style.write_text(output, page)
    else:
        figure = plots.plot_attention(
            maps,
            kind=kind or "cross",
            layers=layers or (None if heads or mean else [-1]),
            heads=heads,
            mean=mean or None,
            title=f"{source} \u2192 {maps.text}",
        )
        plots.save(figure, output)
    print(f"{maps.text}\n{output}", file=sys.stderr)


def _from_zero(numbers, name):
    """Numbers that count from 0, of an option that counts from 1; `None` if it is unset."""
    if not numbers:
        return None
    if min(numbers) < 1:
        raise ValueError(f"--{name} counts from 1, but {min(numbers)} was given.")
    return [number - 1 for number in numbers]


@plot.command(cls=Command)
def training(
    runs: list[pathlib.Path] = typer.Argument(metavar="RUN...", help="Run directories."),
    output: pathlib.Path = _OUTPUT,
    metric: list[str] | None = option(
        "A metric to plot beside the loss. Give it again for more. Default: nll and bleu."
    ),
):
    """Plot the curves of trainings, beside each other.

    Example: [bold]kformer plot training runs/1 runs/2 --output curves.png[/bold]
    """
    check_figure(output)
    check_output(output)
    for run in runs:
        check_run(run)
    with quiet_imports():
        from kformer import plots
    plots.save(plots.plot_training(runs, metrics=metric or None), output)
    print(output, file=sys.stderr)


@plot.command(cls=Command)
@with_options(MACHINE)
def positions(
    run: Run,
    output: pathlib.Path = _OUTPUT,
    count: int = option("Positions to plot.", default=64, min=2, show_default=True),
    similarity: bool = flag("--similarity", "Plot how alike each two positions are instead."),
    **options,
):
    """Plot the position vectors of a model: fixed, learned or rotary ones.

    Example: [bold]kformer plot positions runs/en-de --output positions.png[/bold]
    """
    check_figure(output)
    check_output(output)
    check_trained(run)
    with quiet_imports():
        from kformer import plots
        from kformer.saving import load_run
    vectors = plots.position_vectors(load_run(run)[0], count)
    picture = plots.plot_similarity if similarity else plots.plot_positions
    plots.save(picture(vectors), output)
    print(output, file=sys.stderr)


@plot.command(cls=Command)
@with_options({**_BEAM, **LANGUAGES, **MACHINE})
def lengths(
    run: Run,
    source: pathlib.Path = option(
        "Text, of which sentences are made.", required=True, metavar="FILE"
    ),
    output: pathlib.Path = _OUTPUT,
    length: list[int] | None = option(
        "Source tokens to measure. Give it again for more. Default: 8, 16, 32, 64, 128, as far as "
        "the model goes.",
        min=1,
    ),
    as_json: Json = False,
    **options,
):
    """Measure and plot how long a translation takes, by the length of its source.

    Each sentence is made of words of the given text, and is translated alone, three times; the
    shortest time counts.

    Example: [bold]kformer plot lengths runs/en-de --source test.en --output lengths.png[/bold]
    """
    check_figure(output)
    check_output(output, source)
    check_trained(run)
    check_text(source, "--source")
    with quiet_imports():
        from kformer import plots
        from kformer.evaluation.timing import time_by_length
        from kformer.translating import streaming
        from kformer.utils.lines import read_lines
    translator = streaming.load_run_translator(run, **set_options(options, LANGUAGES))
    lines = read_lines(source, "source")
    seconds = time_by_length(translator, lines, length, **set_options(options, _BEAM))
    plots.save(plots.plot_lengths({run: seconds}, what="seconds"), output)
    if as_json:
        print(json.dumps({"seconds": seconds}))
    else:
        print(output, file=sys.stderr)
