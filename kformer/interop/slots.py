"""Which published tensor is which of our weights: one table, for imports and exports."""

from typing import Any, NamedTuple

import keras
import numpy as np

from kformer.interop.architectures import UNUSED_POSITIONS
from kformer.layers import SSRU

# The names of the projections of queries, keys, values and outputs.
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
_T5_PROJECTIONS = ("q", "k", "v", "o")


class Slot(NamedTuple):
    """One of our weights and the published tensors that it is made of.

    Args:
        variable: Keras variable.
        names: tuple of str. The tensors' names, several where ours joins them along its last axis
            (queries, keys and values).
        transposed: bool, default `False`. Whether they are stored `[outputs, inputs]`, as PyTorch's
            linear layers are.
        skipped_rows: int, default 0. Rows at the beginning of the published tensor that ours does
            not have.
        is_row: bool, default `False`. Whether a vector is stored as a matrix with one row.
        residual_axes: tuple of int, default empty. Axes of our weight that are dimensions of the
            residual stream.
    """

    variable: Any
    names: tuple
    transposed: bool = False
    skipped_rows: int = 0
    is_row: bool = False
    residual_axes: tuple = ()

    def stored_shape(self):
        """The shape of each published tensor."""
        shape = tuple(self.variable.shape)
        shape = (*shape[:-1], shape[-1] // len(self.names))
        if self.transposed:
            return shape[::-1]
        if self.is_row:
            return (1, *shape)
        return (shape[0] + self.skipped_rows, *shape[1:])

    def join(self, tensors):
        """The array for our variable, from the published tensors."""
        if self.transposed:
            tensors = [tensor.T for tensor in tensors]
        joined = tensors[0] if len(tensors) == 1 else np.concatenate(tensors, axis=-1)
        return joined[0] if self.is_row else joined[self.skipped_rows :]

    def split(self, array):
        """The published tensors, from our variable's array; rows that it lacks are zeros."""
        if self.is_row:
            return [array[None]]
        if self.skipped_rows:
            zeros = np.zeros((self.skipped_rows, *array.shape[1:]), array.dtype)
            array = np.concatenate([zeros, array])
        tensors = np.split(array, len(self.names), axis=-1)
        return [np.ascontiguousarray(one.T if self.transposed else one) for one in tensors]


def slots(model):
    """The slots of a model.

    Args:
        model: `kformer.Transformer` of one of the published architectures.

    Returns:
        Generator of `Slot`.
    """
    network = model.network
    if network.encoder.relative_bias is not None:
        yield from _t5_slots(network)
        return
    tables = {"model.shared": network.source_embedding}
    if network.source_embedding is not network.target_embedding:
        tables = {
            "model.encoder.embed_tokens": network.source_embedding,
            "model.decoder.embed_tokens": network.target_embedding,
        }
    for name, embedding in tables.items():
        yield Slot(embedding.embeddings, (f"{name}.weight",), residual_axes=(1,))
    sides = (
        ("encoder", network.source_positions, network.encoder_layers, network.encoder.norm),
        ("decoder", network.target_positions, network.decoder_layers, network.decoder.norm),
    )
    for side, positions, layers, final_norm in sides:
        embedding = network.source_embedding if side == "encoder" else network.target_embedding
        is_first = len(tables) == 2 or side == "encoder"  # A shared table has one for both sides.
        if is_first and embedding.position_encoding == "learned":
            yield _position_table(embedding, side)
        if positions is not None:
            if positions.position_encoding == "learned":
                yield _position_table(positions, side)
            yield from _norm(positions.norm, f"model.{side}.layernorm_embedding")
        for index, layer in enumerate(layers):
            yield from _layer(layer, f"model.{side}.layers.{index}")
        if final_norm is not None:
            yield from _norm(final_norm, f"model.{side}.layer_norm")
    if network.output_projection is not None:
        yield _matrix(network.output_projection.kernel, "lm_head", residual_axes=(0,))
    if network.output_bias is not None:
        yield Slot(network.output_bias.bias, ("final_logits_bias",), is_row=True)


def _position_table(layer, side):
    return Slot(
        layer.position_embeddings,
        (f"model.{side}.embed_positions.weight",),
        skipped_rows=UNUSED_POSITIONS,
        residual_axes=(1,),
    )


def _layer(layer, prefix):
    for name, attention, norm in _attentions(layer, "self_attn", "encoder_attn"):
        if isinstance(attention, SSRU):
            name = "ssru"
            yield from _ssru(attention, f"{prefix}.{name}")
        else:
            yield from _attention(attention, f"{prefix}.{name}", _PROJECTIONS)
        yield from _norm(norm, f"{prefix}.{name}_layer_norm")
    inner, outer = layer.feed_forward.intermediate, layer.feed_forward.output_projection
    if layer.feed_forward.gated:
        gate = layer.feed_forward.gate
        yield from _linear_in(gate.kernel, gate.bias, f"{prefix}.gate")
    yield from _linear_in(inner.kernel, inner.bias, f"{prefix}.fc1")
    yield from _linear_out(outer.kernel, outer.bias, f"{prefix}.fc2")
    yield from _norm(layer.feed_forward_norm, f"{prefix}.final_layer_norm")


def _t5_slots(network):
    yield Slot(network.source_embedding.embeddings, ("shared.weight",))
    for side, stack in (("encoder", network.encoder), ("decoder", network.decoder)):
        for index, layer in enumerate(stack.layers):
            prefix = f"{side}.block.{index}.layer"
            attentions = [*_attentions(layer, "SelfAttention", "EncDecAttention")]
            for number, (name, attention, norm) in enumerate(attentions):
                yield from _attention(attention, f"{prefix}.{number}.{name}", _T5_PROJECTIONS)
                yield Slot(norm.scale, (f"{prefix}.{number}.layer_norm.weight",))
            dense, prefix = layer.feed_forward, f"{prefix}.{len(attentions)}"
            if dense.gated:
                yield _matrix(dense.gate.kernel, f"{prefix}.DenseReluDense.wi_0")
            name = "wi_1" if dense.gated else "wi"
            yield _matrix(dense.intermediate.kernel, f"{prefix}.DenseReluDense.{name}")
            yield _matrix(dense.output_projection.kernel, f"{prefix}.DenseReluDense.wo")
            yield Slot(layer.feed_forward_norm.scale, (f"{prefix}.layer_norm.weight",))
        # The first layer stores it for all layers.
        name = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        yield Slot(stack.relative_bias.table, (name,))
        yield Slot(stack.norm.scale, (f"{side}.final_layer_norm.weight",))
    if network.output_projection is not None:
        yield _matrix(network.output_projection.kernel, "lm_head")


def _attentions(layer, self_name, cross_name):
    """Name, layer and norm of self-attention, and of the cross-attention that a decoder has."""
    yield self_name, layer.self_attention, layer.self_attention_norm
    if hasattr(layer, "cross_attention"):
        yield cross_name, layer.cross_attention, layer.cross_attention_norm


def _attention(attention, prefix, projections):
    """The projections of an attention layer, named as those of queries, keys, values, outputs."""
    query, key, value, output = (f"{prefix}.{name}" for name in projections)
    if attention.is_self_attention:
        weights = attention.query_key_value_kernel, attention.query_key_value_bias
        yield from _linear_in(*weights, query, key, value)
    else:
        yield from _linear_in(attention.query_kernel, attention.query_bias, query)
        yield from _linear_in(attention.key_value_kernel, attention.key_value_bias, key, value)
    yield from _linear_out(attention.output_kernel, attention.output_bias, output)
    if attention.relative_positions is not None:
        yield Slot(attention.relative_keys, (f"{prefix}.relative_keys.weight",))
        if not attention.relative_positions["shared"]:
            yield Slot(attention.relative_values, (f"{prefix}.relative_values.weight",))


def _ssru(cell, prefix):
    """The matrices of an SSRU and the bias of its forget gate: W, Wf and bf in Marian's files."""
    yield _matrix(cell.cell_forget_kernel, f"{prefix}.cell", f"{prefix}.forget", residual_axes=(0,))
    if cell.forget_bias is not None:
        yield Slot(cell.forget_bias, (f"{prefix}.forget.bias",))


def _matrix(kernel, *names, residual_axes=()):
    """The slot of linear layers, joined."""
    weights = tuple(f"{name}.weight" for name in names)
    return Slot(kernel, weights, transposed=True, residual_axes=residual_axes)


def _linear_in(kernel, bias, *names):
    """Linear layers that read the residual stream, joined."""
    yield _matrix(kernel, *names, residual_axes=(0,))
    if bias is not None:
        yield Slot(bias, tuple(f"{name}.bias" for name in names))


def _linear_out(kernel, bias, name):
    """A linear layer that writes to the residual stream."""
    yield _matrix(kernel, name, residual_axes=(1,))
    if bias is not None:
        yield Slot(bias, (f"{name}.bias",), residual_axes=(0,))


def _norm(norm, name):
    if isinstance(norm, keras.layers.RMSNormalization):
        yield Slot(norm.scale, (f"{name}.weight",), residual_axes=(0,))
        return
    yield Slot(norm.gamma, (f"{name}.weight",), residual_axes=(0,))
    yield Slot(norm.beta, (f"{name}.bias",), residual_axes=(0,))
