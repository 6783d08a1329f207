"""Catalogues of gettext (PO): what has no translation yet gets one, all else stays."""

import re

from kformer.documents.format import BOUNDARY, BREAK, Edit, Format, Mark, Segment, Tag, Text, paired
from kformer.documents.plain_text import PlainText
from kformer.documents.sentences import language_tag
from kformer.documents.words import has_letters

_QUOTED = r'"(?:[^"\\\n]|\\.)*"'
_VALUE = re.compile(
    rf"^[ \t]*(msgstr(?:\[\d+\])?)[ \t]+({_QUOTED}(?:[ \t]*\r?\n[ \t]*{_QUOTED})*)", re.M
)
_STARTS_ENTRY = re.compile(r"^[ \t]*(?:msgid|msgctxt)[ \t]", re.M)
_TAG = re.compile(r"</?([A-Za-z][A-Za-z0-9]*)(?:\s[^<>]*)?/?>")
_VOID = ("br", "img", "hr", "wbr", "input")
_CHARSET = re.compile(rb"charset=([A-Za-z0-9_.:-]{2,40})")
_HEADER = re.compile(r'^[ \t]*msgid[ \t]+""[ \t]*\r?\n(?=[ \t]*msgstr)', re.M)
_LANGUAGE = re.compile(r'^([ \t]*)"Language:[^"\n]*\\n"', re.M)


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
        for start, end, source in _empty_values(text):
            if has_letters(source):
                yield _segment(source, start, end, line_end)

    def escapes(self):
        return (_escaped,)

    def is_sound(self, source, target):
        return re.fullmatch(rf"{_QUOTED}(?:\r?\n{_QUOTED})*", target) is not None

    def encoding(self, content):
        found = _CHARSET.search(content[:10_000])
        return found and found[1].decode("ascii")

    def encoded(self, text, encoding):
        try:
            return super().encoded(text, encoding)
        except UnicodeEncodeError:
            # The header is the first place with a name of an encoding.
            return _CHARSET.sub(b"charset=UTF-8", text.encode("utf-8", "surrogateescape"), count=1)

    def language_edits(self, text, source, target):
        header = _HEADER.search(text)
        value = header and _VALUE.match(text, header.end())
        found = value and _LANGUAGE.search(text, value.start(), value.end())
        if target is not None and found:
            name = language_tag(target).replace("-", "_")
            yield Edit(found.start(), found.end(), f'{found[1]}"Language: {name}\\n"')


class _Content(str):
    """A catalogue whose lines end at "\\n" alone, as those of gettext do."""

    def splitlines(self, keepends=False):
        return self.split("\n")


def _empty_values(text):
    """Yields the slices of the empty values of a catalogue, and the text to translate for each."""
    try:
        import polib
    except ImportError as error:
        raise ImportError(
            'PO files are read by polib: run `pip install "kformer[documents]"`.'
        ) from error
    # polib takes a text that looks like no path for the content of a file.
    try:
        entries = polib.pofile(_Content(text + "\n"), check_for_duplicates=False)
    except (OSError, ValueError, AttributeError, IndexError) as error:
        raise ValueError(f"The document is not a valid PO file: {error}.") from error
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    for entry in entries:
        if entry.obsolete or not entry.msgid:
            continue
        begin = starts[min(max(entry.linenum - 1, 0), len(starts) - 1)]
        yield from _values_of(text, begin, entry, polib.unescape)


def _values_of(text, begin, entry, unescape):
    # The entry ends where the next one begins.
    first = _VALUE.search(text, begin)
    if first is None:
        return
    following = _STARTS_ENTRY.search(text, first.end())
    stop = following.start() if following else len(text)
    for match in _VALUE.finditer(text, first.start(), stop):
        content = "".join(re.findall(rf"{_QUOTED}", match[2]))
        if unescape(content.replace('""', "").strip('"')):
            continue
        is_first = match[1] in ("msgstr", "msgstr[0]")
        is_only = is_first and len(_VALUE.findall(text, first.start(), stop)) == 1
        plural = entry.msgid_plural
        source = plural if plural and (is_only or not is_first) else entry.msgid
        yield match.start(2), match.end(2), source


def _segment(source, start, end, line_end):
    """The segment of an entry: lines of its text are parted as in plain text."""
    between = f'"{line_end}"'
    parts, names, position = [Mark('"', BOUNDARY)], {}, 0
    if "\n" in source.rstrip("\n"):
        parts[0] = Mark(f'"{between}', BOUNDARY)

    def add_raw(text, kind=BOUNDARY):
        if text:
            parts.append(Mark(_escaped(text).replace("\\n", "\\n" + between), kind))

    for piece in PlainText().segments(source):
        add_raw(source[position : piece.start])
        for part in piece.parts:
            if isinstance(part, Mark):
                add_raw(part.raw, BREAK)
            else:
                _add_text(parts, names, part.text)
        position = piece.end
    add_raw(source[position:])
    if len(parts) > 1 and isinstance(parts[-1], Mark) and parts[-1].raw.endswith("\\n" + between):
        parts[-1] = Mark(parts[-1].raw.removesuffix(between), BOUNDARY)
    parts.append(Mark('"', BOUNDARY))
    return Segment(start, end, paired(parts, names))


def _add_text(parts, names, text):
    position = 0
    for match in [*_TAG.finditer(text), None]:
        stop = len(text) if match is None else match.start()
        if stop > position:
            parts.append(Text(text[position:stop]))
        if match is None:
            return
        if match[1].lower() in _VOID or match[0].endswith("/>"):
            parts.append(Mark(match[0].replace('"', '\\"')))
        else:
            names[len(parts)] = (match[1].lower(), not match[0].startswith("</"))
            parts.append(Tag(_escaped(match[0]), -1))
        position = match.end()


def _escaped(text):
    signs = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return "".join(signs.get(sign, sign) for sign in text)
