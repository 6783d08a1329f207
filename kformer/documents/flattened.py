"""A segment as one text, with what stands in it by position."""

import bisect
import itertools

from kformer.documents.format import BOUNDARY, BREAK, Kept, Mark, Tag, Text
from kformer.documents.protected import HIDDEN, protected
from kformer.documents.sentences import sentence_ends

# How a slice is kept: it is hidden from the model, shown to it, or a term of the glossary.
TERM = "term"


class Item:
    """A slice that comes out as it went in, or as the glossary has it.

    Args:
        start, end: int.
        kind: str. `HIDDEN`, `VISIBLE` or `TERM`.
        raw: str, default `None`. As it is written in the document; `None` for text, which is
            escaped.
        entry: `kformer.documents.glossary.Entry`, default `None`.
    """

    def __init__(self, start, end, kind, raw=None, entry=None):
        self.start, self.end, self.kind, self.raw, self.entry = start, end, kind, raw, entry


class Flattened:
    """A segment as one text.

    Args:
        segment: `Segment`.
        glossary: `Glossary`, default `None`.

    Attributes:
        text: str. Breaks and boundaries are spaces in it.
        events: list of pairs of a position and the index of a tag or mark.
        virtual: set of positions of those spaces, which are not written.
        items: list of `Item`, in their order.
    """

    def __init__(self, segment, glossary=None):
        self.segment = segment
        self.events, self.virtual, self.items = [], set(), []
        self.forced, self.breaks = set(), set()
        self.text = self._join(segment.parts)
        self._protect(glossary)

    def _join(self, parts):
        text = ""
        for index, part in enumerate(parts):
            if isinstance(part, Text):
                text += part.text
            elif isinstance(part, Kept):
                self.items.append(Item(len(text), len(text) + len(part.raw), HIDDEN, part.raw))
                text += part.raw
            elif isinstance(part, Tag | Mark):
                self.events.append((len(text), index))
                kind = getattr(part, "kind", None)
                if kind in (BREAK, BOUNDARY):
                    self.virtual.add(len(text))
                    (self.forced if kind == BOUNDARY else self.breaks).add(len(text))
                    text += " "
        return text

    def _protect(self, glossary):
        """Adds the items within the text. What a tag parts is none."""
        own = sorted((item.start, item.end) for item in self.items)
        found = [Item(start, end, kind) for start, end, kind in protected(self.text)]
        others = [(item.start, item.end) for item in found]
        if glossary is not None:
            for start, end, entry in glossary.find(self.text):
                if not any(_overlaps(taken, start, end) for taken in (own, others)):
                    found.append(Item(start, end, TERM, None, entry))
        positions = sorted(position for position, _ in self.events)
        for item in found:
            inside = bisect.bisect_left(positions, item.end) > bisect.bisect_right(
                positions, item.start
            )
            overlaps = inside or _overlaps(own, item.start, item.end)
            if not overlaps and not self._is_virtual(item):
                self.items.append(item)
        self.items.sort(key=lambda item: item.start)
        self._starts = [item.start for item in self.items]

    def _is_virtual(self, item):
        return any(position in self.virtual for position in range(item.start, item.end))

    def sentences(self, language):
        """The slices of the sentences, without the white space around them: a list of pairs."""
        filled = list(self.text)
        for item in self.items:
            if item.kind == HIDDEN:
                filled[item.start : item.end] = "X" + "x" * (item.end - item.start - 1)
        filled = "".join(filled)
        found, start = [], 0
        for stop in sorted({*self.forced, len(filled)}):
            for end in sentence_ends(filled[start:stop], language):
                found.append(start + end)
            start = stop
        pairs, start = [], 0
        for end in sorted(set(found)):
            first, last = self.trimmed(start, end)
            if first < last:
                pairs.append((first, last))
            start = end
        return pairs

    def trimmed(self, start, end):
        """A slice without the white space around it."""
        while start < end and self.text[start].isspace():
            start += 1
        while end > start and self.text[end - 1].isspace():
            end -= 1
        return start, end

    def items_in(self, start, end):
        """The items within a slice."""
        first = bisect.bisect_left(self._starts, start)
        last = bisect.bisect_left(self._starts, end)
        return [item for item in self.items[first:last] if item.end <= end]

    def divided(self, start, end):
        """A slice in parts: what stands between its items, and each item, as a list of pairs."""
        cuts = {start, end}
        for item in self.items_in(start, end):
            cuts |= {item.start, item.end}
        pairs = (self.trimmed(*pair) for pair in itertools.pairwise(sorted(cuts)))
        return [pair for pair in pairs if pair[0] < pair[1]]


def _overlaps(taken, start, end):
    """Whether a slice overlaps one of a sorted list of slices that do not overlap each other."""
    index = bisect.bisect_right(taken, start, key=lambda pair: pair[1])
    return index < len(taken) and taken[index][0] < end
