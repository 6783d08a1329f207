"""Markdown: blocks, code, links and pictures stay as they are.

markdown-it-py finds the blocks and what stands within their lines. It has no offsets within a line,
so the source is walked along its tokens. A segment whose translation has another structure is
refused, and translated in smaller pieces.
"""

import dataclasses
import re

from kformer.documents.format import BOUNDARY, BREAK, Format, Kept, Mark, Segment, Tag, Text
from kformer.documents.html_pages import HTML, segments_of
from kformer.documents.words import has_letters, split
from kformer_options.installed import check_extra

# The ends of lines, as the parser counts them.
_LINE_END = re.compile(r"\r\n?|\n")
_FRONT = re.compile(r"\A(---|\+\+\+)[ \t]*\r?\n.*?^\1[ \t]*\r?$\n?", re.M | re.S)
_TASK = re.compile(r"\[[ xX]\][ \t]+")
_FORMULA = r"\$\$[^$]{1,500}\$\$|\$(?=\S)[^$\n]{1,200}(?<=\S)\$(?!\d)"
_ATTRIBUTE = r"""(?:[#.][\w:.-]+|[\w:-]+=(?:"[^"\n]*"|'[^'\n]*'|[^\s"'{}]*))"""
_ATTRIBUTES = rf"\{{:?[ \t]*{_ATTRIBUTE}(?:[ \t]+{_ATTRIBUTE})*[ \t]*\}}"
_KEPT = re.compile(rf"{_FORMULA}|\[\[[^\[\]\n]{{1,200}}\]\]")
# Signs of dialects within a line, and at its begin; an admonition may have a title.
_SIGN = re.compile(
    rf"{_KEPT.pattern}|\[\^[^\]\s]{{1,80}}\]:?|\[!(?:NOTE|TIP|WARNING|IMPORTANT|CAUTION)\]"
    rf"|\[TOC\]|(?<![\w:]):[a-z+-][a-z0-9_+-]{{0,40}}:(?![\w:])|{_ATTRIBUTES}"
)
_LINE_SIGN = re.compile(
    r"[ \t]*(?:\[\^[^\]\s]{1,80}\]:|:::+.*|(?:!!!|\?\?\?\+?)[ \t]+[\w -]+(?:\"(?P<title>.+)\"|$))"
)
_ROLE = re.compile(r"\{[\w:+.-]+\}\Z")
# An escape in front of a bracket takes its meaning away.
_BRACKET = re.compile(r"\\.?|[\[\]]", re.S)
# What a quotation or list puts before a line.
_PREFIX = re.compile(rf"(?:{_LINE_END.pattern})[ \t>]*")
_BREAK = re.compile(r"[ \t]*\\?\n[ \t]*")
_HTML_NAME = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9-]*)[^>]*?(/?)>")
_HTML_VOID = ("br", "img", "hr", "wbr", "input")
_SPECIAL = re.compile(r"[\\`*\[\]<>|~]|(?<!\w)_|_(?!\w)|&(?=#?\w+;)")
_BLOCK_START = re.compile(r"^(\s*)(?=[#+\-=>]|:::|!!!|\?\?\?)|^(\s*\d{1,9})(?=[.)](?:\s|$))", re.M)
_BLOCK_SIGN = re.compile(r"^[ \t]*(:::|!!!|\?\?\?)", re.M)
# What would be read as another text: an escape, and a reference to a character.
_REFERENCE = re.compile(r"\\(?=[!-/:-@\[-`{-~])|&(?=#?\w+;)")

# The destination and title of a link.
_DESTINATION = re.compile(
    r"\(\s*(?:<[^<>\n]*>|(?:\\.|[^\s()\\]|\((?:\\.|[^\s()\\]|\([^\s()]*\))*\))*)"
    r"(?:\s+(?:\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|\((?:\\.|[^()\\])*\)))?\s*\)"
)


def _reference(state, start, end, silent):
    """Reads the definition of a link, which that of a footnote is not."""
    from markdown_it.rules_block import reference

    is_note = state.src.startswith("[^", state.bMarks[start] + state.tShift[start])
    return not is_note and reference(state, start, end, silent)


def _literal(text):
    """Escapes what would be read as another text. The rest at most makes markup, which is seen."""
    return _REFERENCE.sub(r"\\\g<0>", text)


def escaped(text):
    """Escapes characters only where they would form markup."""
    return _BLOCK_START.sub(r"\g<0>\\", _SPECIAL.sub(r"\\\g<0>", text))


class Markdown(Format):
    """CommonMark with tables and strikethrough."""

    name = "markdown"
    endings = (".md", ".markdown")
    escapes = (_literal, escaped)

    def __init__(self, references=None):
        check_extra("Markdown", "documents", ("markdown_it",))
        import markdown_it

        # What stands in the source as an escape must be told from text.
        self._parser = markdown_it.MarkdownIt("commonmark").enable(["table", "strikethrough"])
        self._parser.disable("text_join")
        self._parser.block.ruler.at("reference", _reference)
        self._references = {} if references is None else references

    def segments(self, text):
        front = _FRONT.match(text)
        skipped = len(_LINE_END.findall(text, 0, front.end())) if front else 0
        starts = [0, *(match.end() for match in _LINE_END.finditer(text)), len(text)]
        body = "\n" * skipped + text[front.end() if front else 0 :]
        row, block, cell = None, _Block(), _Cell(self._references)
        for token in self._parser.parse(body, self._references):
            if token.type == "tr_open":
                row = starts[token.map[0]] if token.map else None
            if token.type == "html_block":
                begin, end = starts[token.map[0]], starts[min(token.map[1], len(starts) - 1)]
                for segment in segments_of(text[begin:end], begin):
                    segment.format = block
                    yield segment
            elif token.type == "table_close":
                row = None
            elif token.type == "inline" and has_letters(token.content):
                walk = _Walk(text, starts, token, row)
                start = starts[token.map[0]]
                segment = walk.segment() or Segment(start, start, [])
                if row is not None:
                    segment.format, row = cell, walk.end
                yield segment

    def is_sound(self, source, target):
        # The lines without what their quotation or list puts before them.
        depth = max(match[0].count(">") for match in _PREFIX.finditer("\n" + source))
        prefix = re.compile(rf"({_LINE_END.pattern})[ \t]*(?:>[ \t]*){{0,{depth}}}")
        first, second = (self._signature(prefix.sub(r"\1", text)) for text in (source, target))
        return first == second

    def _signature(self, text):
        """Returns what a block is made of, without its text."""
        environment = {"references": self._references.get("references", {})}
        kinds = _BLOCK_SIGN.findall(text)
        for token in self._parser.parse(text, environment):
            kinds.append((token.type, token.tag))
            for child in token.children or ():
                attributes = tuple(sorted(child.attrs.items()))
                content = child.content if child.type in ("code_inline", "html_inline") else ""
                if child.type not in ("text", "text_special"):
                    kinds.append((child.type, child.tag, attributes, content))
        # Siblings may change their order, as words do.
        return sorted(kinds, key=repr), [kind for kind, *_ in kinds if kind.endswith("break")]


class _Cell(Markdown):
    """A cell of a table, which a pipe would end."""

    escapes = (lambda text: _literal(text).replace("|", "\\|"), escaped)


class _Block(HTML):
    """A block of HTML, which may stand in a quotation: its signs `>` stay."""

    escapes = (lambda text: text.replace("&", "&amp;").replace("<", "&lt;"),)


class _Walk:
    """Walks along the tokens of a block in its source.

    Args:
        text: str. The document.
        starts: list of int. Where its lines begin.
        token: the block's token.
        row: int. Where the rest of a table's row begins; `None` outside of tables.
    """

    def __init__(self, text, starts, token, row):
        self.text, self.content, self._children = text, token.content, token.children
        self.positions = self._positions(starts, token.map[0], row)
        self.end = self.positions[-1] + 1 if self.positions else row
        self.pieces = []
        self._address, self._skipped = None, 0
        self._labels = []  # Where the texts of the open links begin.

    def _positions(self, starts, first, row):
        """Returns the offset in the document of each character of the content, and of its end."""
        positions = []
        for number, line in enumerate(self.content.split("\n"), first):
            if number >= len(starts) - 1:
                return None
            begin, stop = (starts[number] if row is None else row), starts[number + 1]
            if row is None or "|" not in line:
                offset = self.text.find(line, begin, stop)
            else:
                pattern = re.compile(re.escape(line).replace(r"\|", r"\\\|"))
                match = pattern.search(self.text, begin, stop)
                offset = match.start() if match else -1
            if offset < 0:
                return None
            for sign in line:
                positions.append(offset)
                # The parser takes the escapes of pipes off.
                offset += 1 + (self.text[offset] != sign)
            positions.append(offset)  # The end of the line.
        return positions

    def segment(self):
        """Returns the `Segment`; `None` if the walk does not come to the end."""
        if self.positions is None:
            return None
        position = 0
        if task := _TASK.match(self.content):
            self.pieces.append(Mark(task[0], BOUNDARY))
            position = self._skipped = task.end()
        for child in self._children:
            position = self._step(child, position)
            if position is None:
                return None
        if self.content[position:].strip() or Text("") in self.pieces:
            return None
        end = self.positions[min(position, len(self.positions) - 1)]
        return Segment(self.positions[0], end, self.pieces)

    def _add(self, start, end, kind, *arguments):
        """Adds a piece of a kind for a slice of the content; returns the end of the slice, which
        is `None` where there is none.
        """
        if end is not None:
            raw = self.text[self.positions[start] : self.positions[end]]
            self.pieces.append(kind(raw, *arguments))
        return end

    def _step(self, child, position):
        """Adds the pieces of a token; returns the position after it, `None` if it is missing."""
        content, kind, markup = self.content, child.type, child.markup
        if kind == "text":
            return self._text(child.content, position)
        if kind in ("softbreak", "hardbreak"):
            match = _BREAK.match(content, position)
            sort = BREAK if kind == "softbreak" else BOUNDARY
            return match and self._add(position, match.end(), Mark, sort)
        if kind == "code_inline":
            pattern = re.compile(rf"(?<!`){re.escape(markup)}(?!`)")
            match = pattern.search(content, position + len(markup))
            if not match or not content.startswith(markup, position):
                return None
            before = self.pieces[-1].text if self.pieces and type(self.pieces[-1]) is Text else ""
            if role := _ROLE.search(before):
                position -= len(role[0])
                self.pieces[-1:] = [Text(before[: role.start()])] if role.start() else []
            return self._add(position, match.end(), Kept)
        if kind == "image":
            end = _end_of_link(content, _end_of_label(content, position + 1))
            return self._add(position, end, Mark)
        if kind in ("link_open", "link_close") and markup in ("autolink", "linkify"):
            if kind == "link_close":
                end, self._address = self._address, None
                return end
            end = content.find(">", position) + 1
            self._address = self._add(position, end or None, Kept)
            return position if end else None
        if kind == "link_close":
            end, begin = _end_of_link(content, position), self._labels.pop()
            self._add(position, end, Tag, "a", False)
            if content[position:end] in ("]", "][]"):
                # A link that its text alone names.
                raw = self.text[self.positions[begin] : self.positions[position]]
                label = " ".join(content[begin:position].split())
                self.pieces[-1] = dataclasses.replace(self.pieces[-1], changed=(raw, f"][{label}]"))
            return end
        # What is left stands in the content as it is.
        raw = {"text_special": markup or child.content, "html_inline": child.content}
        raw = {**raw, "link_open": "["}.get(kind, markup)
        end = position + len(raw)
        if not raw or not content.startswith(raw, position):
            return None
        if kind == "text_special":
            self.pieces.append(Text(child.content))
            return end
        if kind == "html_inline":
            match = _HTML_NAME.fullmatch(raw)
            name = match and match[2].lower()
            if not match or match[3] or name in _HTML_VOID:
                return self._add(position, end, Mark, *([BOUNDARY] if name == "br" else []))
            return self._add(position, end, Tag, "<" + name, not match[1])
        if not child.nesting:
            return None
        name = "a" if kind == "link_open" else child.tag
        if name == "a":
            self._labels.append(end)
        return self._add(position, end, Tag, name, child.nesting == 1)

    def _text(self, text, position):
        """Adds text, with the signs of dialects in it."""
        if self._address is not None:
            return position  # An address in angle brackets, which has been added as a whole.
        # The box of a task has been added; the parser takes it for text.
        skipped = min(self._skipped, len(text))
        self._skipped -= skipped
        text = text[skipped:]
        if not self.content.startswith(text, position):
            text = text.lstrip()
        if not self.content.startswith(text, position):
            return None
        stop, attributes = position + len(text), re.match(_ATTRIBUTES, text)
        is_start = self.content[max(0, position - 100) : position].rstrip(" \t")[-1:] in "\n"
        line = _LINE_SIGN.match(text) if is_start else None
        if line and line["title"]:
            first, last = (position + offset for offset in line.span("title"))
            self._add(position, first, Mark, BOUNDARY)
            self._add(first, last, Text)
            return self._add(last, position + line.end(), Mark, BOUNDARY)
        if line:
            position = self._add(position, position + line.end(), Mark, BOUNDARY)
        elif attributes and self.pieces and not isinstance(self.pieces[-1], Text):
            # They belong to what stands before them.
            raw = self.pieces[-1].raw + attributes[0]
            self.pieces[-1] = dataclasses.replace(self.pieces[-1], raw=raw)
            position += attributes.end()
        for piece in split(_SIGN, self.content, position, stop):
            if isinstance(piece, str):
                self.pieces.append(Text(piece))
            else:
                self._add(*piece.span(), Kept if _KEPT.fullmatch(piece[0]) else Mark)
        return stop


def _end_of_label(content, position):
    """Returns where the text in brackets ends that begins at a position."""
    depth = 0
    for match in _BRACKET.finditer(content, position):
        depth += (match[0] == "[") - (match[0] == "]")
        if match[0] == "]" and depth == 0:
            return match.start()
    return len(content)


def _end_of_link(content, position):
    """Returns where a link or picture ends whose text ends at a position, or `None`."""
    if not content.startswith("]", position):
        return None
    position += 1
    if content.startswith("[", position):
        end = content.find("]", position)
        return end + 1 if end > 0 else None
    match = _DESTINATION.match(content, position)
    return match.end() if match else position
