"""The tokenizers of published translation models, from the files of a Hugging Face folder.

What has to come out is the ids that the model was trained with, and each family has its own way to
them: Marian looks pieces up in `vocab.json`, M2M100 has its languages behind such a file, NLLB and
mBART shift SentencePiece's ids to make room for fairseq's four special tokens. Nothing in a folder
is run, and no library of Hugging Face is needed."""

import json
import pathlib
import re
from dataclasses import dataclass

from kformer.interop.published_languages import (
    M2M100_LANGUAGES,
    MBART50_LANGUAGES,
    MBART_LANGUAGES,
    NLLB_LANGUAGES,
    WMT21_LANGUAGES,
)
from kformer.interop.sentencepiece_proto import convert_tokenizer_json
from kformer.text import Tokenizer
from kformer.text.languages import some_languages
from kformer.text.unigram_scores import IMPORT_STEPS, quantize_scores
from kformer.text.vocabulary import load_sentencepiece, model_pieces

MODEL_NAME = "sentencepiece.bpe.model"
_T5_MODEL_NAME = "spiece.model"
_T5_EXTRA_IDS = 100
# Any class that leaves open which model's it is; the model_type decides then.
_GENERIC_CLASSES = ("", "PreTrainedTokenizer", "TokenizersBackend")
_PREFIXES = {"source": ["source_prefix"], "target": ["target_prefix"]}
# Generation puts the target's language first whether or not the source follows the older pattern.
_NLLB_LEGACY = {"source": ["source_suffix"], "target": ["target_prefix"]}
_MBART = {"source": ["source_suffix"], "target": ["target_suffix", "start"]}
_MARIAN = {"source": [], "target": ["source_prefix"]}


def read_tokenizer(folder, config, *, source_language=None, target_language=None):
    """The tokenizer of a published checkpoint, with the ids that its model knows.

    Args:
        folder: `pathlib.Path` of the checkpoint's folder.
        config: dict, its `config.json`.
        source_language, target_language: language codes of a multilingual model, as it calls them
            ("eng_Latn", "en", "en_XX", "fra" or ">>fra<<"). By default those in
            `tokenizer_config.json`. `Tokenizer.for_languages` changes them later.

    Returns:
        Tokenizer. It may have fewer ids than the model has rows of embeddings.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if the kind of tokenizer is none that kformer reads, its files contradict each
            other, or a language is unknown or missing.
    """
    checkpoint = _Checkpoint(pathlib.Path(folder), config)
    kind = config.get("model_type")
    if kind == "pegasus" and checkpoint.tokenizer_class == "MarianTokenizer":
        kind = "marian"  # a pre-norm model that kformer exported
    readers = {
        "marian": _read_marian,
        "m2m_100": _read_m2m_100,
        "mbart": _read_mbart,
        "bart": _read_bart,
        "t5": _read_t5,
        "mt5": _read_t5,
    }
    if kind not in readers:
        raise ValueError(
            f"The tokenizer of the model_type {kind!r} is none that kformer reads; it reads those of {', '.join(readers)}."
        )
    return readers[kind](checkpoint, {"source": source_language, "target": target_language})


class _Checkpoint:
    """The small files of a folder, read once."""

    def __init__(self, folder, config):
        self.folder = folder
        self.config = config
        self.settings = self.json("tokenizer_config.json", default={})
        self.tokenizer_class = (
            self.settings.get("tokenizer_class") or config.get("tokenizer_class") or ""
        )

    def path(self, name):
        path = self.folder / name
        if not path.is_file():
            raise FileNotFoundError(
                f"The folder {str(self.folder)!r} has no {name}, which its tokenizer needs; copy it from the hub."
            )
        return path

    def has(self, name):
        return (self.folder / name).is_file()

    def model(self, name):
        """A SentencePiece model, bytes; its scores as `_exact` makes them."""
        return _exact(self.path(name))

    def json(self, name, default=None):
        """A JSON object in the folder; where `default` is given, it stands for a file that is not
        there.
        """
        if default is not None and not self.has(name):
            return default
        path = self.path(name)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise ValueError(
                f"{str(path)!r} does not hold a JSON object; copy it from the hub again."
            )
        return content

    def vocabulary(self, name):
        """dict of id to piece, from a file of piece to id."""
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
        """dict of added token to id, as far as the files tell; a later file has the last word, as
        in transformers.
        """
        added = dict(self.json("added_tokens.json", default={}))
        for token_id, token in (self.settings.get("added_tokens_decoder") or {}).items():
            added[token["content"] if isinstance(token, dict) else token] = int(token_id)
        if self.has("tokenizer.json"):
            added |= {
                token["content"]: token["id"]
                for token in self.json("tokenizer.json").get("added_tokens") or []
            }
        return added

    def start_id(self, default):
        """The id that the decoder starts with; newer folders keep it apart from `config.json`, and
        it has the last word.
        """
        for config in (self.json("generation_config.json", default={}), self.config):
            start = config.get("decoder_start_token_id")
            start = start[0] if isinstance(start, list) and len(start) == 1 else start
            if start is not None:
                if type(start) is not int:
                    raise ValueError(
                        f"The checkpoint gives {start!r} for decoder_start_token_id, but a token id is needed."
                    )
                return start
        return default

    def forced_language(self, languages):
        """The code of the language that every translation of this checkpoint begins with, or None."""
        for config in (self.json("generation_config.json", default={}), self.config):
            forced = config.get("forced_bos_token_id")
            forced = forced[0] if isinstance(forced, list) and len(forced) == 1 else forced
            if forced is not None:
                return next(
                    (code for code, token_id in languages.items() if token_id == forced), None
                )
        return None


@dataclass(frozen=True)
class _Pieces:
    """A SentencePiece model and the ids of its pieces: dict of id to piece, dict of special token
    to id.
    """

    model: bytes
    pieces: dict
    added: dict
    unknown: str = "<unk>"


def _exact(path):
    """The model in a file with scores that add up exactly, so that Python and the graph cut every
    text alike.

    With the published scores they part where a text repeats itself ("!!!!" as "!!" + "!!" or "!" +
    "!!!")."""
    content = path.read_bytes()
    try:
        load_sentencepiece(content)
    except ValueError:
        raise ValueError(
            f"{str(path)!r} is not a SentencePiece model; download the file itself, not a pointer to it."
        ) from None
    return quantize_scores(content, IMPORT_STEPS)


def _piece_list(pieces, limit):
    """The pieces in the order of their ids, and the ids that no piece has: those get names that no
    text becomes.
    """
    size = max(pieces) + 1
    if limit is not None and size > limit:
        raise ValueError(
            f"The tokenizer's ids go up to {size - 1}, but the model has {limit} embeddings; the files do not fit."
        )
    gaps = [i for i in range(size) if i not in pieces]
    return [pieces.get(i, f"<no piece {i}>") for i in range(size)], gaps


def _id_of(pieces, token, where):
    for token_id, piece in pieces.items():
        if piece == token:
            return token_id
    raise ValueError(
        f"{where} has no {token!r}, which the model needs; copy it from the hub again."
    )


# ---- Marian ----


def _read_marian(checkpoint, given):
    pieces, target_pieces = checkpoint.vocabulary("vocab.json"), None
    if checkpoint.settings.get("separate_vocabs"):
        target_pieces = checkpoint.vocabulary("target_vocab.json")
    special_ids = {
        name: _id_of(pieces, token, "vocab.json")
        for name, token in (("pad", "<pad>"), ("unknown", "<unk>"), ("end", "</s>"))
    }
    for name, token_id in special_ids.items():
        if target_pieces is not None and target_pieces.get(token_id) != pieces[token_id]:
            raise ValueError(
                f"target_vocab.json gives {pieces[token_id]!r} another id than vocab.json; kformer has one {name} id."
            )
    special_ids["start"] = checkpoint.start_id(special_ids["pad"])
    tags = {
        piece: token_id for token_id, piece in pieces.items() if re.fullmatch(r"(?s)>>.*<<", piece)
    }
    languages = {tag[2:-2]: token_id for tag, token_id in tags.items()}
    vocabulary, gaps = _piece_list(pieces, checkpoint.config.get("vocab_size"))
    target_vocabulary, target_gaps = None, None
    if target_pieces is not None:
        target_vocabulary, target_gaps = _piece_list(
            target_pieces, checkpoint.config.get("decoder_vocab_size")
        )
    tokenizer = Tokenizer.from_sentencepiece(
        checkpoint.model("source.spm"),
        checkpoint.model("target.spm"),
        vocabulary=vocabulary,
        target_vocabulary=target_vocabulary,
        control_ids=(*gaps, *tags.values()),
        target_control_ids=target_gaps,
        languages=languages,
        language_places=_MARIAN if languages else None,
        language_tags=bool(languages),
        **{f"{name}_id": token_id for name, token_id in special_ids.items()},
    )
    return tokenizer.for_languages(target=_marian_target(checkpoint, languages, given))


def _marian_target(checkpoint, languages, given):
    """The target language to set, or None. A bilingual model's own two languages may be named too:
    they change nothing.
    """
    for side, code in given.items():
        if (
            code is None
            or code == checkpoint.settings.get(f"{side}_lang")
            and code not in languages
        ):
            continue
        if side == "source":
            raise ValueError(
                f"A Marian model is not told its source language; leave out source_language={code!r}."
            )
        if not languages:
            raise ValueError(
                f"This Marian model has no language tags, so it has one target language; leave out {code!r}."
            )
        return code
    return None


# ---- M2M100 and NLLB ----


def _read_m2m_100(checkpoint, given):
    name = checkpoint.tokenizer_class.removesuffix("Fast")
    if name in ("M2M100Tokenizer", "NllbTokenizer"):
        is_m2m100 = name == "M2M100Tokenizer"
    elif name in _GENERIC_CLASSES:
        is_m2m100 = checkpoint.has("vocab.json")
    else:
        raise _unknown_class(checkpoint, "M2M100Tokenizer and NllbTokenizer")
    if is_m2m100:
        has_json_alone = checkpoint.has("tokenizer.json") and not checkpoint.has("vocab.json")
        read = _converted(checkpoint) if has_json_alone else _m2m100_pieces(checkpoint)
        return _multilingual(checkpoint, read, r"__(.+)__", _PREFIXES, given)
    places = _NLLB_LEGACY if checkpoint.settings.get("legacy_behaviour") else _PREFIXES
    return _multilingual(
        checkpoint,
        _fairseq_pieces(checkpoint, NLLB_LANGUAGES),
        r"([a-z]{3}_[A-Z][a-z]{3})",
        places,
        given,
    )


def _m2m100_pieces(checkpoint):
    pieces = checkpoint.vocabulary("vocab.json")
    codes = {"m2m100": M2M100_LANGUAGES, "wmt21": WMT21_LANGUAGES}
    name = checkpoint.settings.get("language_codes") or "m2m100"
    if name not in codes:
        raise ValueError(
            f"tokenizer_config.json has language_codes={name!r}; kformer knows {', '.join(codes)}."
        )
    first = len(pieces)
    published = {f"__{code}__": first + i for i, code in enumerate(codes[name])}
    added = {**published, **checkpoint.added_tokens()}
    return _with_added(checkpoint, checkpoint.model(MODEL_NAME), pieces, added)


def _with_added(checkpoint, model, pieces, added):
    """`_Pieces` with the added tokens that the model has embeddings for; ValueError if two claim
    one id.
    """
    limit = checkpoint.config.get("vocab_size")
    _piece_list(pieces, limit)  # an error if the model has too few
    added = {
        token: token_id for token, token_id in added.items() if limit is None or token_id < limit
    }
    pieces = dict(pieces)
    for token, token_id in added.items():
        if pieces.setdefault(token_id, token) != token:
            raise ValueError(
                f"The files give the id {token_id} to both {pieces[token_id]!r} and {token!r}; they are not of one checkpoint."
            )
    return _Pieces(model, pieces, added)


# ---- fairseq's ids, and what NLLB, mBART and M2M100 have in common ----


def _fairseq_pieces(checkpoint, languages):
    """SentencePiece's pieces behind fairseq's four special tokens, then the languages, then <mask>."""
    if not checkpoint.has(MODEL_NAME):
        return _converted(checkpoint)
    model = checkpoint.model(MODEL_NAME)
    own = model_pieces(load_sentencepiece(model))
    names = ["<s>", "<pad>", "</s>", "<unk>", *own[3:]]
    added = checkpoint.added_tokens()
    if not set(added) - set(names) - {"<mask>"}:  # the folder tells no languages' ids
        added |= {code: len(names) + i for i, code in enumerate(languages)}
        added["<mask>"] = len(names) + len(languages)
    return _with_added(checkpoint, model, dict(enumerate(names)), added)


def _converted(checkpoint):
    """`_Pieces` from a `tokenizer.json` alone."""
    if not checkpoint.has("tokenizer.json"):
        checkpoint.path(MODEL_NAME)  # says which file is missing
    converted = convert_tokenizer_json(checkpoint.json("tokenizer.json"))
    return _Pieces(
        quantize_scores(converted.model, IMPORT_STEPS),
        converted.pieces,
        converted.added,
        converted.unknown,
    )


def _multilingual(checkpoint, read, pattern, places, given):
    """A `Tokenizer` whose languages are the added tokens that look as `pattern` says."""
    languages = {}
    for token, token_id in sorted(read.added.items(), key=lambda item: item[1]):
        if found := re.fullmatch(pattern, token):
            languages[found[1]] = token_id
    if not languages:
        raise ValueError(
            "The tokenizer's files name no language, but the model needs one on each side; copy them from the hub again."
        )
    tokenizer = _tokenizer(checkpoint, read, languages=languages, language_places=places)
    for side, setting in (("source", "src_lang"), ("target", "tgt_lang")):
        code = given[side] or checkpoint.settings.get(setting)
        if side == "target":
            code = given[side] or checkpoint.forced_language(languages) or code
        if not code:
            raise ValueError(
                f"This model needs a {side} language, and its tokenizer_config.json names none; pass {side}_language= "
                f"(--{side}-language), one of {some_languages(languages)}."
            )
        try:
            tokenizer = tokenizer.for_languages(**{side: code})
        except ValueError as error:
            raise ValueError(f"{error} Pass {side}_language= (--{side}-language).") from None
    return tokenizer


def _tokenizer(checkpoint, read, *, prefix=(), languages=None, language_places=None):
    special_ids = {
        name: _id_of(read.pieces, token, "The tokenizer")
        for name, token in (("pad", "<pad>"), ("unknown", read.unknown), ("end", "</s>"))
    }
    special_ids["start"] = checkpoint.start_id(special_ids["end"])
    vocabulary, gaps = _piece_list(read.pieces, checkpoint.config.get("vocab_size"))
    controls = {
        *gaps,
        *read.added.values(),
        *(i for i, piece in read.pieces.items() if piece in ("<s>", "<pad>", "</s>")),
    }
    return Tokenizer.from_sentencepiece(
        read.model,
        vocabulary=vocabulary,
        source_prefix=prefix,
        target_prefix=prefix,
        control_ids=sorted(controls - {special_ids["unknown"]}),
        languages=languages,
        language_places=language_places,
        **{f"{name}_id": token_id for name, token_id in special_ids.items()},
    )


# ---- mBART and BART ----


def _read_mbart(checkpoint, given):
    name = checkpoint.tokenizer_class.removesuffix("Fast")
    if name in ("MBartTokenizer", "MBart50Tokenizer"):
        is_mbart50 = name == "MBart50Tokenizer"
    elif name in _GENERIC_CLASSES:
        is_mbart50 = _has_mbart50_languages(checkpoint)
    else:
        raise _unknown_class(checkpoint, "MBartTokenizer and MBart50Tokenizer")
    read = _fairseq_pieces(checkpoint, MBART50_LANGUAGES if is_mbart50 else MBART_LANGUAGES)
    return _multilingual(
        checkpoint, read, r"([a-z]{2,3}_[A-Z]{2})", _PREFIXES if is_mbart50 else _MBART, given
    )


def _has_mbart50_languages(checkpoint):
    """Tells the two apart by the last language that only mBART-50 has, or by the number of
    embeddings.
    """
    added = checkpoint.added_tokens()
    if not checkpoint.has(MODEL_NAME) or set(added) & set(MBART_LANGUAGES):
        return MBART50_LANGUAGES[-1] in added
    own = len(load_sentencepiece(checkpoint.path(MODEL_NAME).read_bytes()))
    return checkpoint.config.get("vocab_size", 0) >= own + len(MBART50_LANGUAGES) + 2


def _read_bart(checkpoint, given):
    for side, code in given.items():
        if code is not None:
            raise ValueError(f"A BART model has no languages; leave out {side}_language={code!r}.")
    if not checkpoint.has(MODEL_NAME) and not checkpoint.has("tokenizer.json"):
        raise ValueError(
            f"The folder {str(checkpoint.folder)!r} has no {MODEL_NAME}. BART's own tokenizer is a byte-level BPE, which "
            "SentencePiece cannot express; kformer reads BART models with a SentencePiece model."
        )
    read = _fairseq_pieces(checkpoint, ())
    return _tokenizer(checkpoint, read, prefix=[_id_of(read.pieces, "<s>", "The tokenizer")])


# ---- T5 ----


def _read_t5(checkpoint, given):
    for side, code in given.items():
        if code is not None:
            raise ValueError(
                f"A T5 model has no languages, its task stands in the text; leave out {side}_language={code!r}."
            )
    if not checkpoint.has(_T5_MODEL_NAME) and checkpoint.has("tokenizer.json"):
        return _tokenizer(checkpoint, _converted(checkpoint))
    model = checkpoint.model(_T5_MODEL_NAME)
    own = model_pieces(load_sentencepiece(model))
    added = checkpoint.added_tokens()
    if not any(token.startswith("<extra_id_") for token in added):
        # What stands for the gaps in a text that training left out, counted from the end.
        count = checkpoint.settings.get("extra_ids", _T5_EXTRA_IDS)
        if type(count) is not int or count < 0:
            raise ValueError(
                f"tokenizer_config.json gives {count!r} for extra_ids, but a whole number is needed."
            )
        missing = [
            f"<extra_id_{number}>"
            for number in reversed(range(count))
            if f"<extra_id_{number}>" not in own
        ]
        added |= {token: len(own) + place for place, token in enumerate(missing)}
    return _tokenizer(checkpoint, _with_added(checkpoint, model, dict(enumerate(own)), added))


def _unknown_class(checkpoint, choices):
    return ValueError(
        f"tokenizer_config.json names the class {checkpoint.tokenizer_class!r}, which places languages in a way that kformer "
        f"does not know; for the model_type {checkpoint.config.get('model_type')!r} it reads {choices}."
    )
