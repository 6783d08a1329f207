"""The commands that translate and measure: `translate`, `evaluate` and `score`."""

import json
import pathlib
import sys
from typing import Annotated

import typer

from kformer_cli.environment import UsageError, quiet_imports
from kformer_cli.options import (
    LANGUAGES,
    MACHINE,
    SAMPLING,
    SEARCH,
    BatchSize,
    Ensemble,
    Model,
    Run,
    Sample,
    given,
    option,
    wide_enough,
    with_options,
)

Input = Annotated[
    pathlib.Path | None,
    option(
        "--input",
        metavar="FILE",
        help="Text to translate. Default: standard input, line by line as it comes.",
    ),
]
Output = Annotated[
    pathlib.Path | None,
    option(
        "--output",
        metavar="FILE",
        help="Where the translations go; the file appears when it is whole. Default: standard "
        "output.",
    ),
]
NBest = Annotated[
    int,
    option(
        "--n-best",
        min=1,
        help="Translations per line, best first, in columns with tabs between them. Default: 1.",
    ),
]
Scores = Annotated[
    bool, option("--scores", help="After each translation a column with its log-probability.")
]
References = Annotated[
    list[pathlib.Path],
    option(
        "--reference",
        metavar="FILE",
        help="Its translation by people. Give the option again for further references.",
    ),
]
Tokenize = Annotated[
    str,
    option(
        "--tokenize",
        show_default=True,
        help="How BLEU splits words: 13a for languages with spaces, zh, ja-mecab, char, ...; none "
        "for text that is tokenized.",
    ),
]
Terms = Annotated[
    pathlib.Path | None,
    option(
        "--terms",
        metavar="FILE",
        help="Words and phrases that each translation must contain: a line for each line of the "
        "text, terms with tabs between them, forms of a term, one of which is enough, with | "
        "between them. It needs a beam.",
    ),
]
ForbiddenTerms = Annotated[
    pathlib.Path | None,
    option(
        "--forbidden-terms",
        metavar="FILE",
        help="What each translation must not contain: a line for each line, terms with tabs "
        "between them.",
    ),
]
Prefix = Annotated[
    pathlib.Path | None,
    option("--prefix", metavar="FILE", help="How each translation begins: a line for each line."),
]
Alternatives = Annotated[
    int | None,
    option(
        "--alternatives",
        min=1,
        help="So many translations per line, which differ in the first token after the prefix, in "
        "columns as with --n-best.",
    ),
]
Dtype = Annotated[
    str | None,
    option(
        "--dtype",
        metavar="NAME",
        help="How a run's matrices are multiplied on TensorFlow and PyTorch: float32, bfloat16 or "
        "int8. The shorter ones are faster for wide models, and change a few words. Default: the "
        "model's own.",
    ),
]
_TRANSLATOR = {
    **LANGUAGES,
    "ensemble": Ensemble,
    "dtype": Dtype,
    "batch_size": BatchSize,
    **MACHINE,
}


@with_options({**SEARCH, "sample": Sample, **SAMPLING, **_TRANSLATOR}, sample=False, batch_size=64)
def translate(
    model: Model,
    input: Input = None,
    output: Output = None,
    n_best: NBest = 1,
    scores: Scores = False,
    terms: Terms = None,
    forbidden_terms: ForbiddenTerms = None,
    prefix: Prefix = None,
    alternatives: Alternatives = None,
    **options,
):
    """Translate text, one line in, one line out.

    Every input line has exactly one output line: an empty line gives an empty line, and bytes that
    are not UTF-8 are read as U+FFFD. A SavedModel's search is fixed at its export, so other search
    options than those are refused.

    Examples: [bold]echo "A man rides a horse." | kformer translate runs/en-de[/bold]

    [bold]kformer translate saved_models/en-de --input test.en --output test.de[/bold]
    """
    if given(options, SAMPLING) and not options["sample"]:
        raise typer.BadParameter("--temperature, --top-k, --top-p and --seed are for --sample.")
    with quiet_imports():
        from kformer import streaming
        from kformer.utils.lines import check_readable, count_lines
        from kformer.utils.progress import Progress
    if input is not None:
        check_readable(str(input), "input")
    elif sys.stdin is None:
        raise UsageError("Standard input is closed: give the text to translate by --input.")
    translator = _open_translator(model, options)
    search = given(options, [*SEARCH, *SAMPLING]) | {"sampling": options["sample"] or None}
    if not options["sample"]:
        search["beam_size"] = wide_enough(translator, options["beam_size"], n_best)
    search = streaming.search_options(translator, **search, n_best=n_best)
    batch_size = options["batch_size"]
    total = count_lines(str(input)) if input is not None else None
    if not isinstance(translator, streaming.Translator) and (forbidden_terms or alternatives):
        raise UsageError(
            "A SavedModel takes --terms or --prefix alone: leave --forbidden-terms and "
            "--alternatives out, or give the run."
        )
    beside = streaming.LinesBeside(terms, forbidden_terms, prefix)
    if input is not None:
        beside.check_length(input, total)
    if alternatives is not None:
        search["alternatives"] = n_best = alternatives

    def translated(lines, first_index):
        asked = beside.arguments(first_index, len(lines))
        arguments = {"first_index": first_index, "batch_size": batch_size, **search, **asked}
        return translator.translate(lines, **arguments)

    with Progress(total) as progress, streaming.open_output(output) as out:

        def write(results):
            for result in results:
                line = streaming.format_line(result, n_best=n_best, scores=scores)
                out.write(line.encode() + b"\n")
            out.flush()

        with open(input, "rb") if input is not None else sys.stdin.buffer as lines:
            truncated = streaming.translate_lines(
                lines,
                translated,
                write,
                chunk_lines=16 * batch_size,
                progress=progress,
            )
    streaming.warn_truncated(truncated)


def _open_translator(model, options):
    from kformer import streaming

    names = ("source_language", "target_language", "ensemble", "dtype")
    return streaming.open_translator(model, **{name: options[name] for name in names})


@with_options({**SEARCH, **_TRANSLATOR}, batch_size=64)
def evaluate(
    model: Model,
    source: Annotated[pathlib.Path, option("--source", metavar="FILE", help="Text to translate.")],
    reference: References,
    tokenize: Tokenize = "13a",
    lowercase: Annotated[
        bool, option("--lowercase", help="Compare without regard to case.")
    ] = False,
    output: Annotated[
        pathlib.Path | None,
        option("--output", metavar="FILE", help="Also write the translations to this file."),
    ] = None,
    as_json: Annotated[
        bool, option("--json", help="Print one JSON object instead of lines to read.")
    ] = False,
    **options,
):
    """Translate a test set and print sacreBLEU's BLEU and chrF, with the signatures that make them
    comparable.

    Example: [bold]kformer evaluate runs/en-de --source test.en --reference test.de --beam-size
    5[/bold]
    """
    with quiet_imports():
        from kformer import streaming
        from kformer.evaluation.scores import evaluate
        from kformer.utils.checks import check_same_length
        from kformer.utils.lines import read_lines
        from kformer.utils.progress import Progress
    sources = read_lines(source, "source")
    references = [read_lines(path, "reference") for path in reference]
    for path, texts in zip(reference, references, strict=True):
        check_same_length(f"'{source}'", len(sources), f"'{path}'", len(texts))
    translator = _open_translator(model, options)
    search = streaming.search_options(translator, **given(options, SEARCH))
    settings = {"tokenize": tokenize, "lowercase": lowercase, "batch_size": options["batch_size"]}
    with Progress(len(sources)) as progress:
        result = evaluate(translator, sources, references, progress=progress, **settings, **search)
    streaming.warn_truncated([i + 1 for i in result.truncated])
    if output is not None:
        with streaming.open_output(output) as out:
            out.writelines(streaming.one_line(text).encode() + b"\n" for text in result.hypotheses)
    if as_json:
        print(json.dumps(result.as_dict(), ensure_ascii=False))
        return
    details = result.bleu_details.partition("=")[2].strip().partition(" ")[2]
    print(f"BLEU  {result.bleu:.2f}   {details}   {result.bleu_signature}")
    print(f"chrF  {result.chrf:.2f}   {result.chrf_signature}")


@with_options({**LANGUAGES, "batch_size": BatchSize, **MACHINE}, batch_size=32)
def score(
    run: Run,
    source: Annotated[pathlib.Path, option("--source", metavar="FILE", help="Source text.")],
    target: Annotated[
        pathlib.Path,
        option("--target", metavar="FILE", help="The translations to score: line n of line n."),
    ],
    **options,
):
    """Print the log-probability of given translations, one number per line.

    It is the sum over a translation's tokens and its end, in natural logarithms: the same number
    that a search reports with --scores.

    Example: [bold]kformer score runs/en-de --source test.en --target test.de[/bold]
    """
    with quiet_imports():
        from kformer import streaming
        from kformer.utils.checks import check_same_length
        from kformer.utils.lines import read_lines
        from kformer.utils.progress import Progress
    sources, targets = read_lines(source, "source"), read_lines(target, "target")
    check_same_length(f"'{source}'", len(sources), f"'{target}'", len(targets))
    languages = given(options, LANGUAGES)
    translator = streaming.load_run_translator(run, **languages)
    batch_size = options["batch_size"]
    with Progress(len(sources)) as progress:
        scores = translator.score(sources, targets, batch_size=batch_size, progress=progress)
    streaming.warn_truncated([i for i, score in enumerate(scores, 1) if score.truncated])
    print(*(f"{score:.6f}" for score in scores), sep="\n")
