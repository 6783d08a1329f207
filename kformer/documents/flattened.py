"""A segment as one text, with what stands in it by position."""

import bisect
import itertools

from kformer.documents.format import BOUNDARY, BREAK, Kept, Text
from kformer.documents.sentences import sentence_ends
from kformer.documents.words import trimmed
from kformer.text.protected import HIDDEN, protected

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
        self._boundaries, text = set(), ""
        for index, piece in enumerate(segment.pieces):
            if isinstance(piece, Text):
                text += piece.text
            elif isinstance(piece, Kept):
                self.items.append(Item(len(text), len(text) + len(piece.raw), HIDDEN, piece.raw))
                text += piece.raw
            else:
                self.events.append((len(text), index))
                kind = getattr(piece, "kind", None)
                if kind in (BREAK, BOUNDARY):
                    self.virtual.add(len(text))
                    if kind == BOUNDARY:
                        self._boundaries.add(len(text))
                    text += " "
        self.text = text
        # The items within the text. What a tag divides is none.
        raw_slices = [(item.start, item.end) for item in self.items]
        items = [Item(*each) for each in protected(text)]
        slices = [(item.start, item.end) for item in items]
        for start, end, entry in [] if glossary is None else glossary.find(text):
            if not _overlaps(raw_slices, start, end) and not _overlaps(slices, start, end):
                items.append(Item(start, end, TERM, None, entry))
        positions = [position for position, _ in self.events]
        for item in items:
            low = bisect.bisect_right(positions, item.start)
            is_whole = bisect.bisect_left(positions, item.end) <= low
            is_whole &= self.virtual.isdisjoint(range(item.start, item.end))
            if is_whole and not _overlaps(raw_slices, item.start, item.end):
                self.items.append(item)
        self.items.sort(key=lambda item: item.start)
        self._starts = [item.start for item in self.items]

    def sentences(self, language):
        """Returns the slices of the sentences, without the white space around them, as pairs."""
        filled = list(self.text)
        for item in self.items:
            if item.kind == HIDDEN:
                filled[item.start : item.end] = "X" + "x" * (item.end - item.start - 1)
        filled, ends, start = "".join(filled), {0}, 0
        for stop in sorted({*self._boundaries, len(filled)}):
            ends |= {start + end for end in sentence_ends(filled[start:stop], language)}
            start = stop
        return self.trimmed(itertools.pairwise(sorted(ends)))

    def trimmed(self, slices):
        """Returns slices without the white space around them, and without empty ones."""
        pairs = (trimmed(self.text, start, end) for start, end in slices)
        return [(start, end) for start, end in pairs if start < end]

    def drop_terms(self, start, end):
        """Forgets the terms of the glossary in a slice, whose translation is known."""
        self.items = [i for i in self.items if i.kind != TERM or not start <= i.start < end]
        self._starts = [item.start for item in self.items]

    def items_in(self, start, end):
        """Returns the items within a slice."""
        first = bisect.bisect_left(self._starts, start)
        last = bisect.bisect_left(self._starts, end)
        return [item for item in self.items[first:last] if item.end <= end]

    def divided(self, start, end):
        """Returns a slice in pairs: what stands between its items, and each item."""
        cuts = {start, end}
        for item in self.items_in(start, end):
            cuts |= {item.start, item.end}
        return self.trimmed(itertools.pairwise(sorted(cuts)))


def _overlaps(slices, start, end):
    """Whether a slice overlaps one of a sorted list of slices that do not overlap each other."""
    index = bisect.bisect_right(slices, start, key=lambda pair: pair[1])
    return index < len(slices) and slices[index][0] < end
