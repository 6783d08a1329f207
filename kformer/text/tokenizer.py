"""The tokenizer: text to ids and back."""

import copy
import functools
import hashlib
import itertools
import json
import os
import pathlib
from collections.abc import Sequence

from kformer.text.folder import SIDES, SPECIAL_NAMES, read_folder, write_folder
from kformer.text.further_pieces import with_further_pieces
from kformer.text.id_sequences import IdSequence, id_rows
from kformer.text.languages import (
    TRAINED_PLACES,
    check_codes,
    check_languages,
    cut_tag,
    find_language,
    language_tag,
    some_languages,
)
from kformer.text.normalization import get_normalization, valid_text
from kformer.text.sentencepiece_training import (
    SPECIAL_IDS,
    files_or_texts,
    open_corpus,
    sample_texts,
    train_on_corpus,
)
from kformer.text.vocabulary import Vocabulary, load_sentencepiece
from kformer.utils.checks import check_choice
from kformer.utils.types import Path, Texts


class Tokenizer:
    """Text to ids and back with SentencePiece, for the source and the target side.

    Make one with `Tokenizer.train`, `Tokenizer.load` or, from a published SentencePiece model,
    `Tokenizer.from_sentencepiece`. Both sides share one model ("joint") or have one each.

    Guarantees:

    - Text never becomes a control id: "</s>" or "<pad>" in a text is text. (A tag such as ">>de<<"
      at the beginning of a source text chooses the language, if the model has that one.)
    - With byte fallback (the default) no character is unknown: a rare character becomes its UTF-8
      bytes.
    - The normalization "nmt_nfkc" (default), usual for translation, folds compatibility forms
      (NFKC), makes every kind of space one space, and removes control characters and outer spaces.
      Decoded text is normalized in this way. With "identity" and byte fallback, every Unicode
      string is decoded byte for byte.
    - Invalid UTF-8 becomes U+FFFD, in encoding and in decoding.
    - `kformer.export.saved_model.tokenizer.GraphTokenizer` returns the same ids and the same text
      in a TensorFlow graph.

    A tokenizer is immutable and can be pickled.

    Attributes:
        pad_id, unknown_id, start_id, end_id: int. 0, 1, 2, 3 for tokenizers trained here; any ids
            for imported ones.
        source_prefix, source_suffix, target_prefix, target_suffix: tuples of int. The ids that
            `special_tokens=True` adds.
        languages: dict of language code to id. Empty if the model is not multilingual.
        source_language, target_language: str or `None`. The current languages, see
            `for_languages`.
        normalization: str.

    Example:
    ```python
    tokenizer = kformer.Tokenizer.train(["train.en", "train.de"], vocabulary_size=400)
    ids = tokenizer.tokenize(["half past four"])
    tokenizer.detokenize(ids)  # ["half past four"]
    tokenizer.save("tokenizer")
    tokenizer = kformer.Tokenizer.load("tokenizer")
    ```

    References:
        Kudo and Richardson (2018), SentencePiece, https://arxiv.org/abs/1808.06226.
    """

    def __init__(
        self,
        models,
        vocabularies,
        control_ids,
        *,
        normalization,
        special_ids,
        prefixes,
        suffixes,
        languages=None,
        language_places=None,
        language_tags=False,
        added_words=None,
        splitters=(None, None),
    ):
        # The first three arguments and the last have a value for each side.
        sides = list(zip(models, vocabularies, control_ids, splitters, strict=True))
        options = get_normalization(normalization), special_ids["unknown"], added_words
        vocabularies = [
            Vocabulary(*side, *options, splitter)
            for *side, splitter in (sides if sides[0] != sides[1] else sides[:1])
        ]
        # Both sides have the same object if they share one vocabulary.
        self._sides = {"source": vocabularies[0], "target": vocabularies[-1]}
        self.special_ids = {name: special_ids[name] for name in SPECIAL_NAMES}
        self._prefixes, self._suffixes = (
            {side: tuple(ids[side]) for side in SIDES} for ids in (prefixes, suffixes)
        )
        self.normalization = normalization
        self._languages, self._language_places = check_languages(
            languages, language_places, self._sides
        )
        self.language_tags = language_tags
        self._added_words = added_words
        for side, vocabulary in self._sides.items():
            ids = (*self.special_ids.values(), *self._prefixes[side], *self._suffixes[side])
            vocabulary.check_ids(ids, f"special {side} id")

    @classmethod
    def train(
        cls,
        files: Path | Sequence[Path] | Texts | None = None,
        target_files: Path | Sequence[Path] | Texts | None = None,
        *,
        texts: Texts | None = None,
        target_texts: Texts | None = None,
        vocabulary_size: int | tuple[int, int] | list[int] | None = None,
        model_type: str = "bpe",
        normalization: str = "nmt_nfkc",
        byte_fallback: bool = True,
        character_coverage: float = 0.9995,
        split_digits: bool = True,
        max_sentences: int = 300_000,
        seed: int = 0,
        languages: Sequence[str] | None = None,
    ) -> "Tokenizer":
        """Trains a tokenizer. The same texts and settings give the same bytes on any machine.

        Args:
            files: path or list of paths, default `None`. UTF-8 text files with one text per line.
                Without `target_files` they train one joint model for both sides, so list the files
                of both languages. Any other iterable, such as a column of a dataset, may have
                the texts themselves.
            target_files: path or list of paths, default `None`. The files that train the target
                model; then `files` train the source model alone.
            texts, target_texts: iterables of str or bytes, default `None`. Used instead of files,
                and read once, as a stream.
            vocabulary_size: int, pair of int or `None`, default `None`. The exact number of pieces,
                including special tokens and the 256 bytes of byte fallback. A pair (source, target)
                is for two models. If the corpus has too few pieces or too many characters, the
                error names the nearest possible size. `None` chooses 1,000 to 32,000 by the number
                of lines (of the longest file), or the nearest possible size; 8,000 for an iterator.
            model_type: str, default "bpe". "bpe" or "unigram".
            normalization: str, default "nmt_nfkc". "nmt_nfkc" or "identity", see the class.
            byte_fallback: bool, default True. Whether characters outside of the vocabulary become
                bytes; otherwise they become unknown.
            character_coverage: float, default 0.9995. The share of the characters of the corpus
                that get their own pieces. 0.9995 leaves rare characters to byte fallback; 1.0 gives
                each a piece.
            split_digits: bool, default True. Whether each digit is a piece. A model then composes
                numbers that it has never seen; pieces like "201" would have to be learned one by
                one.
            max_sentences: int, default 300,000. The most texts to train on; of more texts a random
                sample is used. Memory is about 1.3 KB for a sentence of 60 characters.
            seed: int, default 0. The seed of that sample.
            languages: list of str, default `None`. The codes of the target languages of a model of
                several directions, such as `["de", "en"]`. Each has a piece such as `>>de<<`, which
                comes before the source text (Johnson et al. 2017, section 3); `for_languages`
                chooses it, and it is that of the first at the beginning. A text may begin with such
                a tag itself, which counts more. `>>` in other text is text.

        Returns:
            `Tokenizer` with pad 0, unknown 1, start 2 and end 3, and the languages from 4.
            `special_tokens=True` adds the end token on both sides.

        Raises:
            FileNotFoundError: a file is missing.
            ValueError: there is no text, a file is not UTF-8, or a setting does not fit.

        Example:
        ```python
        joint = kformer.Tokenizer.train(["train.en", "train.de"], vocabulary_size=400)
        two = kformer.Tokenizer.train("train.en", "train.de", vocabulary_size=(330, 330))
        ```

        References:
            Johnson et al. (2017), Google's Multilingual Neural Machine Translation System,
            https://arxiv.org/abs/1611.04558.
        """
        codes = check_codes(languages or ())
        files, texts = files_or_texts(files, texts)
        target_files, target_texts = files_or_texts(target_files, target_texts)
        rule = get_normalization(normalization, trainable=True)
        corpora = [(files, texts, "files", "texts")]
        if target_files is not None or target_texts is not None:
            corpora.append((target_files, target_texts, "target_files", "target_texts"))
        for corpus in corpora:
            open_corpus(*corpus)  # It reports mistakes before the long training of a side.
        is_pair = isinstance(vocabulary_size, tuple | list)
        sizes = tuple(vocabulary_size) if is_pair else (vocabulary_size,) * len(corpora)
        if len(sizes) != len(corpora):
            raise ValueError(
                f"vocabulary_size={vocabulary_size!r} has {len(sizes)} sizes for {len(corpora)} "
                "model(s); a pair goes with target_files or target_texts."
            )
        models = [
            train_on_corpus(
                corpus,
                size,
                side=side,
                model_type=model_type,
                normalization=rule,
                byte_fallback=byte_fallback,
                character_coverage=character_coverage,
                split_digits=split_digits,
                max_sentences=max_sentences,
                seed=seed,
                control_symbols=[language_tag(code) for code in codes],
            )
            for side, (corpus, size) in enumerate(zip(corpora, sizes, strict=True))
        ]
        if not codes:
            return cls.from_sentencepiece(*models, normalization=normalization)
        ids = dict(zip(codes, itertools.count(len(SPECIAL_IDS))))
        return cls.from_sentencepiece(
            *models,
            normalization=normalization,
            control_ids=list(ids.values()),
            languages=ids,
            language_places=TRAINED_PLACES,
            language_tags="known",
            source_prefix=[ids[codes[0]]],
        )

    @classmethod
    def from_sentencepiece(
        cls,
        model,
        target_model=None,
        *,
        vocabulary=None,
        target_vocabulary=None,
        pad_id=None,
        unknown_id=None,
        start_id=None,
        end_id=None,
        source_prefix=(),
        source_suffix=None,
        target_prefix=(),
        target_suffix=None,
        control_ids=(),
        target_control_ids=None,
        languages=None,
        language_places=None,
        language_tags=False,
        added_words=None,
        normalization="model",
    ):
        """Returns a tokenizer for SentencePiece models, such as those of a published model.

        Args:
            model: bytes (serialized) or path.
            target_model: bytes or path, default `None`. Without it both sides share `model`.
            vocabulary: list of str in the order of ids, or dict of piece to id, default `None`. The
                pieces, if the ids are not SentencePiece's own (Marian's `vocab.json`). A piece of
                the model that is missing here becomes the unknown token. A piece that only the
                vocabulary has is found where SentencePiece returns the unknown token for it.
            target_vocabulary: the same for the target side, default `None`. `None` means
                `vocabulary`.
            pad_id, unknown_id, start_id, end_id: int, default `None`. `None` means SentencePiece's
                own id, which needs `vocabulary=None`.
            source_prefix, target_prefix: sequences of int, default empty. The ids that
                `special_tokens=True` puts before a text.
            source_suffix, target_suffix: sequences of int, default `[end_id]`. The ids that it puts
                after a text.
            control_ids: sequence of int, default empty. Further control ids of both sides: no text
                becomes one of them, and they are decoded to nothing.
            target_control_ids: sequence of int, default `None`. The further control ids of the
                target side, if they differ.
            languages: dict of language code to id, default `None`, for `for_languages`. The ids
                should be among `control_ids`.
            language_places: dict of "source" and "target" to list of str, default `None`. Where the
                id of a side's language goes: any of "source_prefix", "source_suffix",
                "target_prefix", "target_suffix" (after the end token) and "start" (it replaces the
                start token).
            language_tags: bool or `"known"`, default False. Whether a source text may begin with
                its own tag, as in ">>fra<< Good morning." (Marian's multilingual models). The tag,
                up to the first "<<", becomes the id of the piece with this name, or else the
                unknown id. This id replaces `source_prefix`. With `"known"` only the tags of
                `languages` count, and all others are text.
            added_words: dict or `None`, default `None`. Words that are found before SentencePiece
                reads a text. It has lists of str: "raw" and "normalized" (found before and after
                normalization), "lstrip" and "rstrip" (found with the spaces on that side); and a
                bool, "keeps_spaces": whether a further space before a word is a piece.
            normalization: str, default "model". "model" leaves the text to the SentencePiece model.
                "nmt_nfkc" and "identity" are for models trained by `Tokenizer.train`.

        Returns:
            `Tokenizer`.

        Raises:
            FileNotFoundError: a path does not exist.
            ValueError: a model cannot be read, or ids are missing or out of range.
        """
        models = [_model_bytes(each) for each in (model, target_model) if each is not None]
        pieces, target_pieces = map(_piece_list, (vocabulary, target_vocabulary))
        processor, special_ids = load_sentencepiece(models[0]), {}
        defaults = processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()
        ids = pad_id, unknown_id, start_id, end_id
        for name, token_id, default in zip(SPECIAL_NAMES, ids, defaults, strict=True):
            special_ids[name] = default if token_id is None and pieces is None else token_id
            if special_ids[name] is None or special_ids[name] < 0:
                raise ValueError(f"This model has no {name}_id of its own; pass {name}_id.")
        suffixes = {"source": source_suffix, "target": target_suffix}
        controls = (control_ids, control_ids if target_control_ids is None else target_control_ids)
        special_controls = [special_ids[name] for name in ("pad", "start", "end")]
        return cls(
            [models[0], models[-1]],
            [pieces, pieces if target_pieces is None else target_pieces],
            [(*ids, *special_controls) for ids in controls],
            languages=languages,
            language_places=language_places,
            language_tags=language_tags,
            added_words=added_words,
            normalization=normalization,
            special_ids=special_ids,
            prefixes={"source": source_prefix, "target": target_prefix},
            suffixes={
                side: [special_ids["end"]] if ids is None else ids for side, ids in suffixes.items()
            },
        )

    def save(self, folder: Path) -> None:
        """Writes the tokenizer into a folder: `tokenizer.json` and the files that it names.

        The replacement is atomic: a reader finds either the old tokenizer or this one.

        Args:
            folder: path. Created if needed.

        Raises:
            ValueError: the path is a file.
        """
        contents = {}

        def add(stem, content, suffix):
            name = f"{stem}-{hashlib.sha256(content).hexdigest()[:8]}{suffix}"
            contents[name] = content
            return name

        config = {"kind": "sentencepiece", "normalization": self.normalization}
        config["special_ids"] = self.special_ids
        if self._languages:
            config["languages"], config["language_places"] = self._languages, self._language_places
        if self.language_tags:
            config["language_tags"] = self.language_tags
        if self._added_words:
            config["added_words"] = self._added_words
        for side, vocabulary in self._sides.items():
            model, pieces = add("sentencepiece", vocabulary.model, ".model"), None
            if vocabulary.custom_pieces is not None:
                text = json.dumps(vocabulary.custom_pieces, ensure_ascii=False, indent=0)
                pieces = add("vocabulary", text.encode("utf-8"), ".json")
            ids = {"prefix": self._prefixes[side], "suffix": self._suffixes[side]}
            ids["control_ids"] = vocabulary.control_ids
            config[side] = {"model": model, "vocabulary": pieces, **ids}
            if vocabulary.splitter is not None:
                settings, codes = vocabulary.splitter.state
                codes = None if codes is None else add("codes", codes, ".bpe")
                config[side]["splitter"] = {"settings": settings, "codes": codes}
        write_folder(folder, config, contents)

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Reads a tokenizer from a folder that `save` wrote. Nothing in a folder can run code.

        Args:
            folder: path.

        Returns:
            `Tokenizer`.

        Raises:
            FileNotFoundError: the folder or one of its files is missing.
            ValueError: the format is newer or malformed, or a link leads out of the folder.
        """
        config = read_folder(folder)
        names = ("normalization", "special_ids", "languages", "language_places", "language_tags")
        names += ("added_words",)
        try:
            return cls(
                *(
                    [config[side][name] for side in SIDES]
                    for name in ("model", "vocabulary", "control_ids")
                ),
                splitters=[config[side].get("splitter") for side in SIDES],
                prefixes={side: config[side]["prefix"] for side in SIDES},
                suffixes={side: config[side]["suffix"] for side in SIDES},
                **{name: config[name] for name in names if name in config},
            )
        except ValueError as error:
            raise ValueError(f"The tokenizer folder '{folder}' cannot be used: {error}") from None

    def tokenize(
        self,
        texts: Texts,
        side: str = "source",
        special_tokens: bool = False,
        num_threads: int | None = None,
    ) -> list[list[int]]:
        """Returns the ids of texts.

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
        vocabulary = self.vocabulary(side)
        is_one = isinstance(texts, str | bytes)
        if not is_one and not hasattr(texts, "__iter__"):
            raise ValueError(f"texts must be one or several texts, not {type(texts).__name__}.")
        texts, tags = [texts] if is_one else texts, None
        if self.language_tags and side == "source":
            known = self.tag_ids if self.language_tags == "known" else None
            pairs = [cut_tag(valid_text(text), known) for text in texts]
            tags, texts = ([pair[i] for pair in pairs] for i in (0, 1))
        rows = vocabulary.encode(texts, num_threads)
        prefix, suffix = [], []
        if special_tokens:
            prefix, suffix = list(self._prefixes[side]), list(self._suffixes[side])
            rows = [row + suffix for row in rows]
        if tags is not None:
            # A tag becomes the first id of its text, with or without `special_tokens`, and replaces
            # the prefix.
            get_id = self.tag_ids.get
            rows = [
                ([get_id(tag, self.unknown_id)] if tag else prefix) + row
                for tag, row in zip(tags, rows, strict=True)
            ]
        elif prefix:
            rows = [prefix + row for row in rows]
        return IdSequence(rows[0]) if is_one else rows

    @functools.cached_property
    def tag_ids(self):
        """Dict of each tag, such as ">>fra<<", to its id; empty without `language_tags`."""
        if not self.language_tags:
            return {}
        if self.language_tags == "known":
            return {language_tag(code): i for code, i in self._languages.items()}
        return {
            piece: i
            for i, piece in enumerate(self._sides["source"].pieces)
            if cut_tag(piece) == (piece, "")
        }

    def detokenize(self, ids, side: str = "target") -> list[str]:
        """Returns the texts of ids.

        Control ids (pad, start, end, ...) become nothing, an id outside of the vocabulary becomes
        the unknown token's text, and invalid UTF-8 becomes U+FFFD.

        Args:
            ids: sequence of int, or sequence of such sequences; lists, arrays or tensors.
            side: str, default "target". "source" or "target".

        Returns:
            str for one flat sequence, otherwise list of str. An empty list counts as an empty batch
            and becomes `[]`; the result of `tokenize` for one empty text is known as an empty
            sequence and becomes `""`.

        Raises:
            ValueError: the ids have more than two dimensions or are not integers.
        """
        decode = self.vocabulary(side).decode
        rows, is_flat = id_rows(ids)
        return decode(rows[0]) if is_flat else [decode(row) for row in rows]

    def tokens(self, ids, side="target"):
        """Returns the pieces of one sequence of ids, list of str; "\\u2581" begins a word."""
        rows, is_flat = id_rows(ids)
        if not is_flat and rows:
            raise ValueError("tokens takes one flat sequence of ids; call it for each row.")
        return self.vocabulary(side).tokens(rows[0] if rows else [])

    def id_to_token(self, id: int, side: str = "target") -> str:
        """Returns the piece of an id, str. An id outside of the vocabulary raises `ValueError`."""
        vocabulary = self.vocabulary(side)
        vocabulary.check_ids([id], f"{side} id")
        return vocabulary.pieces[id]

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
        """Returns whether another tokenizer has the same ids for texts, and texts for ids."""

        def state(each):
            sides = [
                (side.model, side.pieces, side.splitter and side.splitter.state)
                for side in each._sides.values()
            ]
            options = each._prefixes, each._suffixes, each.normalization, each._added_words
            return sides, each.special_ids, *options

        return state(self) == state(other)

    pad_id = property(lambda self: self.special_ids["pad"])
    unknown_id = property(lambda self: self.special_ids["unknown"])
    start_id = property(lambda self: self.special_ids["start"])
    end_id = property(lambda self: self.special_ids["end"])
    source_prefix = property(lambda self: self._prefixes["source"])
    source_suffix = property(lambda self: self._suffixes["source"])
    target_prefix = property(lambda self: self._prefixes["target"])
    target_suffix = property(lambda self: self._suffixes["target"])

    languages = property(lambda self: dict(self._languages))
    source_language = property(lambda self: self._language("source"))
    target_language = property(lambda self: self._language("target"))

    def sentencepiece_model(self, side="source"):
        """Returns the serialized SentencePiece model of one side, bytes."""
        return self.vocabulary(side).model

    def vocabulary(self, side="source"):
        """Returns the `Vocabulary` of one side; the same object for both where they share one."""
        return self._sides[check_choice("side", side, self._sides)]

    def for_languages(self, source=None, target=None):
        """Returns the tokenizer of a multilingual model for other languages.

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
        for name in ("special_ids", "_prefixes", "_suffixes"):
            setattr(other, name, dict(getattr(self, name)))
        for role, code in (("source", source), ("target", target)):
            if code is None:
                continue
            token_id = find_language(self._languages, self._language_places, role, code)
            for place in self._language_places[role]:
                side, _, end = place.partition("_")
                if place == "start":
                    other.special_ids["start"] = token_id
                elif end == "prefix":
                    other._prefixes[side] = (token_id,)
                else:
                    other._suffixes[side] = (other.end_id, token_id)
        return other

    def for_direction(self, source, target):
        """Returns the tokenizer for a pair of languages, as `for_languages`; a language that the
        model does not read, such as that of the source, is left out.
        """
        places = self._language_places
        return self.for_languages(
            source if places["source"] else None, target if places["target"] else None
        )

    def with_languages(
        self,
        languages: Sequence[str] = (),
        *,
        texts: Texts = (),
        target_texts: Texts = (),
        former_texts: Texts = (),
        former_target_texts: Texts = (),
        num_pieces: int | None = None,
        max_sentences: int = 100_000,
        seed: int = 0,
    ) -> "Tokenizer":
        """Returns a tokenizer for further languages, in which all ids of this one stay.

        It has further pieces at the end: those of new target languages (`>>fr<<`), the characters
        of new text, and frequent parts of its words. A BPE model learns further merges from the new
        text (Purason et al. 2025), and a unigram model gets pieces of one that is trained on it.
        Other text is segmented as before, unless such a piece is in it.
        `Transformer.with_more_tokens` makes the model that fits.

        Args:
            languages: list of str, default empty. The codes of further target languages, as in
                `train`. If this tokenizer has no languages yet, the first is the one that it has
                had so far, such as `["de", "fr"]`.
            texts, target_texts: iterables of str or bytes, default empty. Text in the new
                languages, of the source and of the target side. Two sides that share one model
                share the text, too.
            former_texts, former_target_texts: iterables of str or bytes, default empty. Text in
                the languages so far. It gets none of the new parts of words, so it is segmented as
                before, except for new characters. 10,000 lines are enough: of many more, each rare
                pair of pieces keeps a part of a word from the new languages.
            num_pieces: int or `None`, default `None`. The most new parts of words on a side; `None`
                for half as many as it has pieces. All occur 10 times or more in the text.
            max_sentences: int, default 100,000. The most texts that are read of each; of more, a
                random sample.
            seed: int, default 0. The seed of that sample.

        Returns:
            `Tokenizer`.

        Raises:
            ValueError: the tokenizer is that of a published model, or has a language already.

        Example:
        ```python
        tokenizer = kformer.Tokenizer.train(["train.en", "train.de"], vocabulary_size=400)
        french = ["quatre heures et demie"] * 20
        larger = tokenizer.with_languages(["de", "fr"], texts=french)
        larger.for_languages(target="fr").tokenize("half past four", special_tokens=True)
        ```

        References:
            Purason et al. (2025), Teaching Old Tokenizers New Words,
            https://arxiv.org/abs/2512.03989.
        """
        codes = check_codes(languages)
        if not self.is_extendable:
            remedy = "train a model that has more, or choose a published one"
            if codes and self._languages:
                remedy = f"instead of {codes[0]!r} choose one of {some_languages(self._languages)}"
            raise ValueError(
                f"The tokenizer of a published model takes no further languages: {remedy}."
            )
        if known := [code for code in codes if code in self._languages]:
            raise ValueError(f"The tokenizer has the language {known[0]!r} already: leave it out.")
        if len(codes) == 1 and not self._languages:
            raise ValueError(
                "The tokenizer has one target language, without a code: name it, too, before the "
                f"new one, such as ['de', {codes[0]!r}]."
            )
        corpora = {"source": [texts, former_texts], "target": [target_texts, former_target_texts]}
        if self._sides["source"] is self._sides["target"]:
            both = map(itertools.chain, corpora["source"], corpora["target"])
            corpora = {"source": list(both)}
        sides, ids = dict(self._sides), {}
        for side, samples in corpora.items():
            old = self._sides[side]
            read, former = (sample_texts(each, max_sentences, seed) for each in samples)
            tags = [language_tag(code) for code in codes]
            model = with_further_pieces(old, tags, read, former, num_pieces)
            ids[side] = range(len(old), len(old) + len(codes))
            controls, options = (*old.control_ids, *ids[side]), (old.normalization, old.unknown_id)
            sides[side] = Vocabulary(model, None, controls, *options)
        other = copy.copy(self)
        other.__dict__.pop("tag_ids", None)
        other._sides = {"source": sides["source"], "target": sides[list(corpora)[-1]]}
        other._languages = self._languages | dict(zip(codes, ids["source"], strict=True))
        if codes and not self._languages:
            other._language_places, other.language_tags = TRAINED_PLACES, "known"
            other = other.for_languages(target=codes[0])
        return other

    @property
    def is_extendable(self):
        """Whether `with_languages` can add to it: it is one of `train`, not a published one."""
        is_own = all(side.custom_pieces is None for side in self._sides.values())
        is_own = is_own and self.normalization in ("nmt_nfkc", "identity")
        return is_own and (not self._languages or self.language_tags == "known")

    def _language(self, role):
        """Returns the code of the current language of a role, "source" or "target", or `None`."""
        for place in self._language_places[role][:1]:
            side, _, end = place.partition("_")
            ids = (self._prefixes if end == "prefix" else self._suffixes).get(side, ())[-1:]
            ids = (self.start_id,) if place == "start" else ids
            return next((code for code, i in self._languages.items() if (i,) == ids), None)

    def swapped(self):
        """Returns the tokenizer of the other direction: its source side is this one's target side.

        The target language of `Tokenizer.train(languages=...)` stays: choose the other one by
        `for_languages`.

        Returns:
            `Tokenizer`.

        Raises:
            ValueError: the tokenizer is that of a published multilingual model.
        """
        names = ["_sides", "_prefixes", "_suffixes"]
        if self._languages:
            if self.language_tags != "known":
                raise ValueError("Choose the languages of a multilingual model by for_languages.")
            names.remove("_prefixes")  # The source begins with a language in both directions.
        other = copy.copy(self)
        for name in names:
            sides = getattr(self, name)
            setattr(other, name, {"source": sides["target"], "target": sides["source"]})
        if self._languages:
            # Languages that were added later have other ids on the other side.
            pieces = other.vocabulary("source").pieces
            other.__dict__.pop("tag_ids", None)
            other._languages = {code: pieces.index(language_tag(code)) for code in self._languages}
            other = other.for_languages(target=self.target_language)
        return other

    def __repr__(self):
        sizes = (self.vocabulary_size, self.target_vocabulary_size)
        return (
            f"Tokenizer(vocabulary_size={sizes[0] if self.joint else sizes}, "
            f"normalization={self.normalization!r}, joint={self.joint}"
            f"{f', languages={len(self._languages)}' if self._languages else ''})"
        )


def _model_bytes(model):
    """Returns the bytes of a SentencePiece model that is given as bytes or as a path."""
    if isinstance(model, bytes):
        return model
    if not os.path.isfile(model):
        raise FileNotFoundError(f"There is no SentencePiece model '{model}'; check the path.")
    return pathlib.Path(model).read_bytes()


def _piece_list(vocabulary):
    """Returns the pieces in the order of ids, from a list or a dict of piece to id, or `None`."""
    if isinstance(vocabulary, dict):
        if sorted(vocabulary.values()) != list(range(len(vocabulary))):
            raise ValueError("A dict as vocabulary must use each id from 0 to its size - 1 once.")
        return sorted(vocabulary, key=vocabulary.get)
    return None if vocabulary is None else list(vocabulary)
