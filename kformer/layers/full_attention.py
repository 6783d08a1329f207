"""Scaled dot-product attention of all queries over all keys, by a fused kernel or step by step."""

from typing import Any, NamedTuple

import keras
from keras import ops

from kformer.layers.cache import KeyValueCache, StaticKeyValueCache
from kformer.layers.masks import (
    after_padding,
    both,
    causal_mask,
    check_fits,
    check_masks,
    combine_masks,
    over_keys,
)
from kformer.layers.relative_positions import distances
from kformer.layers.shapes import reshape

# The float32 score of a masked key, in place of minus infinity: exp(MASKED - max) is 0, and the
# softmax of a row with no other score is still finite.
MASKED = -1e30

# The length of queries and keys up to which their scores take little memory.
_SHORT = 256


class AttentionCall(NamedTuple):
    """The arguments of one call of an attention layer, without queries, keys and values."""

    mask: Any = None  # boolean, broadcastable to [B, N, T, S]
    padding: Any = None  # boolean [B, S], True at real keys
    left_padding: Any = None  # integer [B], with a cache
    bias: Any = None  # float [N, T, S] or [B, N, T, S], added to the scaled scores
    is_causal: bool = False  # Whether a query sees no later key.
    scores: bool = False  # Whether to return the probabilities.
    training: Any = None
    # Pair of float [T, S, H], added to keys and values by their distance from the query, or None.
    relative: Any = None


def full_attention(layer, query, key, value, call):
    """Computes attention of every query over every key; zeros for a query with all keys masked.

    With dropout or with `call.scores` the backend's fused kernel is not used.

    Args:
        layer: `MultiHeadAttention`. It has the scale, the dropout and the choice of kernel.
        query: float tensor `[B, N, T, H]`.
        key: float tensor `[B, G, S, H]`. G divides N; N / G neighbouring heads of queries share a
            head.
        value: float tensor `[B, G, S, H]`.
        call: `AttentionCall`, with all masks in `mask`.

    Returns:
        The context `[B, N, T, H]`, and the probabilities `[B, N, T, S]` or `None`.
    """
    mask, bias, is_causal, scale = call.mask, call.bias, call.is_causal, layer.score_scale
    dropout, fused = layer.dropout_of_scores(call.training), layer.fused
    if fused is None:
        fused = _prefers_fused(query, ops.shape(key)[2], call.training)
    fused = fused and not call.scores and dropout is None and call.relative is None
    # Under the causal mask alone every query sees itself; any other mask may leave a query no key.
    may_be_empty = mask is not None
    if is_causal and (mask is not None or bias is not None or not fused):
        mask = combine_masks(mask, causal_mask(ops.shape(query)[2], ops.shape(key)[2]))
        is_causal = False
    if bias is not None:
        bias = ops.cast(bias if len(bias.shape) == 4 else ops.expand_dims(bias, 0), "float32")
        check_fits("attention_bias", bias, "[B, N, T, S]", (*query.shape[:3], key.shape[2]))
    if fused:
        context, weights = _by_kernel(query, key, value, scale, mask, bias, is_causal), None
    else:
        context, weights = _by_scores(query, key, value, scale, mask, bias, dropout, call.relative)
    if may_be_empty:
        # For a query without any key the kernels of all backends give the mean of the values.
        has_key = ops.cast(ops.any(mask, axis=-1, keepdims=True), query.dtype)
        context = context * has_key
        weights = None if weights is None else weights * has_key
    return context, weights


def _by_kernel(query, key, value, scale, mask, bias, is_causal):
    """Computes the context `[B, N, T, H]` by the backend's fused kernel."""
    num_heads, groups, dtype = query.shape[1], key.shape[1], query.dtype
    if num_heads > groups:
        key, value = (ops.repeat(x, num_heads // groups, axis=1) for x in (key, value))
    if bias is not None:
        # The kernels take a bias or a mask, not both, so masked keys get a very low bias. It is not
        # below -2^41, nor is it in JAX's own masks: cuDNN may compute the difference of two lower
        # numbers wrongly.
        lowest = -3e4 if keras.backend.standardize_dtype(dtype) == "float16" else -(2.0**41)
        bias = ops.cast(bias if mask is None else ops.where(mask, bias, lowest), dtype)
        mask = None
    context = ops.dot_product_attention(
        *(ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value)),
        bias=bias,
        mask=mask,
        scale=scale,
        is_causal=is_causal,
    )
    return ops.transpose(context, (0, 2, 1, 3))


def _by_scores(query, key, value, scale, mask, bias, dropout, relative=None):
    """Computes the context `[B, N, T, H]` and the probabilities `[B, N, T, S]` step by step."""
    num_heads, groups, dtype = query.shape[1], key.shape[1], query.dtype
    query_length, key_length = ops.shape(query)[2], ops.shape(key)[2]
    # In half precision the scores would overflow (float16) or, from 16 on, be rounded to multiples
    # of 1/8 (bfloat16) before the softmax. The fused kernels sum in float32, too.
    query, key = ops.cast(query, "float32") * scale, ops.cast(key, "float32")
    # einsum avoids a transposed copy of the keys.
    weights = _ungrouped(
        ops.einsum("bnth,bnsh->bnts", _grouped(query, groups), key), num_heads, query_length
    )
    if relative is not None:
        vectors = ops.cast(relative[0], "float32")
        weights = weights + ops.einsum("bnth,tsh->bnts", query, vectors)
    if bias is not None:
        weights = weights + bias
    if mask is not None:
        weights = ops.where(mask, weights, MASKED)
    # Keras warns of a softmax over a single key, which the first step of a search has.
    is_single = isinstance(key_length, int) and key_length == 1
    weights = ops.ones_like(weights) if is_single else ops.softmax(weights, axis=-1)
    weights = ops.cast(weights, dtype)
    dropped = weights if dropout is None else dropout(weights)
    context = _ungrouped(ops.matmul(_grouped(dropped, groups), value), num_heads, query_length)
    if relative is not None:
        context = context + ops.einsum("bnts,tsh->bnth", dropped, relative[1])
    return context, weights


def _prefers_fused(query, key_length, training):
    """Returns whether `fused=None` uses the backend's kernel: it is faster, or saves memory."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        return False
    if backend == "jax" and keras.backend.standardize_dtype(query.dtype) == "float16":
        # The kernel's float16 product with float32 sums exists on GPUs alone; elsewhere it does
        # not compile.
        return keras.distribution.list_devices()[0].startswith("gpu")
    device = getattr(query, "device", None)
    if backend == "torch" and training and device and device.type == "cpu":
        # On a CPU the backward pass of PyTorch's kernel is slower, but it saves memory for long
        # sequences.
        return query.shape[2] * key_length > _SHORT**2
    return True


def _grouped(x, groups):
    """`[B, N, T, K]` -> `[B, G, N / G T, K]`: heads that share keys become queries of one head."""
    return x if x.shape[1] == groups else reshape(x, (ops.shape(x)[0], groups, -1, ops.shape(x)[3]))


def _ungrouped(x, num_heads, length):
    """The inverse of `_grouped`, for N heads and T queries."""
    if x.shape[1] == num_heads:
        return x
    return reshape(x, (ops.shape(x)[0], num_heads, length, ops.shape(x)[3]))


class FullAttention:
    """Every query attends to every key.

    The three kinds of attention (`FullAttention`, `LocalAttention`, `LinearAttention`) have one
    interface. Their argument `layer` is their `MultiHeadAttention`.
    """

    def init_cache(self, layer, rows, max_length=None):
        """Returns an empty cache for `rows` rows; `max_length` gives it a fixed capacity."""
        size = (rows, layer.num_key_value_heads, layer.head_size, layer.compute_dtype)
        if max_length is None:
            return KeyValueCache.empty(*size)
        return StaticKeyValueCache.empty(*size, max_length)

    def attend(self, layer, query, key, value, cache, call):
        """Computes attention over split heads.

        Args:
            layer: `MultiHeadAttention`.
            query: float tensor `[B, N, T, H]`.
            key: float tensor `[B, G, S, H]`.
            value: float tensor `[B, G, S, H]`.
            cache: the result of `init_cache` or of an earlier call, a `CrossAttentionCache`, or
                `None`.
            call: `AttentionCall`.

        Returns:
            The context `[B, N, T, H]`, the probabilities `[B, N, T, S]` or `None`, and the cache
            with the new keys and values.
        """
        mask, padding, is_causal = call.mask, call.padding, call.is_causal
        if layer.is_self_attention:
            start = 0 if cache is None else cache.length
            length = ops.shape(query)[2]
            query, key = layer.rotate(query, start), layer.rotate(key, start)
            if layer.relative_positions is not None:
                distance = distances(length, length) if cache is None else cache.distances(length)
                call = call._replace(relative=layer.relative_vectors(distance))
            if cache is not None:
                cache = cache.append(key, value)
                key, value = cache.view()
                check_masks(query, key.shape[2], mask, padding)
                mask, is_causal = combine_masks(mask, cache.causal_mask(length)), False
                if call.left_padding is not None:
                    positions = ops.arange(ops.shape(key)[2], dtype="int32")
                    padding = both(padding, after_padding(call.left_padding, positions))
        call = call._replace(mask=combine_masks(mask, over_keys(padding)), is_causal=is_causal)
        return *full_attention(layer, query, key, value, call), cache
