"""The formats by their names and by the endings of files."""

import pathlib

from kformer.documents.gettext_catalogue import Catalogue
from kformer.documents.html_pages import HTML
from kformer.documents.html_tokens import html_tokens
from kformer.documents.markdown import Markdown
from kformer.documents.office import OpenDocument, Slides, Word
from kformer.documents.plain_text import Lines, PlainText
from kformer.documents.resources import JSON, Android, Properties, Strings
from kformer.documents.subtitles import Subtitles, WebVTT
from kformer.documents.xliff import XLIFF
from kformer.documents.xml_pieces import local
from kformer.utils.checks import check_choice

_FORMATS = (
    *(PlainText, HTML, Markdown, Subtitles, WebVTT, Catalogue, Lines),
    *(Word, Slides, OpenDocument, XLIFF),
    *(JSON, Properties, Strings, Android),
)
FORMATS = tuple(format.name for format in _FORMATS)
# Android names its files and not their endings.
_ANDROID = frozenset(("strings.xml", "arrays.xml", "plurals.xml"))
# The formats of XML by their first elements, which stand within so many bytes.
_ROOTS, _MOST_BYTES = {"resources": Android.name, "xliff": XLIFF.name, "html": HTML.name}, 1 << 16


def format_named(name):
    """The `Format` of a name.

    Args:
        name: str, one of `FORMATS`.

    Raises:
        ValueError: there is no such format.
    """
    return _FORMATS[FORMATS.index(check_choice("format", name, FORMATS))]()


def format_of(path, content=b""):
    """The name of a file's format, by its ending: plain text if no format has it.

    Args:
        path: path.
        content: bytes, default empty. What is in the file: the format of XML follows from it.

    Raises:
        ValueError: it is XML that no format reads.
    """
    path = pathlib.PurePath(path)
    if path.name in _ANDROID:
        return Android.name
    ending = path.suffix.lower()
    name = next((f.name for f in _FORMATS if ending in f.endings), None)
    root = _root(content) if name is None else None
    is_xml = ending == ".xml" or b"<?xml" in content[:20].replace(b"\0", b"")
    if root is not None and is_xml and root not in _ROOTS:
        raise ValueError(
            f"The document '{path}' is XML that no format reads (it begins with <{root}>): name "
            "the format that it has, or save it as text."
        )
    return name or _ROOTS.get(root, PlainText.name)


def _root(content):
    """Returns the first element of XML or HTML, without its prefix; `None` of other text."""
    # ASCII is the same in all encodings, without the zeros of UTF-16.
    text = (
        content[:_MOST_BYTES].replace(b"\0", b"").lstrip(b"\xef\xbb\xbf\xff\xfe").decode("latin-1")
    )
    for token in html_tokens(text, is_xml=True):
        if token.kind == "start":
            return local(token.name)
        if text[token.start : token.end].strip() and token.kind != "other":
            return None
    return None
