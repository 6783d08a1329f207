"""XLIFF 1.2 and 2: targets are written from their sources, all else stays."""

import html
import re

from kformer.documents.format import BOUNDARY, Edit, Mark, Segment, Text
from kformer.documents.html_pages import HTML, pieces_of
from kformer.documents.html_tokens import ATTRIBUTE, html_tokens
from kformer.documents.messages import QUOTED_BRACE, with_branches
from kformer.documents.sentences import language_tag
from kformer.documents.xml_pieces import (
    Names,
    check_xml,
    elements,
    escaped,
    holds,
    keeps_pairs,
    local,
    runs,
    values,
    without_overlaps,
    xml_encoding,
)

_NAMES = Names(pairs=frozenset(("g", "pc", "mrk")), words=frozenset(("x", "ph")))
# Elements with a source and a target that are none of a unit, such as those of old matches.
_OTHERS = frozenset(("alt-trans", "matches", "bin-unit"))
_UNITS = frozenset(("trans-unit", "segment"))
# A target in one of these states is written again.
_STATES = frozenset(("new", "needs-translation", "initial"))
# The end of a line, where white space is preserved; and as a reference, everywhere.
_REFERENCE = r"&#(?:10|13|[xX]0*[aAdD]);"
_LINES = (
    re.compile(rf"[ \t]*(?:\r\n?|\n|(?:{_REFERENCE})+)[ \t]*"),
    re.compile(f"(?:{_REFERENCE})+"),
)
_LANGUAGES = {"file": "target-language", "xliff": "trgLang"}
_NEW = {"state": "needs-review-translation", "state-qualifier": "mt-suggestion"}


class XLIFF(HTML):
    """XLIFF files.

    A target is written if it is missing, empty, or in a state that says that it is not translated.
    """

    name = "xliff"
    endings = (".xlf", ".xliff")
    escapes = (escaped,)

    def encoding(self, content):
        return xml_encoding(content)

    def is_sound(self, source, target):
        return keeps_pairs(target)

    def segments(self, text):
        check_xml(text, "The document")
        # For each open element, whether its text is translated, and whether its white space counts.
        opened, unit, tokens = [(True, None)], None, []
        for token in html_tokens(text, is_xml=True):
            name = local(token.name)
            if unit is not None:
                tokens.append(token)
            if holds(token):
                value = token.attributes.get("translate")
                is_translated, space = opened[-1]
                is_translated = is_translated if value not in ("yes", "no") else value == "yes"
                space = token.attributes.get("xml:space", space)
                opened.append((is_translated and name not in _OTHERS, space))
                if name in _UNITS and opened[-1][0]:
                    unit, tokens = token, []
            elif token.kind == "end":
                _, space = opened.pop()
                if unit is not None and name in _UNITS:
                    segment = _segment(text, unit, tokens[:-1], space)
                    unit = None
                    if segment is not None:
                        yield segment

    def target_languages(self, text):
        for token in html_tokens(text, is_xml=True):
            attribute = _LANGUAGES.get(local(token.name))
            if attribute and (code := values(token).get(attribute.lower())):
                yield code

    def language_edits(self, text, source, target):
        """The language of targets, where the document does not say it."""
        for token in html_tokens(text, is_xml=True):
            name, attributes = local(token.name), values(token)
            attribute = _LANGUAGES.get(name)
            is_second = attributes.get("version", "1").startswith("2")
            if target is None or not holds(token) or attribute is None:
                continue
            if attribute.lower() not in attributes and (name == "file" or is_second):
                position = token.start + 1 + len(token.name)
                yield Edit(
                    position, position, f' {attribute}="{html.escape(language_tag(target))}"'
                )
            if is_second and name == "xliff":
                return


def _segment(text, unit, tokens, space):
    """Returns the `Segment` of a unit, which writes its target; `None` if it stays.

    Args:
        text: str.
        unit: `Token`.
        tokens: list of `Token`. Its content.
        space: str or `None`. The value of `xml:space` that holds in it.
    """
    children = {}
    for token, inner, end in elements(tokens):
        children.setdefault(local(token.name), (token, inner, end))
    source, _, _ = children.get("source", (None, None, None))
    if source is None:
        return None
    is_second = local(unit.name) == "segment"
    source, inner, end = children.get("seg-source", children["source"])
    target, content, stop = children.get("target", (None, [], end))
    state = values(unit if is_second or target is None else target).get("state")
    has_text = any(
        token.kind != "text" or text[token.start : token.end].strip() for token in content
    )
    if has_text and state not in _STATES:
        return None
    pattern = _LINES[source.attributes.get("xml:space", space) != "preserve"]
    slices = list(_lines(text, runs(text, inner, _NAMES), pattern))
    kinds = without_overlaps([kind for *_, kind in slices])
    first, pieces = pieces_of([text[start:last] for start, last, _ in slices], kinds)
    if not pieces:
        return None
    prefix = text[source.start + 1 : source.end].partition(source.name.rpartition(":")[2])[0]
    if target is None:
        # On a line of its own, as its source is.
        gap = text[unit.end : children["source"][0].start]
        tag, before = f"<{prefix}target>", gap[len(gap.rstrip()) :]
    else:
        tag, before = text[target.start : target.end], text[end : target.start]
    begin = end if target is None else target.start
    if is_second:
        begin = unit.start
        before = _with(text[unit.start : unit.end], {"state": "translated"}) + (
            text[unit.end : end] + before
        )
    else:
        tag = _with(tag, _NEW)
        before = before if target is None else ""
    lead = before + tag.replace("/>", ">")
    lead += text[source.end : slices[first][0]]
    tail = text[slices[first + len(pieces) - 1][1] : inner[-1].end] + f"</{prefix}target>"
    message = with_branches(pieces, escaped)
    if not message:
        return Segment(source.end, stop, [])
    has_branches = message is not pieces
    pieces = [Mark(lead, BOUNDARY), *message, Mark(tail, BOUNDARY)]
    return Segment(begin, stop, pieces, _Unit(pieces, has_branches))


def _typographic(text):
    return escaped(re.sub("'+", "’", text))


class _Unit(XLIFF):
    """A unit: its translation adds no sign of the syntax of messages.

    Args:
        pieces: list of `Text`, `Tag`, `Mark` and `Kept`. Those of its `Segment`.
        has_branches: bool.
    """

    def __init__(self, pieces, has_branches):
        texts = (piece.text if isinstance(piece, Text) else piece.raw for piece in pieces)
        self._source, self._signs = "".join(texts), "{}#" if has_branches else ""
        # An apostrophe before a sign takes its meaning away.
        self.escapes = (escaped, _typographic)[has_branches:]

    def is_sound(self, source, target):
        quoted, most = (len(QUOTED_BRACE.findall(text)) for text in (target, self._source))
        same = all(target.count(sign) == self._source.count(sign) for sign in self._signs)
        return quoted <= most and same and super().is_sound(source, target)


def _lines(text, slices, pattern):
    """Yields slices with their kinds, and the ends of lines in text as slices of their own."""
    for start, end, kind in slices:
        if kind != "text" or text.startswith("<![CDATA[", start):
            yield start, end, kind
            continue
        for match in pattern.finditer(text, start, end):
            if match.start() > start:
                yield start, match.start(), "text"
            start = match.end()
            yield *match.span(), "line"
        if start < end:
            yield start, end, "text"


def _with(tag, attributes):
    """Returns a start tag with some attributes, in place of what it has of them."""
    for name, value in attributes.items():
        matches = (m for m in ATTRIBUTE.finditer(tag, 1) if m[1] == name)
        match = next(matches, None)
        if match is None:
            end = len(tag.rstrip("/> "))
            tag = f'{tag[:end]} {name}="{value}"{tag[end:]}'
        else:
            tag = f'{tag[: match.start()]}{name}="{value}"{tag[match.end() :]}'
    return tag
