"""What a tokenizer does once it is made: text to ids and back."""

import copy
import functools

from kformer.text import folder as tokenizer_folder
from kformer.text.id_sequences import id_rows
from kformer.text.languages import (
    check_languages,
    cut_tag,
    find_language,
    place_language,
    placed_language,
)
from kformer.text.normalization import valid_text
from kformer.utils.checks import check_choice


class BaseTokenizer:
    """Two sides put together, and everything but the ways to make, save and load them; see
    `kformer.Tokenizer`.

    Args:
        source, target: `Vocabulary`, the same object where both sides share one.
        special_ids: dict with the ids of "pad", "unknown", "start" and "end".
        prefixes, suffixes: dicts of side to ids that `special_tokens=True` puts around a text.
        languages, language_places, language_tags: see `Tokenizer.from_sentencepiece`.
    """

    def __init__(
        self,
        source,
        target,
        *,
        special_ids,
        prefixes,
        suffixes,
        languages=None,
        language_places=None,
        language_tags=False,
    ):
        self._sides = {"source": source, "target": target}
        self.special_ids = {name: special_ids[name] for name in tokenizer_folder.SPECIAL_NAMES}
        self._prefixes = {side: tuple(prefixes[side]) for side in tokenizer_folder.SIDES}
        self._suffixes = {side: tuple(suffixes[side]) for side in tokenizer_folder.SIDES}
        self.normalization = source.normalization.name
        self._languages, self._language_places = check_languages(
            languages, language_places, self._sides
        )
        self.language_tags = bool(language_tags)
        for side, vocabulary in self._sides.items():
            for token_id in (
                *self.special_ids.values(),
                *self._prefixes[side],
                *self._suffixes[side],
            ):
                if not 0 <= token_id < len(vocabulary):
                    raise ValueError(
                        f"The special id {token_id} is outside of the {side} vocabulary of {len(vocabulary)} pieces."
                    )

    def for_languages(self, source=None, target=None):
        """The tokenizer of a multilingual model with other languages; the vocabularies are shared,
        so this costs nothing.

        Where a language's id stands depends on the model: before or behind the text, or in the
        place of the start token (then `start_id` of the returned tokenizer differs, and the model
        must start with it).

        Args:
            source, target: language codes, keys of `languages`; None leaves a side's language as it
                is.

        Returns:
            Tokenizer.

        Raises:
            ValueError: if a code is unknown, or the model has no place for that language.

        Example:

            tokenizer.for_languages(source="eng_Latn", target="fra_Latn")
        """
        other = copy.copy(self)
        other.special_ids, other._prefixes, other._suffixes = (
            dict(self.special_ids),
            dict(self._prefixes),
            dict(self._suffixes),
        )
        for role, code in (("source", source), ("target", target)):
            if code is not None:
                token_id = find_language(self._languages, self._language_places, role, code)
                places = self._language_places[role]
                place_language(
                    token_id, places, other.special_ids, other._prefixes, other._suffixes
                )
        return other

    def tokenize(self, texts, side="source", special_tokens=False, num_threads=None):
        """Text to ids.

        With `language_tags` a source text may begin with its own tag, see
        `Tokenizer.from_sentencepiece`.

        Args:
            texts: str or bytes, or an iterable of them.
            side: "source" or "target".
            special_tokens: whether to put the side's prefix and suffix ids around (for our own
                models: the end token after the text).
            num_threads: int; None means every usable processor for a large batch and one for a
                small batch.

        Returns:
            list of list of int, or for a single text list of int.

        Raises:
            ValueError: if a text is neither str nor bytes, or `side` is unknown.
        """
        vocabulary = self._side(side)
        single = isinstance(texts, str | bytes)
        if not single and not hasattr(texts, "__iter__"):
            raise ValueError(
                f"texts must be a text or an iterable of texts, not {type(texts).__name__}."
            )
        texts = [texts] if single else texts
        own = None
        if self.language_tags and side == "source":
            own, texts = self._cut_tags(texts)
        rows = vocabulary.encode(texts, num_threads)
        prefix, suffix = (
            (list(self._prefixes[side]), list(self._suffixes[side])) if special_tokens else ([], [])
        )
        if own is not None:
            rows = [
                (prefix if tag is None else tag) + row + suffix
                for tag, row in zip(own, rows, strict=True)
            ]
        elif special_tokens:
            rows = [prefix + row + suffix for row in rows]
        return rows[0] if single else rows

    def _cut_tags(self, texts):
        """For each text the list of its own tag's id, None without a tag; and the texts without
        their tags.
        """
        cut = [cut_tag(valid_text(text)) for text in texts]
        return [[self.tag_ids.get(tag, self.unknown_id)] if tag else None for tag, _ in cut], [
            text for _, text in cut
        ]

    @functools.cached_property
    def tag_ids(self):
        """dict of a tag as it stands in a text, ">>fra<<", to its id; empty without
        `language_tags`.
        """
        if not self.language_tags:
            return {}
        return {
            piece: i
            for i, piece in enumerate(self._sides["source"].pieces)
            if cut_tag(piece) == (piece, "")
        }

    def detokenize(self, ids, side="target"):
        """Ids to text. Control ids (pad, start, end, ...) write nothing; an id outside of the
        vocabulary writes what the unknown token writes; bytes that are no UTF-8 write U+FFFD.

        Args:
            ids: a sequence of int, or a sequence of such sequences; lists, arrays or tensors.
            side: "source" or "target".

        Returns:
            str for one flat sequence, otherwise list of str; `[]` for an empty list.
        """
        decode = self._side(side).decode
        rows, flat = id_rows(ids)
        return decode(rows[0]) if flat else [decode(row) for row in rows]

    def tokens(self, ids, side="target"):
        """The pieces of one sequence of ids, for people to read: list of str, "\\u2581" where a
        word begins.
        """
        rows, flat = id_rows(ids)
        if not flat and rows:
            raise ValueError("tokens takes one flat sequence of ids; call it for each row.")
        return self._side(side).tokens(rows[0] if rows else [])

    def id_to_token(self, id, side="target"):
        """The piece of one id, as str; ValueError if the id is outside of the vocabulary."""
        pieces = self._side(side).pieces
        if not 0 <= id < len(pieces):
            raise ValueError(
                f"The id {id} is outside of the {side} vocabulary of {len(pieces)} pieces."
            )
        return pieces[id]

    @property
    def vocabulary_size(self):
        """Number of ids of the source side, and of both sides where they share one vocabulary."""
        return len(self._sides["source"])

    @property
    def target_vocabulary_size(self):
        """Number of ids of the target side."""
        return len(self._sides["target"])

    @property
    def joint(self):
        """Whether an id means the same piece on both sides, so that a model may share one embedding
        table.
        """
        return self._sides["source"].pieces == self._sides["target"].pieces

    def writes_like(self, other):
        """Whether another tokenizer gives the same ids for every text, and the same text for all
        ids.
        """
        parts = [
            (
                each.special_ids,
                each._prefixes,
                each._suffixes,
                *((side.model, side.pieces) for side in each._sides.values()),
            )
            for each in (self, other)
        ]
        return parts[0] == parts[1] and self.normalization == other.normalization

    pad_id = property(lambda self: self.special_ids["pad"])
    unknown_id = property(lambda self: self.special_ids["unknown"])
    start_id = property(lambda self: self.special_ids["start"])
    end_id = property(lambda self: self.special_ids["end"])
    source_prefix = property(lambda self: self._prefixes["source"])
    source_suffix = property(lambda self: self._suffixes["source"])
    target_prefix = property(lambda self: self._prefixes["target"])
    target_suffix = property(lambda self: self._suffixes["target"])

    languages = property(lambda self: dict(self._languages))
    source_language = property(lambda self: self._placed_language("source"))
    target_language = property(lambda self: self._placed_language("target"))

    def _placed_language(self, role):
        return placed_language(
            self._languages,
            self._language_places,
            role,
            self.special_ids,
            self._prefixes,
            self._suffixes,
        )

    def sentencepiece_model(self, side="source"):
        """The serialised SentencePiece model of one side, bytes."""
        return self._side(side).model

    def vocabulary(self, side="source"):
        """The `Vocabulary` of one side; the same object for both where they share one."""
        return self._side(side)

    def _side(self, side):
        return self._sides[check_choice("side", side, self._sides)]

    def __repr__(self):
        sizes = (
            self.vocabulary_size
            if self.joint
            else (self.vocabulary_size, self.target_vocabulary_size)
        )
        return f"Tokenizer(vocabulary_size={sizes}, normalization={self.normalization!r}, joint={self.joint})"
