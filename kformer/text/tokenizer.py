"""The tokenizer: training, saving and loading."""

import json
import os
import pathlib
from collections.abc import Sequence

from kformer.text import folder as tokenizer_folder
from kformer.text.base_tokenizer import BaseTokenizer
from kformer.text.normalization import get_normalization
from kformer.text.sentencepiece_training import open_corpus, train_on_corpus
from kformer.text.vocabulary import Vocabulary, load_sentencepiece
from kformer.utils.types import Path, Texts


class Tokenizer(BaseTokenizer):
    """Text to ids and back with SentencePiece, for the source and the target side.

    Make one with `Tokenizer.train`, `Tokenizer.load` or, from a published SentencePiece model,
    `Tokenizer.from_sentencepiece`. Both sides share one model ("joint") or have one each.

    Guarantees:

    - Text never becomes a control id: "</s>" or "<pad>" in a text is text.
    - With byte fallback (the default) no character is unknown: a rare character becomes its UTF-8
      bytes.
    - With the normalization "nmt_nfkc" (default) text is read as translation systems do:
      compatibility forms are folded (NFKC), every kind of space becomes one space, and control
      characters and outer spaces are removed. Decoded text is normalized in this way. With
      "identity" and byte fallback, every Unicode string is decoded byte for byte.
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

    @classmethod
    def train(
        cls,
        files: Path | Sequence[Path] | None = None,
        target_files: Path | Sequence[Path] | None = None,
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
    ) -> "Tokenizer":
        """Trains a tokenizer. The same texts and settings give the same model, byte for byte, on
        any machine.

        Args:
            files: path or list of paths, default `None`. UTF-8 text files with one text per line.
                Without `target_files` they train one joint model for both sides, so list the files
                of both languages.
            target_files: path or list of paths, default `None`. These train the target model, and
                `files` the source model.
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

        Returns:
            `Tokenizer` with pad 0, unknown 1, start 2 and end 3. `special_tokens=True` adds the end
            token on both sides.

        Raises:
            FileNotFoundError: a file is missing.
            ValueError: there is no text, a file is not UTF-8, or a setting does not fit.

        Example:
        ```python
        joint = kformer.Tokenizer.train(["train.en", "train.de"], vocabulary_size=400)
        two = kformer.Tokenizer.train("train.en", "train.de", vocabulary_size=(330, 330))
        ```
        """
        rule = get_normalization(normalization, trainable=True)
        corpora = [(files, texts, "files", "texts")]
        if target_files is not None or target_texts is not None:
            corpora.append((target_files, target_texts, "target_files", "target_texts"))
        for corpus in corpora:
            open_corpus(*corpus)  # Now, and not after a long training of the other side.
        paired = isinstance(vocabulary_size, tuple | list)
        sizes = tuple(vocabulary_size) if paired else (vocabulary_size,) * len(corpora)
        if len(sizes) != len(corpora):
            raise ValueError(
                f"vocabulary_size={vocabulary_size!r} has {len(sizes)} sizes for {len(corpora)} "
                "model(s); a pair goes with target_files or target_texts."
            )
        settings = dict(
            model_type=model_type,
            normalization=rule,
            byte_fallback=byte_fallback,
            character_coverage=character_coverage,
            split_digits=split_digits,
            max_sentences=max_sentences,
            seed=seed,
        )
        models = [
            train_on_corpus(corpus, size, side=side, **settings)
            for side, (corpus, size) in enumerate(zip(corpora, sizes, strict=True))
        ]
        return cls.from_sentencepiece(*models, normalization=normalization)

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
        normalization="model",
    ):
        """A tokenizer for existing SentencePiece models, such as those of a published model.

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
            control_ids: sequence of int, default empty. Further ids of both sides that no text
                becomes and that are decoded to nothing.
            target_control_ids: sequence of int, default `None`. Those of the target side, if they
                differ.
            languages: dict of language code to id, default `None`, for `for_languages`. The ids
                should be among `control_ids`.
            language_places: dict of "source" and "target" to list of str, default `None`. Where the
                id of that language goes: any of "source_prefix", "source_suffix", "target_prefix",
                "target_suffix" (after the end token) and "start" (it replaces the start token).
            language_tags: bool, default False. Whether a source text may begin with its own tag, as
                in ">>fra<< Good morning." (Marian's multilingual models). The tag, up to the first
                "<<", is replaced by the id of the piece with this name, or by the unknown id, which
                replaces `source_prefix`.
            normalization: str, default "model". "model" leaves the text to the SentencePiece model.
                "nmt_nfkc" and "identity" are for models trained by `Tokenizer.train`.

        Returns:
            `Tokenizer`.

        Raises:
            FileNotFoundError: a path does not exist.
            ValueError: a model cannot be read, or ids are missing or out of range.
        """
        models = [_model_bytes(each) for each in (model, target_model) if each is not None]
        vocabularies = [_piece_list(vocabulary), _piece_list(target_vocabulary)]
        processor = load_sentencepiece(models[0])
        special_ids = {}
        for name, given, own in (
            ("pad", pad_id, processor.pad_id()),
            ("unknown", unknown_id, processor.unk_id()),
            ("start", start_id, processor.bos_id()),
            ("end", end_id, processor.eos_id()),
        ):
            special_ids[name] = given if given is not None or vocabularies[0] is not None else own
            if special_ids[name] is None or special_ids[name] < 0:
                raise ValueError(f"This model has no {name}_id of its own; pass {name}_id.")
        suffixes = {"source": source_suffix, "target": target_suffix}
        return cls._from_parts(
            [models[0], models[-1]],
            [vocabularies[0], vocabularies[1] if vocabularies[1] is not None else vocabularies[0]],
            [
                (*ids, *(special_ids[name] for name in ("pad", "start", "end")))
                for ids in (
                    control_ids,
                    control_ids if target_control_ids is None else target_control_ids,
                )
            ],
            languages=languages,
            language_places=language_places,
            language_tags=language_tags,
            normalization=normalization,
            special_ids=special_ids,
            prefixes={"source": source_prefix, "target": target_prefix},
            suffixes={
                side: [special_ids["end"]] if ids is None else ids for side, ids in suffixes.items()
            },
        )

    @classmethod
    def _from_parts(
        cls, models, vocabularies, control_ids, *, normalization, special_ids, **settings
    ):
        rule = get_normalization(normalization)
        sides = []
        for model, pieces, controls in zip(models, vocabularies, control_ids, strict=True):
            if sides and (model, pieces, controls) == (models[0], vocabularies[0], control_ids[0]):
                sides.append(sides[0])
            else:
                sides.append(
                    Vocabulary(
                        model,
                        normalization=rule,
                        unknown_id=special_ids["unknown"],
                        control_ids=controls,
                        pieces=pieces,
                    )
                )
        return cls(*sides, special_ids=special_ids, **settings)

    def save(self, folder: Path) -> None:
        """Writes the tokenizer into a folder: `tokenizer.json` and the files that it names.

        The replacement is atomic: a reader finds either the old tokenizer or this one.

        Args:
            folder: path. Created if needed.

        Raises:
            ValueError: the path is a file.
        """
        contents = {}
        config = {
            "kind": "sentencepiece",
            "normalization": self.normalization,
            "special_ids": self.special_ids,
        }
        if self._languages:
            config["languages"], config["language_places"] = self._languages, self._language_places
        if self.language_tags:
            config["language_tags"] = True
        for side, vocabulary in self._sides.items():
            model_name = tokenizer_folder.content_name("sentencepiece", vocabulary.model, ".model")
            contents[model_name] = vocabulary.model
            pieces_name = None
            if vocabulary.custom_pieces is not None:
                text = json.dumps(vocabulary.custom_pieces, ensure_ascii=False, indent=0)
                pieces_name = tokenizer_folder.content_name(
                    "vocabulary", text.encode("utf-8"), ".json"
                )
                contents[pieces_name] = text.encode("utf-8")
            config[side] = {
                "model": model_name,
                "vocabulary": pieces_name,
                "prefix": list(self._prefixes[side]),
                "suffix": list(self._suffixes[side]),
                "control_ids": list(vocabulary.control_ids),
            }
        tokenizer_folder.write_folder(folder, config, contents)

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
        config = tokenizer_folder.read_folder(folder)
        sides = [config[side] for side in tokenizer_folder.SIDES]
        try:
            return cls._from_parts(
                [side["model"] for side in sides],
                [side["vocabulary"] for side in sides],
                [tuple(side["control_ids"]) for side in sides],
                normalization=config["normalization"],
                special_ids=config["special_ids"],
                prefixes={name: config[name]["prefix"] for name in tokenizer_folder.SIDES},
                suffixes={name: config[name]["suffix"] for name in tokenizer_folder.SIDES},
                languages=config.get("languages"),
                language_places=config.get("language_places"),
                language_tags=config.get("language_tags", False),
            )
        except ValueError as error:
            raise ValueError(
                f"The tokenizer folder {os.fspath(folder)!r} cannot be used: {error}"
            ) from None


def _model_bytes(model):
    if isinstance(model, bytes):
        return model
    path = pathlib.Path(model)
    if not path.is_file():
        raise FileNotFoundError(f"There is no SentencePiece model {str(path)!r}; check the path.")
    return path.read_bytes()


def _piece_list(vocabulary):
    if vocabulary is None:
        return None
    if isinstance(vocabulary, dict):
        if sorted(vocabulary.values()) != list(range(len(vocabulary))):
            raise ValueError(
                "A vocabulary given as a dict must use each id from 0 to its size - 1 once."
            )
        return sorted(vocabulary, key=vocabulary.get)
    return list(vocabulary)
