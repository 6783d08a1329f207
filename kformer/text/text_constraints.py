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
        self._parts = {}
        if prefixes is not None:
            prefixes = check_texts(prefixes)
            check_same_length("the texts", count, "prefixes", len(prefixes))
            self._parts["prefix"] = self._encode(prefixes, "prefix", self._numbers)
        if terms is not None:
            rows = _checked("terms", terms, self._numbers, has_forms=True)
            self._parts["phrases"] = [
                [self._forms(forms, number) for forms in row]
                for number, row in zip(self._numbers, rows, strict=True)
            ]
        if forbidden_terms is not None:
            rows = _checked("forbidden_terms", forbidden_terms, self._numbers, has_forms=False)
            self._parts["forbidden"] = [
                [way for (term,) in row for way in self._ways(term, number)]
                for number, row in zip(self._numbers, rows, strict=True)
            ]

    def rows(self, indices):
        """`RowConstraints` of some texts, by their indices; `None` where nothing is asked."""
        chosen = {name: [rows[i] for i in indices] for name, rows in self._parts.items()}
        depths = {"prefix": 1, "phrases": 3, "forbidden": 2}
        arrays = {name: _padded(rows, depths[name]) for name, rows in chosen.items() if any(rows)}
        return RowConstraints(**arrays) if arrays else None

    def limits(self, indices, lengths, options):
        """The limits of some texts: those of a search, raised to what must be in a translation.

        Args:
            indices: list of int. The texts.
            lengths: list of int. Their source tokens.
            options: `SearchOptions`.

        Returns:
            Array of ints.
        """
        least = [self._least(i, options) for i in indices]
        return np.maximum(options.limits(np.array(lengths)), least)

    def check_fit(self, indices, options, more=0):
        """Checks that what must be in the translations of some texts fits.

        Args:
            indices: iterable of int. The texts.
            options: `SearchOptions`.
            more: int, default 0. Tokens that follow the prefix in any case.

        Raises:
            ValueError: a text needs more than `max_length`.
        """
        for index in indices if self._parts else ():
            size = self._least(index, options) + more
            if size > options.max_length:
                raise ValueError(
                    f"The prefix and the terms of {numbered(self._numbers[index])} need {size} "
                    f"tokens, but {named('max_length')} is {options.max_length}; give fewer, or "
                    "raise it."
                )

    def _least(self, index, options):
        phrases = sum(min(map(len, forms)) for forms in self._row("phrases", index))
        return len(options.prefix_ids) + len(self.prefix(index)) + phrases

    def prefix(self, index):
        """The ids of the prefix of a text."""
        return self._row("prefix", index)

    def has_phrases(self, index):
        """Whether something must occur in the translation of a text."""
        return bool(self._row("phrases", index))

    def forbidden_after(self, index, ids):
        """The set of tokens that would complete a forbidden phrase after ids."""
        return {
            way[-1]
            for way in self._row("forbidden", index)
            if len(way) == 1 or way[:-1] == list(ids)[1 - len(way) :]
        }

    def extended(self, branches):
        """The `TextConstraints` of pairs of a text's index and one more token of its prefix."""
        other = copy.copy(self)
        other._parts = {name: [rows[i] for i, _ in branches] for name, rows in self._parts.items()}
        other._numbers = [self._numbers[i] for i, _ in branches]
        other._parts["prefix"] = [[*self.prefix(i), token] for i, token in branches]
        return other

    def _row(self, name, index):
        return self._parts[name][index] if name in self._parts else []

    def _encode(self, texts, kind, numbers):
        """The ids of what is asked of the texts of some numbers; errors call it by its kind."""
        rows = self._vocabulary.encode(texts)
        for text, row, number in zip(texts, rows, numbers, strict=True):
            if self._vocabulary.unknown_id in row:
                raise ValueError(
                    f"The {kind} {shown(text)} of {numbered(number)} cannot be written: the "
                    "model's vocabulary lacks one of its characters; leave it out."
                )
            if not row and kind != "prefix":
                raise ValueError(
                    f"The {kind} {shown(text)} of {numbered(number)} is empty: give a word, or "
                    "leave it out."
                )
        return rows

    def _forms(self, texts, number):
        """The ways to write a term as tokens: those of all its forms."""
        found = []
        for row in self._encode(texts, "term", [number] * len(texts)):
            found.append(row)
            if not begins_word(row, self._starts):
                found += filter(None, [joined(row, self._unsigned)])
        return found

    @functools.cached_property
    def _starts(self):
        return word_starts(self._vocabulary)

    @functools.cached_property
    def _unsigned(self):
        return without_space_sign(self._vocabulary)

    @functools.cached_property
    def _ids(self):
        """The ids of the pieces that may write a forbidden phrase in another way."""
        parts = zip(self._vocabulary.pieces, self._vocabulary.surfaces, strict=False)
        return {
            piece: i
            for i, (piece, surface) in enumerate(parts)
            if surface and not is_byte_piece(piece, surface)
        }

    def _ways(self, term, number):
        """The ways to write a forbidden phrase as tokens, those of fewest pieces first."""
        (row,) = self._encode([term], "forbidden term", [number])
        text = "".join(self._vocabulary.pieces[i] for i in row)
        if any(self._vocabulary.pieces[i] not in self._ids for i in row):  # Bytes.
            return [row]
        ways = [row, *self._written(text, len(row) + _MORE_PIECES)]
        if not begins_word(row, self._starts):
            # It may stand after another word, and within a piece.
            text = text.removeprefix(SPACE_SIGN)
            ways += [[i] for piece, i in self._ids.items() if text in piece]
            ways += self._written(text, len(row) + _MORE_PIECES)
        ways = list(dict.fromkeys(map(tuple, ways)))
        return [list(way) for way in ways][:_MOST_WAYS]

    def _written(self, text, most):
        """The ways to write a text with up to `most` pieces, those of fewest first."""
        longest = max(map(len, self._ids))
        found, unfinished = [], [((), 0)]
        for _ in range(most):
            longer = []
            for ids, start in unfinished:
                for end in range(start + 1, min(start + longest, len(text)) + 1):
                    token = self._ids.get(text[start:end])
                    if token is not None:
                        way = (*ids, token)
                        (found if end == len(text) else longer).append((way, end))
            # Those that have come furthest will have the fewest pieces.
            unfinished = sorted(longer, key=lambda way: -way[1])[: 4 * _MOST_WAYS]
        return [ids for ids, _ in found]


def joined(row, unsigned):
    """Ids without the space sign in front, as they follow a text without a space; `None` where the
    vocabulary lacks the piece.

    Args:
        row: list of int.
        unsigned: array, from `without_space_sign`.
    """
    first = unsigned[row[0]]
    if first == -1 or (first == -2 and len(row) == 1):
        return None
    return row[1:] if first == -2 else [int(first), *row[1:]]


def begins_word(row, starts):
    """Whether ids begin with a word; `starts` is an array, from `word_starts`."""
    first = starts[row[0]]
    return bool(starts[row[1]] == 1 if first == 2 and len(row) > 1 else first == 1)


def _checked(name, lists, numbers, has_forms):
    """A list of terms for each text as a list of tuples of forms."""
    if isinstance(lists, str | bytes):
        raise TypeError(f"{name} must be a list with a list of terms for each text, not one text.")
    lists = list(lists)
    check_same_length("the texts", len(numbers), name, len(lists))
    pairs = zip(numbers, lists, strict=True)
    return [_checked_terms(name, number, terms, has_forms) for number, terms in pairs]


def _checked_terms(name, number, terms, has_forms):
    if isinstance(terms, str | bytes):
        raise TypeError(
            f"{name} of text {number} must be a list of terms, but {shown(terms)} was given; put "
            "it into a list."
        )
    rows = []
    for term in terms:
        forms = tuple(term) if has_forms and isinstance(term, tuple | list) else (term,)
        if not forms or not all(isinstance(form, str) for form in forms):
            wanted = "a text or a tuple of texts" if has_forms else "a text"
            raise TypeError(
                f"A term of text {number} must be {wanted}, but {shown(term)} was given."
            )
        rows.append(forms)
    return rows


def _padded(rows, depth):
    """Nested lists of ids as an array with `depth` axes after the first, `NO_TOKEN` as padding."""
    sizes, level = [len(rows)], rows
    for _ in range(depth):
        sizes.append(max(map(len, level), default=0))
        level = [part for parts in level for part in parts]
    array = np.full([max(1, size) for size in sizes], NO_TOKEN, "int32")

    def write(target, part, left):
        if left == 0:
            target[: len(part)] = part
            return
        for index, each in enumerate(part):
            write(target[index], each, left - 1)

    write(array, rows, depth)
    return array
