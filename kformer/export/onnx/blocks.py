"""What the layers compute, as nodes of an ONNX graph: one function for each.

`graph` is a `kformer.export.onnx.graph.Graph` everywhere; values of it are named by strings.

Shape letters: B batch, T new tokens, S source tokens, K keys, N heads, H head size, D hidden size,
V vocabulary."""

import math

import numpy as np

from kformer.layers.feed_forward import GELU_FACTOR
from kformer.layers.full_attention import MASKED
from kformer.layers.relative_positions import rotary_frequencies


def padding(graph, mask):
    """A padding mask `[B, S]` as a mask over keys `[B, 1, 1, S]`, and whether there is a key at
    all, `[B, 1, 1, 1]` with 1 or 0.
    """
    mask = graph.expand_dims(mask, [1, 2])
    attends = graph("ReduceMax", graph.cast(mask, "float32"), axes=[-1], keepdims=1)
    return mask, graph.cast(attends, graph.dtype, "float32")


# ---- embeddings and positions ----


def embed(graph, embedding, normalized_positions, ids, positions):
    """Token vectors of ids `[B, T]` with the vectors of positions `[T]`: `[B, T, D]`."""
    x = graph("Gather", graph.weight(embedding.embeddings), ids, axis=0)
    if embedding.scale:
        x = graph("Mul", x, graph.constant(math.sqrt(embedding.hidden_dim), graph.dtype))
    # Either the embedding adds positions, or the layer after it.
    layer = embedding if normalized_positions is None else normalized_positions
    if layer.position_encoding is not None:
        x = graph("Add", x, _position_vectors(graph, layer, positions, embedding.hidden_dim))
    return x if normalized_positions is None else layer_norm(graph, normalized_positions.norm, x)


def _position_vectors(graph, layer, positions, hidden_dim):
    if layer.position_offset:
        positions = graph("Add", positions, graph.constant(layer.position_offset, "int64"))
    if layer.position_encoding == "learned":
        return graph("Gather", graph.weight(layer.position_embeddings), positions, axis=0)
    vectors = _sinusoids(graph, layer.position_encoding, positions, hidden_dim)
    return graph.cast(vectors, graph.dtype, "float32")


def _sinusoids(graph, position_encoding, positions, hidden_dim):
    """What `kformer.layers.sinusoidal_positions` computes: float32 `[T, D]`."""
    if position_encoding == "sinusoidal_fairseq":
        exponents = np.arange(hidden_dim // 2) / max(hidden_dim // 2 - 1, 1)
    else:
        exponents = np.arange(0, hidden_dim, 2) / hidden_dim
    angles = graph.expand_dims(graph.cast(positions, "float32"), [1])
    angles = graph("Mul", angles, graph.constant(10000.0**-exponents, "float32"))
    waves = graph("Sin", angles), graph("Cos", angles)
    if position_encoding == "sinusoidal":
        pairs = graph("Concat", *(graph.expand_dims(wave, [2]) for wave in waves), axis=2)
        vectors = graph.reshape(pairs, [-1, 2 * len(exponents)])  # pairs: [T, ceil(D / 2), 2]
    else:
        vectors = graph("Concat", *waves, axis=1)
    # An odd D drops the last cosine or, in fairseq's layout, ends with 0.
    missing = hidden_dim - 2 * len(exponents)
    if missing > 0:
        return graph("Pad", vectors, graph.constant([0, 0, 0, missing], "int64"))
    if missing < 0:
        bounds = (graph.constant([value], "int64") for value in (0, hidden_dim, 1))
        return graph("Slice", vectors, *bounds)
    return vectors


def rotary_factors(graph, attention, positions):
    """What `kformer.layers.relative_positions.rotary_factors` computes: two float32 `[T, H]`;
    `None` without rotary positions.
    """
    if attention.rotary is None:
        return None
    frequencies = rotary_frequencies(attention.head_size, attention.rotary["base"])
    # Each angle twice, once for each number of its pair.
    is_interleaved = attention.rotary["interleaved"]
    frequencies, signs = (
        np.repeat(tensor, 2) if is_interleaved else np.tile(tensor, 2)
        for tensor in (frequencies, np.ones_like(frequencies))
    )
    signs[slice(0, None, 2) if is_interleaved else slice(0, len(signs) // 2)] = -1
    angles = graph.expand_dims(graph.cast(positions, "float32"), [1])
    angles = graph("Mul", angles, graph.constant(frequencies, "float32"))
    cosines, sines = graph("Cos", angles), graph("Sin", angles)
    return cosines, graph("Mul", sines, graph.constant(signs, "float32"))


def rotate(graph, attention, x, factors):
    """Queries or keys `[B, N, T, H]`, rotated by their positions."""
    x = graph.cast(x, "float32", graph.dtype)
    size, is_interleaved = attention.head_size, attention.rotary["interleaved"]
    pairs = graph.reshape(x, [0, 0, 0, size // 2, 2]) if is_interleaved else x
    first, second = graph("Split", pairs, outputs=2, axis=-1)
    swapped = graph("Concat", second, first, axis=-1)
    swapped = graph.reshape(swapped, [0, 0, 0, size]) if is_interleaved else swapped
    rotated = graph("Add", graph("Mul", x, factors[0]), graph("Mul", swapped, factors[1]))
    return graph.cast(rotated, graph.dtype, "float32")


# ---- sub-layers ----


def layer_norm(graph, norm, x):
    """A `LayerNormalization`; its statistics are float32 for every dtype (stash_type)."""
    weights = graph.weight(norm.gamma), graph.weight(norm.beta)
    options = {"axis": -1, "epsilon": norm.epsilon, "stash_type": 1}
    return graph("LayerNormalization", x, *weights, **options)


def residual(graph, layer, norm, x, sublayer):
    """A sub-layer with residual connection and norm, as `ResidualLayer` has it."""
    x = graph("Add", x, sublayer(layer_norm(graph, norm, x) if layer.normalize_first else x))
    return x if layer.normalize_first else layer_norm(graph, norm, x)


def feed_forward(graph, layer, x):
    """The feed-forward sub-layer of an encoder or decoder layer."""
    inner, outer = layer.feed_forward.intermediate, layer.feed_forward.output_projection

    def sublayer(x):
        x = _linear(graph, x, inner.kernel, inner.bias)
        x = _activate(graph, layer.feed_forward.activation, x)
        return _linear(graph, x, outer.kernel, outer.bias)

    return residual(graph, layer, layer.feed_forward_norm, x, sublayer)


def _linear(graph, x, kernel, bias):
    x = graph("MatMul", x, graph.weight(kernel))
    return x if bias is None else graph("Add", x, graph.weight(bias))


def _activate(graph, activation, x):
    if activation == "relu":
        return graph("Relu", x)
    if activation in ("silu", "gelu_sigmoid"):
        factor = graph.constant(GELU_FACTOR, graph.dtype)
        scaled = x if activation == "silu" else graph("Mul", x, factor)
        return graph("Mul", x, graph("Sigmoid", scaled))
    # "gelu": x / 2 * (1 + erf(x / sqrt(2))), in the order of nodes that runtimes recognise.
    half, one, root = (graph.constant(value, graph.dtype) for value in (0.5, 1.0, math.sqrt(2)))
    erf = graph("Erf", graph("Div", x, root))
    return graph("Mul", graph("Mul", x, graph("Add", erf, one)), half)


# ---- the recurrent cell ----


def ssru(graph, cell, x, state):
    """The output `[B, T, D]` of an `SSRU` from its float32 state `[B, D]` on, and the new state."""
    projected = graph("MatMul", x, graph.weight(cell.cell_forget_kernel))
    update, gate = graph("Split", projected, outputs=2, axis=-1)
    if cell.forget_bias is not None:
        gate = graph("Add", gate, graph.weight(cell.forget_bias))
    update, gate = (graph.cast(each, "float32", graph.dtype) for each in (update, gate))
    forget = graph("Sigmoid", gate)
    update = graph("Sub", update, graph("Mul", forget, update))
    state, states = graph.recurrence(state, forget, update)
    return graph("Relu", graph.cast(states, graph.dtype, "float32")), state


# ---- attention ----


def heads(graph, attention, x, kernel, bias, count):
    """Projects `[B, T, D]` to a list of `count` tensors `[B, N, T, H]`."""
    x = _linear(graph, x, kernel, bias)
    tensors = [x] if count == 1 else graph("Split", x, outputs=count, axis=-1)
    shape = [0, 0, attention.num_heads, attention.head_size]
    return [graph("Transpose", graph.reshape(x, shape), perm=[0, 2, 1, 3]) for x in tensors]


def rotated_heads(graph, attention, x, factors):
    """Queries, keys and values `[B, N, T, H]` of self-attention, the first two rotated."""
    weights = attention.query_key_value_kernel, attention.query_key_value_bias
    query, key, value = heads(graph, attention, x, *weights, 3)
    if factors is not None:
        query, key = (rotate(graph, attention, each, factors) for each in (query, key))
    return query, key, value


def attend(graph, attention, query, key, value, mask, attends=None):
    """Attention over split heads, joined and projected: `[B, T, D]`.

    `mask` is broadcastable to `[B, N, T, K]`, or `None` where every key counts. `attends` is 0 for
    a row that the mask leaves no key, so that its context is zeros, and else 1; `None` where there
    is no such row."""
    query, key = (graph.cast(x, "float32", graph.dtype) for x in (query, key))
    query = graph("Mul", query, graph.constant(attention.head_size**-0.5, "float32"))
    scores = graph("MatMul", query, graph("Transpose", key, perm=[0, 1, 3, 2]))  # [B, N, T, K]
    if mask is not None:
        scores = graph("Where", mask, scores, graph.constant(MASKED, "float32"))
    weights = graph.cast(graph("Softmax", scores, axis=-1), graph.dtype, "float32")
    context = graph("MatMul", weights, value)
    if attends is not None:
        context = graph("Mul", context, attends)
    context = graph("Transpose", context, perm=[0, 2, 1, 3])  # [B, T, N, H]
    context = graph.reshape(context, [0, 0, attention.num_heads * attention.head_size])
    return _linear(graph, context, attention.output_kernel, attention.output_bias)


def project_output(graph, network, x, ids, tokens=None):
    """Logits, float32 `[B, T, V]`, for ids `[B, T]`; or those of some tokens alone, `[B, T, C]`.

    They are a Gemm on a matrix, which reads the embedding's table as it is stored, without a
    transposed copy.

    Args:
        tokens: integer array or value `[C]`, default `None`, for all."""
    is_shared = network.output_projection is None
    table = network.target_embedding.embeddings if is_shared else network.output_projection.kernel
    table = graph.weight(table)
    bias = [] if network.output_bias is None else [graph.weight(network.output_bias.bias)]
    if tokens is not None:
        columns = tokens if isinstance(tokens, str) else graph.constant(tokens, "int64")
        # What does not change from call to call, a runtime computes when it loads the graph.
        table = graph.root("Gather", table, columns, axis=int(not is_shared))
        bias = [graph.root("Gather", each, columns, axis=0) for each in bias]
    x = graph.reshape(x, [-1, network.target_embedding.hidden_dim])
    logits = graph("Gemm", x, table, *bias, transB=int(is_shared))
    shape = graph("Concat", graph("Shape", ids), graph.constant([-1], "int64"), axis=0)
    return graph.cast(graph("Reshape", logits, shape), "float32", graph.dtype)
