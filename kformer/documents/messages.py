"""Messages of programs in any format: their placeholders, tags, lines and branches of plurals."""

import re

from kformer.documents.format import BOUNDARY, BREAK, Format, Kept, Mark, Segment, Tag, Text
from kformer.documents.plain_text import PlainText
from kformer.documents.words import has_letters, split
from kformer.text.protected import PLACEHOLDERS

_TAG = re.compile(r"<(/?)([A-Za-z0-9][A-Za-z0-9:-]*)(?:\s[^<>]*?)?(/?)>")
_VOID = ("br", "img", "hr", "wbr", "input")
_OPENS_BRANCHES = re.compile(r"\{\s*[\w.-]+\s*,\s*(plural|select|selectordinal|choice)\s*,")
_SELECTOR = re.compile(r"\s*(?:offset:\s*\d+\s*)?(?:=\d+|[\w-]+)\s*\{|\s*\}")
# The number at which a branch of `java.text.ChoiceFormat` begins.
_LIMIT = re.compile(r"\s*[^\s#<≤|{}']{1,20}\s*[#<≤]")
# In the text of a branch: quoted signs, an argument, the end of the branch, and its number.
_IN_BRANCH = re.compile(
    rf"'[{{}}#](?:[^']|'')*'?|{_OPENS_BRANCHES.pattern}|\{{[^{{}}]*\}}|[{{}}#|]"
)
_LINE_ENDS = re.compile(r"(?<!\s)\s*\n\s*")
# What stands for a code in a message: no text has it.
_CODE = "\0"
_CODE_OR_LINE_END = re.compile(f"{_CODE}|{_LINE_ENDS.pattern}")
# An apostrophe before a brace takes its meaning away.
QUOTED_BRACE = re.compile(r"(?<!')'[{}]")
_APOSTROPHE = re.compile(r"(?<![{}])'(?![{}])")
_NEVER = re.compile(r"(?!)")
_TEXT, _KEPT, _SYNTAX = "text", "kept", "syntax"
_COUNTED = ("plural", "selectordinal")
# Placeholders that stand for the next argument each, so that their order counts.
_UNNUMBERED = re.compile(r"%(?!\d+\$|[\d(<{nL%])")


class Messages(Format):
    """A format whose values are messages.

    Args:
        flags: tuple of str, default empty. What placeholders the messages have, such as
            "c-format", by the names of gettext.
        doubles: bool, default `False`. Whether an apostrophe is written twice.
    """

    tags = _TAG

    def __init__(self, flags=(), doubles=False):
        self._placeholders = next((PLACEHOLDERS[f] for f in flags if f in PLACEHOLDERS), None)
        self.flags, self.doubles = flags, doubles
        self.escapes = (self.written, lambda text: self.written(_APOSTROPHE.sub("’", text)))

    def escaped(self, text):
        """Returns a text as the format writes it."""
        raise NotImplementedError

    def unescaped(self, raw):
        """Returns the text of what the format has written."""
        raise NotImplementedError

    def raw(self, part):
        """Returns a part of a message that is kept, as the format writes it."""
        return self.escaped(part)

    def written(self, text):
        """Returns what is written for a text of a message."""
        return self.escaped(text.replace("'", "''") if self.doubles else text)

    def is_sound(self, source, target):
        """Whether both have the same placeholders, tags, lines and branches."""
        return self.is_alike(self.unescaped(source), self.unescaped(target))

    def is_alike(self, source, target):
        """Returns whether two messages are the same but for their text."""
        num_quoted, most = (len(QUOTED_BRACE.findall(text)) for text in (target, source))
        return num_quoted <= most and self._signature(source) == self._signature(target)

    def segment(self, start, end, message):
        """Returns the `Segment` of a value; `None` if it has nothing to translate."""
        pieces = self.pieces(message)
        return Segment(start, end, pieces, self) if message and is_translatable(pieces) else None

    def pieces(self, message):
        """Returns the pieces of a message, none if its branches cannot be read."""
        slices = branches(message)
        if slices is None:
            return list(self._lines(message))
        pieces = []
        for start, end, kind in slices:
            part = message[start:end]
            if kind != _TEXT:
                raw = self.escaped(part)
                pieces.append(Kept(raw) if kind == _KEPT else Mark(raw, BOUNDARY))
                continue
            for piece in split(_LINE_ENDS, part):
                if isinstance(piece, str):
                    pieces += self.inline(piece)
                else:
                    pieces.append(Mark(self.escaped(piece[0]), BOUNDARY))
        return pieces

    def _lines(self, text):
        """Yields the pieces of a text: its lines are split as in plain text."""
        position = 0
        for segment in PlainText().segments(text):
            if segment.start > position:
                yield Mark(self.escaped(text[position : segment.start]), BOUNDARY)
            for line in segment.pieces:
                if isinstance(line, Mark):
                    yield Mark(self.escaped(line.raw), BREAK)
                else:
                    yield from self.inline(line.text)
            position = segment.end
        if position < len(text):
            yield Mark(self.escaped(text[position:]), BOUNDARY)

    def read(self, text):
        """Returns the text that a model is given for a part of a message."""
        return text.replace("''", "'") if self.doubles else text

    def inline(self, text):
        """Yields the pieces of a line of a message."""
        for piece in split(self.tags, text):
            if isinstance(piece, str):
                for part in split(self._placeholders or _NEVER, piece):
                    is_text = isinstance(part, str)
                    yield Text(self.read(part)) if is_text else Kept(self.raw(part[0]))
            elif piece[2].lower() in _VOID or piece[3]:
                yield Mark(self.raw(piece[0]))
            else:
                yield Tag(self.raw(piece[0]), piece[2].lower(), not piece[1])

    def placeholders(self, message):
        """Returns the placeholders of a message, a list of str."""
        return [match[0] for match in (self._placeholders or _NEVER).finditer(message)]

    def _signature(self, message):
        """Returns what a message is made of, without its text."""
        slices = branches(message) or ()
        outside = [(kind, message[start:end]) for start, end, kind in slices if kind != _TEXT]
        syntax = [part for kind, part in outside if kind == _SYNTAX]
        kept = self.placeholders(message)
        unnumbered = [part for part in kept if _UNNUMBERED.match(part)]
        tags = sorted(match[0] for match in _TAG.finditer(message))
        signs = "\n{}#<≤'" if any("choice" in part for part in syntax) else "\n{}"
        counts = [message.count(sign) for sign in signs]
        return syntax, sorted(outside), sorted(kept), unnumbered, tags, counts


def is_translatable(pieces):
    """Returns whether there is text to translate among pieces; none are a message that could not
    be read.
    """
    texts = (piece.text for piece in pieces if isinstance(piece, Text))
    return not pieces or any(map(has_letters, texts))


def with_branches(pieces, escaped):
    """Returns the pieces of a message of ICU with its syntax as boundaries, none if its branches
    cannot be read; the same list if it has none.

    Args:
        pieces: list of `Text`, `Tag`, `Mark` and `Kept`.
        escaped: function of a text to what is written for it.
    """
    texts, codes = [], []
    for piece in pieces:
        if isinstance(piece, Text):
            texts.append(piece.text)
        elif isinstance(piece, Mark) and piece.raw.isspace():
            texts.append(piece.raw)
        else:
            texts.append(_CODE)
            codes.append(piece)
    message = "".join(texts)
    slices = branches(message)
    if slices is None:
        return pieces
    codes, parts = iter(codes), []
    for start, end, kind in slices:
        part = message[start:end]
        if kind == _TEXT:
            for piece in split(_CODE_OR_LINE_END, part):
                if isinstance(piece, str):
                    parts.append(Text(piece))
                else:
                    parts.append(next(codes) if piece[0] == _CODE else Mark(piece[0], BREAK))
        elif _CODE in part:
            return []
        else:
            parts.append(Kept(escaped(part)) if kind == _KEPT else Mark(escaped(part), BOUNDARY))
    return parts


def branches(message):
    """Returns the slices of a message of ICU or `java.text.MessageFormat`: text, arguments, and the
    syntax of its branches, as tuples of start, end and kind; `None` if it has no branches, and none
    if they cannot be read.
    """
    if not _OPENS_BRANCHES.search(message):
        return None
    slices, position = [], 0
    stack = []  # The open arguments; `None` for the text of a branch.

    def add(end, kind):
        nonlocal position
        if slices and slices[-1][2] == kind == _SYNTAX:
            slices[-1] = (slices[-1][0], end, kind)
        elif position < end:
            slices.append((position, end, kind))
        position = end

    while True:
        if stack and stack[-1] is not None:
            pattern = _LIMIT if stack[-1] == "choice" else _SELECTOR
            match = pattern.match(message, position)
            if not match:
                return []
            if match[0].endswith("}"):
                stack.pop()
            else:
                stack.append(None)
            add(match.end(), _SYNTAX)
            continue
        match = _IN_BRANCH.search(message, position)
        if not match:
            add(len(message), _TEXT)
            return [] if stack else slices
        sign, argument = match[0], stack[-2] if stack else None
        is_choice = argument == "choice"
        if sign == "#" and argument not in _COUNTED or sign == "|" and not is_choice:
            add(match.end(), _TEXT)
            continue
        add(match.start(), _TEXT)
        if match[1]:
            stack.append(match[1])
            add(match.end(), _SYNTAX)
        elif sign == "{" or (sign == "}" and not stack):
            return []
        elif sign in "}|":
            # The last branch of a choice ends with its argument.
            del stack[-2 if is_choice and sign == "}" else -1 :]
            add(match.end(), _SYNTAX)
        else:
            add(match.end(), _KEPT)
