"""PyTorch's own modules with the weights of our layers, to compare with on every backend.

A test that asks for one is skipped where PyTorch is not installed.
"""

import keras
import numpy as np
import pytest


def to_numpy(x):
    """A tensor or variable of any backend and dtype as a float32 array (booleans stay)."""
    array = np.asarray(keras.ops.convert_to_numpy(x))
    return array if array.dtype == bool else array.astype("float32")


def _copy(pairs):
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        for parameter, array in pairs:
            parameter.copy_(torch.tensor(to_numpy(array)))


def _linear(module, dense):
    return [(module.weight, to_numpy(dense.kernel).T), (module.bias, dense.bias)]


def _norm(module, norm):
    return [(module.weight, norm.gamma), (module.bias, norm.beta)]


def _attention(module, layer):
    if hasattr(layer, "query_key_value_kernel"):
        kernel, bias = to_numpy(layer.query_key_value_kernel), to_numpy(layer.query_key_value_bias)
    else:
        kernel = np.concatenate(
            [to_numpy(layer.query_kernel), to_numpy(layer.key_value_kernel)], axis=1
        )
        bias = np.concatenate([to_numpy(layer.query_bias), to_numpy(layer.key_value_bias)])
    return [
        (module.in_proj_weight, kernel.T),
        (module.in_proj_bias, bias),
        (module.out_proj.weight, to_numpy(layer.output_kernel).T),
        (module.out_proj.bias, layer.output_bias),
    ]


def torch_attention(layer, hidden_dim):
    """`torch.nn.MultiheadAttention` with the weights of a built `MultiHeadAttention`."""
    torch = pytest.importorskip("torch")
    module = torch.nn.MultiheadAttention(hidden_dim, layer.num_heads, batch_first=True).eval()
    _copy(_attention(module, layer))
    return module


def _layer_arguments(layer, hidden_dim):
    torch = pytest.importorskip("torch")
    activation = {
        "relu": torch.nn.functional.relu,
        "gelu": torch.nn.functional.gelu,
        "silu": torch.nn.functional.silu,
    }
    return {
        "d_model": hidden_dim,
        "nhead": layer.num_heads,
        "dim_feedforward": layer.options.intermediate_dim,
        "dropout": 0.0,
        "activation": activation[layer.options.activation],
        "layer_norm_eps": layer.options.layer_norm_epsilon,
        "batch_first": True,
        "norm_first": layer.normalize_first,
    }


def torch_encoder(layers, final_norm, hidden_dim):
    """`torch.nn.TransformerEncoder` with the weights of built `EncoderLayer`s.

    `final_norm` is a built norm or `None`.
    """
    torch = pytest.importorskip("torch")
    stack = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(**_layer_arguments(layers[0], hidden_dim)),
        len(layers),
        norm=None if final_norm is None else torch.nn.LayerNorm(hidden_dim, eps=final_norm.epsilon),
        enable_nested_tensor=False,
    )
    for module, layer in zip(stack.layers, layers, strict=True):
        _copy(_attention(module.self_attn, layer.self_attention))
        _copy(_linear(module.linear1, layer.feed_forward.intermediate))
        _copy(_linear(module.linear2, layer.feed_forward.output_projection))
        _copy(_norm(module.norm1, layer.self_attention_norm))
        _copy(_norm(module.norm2, layer.feed_forward_norm))
    if final_norm is not None:
        _copy(_norm(stack.norm, final_norm))
    return stack


def torch_decoder(layers, final_norm, hidden_dim):
    """`torch.nn.TransformerDecoder` with the weights of built `DecoderLayer`s.

    `final_norm` is a built norm or `None`.
    """
    torch = pytest.importorskip("torch")
    stack = torch.nn.TransformerDecoder(
        torch.nn.TransformerDecoderLayer(**_layer_arguments(layers[0], hidden_dim)),
        len(layers),
        norm=None if final_norm is None else torch.nn.LayerNorm(hidden_dim, eps=final_norm.epsilon),
    )
    for module, layer in zip(stack.layers, layers, strict=True):
        _copy(_attention(module.self_attn, layer.self_attention))
        _copy(_attention(module.multihead_attn, layer.cross_attention))
        _copy(_linear(module.linear1, layer.feed_forward.intermediate))
        _copy(_linear(module.linear2, layer.feed_forward.output_projection))
        _copy(_norm(module.norm1, layer.self_attention_norm))
        _copy(_norm(module.norm2, layer.cross_attention_norm))
        _copy(_norm(module.norm3, layer.feed_forward_norm))
    if final_norm is not None:
        _copy(_norm(stack.norm, final_norm))
    return stack
