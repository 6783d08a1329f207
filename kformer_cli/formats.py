"""The commands from and to other systems: `export` and `import`."""

import dataclasses
import importlib
import pathlib
import sys
from typing import Annotated

import typer

from kformer_cli.checks import check_search
from kformer_cli.environment import UsageError, quiet_imports
from kformer_cli.options import (
    LANGUAGES,
    MACHINE,
    SEARCH,
    Run,
    chosen,
    option,
    set_options,
    with_options,
)
from kformer_options.commands import COMMANDS
from kformer_options.export_formats import FORMATS, check_installed, dtypes_help, formats_help
from kformer_options.model_folders import (
    check_hub,
    check_new_folder,
    check_published,
    check_trained,
    is_hub_name,
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
    }
)
def export(
    run: Run,
    output: Annotated[
        pathlib.Path,
        option(
            "--output",
            metavar="FOLDER",
            help="Folder to write; a SavedModel is added to it as the next version.",
        ),
    ],
    format: Annotated[
        str, option("--format", show_default=True, help=formats_help())
    ] = "saved_model",
    dtype: Annotated[str | None, option("--dtype", help=dtypes_help())] = None,
    single: Annotated[
        bool,
        option(
            "--single",
            help="saved_model: also a signature for one text at a time, which XLA compiles at its "
            "first calls.",
        ),
    ] = False,
    signatures: Annotated[
        str | None,
        option(
            "--signatures",
            metavar="NAMES",
            help="saved_model: which signatures to write, such as serving_default,n_best. Default: "
            "these two, and attention in the dtype of the weights. Only if named: constrained and "
            "prefix, with terms or the beginning of each translation, and alignment.",
        ),
    ] = None,
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
    others = {
        "single": single,
        "signatures": signatures,
        **set_options(options, ["serving_config"]),
    }
    entry = _check_format(format, search, others)
    _check_export(run, entry, dtype, options)
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
    more = {"beam_size": beam_size, "single": single or None, "signatures": _names(signatures)}
    search |= set_options(more, more)
    if dtype is not None:
        search[entry.dtype_option] = dtype
    if "shortlist" in search:
        search["shortlist"] = translator.shortlist(read_lines(search["shortlist"], "shortlist"))
    if "imports" in entry.options:
        search["imports"] = options["import_module"] or ()
    with quiet_imports():
        folder = translator.export(output, format, **search)
    print(folder)
    if options["serving_config"]:
        print(*write_serving_config(output), sep="\n")


def _names(text):
    """The names in a text, separated by commas; `None` stays."""
    if text is None:
        return None
    return [name.strip() for name in text.split(",") if name.strip()]


def _check_export(run, entry, dtype, options):
    """Checks what can be checked before Keras is imported."""
    if dtype is not None and dtype not in entry.dtypes:
        raise UsageError(
            f"--dtype must be one of {', '.join(entry.dtypes)}, but {dtype!r} was given."
        )
    if entry.name == "saved_model":
        check_search(options)
    check_installed(entry.name)
    for each in (run, *(options["ensemble"] or ())):
        check_trained(each)
    if options["shortlist"] is not None:
        check_readable(options["shortlist"], "--shortlist")


def _check_format(format, search, others):
    """The entry of the format, once it is known that it takes these options."""
    if format not in FORMATS:
        raise typer.BadParameter(
            f"--format is '{format}', but must be one of {', '.join(FORMATS)}."
        )
    entry = FORMATS[format]
    if search and not entry.has_search:
        raise typer.BadParameter(
            f"The format {format} holds no search options: give them to {format}."
        )
    if "max_text_bytes" in search and format != "saved_model":
        raise typer.BadParameter(
            f"--max-text-bytes is for a SavedModel; the format {format} does not tokenize."
        )
    if others.pop("serving_config", False) and format != "saved_model":
        raise typer.BadParameter(
            f"--serving-config is for a SavedModel; TensorFlow Serving reads no {format}."
        )
    signatures = _names(others["signatures"])
    if "n_best" in search and signatures is not None and "n_best" not in signatures:
        raise typer.BadParameter(
            "--n-best is about the signature n_best, which --signatures leaves out: name it, too, "
            "or leave --n-best out."
        )
    for name, value in others.items():
        if value not in (None, False) and name not in entry.options:
            raise typer.BadParameter(
                f"--{name} is about the signatures of a SavedModel; the format {format} has none."
            )
    return entry


@with_options(
    {**LANGUAGES, "dtype": _IMPORTED_DTYPE, **chosen("ignore", "revision"), **MACHINE},
    dtype="float32",
)
def import_(
    path: Annotated[
        str,
        typer.Argument(
            metavar="NAME_OR_FOLDER",
            help="A model's name at the Hugging Face hub, or the folder of a downloaded one: "
            "config.json, model.safetensors or pytorch_model.bin, tokenizer files.",
        ),
    ],
    output: Annotated[
        pathlib.Path, option("--output", metavar="RUN", help="The run directory to make.")
    ],
    **options,
):
    """Make a run of a published translation model: OPUS-MT (Marian), M2M100, NLLB-200, mBART, BART,
    T5 or mT5.

    The run translates, fine-tunes (`kformer train --start-from`) and exports like any other. By
    default it searches as the model's generation_config.json asks, so that `kformer translate RUN`
    returns what the model's own library returns.

    Examples: [bold]kformer import Helsinki-NLP/opus-mt-en-de --output runs/opus-mt-en-de[/bold]

    [bold]kformer import opus-mt-en-de --output runs/opus-mt-en-de[/bold]

    A download is kept in the cache of huggingface_hub, goes on where it broke off, and is verified.
    HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE count as in its own command `hf`.
    """
    if is_hub_name(path):
        check_hub(path)
    else:
        check_published(path)
    check_new_folder(output)
    with quiet_imports():
        from kformer.interop import import_checkpoint
    with quiet_imports():
        run = import_checkpoint(
            path,
            output,
            **set_options(options, [*LANGUAGES, "dtype", "revision"]),
            ignore=options["ignore"] or (),
            report=lambda text: print(f"warning: {text}", file=sys.stderr),
        )
    print(run)
