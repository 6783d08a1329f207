"""The files of a published tokenizer, as pieces with the ids that the model knows.

Nothing in a folder is run, and no library of Hugging Face is needed."""

import dataclasses

from kformer.interop.limits import MOST_GAPS, MOST_PIECES, read_sentencepiece, read_settings
from kformer.interop.sentencepiece_proto import Pieces, convert_tokenizer_json
from kformer.text.unigram_scores import IMPORT_STEPS, quantize_scores
from kformer.text.vocabulary import load_sentencepiece, model_pieces

MODEL_NAME = "sentencepiece.bpe.model"


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
        self.folder = folder
        self.config = config
        self.settings = self.json("tokenizer_config.json", default={})
        self.tokenizer_class = (
            self.settings.get("tokenizer_class") or config.get("tokenizer_class") or ""
        )

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
        """A SentencePiece model, bytes, with the scores of `exact_model`."""
        return exact_model(self.path(name))

    def json(self, name, default=None):
        """The JSON object in a file; `default`, if it is given, where there is no such file."""
        if default is not None and not self.has(name):
            return default
        return read_settings(self.path(name), "copy it from the hub again")

    def vocabulary(self, name):
        """Dict of id to piece, from a file of piece to id."""
        ids = self.json(name)
        if not all(type(token_id) is int and token_id >= 0 for token_id in ids.values()):
            raise ValueError(
                f"{name} must give every piece a whole number; copy it from the hub again."
            )
        pieces = {token_id: piece for piece, token_id in ids.items()}
        if len(pieces) < len(ids):
            raise ValueError(f"{name} gives one id to two pieces; copy it from the hub again.")
        return pieces

    def added_tokens(self):
        """Dict of added token to id. A later file overrides an earlier one, as in transformers."""
        added = dict(self.json("added_tokens.json", default={}))
        for token_id, token in (self.settings.get("added_tokens_decoder") or {}).items():
            added[token["content"] if isinstance(token, dict) else token] = int(token_id)
        if self.has("tokenizer.json"):
            tokens = self.json("tokenizer.json").get("added_tokens") or []
            added |= {token["content"]: token["id"] for token in tokens}
        return added

    def token_id(self, name):
        """A setting that is a token id or a list of one, or `None`. In newer folders
        `generation_config.json` has it, and overrides `config.json`.
        """
        for config in (self.json("generation_config.json", default={}), self.config):
            value = config.get(name)
            if value is not None:
                return value[0] if isinstance(value, list) and len(value) == 1 else value
        return None

    def start_id(self, default):
        """The id that the decoder starts with."""
        start = self.token_id("decoder_start_token_id")
        if start is not None and type(start) is not int:
            raise ValueError(
                f"The checkpoint gives {start!r} for decoder_start_token_id, but a token id is "
                "needed."
            )
        return default if start is None else start

    def forced_language(self, languages):
        """The code of the language that every translation begins with, or `None`."""
        forced = self.token_id("forced_bos_token_id")
        return next((code for code, token_id in languages.items() if token_id == forced), None)


def exact_model(path):
    """A SentencePiece model with rounded scores, which add up exactly.

    With them Python and the graph segment every text alike. With the published scores they differ
    where a text repeats itself ("!!!!" as "!!" + "!!" or "!" + "!!!").

    Args:
        path: `pathlib.Path` of the model's file.

    Returns:
        bytes.

    Raises:
        ValueError: the file holds no SentencePiece model.
    """
    content = read_sentencepiece(path)
    try:
        load_sentencepiece(content)
    except ValueError:
        raise ValueError(
            f"{str(path)!r} is not a SentencePiece model; download the file itself, not a pointer "
            "to it."
        ) from None
    return quantize_scores(content, IMPORT_STEPS)


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
    for token_id, piece in pieces.items():
        if piece == token:
            return token_id
    raise ValueError(
        f"{where} has no {token!r}, which the model needs; copy it from the hub again."
    )


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
    added = {
        token: token_id for token, token_id in added.items() if limit is None or token_id < limit
    }
    pieces = dict(pieces)
    for token, token_id in added.items():
        if pieces.setdefault(token_id, token) != token:
            raise ValueError(
                f"The files give the id {token_id} to both {pieces[token_id]!r} and {token!r}; "
                "they are not of one checkpoint."
            )
    return Pieces(model, pieces, added)


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
    if not set(added) - set(names) - {"<mask>"}:  # the files have no ids of languages
        added |= {code: len(names) + i for i, code in enumerate(languages)}
        added["<mask>"] = len(names) + len(languages)
    return with_added(checkpoint, model, dict(enumerate(names)), added)


def converted_pieces(checkpoint):
    """`Pieces` from a `tokenizer.json` alone."""
    if not checkpoint.has("tokenizer.json"):
        checkpoint.path(MODEL_NAME)  # raises an error that names the missing file
    converted = convert_tokenizer_json(checkpoint.json("tokenizer.json"))
    return dataclasses.replace(converted, model=quantize_scores(converted.model, IMPORT_STEPS))
