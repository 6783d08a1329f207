"""Writes a translated segment: its tags, marks and kept slices where they belong."""

import bisect
import dataclasses

from kformer.documents.flattened import TERM
from kformer.documents.format import BREAK, INLINE, Text
from kformer.documents.job import forms_of
from kformer.documents.placing import Span, is_nested, placed, with_children
from kformer.documents.words import SPACELESS_SIGN, has_letters

_FULL_STOPS = "。！？；，、：”」』）…"


@dataclasses.dataclass
class Inside:
    """The tags and marks that belong within a chunk.

    Attributes:
        spans: list of `Span`, by the offsets of the chunk's source.
        in_order: bool. Whether they keep their order, as the ends of lines do.
        keys: set of the indices of their parts.
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
        self._parts = flat.segment.parts
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
        start, end = chunk.start, chunk.end
        low = bisect.bisect_left(self._positions, start)
        high = bisect.bisect_right(self._positions, end)
        keys = {
            index for _, index in self.flat.events[low:high] if self._is_inside(index, start, end)
        }
        if not keys:
            return Inside([], False, keys)
        roots, opened, clipped = [], [], False

        def add(span):
            (opened[-1].children if opened else roots).append(span)

        def offset(position):
            return chunk.offsets[position - start]

        for index in sorted(keys, reverse=True):  # Outer tags close later.
            partner = getattr(self._parts[index], "partner", index)
            if partner < index and self._position[partner] < start:
                span = Span(0, offset(self._position[index]), None, index)
                add(span)
                opened.append(span)
                clipped = True
        for index in sorted(keys):
            part, where = self._parts[index], offset(self._position[index])
            partner = getattr(part, "partner", None)
            is_empty = partner in keys and offset(self._position[partner]) == where
            if partner is None or is_empty:
                add(Span(where, where, index))
            elif partner > index:
                is_whole = partner in keys
                stop = offset(self._position[partner]) if is_whole else len(chunk.source)
                span = Span(where, stop, index, partner if is_whole else None)
                add(span)
                opened.append(span)
                clipped |= not is_whole
            else:
                opened.pop()
        has_break = any(getattr(self._parts[index], "kind", None) == BREAK for index in keys)
        return Inside(roots, clipped or has_break, keys)

    def _is_inside(self, index, start, end):
        position = self._position[index]
        if start < position < end:
            return True
        partner = getattr(self._parts[index], "partner", None)
        return (
            partner is not None
            and start < self._position[partner] < end
            and start <= position <= end
        )

    def write(self, escape):
        """The translated segment, as it is written in the document.

        Args:
            escape: function of a text to what is written for it.
        """
        self._out, self._escape, self.used = [], escape, []
        self._written, self._num_items, self._is_nested = [], 0, True
        self._line = 0  # Where the last line begins that ended within a sentence.
        taken = set().union(*(inside.keys for inside in self.inside))
        outside = [event for event in self.flat.events if event[1] not in taken]
        position, number = 0, 0
        for chunk, inside in zip(self.chunks, self.inside, strict=True):
            number = self._write_source(position, chunk.start, outside, number, chunk)
            self._write_chunk(chunk, inside)
            position = chunk.end
        self._write_source(position, len(self.flat.text), outside, number, None)
        return "".join(self._out)

    @property
    def is_complete(self):
        """Whether each tag, mark and kept slice was written, once, and within the same tags."""
        has_parts = sorted(self._written) == [index for _, index in self.flat.events]
        return has_parts and self._is_nested and self._num_items == len(self.flat.items)

    def _write_source(self, start, end, events, number, before):
        """Writes what has no translation; returns the number of events that have been written."""
        text = self.flat.text
        items = [*reversed(self.flat.items_in(start, end))]
        virtual = self.flat.virtual
        gap = [p for p in range(start, end) if p not in virtual]
        has_events = number < len(events) and events[number][0] <= end
        if before is not None and not has_events and self._out and start > 0:
            space = self._space(text, start, gap, before)
            if space is not None:
                self._out.append(space)
                return number
        position = start
        while True:
            while number < len(events) and events[number][0] <= position:
                self._part(events[number][1])
                number += 1
            if position >= end:
                return number
            if items and items[-1].start == position:
                position = items[-1].end
                self._out.append(self._raw(items.pop()))
                continue
            stops = [end, *(item.start for item in items[-1:])]
            stops += [where for where, _ in events[number : number + 1]]
            stop = min(stops)
            self._text("".join(text[p] for p in range(position, stop) if p not in virtual))
            position = stop

    def _space(self, text, start, gap, chunk):
        """What stands for the white space between two sentences, where the scripts of both sides
        differ; `None` if it stays.
        """
        between = "".join(text[p] for p in gap)
        before, after = self._out[-1][-1:], chunk.target[:1]
        is_spaceless = bool(SPACELESS_SIGN.match(text[start - 1]))
        is_joined = before in _FULL_STOPS and SPACELESS_SIGN.match(after)
        if between == " " and is_joined and not is_spaceless:
            return ""
        if not between and is_spaceless and not SPACELESS_SIGN.match(before) and after.isalnum():
            return "" if before.isspace() else " "
        return None

    def _write_chunk(self, chunk, inside):
        target, spans = chunk.target, chunk.kept
        if target == chunk.source and all(item.kind != TERM for _, _, item in spans):
            # What was not translated stays as it is, with tags within words and wide spaces.
            events = [(self._position[index], index) for index in sorted(inside.keys)]
            self._write_source(chunk.start, chunk.end, events, 0, None)
            return
        atoms = [(*span[:2], chunk.offsets[span[2].start - chunk.start]) for span in spans]
        marks = placed(chunk.source, target, inside.spans, atoms, inside.in_order)
        self._is_nested &= is_nested(marks, inside.spans, atoms, len(target))
        position, pending = 0, list(spans)
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
            part = self._parts[key]
            if getattr(part, "kind", None) == BREAK:
                while len(self._out) > self._line and self._out[-1].isspace():
                    self._out.pop()
                if len(self._out) > self._line:
                    self._out[-1] = self._out[-1].rstrip(" ")
                self._line = len(self._out) + 1
                while position < len(target) and target[position] == " ":
                    position += 1
            self._part(key)
            is_behind_space = target[max(0, offset - 1) : offset].isspace()
            if is_behind_space and target[position : position + 1].strip() and self._is_spaced(key):
                self._out.append(" ")  # Without the mark, the two spaces were one.

    def _is_spaced(self, index):
        """Whether a mark within a sentence has white space on both sides."""
        mark, behind = self._parts[index], self._parts[index + 1 : index + 2]
        where = self._position[index]
        return (
            getattr(mark, "kind", None) == INLINE
            and self.flat.text[max(0, where - 1) : where].isspace()
            and all(isinstance(part, Text) and part.text[:1].isspace() for part in behind)
        )

    def _part(self, index):
        self._written.append(index)
        self._out.append(self._parts[index].raw)

    def _text(self, text):
        if text:
            self._out.append(self._escape(text))

    def _raw(self, item, found=None):
        """What is written for an item; `found` is what the model wrote for it."""
        self._num_items += 1
        if item.raw is not None:
            return item.raw
        if item.kind != TERM:
            return self._escape(self.flat.text[item.start : item.end])
        self.used.append(item)
        forms = forms_of(item, self.flat.text)
        return self._escape(found if found in forms else forms[0])
