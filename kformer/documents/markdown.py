"""Markdown: blocks, code, links and pictures stay as they are.

markdown-it-py finds the blocks and what stands within their lines. It has no offsets within a line,
so the source is walked along its tokens. A segment whose translation has another structure is
refused, and translated in smaller pieces.
"""

import dataclasses
import re

from kformer.documents.format import BOUNDARY, BREAK, Format, Kept, Mark, Segment, Tag, Text, paired
from kformer.documents.html_pages import HTML, segments_of
from kformer.documents.words import has_letters

# The ends of lines, as the parser counts them.
_LINE_END = re.compile(r"\r\n?|\n")
_FRONT = re.compile(r"\A(---|\+\+\+)[ \t]*\r?\n.*?^\1[ \t]*\r?$\n?", re.M | re.S)
_TASK = re.compile(r"\[[ xX]\][ \t]+")
_NOTE = re.compile(r"\[\^[^\]\s]{1,80}\]:?|\[!(?:NOTE|TIP|WARNING|IMPORTANT|CAUTION)\]")
_MATH = re.compile(r"\$\$[^$]{1,500}\$\$|\$(?=\S)[^$\n]{1,200}(?<=\S)\$(?!\d)")
_HTML_NAME = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9-]*)[^>]*?(/?)>")
_HTML_VOID = ("br", "img", "hr", "wbr", "input")
_SPECIAL = re.compile(r"[\\`*\[\]<>|~]|(?<!\w)_|_(?!\w)|&(?=#?\w+;)")
_BLOCK_START = re.compile(r"^(\s*)([#+\-=>]|\d{1,9}(?=[.)]))", re.M)
# What would be read as another text: an escape, and a reference to a character.
_REFERENCE = re.compile(r"\\(?=[!-/:-@\[-`{-~])|&(?=#?\w+;)")

# The destination and title of a link.
_DESTINATION = re.compile(
    r"\(\s*(?:<[^<>\n]*>|(?:\\.|[^\s()\\]|\((?:\\.|[^\s()\\]|\([^\s()]*\))*\))*)"
    r"(?:\s+(?:\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|\((?:\\.|[^()\\])*\)))?\s*\)"
)


class Markdown(Format):
    """CommonMark with tables and strikethrough."""

    name = "markdown"
    endings = (".md", ".markdown")

    def __init__(self, references=None):
        try:
            import markdown_it
        except ImportError as error:
            raise ImportError(
                'Markdown is read by markdown-it-py: run `pip install "kformer[documents]"`.'
            ) from error
        # What stands in the source as an escape must be told from text.
        self._parser = markdown_it.MarkdownIt("commonmark").enable(["table", "strikethrough"])
        self._parser.disable("text_join")
        self._references = {} if references is None else references

    def segments(self, text):
        front = _FRONT.match(text)
        skipped = len(_LINE_END.findall(text, 0, front.end())) if front else 0
        starts = [0, *(match.end() for match in _LINE_END.finditer(text)), len(text)]
        body = "\n" * skipped + text[front.end() if front else 0 :]
        tokens = self._parser.parse(body, self._references)
        row, block, cell = None, _Block(), _Cell(self._references)
        for token in tokens:
            if token.type == "tr_open":
                row = starts[token.map[0]] if token.map else None
            if token.type == "html_block":
                begin, end = starts[token.map[0]], starts[min(token.map[1], len(starts) - 1)]
                for segment in segments_of(text[begin:end], begin):
                    yield dataclasses.replace(segment, format=block)
            elif token.type == "table_close":
                row = None
            elif token.type == "inline" and has_letters(token.content):
                walk = _Walk(text, starts, token, row)
                start = starts[token.map[0]]
                segment = walk.segment() or Segment(start, start, ())
                if row is not None:
                    segment, row = dataclasses.replace(segment, format=cell), walk.end
                yield segment

    def escapes(self):
        return _literal, escaped

    def is_sound(self, source, target):
        return self._signature(source) == self._signature(target)

    def _signature(self, text):
        """What a block is made of, without its text."""
        found = []
        for token in self._parser.parse(_lines_alone(text), {"references": self._definitions()}):
            found.append((token.type, token.tag))
            for child in token.children or ():
                if child.type in ("text", "text_special"):
                    continue
                attributes = tuple(sorted(child.attrs.items()))
                content = child.content if child.type in ("code_inline", "html_inline") else ""
                found.append((child.type, child.tag, attributes, content))
        # Siblings may change their order, as words do.
        return sorted(found, key=repr), [kind for kind, *_ in found if kind.endswith("break")]

    def _definitions(self):
        return self._references.get("references", {})


class _Cell(Markdown):
    """A cell of a table, which a pipe would end."""

    def escapes(self):
        return lambda text: _literal(text).replace("|", "\\|"), escaped


class _Block(HTML):
    """A block of HTML, which may stand in a quotation: its signs `>` stay."""

    def escapes(self):
        return (lambda text: text.replace("&", "&amp;").replace("<", "&lt;"),)


def _literal(text):
    """A text whose signs make markup at most, which is looked for."""
    return _REFERENCE.sub(r"\\\g<0>", text)


def escaped(text):
    """A text whose signs mean nothing in Markdown."""
    text = _SPECIAL.sub(lambda match: "\\" + match[0], text)
    return _BLOCK_START.sub(r"\1\\\2", text) if not text[:1].isdigit() else text


def _lines_alone(text):
    """The lines of a segment without what its quotation or list puts before them."""
    return re.sub(rf"({_LINE_END.pattern})[ \t>]+", r"\1", text)


class _Walk:
    """Walks along the tokens of a block in its source.

    Args:
        text: str. The document.
        starts: list of int. Where its lines begin.
        token: the block's token.
        row: int. Where the rest of a table's row begins; `None` outside of tables.
    """

    def __init__(self, text, starts, token, row):
        self.text, self.token = text, token
        self.positions = self._positions(starts, row)
        self.end = row
        if self.positions:
            self.end = self.positions[-1] + 1
        self.parts, self.names = [], {}
        self._address, self._skipped = None, 0

    def _positions(self, starts, row):
        """The offset in the document of each character of the block's content, and of its end."""
        found, first = [], self.token.map[0]
        lines = self.token.content.split("\n")
        for number, line in enumerate(lines):
            if first + number >= len(starts) - 1:
                return None
            begin, stop = starts[first + number], starts[first + number + 1]
            at = self._find(line, begin if row is None else row, stop, row is not None)
            if at < 0:
                return None
            for sign in line:
                found.append(at)
                at += 1 + (self.text[at] != sign)  # The parser takes the escapes of pipes off.
            found.append(at)  # The end of the line.
        return found

    def _find(self, line, begin, stop, is_cell):
        if not is_cell or "|" not in line:
            return self.text.find(line, begin, stop)
        pattern = re.compile(re.escape(line).replace(r"\|", r"\\\|"))
        match = pattern.search(self.text, begin, stop)
        return match.start() if match else -1

    def segment(self):
        """The `Segment`; `None` if the walk does not come to the end."""
        if self.positions is None:
            return None
        position = self._skipped = self._mark(_TASK, 0)
        for child in self.token.children:
            position = self._step(child, position)
            if position is None:
                return None
        parts = [part for part in self.parts if not isinstance(part, Text) or part.text]
        if position != len(self.token.content.rstrip()) and self.token.content[position:].strip():
            return None
        if len(parts) != len(self.parts):
            return None
        end = self.positions[min(position, len(self.positions) - 1)]
        return Segment(self.positions[0], end, paired(self.parts, self.names))

    def _mark(self, pattern, position):
        found = pattern.match(self.token.content, position)
        if not found:
            return position
        self.parts.append(Mark(found[0], BOUNDARY))
        return found.end()

    def _raw(self, start, end):
        return self.text[self.positions[start] : self.positions[end]]

    def _step(self, child, position):
        """Adds the parts of one token; returns the position after it, `None` if it is missing."""
        content = self.token.content
        if self._address is not None and child.type == "text":
            return position  # An address in angle brackets, which has been added as a whole.
        if child.type == "text":
            # The box of a task has been added; the parser takes it for text.
            skipped = min(self._skipped, len(child.content))
            self._skipped -= skipped
            return self._text(child.content[skipped:], position)
        if child.type == "text_special":
            return self._literal(child.markup or child.content, position, Text(child.content))
        if child.type in ("softbreak", "hardbreak"):
            found = re.compile(r"[ \t]*\\?\n[ \t]*").match(content, position)
            if not found:
                return None
            raw = self._raw(position, found.end())
            self.parts.append(Mark(raw, BREAK if child.type == "softbreak" else BOUNDARY))
            return found.end()
        if child.type == "code_inline":
            pattern = rf"(?<!`){re.escape(child.markup)}(?!`)"
            found = re.compile(pattern).search(content, position + len(child.markup))
            if not content.startswith(child.markup, position) or not found:
                return None
            self.parts.append(Kept(self._raw(position, found.end())))
            return found.end()
        if child.type == "html_inline":
            return self._html(child.content, position)
        if child.type == "image":
            end = _end_of_link(content, position + 1)
            return None if end is None else self._literal(content[position:end], position, Mark(""))
        if child.type in ("link_open", "link_close"):
            return self._link(child, position)
        if child.nesting:
            opens = child.nesting == 1
            return self._tag(child.markup, position, position + len(child.markup), child.tag, opens)
        return None

    def _text(self, text, position):
        """Adds text, with the signs of footnotes and formulas in it."""
        if not self.token.content.startswith(text, position):
            stripped = text.lstrip()
            if not self.token.content.startswith(stripped, position):
                return None
            text = stripped
        start = 0
        pattern = re.compile(f"{_NOTE.pattern}|{_MATH.pattern}")
        for match in pattern.finditer(text):
            if match.start() > start:
                self.parts.append(Text(text[start : match.start()]))
            is_note = match[0].startswith("[")
            raw = self._raw(position + match.start(), position + match.end())
            self.parts.append(Mark(raw) if is_note else Kept(raw))
            start = match.end()
        if text[start:]:
            self.parts.append(Text(text[start:]))
        return position + len(text)

    def _literal(self, raw, position, part):
        if not self.token.content.startswith(raw, position) or not raw:
            return None
        if isinstance(part, Mark):
            part = Mark(self._raw(position, position + len(raw)))
        self.parts.append(part)
        return position + len(raw)

    def _html(self, raw, position):
        found = _HTML_NAME.fullmatch(raw)
        if not found or found[3] or found[2].lower() in _HTML_VOID:
            is_line = bool(found) and found[2].lower() == "br"
            end = self._literal(raw, position, Mark(raw))
            if end is not None and is_line:
                self.parts[-1] = Mark(self.parts[-1].raw, BOUNDARY)
            return end
        return self._tag(raw, position, position + len(raw), "<" + found[2].lower(), not found[1])

    def _tag(self, raw, position, end, name, opens):
        if not self.token.content.startswith(raw, position):
            return None
        self.names[len(self.parts)] = (name, opens)
        self.parts.append(Tag(self._raw(position, end), -1))
        return end

    def _link(self, child, position):
        content = self.token.content
        if child.markup in ("autolink", "linkify"):
            if child.type == "link_open":
                end = content.find(">", position)
                self.parts.append(Kept(self._raw(position, end + 1)))
                self._address = end + 1
                return position if end > 0 else None
            end, self._address = self._address, None
            return end
        if child.type == "link_open":
            return self._tag("[", position, position + 1, "a", True)
        end = _end_of_link(content, position, at_end=True)
        return None if end is None else self._tag(content[position:end], position, end, "a", False)


def _end_of_link(content, position, at_end=False):
    """Where a link or picture ends whose text begins, or ends, at a position."""
    if not at_end:
        depth = 0
        while position < len(content):
            sign = content[position]
            if sign == "\\":
                position += 1
            depth += (sign == "[") - (sign == "]")
            if sign == "]" and depth == 0:
                break
            position += 1
    if not content.startswith("]", position):
        return None
    position += 1
    if content.startswith("[", position):
        end = content.find("]", position)
        return end + 1 if end > 0 else None
    if not content.startswith("(", position):
        return position
    found = _DESTINATION.match(content, position)
    return found.end() if found else position
