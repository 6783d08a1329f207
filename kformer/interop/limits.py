"""Limits on what the files of a published folder may ask for, so that importing a stranger's folder
takes no more memory than its weights justify.

Published models stay far below them: their largest vocabularies have some 260,000 pieces, their
SentencePiece models 5 MB, their `tokenizer.json` 35 MB, and their weights a few thousand tensors.
"""

import itertools

from kformer.text.protobuf import message_fields
from kformer.utils.files import parse_json, read_bytes

MOST_LAYERS = 100
MOST_PIECES = 320_000
# Ids below the largest one without a piece.
MOST_GAPS = 10_000
# Of the pickle in a `pytorch_model.bin` and of the header of a safetensors file. Both list the
# tensors; their numbers stand elsewhere in the file.
MOST_LIST_BYTES = 8 * 2**20
_MOST_MODEL_BYTES = 16 * 2**20
_MOST_JSON_BYTES = 80 * 2**20
_MOST_JSON_MEMORY = 320 * 2**20
# About the bytes of memory behind each byte of JSON that begins or separates values, and behind
# every byte of it.
_JSON_COSTS = {b"{": 240, b"[": 72, b":": 100, b",": 48}
_TEXT_COST = 4


def read_settings(path, remedy, kind=dict):
    """The JSON object, or list, in a file of settings or pieces.

    Args:
        path: `pathlib.Path`.
        remedy: str. What the message of an error advises.
        kind: `dict` or `list`, default `dict`.

    Raises:
        ValueError: the file holds no such value, or its values would take too much memory.
    """
    content = read_bytes(path, _MOST_JSON_BYTES, remedy=remedy)
    memory = sum(content.count(mark) * cost for mark, cost in _JSON_COSTS.items())
    if memory + len(content) * _TEXT_COST > _MOST_JSON_MEMORY:
        raise ValueError(f"{path} holds more values than any published model has: {remedy}.")
    return parse_json(content, path, kind, remedy=remedy)


def read_sentencepiece(path):
    """The bytes of a SentencePiece model, before SentencePiece reads it.

    Args:
        path: `pathlib.Path`.

    Raises:
        ValueError: the file is too large, or has too many pieces.
    """
    content = read_bytes(path, _MOST_MODEL_BYTES, remedy="copy it from the hub again")
    fields = message_fields(content, 0, len(content))
    try:
        count = sum(1 for _ in itertools.islice(fields, MOST_PIECES + 1))
    except (IndexError, KeyError):
        return content  # No such message: SentencePiece will refuse it.
    if count > MOST_PIECES:
        raise ValueError(
            f"{path} has more pieces than any published model: kformer reads up to {MOST_PIECES}."
        )
    return content


def least_bytes(arguments):
    """The fewest bytes that the weights of a model can have: its matrices in 16 bits.

    Args:
        arguments: dict, as `model_arguments` returns it.
    """
    hidden, inner = arguments["hidden_dim"], arguments["intermediate_dim"]
    decoder_inner = arguments.get("decoder_intermediate_dim") or inner
    heads, target = arguments["num_heads"], arguments["target_vocabulary_size"]
    target = target or arguments["vocabulary_size"]
    attention = 4 * hidden * (heads * (arguments.get("head_dim") or 0) or hidden)
    own = attention
    if arguments.get("decoder_autoregression") == "ssru":
        own = 2 * hidden * hidden
    dense = (3 if arguments.get("gated") else 2) * hidden
    copies = (not arguments.get("share_embeddings", True)) + (not arguments["share_output"])
    tables = arguments["vocabulary_size"] + target * copies
    if arguments["position_encoding"] == "learned":
        tables += 2 * arguments["max_length"]
    numbers = (
        tables * hidden
        + arguments["num_encoder_layers"] * (attention + dense * inner)
        + arguments["num_decoder_layers"] * (own + attention + dense * decoder_inner)
        + 2 * heads * arguments.get("relative_buckets", 0)
    )
    return 2 * numbers
