"""The commands that translate and measure: `translate`, `evaluate` and `score`."""

import contextlib
import importlib
import itertools
import json
import pathlib
import sys

from kformer_cli.beside import BESIDE, LinesBeside
from kformer_cli.checks import check_models, check_search, check_sides, refuse_beside
from kformer_cli.documents import (
    DOCUMENTS,
    check_documents,
    end_coverage,
    end_lines,
    json_line,
    lines_translator,
    translate_file,
)
from kformer_cli.environment import UsageError, quiet_imports, refuse
from kformer_cli.options import (
    BATCH,
    LANGUAGES,
    MACHINE,
    SAMPLING,
    SEARCH,
    Json,
    Model,
    Run,
    chosen,
    flag,
    option,
    set_options,
    with_options,
)
from kformer_cli.workers import WORKERS, translate_by_workers
from kformer_options.model_folders import check_run
from kformer_options.names import named
from kformer_options.text_files import check_output, check_readable, count_lines

WORDS = chosen("alignment", "confidence")
# Options that exclude columns about words: a line has several translations with them, is split, or
# is translated in another process.
_WITHOUT_WORDS = ("alternatives", "workers", "document", "split", "glossary")
_WITHOUT_RETRY = (*BESIDE, "document", "alignment", "confidence", "sample", "mbr")
_WITHOUT_COVERAGE = ("workers", "split", "alternatives", "ensemble")
# Options that name a file that is read beside the text.
_FILES = ("document", "glossary", "terms", "forbidden_terms", "prefix")
# The parameters of commands hide it.
input_line = input

_OF_MODELS = chosen("ensemble", "dtype", "trust_models", "batch_size", "devices")
_TRANSLATOR = {**LANGUAGES, **_OF_MODELS, **MACHINE}


@with_options(
    {
        **DOCUMENTS,
        **SEARCH,
        **chosen("sample", "mbr"),
        **SAMPLING,
        **BESIDE,
        **WORDS,
        **chosen("coverage", "retry"),
        **_TRANSLATOR,
        **WORKERS,
    },
    first="input output document glossary beam_size n_best scores length_penalty target_language "
    "batch_size backend",
    batch_size=64,
)
def translate(
    model: Model,
    input: pathlib.Path | None = option(
        "Text to translate. Default: standard input, line by line as it comes.", metavar="FILE"
    ),
    output: pathlib.Path | None = option(
        "Where the translations go; the file appears when it is whole. Default: standard output.",
        metavar="FILE",
    ),
    n_best: int = option(
        "Translations per line, best first, in columns with tabs between them. Default: 1.",
        default=1,
        min=1,
    ),
    scores: bool = flag("--scores", "After each translation a column with its log-probability."),
    **options,
):
    """Translate text, one line in, one line out.

    Every input line has exactly one output line: an empty line gives an empty line, and bytes that
    are not UTF-8 are read as U+FFFD. A SavedModel's search is fixed at its export, so other search
    options than those are refused. With --workers files may be compressed (.gz, .bz2, .xz, .zst),
    JSON lines (.jsonl) or Parquet (.parquet).

    Examples: [bold]echo "A man rides a horse." | kformer translate runs/en-de[/bold]

    [bold]kformer translate saved_models/en-de --input test.en --output test.de[/bold]

    [bold]kformer translate saved_models/en-de --input all.en.gz --output all.de.gz --workers
    8[/bold]
    """
    _check_kinds(options, n_best)
    check_documents(options, input, n_best, scores)
    check_search(options)
    check_models(model, options["ensemble"])
    files = (options[name] for name in _FILES)
    files = (0 if input is None else input, *files)
    check_output(output, *files)
    if options["coverage"] is not None:
        check_output(options["coverage"], *files, output)
    if options["workers"] is not None:
        return translate_by_workers(model, input, output, n_best, scores, options)
    total = _number_of_lines(input) if options["document"] is None else None
    beside = LinesBeside(options, total)
    with quiet_imports():
        from kformer.translating import streaming
        from kformer.translating.coverage import without_model
        from kformer.translating.retry import retranslate
        from kformer.utils.progress import Progress
    translator = _open_translator(model, options)
    is_run = isinstance(translator, streaming.Translator)
    refuse(options["retry"] and not is_run, "--retry searches: give the run, not a SavedModel.")
    for name in () if is_run else set_options(options, ("mbr", *WORDS)):
        raise UsageError(f"A SavedModel's search is fixed: leave --{name} out, or give the run.")
    beside.read(is_run)
    search = set_options(options, [*SEARCH, *SAMPLING]) | {"sampling": _samples(options) or None}
    if not _samples(options):
        search["beam_size"] = streaming.wide_enough(translator, options["beam_size"], n_best)
    search = streaming.search_options(translator, **search, n_best=n_best)
    batch_size = options["batch_size"]
    if options["alternatives"] is not None:
        search["alternatives"] = n_best = options["alternatives"]
    search |= set_options(options, ["mbr"])
    if options["document"] is not None:
        return translate_file(translator, output, options, {"batch_size": batch_size, **search})
    translator = lines_translator(translator, options)
    columns = set_options(options, WORDS)
    doubtful = 0
    path = options["coverage"]
    is_typed = input is None and sys.stdin.isatty()

    def translated(lines, first_index):
        arguments = {"first_index": first_index, "batch_size": batch_size, **search}
        arguments |= beside.arguments(first_index, len(lines))
        translations = translator.translate(lines, **arguments)
        if columns:
            words = translator.annotated(lines, translations, **columns)
            pairs = zip(translations, words, strict=True)
            translations = [translation._replace(words=words) for translation, words in pairs]
        if path is not None:
            translations = covered(lines, translations, first_index)
        return translations

    def covered(lines, translations, first_index):
        nonlocal doubtful
        if is_run:
            words = translator.annotated(lines, translations, coverage=True)
            coverages = [each.coverage for each in words]
        else:
            pairs = zip(lines, translations, strict=True)
            coverages = [without_model(line, each.text) for line, each in pairs]
        if options["retry"]:
            again = {"batch_size": batch_size, **search}
            pairs = retranslate(translator, lines, translations, coverages, **again)
            translations, coverages = pairs
        rows = zip(lines, translations, coverages, strict=True)
        for number, (line, each, coverage) in enumerate(rows, first_index + 1):
            row = {"line": number, "source": line, "translation": each.text, **coverage.as_dict()}
            report.write(json_line(row))
            doubtful += coverage.is_doubtful
        return translations

    with (
        contextlib.nullcontext() if is_typed else Progress(total) as progress,
        streaming.open_output(output) as out,
        contextlib.nullcontext() if path is None else streaming.open_output(path) as report,
    ):

        def write(results):
            for result in results:
                line = streaming.format_line(result, n_best=n_best, scores=scores)
                out.write(line.encode() + b"\n")
            out.flush()

        if is_typed:
            _converse(translated, write)
        else:
            chunks = {"chunk_lines": 16 * batch_size, "progress": progress}
            lines = streaming.lines_of(input)
            truncated = streaming.translate_lines(lines, translated, write, **chunks)
    if not is_typed:
        end_lines(translator, truncated, options)
    end_coverage(doubtful, options)


def _samples(options):
    return options["sample"] or options["mbr"] is not None


def _check_kinds(options, n_best):
    """Checks that one thing is searched for, sampled or listed, with columns that fit."""
    refuse(
        options["alternatives"] is not None and n_best > 1,
        "--alternatives and --n-best are two lists: give one of them.",
    )
    for name in set_options(options, WORDS):
        refuse(
            n_best > 1 or any(options[other] for other in _WITHOUT_WORDS),
            f"--{name} is about the best translation of each line as it is: leave out --n-best, "
            f"{', '.join(map(named, _WITHOUT_WORDS))}.",
        )
    refuse(options["retry"] and options["coverage"] is None, "--retry is for --coverage FILE.")
    if options["coverage"] is not None:
        refuse(n_best > 1, "--coverage is about the best translation: leave --n-best out.")
        refuse_beside("--coverage", options, _WITHOUT_COVERAGE)
        if options["document"] is None:
            refuse_beside("--coverage", options, ["glossary"])
    if options["retry"]:
        refuse_beside("--retry", options, _WITHOUT_RETRY)
    refuse(
        set_options(options, SAMPLING) and not _samples(options),
        "--temperature, --top-k, --top-p and --seed are for --sample and --mbr.",
    )
    for name in set_options(options, WORKERS):
        refuse(options["workers"] is None, f"{named(name)} is for --workers.")
    if options["mbr"] is not None:
        refuse_beside("--mbr", options, ("sample", "alternatives", "workers"))


def _number_of_lines(input):
    """The lines of the text, once it has been checked; `None` if they come by a pipe."""
    if input is None:
        refuse(
            sys.stdin is None, "Standard input is closed: give the text to translate by --input."
        )
        return None
    check_readable(str(input), "--input")
    return count_lines(str(input))


def _converse(translate, write):
    """Translates each line that somebody types, at once."""
    print("Type a sentence and press Enter; Ctrl-D ends.", file=sys.stderr)
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")  # Arrow keys and a history, by being imported.
    for number in itertools.count():
        try:
            # `input` writes its prompt to standard output, which must hold translations alone if
            # it goes to a file.
            if not sys.stdout.isatty():
                print("> ", end="", file=sys.stderr, flush=True)
            text = input_line("> " if sys.stdout.isatty() else "")
        except EOFError:
            print(file=sys.stderr)
            return
        write(translate([text], first_index=number))


def _open_translator(model, options):
    from kformer.translating import streaming

    chosen = set_options(options, [*LANGUAGES, "ensemble", "dtype", "devices", "trust_models"])
    return streaming.open_translator(model, **chosen)


@with_options(
    {**SEARCH, **_TRANSLATOR},
    first="source reference corpora tokenize output as_json beam_size length_penalty batch_size "
    "backend",
    batch_size=64,
)
def evaluate(
    model: Model,
    source: pathlib.Path | None = option("Text to translate.", metavar="FILE"),
    reference: list[pathlib.Path] = option(
        "Its translation by people. Give the option again for further references.", metavar="FILE"
    ),
    corpora: pathlib.Path | None = option(
        "In place of both: a description of corpora (YAML), whose validation sets are translated, "
        "a row for each direction.",
        metavar="FILE",
    ),
    tokenize: str | None = option(
        "How BLEU splits words: 13a, zh, ja-mecab, char, ...; none for text that is tokenized. "
        "Default: what suits the script of the references."
    ),
    lowercase: bool = flag("--lowercase", "Compare without regard to case."),
    output: pathlib.Path | None = option(
        "Also write the translations to this file.", metavar="FILE"
    ),
    as_json: Json = False,
    **options,
):
    """Translate a test set and print sacreBLEU's BLEU and chrF, with the signatures that make them
    comparable.

    Examples: [bold]kformer evaluate runs/en-de --source test.en --reference test.de --beam-size
    5[/bold]

    [bold]kformer evaluate runs/all --corpora tests.yaml[/bold]
    """
    reference = reference or []
    check_search(options)
    refuse(
        corpora is None and (source is None or not reference),
        "What should be translated? Give --source and --reference, or --corpora.",
    )
    if corpora is not None:
        others = {"--source": source, "--reference": reference, "--output": output}
        others |= {named(name): options[name] for name in LANGUAGES}
        refuse_beside("--corpora", others, others)
    check_sides([(source, "--source"), *((path, "--reference") for path in reference)])
    check_models(model, options["ensemble"])
    check_output(output, source, *reference)
    with quiet_imports():
        from kformer.evaluation import scores
        from kformer.translating import streaming
        from kformer.utils.progress import Progress
    sets = _test_sets(source, reference, corpora)
    translator = _open_translator(model, options)
    settings = streaming.search_options(translator, **set_options(options, SEARCH))
    settings |= {"tokenize": tokenize, "lowercase": lowercase, "batch_size": options["batch_size"]}
    if corpora is not None:
        _print_directions(scores.evaluate_directions(translator, sets, **settings), as_json)
        return
    [(sources, references)] = sets.values()
    with Progress(len(sources)) as progress:
        result = scores.evaluate(translator, sources, references, progress=progress, **settings)
    streaming.warn_truncated([i + 1 for i in result.truncated])
    if result.length_remark:
        print(f"warning: {result.length_remark}", file=sys.stderr)
    if output is not None:
        with streaming.open_output(output) as out:
            out.writelines(streaming.one_line(text).encode() + b"\n" for text in result.hypotheses)
    if as_json:
        print(json.dumps(result.as_dict(), ensure_ascii=False))
        return
    details = result.bleu_details.partition("=")[2].strip().partition(" ")[2]
    print(f"BLEU  {result.bleu:.2f}   {details}   {result.bleu_signature}")
    print(f"chrF  {result.chrf:.2f}   {result.chrf_signature}")


def _test_sets(source, reference, corpora):
    """The lines of the test sets by direction: tuples of sources, and of references."""
    from kformer.data.corpora.description import load_validation
    from kformer.utils.lines import read_lines

    if corpora is None:
        references = [read_lines(path, "reference") for path in reference]
        return {None: (read_lines(source, "source"), references)}
    paths = load_validation(corpora)
    for sides in paths.values():
        check_sides([(path, "--corpora") for path in sides])
    return {
        direction: tuple(read_lines(path, "test set") for path in sides)
        for direction, sides in paths.items()
    }


def _print_directions(results, as_json):
    """Prints a row for each direction, and the mean; and warns of what was cut."""
    from kformer.translating import streaming

    mean = {
        name: sum(getattr(result, name) for result in results.values()) / len(results)
        for name in ("bleu", "chrf")
    }
    for name, result in results.items():
        if result.truncated:
            print(f"{name}:", end=" ", file=sys.stderr)
        streaming.warn_truncated([i + 1 for i in result.truncated])
        if result.length_remark:
            print(f"{name}: warning: {result.length_remark}", file=sys.stderr)
    if as_json:
        rows = {name: result.as_dict() for name, result in results.items()}
        print(json.dumps({"directions": rows, "mean": mean}, ensure_ascii=False))
        return
    width = max(9, *map(len, results))
    print(f"{'direction':{width}}   BLEU   chrF   signatures")
    for name, result in results.items():
        signatures = f"{result.bleu_signature}, {result.chrf_signature}"
        print(f"{name:{width}}  {result.bleu:5.2f}  {result.chrf:5.2f}   {signatures}")
    print(f"{'mean':{width}}  {mean['bleu']:5.2f}  {mean['chrf']:5.2f}")


@with_options({**LANGUAGES, **BATCH, **MACHINE}, batch_size=32)
def score(
    run: Run,
    source: pathlib.Path = option("Source text.", required=True, metavar="FILE"),
    target: pathlib.Path = option(
        "The translations to score: line n of line n.", required=True, metavar="FILE"
    ),
    as_json: Json = False,
    **options,
):
    """Print the log-probability of given translations, one number per line.

    It is the sum over a translation's tokens and its end, in natural logarithms: the same number
    that a search reports with --scores, unless it computes the tokens of a list alone.

    Example: [bold]kformer score runs/en-de --source test.en --target test.de[/bold]
    """
    check_sides([(source, "--source"), (target, "--target")])
    check_run(run)
    with quiet_imports():
        from kformer.translating import streaming
        from kformer.utils.lines import read_lines
        from kformer.utils.progress import Progress
    sources, targets = read_lines(source, "source"), read_lines(target, "target")
    translator = streaming.load_run_translator(run, **set_options(options, LANGUAGES))
    batch_size = options["batch_size"]
    with Progress(len(sources)) as progress:
        scores = translator.score(sources, targets, batch_size=batch_size, progress=progress)
    streaming.warn_truncated([i for i, score in enumerate(scores, 1) if score.truncated])
    if as_json:
        numbers = {
            "scores": [float(score) for score in scores],
            "truncated": [score.truncated for score in scores],
        }
        print(json.dumps(numbers))
        return
    print(*(f"{score:.6f}" for score in scores), sep="\n")
