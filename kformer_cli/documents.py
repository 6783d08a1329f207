"""What `kformer translate` does with documents, terms, and lines of several sentences."""

import json
import pathlib
import re
import sys

from kformer_cli.checks import refuse_beside
from kformer_cli.environment import refuse
from kformer_cli.options import chosen
from kformer_options.names import named
from kformer_options.text_files import check_readable
from kformer_options.wording import counted

DOCUMENTS = chosen("document", "format", "language_pair", "glossary", "split", "strict")
_PAIR = re.compile(r"[A-Za-z]{2,3}([_@][\w@]+)?-[A-Za-z]{2,3}([_@][\w@]+)?")
_MOST_PROBLEMS = 20
_NOT_WITH = ("terms", "forbidden_terms", "prefix", "alternatives", "workers", "sample")


def check_documents(options, input, n_best, scores):
    """Checks the options of documents, before the long work.

    Args:
        options: dict of the command's options.
        input: path or `None`.
        n_best: int.
        scores: bool.

    Raises:
        UsageError: two options do not fit together, or there is no such format.
        FileNotFoundError: the document or the glossary does not exist.
        ValueError: it is a folder or is compressed.
    """
    if options["strict"]:
        refuse_beside("--strict", options, ["workers"])
    refuse(options["document"] is None and options["format"], "--format is for --document.")
    used = [name for name in ("document", "glossary", "split") if options[name]]
    pair = options["language_pair"]
    refuse(
        pair is not None and not used, "--language-pair is for --document, --split and --glossary."
    )
    meant = re.sub("-(?=[A-Z][A-Za-z]{1,3}(?:-|$))", "_", pair or "")
    refuse(
        pair is not None and not _PAIR.fullmatch(pair),
        f"--language-pair must be two codes, such as de-en or pt_BR-en, but {pair!r} was given. "
        + (f"Write {meant}." if _PAIR.fullmatch(meant) else "Within a code write _, not -."),
    )
    for side, code in zip(("source", "target"), (pair or "-").split("-"), strict=True):
        language = options[f"{side}_language"]
        refuse(
            pair is not None and language not in (None, code),
            f"--language-pair {pair} and --{side}-language {language} name two {side} languages: "
            "leave one of the options out.",
        )
    if not used:
        return
    refuse_beside(named(used[0]), options, _NOT_WITH)
    refuse(n_best > 1 or scores, f"--{used[0]} gives one translation, without scores.")
    if options["glossary"] is not None:
        check_readable(options["glossary"], "--glossary")
    if options["document"] is not None:
        refuse(
            input is not None or options["split"],
            "--document is a file of its own: leave --input and --split out.",
        )
        check_readable(
            options["document"], "--document", is_document=True, format=options["format"]
        )


def translate_file(translator, output, options, search):
    """Translates a document and writes it.

    Args:
        translator: as `kformer.translating.streaming.open_translator` returns it.
        output: path, or `None` for standard output.
        options: dict of the command's options.
        search: dict of options of the translator's `translate`.
    """
    from kformer.documents import format_of, translate_document
    from kformer.translating import streaming
    from kformer.utils.progress import Progress

    path = pathlib.Path(options["document"])
    content = path.read_bytes()
    format = options["format"] or format_of(path, content)
    with Progress(what="sentences") as progress:
        document = translate_document(
            translator,
            content,
            format,
            progress=progress,
            coverage=options["coverage"] is not None,
            **_arguments(options),
            **search,
        )
    with streaming.open_output(output) as out:
        out.write(document.text)
    sentences = document.report.coverage
    if options["coverage"] is not None:
        with streaming.open_output(options["coverage"]) as out:
            out.writelines(json_line(each.as_dict()) for each in sentences)
    if not document.report.segments and not document.report.untranslated:
        print(
            f"warning: nothing to translate was found in {path}. Its format is taken to be "
            f"{format!r}: --format names another.",
            file=sys.stderr,
        )
    _print_report(document.report)
    count = document.report.cut
    end_with(count, options)
    if count:
        print(
            f"warning: {counted(count, 'part')} of the text had to be cut: raise --max-length or "
            "--max-text-bytes.",
            file=sys.stderr,
        )
    end_coverage(sum(each.coverage.is_doubtful for each in sentences), options)


def json_line(row):
    """A row of the file of coverage, as bytes."""
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def end_coverage(doubtful, options):
    """Prints how many translations are doubtful; with --strict that is an error."""
    if doubtful:
        message = f"{counted(doubtful, 'translation')} may have left out or added something"
        if options["strict"]:
            raise ValueError(f"{message} (--strict): see '{options['coverage']}'.")
        print(f"{message}: see '{options['coverage']}'.", file=sys.stderr)


class WholeLines:
    """Translates lines sentence by sentence, as `Translator.translate` does whole ones.

    Args:
        translator: as `kformer.translating.streaming.open_translator` returns it.
        options: dict of the command's options.
    """

    def __init__(self, translator, options):
        from kformer.documents import Report

        self._translator, self._arguments = translator, _arguments(options)
        self.report = Report()

    def translate(self, lines, *, first_index=0, **search):
        """A list of `Translation`, one for each line."""
        from kformer.documents import translate_document
        from kformer.translating.translation import Hypothesis, Translation

        text = "\n".join(lines)
        document = translate_document(self._translator, text, "lines", **self._arguments, **search)
        cut = {text.count("\n", 0, position) for position in document.report.cut_at}
        for problem in document.report.problems:
            problem.line += first_index
        self.report.add(document.report)
        return [
            Translation([Hypothesis(line, None, None, None)], number in cut)
            for number, line in enumerate(document.text.split("\n"))
        ]


def lines_translator(translator, options):
    """What translates lines: the translator itself, or `WholeLines`."""
    wants = options["split"] or options["glossary"] is not None
    return WholeLines(translator, options) if wants else translator


def end_lines(translator, truncated, options):
    """Prints what is to be known of translated lines; with --strict what was cut is an error.

    Args:
        translator: from `lines_translator`.
        truncated: `kformer.translating.streaming.TruncatedLines`.
        options: dict of the command's options.
    """
    from kformer.translating.streaming import warn_truncated

    if isinstance(translator, WholeLines):
        _print_report(translator.report)
    warn_truncated(truncated)
    if truncated.count and not isinstance(translator, WholeLines):
        print("With --split such lines are translated whole.", file=sys.stderr)
    end_with(truncated.count, options)


def end_with(count, options):
    """Raises an error if something was cut and --strict was given."""
    if count and options["strict"]:
        raise ValueError(
            f"{counted(count, 'part')} of the text had to be cut (--strict); the output has all "
            "the rest."
        )


def _arguments(options):
    from kformer.documents import Glossary

    arguments = {}
    pair = None if options["language_pair"] is None else options["language_pair"].split("-")
    if options["glossary"] is not None:
        arguments["glossary"] = Glossary.load(options["glossary"], pair)
    if pair is not None:
        arguments |= dict(zip(("source_language", "target_language"), pair, strict=True))
    elif options["target_language"] is not None:
        # Else a document that names another language would have that one.
        arguments["target_language"] = options["target_language"]
    return arguments


def _print_report(report):
    if report.untranslated:
        print(
            f"warning: {counted(report.untranslated, 'part')} could not be translated and stayed "
            "as they were.",
            file=sys.stderr,
        )
    if report.unreadable:
        print(
            f"warning: {counted(report.unreadable, 'byte')} could not be read: the text is in "
            "another encoding than UTF-8. Convert it, as with iconv -t utf-8.",
            file=sys.stderr,
        )
    problems = report.problems
    for problem in problems[:_MOST_PROBLEMS]:
        line = f"line {problem.line}"
        if problem.member is not None:
            line = f"{problem.member}, paragraph {problem.line}"
        print(f"{line}: {problem.reason}: {problem.text!r}", file=sys.stderr)
    if len(problems) > _MOST_PROBLEMS:
        print(f"... and {len(problems) - _MOST_PROBLEMS} more.", file=sys.stderr)
    for use in report.terms:
        target = "|".join(use.target) or "not translated"
        print(f"{use.source}\t{target}\tfound {use.found}, used {use.used}", file=sys.stderr)
