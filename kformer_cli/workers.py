"""What `kformer translate` does with several processes."""

import typer

from kformer_cli.beside import BESIDE
from kformer_cli.environment import Interrupted, quiet_imports
from kformer_cli.options import LANGUAGES, SAMPLING, SEARCH, chosen, set_options
from kformer_options.installed import check_extra

WORKERS = chosen("workers", "ray_address", "field", "output_field")


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
    for name in set_options(options, [*BESIDE, "devices"]):
        raise typer.BadParameter(f"--{name.replace('_', '-')} is not for --workers: leave one out.")
    if options["ray_address"] is not None:
        check_extra("--ray-address", "cluster", ("ray",))
    with quiet_imports():
        from kformer.serving.batch import BatchOptions, translate_file
        from kformer.serving.batch.formats import TextLines, format_of
        from kformer.translating.streaming import warn_truncated
        from kformer.utils.progress import Progress
    if format_of(input) is TextLines:
        for name in set_options(options, ("field", "output_field")):
            raise typer.BadParameter(
                f"--{name.replace('_', '-')} is for JSON lines and Parquet, but {input} has lines "
                "of text: leave it out."
            )
    others = ("batch_size", "dtype", "backend", "threads", "field", "output_field")
    batch_options = BatchOptions(
        model=model,
        n_best=n_best,
        scores=scores,
        search=set_options(options, [*SEARCH, *SAMPLING])
        | ({"sampling": True} if options["sample"] else {}),
        ensemble=tuple(options["ensemble"] or ()),
        **set_options(options, [*others, *LANGUAGES]),
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
