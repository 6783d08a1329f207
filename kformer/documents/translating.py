"""Documents through a translator."""

import codecs
import contextlib
import dataclasses
from typing import NamedTuple

from kformer.documents.formats import format_named
from kformer.documents.job import Answer
from kformer.documents.office import Archive
from kformer.documents.sentences import language_tag
from kformer.documents.words import SURROGATE, one_line, tokens
from kformer.documents.work import Report, translated
from kformer.text.languages import some_languages
from kformer.translating.coverage import without_model
from kformer_options.text_files import check_text

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# Texts above this length are divided before a model has seen them, where no tokenizer is at hand.
_MOST_CHARACTERS = 2000
# An encoding that reads it otherwise is not the one of a document that names it in ASCII.
_ASCII = r"<+AGE-\u0041~~>"


class DocumentTranslation(NamedTuple):
    """A translated document.

    Attributes:
        text: str, or bytes if the document was given as bytes.
        report: `Report`.
    """

    text: str | bytes
    report: Report


def translate_document(
    translator,
    text: str | bytes,
    format: str = "text",
    *,
    glossary=None,
    source_language: str | None = None,
    target_language: str | None = None,
    coverage: bool = False,
    progress=None,
    **options,
) -> DocumentTranslation:
    """Translates a document, sentence by sentence, and leaves all else as it is.

    Args:
        translator: `kformer.Translator` or `kformer.export.SavedModelTranslator`.
        text: str, or bytes as they stand in a file.
        format: str, default `"text"`. `"text"`, `"html"`, `"markdown"`, `"srt"`, `"vtt"`,
            `"po"`, `"json"` (also ARB), `"properties"`, `"strings"` (Apple's), `"android"`
            (strings.xml), `"xliff"`; or `"docx"`, `"pptx"` or `"odt"`, whose text is bytes; or
            `"lines"`, text with something of its own in each line.
        glossary: `Glossary`, default `None`. How terms are translated.
        source_language: str, default `None`. The code of the document's language, such as "de", for
            the ends of its sentences; `None` for that of the translator if it has several, else for
            English. Chinese and Japanese need none. A model that reads its source language, such as
            NLLB, reads this one, if the code is one of its own.
        target_language: str, default `None`. The code of the language to translate into, among
            those of the translator; `None` for the one that a PO or XLIFF file names, else for its
            own. With a translator of one direction an HTML page and a PO file are marked with it,
            and nothing else; with `None` such a page says nothing of its language, and a PO file
            what it said.
        coverage: bool, default `False`. Whether the report tells what was left out or added, the
            most doubtful sentences first. A SavedModel tells what needs no model.
        progress: function, default `None`. It is called with the number of sentences done.
        **options: as for the translator's `translate`, such as `beam_size`.

    Returns:
        `DocumentTranslation`.

    Raises:
        ValueError: the format is unknown, the document is not valid in it or is no text, such as
            a PDF, or the translator does not have the target language, or that of the document.
        ImportError: a package of the extra `documents` is not installed.
    """
    format = format_named(format)
    content, write = _decoded(text, format)
    # A run's tokenizer knows the languages, and a SavedModel, which has no tokenizer, does itself.
    tokenizer = getattr(translator, "tokenizer", translator)
    own = getattr(tokenizer, "target_language", None)
    if languages := getattr(tokenizer, "languages", None):
        if target_language is None:
            target_language = language_named(format.target_languages(content), languages, own)
        source = source_language if source_language in languages else None
        translator = translator.for_direction(source, target_language)
    if target_language is None:
        target_language = own
    model, done, answers = Model(translator, options), 0, None
    work = translated(
        content,
        format,
        model,
        source_language=source_language or getattr(tokenizer, "source_language", None),
        target_language=target_language,
        glossary=glossary,
    )
    while True:
        try:
            requests = work.send(answers)
        except StopIteration as end:
            translation, report = end.value
            report.unreadable = len(SURROGATE.findall(content))
            if coverage and report.translations:
                report.coverage = _coverage(translator, report.translations)
            return DocumentTranslation(write(translation), report)
        answers = model.translate(requests)
        done += len(requests)
        if progress is not None:
            progress(done)


def language_named(codes, languages, own):
    """Returns a translator's code for the language that a document names; `None` if it names none.

    Args:
        codes: iterable of str. What the document names, each as often as it stands there.
        languages: iterable of str. The codes of the translator.
        own: str or `None`. The one that it translates into by itself.
    """
    codes = list(dict.fromkeys(codes))
    found = {_known(code, languages, own) for code in codes}
    if len(found) > 1 or None in found:
        raise ValueError(
            f"The document is to be translated into {', '.join(map(repr, codes))}, which is not "
            "one language of this translator: choose a target language, such as "
            f"{some_languages(languages)}."
        )
    return found.pop() if found else None


def _known(named, languages, own):
    """Returns a translator's code for a language; `None` if it has none, or several."""
    # "zh-TW" is "zh" where that is all there is, and neither "zho_Hans" nor "zho_Hant" by itself.
    for form in (language_tag, _primary):
        matches = [code for code in languages if form(code) == form(named)]
        if own in matches:
            return own
        if len(matches) == 1:
            return matches[0]
    return None


def _primary(code):
    """Returns the code of a language without its script and country: "zh" for "zho_Hans"."""
    return language_tag(code).partition("-")[0]


def _coverage(translator, translations):
    """A list of `SentenceCoverage` with their coverage, the most doubtful first."""
    sides = [one.source for one in translations], [one.translation for one in translations]
    if hasattr(translator, "coverage"):
        coverages = translator.coverage(*sides)
    else:
        coverages = map(without_model, *sides)
    rows = zip(translations, coverages, strict=True)
    found = [dataclasses.replace(one, coverage=coverage) for one, coverage in rows]
    return sorted(found, key=lambda one: -one.coverage.probability)


def _decoded(text, format):
    """Returns a document as str, and a function from its translation to what its reader gets."""
    if isinstance(format, Archive):
        if isinstance(text, str):
            raise ValueError(f"A document of the format {format.name!r} is bytes: read the file.")
        return format.unpacked(text)
    if isinstance(text, str):
        return text, str
    check_text(text, "The document")
    bom, unicode = next((pair for pair in _BOMS if text.startswith(pair[0])), (b"", "utf-8"))
    # Each character of UTF-16 without a byte order mark has a zero byte, if it is of ASCII.
    for offset, name in ((1, "utf-16-le"), (0, "utf-16-be")) if not bom else ():
        zeros, others = (text[first:1000:2].count(0) for first in (offset, 1 - offset))
        if zeros > len(text[:1000]) // 5 and zeros > 10 * others:
            unicode = name
    name, codec = None if bom or unicode != "utf-8" else format.encoding(text), None
    with contextlib.suppress(LookupError, UnicodeError):
        if name and _ASCII.encode().decode(name) == _ASCII:
            codec = codecs.lookup(name).name
    # Bytes that cannot be read stay as they are, unless the document is UTF-8 after all.
    for errors in ("strict", "surrogateescape") if codec not in (None, "utf-8") else ():
        with contextlib.suppress(UnicodeError):
            return text.decode(codec, errors), lambda target: format.encoded(target, codec)
        with contextlib.suppress(UnicodeError):
            return text.decode(), str.encode
    errors, end = "surrogateescape", len(text)
    if unicode != "utf-8":
        # Half a character, or the half of a pair, stays too.
        errors, end = "surrogatepass", end - (end - len(bom)) % 2
    content = text[len(bom) : end].decode(unicode, errors)
    return content, lambda target: bom + target.encode(unicode, errors) + text[end:]


class Model:
    """A translator and the options of its search.

    Args:
        translator: `kformer.Translator` or `kformer.export.SavedModelTranslator`.
        options: dict of keyword arguments of its `translate`.
    """

    def __init__(self, translator, options):
        self._translator, self._options = translator, options
        self._tokenizer = getattr(translator, "tokenizer", None)
        self._sizes = {}
        # Whether a search can be told to write terms.
        if self._tokenizer is None:
            self._is_forcible = translator.takes_terms
        else:
            names, search = ("beam_size", "sampling", "shortlist"), translator.options
            beam, *others = (options.get(name, getattr(search, name)) for name in names)
            others += [options.get("mbr"), options.get("alternatives")]
            self._is_forcible = beam > 1 and not any(others)

    def forces(self, terms):
        """Returns whether the search can be told to write terms: a tuple of tuples of forms."""
        if not self._is_forcible or not terms or self._tokenizer is None:
            return self._is_forcible
        most = min(self._translator.model.max_length, self._max_length)
        most -= len(self._translator.options.prefix_ids)
        return sum(self._size(forms) for forms in terms) <= most // 2

    @property
    def _max_length(self):
        """The most tokens that a translation has before its end."""
        return self._options.get("max_length", self._translator.options.max_length)

    def _size(self, forms):
        """Returns the tokens of a term; too many if the vocabulary lacks one."""
        if forms not in self._sizes:
            vocabulary = self._tokenizer.vocabulary("target")
            rows = vocabulary.encode(list(forms))
            is_written = all(row and vocabulary.unknown_id not in row for row in rows)
            self._sizes[forms] = max(map(len, rows)) if is_written else 10**9
        return self._sizes[forms]

    def translate(self, requests):
        """Returns the `Answer` to each `Request`, in order. Equal ones are translated once."""
        answers, pending = {}, ([], [])
        for request in dict.fromkeys(requests):
            if self._is_too_long(request.text):
                answers[request] = Answer(" ", True)
            else:
                pending[bool(request.terms)].append(request)
        for batch in filter(None, pending):
            arguments = dict(self._options)
            if batch[0].terms and self._tokenizer is not None:
                arguments["terms"] = [list(request.terms) for request in batch]
            elif batch[0].terms:
                # A SavedModel takes one form of each. What is missing is reported later.
                terms = [[forms[0] for forms in request.terms] for request in batch]
                arguments |= {"terms": terms, "require_terms": False}
            results = self._translator.translate([each.text for each in batch], **arguments)
            for request, result in zip(batch, results, strict=True):
                is_at_limit = self._is_at_limit(result, request.text)
                answers[request] = Answer(one_line(result.text), result.truncated, is_at_limit)
        return [answers[request] for request in requests]

    def _is_too_long(self, text):
        if self._tokenizer is None:
            return len(text) > _MOST_CHARACTERS
        most = self._translator.model.max_length
        # A token has a few characters at most: the longest texts are not tokenized to know it.
        return len(text) > 64 * most or (
            len(text) > most // 4
            and len(self._tokenizer.tokenize([text], special_tokens=True)[0]) > most
        )

    def _is_at_limit(self, result, text):
        """Returns whether the search stopped at its limit, which a sound translation reaches."""
        ids = result.hypotheses[0].ids
        if self._tokenizer is None or not ids:
            return False
        if ids[-1] == self._tokenizer.end_id and len(ids) <= self._max_length:
            return False
        # A few words do not need so many tokens: there the model has lost its way.
        words = len(tokens(text))
        return words >= 8 or self._max_length <= 4 * words
