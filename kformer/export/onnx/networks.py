"""The two ONNX graphs of a model: the encoder, and one step of the decoder.

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
    attentions = [layer.cross_attention for layer in network.decoder_layers]
    cross = [
        blocks.heads(graph, each, x, each.key_value_kernel, each.key_value_bias, 2)
        for each in attentions
    ]
    shape = ("batch", "source_length", network.source_embedding.hidden_dim)
    graph.output("encoded", x, graph.dtype, shape)
    graph.output("source_mask", mask, "bool", ("batch", "source_length"))
    _output_pairs(graph, "cross", cross, attentions, "source_length")
    return graph


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
    caches = _declare_caches(graph, network.decoder_layers)
    source_mask = graph.input("source_mask", "bool", ("batch", "source_length"))
    keys_mask, attends = blocks.padding(graph, source_mask)
    positions, causal = _positions(graph, ids, caches[0]["past_key"])
    x = blocks.embed(graph, network.target_embedding, network.target_positions, ids, positions)
    factors = blocks.rotary_factors(graph, network.decoder_layers[0].self_attention, positions)
    present = []
    for layer, cache in zip(network.decoder_layers, caches, strict=True):

        def self_attention(x, attention=layer.self_attention, cache=cache):
            query, key, value = blocks.rotated_heads(graph, attention, x, factors)
            key = graph("Concat", cache["past_key"], key, axis=2)
            value = graph("Concat", cache["past_value"], value, axis=2)
            present.append((key, value))
            # Every query attends to itself, so no row is empty.
            return blocks.attend(graph, attention, query, key, value, causal)

        def cross_attention(x, attention=layer.cross_attention, cache=cache):
            weights = attention.query_kernel, attention.query_bias
            query = blocks.heads(graph, attention, x, *weights, 1)
            pair = cache["cross_key"], cache["cross_value"]
            return blocks.attend(graph, attention, query, *pair, keys_mask, attends)

        x = blocks.residual(graph, layer, layer.self_attention_norm, x, self_attention)
        x = blocks.residual(graph, layer, layer.cross_attention_norm, x, cross_attention)
        x = blocks.feed_forward(graph, layer, x)
    x = x if network.decoder.norm is None else blocks.layer_norm(graph, network.decoder.norm, x)
    shape = ("batch", "target_length", network.target_embedding.vocabulary_size)
    graph.output("logits", blocks.project_output(graph, network, x, ids), "float32", shape)
    attentions = [layer.self_attention for layer in network.decoder_layers]
    _output_pairs(graph, "present", present, attentions, "past_length + target_length")
    return graph


def _positions(graph, ids, past_key):
    """Positions `[T]` of the new tokens, and the causal mask `[T, P + T]`."""
    first = graph.size(past_key, 2)
    end, one = graph("Add", first, graph.size(ids, 1)), graph.constant(1, "int64")
    positions = graph("Range", first, end, one)
    key_positions = graph("Range", graph.constant(0, "int64"), end, one)
    return positions, graph("LessOrEqual", key_positions, graph.expand_dims(positions, [1]))


def _declare_caches(graph, decoder_layers):
    """The inputs that hold keys and values: for each layer a dict, by the name without the layer's
    number.
    """
    caches = [{} for _ in decoder_layers]
    for prefix, length in (("past", "past_length"), ("cross", "source_length")):
        for i, layer in enumerate(decoder_layers):
            shape = _cache_shape(layer.self_attention, length)
            for name in (f"{prefix}_key", f"{prefix}_value"):
                caches[i][name] = graph.input(f"{name}_{i}", graph.dtype, shape)
    return caches


def _output_pairs(graph, prefix, pairs, attentions, length):
    """Makes the keys and values of every layer outputs."""
    for i, (attention, pair) in enumerate(zip(attentions, pairs, strict=True)):
        for name, value in zip(("key", "value"), pair, strict=True):
            shape = _cache_shape(attention, length)
            graph.output(f"{prefix}_{name}_{i}", value, graph.dtype, shape)


def _cache_shape(attention, length):
    return ("batch", attention.num_heads, length, attention.head_size)
