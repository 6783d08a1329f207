"""Text to ids and back: everything but making, saving and loading a tokenizer."""

import copy
import functools

from kformer.text import folder as tokenizer_folder
from kformer.text.id_sequences import IdSequence, id_rows
from kformer.text.languages import (
    check_languages,
    cut_tag,
    find_language,
    place_language,
    placed_language,
)
from kformer.text.normalization import valid_text
from kformer.utils.checks import check_choice
from kformer.utils.types import Texts


class BaseTokenizer:
    """The base class of `kformer.Tokenizer`: two vocabularies and the special ids.

    Args:
        source, target: `Vocabulary`. The same object if both sides share one.
        special_ids: dict with the ids of "pad", "unknown", "start" and "end".
        prefixes, suffixes: dicts of side to ids. `special_tokens=True` puts them around a text.
        languages, language_places, language_tags: see `Tokenizer.from_sentencepiece`.

    Raises:
        ValueError: an id is outside of its vocabulary.
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
                        f"The special id {token_id} is outside of the {side} vocabulary of "
                        f"{len(vocabulary)} pieces."
                    )

    def for_languages(self, source=None, target=None):
        """The tokenizer of a multilingual model for other languages, with the same vocabularies.

        The model decides where a language's id goes: before or after the text, or in place of the
        start token. (Then `start_id` of the returned tokenizer differs, and the model must start
        with it.) For NLLB, `tokenizer.for_languages(source="eng_Latn", target="fra_Latn")`.

        Args:
            source, target: str or `None`, default `None`. Keys of `languages`; `None` keeps the
                language of that side.

        Returns:
            `Tokenizer`.

        Raises:
            ValueError: a code is unknown, or the model does not read that language's id.
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

    def swapped(self):
        """The tokenizer of the other direction: its source side is this one's target side.

        Returns:
            `Tokenizer`.

        Raises:
            ValueError: the tokenizer is that of a multilingual model.
        """
        if self._languages:
            raise ValueError(
                "The sides of a multilingual model's tokenizer cannot be swapped: choose its "
                "languages by for_languages."
            )
        other = copy.copy(self)
        for name in ("_sides", "_prefixes", "_suffixes"):
            sides = getattr(self, name)
            setattr(other, name, {"source": sides["target"], "target": sides["source"]})
        return other

    def tokenize(
        self,
        texts: Texts,
        side: str = "source",
        special_tokens: bool = False,
        num_threads: int | None = None,
    ) -> list[list[int]]:
        """Text to ids.

        With `language_tags` a source text may begin with its own tag, see
        `Tokenizer.from_sentencepiece`.

        Args:
            texts: str or bytes, or iterable of them.
            side: str, default "source". "source" or "target".
            special_tokens: bool, default False. Whether to add the prefix and suffix ids of the
                side (for tokenizers trained here: the end token after the text).
            num_threads: int or `None`, default `None`. `None` means every usable CPU core for a
                large batch and one for a small batch.

        Returns:
            list of list of int, or list of int for a single text.

        Raises:
            ValueError: a text is neither str nor bytes, or `side` is unknown.
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
        return IdSequence(rows[0]) if single else rows

    def _cut_tags(self, texts):
        """For each text a list with the id of its tag, or `None`; and the texts without tags."""
        cut = [cut_tag(valid_text(text)) for text in texts]
        return [[self.tag_ids.get(tag, self.unknown_id)] if tag else None for tag, _ in cut], [
            text for _, text in cut
        ]

    @functools.cached_property
    def tag_ids(self):
        """dict of a tag as in a text, ">>fra<<", to its id; empty without `language_tags`."""
        if not self.language_tags:
            return {}
        return {
            piece: i
            for i, piece in enumerate(self._sides["source"].pieces)
            if cut_tag(piece) == (piece, "")
        }

    def detokenize(self, ids, side: str = "target") -> list[str]:
        """Ids to text.

        Control ids (pad, start, end, ...) become nothing, an id outside of the vocabulary becomes
        the unknown token's text, and invalid UTF-8 becomes U+FFFD.

        Args:
            ids: sequence of int, or sequence of such sequences; lists, arrays or tensors.
            side: str, default "target". "source" or "target".

        Returns:
            str for one flat sequence, otherwise list of str. An empty list is an empty batch, `[]`;
            what `tokenize` returns for one empty text is an empty sequence, `""`.

        Raises:
            ValueError: the ids have more than two dimensions or are not integers.
        """
        decode = self._side(side).decode
        rows, flat = id_rows(ids)
        return decode(rows[0]) if flat else [decode(row) for row in rows]

    def tokens(self, ids, side="target"):
        """The pieces of one sequence of ids, list of str; "\\u2581" marks the begin of a word."""
        rows, flat = id_rows(ids)
        if not flat and rows:
            raise ValueError("tokens takes one flat sequence of ids; call it for each row.")
        return self._side(side).tokens(rows[0] if rows else [])

    def id_to_token(self, id: int, side: str = "target") -> str:
        """The piece of an id, str. An id outside of the vocabulary raises `ValueError`."""
        pieces = self._side(side).pieces
        if not 0 <= id < len(pieces):
            raise ValueError(
                f"The id {id} is outside of the {side} vocabulary of {len(pieces)} pieces."
            )
        return pieces[id]

    @property
    def vocabulary_size(self) -> int:
        """int. The number of ids of the source side."""
        return len(self._sides["source"])

    @property
    def target_vocabulary_size(self):
        """int. The number of ids of the target side."""
        return len(self._sides["target"])

    @property
    def joint(self):
        """Whether an id is the same piece on both sides, so that a model may share embeddings."""
        return self._sides["source"].pieces == self._sides["target"].pieces

    def writes_like(self, other):
        """Whether another tokenizer returns the same ids for all texts, and the same texts for all
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
        """The serialized SentencePiece model of one side, bytes."""
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
        return (
            f"Tokenizer(vocabulary_size={sizes}, normalization={self.normalization!r}, "
            f"joint={self.joint})"
        )
