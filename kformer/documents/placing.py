"""Where the tags of a sentence stand in its translation.

`word_ranges` says which words were translated to which. It knows no model: equal words and phrases
whose translation is known are anchors, between them the order is taken to be the same. A trained
alignment can take its place.
"""

import bisect
import collections
import dataclasses
import itertools

from kformer.documents.words import tokens

# Where a phrase may begin: of so many occurrences of its first word the nearest is taken.
_MOST_TRIED = 100


@dataclasses.dataclass
class Span:
    """A pair of tags, or a mark, within a sentence.

    Attributes:
        start, end: int. The slice of the sentence's text; equal for a mark.
        opening, closing: the tags' keys, which `placed` returns; `opening` alone for a mark, and
            `None` for a tag that stands outside of the sentence.
        phrase: str. The translation of the span's text alone; `""` if it is not known.
        children: list of `Span`, in their order.
    """

    start: int
    end: int
    opening: object = None
    closing: object = None
    phrase: str = ""
    children: list = dataclasses.field(default_factory=list)


def placed(source, target, spans, atoms=(), in_order=False):
    """Places spans in a translation.

    Args:
        source, target: str. A sentence and its translation.
        spans: list of `Span`, none of which overlap but those within others.
        atoms: list of tuples of start, end and origin, default empty. Slices of the translation
            that are one word each and stand at the offset `origin` of the sentence. A span has the
            same of them within it as in the sentence, as far as their order allows.
        in_order: bool, default `False`. Whether the spans keep their order.

    Returns:
        List of pairs of a key and its position in the translation, in the order in which they are
        written.
    """
    work = _Placing(source, target, atoms, in_order)
    return work.place(spans, 0, len(work.there))


def is_nested(marks, spans, atoms, length):
    """Whether each atom stands within the same spans as in the sentence.

    Args:
        marks: what `placed` returned.
        spans, atoms: what it was given.
        length: int. Characters of the translation.
    """
    offsets = dict(marks)
    for span in with_children(spans):
        first, last = offsets.get(span.opening, 0), offsets.get(span.closing, length)
        for start, end, origin in atoms:
            if (first <= start and end <= last) != _holds(span, origin):
                return False
    return True


def with_children(spans):
    """Yields spans and all in them, except marks.

    Args:
        spans: list of `Span`.
    """
    for span in spans:
        if span.end > span.start:
            yield span
        yield from with_children(span.children)


def word_ranges(source_words, target_words, phrases=()):
    """Which words of a translation belong to each word of its source.

    Args:
        source_words, target_words: lists of str.
        phrases: list of tuples of start and end among the source's words and the list of words
            that they are translated to, default empty.

    Returns:
        List of pairs of start and end among the target's words, one for each source word.
    """
    count, other = len(source_words), len(target_words)
    ranges = [
        (i * other // count, max(-(-(i + 1) * other // count), i * other // count + 1))
        for i in range(count)
    ]
    lower_source = [word.casefold() for word in source_words]
    lower_target = [word.casefold() for word in target_words]
    counts, found_at = collections.Counter(lower_source), {}
    for j, word in enumerate(lower_target):
        found_at.setdefault(word, []).append(j)
    for i, word in enumerate(lower_source):
        found = found_at.get(word, ())
        if counts[word] == 1 and len(found) == 1:
            ranges[i] = (found[0], found[0] + 1)
    for start, end, words in phrases:
        words = [word.casefold() for word in words]
        first = _nearest(lower_target, words, ranges[start][0], found_at)
        if first is not None:
            ranges[start:end] = [(first, first + len(words))] * (end - start)
    return ranges


def _nearest(words, phrase, expected, found_at):
    starts = found_at.get(phrase[0], ()) if phrase else ()
    middle = bisect.bisect_left(starts, expected)
    near = starts[max(0, middle - _MOST_TRIED) : middle + _MOST_TRIED]
    return next(
        (
            start
            for start in sorted(near, key=lambda start: abs(start - expected))
            if words[start : start + len(phrase)] == phrase
        ),
        None,
    )


def _holds(span, origin):
    return span.start <= origin < span.end


class _Placing:
    def __init__(self, source, target, atoms, in_order):
        self.source, self.target, self.in_order = source, target, in_order
        self.here, self.there = tokens(source), tokens(target, [atom[:2] for atom in atoms])
        origins = {start: origin for start, _, origin in atoms}
        self._atoms = [
            (index, origins[token[0]])
            for index, token in enumerate(self.there)
            if token[0] in origins
        ]
        self._words_here, self._words_there = (
            [i for i, (_, _, is_word) in enumerate(found) if is_word]
            for found in (self.here, self.there)
        )
        self._ranges = None

    def place(self, spans, low, high):
        """Places sibling spans within the tokens from `low` to `high` of the target."""
        if not spans:
            return []
        if self._ranges is None:
            self._ranges = self._token_ranges(spans)
        ranged = [(span, *self._range(span, low, high)) for span in spans]
        if not self.in_order:
            ranged.sort(key=lambda each: each[1] + each[2])
        found, position = [], low
        # Each of those that follow needs a token of its own.
        left = high - sum(span.end > span.start for span in spans)
        for span, start, end in ranged:
            if span.end > span.start:
                left += 1
                start = max(position, min(start, left - 1))
                end = max(start, min(max(end, start + 1), left), min(start + 1, high))
                start, end = self._without_others(span, start, end, position, left)
            else:
                start = end = max(position, min(start, left))
            found += self._written(span, start, end)
            position = end
        return found

    def _written(self, span, start, end):
        if span.end == span.start:
            return [(span.opening, self._offset(start, span.start))]
        inner = self.place(span.children, start, end)
        first = self.there[start][0] if start < len(self.there) else len(self.target)
        last = self.there[end - 1][1] if end > start else first
        inner = [(key, min(max(offset, first), last)) for key, offset in inner]
        before = [] if span.opening is None else [(span.opening, first)]
        behind = [] if span.closing is None else [(span.closing, last)]
        return before + inner + behind

    def _offset(self, index, position):
        """The position before a token, or after the one before it, as in the source."""
        follows_space = position == 0 or self.source[position - 1].isspace()
        if index < len(self.there) and (follows_space or index == 0):
            return self.there[index][0]
        return self.there[index - 1][1] if index else len(self.target)

    def _token_ranges(self, spans):
        """For each source token that is a word, the range of target tokens."""
        here, there = self._words_here, self._words_there
        if not here or not there:
            return {}
        number = {token: word for word, token in enumerate(here)}
        ranges = word_ranges(
            [self.source[slice(*self.here[i][:2])] for i in here],
            [self.target[slice(*self.there[i][:2])] for i in there],
            [] if self.in_order else list(self._phrases(spans, number)),
        )
        if self.in_order:
            ranges = word_ranges(list("x" * len(here)), list("y" * len(there)))
        return {
            here[word]: (there[start], there[end - 1] + 1)
            for word, (start, end) in enumerate(ranges)
        }

    def _phrases(self, spans, number):
        for span in spans:
            inside = [number[i] for i in self._inside(span) if i in number]
            if span.phrase and inside:
                words = [span.phrase[a:b] for a, b, is_word in tokens(span.phrase) if is_word]
                yield inside[0], inside[-1] + 1, words
            yield from self._phrases(span.children, number)

    def _inside(self, span):
        """The source's tokens of which most is within a span."""
        low = bisect.bisect_right(self.here, span.start, key=lambda token: token[1])
        high = bisect.bisect_left(self.here, span.end, key=lambda token: token[0])
        return [
            i
            for i, (start, end, _) in enumerate(self.here[low:high], low)
            if 2 * (min(end, span.end) - max(start, span.start)) > end - start
        ]

    def _range(self, span, low, high):
        """The range of target tokens of a span."""
        inside = self._inside(span)
        ranges = [self._ranges[i] for i in inside if i in self._ranges]
        if span.end == span.start or not ranges:
            return self._gap(span, low, high)
        start, end = min(a for a, _ in ranges), max(b for _, b in ranges)
        if not self.here[inside[-1]][2]:
            end = self._next_word(end)
        if not self.here[inside[0]][2]:
            start = self._behind_word(start)
        start, end = max(low, min(start, high)), max(low, min(end, high))
        own = [k for k, origin in self._atoms if _holds(span, origin) and low <= k < high]
        return min([start, *own]), max([end, *(k + 1 for k in own)])

    def _without_others(self, span, start, end, low, high):
        """A range cut down to a part without the atoms that stand outside of the span in the
        source.
        """
        inside = {k: _holds(span, origin) for k, origin in self._atoms}
        others = [k for k in range(start, end) if inside.get(k) is False]
        if not others:
            return start, end
        parts = [(a + 1, b) for a, b in itertools.pairwise([start - 1, *others, end])]
        sizes = [(sum(inside.get(k, False) for k in range(*part)), part) for part in parts]
        start, end = max(sizes, key=lambda each: (each[0], each[1][1] - each[1][0]))[1]
        if start == end:  # Beside the atom, rather than around nothing.
            if start > low and start - 1 not in inside:
                return start - 1, start
            after = next((k for k in range(start, high) if inside.get(k) is not False), high)
            if after < high:
                return after, after + 1
        return start, end

    def _gap(self, span, low, high):
        """Where a span without words stands: after the word before it."""
        before = bisect.bisect_right(self.here, span.start, key=lambda token: token[1])
        number = bisect.bisect_left(self._words_here, before) - 1
        if number < 0 or not self._ranges:
            return low, low
        word = self._words_here[number]
        position = self._ranges[word][1]
        if word != before - 1:  # A sign stands between.
            position = self._next_word(position)
        return (max(low, min(position, high)),) * 2

    def _next_word(self, index):
        """The index of the next word in the target, which may be the one at `index`."""
        number = bisect.bisect_left(self._words_there, index)
        found = self._words_there[number : number + 1]
        return found[0] if found else len(self.there)

    def _behind_word(self, index):
        """The index after the last word of the target before `index`."""
        number = bisect.bisect_left(self._words_there, index)
        return self._words_there[number - 1] + 1 if number else 0
