"""Plain text: paragraphs, ends of lines and indentation are kept."""

import re

from kformer.documents.format import BREAK, Format, Mark, Segment, Text
from kformer.documents.words import SPACELESS_SIGN, has_letters, trimmed

_ENDING = "\r\n\x0b\x0c\x1c-\x1e\x85\u2028\u2029"
# A new page at the begin of a line is not a line of its own.
_LINE_END = re.compile(f"(?:\r\n|[{_ENDING}])\x0c?")
_LINE = re.compile(f"[^{_ENDING}]*(?:{_LINE_END.pattern}|$)")
_PIECE = re.compile(f"[^{_ENDING}]+")
# What stands before the text of a line: white space, signs of quotations and lists.
_PREFIX = re.compile(r"\s*(?:>\s*)*(?:(?:[-*+•‣◦▪–—]|\(?(?:\d{1,3}|[A-Za-z])[.)])(?=\s)\s*)?")
_CELL = re.compile(r"[^\t]+")
_ENDS = '.!?…:;。！？：；"”»)'
# A line as long as this may be wrapped, in spaced scripts and in others.
_WRAPPED, _WRAPPED_SPACELESS = 50, 25


class PlainText(Format):
    """Plain text.

    A sentence may go on in the next line, if this line looks wrapped. Lists, quotations, indented
    lines and the cells of tables with tabs stand for themselves.
    """

    name = "text"
    endings = (".txt", ".text")

    def segments(self, text):
        pending, indent = [], ""
        for match in _LINE.finditer(text):
            start, line = match.start(), _LINE_END.sub("", match[0])
            prefix = _PREFIX.match(line).end()
            cells = [m.span() for m in _CELL.finditer(line, prefix) if has_letters(m[0])]
            is_one = len(cells) == 1
            if pending and not (is_one and goes_on(text, pending, indent, start, prefix, line)):
                yield joined(text, pending)
                pending = []
            slices = [trimmed(text, start + first, start + last) for first, last in cells]
            if is_one:
                pending.append(slices[0])
                indent = text[start : slices[0][0]]
            else:
                yield from (joined(text, [each]) for each in slices)
        if pending:
            yield joined(text, pending)

    def is_sound(self, source, target):
        """Returns whether there are as many lines, and none is empty that was not."""
        lines = (_LINE_END.split(text) for text in (source, target))
        first, second = ([not line.strip("> \t") for line in side] for side in lines)
        return first == second


class Lines(Format):
    """Lines that stand for themselves: each is one segment."""

    name = "lines"
    endings = ()

    def segments(self, text):
        for match in re.finditer(r"[^\n]+", text):
            pieces = _PIECE.finditer(text, *match.span())
            slices = [trimmed(text, *piece.span()) for piece in pieces]
            if slices := [(start, end) for start, end in slices if start < end]:
                yield joined(text, slices)


def goes_on(text, pending, indent, start, prefix, line):
    """Returns whether the sentence of the lines before goes on in a line; `indent` is what stands
    before the last of them.
    """
    first, last = pending[-1]
    between = text[last:start]
    if len(_LINE_END.findall(between)) != 1 or between.strip():
        return False
    if line[:prefix] != indent and (len(pending) > 1 or line[:prefix].strip() or prefix > 3):
        # The signs of a list stand in its first line; what follows is indented as far.
        if not (line[:prefix].isspace() and prefix == len(indent) and indent.strip()):
            return False
    elif line[:prefix].strip() and line[:prefix].strip(" >"):
        return False
    return reads_on(text[first:last], line[prefix:])


def reads_on(before, after):
    """Returns whether a sentence goes on from one line to the next."""
    last, sign = before.rstrip()[-1:], after.lstrip()[:1]
    if sign.islower() and last not in ".!?。！？":
        return True
    if last in _ENDS and sign.isupper():
        # A paragraph that is wrapped at the end of a sentence: nothing goes on, nothing is lost.
        return False
    if SPACELESS_SIGN.match(last or " "):
        return len(before) >= _WRAPPED_SPACELESS and last not in _ENDS
    return len(before) >= _WRAPPED and last not in ".!?"


def joined(text, slices):
    """Returns the segment of slices of lines, with the ends of lines between them."""
    pieces, position = [], None
    for start, end in slices:
        if position is not None:
            pieces.append(Mark(text[position:start], BREAK))
        pieces.append(Text(text[start:end]))
        position = end
    return Segment(slices[0][0], slices[-1][1], pieces)
