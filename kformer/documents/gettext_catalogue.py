"""Catalogues of gettext (PO): what has no translation yet gets one, all else stays."""

import re

from kformer.documents.format import BOUNDARY, BREAK, Edit, Format, Mark, Segment, Tag, Text
from kformer.documents.plain_text import PlainText
from kformer.documents.sentences import language_tag
from kformer.documents.words import has_letters, split
from kformer.utils.gettext import CHARSET, charset, read_catalogue

_QUOTED = r'"(?:[^"\\\n]|\\.)*"'
_VALUE = re.compile(
    rf"^[ \t]*(msgstr(?:\[\d+\])?)[ \t]+({_QUOTED}(?:[ \t]*\r?\n[ \t]*{_QUOTED})*)", re.M
)
_STARTS_ENTRY = re.compile(r"^[ \t]*(?:msgid|msgctxt)[ \t]", re.M)
_TAG = re.compile(r"</?([A-Za-z][A-Za-z0-9]*)(?:\s[^<>]*)?/?>")
_VOID = ("br", "img", "hr", "wbr", "input")
_HEADER = re.compile(r'^[ \t]*msgid[ \t]+""[ \t]*\r?\n(?=[ \t]*msgstr)', re.M)
_LANGUAGE = re.compile(r'^([ \t]*)"Language:[^"\n]*\\n"', re.M)


_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"})


class Catalogue(Format):
    """PO and POT files.

    The translation of each entry is written where its empty `msgstr` stands; entries that have one,
    and obsolete ones, stay. A plural gets the translation of `msgid_plural` in all its forms but
    the first.
    """

    name = "po"
    endings = (".po", ".pot")
    escapes = (lambda text: text.translate(_ESCAPES),)

    def segments(self, text):
        line_end = "\r\n" if "\r\n" in text else "\n"
        for start, end, source in _empty_values(text):
            if has_letters(source):
                yield _segment(source, start, end, line_end)

    def is_sound(self, source, target):
        return re.fullmatch(rf"{_QUOTED}(?:\r?\n{_QUOTED})*", target) is not None

    def encoding(self, content):
        return charset(content)

    def encoded(self, text, encoding):
        try:
            return super().encoded(text, encoding)
        except UnicodeEncodeError:
            # The header is the first place with a name of an encoding.
            return CHARSET.sub(b"charset=UTF-8", text.encode("utf-8", "surrogateescape"), count=1)

    def language_edits(self, text, source, target):
        header = _HEADER.search(text)
        value = header and _VALUE.match(text, header.end())
        match = value and _LANGUAGE.search(text, value.start(), value.end())
        if target is not None and match:
            name = language_tag(target).replace("-", "_")
            yield Edit(*match.span(), f'{match[1]}"Language: {name}\\n"')


def _empty_values(text):
    """Yields the slices of the empty values of a catalogue, and the text to translate for each."""
    entries = read_catalogue(text, "The document", "documents")
    import polib

    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    for entry in entries:
        begin = starts[min(max(entry.linenum - 1, 0), len(starts) - 1)]
        first = None if entry.obsolete or not entry.msgid else _VALUE.search(text, begin)
        if first is None:
            continue
        # The entry ends where the next one begins.
        following = _STARTS_ENTRY.search(text, first.end())
        stop = following.start() if following else len(text)
        values = list(_VALUE.finditer(text, first.start(), stop))
        for match in values:
            content = "".join(re.findall(_QUOTED, match[2]))
            if not polib.unescape(content.replace('""', "").strip('"')):
                is_singular = match[1] in ("msgstr", "msgstr[0]") and len(values) > 1
                source = entry.msgid if is_singular else entry.msgid_plural or entry.msgid
                yield *match.span(2), source


def _segment(source, start, end, line_end):
    """Returns the segment of an entry: lines of its text are split as in plain text."""
    between = f'"{line_end}"'
    begin = f'"{between}' if "\n" in source.rstrip("\n") else '"'
    pieces, position, (escaped,) = [Mark(begin, BOUNDARY)], 0, Catalogue.escapes

    def add_raw(text, kind=BOUNDARY):
        if text:
            pieces.append(Mark(escaped(text).replace("\\n", "\\n" + between), kind))

    for segment in PlainText().segments(source):
        add_raw(source[position : segment.start])
        for line in segment.pieces:
            if isinstance(line, Mark):
                add_raw(line.raw, BREAK)
                continue
            for piece in split(_TAG, line.text):
                if isinstance(piece, str):
                    pieces.append(Text(piece))
                elif piece[1].lower() in _VOID or piece[0].endswith("/>"):
                    pieces.append(Mark(piece[0].replace('"', '\\"')))
                else:
                    opens = not piece[0].startswith("</")
                    pieces.append(Tag(escaped(piece[0]), piece[1].lower(), opens))
        position = segment.end
    add_raw(source[position:])
    last = pieces[-1]
    if len(pieces) > 1 and isinstance(last, Mark) and last.raw.endswith("\\n" + between):
        pieces[-1] = Mark(last.raw.removesuffix(between), BOUNDARY)
    pieces.append(Mark('"', BOUNDARY))
    return Segment(start, end, pieces)
