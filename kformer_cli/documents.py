"""What `kformer translate` does with documents, terms, and lines of several sentences."""

import pathlib
import re
import sys

import typer

from kformer_cli.options import chosen
from kformer_options.text_files import check_readable

DOCUMENTS = chosen("document", "format", "language_pair", "glossary", "split", "strict")
_NOT_WITH = ("terms", "forbidden_terms", "prefix", "alternatives", "workers", "sample")


def check_documents(options, input, n_best, scores):
    """Checks the options of documents, before the long work.

    Args:
        options: dict of the command's options.
        input: path or `None`.
        n_best: int.
        scores: bool.

    Raises:
        typer.BadParameter: two options do not fit together, or there is no such format.
        FileNotFoundError: the document or the glossary does not exist.
        ValueError: it is a folder or is compressed.
    """
    if options["strict"] and options["workers"]:
        raise typer.BadParameter("--strict is not for --workers: leave one out.")
    if options["document"] is None and options["format"]:
        raise typer.BadParameter("--format is for --document.")
    used = [name for name in ("document", "glossary", "split") if options[name]]
    if options["language_pair"] is not None:
        if not used:
            raise typer.BadParameter("--language-pair is for --document, --split and --glossary.")
        if not re.fullmatch(r"[A-Za-z]{2,3}(_\w+)?-[A-Za-z]{2,3}(_\w+)?", options["language_pair"]):
            raise typer.BadParameter(
                f"--language-pair must be two codes, such as de-en, but "
                f"{options['language_pair']!r} was given."
            )
    if not used:
        return
    first = f"--{used[0]}"
    for name in _NOT_WITH:
        if options[name]:
            raise typer.BadParameter(
                f"{first} is not for --{name.replace('_', '-')}: leave one out."
            )
    if n_best > 1 or scores:
        raise typer.BadParameter(f"{first} gives one translation, without scores.")
    if options["glossary"] is not None:
        check_readable(options["glossary"], "--glossary")
    if options["document"] is None:
        return
    if input is not None or options["split"]:
        raise typer.BadParameter("--document is a file of its own: leave --input and --split out.")
    check_readable(options["document"], "--document", is_document=True)


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
    with Progress(what="sentences") as progress:
        found = translate_document(
            translator,
            path.read_bytes(),
            options["format"] or format_of(path),
            progress=progress,
            **_arguments(options),
            **search,
        )
    with streaming.open_output(output) as out:
        out.write(found.text)
    _print_report(found.report)
    if (count := found.report.cut) and not options["strict"]:
        print(
            f"warning: {count} part{'s' if count > 1 else ''} of the text had to be cut: raise "
            "--max-length or --max-text-bytes.",
            file=sys.stderr,
        )
    end_with(found.report.cut, options)


class WholeLines:
    """Translates lines sentence by sentence, as `Translator.translate` does whole ones.

    Args:
        translator: as `kformer.translating.streaming.open_translator` returns it.
        options: dict of the command's options.
    """

    def __init__(self, translator, options):
        from kformer.documents import Report

        self._translator, self._arguments = translator, _arguments(options)
        self._report = Report()

    def translate(self, lines, *, first_index=0, **search):
        """A list of `Translation`, one for each line."""
        from kformer.documents import translate_document
        from kformer.translating.translation import Hypothesis, Translation

        text = "\n".join(lines)
        found = translate_document(self._translator, text, "lines", **self._arguments, **search)
        cut = {text.count("\n", 0, position) for position in found.report.cut_at}
        self._report.add(found.report)
        return [
            Translation([Hypothesis(line, None, None, None)], number in cut)
            for number, line in enumerate(found.text.split("\n"))
        ]

    def print_report(self):
        """Prints the terms that were found."""
        _print_report(self._report)


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
        translator.print_report()
    warn_truncated(truncated)
    if truncated.count and not isinstance(translator, WholeLines):
        print("With --split such lines are translated whole.", file=sys.stderr)
    end_with(truncated.count, options)


def end_with(count, options):
    """Raises an error if something was cut and --strict was given."""
    if count and options["strict"]:
        raise ValueError(
            f"{count} part{'s' if count > 1 else ''} of the text had to be cut (--strict); the "
            "output has all the rest."
        )


def _arguments(options):
    from kformer.documents import Glossary

    found = {}
    if options["glossary"] is not None:
        found["glossary"] = Glossary.load(options["glossary"])
    if options["language_pair"] is not None:
        found["source_language"], found["target_language"] = options["language_pair"].split("-")
    return found


def _print_report(report):
    if report.untranslated:
        print(
            f"warning: {report.untranslated} part{'s' if report.untranslated > 1 else ''} could "
            "not be translated and stayed as they were.",
            file=sys.stderr,
        )
    for use in report.terms:
        target = "|".join(use.target) or "not translated"
        print(f"{use.source}\t{target}\tfound {use.found}, used {use.used}", file=sys.stderr)
