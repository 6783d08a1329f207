"""Where the tags of a sentence stand in its translation.

`word_ranges` says which words were translated to which. It knows no model: equal words and phrases
whose translation is known are anchors, between them the order is taken to be the same. A trained
alignment can take its place.
"""

import bisect
import collections
import dataclasses
import itertools
import re
import unicodedata

from kformer.documents.words import tokens

_NUMBERED = re.compile(r"(\d*)[^\d]+(\d*)")
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

    def holds(self, position):
        """Returns whether a position of the sentence is within the tags."""
        return self.start <= position < self.end


def placed(source, target, spans, atoms=(), in_order=False):
    """Places spans in a translation.

    Args:
        source, target: str. A sentence and its translation.
        spans: list of `Span`, none of which overlap but those within others.
        atoms: list of tuples of start, end, and their start and end in the sentence, default
            empty. Slices of the translation that are one word each. A span has the same of them
            within it as in the sentence, as far as their order allows.
        in_order: bool, default `False`. Whether the spans keep their order.

    Returns:
        List of pairs of a key and its position in the translation, in the order in which they are
        written.
    """
    placing = _Placing(source, target, spans, atoms, in_order)
    return placing.place(spans, 0, len(placing.target_tokens))


def is_nested(marks, spans, atoms, length):
    """Returns whether each atom stands within the same spans as in the sentence.

    Args:
        marks: what `placed` returned.
        spans, atoms: what it was given.
        length: int. Characters of the translation.
    """
    offsets = dict(marks)
    for span in with_children(spans):
        first, last = offsets.get(span.opening, 0), offsets.get(span.closing, length)
        for start, end, origin, _ in atoms:
            if (first <= start and end <= last) != span.holds(origin):
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


def _all_spans(spans):
    for span in spans:
        yield span
        yield from _all_spans(span.children)


def word_ranges(source_words, target_words, phrases=()):
    """Returns which words of a translation belong to each word of its source.

    Args:
        source_words, target_words: lists of str.
        phrases: list of tuples of start and end among the source's words and the list of words
            that they are translated to, default empty.

    Returns:
        List of pairs of start and end among the target's words, one for each source word.
    """
    lower_source = [*map(str.casefold, source_words)]
    lower_target = [*map(str.casefold, target_words)]
    ranges = _even_ranges(len(lower_source), len(lower_target))
    counts, indices = collections.Counter(lower_source), {}
    for j, word in enumerate(lower_target):
        indices.setdefault(word, []).append(j)
    for i, word in enumerate(lower_source):
        if counts[word] == 1 and len(indices.get(word, ())) == 1:
            ranges[i] = (indices[word][0], indices[word][0] + 1)
    for start, end, words in phrases:
        words = [word.casefold() for word in words]
        starts, expected = indices.get(words[0], ()) if words else (), ranges[start][0]
        middle = bisect.bisect_left(starts, expected)
        near = starts[max(0, middle - _MOST_TRIED) : middle + _MOST_TRIED]
        near = [first for first in near if lower_target[first : first + len(words)] == words]
        if near:
            first = min(near, key=lambda first: abs(first - expected))
            whole = first, first + len(words)
            # The last word has all of the phrase; the others tell where a mark within it stands.
            for i in range(start, end - 1):
                ranges[i] = max(first, ranges[i][0]), min(whole[1], ranges[i][1])
                ranges[i] = ranges[i] if ranges[i][0] < ranges[i][1] else whole
            ranges[end - 1] = whole
    return ranges


def _even_ranges(count, target_count):
    """Returns the ranges of words that are in the same order on both sides."""
    starts = [i * target_count // count for i in range(count)]
    ends = [-(-(i + 1) * target_count // count) for i in range(count)]
    return [(start, max(end, start + 1)) for start, end in zip(starts, ends, strict=True)]


class _Placing:
    def __init__(self, source, target, spans, atoms, in_order):
        self.source, self.target, self.in_order = source, target, in_order
        self.source_tokens = tokens(source, sorted(atom[2:] for atom in atoms))
        self.target_tokens = tokens(target, [atom[:2] for atom in atoms])
        origins = {start: origin for start, _, origin, _ in atoms} | self._cut_words(spans, atoms)
        origins |= self._brackets()
        starts = [start for start, _, _ in self.target_tokens]
        self._atoms = [(i, origins[start]) for i, start in enumerate(starts) if start in origins]
        self._source_words, self._target_words = (
            [i for i, (_, _, is_word) in enumerate(side) if is_word]
            for side in (self.source_tokens, self.target_tokens)
        )
        self._ranges = None

    def _cut_words(self, spans, atoms):
        """Cuts words of the source where a tag stands in them, and the same words of the target.

        Of another word, but no atom, what is cut off is a number: that at its end, or its begin.

        Returns:
            dict of the start of each part in the target to that in the source.
        """
        spans, atoms = list(_all_spans(spans)), {start for start, *_ in atoms}
        edges = sorted({edge for span in spans for edge in (span.start, span.end)})
        texts = [self.source[a:b] for a, b in itertools.pairwise(edges)]
        numbers = {text for text in texts if text.isdecimal()}
        cut, rows = {}, []
        for start, end, is_word in self.source_tokens:
            low, high = bisect.bisect_right(edges, start), bisect.bisect_left(edges, end)
            inner = edges[low:high] if is_word else []
            if inner:
                cut.setdefault(self.source[start:end].casefold(), []).append((start, inner))
            rows += [(*each, is_word) for each in itertools.pairwise([start, *inner, end])]
        if not cut:
            return {}
        self.source_tokens, rows, origins = rows, [], {}
        for start, end, is_word in self.target_tokens:
            word, inner = self.target[start:end], []
            if words := cut.get(word.casefold()):
                first, inner = words.pop(0) if len(words) > 1 else words[0]
                inner = [start + edge - first for edge in inner]
                origins |= {edge: edge - start + first for edge in [start, *inner]}
            elif is_word and start not in atoms and (match := _NUMBERED.fullmatch(word)):
                ends = zip(
                    match.groups(), (start + len(match[1]), end - len(match[2])), strict=True
                )
                inner = [edge for number, edge in ends if number in numbers]
            rows += [(*each, is_word) for each in itertools.pairwise([start, *inner, end])]
        self.target_tokens = rows
        return origins

    def _brackets(self):
        """Returns the brackets that occur once on both sides: start in the target to the source."""
        sides = []
        for text, rows in ((self.source, self.source_tokens), (self.target, self.target_tokens)):
            signs = [
                (unicodedata.normalize("NFKC", text[a:b]), a) for a, b, word in rows if not word
            ]
            counts = collections.Counter(sign for sign, _ in signs)
            sides.append({sign: a for sign, a in signs if counts[sign] == 1 and sign in "()[]"})
        return {sides[1][sign]: start for sign, start in sides[0].items() if sign in sides[1]}

    def _past_signs(self, index, most):
        """Returns the index after so many signs at the most, none of which opens something."""
        while most and index < len(self.target_tokens) and not self._opens(index):
            index, most = index + 1, most - 1
        return index

    def _opens(self, index):
        """Returns whether a token of the target is a word or a sign before what it belongs to."""
        start, end, is_word = self.target_tokens[index]
        sign, after = self.target[start:end], self.target[end : end + 1]
        kind = unicodedata.category(sign[0])
        is_apart = start == 0 or self.target[start - 1].isspace()
        is_before = is_apart and not (after or " ").isspace()
        return is_word or kind == "Ps" or (is_before and (kind in ("Pi", "Pf") or sign in "\"'#$<"))

    def place(self, spans, low, high):
        """Places sibling spans within the tokens from `low` to `high` of the target."""
        if not spans:
            return []
        if self._ranges is None:
            self._ranges = self._token_ranges(spans)
        ranged = [(span, *self._range(span, low, high)) for span in spans]
        if not self.in_order:
            # What has no words is not within a sibling, but at its side.
            words = [each for each in ranged if each[0].end > each[0].start]
            words.sort(key=lambda each: each[1])
            for number, (mark, position, _) in enumerate(ranged):
                index = bisect.bisect_left(words, position, key=lambda each: each[1]) - 1
                around = words[index] if index >= 0 else None
                if mark.end == mark.start and around and position < around[2]:
                    side = around[1] if mark.start <= around[0].start else around[2]
                    ranged[number] = (mark, side, side)
            ranged.sort(key=lambda each: each[1] + each[2])
        marks, position = [], low
        # Each of the following spans needs a token of its own.
        limit = high - sum(span.end > span.start for span in spans)
        for span, start, end in ranged:
            if span.end > span.start:
                limit += 1
                start = max(position, min(start, limit - 1))
                end = max(start, min(max(end, start + 1), limit), min(start + 1, high))
                start, end = self._around_atoms(span, start, end, position, limit)
                marks += self._written(span, start, end)
            else:
                start = end = max(position, min(start, limit))
                marks.append((span.opening, self._offset(start, span.start)))
            position = end
        return marks

    def _written(self, span, start, end):
        inner = self.place(span.children, start, end)
        is_token = start < len(self.target_tokens)
        first = self.target_tokens[start][0] if is_token else len(self.target)
        last = self.target_tokens[end - 1][1] if end > start else first
        inner = [(key, min(max(offset, first), last)) for key, offset in inner]
        marks = [(span.opening, first), *inner, (span.closing, last)]
        return [(key, offset) for key, offset in marks if key is not None]

    def _offset(self, index, position):
        """Returns the position before a token, or after the one before it, as in the source."""
        follows_space = position == 0 or self.source[position - 1].isspace()
        if index < len(self.target_tokens) and (follows_space or index == 0):
            return self.target_tokens[index][0]
        return self.target_tokens[index - 1][1] if index else len(self.target)

    def _token_ranges(self, spans):
        """Returns for each source token that is a word the range of target tokens."""
        source, target = self._source_words, self._target_words
        if not source or not target:
            return {}
        if self.in_order:
            ranges = _even_ranges(len(source), len(target))
        else:
            numbers = {token: word for word, token in enumerate(source)}
            ranges = word_ranges(
                [self.source[slice(*self.source_tokens[i][:2])] for i in source],
                [self.target[slice(*self.target_tokens[i][:2])] for i in target],
                self._phrases(spans, numbers),
            )
        ranges = {
            source[word]: (target[start], target[end - 1] + 1)
            for word, (start, end) in enumerate(ranges)
        }
        indices = {start: index for index, (start, _, _) in enumerate(self.source_tokens)}
        atoms = {indices[origin]: k for k, origin in self._atoms if indices.get(origin) in ranges}
        return ranges | {index: (k, k + 1) for index, k in atoms.items()}

    def _phrases(self, spans, numbers):
        for span in spans:
            inside = [numbers[i] for i in self._inside(span) if i in numbers]
            if span.phrase and inside:
                words = [span.phrase[a:b] for a, b, is_word in tokens(span.phrase) if is_word]
                yield inside[0], inside[-1] + 1, words
            yield from self._phrases(span.children, numbers)

    def _inside(self, span):
        """Returns the source's tokens that are within a span by more than half."""
        low = bisect.bisect_right(self.source_tokens, span.start, key=lambda token: token[1])
        high = bisect.bisect_left(self.source_tokens, span.end, key=lambda token: token[0])
        return [
            i
            for i, (start, end, _) in enumerate(self.source_tokens[low:high], low)
            if 2 * (min(end, span.end) - max(start, span.start)) > end - start
        ]

    def _range(self, span, low, high):
        """Returns the range of target tokens of a span."""
        inside = self._inside(span)
        ranges = [self._ranges[i] for i in inside if i in self._ranges]
        if span.end == span.start or not ranges:
            return self._gap(span, low, high)
        start, end = min(first for first, _ in ranges), max(last for _, last in ranges)
        # As many signs as stand around the words in the source.
        words = [i for i in inside if i in self._ranges]
        end = self._past_signs(end, inside[-1] - words[-1])
        most = words[0] - inside[0]
        while most and start and not self.target_tokens[start - 1][2]:
            start, most = start - 1, most - 1
        start, end = max(low, min(start, high)), max(low, min(end, high))
        atoms = [k for k, origin in self._atoms if span.holds(origin) and low <= k < high]
        return min([start, *atoms]), max([end, *(k + 1 for k in atoms)])

    def _around_atoms(self, span, start, end, low, high):
        """Returns a range cut down to a slice without the atoms that are outside of the span in
        the source.
        """
        inside = {k: span.holds(origin) for k, origin in self._atoms}
        outer = [k for k in range(start, end) if inside.get(k) is False]
        if not outer:
            return start, end
        slices = [(a + 1, b) for a, b in itertools.pairwise([start - 1, *outer, end])]
        sizes = [(sum(inside.get(k, False) for k in range(*each)), each) for each in slices]
        start, end = max(sizes, key=lambda each: (each[0], each[1][1] - each[1][0]))[1]
        if start == end:  # Beside the atom, rather than around nothing.
            after = (k for k in range(start, high) if inside.get(k) is not False)
            is_before = start > low and start - 1 not in inside
            start = start - 1 if is_before else next(after, None)
            return (end, end) if start is None else (start, start + 1)
        return start, end

    def _gap(self, span, low, high):
        """Returns where a span without words stands: after the word before it."""
        before = bisect.bisect_right(self.source_tokens, span.start, key=lambda token: token[1])
        number = bisect.bisect_left(self._source_words, before) - 1
        if number < 0 or not self._ranges:
            return low, low
        word = self._source_words[number]
        # No line begins with a sign that ends what stands before it.
        most = len(self.target) if self.in_order else before - 1 - word
        position = self._past_signs(self._ranges[word][1], most)
        return (max(low, min(position, high)),) * 2
