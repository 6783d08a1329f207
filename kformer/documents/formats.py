"""The formats by their names and by the endings of files."""

import pathlib

from kformer.documents.gettext_catalogue import Catalogue
from kformer.documents.html_pages import HTML
from kformer.documents.markdown import Markdown
from kformer.documents.office import OpenDocument, Slides, Word
from kformer.documents.plain_text import Lines, PlainText
from kformer.documents.resources import JSON, Android, Properties, Strings
from kformer.documents.subtitles import Subtitles, WebVTT
from kformer.documents.xliff import XLIFF
from kformer.utils.checks import check_choice

_FORMATS = (
    *(PlainText, HTML, Markdown, Subtitles, WebVTT, Catalogue, Lines),
    *(Word, Slides, OpenDocument, XLIFF),
    *(JSON, Properties, Strings, Android),
)
FORMATS = tuple(format.name for format in _FORMATS)


def format_named(name):
    """The `Format` of a name.

    Args:
        name: str, one of `FORMATS`.

    Raises:
        ValueError: there is no such format.
    """
    return _FORMATS[FORMATS.index(check_choice("format", name, FORMATS))]()


def format_of(path):
    """The name of a file's format, by its ending: plain text if no format has it.

    Args:
        path: path.
    """
    ending = pathlib.PurePath(path).suffix.lower()
    # Android names its files and not their endings.
    if pathlib.PurePath(path).name == "strings.xml":
        return Android.name
    return next((f.name for f in _FORMATS if ending in f.endings), PlainText.name)
