"""The `kformer` command: its subcommands and what their `--help` says.

`kformer_command.py`, the entry point, runs this file without importing the package, so that help is there at once. Therefore nothing
of kformer is imported at the top; each command imports what it needs, and Keras with it.
"""

import json
import pathlib
import sys
from typing import Annotated

import typer

from kformer_command import Interrupted, quiet_imports

app = typer.Typer(
    name="kformer",
    add_completion=False,
    no_args_is_help=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Train an encoder-decoder Transformer on parallel text, translate with it, and export it as a SavedModel, strings in and "
    "strings out.\n\nBegin with [bold]kformer quickstart[/bold], which needs no data; then "
    "[bold]kformer train --train-source train.en --train-target train.de --output runs/en-de[/bold].",
)


def _version(wanted: bool):
    if wanted:
        from importlib.metadata import version

        print(f"kformer {version('kformer')}")
        raise typer.Exit


@app.callback()
def _root(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False):
    pass


def _option(*names, help, **kwargs):
    return typer.Option(*names, help=help, show_default=kwargs.pop("show_default", False), **kwargs)


# `--backend` and `--threads` are read by kformer_command, before Keras is imported; here they are declared and explained.
Backend = Annotated[
    str | None,
    _option("--backend", help="tensorflow, jax or torch: what computes. Default: $KERAS_BACKEND, else Keras's own choice (tensorflow)."),
]
Threads = Annotated[int | None, _option("--threads", help="Processor threads to use. Default: all.")]
Model = Annotated[str, typer.Argument(metavar="RUN_OR_SAVED_MODEL", help="A run directory, or a SavedModel: NAME or NAME/VERSION.")]
Run = Annotated[str, typer.Argument(metavar="RUN", help="A run directory, as `kformer train` writes it.")]
BeamSize = Annotated[
    int | None,
    _option(
        "--beam-size",
        help="Live hypotheses per sentence; 1 is greedy search, the fastest. Default: the model's, which is 4 after training.",
    ),
]
LengthPenalty = Annotated[
    float | None,
    _option(
        "--length-penalty",
        help="Exponent of the length penalty; more favours longer translations, 0 is none. Default: 0.6, as in the paper.",
    ),
]
MaxLength = Annotated[int | None, _option("--max-length", help="Most tokens of a translation. Default: one below the model's limit.")]
SourceLanguage = Annotated[
    str | None,
    _option("--source-language", metavar="CODE", help="Source language, of a model of several, such as eng_Latn. Default: its own."),
]
TargetLanguage = Annotated[
    str | None, _option("--target-language", metavar="CODE", help="Target language, of a model of several. Default: its own.")
]
BatchSize = Annotated[
    int, _option("--batch-size", min=1, show_default=True, help="Sentences translated at once: more is faster, up to the memory's end.")
]


@app.command()
def quickstart(
    output: Annotated[
        pathlib.Path, _option("--output", show_default=True, help="The run directory; an older quickstart there is replaced.")
    ] = pathlib.Path("runs/quickstart"),
    saved_model: Annotated[
        pathlib.Path, _option("--saved-model", show_default=True, help="The SavedModel; a new version is added.")
    ] = pathlib.Path("saved_models/quickstart"),
    steps: Annotated[
        int | None, _option("--steps", min=1, help="Training steps. Default: as many as reach 99 % on two processor cores in minutes.")
    ] = None,
    seed: Annotated[int, _option("--seed", min=0, show_default=True, help="Of the pairs, the weights and the order of training.")] = 0,
    quick: Annotated[bool, _option("--quick", help="A minute instead of several: everything runs, but the translations are poor.")] = False,
    threads: Threads = None,
    backend: Backend = None,
):
    """Train on generated pairs, measure, export and translate: the whole way in minutes, without any data.

    The pairs are English dates, times, numbers and amounts of money and their Chinese, which the package generates. The accuracy is
    measured on values that never occurred in training; the sentences at the end are read back from the exported SavedModel.

    Example: [bold]kformer quickstart[/bold]
    """
    with quiet_imports():
        from kformer.quickstart import quickstart
    quickstart(output, saved_model, steps=steps, seed=seed, quick=quick)


@app.command()
def train(
    output: Annotated[pathlib.Path, _option("--output", metavar="RUN", help="The run directory to make, or with --resume to go on with.")],
    train_source: Annotated[
        str | None, _option("--train-source", metavar="FILE", help="Source side: UTF-8 text, one sentence per line.")
    ] = None,
    train_target: Annotated[
        str | None, _option("--train-target", metavar="FILE", help="Target side: line n translates line n of the source.")
    ] = None,
    valid_source: Annotated[
        str | None,
        _option("--valid-source", metavar="FILE", help="Source side of text to validate with after an epoch; the best model is kept."),
    ] = None,
    valid_target: Annotated[str | None, _option("--valid-target", metavar="FILE", help="Its target side.")] = None,
    resume: Annotated[
        bool, _option("--resume", help="Go on where the training in RUN was interrupted, with the options that it began with.")
    ] = False,
    epochs: Annotated[
        int | None, _option("--epochs", help="Passes over the text. Default: 20, but at least 2,000 and at most 100,000 steps in all.")
    ] = None,
    steps: Annotated[int | None, _option("--steps", help="Steps to stop after; of --epochs and --steps, what comes first counts.")] = None,
    preset: Annotated[
        str | None,
        _option("--preset", help="Size of the model: tiny (default, right for some 10,000 pairs), small, base or big (millions of pairs)."),
    ] = None,
    norm: Annotated[
        str | None,
        _option(
            "--norm",
            help="post: layer norms behind each sub-layer, as in the paper; pre: before it, which learns much faster here. Default: pre.",
        ),
    ] = None,
    vocabulary_size: Annotated[
        int | None,
        _option(
            "--vocabulary-size",
            help="Pieces of the tokenizer. Default: 1,000 to 32,000 by the number of pairs, so that each piece occurs often enough.",
        ),
    ] = None,
    separate_vocabularies: Annotated[
        bool,
        _option("--separate-vocabularies", help="A tokenizer for each side: for languages that share no script, as English and Chinese."),
    ] = False,
    tokenizer: Annotated[str | None, _option("--tokenizer", metavar="FOLDER", help="Use this tokenizer instead of training one.")] = None,
    start_from: Annotated[
        str | None, _option("--start-from", metavar="RUN", help="Train the model of this run further, on this text (fine-tuning).")
    ] = None,
    batch_tokens: Annotated[
        int | None,
        _option(
            "--batch-tokens", help="Most padded tokens of a batch. Default: 4096, less for a small corpus; lower it if memory runs out."
        ),
    ] = None,
    max_shapes: Annotated[
        int | None, _option("--max-shapes", help="Most batch shapes; fewer spare compilations on JAX, more spare padding. Default: 8.")
    ] = None,
    max_length: Annotated[
        int | None, _option("--max-length", help="Longest sentence in tokens; longer pairs are left out and counted. Default: 256.")
    ] = None,
    dropout: Annotated[
        float | None, _option("--dropout", help="Default: the preset's; 0.3 for tiny and small. More for less text.")
    ] = None,
    label_smoothing: Annotated[float | None, _option("--label-smoothing", help="Default: 0.1, as in the paper.")] = None,
    learning_rate: Annotated[
        float | None,
        _option(
            "--learning-rate", help="Its peak. Default: the paper's rule, at most 0.64 / hidden size; with --start-from a tenth of that."
        ),
    ] = None,
    warmup_steps: Annotated[
        int | None, _option("--warmup-steps", help="Steps in which the learning rate rises. Default: a fifth of all, at most 4,000.")
    ] = None,
    clip_norm: Annotated[
        float | None,
        _option("--clip-norm", help="Largest norm of the gradient; 0 for no limit. Default: 1, which keeps a short warm-up steady."),
    ] = None,
    ema: Annotated[
        float | None,
        _option(
            "--ema",
            metavar="MOMENTUM",
            help="Keep a moving average of the weights, and validate and save that; 0.999 is usual. Default: none.",
        ),
    ] = None,
    precision: Annotated[
        str | None,
        _option(
            "--precision",
            help="float32 (default), mixed_float16 or mixed_bfloat16: the mixed ones are faster on GPUs and slower on processors.",
        ),
    ] = None,
    seed: Annotated[int | None, _option("--seed", help="The same seed, text and backend give the same training. Default: 0.")] = None,
    valid_every: Annotated[
        int | None, _option("--valid-every", metavar="EPOCHS", help="Epochs from one validation to the next. Default: 1.")
    ] = None,
    checkpoint_every: Annotated[
        int | None,
        _option(
            "--checkpoint-every",
            metavar="STEPS",
            help="Steps from one checkpoint to the next: the most that an interruption loses. Default: 500.",
        ),
    ] = None,
    keep: Annotated[int | None, _option("--keep", help="Checkpoints that are kept. Default: 2.")] = None,
    threads: Threads = None,
    backend: Backend = None,
):
    """Train a model on parallel text, or go on with a training.

    Writes a run directory: the tokenizer, config.json, history.csv (a row per step), checkpoints, and at the end of each epoch
    model.keras, so that `kformer translate RUN` works from the first epoch on.

    Example: [bold]kformer train --train-source train.en --train-target train.de --valid-source val.en --valid-target val.de
    --output runs/en-de[/bold]

    After an interruption, also by kill -9: [bold]kformer train --output runs/en-de --resume[/bold]
    """
    options = {name: value for name, value in locals().items() if name not in ("output", "resume", "threads", "backend")}
    options["separate_vocabularies"] = separate_vocabularies or None
    with quiet_imports():
        from kformer.training import train_run
    try:
        result = train_run(output, resume=resume, **options)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; `kformer train --output {output} --resume` goes on from the latest checkpoint.") from None
    print(result.path)


@app.command()
def translate(
    model: Model,
    input: Annotated[
        pathlib.Path | None,
        _option("--input", metavar="FILE", help="Text to translate. Default: standard input, line by line as it comes."),
    ] = None,
    output: Annotated[
        pathlib.Path | None,
        _option("--output", metavar="FILE", help="Where the translations go; the file appears when it is whole. Default: standard output."),
    ] = None,
    beam_size: BeamSize = None,
    n_best: Annotated[
        int, _option("--n-best", min=1, help="Translations per line, best first, in columns with tabs between them. Default: 1.")
    ] = 1,
    scores: Annotated[bool, _option("--scores", help="After each translation a column with its log-probability.")] = False,
    length_penalty: LengthPenalty = None,
    max_length: MaxLength = None,
    sample: Annotated[bool, _option("--sample", help="Draw translations at random instead of searching for the best.")] = False,
    temperature: Annotated[
        float | None, _option("--temperature", help="With --sample: below 1 draws likelier tokens, above 1 rarer ones. Default: 1.")
    ] = None,
    top_k: Annotated[int | None, _option("--top-k", help="With --sample: draw among the k likeliest tokens. Default: all.")] = None,
    top_p: Annotated[
        float | None,
        _option("--top-p", help="With --sample: draw among the likeliest tokens that hold this much probability. Default: 1, all."),
    ] = None,
    seed: Annotated[int | None, _option("--seed", help="With --sample: of the draws. Default: 0.")] = None,
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    batch_size: BatchSize = 32,
    threads: Threads = None,
    backend: Backend = None,
):
    """Translate text, one line in, one line out.

    Every input line has exactly one output line: an empty line gives an empty line, and bytes that are not UTF-8 are read as U+FFFD.
    A SavedModel's search is fixed at its export, so other search options than those are refused.

    Examples: [bold]echo "A man rides a horse." | kformer translate runs/en-de[/bold]

    [bold]kformer translate saved_models/en-de --input test.en --output test.de[/bold]
    """
    if not sample and not (temperature is top_k is top_p is seed is None):
        raise typer.BadParameter("--temperature, --top-k, --top-p and --seed are for --sample.")
    with quiet_imports():
        from kformer import streaming
        from kformer.data.lines import check_readable, count_lines
    if input is not None:
        check_readable(str(input), "input")
    translator = streaming.open_translator(model, source_language, target_language)
    options = streaming.search_options(
        translator, beam_size=_wide_enough(translator, beam_size, n_best, sample), n_best=n_best, length_penalty=length_penalty,
        max_length=max_length, sampling=sample or None, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed,
    )  # fmt: skip
    total = count_lines(str(input)) if input is not None else None
    with streaming.LineProgress(total) as progress, streaming.open_output(output) as out:

        def write(results):
            for result in results:
                out.write(streaming.format_line(result, n_best=n_best, scores=scores).encode() + b"\n")
            out.flush()

        with open(input, "rb") if input is not None else sys.stdin.buffer as lines:
            truncated = streaming.translate_lines(
                lines, lambda texts: translator.translate(texts, batch_size=batch_size, **options), write,
                chunk_lines=16 * batch_size, progress=progress,
            )  # fmt: skip
    streaming.warn_truncated(truncated)


@app.command()
def evaluate(
    model: Model,
    source: Annotated[pathlib.Path, _option("--source", metavar="FILE", help="Text to translate.")],
    reference: Annotated[
        list[pathlib.Path],
        _option("--reference", metavar="FILE", help="Its translation by people. Give the option again for further references."),
    ],
    tokenize: Annotated[
        str,
        _option(
            "--tokenize",
            show_default=True,
            help="How BLEU splits words: 13a for languages with spaces, zh, ja-mecab, char, ...; none for text that is tokenized.",
        ),
    ] = "13a",
    lowercase: Annotated[bool, _option("--lowercase", help="Compare without regard to case.")] = False,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    max_length: MaxLength = None,
    output: Annotated[pathlib.Path | None, _option("--output", metavar="FILE", help="Also write the translations to this file.")] = None,
    as_json: Annotated[bool, _option("--json", help="Print one JSON object instead of lines to read.")] = False,
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    batch_size: BatchSize = 32,
    threads: Threads = None,
    backend: Backend = None,
):
    """Translate a test set and print sacreBLEU's BLEU and chrF, with the signatures that make them comparable.

    Example: [bold]kformer evaluate runs/en-de --source test.en --reference test.de --beam-size 5[/bold]
    """
    with quiet_imports():
        from kformer import streaming
        from kformer.evaluation import evaluate
    sources = streaming.read_lines(source, "source")
    references = [streaming.read_lines(path, "reference") for path in reference]
    for path, texts in zip(reference, references, strict=True):
        streaming.check_same_length(source, sources, path, texts)
    translator = streaming.open_translator(model, source_language, target_language)
    options = streaming.search_options(translator, beam_size=beam_size, length_penalty=length_penalty, max_length=max_length)
    with streaming.LineProgress(len(sources)) as progress:
        result = evaluate(
            translator, sources, references, tokenize=tokenize, lowercase=lowercase, batch_size=batch_size, progress=progress, **options
        )
    streaming.warn_truncated([i + 1 for i in result.truncated])
    if output is not None:
        with streaming.open_output(output) as out:
            out.writelines(streaming.one_line(text).encode() + b"\n" for text in result.hypotheses)
    if as_json:
        print(json.dumps(result.as_dict(), ensure_ascii=False))
    else:
        print(f"BLEU  {result.bleu:.2f}   {result.bleu_details.partition('=')[2].strip().partition(' ')[2]}   {result.bleu_signature}")
        print(f"chrF  {result.chrf:.2f}   {result.chrf_signature}")


@app.command()
def score(
    run: Run,
    source: Annotated[pathlib.Path, _option("--source", metavar="FILE", help="Source text.")],
    target: Annotated[pathlib.Path, _option("--target", metavar="FILE", help="The translations to score: line n of line n.")],
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    batch_size: BatchSize = 32,
    threads: Threads = None,
    backend: Backend = None,
):
    """Print the log-probability of given translations, one number per line.

    It is the sum over a translation's tokens and its end, in natural logarithms: the same number that a search reports with --scores.

    Example: [bold]kformer score runs/en-de --source test.en --target test.de[/bold]
    """
    with quiet_imports():
        from kformer import streaming
    sources, targets = streaming.read_lines(source, "source"), streaming.read_lines(target, "target")
    streaming.check_same_length(source, sources, target, targets)
    translator = streaming.load_run_translator(run, source_language, target_language)
    with streaming.LineProgress(len(sources)) as progress:
        scores = translator.score(sources, targets, batch_size=batch_size, progress=progress)
    print(*(f"{score:.6f}" for score in scores), sep="\n")


@app.command()
def export(
    run: Run,
    output: Annotated[
        pathlib.Path,
        _option("--output", metavar="FOLDER", help="Folder to write; a SavedModel is added to it as the next version."),
    ],
    format: Annotated[
        str,
        _option(
            "--format",
            show_default=True,
            help="saved_model (TensorFlow Serving), ctranslate2, hf (a folder for transformers) or onnx (encoder and decoder step).",
        ),
    ] = "saved_model",
    dtype: Annotated[
        str | None,
        _option(
            "--dtype",
            help="How weights are stored. ctranslate2: float32 (default), float16, bfloat16, int8; hf: float32, float16, bfloat16; "
            "onnx: float32, float16.",
        ),
    ] = None,
    beam_size: BeamSize = None,
    n_best: Annotated[
        int | None, _option("--n-best", min=1, help="Translations that the signature `n_best` gives. Default: as many as the beam is wide.")
    ] = None,
    length_penalty: LengthPenalty = None,
    max_length: MaxLength = None,
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    import_module: Annotated[
        list[str] | None, _option("--import", metavar="MODULE", help="A Python module to import first, which registers layers of your own.")
    ] = None,
    threads: Threads = None,
    backend: Backend = None,
):
    """Export a run, by default as a TensorFlow SavedModel: tokenizer, model and search in one graph, strings in and strings out.

    A SavedModel's search options are fixed in it. TensorFlow Serving reads FOLDER as it is; so does `kformer translate FOLDER`.
    The other formats are for other systems: they hold the model and its tokenizer, and their own search translates.

    Example: [bold]kformer export runs/en-de --output saved_models/en-de --beam-size 4[/bold]
    """
    with quiet_imports():
        import importlib

        from kformer import streaming
        from kformer.export import FORMATS
    if format not in FORMATS:
        raise typer.BadParameter(f"--format is '{format}', but must be one of {', '.join(FORMATS)}.")
    if dtype is not None and format == "saved_model":
        raise typer.BadParameter("--dtype is for the other formats: a SavedModel computes as its run does.")
    if format == "ctranslate2" and not (beam_size is n_best is length_penalty is max_length is None):
        raise typer.BadParameter("The format ctranslate2 holds no search options: give them to ctranslate2.Translator.")
    for module in import_module or ():
        importlib.import_module(module)
    translator = streaming.load_run_translator(run, source_language, target_language)
    options = {
        "beam_size": _wide_enough(translator, beam_size, n_best or 1, False),
        "n_best": n_best,
        "length_penalty": length_penalty,
        "max_length": max_length,
        "quantization" if format == "ctranslate2" else "dtype": dtype,
    }
    options = {name: value for name, value in options.items() if value is not None}
    if format == "saved_model":
        options["imports"] = import_module or ()
    with quiet_imports():
        folder = translator.export(output, format, **options)
    print(folder)


@app.command("import")
def import_(
    path: Annotated[
        pathlib.Path,
        typer.Argument(metavar="FOLDER", help="A downloaded model: config.json, model.safetensors or pytorch_model.bin, tokenizer files."),
    ],
    output: Annotated[pathlib.Path, _option("--output", metavar="RUN", help="The run directory to make.")],
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    dtype: Annotated[
        str, _option("--dtype", show_default=True, help="float32; float16 or bfloat16 keep weights small, and compute in it.")
    ] = "float32",
    threads: Threads = None,
    backend: Backend = None,
):
    """Make a run of a published translation model: OPUS-MT (Marian), M2M100, NLLB-200, mBART or BART.

    The run translates, fine-tunes (`kformer train --start-from`) and exports like any other. By default it searches as the model's
    generation_config.json says, so that `kformer translate RUN` says what the model's own library says.

    Example: [bold]kformer import opus-mt-en-de --output runs/opus-mt-en-de[/bold]
    """
    with quiet_imports():
        from kformer.interop import import_checkpoint
    with quiet_imports():
        run = import_checkpoint(
            path, output, source_language=source_language, target_language=target_language, dtype=dtype,
            report=lambda text: print(f"warning: {text}", file=sys.stderr),
        )  # fmt: skip
    print(run)


def _wide_enough(translator, beam_size, n_best, sample):
    """The beam size, widened to `n_best` where nobody said how wide it should be and the search is not fixed."""
    default = getattr(translator.options, "beam_size", None)
    return n_best if beam_size is None and not sample and default is not None and n_best > default else beam_size
