"""The commands from and to other systems: `export` and `import`."""

import pathlib
import sys
from typing import Annotated

import typer

from kformer_cli.environment import quiet_imports
from kformer_cli.export_formats import FORMATS, dtypes_help, formats_help
from kformer_cli.options import (
    Backend,
    BeamSize,
    LengthOffset,
    LengthPenalty,
    LengthRatio,
    MaxLength,
    NoRepeatNgramSize,
    RepetitionPenalty,
    Run,
    SourceLanguage,
    TargetLanguage,
    Threads,
    option,
    wide_enough,
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
        str,
        option(
            "--format",
            show_default=True,
            help=formats_help(),
        ),
    ] = "saved_model",
    dtype: Annotated[
        str | None,
        option(
            "--dtype",
            help=dtypes_help(),
        ),
    ] = None,
    beam_size: BeamSize = None,
    n_best: Annotated[
        int | None,
        option(
            "--n-best",
            min=1,
            help="Translations that the signature `n_best` gives. Default: as many as the beam "
            "is wide.",
        ),
    ] = None,
    length_penalty: LengthPenalty = None,
    max_length: MaxLength = None,
    length_ratio: LengthRatio = None,
    length_offset: LengthOffset = None,
    repetition_penalty: RepetitionPenalty = None,
    no_repeat_ngram_size: NoRepeatNgramSize = None,
    shortlist: Annotated[
        pathlib.Path | None,
        option(
            "--shortlist",
            metavar="FILE",
            help="Text in the target language: its tokens alone are ever generated, in less "
            "time. Default: all tokens.",
        ),
    ] = None,
    early_stopping: Annotated[
        bool,
        option(
            "--early-stopping",
            help="Stop a beam sooner, at the risk of a better translation that is longer.",
        ),
    ] = False,
    single: Annotated[
        bool,
        option(
            "--single",
            help="saved_model: also a signature for one text at a time, which XLA compiles at "
            "its first calls.",
        ),
    ] = False,
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    import_module: Annotated[
        list[str] | None,
        option(
            "--import",
            metavar="MODULE",
            help="A Python module to import first, which registers layers of your own.",
        ),
    ] = None,
    threads: Threads = None,
    backend: Backend = None,
):
    """Export a run, by default as a TensorFlow SavedModel: tokenizer, model and search in one
    graph, strings in and strings out.

    A SavedModel's search options are fixed in it. TensorFlow Serving reads FOLDER as it is; so does
    `kformer translate FOLDER`. The other formats are for other systems: they hold the model and its
    tokenizer, and their own search translates.

    Example: [bold]kformer export runs/en-de --output saved_models/en-de --beam-size 4[/bold]
    """
    with quiet_imports():
        import importlib

        from kformer import streaming
    if format not in FORMATS:
        raise typer.BadParameter(
            f"--format is '{format}', but must be one of {', '.join(FORMATS)}."
        )
    entry = FORMATS[format]
    if not entry.has_search and (
        early_stopping
        or not (
            beam_size
            is n_best
            is length_penalty
            is max_length
            is length_ratio
            is length_offset
            is repetition_penalty
            is no_repeat_ngram_size
            is shortlist
            is None
        )
    ):
        raise typer.BadParameter(
            f"The format {format} holds no search options: give them to {entry.package}."
        )
    if single and "single" not in entry.options:
        raise typer.BadParameter(
            f"--single adds a signature to a SavedModel; the format {format} has none."
        )
    for module in import_module or ():
        importlib.import_module(module)
    translator = streaming.load_run_translator(run, source_language, target_language)
    options = {
        "beam_size": wide_enough(translator, beam_size, n_best or 1, False),
        "n_best": n_best,
        "length_penalty": length_penalty,
        "max_length": max_length,
        "length_ratio": length_ratio,
        "length_offset": length_offset,
        "repetition_penalty": repetition_penalty,
        "no_repeat_ngram_size": no_repeat_ngram_size,
        "shortlist": None
        if shortlist is None
        else translator.shortlist(streaming.read_lines(shortlist, "shortlist")),
        "early_stopping": early_stopping or None,
        "single": single or None,
        entry.dtype_option: dtype,
    }
    options = {name: value for name, value in options.items() if value is not None}
    if "imports" in entry.options:
        options["imports"] = import_module or ()
    with quiet_imports():
        folder = translator.export(output, format, **options)
    print(folder)


def import_(
    path: Annotated[
        pathlib.Path,
        typer.Argument(
            metavar="FOLDER",
            help="A downloaded model: config.json, model.safetensors or pytorch_model.bin, "
            "tokenizer files.",
        ),
    ],
    output: Annotated[
        pathlib.Path, option("--output", metavar="RUN", help="The run directory to make.")
    ],
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    dtype: Annotated[
        str,
        option(
            "--dtype",
            show_default=True,
            help="float32; float16 or bfloat16 keep weights small, and compute in it.",
        ),
    ] = "float32",
    ignore: Annotated[
        list[str] | None,
        option(
            "--ignore",
            metavar="SETTING",
            help="A setting of the model's generation_config.json that is ignored if kformer's "
            "search does not follow it; it is an error otherwise. Give the option again for more.",
        ),
    ] = None,
    threads: Threads = None,
    backend: Backend = None,
):
    """Make a run of a published translation model: OPUS-MT (Marian), M2M100, NLLB-200, mBART, BART,
    T5 or mT5.

    The run translates, fine-tunes (`kformer train --start-from`) and exports like any other. By
    default it searches as the model's generation_config.json asks, so that `kformer translate RUN`
    returns what the model's own library returns.

    Example: [bold]kformer import opus-mt-en-de --output runs/opus-mt-en-de[/bold]
    """
    with quiet_imports():
        from kformer.interop import import_checkpoint
    with quiet_imports():
        run = import_checkpoint(
            path,
            output,
            source_language=source_language,
            target_language=target_language,
            dtype=dtype,
            ignore=ignore or (),
            report=lambda text: print(f"warning: {text}", file=sys.stderr),
        )
    print(run)
