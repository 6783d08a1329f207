"""A SentencePiece model from a Hugging Face `tokenizer.json`.

Many published folders have no SentencePiece model any more, but the file of the `tokenizers`
library: the same pieces and scores (unigram) or merges (BPE) and the same table of characters, in
JSON. This module writes them as the protocol buffer that SentencePiece reads."""

import base64
import binascii
import functools
import io
import pathlib
import re
import tempfile
from dataclasses import dataclass

import sentencepiece

from kformer.text.normalization import SPACE_SIGN
from kformer.text.protobuf import message, message_fields

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
# Field numbers of SentencePiece's ModelProto and of the NormalizerSpec inside it; others are in
# `sentencepiece_model`.
_NORMALIZER_FIELD, _CHARSMAP_FIELD = 3, 2
_MODEL_TYPES = {"Unigram": 1, "BPE": 2}
_BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")


@dataclass(frozen=True)
class Pieces:
    """A SentencePiece model and the ids of a tokenizer's pieces, which are not the model's own.

    Args:
        model: bytes. The SentencePiece model.
        pieces: dict of id to piece, with the added tokens.
        added: dict of added token to id.
        unknown: str, default "<unk>". The unknown piece.
        keeps_spaces: bool, default `False`. Whether a space before an added word is a piece.
        adds_spaces: bool, default `True`. Whether text after an added word gets a space in front.
    """

    model: bytes
    pieces: dict
    added: dict
    unknown: str = "<unk>"
    keeps_spaces: bool = False
    adds_spaces: bool = True


def convert_tokenizer_json(data):
    """Converts a parsed `tokenizer.json`.

    Args:
        data: dict.

    Returns:
        `Pieces`.

    Raises:
        ValueError: something in it has no counterpart in SentencePiece; the message names it.
    """
    try:
        return _convert(data)
    except (LookupError, TypeError, AttributeError, OverflowError, binascii.Error) as error:
        raise ValueError(
            f"tokenizer.json is not as the tokenizers library writes it ({error!r}); copy it again."
        ) from None


def _convert(data):
    model = data["model"]
    # First, so that a byte-level tokenizer is refused for this, and not for its normalizer.
    scheme, is_split, at_whitespace = _read_pre_tokenizer(data.get("pre_tokenizer"))
    default = "Unigram" if "unk_id" in model else "BPE" if "merges" in model else None
    kind = model.get("type") or default
    _require(kind in _MODEL_TYPES, f"the model {kind!r}", "Unigram and BPE have counterparts")
    charsmap, joins_spaces = _read_normalizers(data.get("normalizer"))
    if at_whitespace:
        joins_spaces, charsmap = True, charsmap or space_charsmap()
    added = {token["content"]: token["id"] for token in data.get("added_tokens") or []}
    read = _read_unigram if kind == "Unigram" else _read_bpe
    ids, scores, unknown = read(model, added)
    if is_split:
        # A text is split before each space: pieces with a space inside, or at the end, are never
        # used.
        scores = {piece: score for piece, score in scores.items() if SPACE_SIGN not in piece[1:]}
    # Unknown characters become bytes: that takes the flag and a piece for each byte.
    count = sum(f"<0x{byte:02X}>" in scores for byte in range(256))
    byte_fallback = bool(model.get("byte_fallback") and count)
    what = f"byte_fallback with {count} of the 256 bytes"
    _require(not byte_fallback or count == 256, what, "it needs all")
    pieces = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    for piece, score in scores.items():
        is_byte = byte_fallback and _BYTE_PIECE.fullmatch(piece)
        pieces.append((piece, score, BYTE if is_byte else NORMAL))
    model = sentencepiece_model(
        pieces,
        model_type=_MODEL_TYPES[kind],
        charsmap=charsmap,
        adds_space=scheme != "never",
        joins_spaces=joins_spaces,
        byte_fallback=byte_fallback,
    )
    names = {token_id: piece for piece, token_id in ids.items()}
    normalizers = _flat(data.get("normalizer"), "normalizers")
    is_trimmed = at_whitespace or any(step["type"] == "Strip" for step in normalizers)
    pieces = add_tokens(names, added)
    return Pieces(model, pieces, added, unknown, not is_trimmed, scheme == "always")


def add_tokens(pieces, added):
    """Returns a dict of id to piece with added tokens; ValueError if an id has two names.

    Args:
        pieces: dict of id to piece.
        added: dict of added token to id.
    """
    pieces = dict(pieces)
    for token, token_id in added.items():
        if pieces.setdefault(token_id, token) != token:
            raise ValueError(
                f"The tokenizer's files give the id {token_id} to both {pieces[token_id]!r} and "
                f"{token!r}; they are not of one checkpoint."
            )
    return pieces


def _require(has_counterpart, what, why):
    if not has_counterpart:
        raise ValueError(
            f"This tokenizer.json has {what}, which a SentencePiece model cannot express; {why}."
        )


# ---- the model: pieces and scores ----


def _read_unigram(model, added):
    """Dict of piece to id, dict of ordinary piece to score, and the unknown piece."""
    vocabulary = [(entry[0], float(entry[1])) for entry in model["vocab"]]
    has_unknown = model.get("unk_id") is not None
    _require(has_unknown, "no unknown token", "every such model has one")
    unknown = vocabulary[model["unk_id"]][0]
    ids = {}
    for i, (piece, _) in enumerate(vocabulary):
        if ids.setdefault(piece, i) != i:
            raise ValueError(f"tokenizer.json has the piece {piece!r} twice; copy it again.")
    outside = {unknown, *added}
    return ids, {piece: score for piece, score in vocabulary if piece not in outside}, unknown


def _read_bpe(model, added):
    """As `_read_unigram`. The score of a piece orders the merges; without a merge it is 0."""
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"):
        _require(not model.get(name), f"{name}={model.get(name)!r}", "leave it out")
    reason = "it makes one unknown token of several unknown characters"
    _require(model.get("fuse_unk") or model.get("byte_fallback"), "fuse_unk=false", reason)
    unknown = model.get("unk_token")
    _require(unknown is not None, "no unknown token", "every such model has one")
    ids = {**model["vocab"]}
    outside = {unknown, *added}
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    merges = [(left, right) for left, right in merges if not outside & {left, right, left + right}]
    pieces = [piece for piece in ids if len(piece) == 1 or _BYTE_PIECE.fullmatch(piece)]
    scores = {piece: 0.0 for piece in pieces if piece not in outside}
    for left, right in merges:
        scores.setdefault(left + right, -1.0 - len(scores))
    _check_merges(scores, set(merges))
    return ids, scores, unknown


def _check_merges(scores, merges):
    """SentencePiece merges any two pieces that make a third, so every such pair must be among the
    merges.
    """
    for piece in scores:
        for i in range(1, 1 if _BYTE_PIECE.fullmatch(piece) else len(piece)):
            left, right = piece[:i], piece[i:]
            if left in scores and right in scores and (left, right) not in merges:
                what = f"a BPE model that does not merge {left!r} with {right!r}"
                reason = "SentencePiece's merges any pair that makes a piece"
                _require(False, f"{what} although it has {piece!r}", reason)


# ---- normalization and splitting of the text ----


def _read_pre_tokenizer(pre_tokenizer):
    """How a text is split into words: when it gets a space in front, whether it is split at spaces,
    and whether at other white space too. ValueError unless SentencePiece does the same.
    """
    steps = _flat(pre_tokenizer, "pretokenizers")
    kinds = [step["type"] for step in steps]
    wrong = [kind for kind in kinds if kind not in ("Metaspace", "WhitespaceSplit")]
    _require(
        kinds in (["Metaspace"], ["WhitespaceSplit", "Metaspace"]),
        f"the pre-tokenizer {wrong[0] if wrong else '+'.join(kinds) or None}",
        "Metaspace has a counterpart (a byte-level BPE, such as BART's, has none)",
    )
    metaspace, at_whitespace = steps[-1], len(steps) > 1
    sign = metaspace.get("replacement", SPACE_SIGN)
    _require(sign == SPACE_SIGN, f"the space sign {sign!r}", f"it must be {SPACE_SIGN!r}")
    # Older releases wrote add_prefix_space.
    default = "always" if metaspace.get("add_prefix_space", True) else "never"
    scheme = metaspace.get("prepend_scheme", default)
    what = f"WhitespaceSplit with prepend_scheme={scheme!r}"
    _require(not at_whitespace or scheme == "always", what, "it must be 'always'")
    return scheme, metaspace.get("split", True), at_whitespace


def _read_normalizers(normalizer):
    """The table of characters or `None`, and whether spaces are joined and trimmed; ValueError for
    any other normalizer.

    SentencePiece joins and trims spaces or does neither. So either of the two normalizers here
    means both, as in the model that the file was made from."""
    charsmap, joins_spaces = None, False
    for step in _flat(normalizer, "normalizers"):
        kind, pattern = step["type"], step.get("pattern", "")
        if kind == "Precompiled" and charsmap is None and not joins_spaces:
            charsmap = base64.b64decode(step["precompiled_charsmap"] or "", validate=True) or None
            continue
        is_joined = kind == "Replace" and pattern in ({"Regex": " {2,}"}, {"Regex": " +"})
        joins_spaces = kind == "Strip" or (is_joined and step["content"] in (" ", SPACE_SIGN))
        reason = "Precompiled, Strip and joined spaces have counterparts"
        _require(joins_spaces, f"the normalizer {kind}{pattern}", reason)
    return charsmap, joins_spaces


def _flat(step, key):
    """The steps of a (nested) Sequence."""
    if step is None:
        return []
    if step["type"] == "Sequence":
        return [inner for each in step[key] for inner in _flat(each, key)]
    return [step]


@functools.cache
def space_charsmap():
    """SentencePiece's compiled table that replaces every kind of space by the ordinary one."""
    # SentencePiece compiles a table only when it trains, so it trains a tiny model here, from which
    # the table is taken.
    with tempfile.TemporaryDirectory() as folder:
        # The spaces of `str.isspace` and of Rust's `char::is_whitespace`, except the four
        # information separators.
        spaces = [n for n in range(0x3001) if chr(n).isspace() and not 28 <= n <= 32]
        rules = pathlib.Path(folder) / "rules.tsv"
        rules.write_text("".join(f"{space:X}\t20\n" for space in spaces), encoding="ascii")
        trained = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["ab"]),
            model_writer=trained,
            model_type="char",
            vocab_size=6,
            normalization_rule_tsv=str(rules),
            minloglevel=2,
        )
    model = trained.getvalue()
    span = 0, len(model)
    for number in (_NORMALIZER_FIELD, _CHARSMAP_FIELD):
        span = next(ends for field, _, *ends in message_fields(model, *span) if field == number)
    return model[slice(*span)]


# ---- the bytes ----


def sentencepiece_model(
    pieces, *, model_type, charsmap, adds_space, joins_spaces, byte_fallback, unknown=None
):
    """Serialises a SentencePiece model.

    Args:
        pieces: list of (piece, score, type), with one of the type UNKNOWN, called "<unk>".
        model_type: int. 1 for unigram, 2 for BPE and 3 for words.
        charsmap: bytes, the compiled table of characters, or `None`.
        adds_space: bool. Whether a text begins with a space sign.
        joins_spaces: bool. Whether runs of spaces become one and those at the ends are removed.
        byte_fallback: bool. Whether unknown characters become bytes.
        unknown: str, default `None`, for SentencePiece's own. The text of an unknown piece.

    Returns:
        bytes.
    """
    names = [piece for piece, _, _ in pieces]
    special = ((40, "<unk>"), (41, "<s>"), (42, "</s>"))
    trainer = {3: model_type, 4: len(pieces), 35: byte_fallback}
    trainer |= {field: names.index(piece) if piece in names else -1 for field, piece in special}
    trainer |= {43: -1}  # no padding
    trainer |= {} if unknown is None else {44: unknown.encode("utf-8")}
    table = {1: b"user_defined" if charsmap else b"identity", 2: charsmap or b""}
    normalizer = {**table, 3: adds_space, 4: joins_spaces, 5: True}
    fields = [(1, {1: name.encode("utf-8"), 2: score, 3: kind}) for name, score, kind in pieces]
    return message([*fields, (2, trainer), (3, normalizer)])
