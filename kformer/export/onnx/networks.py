"""Two ONNX graphs of a model: the encoder, and one step of the decoder.

Shape letters: B batch, T new target tokens, S source tokens, P target tokens so far, N heads, H
head size, D hidden size."""

from kformer.export.onnx import blocks
from kformer.export.onnx.graph import Graph


def build_encoder(network, weights):
    """The graph of `Network.encode` and of the cross-attention's keys and values.

    Args:
        network: `kformer.models.network.Network` of an exact `Transformer`.
        weights: `WeightStore`.

    Returns:
        `Graph`.
    """
    graph = Graph("encoder", weights)
    ids = graph.input("source_ids", "int64", ("batch", "source_length"))
    x, mask, cross = encode(graph, network, ids)
    shape = ("batch", "source_length", network.source_embedding.hidden_dim)
    graph.output("encoded", x, graph.dtype, shape)
    graph.output("source_mask", mask, "bool", ("batch", "source_length"))
    caches = _caches("cross", network.decoder_layers, "source_length")
    for (name, shape), value in zip(caches, cross, strict=True):
        graph.output(name, value, graph.dtype, shape)
    return graph


def encode(graph, network, ids):
    """The encoder's output `[B, S, D]`, the mask of real tokens `[B, S]`, and the list of keys and
    values `[B, N, S, H]` of each decoder layer's cross-attention, for ids `[B, S]`.
    """
    mask = graph("Not", graph("Equal", ids, graph.constant(network.pad_id, "int64")))
    keys_mask, attends = blocks.padding(graph, mask)
    zero, one = graph.constant(0, "int64"), graph.constant(1, "int64")
    positions = graph("Range", zero, graph.size(ids, 1), one)
    x = blocks.embed(graph, network.source_embedding, network.source_positions, ids, positions)
    factors = blocks.rotary_factors(graph, network.encoder_layers[0].self_attention, positions)
    for layer in network.encoder_layers:

        def self_attention(x, attention=layer.self_attention):
            query, key, value = blocks.rotated_heads(graph, attention, x, factors)
            return blocks.attend(graph, attention, query, key, value, keys_mask, attends)

        x = blocks.residual(graph, layer, layer.self_attention_norm, x, self_attention)
        x = blocks.feed_forward(graph, layer, x)
    x = x if network.encoder.norm is None else blocks.layer_norm(graph, network.encoder.norm, x)
    cross = []
    for layer in network.decoder_layers:
        weights = layer.cross_attention.key_value_kernel, layer.cross_attention.key_value_bias
        cross += blocks.heads(graph, layer.cross_attention, x, *weights, 2)
    return x, mask, cross


def build_decoder_step(network, weights):
    """The graph of `Network.decode` with a growing cache, for one or several new tokens.

    Args:
        network: `kformer.models.network.Network` of an exact `Transformer`.
        weights: `WeightStore`.

    Returns:
        `Graph`.
    """
    graph = Graph("decoder_step", weights)
    ids = graph.input("target_ids", "int64", ("batch", "target_length"))
    layers = network.decoder_layers
    if network.is_recurrent:
        hidden_dim = network.target_embedding.hidden_dim
        states = [(f"state_{i}", ("batch", hidden_dim)) for i in range(len(layers))]
        past = [graph.input(f"past_{name}", "float32", shape) for name, shape in states]
        first = graph.input("past_length", "int64", ())
    else:
        caches = _caches("past", layers, "past_length")
        past = [graph.input(name, graph.dtype, shape) for name, shape in caches]
        first = graph.size(past[0], 2)
    caches = _caches("cross", layers, "source_length")
    cross = [graph.input(name, graph.dtype, shape) for name, shape in caches]
    source_mask = graph.input("source_mask", "bool", ("batch", "source_length"))
    # Positions `[T]` of the new tokens, and the causal mask `[T, P + T]`.
    one = graph.constant(1, "int64")
    end = graph("Add", first, graph.size(ids, 1))
    positions = graph("Range", first, end, one)
    key_positions = graph("Range", graph.constant(0, "int64"), end, one)
    causal = graph("LessOrEqual", key_positions, graph.expand_dims(positions, [1]))
    masks = causal, *blocks.padding(graph, source_mask)
    x, present = decode(graph, network, ids, positions, past, cross, masks)
    logits = blocks.project_output(graph, network, x, ids)
    shape = ("batch", "target_length", network.target_embedding.vocabulary_size)
    graph.output("logits", logits, "float32", shape)
    if network.is_recurrent:
        for (name, shape), value in zip(states, present, strict=True):
            graph.output(f"present_{name}", value, "float32", shape)
        graph.output("present_length", end, "int64", ())
        return graph
    caches = _caches("present", layers, "past_length + target_length")
    for (name, shape), value in zip(caches, present, strict=True):
        graph.output(name, value, graph.dtype, shape)
    return graph


def decode(graph, network, ids, positions, past, cross, masks):
    """The decoder's output `[B, T, D]` for new tokens, and its new state.

    Args:
        graph: `Graph`.
        network: `kformer.models.network.Network`.
        ids: value `[B, T]`.
        positions: value `[T]`.
        past: list of values. Keys and values `[B, N, P, H]` of each layer, or its state `[B, D]`.
        cross: list of values. Keys and values `[B, N, S, H]` of each layer.
        masks: tuple of the causal mask (`None` for one new token, which attends to all before it),
            and the two values of `kformer.export.onnx.blocks.padding`.
    """
    causal, keys_mask, attends = masks
    layers = network.decoder_layers
    x = blocks.embed(graph, network.target_embedding, network.target_positions, ids, positions)
    factors = None
    if not network.is_recurrent:
        factors = blocks.rotary_factors(graph, layers[0].self_attention, positions)
    present = []
    for i, layer in enumerate(layers):

        def ssru(x, cell=layer.self_attention, state=past[i]):
            x, state = blocks.ssru(graph, cell, x, state)
            present.append(state)
            return x

        def self_attention(x, attention=layer.self_attention, pair=past[2 * i : 2 * i + 2]):
            query, *new = blocks.rotated_heads(graph, attention, x, factors)
            pair = [graph("Concat", *values, axis=2) for values in zip(pair, new, strict=True)]
            present.extend(pair)
            # Every query attends to itself, so no row is empty.
            return blocks.attend(graph, attention, query, *pair, causal)

        def cross_attention(x, attention=layer.cross_attention, pair=cross[2 * i : 2 * i + 2]):
            weights = attention.query_kernel, attention.query_bias
            (query,) = blocks.heads(graph, attention, x, *weights, 1)
            return blocks.attend(graph, attention, query, *pair, keys_mask, attends)

        own = ssru if network.is_recurrent else self_attention
        x = blocks.residual(graph, layer, layer.self_attention_norm, x, own)
        x = blocks.residual(graph, layer, layer.cross_attention_norm, x, cross_attention)
        x = blocks.feed_forward(graph, layer, x)
    x = x if network.decoder.norm is None else blocks.layer_norm(graph, network.decoder.norm, x)
    return x, present


def _caches(prefix, layers, length):
    """Name and shape of the keys, then of the values, of each layer."""
    return [
        (f"{prefix}_{name}_{i}", ("batch", attention.num_heads, length, attention.head_size))
        # The heads of self-attention are as many and as large.
        for i, attention in enumerate(layer.cross_attention for layer in layers)
        for name in ("key", "value")
    ]
