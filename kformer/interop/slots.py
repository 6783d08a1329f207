"""Which published tensor is which of our weights: one table, for imports and exports."""

from typing import Any, NamedTuple

import numpy as np

from kformer.interop.architectures import UNUSED_POSITIONS


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
        if positions is not None:
            if positions.position_encoding == "learned":
                yield Slot(
                    positions.position_embeddings,
                    (f"model.{side}.embed_positions.weight",),
                    skipped_rows=UNUSED_POSITIONS,
                    residual_axes=(1,),
                )
            yield from _norm(positions.norm, f"model.{side}.layernorm_embedding")
        for index, layer in enumerate(layers):
            yield from _layer(layer, f"model.{side}.layers.{index}")
        if final_norm is not None:
            yield from _norm(final_norm, f"model.{side}.layer_norm")
    if network.output_projection is not None:
        yield _matrix(network.output_projection.kernel, "lm_head", residual_axes=(0,))
    if network.output_bias is not None:
        yield Slot(network.output_bias.bias, ("final_logits_bias",), is_row=True)


def _layer(layer, prefix):
    attention, name = layer.self_attention, f"{prefix}.self_attn"
    yield from _linear_in(
        attention.query_key_value_kernel,
        attention.query_key_value_bias,
        *(f"{name}.{letter}_proj" for letter in "qkv"),
    )
    yield from _linear_out(attention.output_kernel, attention.output_bias, f"{name}.out_proj")
    yield from _norm(layer.self_attention_norm, f"{name}_layer_norm")
    if hasattr(layer, "cross_attention"):
        attention, name = layer.cross_attention, f"{prefix}.encoder_attn"
        yield from _linear_in(attention.query_kernel, attention.query_bias, f"{name}.q_proj")
        yield from _linear_in(
            attention.key_value_kernel,
            attention.key_value_bias,
            *(f"{name}.{letter}_proj" for letter in "kv"),
        )
        yield from _linear_out(attention.output_kernel, attention.output_bias, f"{name}.out_proj")
        yield from _norm(layer.cross_attention_norm, f"{name}_layer_norm")
    inner, outer = layer.feed_forward.intermediate, layer.feed_forward.output_projection
    yield from _linear_in(inner.kernel, inner.bias, f"{prefix}.fc1")
    yield from _linear_out(outer.kernel, outer.bias, f"{prefix}.fc2")
    yield from _norm(layer.feed_forward_norm, f"{prefix}.final_layer_norm")


def _t5_slots(network):
    yield Slot(network.source_embedding.embeddings, ("shared.weight",))
    for side, stack in (("encoder", network.encoder), ("decoder", network.decoder)):
        for index, layer in enumerate(stack.layers):
            prefix = f"{side}.block.{index}.layer"
            attention, name = layer.self_attention, f"{prefix}.0.SelfAttention"
            yield _matrix(
                attention.query_key_value_kernel, *(f"{name}.{letter}" for letter in "qkv")
            )
            yield _matrix(attention.output_kernel, f"{name}.o")
            norms = [layer.self_attention_norm]
            if side == "decoder":
                attention, name = layer.cross_attention, f"{prefix}.1.EncDecAttention"
                yield _matrix(attention.query_kernel, f"{name}.q")
                yield _matrix(attention.key_value_kernel, f"{name}.k", f"{name}.v")
                yield _matrix(attention.output_kernel, f"{name}.o")
                norms.append(layer.cross_attention_norm)
            dense, name = layer.feed_forward, f"{prefix}.{len(norms)}.DenseReluDense"
            if dense.gated:
                yield _matrix(dense.gate.kernel, f"{name}.wi_0")
            inner = f"{name}.wi_1" if dense.gated else f"{name}.wi"
            yield _matrix(dense.intermediate.kernel, inner)
            yield _matrix(dense.output_projection.kernel, f"{name}.wo")
            norms.append(layer.feed_forward_norm)
            for number, norm in enumerate(norms):
                yield Slot(norm.scale, (f"{prefix}.{number}.layer_norm.weight",))
        # The first layer stores it for all layers.
        yield Slot(
            stack.relative_bias.table,
            (f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",),
        )
        yield Slot(stack.norm.scale, (f"{side}.final_layer_norm.weight",))
    if network.output_projection is not None:
        yield _matrix(network.output_projection.kernel, "lm_head")


def _matrix(kernel, *names, residual_axes=()):
    """The slot of linear layers, joined."""
    weights = tuple(f"{name}.weight" for name in names)
    return Slot(kernel, weights, transposed=True, residual_axes=residual_axes)


def _linear_in(kernel, bias, *names):
    """Linear layers that read the residual stream, joined."""
    yield _matrix(kernel, *names, residual_axes=(0,))
    yield Slot(bias, tuple(f"{name}.bias" for name in names))


def _linear_out(kernel, bias, name):
    """A linear layer that writes to the residual stream."""
    yield _matrix(kernel, name, residual_axes=(1,))
    yield Slot(bias, (f"{name}.bias",), residual_axes=(0,))


def _norm(norm, name):
    yield Slot(norm.gamma, (f"{name}.weight",), residual_axes=(0,))
    yield Slot(norm.beta, (f"{name}.bias",), residual_axes=(0,))
