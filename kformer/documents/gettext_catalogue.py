"""Catalogues of gettext (PO): what has no translation yet gets one, all else stays."""

import re

from kformer.documents.format import BOUNDARY, Edit, Format, Mark, Segment
from kformer.documents.messages import Messages, is_translatable
from kformer.documents.sentences import language_tag
from kformer.utils.gettext import CHARSET, charset, read_catalogue

_QUOTED = r'"(?:[^"\\\n]|\\.)*"'
_VALUE = re.compile(
    rf"^[ \t]*(msgstr(?:\[\d+\])?)[ \t]+({_QUOTED}(?:[ \t]*\r?\n[ \t]*{_QUOTED})*)", re.M
)
_ID = re.compile(rf"^[ \t]*msgid(?:_plural)?[ \t]+({_QUOTED}(?:[ \t]*\r?\n[ \t]*{_QUOTED})*)", re.M)
_STARTS_ENTRY = re.compile(r"^[ \t]*(?:msgid|msgctxt)[ \t]", re.M)
_HEADER = re.compile(r'^[ \t]*msgid[ \t]+""[ \t]*\r?\n(?=[ \t]*msgstr)', re.M)
_HAS_ONE = re.compile(r"plural=\s*\(?\s*n\s*!=\s*1\b")
_LANGUAGE = re.compile(r'^([ \t]*)"Language:[ \t]*([^"\n]*?)[ \t]*\\n"', re.M)
_CHARSET = re.compile(r"charset=CHARSET\b")
# An escape of polib's own reading stands for a backslash; numbers are octal or hexadecimal.
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{1,2}|[0-7]{1,3}|[abfnrtv\\\"'?])")
_SIGNS = dict(zip("abfnrtv\\\"'?", "\a\b\f\n\r\t\v\\\"'?", strict=True))
_ESCAPES = str.maketrans({sign: f"\\{name}" for name, sign in _SIGNS.items() if name not in "'?"})
_CONTROL = re.compile("[\x00-\x06\x0e-\x1f\x7f]")


class Catalogue(Format):
    """PO and POT files.

    The translation of each entry is written where its empty `msgstr` stands; entries that have one,
    and obsolete ones, stay. A plural gets the translation of `msgid_plural` in all its forms but
    the first.
    """

    name = "po"
    endings = (".po", ".pot")

    def segments(self, text):
        line_end = "\r\n" if "\r\n" in text else "\n"
        for start, end, source, flags in _empty_values(text):
            if segment := _Entry(source, flags, line_end).segment(start, end):
                yield segment

    def encoding(self, content):
        return charset(content)

    def encoded(self, text, encoding):
        try:
            return super().encoded(text, encoding)
        except UnicodeEncodeError:
            # The header is the first place with a name of an encoding.
            return CHARSET.sub(b"charset=UTF-8", text.encode("utf-8", "surrogateescape"), count=1)

    def target_languages(self, text):
        header = _header(text)
        match = header and _LANGUAGE.search(text, *header.span())
        return [match[2]] if match and match[2] else []

    def language_edits(self, text, source, target):
        value = _header(text)
        if value is None:
            return
        match = _LANGUAGE.search(text, value.start(), value.end())
        if target is not None and match:
            name = language_tag(target).replace("-", "_")
            yield Edit(*match.span(), f'{match[1]}"Language: {name}\\n"')
        if match := _CHARSET.search(text, value.start(), value.end()):
            yield Edit(*match.span(), "charset=UTF-8")


def _header(text):
    """Returns the match of the header's value; `None` if there is none."""
    header = _HEADER.search(text)
    return header and _VALUE.match(text, header.end())


class _Entry(Messages):
    """An entry of a catalogue.

    Args:
        message: str.
        flags: list of str.
        line_end: str. That of the catalogue.
    """

    def __init__(self, message, flags, line_end):
        super().__init__(flags)
        self.message, self._between = message, f'"{line_end}"'

    def segments(self, text):
        return ()

    def escaped(self, text):
        text = _CONTROL.sub(_escape_control, text.translate(_ESCAPES))
        return text.replace("\\n", "\\n" + self._between)

    def unescaped(self, raw):
        return unescaped(raw)

    def is_sound(self, source, target):
        # The source in the document is an empty value.
        is_value = re.fullmatch(rf"{_QUOTED}(?:\r?\n{_QUOTED})*", target)
        return is_value and self.is_alike(self.message, self.unescaped(target))

    def segment(self, start, end):
        """Returns the `Segment` of the entry; `None` if it has nothing to translate."""
        pieces = self.pieces(self.message)
        if not is_translatable(pieces):
            return None
        if not pieces:
            return Segment(start, end, pieces, self)
        begin = f'"{self._between}' if "\n" in self.message.rstrip("\n") else '"'
        last = pieces[-1]
        if isinstance(last, Mark) and last.raw.endswith("\\n" + self._between):
            pieces[-1] = Mark(last.raw.removesuffix(self._between), BOUNDARY)
        pieces = [Mark(begin, BOUNDARY), *pieces, Mark('"', BOUNDARY)]
        return Segment(start, end, pieces, self)


def _empty_values(text):
    """Yields the slices of the empty values of a catalogue, and for each the text to translate and
    the flags.
    """
    entries = read_catalogue(text, "The document", "documents")
    has_one = _HAS_ONE.search(text, 0, 10_000)
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    for entry in entries:
        begin = starts[min(max(entry.linenum - 1, 0), len(starts) - 1)]
        first = None if entry.obsolete or not entry.msgid else _VALUE.search(text, begin)
        if first is None:
            continue
        placeholders = _Entry("", entry.flags, "").placeholders
        # polib reads some of the escapes alone.
        sources = [unescaped(match[1]) for match in _ID.finditer(text, begin, first.start())]
        # The entry ends where the next one begins.
        following = _STARTS_ENTRY.search(text, first.end())
        stop = following.start() if following else len(text)
        values = list(_VALUE.finditer(text, first.start(), stop))
        for match in values:
            if set(re.findall(_QUOTED, match[2])) == {'""'}:
                is_first = match[1] == "msgstr[0]" and len(values) > 1
                # The first form may stand for 21 as well, which the singular does not name.
                has_same = has_one or placeholders(sources[0]) == placeholders(sources[-1])
                source = sources[0 if is_first and has_same else -1]
                yield *match.span(2), source, entry.flags


def unescaped(raw):
    """Returns the text of the quoted lines of a catalogue."""
    return _ESCAPE.sub(_unescape, "".join(part[1:-1] for part in re.findall(_QUOTED, raw)))


def _unescape(match):
    sign = match[1]
    if sign in _SIGNS:
        return _SIGNS[sign]
    return chr(int(sign[1:], 16) if sign[0] == "x" else int(sign, 8))


def _escape_control(match):
    return f"\\{ord(match[0]):03o}"
