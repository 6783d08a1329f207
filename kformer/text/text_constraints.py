"""What translations must and must not contain, from texts to tokens."""

import copy
import functools

import numpy as np

from kformer.decoding import RowConstraints
from kformer.decoding.repetition import NO_TOKEN
from kformer.text.normalization import SPACE_SIGN
from kformer.text.word_pieces import is_byte_piece, without_space_sign, word_starts
from kformer.utils.checks import check_texts, shown
from kformer_options.names import named, numbered
from kformer_options.text_files import check_same_length

# Ways to write a forbidden phrase that are kept out: so many, of so many pieces more than fewest.
_MOST_WAYS, _MORE_PIECES = 64, 2


class TextConstraints:
    """What the translations of some texts must and must not contain, as tokens.

    Args:
        tokenizer: `kformer.Tokenizer`.
        count: int. The number of texts.
        terms: list with a list for each text, default `None`. What its translation must contain:
            each a str, or a tuple of str, one of which is enough.
        forbidden_terms: list with a list of str for each text, default `None`.
        prefixes: list of str, default `None`. How each translation begins.
        first_index: int, default 0. The index of the first text in a longer input, for what an
            error says.

    Raises:
        TypeError: a list is one text, or holds something else than texts.
        ValueError: a list has another length than the texts, or a term cannot be written.
    """

    def __init__(
        self, tokenizer, count, terms=None, forbidden_terms=None, prefixes=None, first_index=0
    ):
        self._vocabulary = tokenizer.vocabulary("target")
        self._numbers = range(first_index + 1, first_index + count + 1)
        # For each kind of constraint a list with an entry for each text.
        self._rows = {}
        if prefixes is not None:
            prefixes = check_texts(prefixes)
            check_same_length("the texts", count, "prefixes", len(prefixes))
            self._rows["prefix"] = self._encode(prefixes, "prefix", self._numbers)
        if terms is not None:
            self._rows["phrases"] = [
                [self._forms(forms, number) for forms in row]
                for number, row in self._checked("terms", terms, has_forms=True)
            ]
        if forbidden_terms is not None:
            self._rows["forbidden"] = [
                [way for (term,) in row for way in self._ways(term, number)]
                for number, row in self._checked("forbidden_terms", forbidden_terms)
            ]

    def _checked(self, name, lists, has_forms=False):
        """Yields the number of each text, and its terms as a list of tuples of forms."""
        _check_list(name, lists, "lists of terms, one for each text")
        lists = list(lists)
        check_same_length("the texts", len(self._numbers), name, len(lists))
        for number, terms in zip(self._numbers, lists, strict=True):
            _check_list(f"{name} of text {number}", terms, "terms")
            rows = []
            for term in terms:
                is_several = has_forms and isinstance(term, tuple | list)
                rows.append(tuple(term) if is_several else (term,))
                if not rows[-1] or not all(isinstance(form, str) for form in rows[-1]):
                    kind = "a text or a tuple of texts" if has_forms else "a text"
                    raise TypeError(
                        f"A term of text {number} must be {kind}, but {shown(term)} was given."
                    )
            yield number, rows

    def rows(self, indices):
        """Returns `RowConstraints` of some texts, by their indices; `None` if there are none."""
        lists = {name: [rows[i] for i in indices] for name, rows in self._rows.items()}
        depths = {"prefix": 1, "phrases": 3, "forbidden": 2}
        arrays = {name: _padded(rows, depths[name]) for name, rows in lists.items() if any(rows)}
        return RowConstraints(**arrays) if arrays else None

    def limits(self, indices, lengths, options):
        """Returns the limits of some texts: those of a search, raised to what they must contain.

        Args:
            indices: list of int. The texts.
            lengths: list of int. Their source tokens.
            options: `SearchOptions`.

        Returns:
            Array of ints.
        """
        return np.maximum(
            options.limits(np.array(lengths)), [self._size(i, options) for i in indices]
        )

    def check_fit(self, indices, options, more=0):
        """Checks that what must be in the translations of some texts fits.

        Args:
            indices: iterable of int. The texts.
            options: `SearchOptions`.
            more: int, default 0. Tokens that follow the prefix in any case.

        Raises:
            ValueError: a text needs more than `max_length`.
        """
        for index in indices if self._rows else ():
            size = self._size(index, options) + more
            if size > options.max_length:
                raise ValueError(
                    f"The prefix and the terms of {numbered(self._numbers[index])} need {size} "
                    f"tokens, but {named('max_length')} is {options.max_length}; give fewer."
                )

    def _size(self, index, options):
        phrases = sum(min(map(len, forms)) for forms in self._row("phrases", index))
        return len(options.prefix_ids) + len(self.prefix(index)) + phrases

    def prefix(self, index):
        """Returns the ids of the prefix of a text."""
        return self._row("prefix", index)

    def has_phrases(self, index):
        """Returns whether something must occur in the translation of a text."""
        return bool(self._row("phrases", index))

    def forbidden_after(self, index, ids):
        """Returns the set of tokens that would complete a forbidden phrase after ids."""
        return {
            way[-1]
            for way in self._row("forbidden", index)
            if len(way) == 1 or way[:-1] == list(ids)[1 - len(way) :]
        }

    def extended(self, branches):
        """Returns the `TextConstraints` of pairs of a text's index and one more token of its
        prefix.
        """
        other = self.of([i for i, _ in branches])
        other._rows["prefix"] = [[*self.prefix(i), token] for i, token in branches]
        return other

    def of(self, indices):
        """Returns the `TextConstraints` of some of the texts, by their indices."""
        other = copy.copy(self)
        other._rows = {name: [rows[i] for i in indices] for name, rows in self._rows.items()}
        other._numbers = [self._numbers[i] for i in indices]
        return other

    def _row(self, name, index):
        return self._rows[name][index] if name in self._rows else []

    def _encode(self, texts, kind, numbers):
        """Returns the ids of constraints of the texts of some numbers; errors name their kind."""
        rows = self._vocabulary.encode(texts)
        for text, row, number in zip(texts, rows, numbers, strict=True):
            fault = None if row or kind == "prefix" else "is empty"
            if self._vocabulary.unknown_id in row:
                fault = "cannot be written: the model's vocabulary lacks one of its characters"
            if fault is not None:
                name = f"The {kind} {shown(text)} of {numbered(number)}"
                raise ValueError(f"{name} {fault}; leave it out.")
        return rows

    def _forms(self, texts, number):
        """Returns the ways to write a term as tokens: those of all its forms."""
        forms = []
        for row in self._encode(texts, "term", [number] * len(texts)):
            forms.append(row)
            if not self._begins_word(row):
                forms += filter(None, [joined(row, self._unsigned)])
        return forms

    def _begins_word(self, row):
        first = self._starts[row[0]]
        return bool(self._starts[row[1]] == 1 if first == 2 and len(row) > 1 else first == 1)

    @functools.cached_property
    def _starts(self):
        return word_starts(self._vocabulary)

    @functools.cached_property
    def _unsigned(self):
        return without_space_sign(self._vocabulary)

    @functools.cached_property
    def _ids(self):
        """Dict of the pieces that may write a forbidden phrase in another way to their ids."""
        pairs = zip(self._vocabulary.pieces, self._vocabulary.surfaces, strict=False)
        ids = {pair: i for i, pair in enumerate(pairs) if pair[1] and not is_byte_piece(*pair)}
        return {piece: i for (piece, _), i in ids.items()}

    def _ways(self, term, number):
        """Returns the ways to write a forbidden phrase as tokens, those of fewest pieces first."""
        (row,) = self._encode([term], "forbidden term", [number])
        text = "".join(self._vocabulary.pieces[i] for i in row)
        if any(self._vocabulary.pieces[i] not in self._ids for i in row):  # Bytes.
            return [row]
        ways = [row, *self._written(text, len(row) + _MORE_PIECES)]
        if not self._begins_word(row):
            # It may stand after another word, and within a piece.
            text = text.removeprefix(SPACE_SIGN)
            ways += [[i] for piece, i in self._ids.items() if text in piece]
            ways += self._written(text, len(row) + _MORE_PIECES)
        return [list(way) for way in dict.fromkeys(map(tuple, ways))][:_MOST_WAYS]

    def _written(self, text, most):
        """Returns the ways to write a text with up to `most` pieces, those of fewest first."""
        longest = max(map(len, self._ids))
        ways, unfinished = [], [((), 0)]
        for _ in range(most):
            longer = []
            for ids, start in unfinished:
                for end in range(start + 1, min(start + longest, len(text)) + 1):
                    token = self._ids.get(text[start:end])
                    if token is not None:
                        way = (*ids, token)
                        (ways if end == len(text) else longer).append((way, end))
            # The longest will have the fewest pieces.
            unfinished = sorted(longer, key=lambda way: -way[1])[: 4 * _MOST_WAYS]
        return [ids for ids, _ in ways]


def joined(row, unsigned):
    """Returns ids without the space sign in front, as they follow a text without a space; `None` if
    the vocabulary lacks the piece.

    Args:
        row: list of int.
        unsigned: array, from `without_space_sign`.
    """
    first = unsigned[row[0]]
    if first == -1 or (first == -2 and len(row) == 1):
        return None
    return row[1:] if first == -2 else [int(first), *row[1:]]


def _check_list(name, value, items):
    if isinstance(value, str | bytes):
        value = shown(value)
        raise TypeError(f"{name} must be a list of {items}, but the text {value} was given.")


def _padded(rows, depth):
    """Returns nested lists of ids as an array with `depth` axes after the first, padded with
    `NO_TOKEN`.
    """
    sizes, level = [len(rows)], rows
    for _ in range(depth):
        sizes.append(max(map(len, level), default=0))
        level = [item for items in level for item in items]
    array = np.full([max(1, size) for size in sizes], NO_TOKEN, "int32")

    def write(target, items):
        if target.ndim == 1:
            target[: len(items)] = items
            return
        for index, item in enumerate(items):
            write(target[index], item)

    write(array, rows)
    return array
