"""The paragraphs of DOCX and PPTX: runs of text, each with properties of its own.

A translation has the properties of most of its paragraph. Each run with others becomes a pair of
tags, which is placed as `<b>` is on a page; from these the runs are written.
"""

import collections
import dataclasses
import re

from kformer.documents.format import BOUNDARY, Segment
from kformer.documents.html_pages import pieces_of
from kformer.documents.html_tokens import Token
from kformer.documents.words import split
from kformer.documents.xml_pieces import (
    elements,
    escaped,
    local,
    mark_of_pair,
    values,
    without_overlaps,
)

_CONTAINERS = frozenset("hyperlink ins moveto smarttag customxml sdt dir bdo".split())
_KEPT = frozenset("fld fldsimple omath omathpara".split())
_KINDS = {"br": "line", "cr": "line", "tab": BOUNDARY, "ptab": BOUNDARY}
# Properties that no reader sees.
_UNSEEN = re.compile(
    r"""<\w+:(?:lang|noProof)\b[^<>]*>|\s(?:lang|altLang|dirty|err|smtClean|noProof)="[^"]*\""""
)
_EMPTY = re.compile(r"<(\w+:)?rPr\s*(?:/>|></\1?rPr>)")
_PREFIX = re.compile(r"<(\w+:)?")
# A field whose text is that of the writer.
_LINK = re.compile(r"\s*HYPERLINK\b", re.I)
_TAG = re.compile("<[^<>]*>")
_PIECE = re.compile("\3(\\d+)\4")
_RUN = "run"


@dataclasses.dataclass
class _Slice:
    """A slice of a paragraph.

    Attributes:
        raw: str. As it stands alone in a paragraph.
        kind: as for `kformer.documents.html_pages.pieces_of`.
        start, end: int.
        token: `Token`, default `None`. Its element.
        properties: str, default `None`. The begin of its run, if it is in one.
        before, after: str. What ends the run before the slice, and begins it again after it.
        text: str. The text of a run, as it is written.
    """

    raw: str
    kind: object
    start: int
    end: int
    token: Token | None = None
    properties: str | None = None
    before: str = ""
    after: str = ""
    text: str = ""

    @property
    def key(self):
        """The properties of its run that a reader sees; `None` outside of a run."""
        if self.properties is None:
            return None
        return _EMPTY.sub("", _UNSEEN.sub("", self.properties.partition(">")[2]))


def run_segment(text, tokens):
    """Returns the `Segment` of a paragraph of DOCX or PPTX; `None` if it has no text.

    Args:
        text: str.
        tokens: list of `Token`. The content of the paragraph.
    """
    slices = _without_fields(_slices(text, tokens))
    kinds = without_overlaps([each.kind for each in slices])
    slices = [
        dataclasses.replace(each, kind=kind) for each, kind in zip(slices, kinds, strict=True)
    ]
    counts, runs = collections.Counter(), {}
    for each in slices:
        if each.kind == "text":
            counts[each.key] += len(each.text.strip())
            runs.setdefault(each.key, each)
    if not runs:
        return None
    base = runs[max(counts, key=counts.get)]
    slices = list(_tagged(slices, base.key))
    raws = [each.text if each.kind == "text" else f"\3{i}\4" for i, each in enumerate(slices)]
    first, pieces = pieces_of(raws, [each.kind for each in slices])
    if not pieces:
        return None
    last = slices[first + len(pieces) - 1]
    first = slices[first]
    if first is last and text.startswith(first.text, first.token.end):  # As in most.
        return Segment(first.token.end, first.token.end + len(first.text), pieces)

    def written(target):
        """Returns the runs of a translated segment."""
        texts, begins = [first.before], [base.properties]
        for piece in split(_PIECE, target):
            if isinstance(piece, str):
                texts.append(_run(begins[-1], piece))
                continue
            each = slices[int(piece[1])]
            if not isinstance(each.kind, Token) or each.kind.name != _RUN:
                texts.append(each.raw)
            elif each.kind.kind == "start":
                begins.append(each.properties)
            else:
                begins.pop()
        return "".join([*texts, last.after])

    return Segment(first.start, last.end, pieces, written=written)


def _run(properties, text):
    prefix = _PREFIX.match(properties)[1] or ""
    # Word leaves spaces at the ends out otherwise; slides have no such attribute.
    space = "" if prefix == "a:" else ' xml:space="preserve"'
    return f"{properties}<{prefix}t{space}>{text}</{prefix}t></{prefix}r>"


def _slices(text, tokens):
    """Yields the `_Slice` of each child of a run, and of what stands between runs."""
    for token, inner, end in elements(tokens):
        name, raw = local(token.name), text[token.start : end]
        if name == "r":
            yield from _of_run(text, token, inner, end)
        elif name in _CONTAINERS and inner:
            head, inner = _content(token, inner)
            tail = inner[-1].end if inner else head
            yield _Slice(text[token.start : head], token, token.start, head)
            yield from _slices(text, inner)
            yield _Slice(text[tail:end], Token("end", tail, end, token.name), tail, end)
        elif token.kind == "start":
            kind = "kept" if name in _KEPT else _KINDS.get(name, "mark")
            yield _Slice(raw, mark_of_pair(token) or kind, token.start, end)


def _content(token, inner):
    """Returns where the head of a container ends, which has its properties, and its content."""
    head = token.end
    for child, within, end in elements(inner):
        name = local(child.name)
        if name == "sdtcontent":
            return child.end, within
        if not name.endswith("pr"):
            break
        head = end
    return head, [each for each in inner if each.start >= head]


def _of_run(text, token, inner, end):
    children = [child for child in elements(inner) if child[0].kind == "start"]
    properties, closing = text[token.start : token.end], text[inner[-1].end : end] if inner else ""
    if children and local(children[0][0].name) == "rpr":
        first, _, stop = children.pop(0)
        properties += text[first.start : stop]
    last = len(children) - 1
    for number, (child, within, stop) in enumerate(children):
        raw, name = text[child.start : stop], local(child.name)
        is_text = name == "t" and within and all(each.kind in ("text", "other") for each in within)
        yield _Slice(
            properties + raw + closing,
            "text" if is_text else _KINDS.get(name, "mark"),
            child.start if number else token.start,
            stop if number < last else end,
            child,
            properties,
            closing if number else "",
            properties if number < last else "",
            "".join(_text(text[each.start : each.end]) for each in within) if is_text else "",
        )
    if not children:
        yield _Slice(text[token.start : end], "mark", token.start, end)


def _text(raw):
    """Returns what a token within text has of it."""
    if raw.startswith("<![CDATA["):
        return escaped(raw[9:-3])
    return "" if raw.startswith("<") else raw


def _without_fields(slices):
    """Returns a list of slices in which a field is one that is kept, or a pair of tags around its
    text if it is a link.
    """
    slices = list(slices)
    # For the index of the begin of a field where it is separated and ends, if all elements that
    # begin in its parts end there.
    fields, opened, balances = {}, [], [0]
    for index, each in enumerate(slices):
        side = each.kind.kind if isinstance(each.kind, Token) else None
        balances.append(balances[-1] + (side == "start") - (side == "end"))
        is_field = each.token is not None and local(each.token.name) == "fldchar"
        kind = values(each.token).get("fldchartype") if is_field else None
        if kind == "begin":
            opened.append([index, None])
        elif kind == "separate" and opened:
            opened[-1][1] = index + 1
        elif kind == "end" and opened:
            begin, middle = opened.pop()
            if balances[begin] == balances[middle or begin] == balances[index + 1]:
                fields[begin] = middle, index + 1
    merged, tags, index = [], {}, 0
    while index < len(slices):
        middle, end = fields.get(index, (None, None))
        if end is None:
            each = slices[index]
            merged.append(_joined([each], tags[index]) if index in tags else each)
            index += 1
            continue
        # The other parts of the code have no text.
        instruction = "".join(part.raw for part in slices[index:middle]) if middle else ""
        if _LINK.match(_TAG.sub("", instruction)):
            first, last = (
                Token(side, slices[index].start, slices[end - 1].end, f"field {index}")
                for side in ("start", "end")
            )
            merged.append(_joined(slices[index:middle], first))
            tags[end - 1], index = last, middle
        else:
            merged.append(_joined(slices[index:end], "kept"))
            index = end
    return merged


def _joined(slices, kind):
    first, last = slices[0], slices[-1]
    raw = "".join(each.raw for each in slices)
    return _Slice(raw, kind, first.start, last.end, before=first.before, after=last.after)


def _tagged(slices, base):
    """Yields slices, and a pair of tags around runs with other properties than `base`."""
    key, last = base, None
    for each in slices:
        if isinstance(each.kind, Token):
            new = base
        elif each.text.strip():
            new = each.key
        else:  # A space or mark in a run with other properties is not in the pair.
            new = key if each.key in (None, key) else base
        if new != key and key != base:
            yield _tag(last, "end", last.end)
        if new not in (key, base):
            yield _tag(each, "start", each.start)
        yield each
        key, last = new, each
    if key != base:
        yield _tag(last, "end", last.end)


def _tag(each, side, position):
    kind = Token(side, position, position, _RUN)
    return dataclasses.replace(each, kind=kind, start=position, end=position)
