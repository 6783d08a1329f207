"""The weights of a published checkpoint: what is checked about them, and how a model gets them."""

import re

import numpy as np
from keras import ops

from kformer.interop.architectures import UNUSED_POSITIONS
from kformer.interop.limits import least_bytes
from kformer.interop.slots import slots
from kformer.layers import sinusoidal_positions
from kformer.utils.checks import check_float16

# The number of rows of a table that are compared at once, so that a large one is not copied whole.
_ROWS = 4096
# In old files; no version of T5 ever added it to its scores. "version" is fairseq's number.
_UNUSED = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",)


def check_sizes(arguments, weights, where, settings="config.json"):
    """Compares a model's sizes with what is stored, before memory is allocated for it.

    Args:
        arguments: dict, as `model_arguments` returns it.
        weights: `kformer.interop.checkpoint.Weights`, or a `TensorTable` of another toolkit.
        where, settings: str. What error messages call the files, and what states the sizes.

    Raises:
        ValueError: the number of layers, or the shape of a table or of a feed-forward network
            differs, or the model is larger than the files.
    """
    shapes = weights.shapes
    is_t5 = arguments["position_encoding"] == "t5"
    for side in ("encoder", "decoder"):
        prefix = f"{side}.block." if is_t5 else f"model.{side}.layers."
        names = [name.removeprefix(prefix) for name in shapes if name.startswith(prefix)]
        count = len({name.partition(".")[0] for name in names})
        if count != (expected := arguments[f"num_{side}_layers"]):
            raise ValueError(
                f"{where} has the weights of {count} {side} layers, but {settings} asks for "
                f"{expected}."
            )
    hidden_dim, inner = arguments["hidden_dim"], arguments["intermediate_dim"]
    source_size = arguments["vocabulary_size"]
    sizes = {
        "model.shared.weight": source_size,
        "model.encoder.embed_tokens.weight": source_size,
        "model.decoder.embed_tokens.weight": arguments["target_vocabulary_size"] or source_size,
        "model.encoder.layers.0.fc1.weight": inner,
        "model.decoder.layers.0.fc1.weight": arguments.get("decoder_intermediate_dim") or inner,
        "shared.weight": source_size,
        "encoder.block.0.layer.1.DenseReluDense.wi_1.weight": inner,
        "encoder.block.0.layer.1.DenseReluDense.wi.weight": inner,
    }
    if arguments["position_encoding"] == "learned":
        sizes["model.encoder.embed_positions.weight"] = arguments["max_length"] + UNUSED_POSITIONS
    for name, rows in sizes.items():
        if name in shapes:
            _check_shape(name, shapes, (rows, hidden_dim), where, settings)
    needed = least_bytes(arguments)
    if needed > weights.num_bytes:
        raise ValueError(
            f"{where} has {weights.num_bytes} bytes of weights, but a model of the sizes in "
            f"{settings} has at least {needed}: they are not of one model."
        )


def _check_shape(name, shapes, expected, where, settings):
    if shapes[name] != expected:
        raise ValueError(
            f"{where}: the tensor {name!r} has the shape {list(shapes[name])}, but {settings} "
            f"asks for {list(expected)}."
        )


def settle_tables(arguments, weights):
    """The arguments of a model with the tables that its weights have, where config.json says less.

    Newer configurations of T5 v1.1 claim that the output projection is the shared table, but store
    another one. Its outputs are not scaled, which distinguishes it from T5. And where the output
    projection is not the table, encoder and decoder may have tables of their own.

    Args:
        arguments: dict, as `model_arguments` returns it.
        weights: `kformer.interop.checkpoint.Weights`.

    Returns:
        Dict.
    """
    if not arguments.get("scale_output", True) and "lm_head.weight" in weights.shapes:
        return {**arguments, "share_output": False}
    tables = [f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder")]
    is_untied = not arguments["share_output"] and arguments.get("share_embeddings")
    if is_untied and all(name in weights.shapes for name in tables):
        source, target = map(weights.read, tables)
        return {**arguments, "share_embeddings": np.array_equal(source, target)}
    return arguments


def load_weights(model, weights, where, settings="config.json"):
    """Loads the published weights into a model, tensor by tensor.

    Args:
        model: `kformer.Transformer` made with `model_arguments`.
        weights: `kformer.interop.checkpoint.Weights`, or a `TensorTable` of another toolkit.
        where, settings: str. What error messages call the files, and what states the sizes.

    Raises:
        ValueError: a tensor is missing, has another shape, is not finite, or is unknown to the
            model.
    """
    shapes, table = weights.shapes, list(slots(model))
    if "final_logits_bias" not in shapes:  # A bias of zeros need not be published.
        table = [slot for slot in table if slot.names != ("final_logits_bias",)]
    stored = {name: _stored_name(name, shapes, model) for slot in table for name in slot.names}
    for slot in table:
        for name in slot.names:
            if stored[name] is None:
                raise ValueError(
                    f"{where} lacks the tensor {name!r}: the weights and {settings} are not of "
                    "one model."
                )
            _check_shape(stored[name], shapes, slot.stored_shape(), where, settings)
    copies = {name: _copy_of(name, model) for name in shapes.keys() - set(stored.values())}
    if extra := sorted(name for name, kind in copies.items() if kind is None):
        more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
        raise ValueError(
            f"{where} has the tensor {extra[0]!r}{more}, which the model of {settings} "
            "does not have."
        )
    for slot in table:
        names = [stored[name] for name in slot.names]
        array = slot.join([_checked(weights.read(name), name, where) for name in names])
        if array.dtype.name == "bfloat16":  # Not every backend takes it from NumPy.
            array = array.astype("float32")
        if slot.variable.dtype == "float16":
            name = f"{where}: the tensor {slot.names[0]!r}"
            check_float16(name, array, "import it as bfloat16")
        slot.variable.assign(ops.convert_to_tensor(array, dtype=slot.variable.dtype))
    for name, kind in sorted(copies.items()):
        if kind != "unused":
            _check_copy(weights, name, kind, model, where, settings)


def _stored_name(name, shapes, model):
    """The name under which a tensor is stored: some files have the shared table only under the
    name of a copy.
    """
    candidates = [name]
    if name.endswith("shared.weight"):
        prefix = name.removesuffix("shared.weight")
        candidates += [f"{prefix}{side}.embed_tokens.weight" for side in ("encoder", "decoder")]
    tables = ("shared.weight", "model.shared.weight", "model.decoder.embed_tokens.weight")
    if name in tables and model.network.output_projection is None:
        candidates.append("lm_head.weight")
    return next((candidate for candidate in candidates if candidate in shapes), None)


def _copy_of(name, model):
    """What a tensor repeats that is not in the table: "source" or "target" embeddings or
    "positions"; "unused" if the model does not need it; else `None`.
    """
    network = model.network
    if name in _UNUSED or name.split(".")[-1] == "version":
        return "unused"
    if network.encoder.relative_bias is not None:
        name = f"model.{name}" if name != "lm_head.weight" else name
    is_positions = re.search(r"(^|\.)embed_positions\.weights?$", name)
    if is_positions and network.source_embedding.position_encoding:
        return "positions"
    if name == "lm_head.weight" and network.output_projection is None:
        return "target"
    shared = network.source_embedding is network.target_embedding
    if name == "model.shared.weight" and not shared:
        return "unused"  # Encoder and decoder read their own.
    copies = {
        "model.shared.weight": "source",
        "model.encoder.embed_tokens.weight": "source",
        "model.decoder.embed_tokens.weight": "target",
    }
    return copies.get(name) if shared else None


def _check_copy(weights, name, kind, model, where, settings):
    """Makes sure that a tensor is the copy that it should be: tied tables are equal, and fixed
    positions as computed.
    """
    network, shape = model.network, weights.shapes[name]
    embedding = network.source_embedding if kind == "source" else network.target_embedding
    if kind == "positions":
        # The row before the first position is the padding's, which is zero.
        rows, first = next(iter(shape), 0), embedding.position_offset
        layout = embedding.position_encoding.removeprefix("sinusoidal_")
    else:
        table = ops.convert_to_numpy(ops.cast(embedding.embeddings, "float32"))
        rows, first = len(table), 0

    def is_equal(array, start):
        stop = min(start + _ROWS, rows)
        if kind == "positions":
            positions = np.arange(start, stop, dtype="int32")
            vectors = sinusoidal_positions(positions, embedding.hidden_dim, layout=layout)
            ours, atol = ops.convert_to_numpy(vectors), 5e-3  # Half precision is coarse.
        else:
            ours, atol = table[start:stop], 1e-6
        return np.allclose(array[start:stop].astype("float32"), ours, atol=atol, rtol=1e-2)

    is_copy = shape == (rows, embedding.hidden_dim)
    array = weights.read(name) if is_copy else None
    if not is_copy or not all(is_equal(array, start) for start in range(first, rows, _ROWS)):
        raise ValueError(
            f"{where}: the tensor {name!r} differs from the weights that {settings} says it "
            "repeats; such a model cannot be imported."
        )


def _checked(array, name, where):
    if array.dtype.name not in ("float64", "float32", "float16", "bfloat16"):
        raise ValueError(
            f"{where}: the tensor {name!r} holds {array.dtype.name} numbers; only float32, "
            "float16 and bfloat16 are read."
        )
    rows = array.reshape(array.shape[0] if array.ndim > 1 else 1, -1)
    for start in range(0, len(rows), _ROWS):
        if not np.isfinite(rows[start : start + _ROWS].astype("float32")).all():
            raise ValueError(f"{where}: the tensor {name!r} holds numbers that are not finite.")
    return array
