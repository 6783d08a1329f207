"""What `kformer translate` does with several processes."""

from kformer_cli.beside import BESIDE
from kformer_cli.checks import refuse_beside
from kformer_cli.environment import Interrupted, quiet_imports, refuse
from kformer_cli.options import LANGUAGES, SAMPLING, SEARCH, chosen, set_options
from kformer_options.installed import check_extra
from kformer_options.names import named

WORKERS = chosen("workers", "ray_address", "field", "output_field")
_OF_THE_JOB = ("batch_size", "dtype", "trust_models", "backend", "threads", *LANGUAGES)


def translate_by_workers(model, input, output, n_best, scores, options):
    """Translates a file by several processes.

    Args:
        model: path.
        input, output: paths or `None`.
        n_best: int.
        scores: bool.
        options: dict of the command's options.

    Raises:
        UsageError: a file is missing, or an option has no effect with workers.
        Interrupted: Ctrl-C ended the work.
    """
    refuse(input is None or output is None, "--workers needs --input FILE and --output FILE.")
    for name in set_options(options, [*BESIDE, "devices"]):
        refuse_beside(named(name), options, ["workers"])
    if options["ray_address"] is not None:
        check_extra("--ray-address", "cluster", ("ray",))
    with quiet_imports():
        from kformer.serving.batch import BatchOptions, translate_file
        from kformer.serving.batch.formats import TextLines, format_of
        from kformer.translating.streaming import warn_truncated
        from kformer.utils.progress import Progress
    fields = set_options(options, ("field", "output_field"))
    for name in fields:
        refuse(
            format_of(input) is TextLines,
            f"{named(name)} is for JSON lines and Parquet, but {input} has lines of text: leave it "
            "out.",
        )
    search = set_options(options, [*SEARCH, *SAMPLING])
    if options["sample"]:
        search["sampling"] = True
    batch_options = BatchOptions(
        model=model,
        n_best=n_best,
        scores=scores,
        search=search,
        ensemble=tuple(options["ensemble"] or ()),
        **fields,
        **set_options(options, _OF_THE_JOB),
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
