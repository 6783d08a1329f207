"""The commands that translate and measure: `translate`, `evaluate` and `score`."""

import functools
import json
import pathlib
import sys
from typing import Annotated

import typer

from kformer_cli.environment import quiet_imports
from kformer_cli.options import (
    Backend,
    BatchSize,
    BeamSize,
    Ensemble,
    LengthOffset,
    LengthPenalty,
    LengthRatio,
    MaxLength,
    Model,
    NoRepeatNgramSize,
    RepetitionPenalty,
    Run,
    SourceLanguage,
    TargetLanguage,
    Threads,
    option,
    wide_enough,
)


def translate(
    model: Model,
    input: Annotated[
        pathlib.Path | None,
        option(
            "--input",
            metavar="FILE",
            help="Text to translate. Default: standard input, line by line as it comes.",
        ),
    ] = None,
    output: Annotated[
        pathlib.Path | None,
        option(
            "--output",
            metavar="FILE",
            help="Where the translations go; the file appears when it is whole. Default: "
            "standard output.",
        ),
    ] = None,
    beam_size: BeamSize = None,
    n_best: Annotated[
        int,
        option(
            "--n-best",
            min=1,
            help="Translations per line, best first, in columns with tabs between them. "
            "Default: 1.",
        ),
    ] = 1,
    scores: Annotated[
        bool, option("--scores", help="After each translation a column with its log-probability.")
    ] = False,
    length_penalty: LengthPenalty = None,
    max_length: MaxLength = None,
    length_ratio: LengthRatio = None,
    length_offset: LengthOffset = None,
    repetition_penalty: RepetitionPenalty = None,
    no_repeat_ngram_size: NoRepeatNgramSize = None,
    sample: Annotated[
        bool,
        option("--sample", help="Draw translations at random instead of searching for the best."),
    ] = False,
    temperature: Annotated[
        float | None,
        option(
            "--temperature",
            help="With --sample: below 1 draws likelier tokens, above 1 rarer ones. Default: 1.",
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        option("--top-k", help="With --sample: draw among the k likeliest tokens. Default: all."),
    ] = None,
    top_p: Annotated[
        float | None,
        option(
            "--top-p",
            help="With --sample: draw among the likeliest tokens that hold this much "
            "probability. Default: 1, all.",
        ),
    ] = None,
    seed: Annotated[
        int | None, option("--seed", help="With --sample: of the draws. Default: 0.")
    ] = None,
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    ensemble: Ensemble = None,
    batch_size: BatchSize = 64,
    threads: Threads = None,
    backend: Backend = None,
):
    """Translate text, one line in, one line out.

    Every input line has exactly one output line: an empty line gives an empty line, and bytes that
    are not UTF-8 are read as U+FFFD. A SavedModel's search is fixed at its export, so other search
    options than those are refused.

    Examples: [bold]echo "A man rides a horse." | kformer translate runs/en-de[/bold]

    [bold]kformer translate saved_models/en-de --input test.en --output test.de[/bold]
    """
    if not sample and not (temperature is top_k is top_p is seed is None):
        raise typer.BadParameter("--temperature, --top-k, --top-p and --seed are for --sample.")
    with quiet_imports():
        from kformer import streaming
        from kformer.utils.lines import check_readable, count_lines
        from kformer.utils.progress import Progress
    if input is not None:
        check_readable(str(input), "input")
    translator = streaming.open_translator(model, source_language, target_language, ensemble)
    options = streaming.search_options(
        translator,
        beam_size=wide_enough(translator, beam_size, n_best, sample),
        n_best=n_best,
        length_penalty=length_penalty,
        max_length=max_length,
        length_ratio=length_ratio,
        length_offset=length_offset,
        repetition_penalty=repetition_penalty,
        no_repeat_ngram_size=no_repeat_ngram_size,
        sampling=sample or None,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )
    total = count_lines(str(input)) if input is not None else None
    with Progress(total) as progress, streaming.open_output(output) as out:

        def write(results):
            for result in results:
                out.write(
                    streaming.format_line(result, n_best=n_best, scores=scores).encode() + b"\n"
                )
            out.flush()

        with open(input, "rb") if input is not None else sys.stdin.buffer as lines:
            truncated = streaming.translate_lines(
                lines,
                functools.partial(translator.translate, batch_size=batch_size, **options),
                write,
                chunk_lines=16 * batch_size,
                progress=progress,
            )
    streaming.warn_truncated(truncated)


def evaluate(
    model: Model,
    source: Annotated[pathlib.Path, option("--source", metavar="FILE", help="Text to translate.")],
    reference: Annotated[
        list[pathlib.Path],
        option(
            "--reference",
            metavar="FILE",
            help="Its translation by people. Give the option again for further references.",
        ),
    ],
    tokenize: Annotated[
        str,
        option(
            "--tokenize",
            show_default=True,
            help="How BLEU splits words: 13a for languages with spaces, zh, ja-mecab, char, "
            "...; none for text that is tokenized.",
        ),
    ] = "13a",
    lowercase: Annotated[
        bool, option("--lowercase", help="Compare without regard to case.")
    ] = False,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    max_length: MaxLength = None,
    length_ratio: LengthRatio = None,
    length_offset: LengthOffset = None,
    repetition_penalty: RepetitionPenalty = None,
    no_repeat_ngram_size: NoRepeatNgramSize = None,
    output: Annotated[
        pathlib.Path | None,
        option("--output", metavar="FILE", help="Also write the translations to this file."),
    ] = None,
    as_json: Annotated[
        bool, option("--json", help="Print one JSON object instead of lines to read.")
    ] = False,
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    ensemble: Ensemble = None,
    batch_size: BatchSize = 64,
    threads: Threads = None,
    backend: Backend = None,
):
    """Translate a test set and print sacreBLEU's BLEU and chrF, with the signatures that make them
    comparable.

    Example: [bold]kformer evaluate runs/en-de --source test.en --reference test.de --beam-size
        5[/bold]
    """
    with quiet_imports():
        from kformer import streaming
        from kformer.evaluation.scores import evaluate
        from kformer.utils.progress import Progress
    sources = streaming.read_lines(source, "source")
    references = [streaming.read_lines(path, "reference") for path in reference]
    for path, texts in zip(reference, references, strict=True):
        streaming.check_same_length(source, sources, path, texts)
    translator = streaming.open_translator(model, source_language, target_language, ensemble)
    options = streaming.search_options(
        translator,
        beam_size=beam_size,
        length_penalty=length_penalty,
        max_length=max_length,
        length_ratio=length_ratio,
        length_offset=length_offset,
        repetition_penalty=repetition_penalty,
        no_repeat_ngram_size=no_repeat_ngram_size,
    )
    with Progress(len(sources)) as progress:
        result = evaluate(
            translator,
            sources,
            references,
            tokenize=tokenize,
            lowercase=lowercase,
            batch_size=batch_size,
            progress=progress,
            **options,
        )
    streaming.warn_truncated([i + 1 for i in result.truncated])
    if output is not None:
        with streaming.open_output(output) as out:
            out.writelines(streaming.one_line(text).encode() + b"\n" for text in result.hypotheses)
    if as_json:
        print(json.dumps(result.as_dict(), ensure_ascii=False))
    else:
        print(
            f"BLEU  {result.bleu:.2f}   "
            f"{result.bleu_details.partition('=')[2].strip().partition(' ')[2]}   "
            f"{result.bleu_signature}"
        )
        print(f"chrF  {result.chrf:.2f}   {result.chrf_signature}")


def score(
    run: Run,
    source: Annotated[pathlib.Path, option("--source", metavar="FILE", help="Source text.")],
    target: Annotated[
        pathlib.Path,
        option("--target", metavar="FILE", help="The translations to score: line n of line n."),
    ],
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    batch_size: BatchSize = 32,
    threads: Threads = None,
    backend: Backend = None,
):
    """Print the log-probability of given translations, one number per line.

    It is the sum over a translation's tokens and its end, in natural logarithms: the same number
    that a search reports with --scores.

    Example: [bold]kformer score runs/en-de --source test.en --target test.de[/bold]
    """
    with quiet_imports():
        from kformer import streaming
        from kformer.utils.progress import Progress
    sources, targets = (
        streaming.read_lines(source, "source"),
        streaming.read_lines(target, "target"),
    )
    streaming.check_same_length(source, sources, target, targets)
    translator = streaming.load_run_translator(run, source_language, target_language)
    with Progress(len(sources)) as progress:
        scores = translator.score(sources, targets, batch_size=batch_size, progress=progress)
    streaming.warn_truncated([i for i, score in enumerate(scores, 1) if score.truncated])
    print(*(f"{score:.6f}" for score in scores), sep="\n")
