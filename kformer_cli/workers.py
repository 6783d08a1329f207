"""What `kformer translate` does with several processes."""

from typing import Annotated

import typer

from kformer_cli.beside import BESIDE
from kformer_cli.environment import Interrupted, quiet_imports
from kformer_cli.options import LANGUAGES, SAMPLING, SEARCH, given, option

WORKERS = {
    "workers": Annotated[
        int | None,
        option(
            "--workers",
            min=1,
            help="Translate a file with N processes, each with one thread or --threads. A job "
            "that ended early goes on when the command is given again.",
        ),
    ],
    "ray_address": Annotated[
        str | None,
        option(
            "--ray-address",
            metavar="ADDRESS",
            help="With --workers: a Ray cluster to work on, such as 10.0.0.1:6379. Its machines "
            "see model and output by the same paths. Default: this machine.",
        ),
    ],
    "field": Annotated[
        str | None,
        option(
            "--field",
            metavar="NAME",
            help="With --workers: the field of JSON lines or the column of Parquet with the text. "
            "Default: text.",
        ),
    ],
    "output_field": Annotated[
        str | None,
        option(
            "--output-field",
            metavar="NAME",
            help="With --workers: the field or column for the translation. Default: translation.",
        ),
    ],
}


def translate_by_workers(model, input, output, n_best, scores, options):
    """Translates a file by several processes.

    Args:
        model: path.
        input, output: paths or `None`.
        n_best: int.
        scores: bool.
        options: dict of the command's options.

    Raises:
        typer.BadParameter: a file is missing, or an option has no effect with workers.
        Interrupted: Ctrl-C ended the work.
    """
    if input is None or output is None:
        raise typer.BadParameter("--workers needs --input FILE and --output FILE.")
    for name in given(options, [*BESIDE, "devices"]):
        raise typer.BadParameter(f"--{name.replace('_', '-')} is not for --workers: leave one out.")
    with quiet_imports():
        from kformer.serving.batch import BatchOptions, translate_file
        from kformer.serving.batch.formats import TextLines, format_of
        from kformer.translating.streaming import warn_truncated
        from kformer.utils.progress import Progress
    if format_of(input) is TextLines:
        for name in given(options, ("field", "output_field")):
            raise typer.BadParameter(
                f"--{name.replace('_', '-')} is for JSON lines and Parquet, but {input} has lines "
                "of text: leave it out."
            )
    others = ("batch_size", "dtype", "backend", "threads", "field", "output_field")
    batch_options = BatchOptions(
        model=model,
        n_best=n_best,
        scores=scores,
        search=given(options, [*SEARCH, *SAMPLING])
        | ({"sampling": True} if options["sample"] else {}),
        ensemble=tuple(options["ensemble"] or ()),
        **given(options, [*others, *LANGUAGES]),
    )
    try:
        with Progress(what="records") as progress:
            result = translate_file(
                input,
                output,
                batch_options,
                workers=options["workers"],
                address=options["ray_address"],
                progress=progress,
            )
    except KeyboardInterrupt:
        raise Interrupted("interrupted: give the same command again to go on.") from None
    warn_truncated(result.truncated)
