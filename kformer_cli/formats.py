"""The commands from and to other systems: `export` and `import`."""

import dataclasses
import importlib
import pathlib
import sys

import typer

from kformer_cli.checks import check_search
from kformer_cli.environment import quiet_imports, refuse
from kformer_cli.options import (
    LANGUAGES,
    MACHINE,
    SEARCH,
    Run,
    chosen,
    flag,
    option,
    set_options,
    with_options,
)
from kformer_options.commands import COMMANDS
from kformer_options.export_formats import FORMATS, check_installed, dtypes_help, formats_help
from kformer_options.model_folders import (
    check_hub,
    check_new_folder,
    check_trained,
    is_hub_name,
    missing_model,
)
from kformer_options.search import SEARCH as SEARCH_OPTIONS
from kformer_options.text_files import check_readable

_EXPORT = {
    "n_best": dataclasses.replace(
        SEARCH_OPTIONS["n_best"],
        help_text="Translations that the signature `n_best` gives. Default: as many as the beam is "
        "wide.",
    ),
    **chosen("shortlist"),
    "early_stopping": SEARCH_OPTIONS["early_stopping"],
}
_IMPORTED_DTYPE = dataclasses.replace(
    COMMANDS["dtype"],
    choices=("float32", "float16", "bfloat16"),
    metavar=None,
    help_text="float32; float16 or bfloat16 keep weights small, and compute in it.",
)


@with_options(
    {
        **SEARCH,
        **_EXPORT,
        **chosen("serving_config"),
        **LANGUAGES,
        **chosen("ensemble", "import_module"),
        **MACHINE,
    },
    first="output format dtype beam_size length_penalty n_best signatures source_language "
    "target_language backend",
)
def export(
    run: Run,
    output: pathlib.Path = option(
        "Folder to write; a SavedModel is added to it as the next version.",
        required=True,
        metavar="FOLDER",
    ),
    format: str = option(formats_help(), default="saved_model", show_default=True),
    dtype: str | None = option(dtypes_help()),
    single: bool = flag(
        "--single",
        "saved_model: also a signature for one text at a time, which XLA compiles at its first "
        "calls.",
    ),
    signatures: str | None = option(
        "saved_model: which signatures to write, such as serving_default,n_best. Default: these "
        "two, and attention in the dtype of the weights. Only if named: constrained and prefix, "
        "with terms or the beginning of each translation, and alignment.",
        metavar="NAMES",
    ),
    runtime: pathlib.Path | None = option(
        "web: the folder of npm's package onnxruntime-web. Default: npm fetches it.",
        metavar="FOLDER",
    ),
    single_file: bool = flag(
        "--single-file", "web: one HTML file, which opens from a disk without a server."
    ),
    **options,
):
    """Export a run, by default as a TensorFlow SavedModel: tokenizer, model and search in one
    graph, strings in and strings out.

    A SavedModel's search options are fixed in it. TensorFlow Serving reads FOLDER as it is; so does
    `kformer translate FOLDER`. The other formats are for other systems: they hold the model and its
    tokenizer, and their own search translates.

    Example: [bold]kformer export runs/en-de --output saved_models/en-de --beam-size 4[/bold]
    """
    options["early_stopping"] = options["early_stopping"] or None
    search = set_options(options, [*SEARCH, *_EXPORT])
    names = None
    if signatures is not None:
        names = [name.strip() for name in signatures.split(",") if name.strip()]
    settings = {"single": single or None, "signatures": names, "runtime": runtime}
    settings["single_file"] = single_file or None
    entry = _check_export(run, format, dtype, search, settings, options)
    with quiet_imports():
        from kformer.export.serving_config import write_serving_config
        from kformer.translating import streaming
        from kformer.utils.lines import read_lines
    for module in options["import_module"] or ():
        importlib.import_module(module)
    translator = streaming.load_run_translator(
        run, **set_options(options, [*LANGUAGES, "ensemble"])
    )
    beam_size = streaming.wide_enough(translator, options["beam_size"], options["n_best"] or 1)
    settings["beam_size"] = beam_size
    search |= set_options(settings, settings)
    if dtype is not None:
        search["dtype"] = dtype
    if "shortlist" in search:
        search["shortlist"] = translator.shortlist(read_lines(search["shortlist"], "shortlist"))
    if "imports" in entry.options:
        search["imports"] = options["import_module"] or ()
    with quiet_imports():
        folder = translator.export(output, format, **search)
    print(folder)
    if options["serving_config"]:
        print(*write_serving_config(output), sep="\n")


def _check_export(run, format, dtype, search, graph, options):
    """Checks what can be checked before Keras is imported.

    Args:
        run: path.
        format, dtype: str; the dtype may be `None`.
        search: dict of the options of the search that are set.
        graph: dict of the options that not all formats have, and their values.
        options: dict of the command's options.

    Returns:
        `ExportFormat`.

    Raises:
        UsageError: there is no such format, or it does not take an option.
    """
    refuse(
        format not in FORMATS, f"--format is '{format}', but must be one of {', '.join(FORMATS)}."
    )
    entry, is_saved_model = FORMATS[format], format == "saved_model"
    refuse(
        search and not entry.has_search,
        f"The format {format} holds no search options: give them to {format}.",
    )
    refuse(
        "n_best" in search
        and graph["signatures"] is not None
        and "n_best" not in graph["signatures"],
        "--n-best is about the signature n_best, which --signatures leaves out: name it, too, or "
        "leave --n-best out.",
    )
    own = {**graph, "serving_config": options["serving_config"] or None, **search}
    for name in set_options(own, own):
        formats = [other.name for other in FORMATS.values() if name in other.options]
        refuse(
            formats and format not in formats,
            f"--{name.replace('_', '-')} is for the format {' or '.join(formats)}, not for "
            f"{format}.",
        )
    refuse(
        dtype is not None and dtype not in entry.dtypes,
        f"--dtype must be one of {', '.join(entry.dtypes)}, but {dtype!r} was given.",
    )
    if is_saved_model:
        check_search(options)
    check_installed(format)
    for path in (run, *(options["ensemble"] or ())):
        check_trained(path)
    if options["shortlist"] is not None:
        check_readable(options["shortlist"], "--shortlist")
    return entry


_TOOLKIT = chosen(
    *("source_model", "target_model", "source_vocabulary", "target_vocabulary"),
    *("pretokenized", "num_heads"),
)


@with_options(
    {**LANGUAGES, "dtype": _IMPORTED_DTYPE, **chosen("ignore", "revision"), **_TOOLKIT, **MACHINE},
    dtype="float32",
)
def import_(
    path: str = typer.Argument(
        metavar="NAME_OR_PATH",
        help="A model's name at the Hugging Face hub, or the folder of a downloaded one; or the "
        "file, folder or archive of another toolkit's model.",
    ),
    output: pathlib.Path = option("The run directory to make.", required=True, metavar="RUN"),
    **options,
):
    """Make a run of a published translation model: OPUS-MT (Marian), M2M100, NLLB-200, mBART, BART,
    T5 or mT5; or of the files of another toolkit, such as Marian's .npz or OPUS-MT's zip.

    The run translates, fine-tunes (`kformer train --start-from`) and exports like any other. By
    default it searches as the model's own settings ask, so that `kformer translate RUN` returns
    what the model's own library returns.

    Examples: [bold]kformer import Helsinki-NLP/opus-mt-en-de --output runs/opus-mt-en-de[/bold]

    [bold]kformer import opus-2020-02-26.zip --output runs/opus-mt-en-de[/bold]

    A download is kept in the cache of huggingface_hub, goes on where it broke off, and is verified.
    HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE count as in its own command `hf`.
    """
    if is_hub_name(path):
        check_hub(path)
    elif not pathlib.Path(path).exists():
        raise missing_model(path)
    check_new_folder(output)
    with quiet_imports():
        from kformer.interop import import_checkpoint
    with quiet_imports():
        run = import_checkpoint(
            path,
            output,
            **set_options(options, [*LANGUAGES, *_TOOLKIT, "dtype", "revision"]),
            ignore=options["ignore"] or (),
            report=lambda text: print(f"warning: {text}", file=sys.stderr),
        )
    print(run)
