"""Documents through a translator: `translate_document`, and the method `document`."""

import codecs
import contextlib
from typing import AnyStr, NamedTuple

from kformer.documents.formats import format_named
from kformer.documents.model import Model
from kformer.documents.work import Report, translated

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
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
    progress=None,
    **options,
) -> DocumentTranslation:
    """Translates a document, sentence by sentence, and leaves all else as it is.

    Args:
        translator: `kformer.Translator` or `kformer.export.SavedModelTranslator`.
        text: str, or bytes as they stand in a file.
        format: str, default `"text"`. `"text"`, `"html"`, `"markdown"`, `"srt"` or `"po"`; or
            `"lines"`, text with something of its own in each line.
        glossary: `Glossary`, default `None`. How terms are translated.
        source_language: str, default `None`. The code of the document's language, such as "de", for
            the ends of its sentences; `None` for that of the translator if it has several, else for
            English. Chinese and Japanese need none.
        target_language: str, default `None`. The code that an HTML page or a PO file is marked
            with; `None` for that of the translator if it has several. Where it has none, an HTML
            page says nothing of its language, and a PO file what it said.
        progress: function, default `None`. It is called with the number of sentences done.
        **options: as for the translator's `translate`, such as `beam_size`.

    Returns:
        `DocumentTranslation`.

    Raises:
        ValueError: the format is unknown, or the document is not valid in it.
        ImportError: a package of the extra `documents` is not installed.
    """
    chosen = format_named(format)
    source_language = source_language or _language(translator, "source")
    target_language = target_language or _language(translator, "target")
    content, write = _decoded(text, chosen)
    model, done, step = Model(translator, options), 0, None
    work = translated(
        content,
        chosen,
        model,
        source_language=source_language,
        target_language=target_language,
        glossary=glossary,
    )
    while True:
        try:
            requests = work.send(step)
        except StopIteration as end:
            found, report = end.value
            return DocumentTranslation(write(found), report)
        step = model.translate(requests)
        done += len(requests)
        if progress is not None:
            progress(done)


def _language(translator, role):
    tokenizer = getattr(translator, "tokenizer", None)
    return getattr(tokenizer, f"{role}_language", None)


def _decoded(text, format):
    """A document as str, and a function from its translation to what its reader gets."""
    if isinstance(text, str):
        return text, str
    bom, unicode = next((pair for pair in _BOMS if text.startswith(pair[0])), (b"", "utf-8"))
    named = None if bom else _codec(format.encoding(text))
    # Bytes that cannot be read stay as they are, unless the document is UTF-8 after all.
    for errors in ("strict", "surrogateescape") if named else ():
        with contextlib.suppress(UnicodeError):
            return text.decode(named, errors), lambda found: format.encoded(found, named)
        with contextlib.suppress(UnicodeError):
            return text.decode(), str.encode
    errors, end = "surrogateescape", len(text)
    if unicode != "utf-8":
        # Half a character, or the half of a pair, stays too.
        errors, end = "surrogatepass", end - (end - len(bom)) % 2

    def write(found):
        return bom + found.encode(unicode, errors) + text[end:]

    return text[len(bom) : end].decode(unicode, errors), write


def _codec(name):
    """The codec of an encoding that a document names; `None` for UTF-8, and if it cannot be."""
    with contextlib.suppress(LookupError, UnicodeError):
        if name and _ASCII.encode().decode(name) == _ASCII:
            found = codecs.lookup(name).name
            return None if found == "utf-8" else found
    return None


class DocumentMethods:
    """What translators have for documents."""

    def document(
        self,
        text: AnyStr,
        format: str = "text",
        *,
        glossary=None,
        source_language: str | None = None,
        target_language: str | None = None,
        **options,
    ) -> AnyStr:
        """Translates a document, sentence by sentence, and leaves all else as it is.

        `kformer.documents.translate_document` returns a report, too.

        Args:
            text: str, or bytes as they stand in a file.
            format: str, default `"text"`. `"text"`, `"html"`, `"markdown"`, `"srt"`, `"po"` or
                `"lines"`.
            glossary: `kformer.documents.Glossary`, default `None`. How terms are translated.
            source_language: str, default `None`. The code of the document's language.
            target_language: str, default `None`. The code that the document is marked with.
            **options: those of `translate`, such as `beam_size`.

        Returns:
            str, or bytes for bytes.

        Raises:
            ValueError: the format is unknown, or the document is not valid in it.
            ImportError: a package of the extra `documents` is not installed.

        Example:
        ```python
        translator = kformer.Translator.load("runs/en-de")
        translator.document("<p>A man rides a <b>horse</b>.</p>", format="html")
        ```
        """
        named = {
            "glossary": glossary,
            "source_language": source_language,
            "target_language": target_language,
        }
        return translate_document(self, text, format, **named, **options).text
