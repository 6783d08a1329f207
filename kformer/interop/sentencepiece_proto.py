"""A SentencePiece model from a Hugging Face `tokenizer.json`.

Many published folders have no SentencePiece model any more, but the file of the `tokenizers`
library: the same pieces and scores (unigram) or merges (BPE) and the same table of characters, in
JSON. This module writes them as the protocol buffer that SentencePiece reads. It writes the bytes
itself, as `kformer.text.unigram_scores` does: the protobuf library would tie kformer to the release
that SentencePiece's Python module was generated for."""

import base64
import binascii
import functools
import io
import pathlib
import re
import struct
import tempfile
from dataclasses import dataclass

import sentencepiece

from kformer.text.normalization import SPACE_SIGN
from kformer.text.unigram_scores import message_fields

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
# Field numbers of SentencePiece's ModelProto and of the NormalizerSpec inside it; others are in
# `sentencepiece_model`.
_NORMALIZER_FIELD, _CHARSMAP_FIELD = 3, 2
_MODEL_TYPES = {"Unigram": 1, "BPE": 2}
_BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")
# The spaces of `str.isspace` and of Rust's `char::is_whitespace`, except the four information
# separators.
_SPACES = (
    "\t\n\x0b\x0c\r\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


@dataclass(frozen=True)
class Pieces:
    """A SentencePiece model and the ids of a tokenizer's pieces, which are not the model's own.

    Args:
        model: bytes. The SentencePiece model.
        pieces: dict of id to piece, with the added tokens.
        added: dict of added token to id. No text is ever tokenized to these ids.
        unknown: str, default "<unk>". The unknown piece.
    """

    model: bytes
    pieces: dict
    added: dict
    unknown: str = "<unk>"


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
    split = _check_pre_tokenizer(data.get("pre_tokenizer"))
    default = "Unigram" if "unk_id" in model else "BPE" if "merges" in model else None
    kind = model.get("type") or default
    if kind not in _MODEL_TYPES:
        raise _inexpressible(f"the model {kind!r}", "Unigram and BPE have counterparts")
    charsmap, joins_spaces = _read_normalizers(data.get("normalizer"))
    if split.at_whitespace:
        joins_spaces, charsmap = True, charsmap or space_charsmap()
    added = {}
    for token in data.get("added_tokens") or []:
        name = token["content"]
        if not (token["special"] or (name.startswith("<") and name.endswith(">"))):
            raise _inexpressible(
                f"the added token {name!r}", "only special tokens have counterparts"
            )
        added[name] = token["id"]
    read = _read_unigram if kind == "Unigram" else _read_bpe
    ids, scores, unknown = read(model, added)
    if split.at_space:
        # A text is split before each space: pieces with a space inside, or at the end, are never
        # used.
        scores = {piece: score for piece, score in scores.items() if SPACE_SIGN not in piece[1:]}
    byte_fallback = _has_bytes(model, scores)
    pieces = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    for piece, score in scores.items():
        is_byte = byte_fallback and _BYTE_PIECE.fullmatch(piece)
        pieces.append((piece, score, BYTE if is_byte else NORMAL))
    names = {token_id: piece for piece, token_id in ids.items()}
    for token, token_id in added.items():
        if names.setdefault(token_id, token) != token:
            raise ValueError(
                f"tokenizer.json gives the id {token_id} to both {names[token_id]!r} and "
                f"{token!r}; copy it again."
            )
    model = sentencepiece_model(
        pieces,
        model_type=_MODEL_TYPES[kind],
        charsmap=charsmap,
        adds_space=split.adds_space,
        joins_spaces=joins_spaces,
        byte_fallback=byte_fallback,
    )
    return Pieces(model, names, added, unknown)


def _has_bytes(model, scores):
    """Whether unknown characters become bytes: that takes the flag and a piece for each byte."""
    if not model.get("byte_fallback"):
        return False
    count = sum(f"<0x{byte:02X}>" in scores for byte in range(256))
    if count not in (0, 256):
        raise _inexpressible(f"byte_fallback with {count} of the 256 bytes", "it needs all")
    return count > 0


def _inexpressible(what, why):
    return ValueError(
        f"This tokenizer.json has {what}, which a SentencePiece model cannot express; {why}."
    )


# ---- the model: pieces and scores ----


def _read_unigram(model, added):
    """Dict of piece to id, dict of ordinary piece to score, and the unknown piece."""
    vocabulary = [(entry[0], float(entry[1])) for entry in model["vocab"]]
    if model.get("unk_id") is None:
        raise _inexpressible("no unknown token", "every such model has one")
    unknown = vocabulary[model["unk_id"]][0]
    ids = _piece_ids((piece, i) for i, (piece, _) in enumerate(vocabulary))
    outside = {unknown, *added}
    return ids, {piece: score for piece, score in vocabulary if piece not in outside}, unknown


def _read_bpe(model, added):
    """As `_read_unigram`. The score of a piece orders the merges; without a merge it is 0."""
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"):
        if model.get(name):
            raise _inexpressible(f"{name}={model[name]!r}", "leave it out")
    if not (model.get("fuse_unk") or model.get("byte_fallback")):
        reason = "it makes one unknown token of several unknown characters"
        raise _inexpressible("fuse_unk=false", reason)
    unknown = model.get("unk_token")
    if unknown is None:
        raise _inexpressible("no unknown token", "every such model has one")
    ids = _piece_ids(model["vocab"].items())
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
        for i in range(1, len(piece)):
            left, right = piece[:i], piece[i:]
            is_mergeable = left in scores and right in scores and not _BYTE_PIECE.fullmatch(piece)
            if is_mergeable and (left, right) not in merges:
                raise _inexpressible(
                    f"a BPE model that does not merge {left!r} with {right!r} although it has "
                    f"{piece!r}",
                    "SentencePiece's merges any pair that makes a piece",
                )


def _piece_ids(pairs):
    ids = {}
    for piece, token_id in pairs:
        if ids.setdefault(piece, token_id) != token_id:
            raise ValueError(f"tokenizer.json has the piece {piece!r} twice; copy it again.")
    return ids


# ---- normalization and splitting of the text ----


@dataclass(frozen=True)
class _Split:
    adds_space: bool
    at_space: bool
    at_whitespace: bool


def _check_pre_tokenizer(pre_tokenizer):
    """How a text is split into words; ValueError unless SentencePiece does the same."""
    steps = _flat(pre_tokenizer, "pretokenizers")
    kinds = [step["type"] for step in steps]
    if kinds not in (["Metaspace"], ["WhitespaceSplit", "Metaspace"]):
        wrong = [kind for kind in kinds if kind not in ("Metaspace", "WhitespaceSplit")]
        name = wrong[0] if wrong else "+".join(kinds) or None
        reason = "Metaspace has a counterpart (a byte-level BPE, such as BART's, has none)"
        raise _inexpressible(f"the pre-tokenizer {name}", reason)
    metaspace = steps[-1]
    sign = metaspace.get("replacement", SPACE_SIGN)
    if sign != SPACE_SIGN:
        raise _inexpressible(f"the space sign {sign!r}", f"it must be {SPACE_SIGN!r}")
    # Older releases wrote add_prefix_space.
    default = "always" if metaspace.get("add_prefix_space", True) else "never"
    scheme = metaspace.get("prepend_scheme", default)
    at_whitespace = len(steps) > 1
    if at_whitespace and scheme != "always":
        what = f"WhitespaceSplit with prepend_scheme={scheme!r}"
        raise _inexpressible(what, "it must be 'always'")
    return _Split(scheme != "never", metaspace.get("split", True), at_whitespace)


def _read_normalizers(normalizer):
    """The table of characters or `None`, and whether spaces are joined and trimmed; ValueError for
    any other normalizer.

    SentencePiece joins and trims spaces or does neither. So either of the two normalizers here
    means both, as in the model that the file was made from."""
    charsmap, joins_spaces = None, False
    for step in _flat(normalizer, "normalizers"):
        if step["type"] == "Precompiled" and charsmap is None and not joins_spaces:
            charsmap = base64.b64decode(step["precompiled_charsmap"] or "", validate=True) or None
        elif step["type"] == "Strip" or _joins_spaces(step):
            joins_spaces = True
        else:
            name = f"{step['type']}{step['pattern'] if step['type'] == 'Replace' else ''}"
            reason = "Precompiled, Strip and joined spaces have counterparts"
            raise _inexpressible(f"the normalizer {name}", reason)
    return charsmap, joins_spaces


def _joins_spaces(step):
    patterns = ({"Regex": " {2,}"}, {"Regex": " +"})
    is_replacement = step["type"] == "Replace" and step["pattern"] in patterns
    return is_replacement and step["content"] in (" ", SPACE_SIGN)


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
        rules = pathlib.Path(folder) / "rules.tsv"
        rules.write_text("".join(f"{ord(space):X}\t20\n" for space in _SPACES), encoding="ascii")
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
    for field, _, start, end in message_fields(model, 0, len(model)):
        if field == _NORMALIZER_FIELD:
            for inner, _, inner_start, inner_end in message_fields(model, start, end):
                if inner == _CHARSMAP_FIELD:
                    return model[inner_start:inner_end]
    raise RuntimeError("SentencePiece wrote no table of characters.")


# ---- the bytes ----


def sentencepiece_model(pieces, *, model_type, charsmap, adds_space, joins_spaces, byte_fallback):
    """Serialises a SentencePiece model.

    Args:
        pieces: list of (piece, score, type), with one of the type UNKNOWN, called "<unk>".
        model_type: int. 1 for unigram and 2 for BPE.
        charsmap: bytes, the compiled table of characters, or `None`.
        adds_space: bool. Whether a text begins with a space sign.
        joins_spaces: bool. Whether runs of spaces become one and those at the ends are removed.
        byte_fallback: bool. Whether unknown characters become bytes.

    Returns:
        bytes.
    """
    names = [piece for piece, _, _ in pieces]
    out = io.BytesIO()
    for piece, score, kind in pieces:
        number = _tag(2, 5) + struct.pack("<f", score)
        out.write(_block(1, _block(1, piece.encode("utf-8")) + number + _number(3, kind)))
    trainer = _number(3, model_type) + _number(4, len(pieces)) + _number(35, byte_fallback)
    for field, piece in ((40, "<unk>"), (41, "<s>"), (42, "</s>")):
        trainer += _number(field, names.index(piece) if piece in names else -1)
    trainer += _number(43, -1)  # no padding
    normalizer = _block(1, b"user_defined" if charsmap else b"identity")
    normalizer += _block(2, charsmap or b"")
    normalizer += _number(3, adds_space) + _number(4, joins_spaces) + _number(5, True)
    out.write(_block(2, trainer) + _block(3, normalizer))
    return out.getvalue()


def _tag(field, wire_type):
    return _varint(field << 3 | wire_type)


def _number(field, value):
    # A negative number takes the two's complement of 64 bits.
    return _tag(field, 0) + _varint(int(value) & (1 << 64) - 1)


def _block(field, content):
    return _tag(field, 2) + _varint(len(content)) + content


def _varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
