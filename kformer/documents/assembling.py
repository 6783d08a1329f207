"""Writes a translated segment: its tags, marks and protected slices where they belong."""

import bisect
import dataclasses
import re

from kformer.documents.flattened import TERM
from kformer.documents.format import BREAK, INLINE, Text
from kformer.documents.job import forms_of
from kformer.documents.placing import Span, is_nested, placed, with_children
from kformer.documents.words import SPACELESS_SIGN, has_letters

_BEGINS_A_WORD = re.compile(r"[\w(\[{\"'“‘«„¿¡]")
_FULL_STOPS = "。！？；，、：”」』）…"


@dataclasses.dataclass
class Inside:
    """The tags and marks that belong within a chunk.

    Attributes:
        spans: list of `Span`, by the offsets of the chunk's source.
        in_order: bool. Whether they keep their order, as the ends of lines do.
        keys: set of the indices of their pieces.
    """

    spans: list
    in_order: bool
    keys: set


class Assembly:
    """A segment and the chunks of its translation.

    Args:
        flat: `Flattened`.
        chunks: list of `Chunk`, in order.

    Attributes:
        used: list of `Item`. The terms of the glossary that `write` has written.
    """

    def __init__(self, flat, chunks):
        self.flat, self.chunks, self.used = flat, chunks, []
        self._pieces = flat.segment.pieces
        self._position = {index: position for position, index in flat.events}
        self._positions = [position for position, _ in flat.events]
        self.inside = [self._inside(chunk) for chunk in chunks]

    def phrases(self):
        """Yields the spans whose translation would tell where they stand, with their texts."""
        for chunk, inside in zip(self.chunks, self.inside, strict=True):
            if not inside.in_order:
                for span in with_children(inside.spans):
                    text = chunk.source[span.start : span.end].strip()
                    if has_letters(text):
                        yield span, text

    def _inside(self, chunk):
        """Returns the `Inside` of a chunk."""
        start, end = chunk.start, chunk.end
        low = bisect.bisect_left(self._positions, start)
        high = bisect.bisect_right(self._positions, end)
        events, partners = self.flat.events[low:high], {}
        for position, index in events:
            partner = getattr(self._pieces[index], "partner", None)
            if start < position < end or start < self._position.get(partner, start) < end:
                partners[index] = partner
        # What stands at an edge is within the outermost tag that belongs to the chunk there.
        first, last = min(partners, default=0), max(partners, default=0)
        for _, index in events:
            if first < index < last:
                partners[index] = getattr(self._pieces[index], "partner", None)
        roots, opened, is_clipped = [], [], False

        def add(*arguments):
            span = Span(*arguments)
            (opened[-1].children if opened else roots).append(span)
            return span

        def offset(index):
            return chunk.offsets[self._position[index] - start]

        for index in sorted(partners, reverse=True):  # Outer tags close later.
            partner = index if partners[index] is None else partners[index]
            if partner < index and self._position[partner] < start:
                opened.append(add(0, offset(index), None, index))
                is_clipped = True
        for index in sorted(partners):
            partner, first = partners[index], offset(index)
            if partner is None or (partner in partners and offset(partner) == first):
                add(first, first, index)
            elif partner > index:
                is_whole = partner in partners
                last = offset(partner) if is_whole else len(chunk.source)
                opened.append(add(first, last, index, partner if is_whole else None))
                is_clipped |= not is_whole
            else:
                opened.pop()
        has_break = any(getattr(self._pieces[index], "kind", None) == BREAK for index in partners)
        return Inside(roots, is_clipped or has_break, set(partners))

    def write(self, escape):
        """Returns the translated segment, as it is written in the document.

        Args:
            escape: function of a text to what is written for it.
        """
        self._out, self._escape, self.used = [], escape, []
        self._written, self._num_items, self._is_nested = [], 0, True
        self._begins = {}  # Where the text within a pair of tags begins.
        self._line = 0  # Where the last line begins that ended within a sentence.
        inner = set().union(*(inside.keys for inside in self.inside))
        outer = [event for event in self.flat.events if event[1] not in inner]
        position, number = 0, 0
        for chunk, inside in zip(self.chunks, self.inside, strict=True):
            number = self._write_source(position, chunk.start, outer, number, chunk)
            self._write_chunk(chunk, inside)
            position = chunk.end
        self._write_source(position, len(self.flat.text), outer, number)
        return "".join(self._out)

    @property
    def is_complete(self):
        """Whether each tag, mark and protected slice was written, once, within the same tags."""
        has_all = sorted(self._written) == [index for _, index in self.flat.events]
        return has_all and self._is_nested and self._num_items == len(self.flat.items)

    def _write_source(self, start, end, events, number, next_chunk=None):
        """Writes what has no translation; returns the number of events that have been written."""
        text, virtual = self.flat.text, self.flat.virtual
        items = [*reversed(self.flat.items_in(start, end))]

        def source(first, last):
            return "".join(text[p] for p in range(first, last) if p not in virtual)

        has_events = number < len(events) and events[number][0] <= end
        if next_chunk is not None and not has_events and self._out and start > 0:
            # White space between two sentences, where the scripts of both sides differ.
            between, sign = source(start, end), self._out[-1][-1:]
            after, is_spaceless = next_chunk.target[:1], SPACELESS_SIGN.match(text[start - 1])
            is_joined = sign in _FULL_STOPS and SPACELESS_SIGN.match(after)
            if between == " " and is_joined and not is_spaceless:
                self._out.append("")
                return number
            is_new = is_spaceless and not SPACELESS_SIGN.match(sign) and after.isalnum()
            if not between and is_new:
                self._out.append("" if sign.isspace() else " ")
                return number
        position = start
        while True:
            while number < len(events) and events[number][0] <= position:
                self._piece(events[number][1])
                number += 1
            if position >= end:
                return number
            if items and items[-1].start == position:
                position = items[-1].end
                self._out.append(self._raw(items.pop()))
                continue
            stops = [end, *(item.start for item in items[-1:])]
            stop = min([*stops, *(event[0] for event in events[number : number + 1])])
            self._text(source(position, stop))
            position = stop

    def _write_chunk(self, chunk, inside):
        target, items = chunk.target, chunk.items
        if target == chunk.source and all(item.kind != TERM for _, _, item in items):
            # What was not translated stays as it is, with tags within words and wide spaces.
            events = [(self._position[index], index) for index in sorted(inside.keys)]
            self._write_source(chunk.start, chunk.end, events, 0)
            return
        offsets, begin = chunk.offsets, chunk.start
        atoms = [
            (*span, offsets[item.start - begin], offsets[item.end - begin]) for *span, item in items
        ]
        marks = placed(chunk.source, target, inside.spans, atoms, inside.in_order)
        self._is_nested &= is_nested(marks, inside.spans, atoms, len(target))
        position, pending = 0, list(items)
        for key, offset in [*marks, (None, len(target))]:
            while pending and pending[0][1] <= offset:
                start, end, item = pending.pop(0)
                self._text(target[position:start])
                self._out.append(self._raw(item, target[start:end]))
                position = end
            self._text(target[position:offset])
            position = max(position, offset)
            if key is None:
                return
            kind = getattr(self._pieces[key], "kind", None)
            if kind == BREAK:
                while len(self._out) > self._line and self._out[-1].isspace():
                    self._out.pop()
                if len(self._out) > self._line:
                    self._out[-1] = self._out[-1].rstrip(" ")
                self._line = len(self._out) + 1
                while position < len(target) and target[position] == " ":
                    position += 1
            is_alone = kind == INLINE or self._is_empty(key, chunk)
            before, after = self._pieces[max(0, key - 1)], self._pieces[key + 1 : key + 2]
            if (
                is_alone
                and position
                and not target[position - 1].isspace()
                and _is_spaced(before, -1)
            ):
                self._out.append(" ")
            self._piece(key)
            is_spaced = after and _is_spaced(after[0], 0)
            if is_alone and is_spaced and _BEGINS_A_WORD.match(target, position):
                self._out.append(" ")

    def _is_empty(self, key, chunk):
        """Returns whether a piece is one of a pair of tags around nothing."""
        partner = getattr(self._pieces[key], "partner", None)
        if partner is None:
            return False
        ends = [self._position[index] - chunk.start for index in (key, partner)]
        return all(0 <= end < len(chunk.offsets) for end in ends) and (
            chunk.offsets[ends[0]] == chunk.offsets[ends[1]]
        )

    def _piece(self, index):
        self._written.append(index)
        piece = self._pieces[index]
        raw, changed = piece.raw, getattr(piece, "changed", None)
        if changed and "".join(self._out[self._begins.get(piece.partner, 0) :]) != changed[0]:
            raw = changed[1]
        self._out.append(raw)
        self._begins[index] = len(self._out)

    def _text(self, text):
        if text:
            self._out.append(self._escape(text))

    def _raw(self, item, target=None):
        """Returns what is written for an item; `target` is what the model wrote for it."""
        self._num_items += 1
        if item.raw is not None:
            return item.raw
        if item.kind != TERM:
            return self._escape(self.flat.text[item.start : item.end])
        self.used.append(item)
        forms = forms_of(item, self.flat.text)
        return self._escape(target if target in forms else forms[0])


def _is_spaced(piece, edge):
    """Returns whether a piece is text with white space at its begin (0) or end (-1)."""
    return isinstance(piece, Text) and piece.text[edge].isspace()
