"""Which models the fast decoder can run, and why it cannot run another."""

import keras

from kformer import layers
from kformer.models import Transformer
from kformer.models.config import variants_of


def why_not_fast(model):
    """Returns why `FastDecoder` cannot run a model.

    It runs a `Transformer` of this package's own layers in float32: the paper's, its published
    descendants, or one with rotary positions or an SSRU. A layer of another class may compute
    anything.

    Args:
        model: a model.

    Returns:
        A string such as `"decoder_layer_1/cross_attention is an OwnAttention"`, or `None` where the
        fast decoder computes what the model computes and the backend gains by it.
    """
    # JAX compiles the layers themselves to the same.
    if keras.backend.backend() == "jax":
        return f"the backend {keras.backend.backend()} compiles the layers themselves"
    if not isinstance(model, Transformer):
        return f"a {type(model).__name__} is not a Transformer"
    for name in ("encode", "init_cache", "decode_step"):
        if getattr(type(model), name) is not getattr(Transformer, name):
            return f"{type(model).__name__} has its own {name}"
    if model.policy_name != "float32":
        return f"the model computes in {model.policy_name}"
    if model.lora is not None:
        return "the model has LoRA adapters"
    variants = variants_of(
        model.config.to_dict(), supported=("rope", "shaw", "ssru", "gelu_sigmoid")
    )
    variants = [variant for variant in variants if variant != "use_bias=False"]
    if variants:
        return f"the model has {', '.join(variants)}"
    return _foreign_layer(model.network)


def _foreign_layer(network):
    """The first layer of a network that is not exactly this package's own, in words, or `None`."""
    for layer, kind in _kinds(network):
        if layer is not None and type(layer) is not kind:
            return f"{layer.path} is of the class {type(layer).__name__}"
    # A quantized or adapted Dense is one of Keras's own, but has more to it than its kernel.
    stacks = (*network.encoder_layers, *network.decoder_layers)
    maps = [dense for layer in stacks for dense in layer.feed_forward.maps().values()]
    for dense in filter(None, (*maps, network.output_projection)):
        if dense.quantization_mode is not None:
            return f"{dense.path} is quantized"
        if dense.lora_enabled:
            return f"{dense.path} has an adapter"
    return None


def _kinds(network):
    """Pairs of a layer, or `None`, and the class that the fast decoder knows in its position."""
    for layer in (*network.encoder_layers, *network.decoder_layers):
        is_decoder = layer in network.decoder_layers
        yield layer, layers.DecoderLayer if is_decoder else layers.EncoderLayer
        is_recurrent = is_decoder and network.is_recurrent
        yield layer.self_attention, layers.SSRU if is_recurrent else layers.MultiHeadAttention
        yield getattr(layer, "cross_attention", None), layers.MultiHeadAttention
        yield layer.feed_forward, layers.FeedForward
    for embedding in (network.source_embedding, network.target_embedding):
        yield embedding, layers.PositionalEmbedding
    for positions in (network.source_positions, network.target_positions):
        yield positions, layers.NormalizedPositions
    yield network.output_bias, layers.OutputBias
    yield network.output_projection, keras.layers.Dense
