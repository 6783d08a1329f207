"""The weights of a `Transformer` as the fast decoder uses them, bound by a `FastOps`."""

import math
from typing import Any, NamedTuple

from kformer.layers import SSRU


class Linear(NamedTuple):
    """`x W + b`."""

    kernel: Any
    bias: Any


class Norm(NamedTuple):
    """Layer norm."""

    gamma: Any
    beta: Any
    epsilon: float


class Attention(NamedTuple):
    """The weights of an attention."""

    normalize_first: bool
    norm: Norm
    inputs: Linear  # of queries, keys and values; in a cross-attention of the queries alone
    output: Linear
    source: Any = None  # Linear, of a cross-attention's keys and values
    relative: Any = None  # the bound tables of relative positions, of keys and of values


class Cell(NamedTuple):
    """The weights of an SSRU."""

    normalize_first: bool
    norm: Norm
    inputs: Linear  # of cell and forget gate, without a bias
    forget_bias: Any


class FeedForwardWeights(NamedTuple):
    """The weights of a feed-forward network."""

    normalize_first: bool
    norm: Norm
    intermediate: Linear
    output: Linear
    activation: str


class LayerWeights(NamedTuple):
    """The weights of an encoder or decoder layer."""

    self_attention: Any  # Attention, or the Cell in its place
    feed_forward: FeedForwardWeights
    cross_attention: Any = None  # Attention, in a decoder


class Embeddings(NamedTuple):
    """The weights of a side's embeddings."""

    table: Any  # what `bind_table` returns
    scale: Any  # float, or `None`
    norm: Any  # Norm, or `None`


class Weights(NamedTuple):
    """All weights of a network. A norm that the network lacks is `None`."""

    encoder: list  # of LayerWeights
    decoder: list  # of LayerWeights
    encoder_norm: Any  # Norm, after the last layer
    decoder_norm: Any
    source: Embeddings
    target: Embeddings
    projection: Any  # what `bind_projection` returns
    output_bias: Any  # [V], or [C] with a shortlist, or `None`


def bind_weights(network, fast, shortlist=None):
    """`Weights` of a network.

    Args:
        network: `kformer.models.network.Network`.
        fast: `FastOps`.
        shortlist: int array `[C]`, default `None`. The tokens whose logits are computed.
    """
    projection, bias = network.output_projection, network.output_bias
    table = network.target_embedding.embeddings
    is_table = projection is None
    output_bias = None if bias is None else fast.bind(bias.bias)
    if shortlist is not None and output_bias is not None:
        output_bias = fast.gather(output_bias, shortlist)
    source_kernels = [layer.cross_attention.key_value_kernel for layer in network.decoder_layers]
    source_factors = _smoothing(network.encoder.norm, source_kernels, fast)
    output_factors = None  # A table is not smoothed: it also holds the embeddings.
    if not is_table:
        output_factors = _smoothing(network.decoder.norm, [projection.kernel], fast)
    return Weights(
        encoder=[_layer(layer, fast) for layer in network.encoder_layers],
        decoder=[_layer(layer, fast, source_factors) for layer in network.decoder_layers],
        encoder_norm=_norm(network.encoder.norm, fast, source_factors),
        decoder_norm=_norm(network.decoder.norm, fast, output_factors),
        source=_embeddings(network.source_embedding, network.source_positions, fast),
        target=_embeddings(network.target_embedding, network.target_positions, fast),
        projection=fast.bind_projection(
            table if is_table else projection.kernel, is_table, shortlist, output_factors
        ),
        output_bias=output_bias,
    )


def _embeddings(embedding, positions, fast):
    scale = math.sqrt(embedding.hidden_dim) if embedding.scale else None
    norm = positions and _norm(positions.norm, fast)
    return Embeddings(fast.bind_table(embedding.embeddings), scale, norm)


def _linear(kernel, bias, fast, factors=None):
    return Linear(fast.bind_kernel(kernel, factors), None if bias is None else fast.bind(bias))


def _norm(norm, fast, factors=None):
    if norm is None:
        return None
    return Norm(fast.bind(norm.gamma, factors), fast.bind(norm.beta, factors), norm.epsilon)


def _smoothing(norm, kernels, fast):
    return None if norm is None else fast.smoothing(norm, kernels)


def _layer(layer, fast, source_factors=None):
    def norm_and_inputs(norm, kernel, bias):
        # A norm after the sub-layer also feeds the residual connection, which must stay as it is.
        factors = _smoothing(norm, [kernel], fast) if layer.normalize_first else None
        norm = _norm(norm, fast, factors)
        return layer.normalize_first, norm, _linear(kernel, bias, fast, factors)

    attention, cross = layer.self_attention, getattr(layer, "cross_attention", None)
    if isinstance(attention, SSRU):
        inputs = norm_and_inputs(layer.self_attention_norm, attention.cell_forget_kernel, None)
        bias = attention.forget_bias
        self_attention = Cell(*inputs, None if bias is None else fast.bind(bias))
    else:
        inputs = attention.query_key_value_kernel, attention.query_key_value_bias
        output = _linear(attention.output_kernel, attention.output_bias, fast)
        relative = None
        if attention.relative_positions is not None:
            relative = fast.bind(attention.relative_keys), fast.bind(attention.relative_values)
        norm_and_linear = norm_and_inputs(layer.self_attention_norm, *inputs)
        self_attention = Attention(*norm_and_linear, output, relative=relative)
    cross_attention = cross and Attention(
        *norm_and_inputs(layer.cross_attention_norm, cross.query_kernel, cross.query_bias),
        source=_linear(cross.key_value_kernel, cross.key_value_bias, fast, source_factors),
        output=_linear(cross.output_kernel, cross.output_bias, fast),
    )
    inner, outer = layer.feed_forward.intermediate, layer.feed_forward.output_projection
    feed_forward = FeedForwardWeights(
        *norm_and_inputs(layer.feed_forward_norm, inner.kernel, inner.bias),
        _linear(outer.kernel, outer.bias, fast),
        layer.feed_forward.activation,
    )
    return LayerWeights(self_attention, feed_forward, cross_attention)
