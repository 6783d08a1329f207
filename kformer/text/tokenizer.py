"""The tokenizer: how one is made, saved and loaded."""

import json
import os
import pathlib

from kformer.text import folder as tokenizer_folder
from kformer.text.base_tokenizer import BaseTokenizer
from kformer.text.normalization import get_normalization
from kformer.text.sentencepiece_training import open_corpus, train_sentencepiece
from kformer.text.vocabulary import Vocabulary, load_sentencepiece


class Tokenizer(BaseTokenizer):
    """Text to ids and back, by SentencePiece, for the source and the target side.

    Make one with `Tokenizer.train`, `Tokenizer.load` or, around a published SentencePiece model,
    `Tokenizer.from_sentencepiece`. Both sides may share one model ("joint") or have one each.

    What it promises:

    - Text never becomes a control id: "</s>" or "<pad>" in a text is text.
    - With byte fallback (the default) no character is unknown: a rare one becomes the bytes of its
      UTF-8.
    - Normalization "nmt_nfkc" (default) reads text as translation systems do: compatibility forms
      are folded (NFKC), every kind of space becomes one space, control characters and spaces at the
      ends go; text comes back so normalised. With "identity" every Unicode string comes back byte
      for byte, if byte fallback is on.
    - What is not valid UTF-8 becomes U+FFFD, in the text that goes in and in the text that comes
      out.
    - `kformer.export.saved_model.tokenizer.GraphTokenizer` gives the same ids and the same text in a
      TensorFlow graph.

    A tokenizer does not change once it is made, and can be pickled.

    Attributes:
        pad_id, unknown_id, start_id, end_id: int. 0, 1, 2, 3 for tokenizers trained here; any for
            imported ones.
        source_prefix, source_suffix, target_prefix, target_suffix: tuples of int, what
            `special_tokens=True` adds.
        languages: dict of language code to id, empty unless the tokenizer is that of a multilingual
            model.
        source_language, target_language: str, the codes set now (see `for_languages`), or None.
        normalization: str.

    Example:

        tokenizer = kformer.Tokenizer.train(["train.en", "train.de"], vocabulary_size=8000)
        ids = tokenizer.tokenize(["A man rides a horse."])
        tokenizer.detokenize(ids)                                  # ["A man rides a horse."]
        tokenizer.save("tokenizer")
        tokenizer = kformer.Tokenizer.load("tokenizer")

    References:
        Kudo and Richardson (2018), SentencePiece, https://arxiv.org/abs/1808.06226.
    """

    @classmethod
    def train(
        cls,
        files=None,
        target_files=None,
        *,
        texts=None,
        target_texts=None,
        vocabulary_size=8000,
        model_type="unigram",
        normalization="nmt_nfkc",
        byte_fallback=True,
        character_coverage=0.9995,
        split_digits=True,
        max_sentences=300_000,
        seed=0,
    ):
        """Trains a tokenizer. The same texts and settings give the same model, byte for byte, on
        any machine.

        Args:
            files: path or list of paths of UTF-8 text files, one text per line. Alone: one joint
                model for both sides, so list the files of both languages.
            target_files: path or paths; then `files` train the source model and these the target
                model.
            texts, target_texts: iterables of str or bytes, instead of files. They are read once, as
                a stream.
            vocabulary_size: int, the number of pieces with special tokens and the 256 bytes of byte
                fallback; with two models a pair (source, target) is taken too. It is kept exactly:
                a corpus that does not have so many pieces, or has more characters, is an error that
                names the nearest size possible.
            model_type: "unigram" or "bpe".
            normalization: "nmt_nfkc" or "identity", see the class.
            byte_fallback: whether characters outside of the vocabulary become bytes; otherwise they
                become unknown.
            character_coverage: float, the part of the corpus' characters that get pieces of their
                own. 0.9995 leaves rare signs to byte fallback; 1.0 gives each a piece.
            split_digits: whether each digit is a piece. On by default: a model then composes
                numbers that it has never seen, where pieces like "201" would have to be learnt one
                by one.
            max_sentences: int, texts to train on; of more, a random sample is taken. It bounds
                memory, which is about 1.3 KB for a sentence of 60 characters.
            seed: int, of that sample.

        Returns:
            Tokenizer: pad 0, unknown 1, start 2, end 3; `special_tokens=True` ends both sides with
                the end token.

        Raises:
            FileNotFoundError: if a file is missing.
            ValueError: if there is no text, a file is not UTF-8, or a setting does not fit.

        Example:

            kformer.Tokenizer.train(["train.en", "train.de"])                           # joint
            kformer.Tokenizer.train("train.en", "train.zh", vocabulary_size=(8000, 6000))
            kformer.Tokenizer.train(texts=(pair[0] for pair in pairs), target_texts=(pair[1] for
            pair in pairs))
        """
        rule = get_normalization(normalization, trainable=True)
        corpora = [open_corpus(files, texts, "files", "texts")]
        if target_files is not None or target_texts is not None:
            corpora.append(open_corpus(target_files, target_texts, "target_files", "target_texts"))
        paired = isinstance(vocabulary_size, tuple | list)
        sizes = tuple(vocabulary_size) if paired else (vocabulary_size,) * len(corpora)
        if len(sizes) != len(corpora):
            raise ValueError(
                f"vocabulary_size={vocabulary_size!r} has {len(sizes)} sizes for {len(corpora)} model(s); "
                "a pair goes with target_files or target_texts."
            )
        models = [
            train_sentencepiece(
                sentences,
                corpus=corpus,
                vocabulary_size=size,
                model_type=model_type,
                normalization=rule,
                byte_fallback=byte_fallback,
                character_coverage=character_coverage,
                split_digits=split_digits,
                max_sentences=max_sentences,
                seed=seed,
                side=side,
            )
            for side, ((sentences, corpus), size) in enumerate(zip(corpora, sizes, strict=True))
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
        """A tokenizer around existing SentencePiece models, such as a published translation
        model's.

        Args:
            model: bytes (serialised) or a path.
            target_model: bytes or a path; without it both sides share `model`.
            vocabulary: the pieces by their ids, where these are not SentencePiece's own (Marian's
                `vocab.json`): a list of str in the order of ids, or a dict of piece to id. A piece
                of the model that is not among them becomes the unknown token; one of theirs that
                the model does not have is found where it is what SentencePiece leaves as unknown.
            target_vocabulary: the same for the target side; without it, `vocabulary`.
            pad_id, unknown_id, start_id, end_id: int. By default SentencePiece's own, which only
                goes without `vocabulary`.
            source_prefix, source_suffix, target_prefix, target_suffix: ids that
                `special_tokens=True` puts around a text; a suffix is `[end_id]` by default.
            control_ids: further ids, of both sides, that no text becomes and that write no text.
            target_control_ids: those of the target side, if it has others.
            languages: dict of language code to id, for `for_languages`. The ids should be among
                `control_ids`.
            language_places: dict with, for "source" and "target", the list of places where that
                language's id stands: any of "source_prefix", "source_suffix", "target_prefix",
                "target_suffix" (behind the end token) and "start" (the start token is the
                language's id).
            language_tags: whether a source text may begin with its own tag, as in ">>fra<< Good
                morning." (Marian's multilingual models). The tag is cut off as it stands, up to the
                first "<<", and becomes the id of the piece so called, or the unknown id; it takes
                the place of `source_prefix`.
            normalization: "model": the model's own. "nmt_nfkc" and "identity" are for models
                trained by `Tokenizer.train`.

        Returns:
            Tokenizer.

        Raises:
            FileNotFoundError: if a path is missing.
            ValueError: if a model cannot be read, or ids are missing or out of range.
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
                raise ValueError(f"This model does not tell its {name}_id; pass {name}_id.")
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

    def save(self, folder):
        """Writes the tokenizer as a folder: `tokenizer.json` and the files that it names.

        A folder is replaced atomically: whoever reads it finds the former tokenizer or this one.

        Args:
            folder: path; created if need be.

        Raises:
            ValueError: if a file stands at this path.
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
    def load(cls, folder):
        """Reads a tokenizer from the folder that `save` wrote. Nothing in a folder can run code.

        Args:
            folder: path.

        Returns:
            Tokenizer.

        Raises:
            FileNotFoundError: if the folder or one of its files is missing.
            ValueError: if it is of a newer format, malformed, or has a link that leads out of the
                folder.
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
