"""The weights of a `Transformer` as the fast decoder uses them, bound by a `FastOps`."""

from typing import Any, NamedTuple


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

    inputs: Linear  # of queries, keys and values; in a cross-attention of the queries alone
    source: Any  # Linear, of a cross-attention's keys and values; `None` in a self-attention
    output: Linear
    norm: Norm


class FeedForwardWeights(NamedTuple):
    """The weights of a feed-forward network."""

    intermediate: Linear
    output: Linear
    activation: str
    norm: Norm


class EncoderWeights(NamedTuple):
    """The weights of an encoder layer."""

    self_attention: Attention
    feed_forward: FeedForwardWeights


class DecoderWeights(NamedTuple):
    """The weights of a decoder layer."""

    self_attention: Attention
    cross_attention: Attention
    feed_forward: FeedForwardWeights


class Weights(NamedTuple):
    """All weights of a network. A norm that the network lacks is `None`."""

    encoder: list  # of EncoderWeights
    decoder: list  # of DecoderWeights
    encoder_norm: Any  # Norm, after the last layer
    decoder_norm: Any
    source_norm: Any  # Norm, of the embeddings
    target_norm: Any
    source_table: Any  # what `bind_table` returns
    target_table: Any
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
        encoder=[
            EncoderWeights(
                _attention(layer, layer.self_attention, layer.self_attention_norm, fast),
                _feed_forward(layer, fast),
            )
            for layer in network.encoder_layers
        ],
        decoder=[
            DecoderWeights(
                _attention(layer, layer.self_attention, layer.self_attention_norm, fast),
                _attention(
                    layer, layer.cross_attention, layer.cross_attention_norm, fast, source_factors
                ),
                _feed_forward(layer, fast),
            )
            for layer in network.decoder_layers
        ],
        encoder_norm=_norm(network.encoder.norm, fast, source_factors),
        decoder_norm=_norm(network.decoder.norm, fast, output_factors),
        source_norm=network.source_positions and _norm(network.source_positions.norm, fast),
        target_norm=network.target_positions and _norm(network.target_positions.norm, fast),
        source_table=fast.bind_table(network.source_embedding.embeddings),
        target_table=fast.bind_table(table),
        projection=fast.bind_projection(
            table if is_table else projection.kernel, is_table, shortlist, output_factors
        ),
        output_bias=output_bias,
    )


def _linear(kernel, bias, fast, factors=None):
    return Linear(fast.bind_kernel(kernel, factors), None if bias is None else fast.bind(bias))


def _norm(norm, fast, factors=None):
    if norm is None:
        return None
    return Norm(fast.bind(norm.gamma, factors), fast.bind(norm.beta, factors), norm.epsilon)


def _smoothing(norm, kernels, fast):
    return None if norm is None else fast.smoothing(norm, kernels)


def _norm_and_inputs(layer, norm, kernel, bias, fast):
    """A sub-layer's norm, and the product that reads its input."""
    # A norm after the sub-layer also feeds the residual connection, which must stay as it is.
    factors = _smoothing(norm, [kernel], fast) if layer.normalize_first else None
    return _norm(norm, fast, factors), _linear(kernel, bias, fast, factors)


def _attention(layer, attention, norm, fast, source_factors=None):
    if attention.is_self_attention:
        kernel, bias = attention.query_key_value_kernel, attention.query_key_value_bias
    else:
        kernel, bias = attention.query_kernel, attention.query_bias
    norm, inputs = _norm_and_inputs(layer, norm, kernel, bias, fast)
    source = None
    if not attention.is_self_attention:
        source = _linear(attention.key_value_kernel, attention.key_value_bias, fast, source_factors)
    output = _linear(attention.output_kernel, attention.output_bias, fast)
    return Attention(inputs, source, output, norm)


def _feed_forward(layer, fast):
    inner, outer = layer.feed_forward.intermediate, layer.feed_forward.output_projection
    norm, inputs = _norm_and_inputs(layer, layer.feed_forward_norm, inner.kernel, inner.bias, fast)
    output = _linear(outer.kernel, outer.bias, fast)
    return FeedForwardWeights(inputs, output, layer.feed_forward.activation, norm)
