"""The files of a published tokenizer, as pieces with the ids that the model knows.

Nothing in a folder is run, and no library of Hugging Face is needed."""

import dataclasses
import re

from kformer.interop.limits import MOST_GAPS, MOST_PIECES, read_settings
from kformer.interop.sentencepiece_proto import Pieces, add_tokens, convert_tokenizer_json
from kformer.interop.toolkits.files import read_model
from kformer.text.unigram_scores import IMPORT_STEPS, quantize_scores
from kformer.text.vocabulary import load_sentencepiece, model_pieces
from kformer.utils.checks import check_whole, shown

MODEL_NAME = "sentencepiece.bpe.model"
# Added tokens that are signs of the model and no words: a text that has them means something else.
_SIGNS = re.compile(r"(?s)<s>|<pad>|</s>|<unk>|<mask>|<extra_id_[0-9]+>|>>.*<<")


class TokenizerFolder:
    """The tokenizer's files in a folder.

    Args:
        folder: `pathlib.Path`.
        config: dict, the content of `config.json`.

    Attributes:
        settings: dict, the content of `tokenizer_config.json`, empty without one.
        tokenizer_class: str. The name of the class that wrote the files, empty if unknown.
    """

    def __init__(self, folder, config):
        self.folder, self.config = folder, config
        self.settings = self.json("tokenizer_config.json", default={})
        names = (each.get("tokenizer_class") for each in (self.settings, config))
        self.tokenizer_class = next(filter(None, names), "")

    def path(self, name):
        """The path of a file; FileNotFoundError if there is none."""
        path = self.folder / name
        if not path.is_file():
            raise FileNotFoundError(
                f"The folder {str(self.folder)!r} has no {name}, which its tokenizer needs; copy "
                "it from the hub."
            )
        return path

    def has(self, name):
        return (self.folder / name).is_file()

    def model(self, name):
        """A SentencePiece model, bytes, with rounded scores, which add up exactly.

        With them Python and the graph segment every text alike. With the published scores they
        differ where a text repeats itself ("!!!!" as "!!" + "!!" or "!" + "!!!").
        """
        return read_model(self.path(name))

    def json(self, name, default=None):
        """The JSON object in a file; `default`, if it is given, where there is no such file."""
        if default is not None and not self.has(name):
            return default
        return read_settings(self.path(name), "copy it from the hub again")

    def vocabulary(self, name):
        """Dict of id to piece, from a file of piece to id."""
        ids = self.json(name)
        is_whole = all(type(token_id) is int and token_id >= 0 for token_id in ids.values())
        if not is_whole or len(set(ids.values())) < len(ids):
            raise ValueError(
                f"{name} must give every piece a whole number of its own; copy it from the hub "
                "again."
            )
        return {token_id: piece for piece, token_id in ids.items()}

    def added_tokens(self):
        """Dict of added token to id. A later file overrides an earlier one, as in transformers."""
        return {token: options["id"] for token, options in self._added().items()}

    def _added(self):
        """Dict of added token to a dict of its id and options, as `tokenizer.json` has them."""
        special = {str(value) for name, value in self.settings.items() if name.endswith("_token")}
        for name in ("additional_special_tokens", "extra_special_tokens"):
            values = self.settings.get(name)
            special |= {str(value) for value in (values if isinstance(values, list) else ())}
        tokens = [
            {"content": token, "id": i, "special": token in special}
            for token, i in self.json("added_tokens.json", default={}).items()
        ]
        for token_id, token in (self.settings.get("added_tokens_decoder") or {}).items():
            options = token if isinstance(token, dict) else {"content": token}
            tokens.append({**options, "id": int(token_id)})
        if self.has("tokenizer.json"):
            tokens += self.json("tokenizer.json").get("added_tokens") or []
        for token in tokens:
            is_whole = isinstance(token, dict) and isinstance(token.get("content"), str)
            if not is_whole or type(token.get("id")) is not int or token["id"] < 0:
                raise ValueError(
                    f"The tokenizer's files have the added token {shown(token)}, which lacks a "
                    "name or a number: copy them from the hub again."
                )
        return {token["content"]: token for token in tokens}

    def added_words(self, signs, *, keeps_spaces=False, normalizes=True):
        """The words that a user added, as `Tokenizer.from_sentencepiece` takes them.

        Args:
            signs: container of str. Added tokens that are no words, such as languages.
            keeps_spaces: bool, default `False`. Whether a space before a word is a piece.
            normalizes: bool, default `True`. Whether this kind of tokenizer finds words in
                normalized text, too.

        Returns:
            dict of word to id, dict of settings or `None`, and list of the ids that write nothing.

        Raises:
            ValueError: a word is found by a rule that kformer does not follow.
        """
        words, hidden = {}, []
        settings = {name: [] for name in ("raw", "normalized", "lstrip", "rstrip")}
        for word, options in self._added().items():
            if word in signs or _SIGNS.fullmatch(word):
                continue
            if options.get("single_word"):
                raise ValueError(
                    f"The added word {word!r} is read where it stands alone (single_word), which "
                    "kformer does not follow: add it without single_word."
                )
            words[word], special = options["id"], options.get("special", False)
            is_raw = not (normalizes and options.get("normalized", not special))
            settings["raw" if is_raw else "normalized"].append(word)
            for name in ("lstrip", "rstrip"):
                settings[name] += [word] * bool(options.get(name))
            hidden += [options["id"]] * bool(special)
        return words, {**settings, "keeps_spaces": keeps_spaces} if words else None, hidden

    def token_id(self, name):
        """A setting that is a token id or a list of one, or `None`. In newer folders
        `generation_config.json` has it, and overrides `config.json`.
        """
        for config in (self.json("generation_config.json", default={}), self.config):
            value = config.get(name)
            if value is not None:
                return value[0] if isinstance(value, list) and len(value) == 1 else value
        return None

    def special_ids(self, pieces, where, *, unknown="<unk>", start="pad_id"):
        """The ids of the special tokens, as arguments of `Tokenizer.from_sentencepiece`.

        Args:
            pieces: dict of id to piece.
            where: str. The name of the pieces' file in error messages.
            unknown: str, default "<unk>". The unknown piece.
            start: str, default "pad_id". With which of them the decoder starts where no file names
                a token.
        """
        tokens = {"pad_id": "<pad>", "unknown_id": unknown, "end_id": "</s>"}
        ids = {name: id_of(pieces, token, where) for name, token in tokens.items()}
        first = self.token_id("decoder_start_token_id")
        first = ids[start] if first is None else first
        check_whole("decoder_start_token_id of the checkpoint", first, least=0)
        return {**ids, "start_id": first}


def piece_list(pieces, limit):
    """The pieces in the order of their ids.

    Args:
        pieces: dict of id to piece.
        limit: int, the number of embeddings, or `None`.

    Returns:
        List of str, and the list of ids without a piece; those get names that no text can have.

    Raises:
        ValueError: an id has no embedding.
    """
    size = max(pieces) + 1
    if limit is not None and size > limit:
        raise ValueError(
            f"The tokenizer's ids go up to {size - 1}, but the model has {limit} embeddings; the "
            "files do not fit."
        )
    if len(pieces) > MOST_PIECES or size - len(pieces) > MOST_GAPS:
        raise ValueError(
            f"The tokenizer has {len(pieces)} pieces with ids up to {size - 1}, but kformer reads "
            f"up to {MOST_PIECES} pieces, with {MOST_GAPS} ids between them that have none."
        )
    gaps = [i for i in range(size) if i not in pieces]
    return [pieces.get(i, f"<no piece {i}>") for i in range(size)], gaps


def id_of(pieces, token, where):
    """The id of a token; `where` names its file in the ValueError if there is none."""
    if token not in pieces.values():
        raise ValueError(
            f"{where} has no {token!r}, which the model needs; copy it from the hub again."
        )
    return next(token_id for token_id, piece in pieces.items() if piece == token)


def with_added(checkpoint, model, pieces, added):
    """`Pieces` with the added tokens that the model has embeddings for.

    Args:
        checkpoint: `TokenizerFolder`.
        model: bytes. The SentencePiece model.
        pieces: dict of id to piece.
        added: dict of added token to id.

    Returns:
        `Pieces`.

    Raises:
        ValueError: two tokens have one id, or the model has too few embeddings.
    """
    limit = checkpoint.config.get("vocab_size")
    piece_list(pieces, limit)  # raises if the model has too few
    added = {token: i for token, i in added.items() if limit is None or i < limit}
    return Pieces(model, add_tokens(pieces, added), added)


def fairseq_pieces(checkpoint, languages):
    """`Pieces` in fairseq's order: four special tokens, SentencePiece's pieces, languages, <mask>.

    Args:
        checkpoint: `TokenizerFolder`.
        languages: sequence of str. Codes in the order of their ids, for files without the ids.
    """
    if not checkpoint.has(MODEL_NAME):
        return converted_pieces(checkpoint)
    model = checkpoint.model(MODEL_NAME)
    names = ["<s>", "<pad>", "</s>", "<unk>", *model_pieces(load_sentencepiece(model))[3:]]
    added = checkpoint.added_tokens()
    published = {code: len(names) + i for i, code in enumerate(languages)}
    # A folder with ids of its own for the languages has them all; others add to them.
    if published.items() >= {(code, i) for code, i in added.items() if code in published}:
        added = {**published, "<mask>": len(names) + len(languages), **added}
    return with_added(checkpoint, model, dict(enumerate(names)), added)


def converted_pieces(checkpoint):
    """`Pieces` from a `tokenizer.json` alone."""
    if not checkpoint.has("tokenizer.json"):
        checkpoint.path(MODEL_NAME)  # raises an error that names the missing file
    converted = convert_tokenizer_json(checkpoint.json("tokenizer.json"))
    return dataclasses.replace(converted, model=quantize_scores(converted.model, IMPORT_STEPS))
