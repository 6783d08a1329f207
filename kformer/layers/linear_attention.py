"""Linear attention: a feature map replaces the softmax.

So the sums over keys are the same for all queries, and a search keeps only these sums.

Shape letters: B batch, N heads, T queries, S keys, H head size, C chunk length.
"""

from typing import Any, NamedTuple

from keras import ops

from kformer.layers.masks import causal_mask, combine_masks, over_keys
from kformer.layers.relative_positions import distances

# Tokens per chunk: full attention within a chunk, sums for the chunks before it.
_CHUNK = 64
# Features are positive, so the sum over at least one key is above 0, but it may be very small. The
# square of this number, by which a gradient is divided, is a float32, too.
_EPSILON = 1e-15


def features(x):
    """`elu(x) + 1` in float32, positive numbers instead of the exponential."""
    x = ops.cast(x, "float32")
    return ops.where(x > 0, x + 1, ops.exp(ops.minimum(x, 0)))


def linear_attention(
    query, key, value, *, padding_mask=None, is_causal=False, state=None, rotate=None
):
    """`phi(Q) (phi(K)^T V) / (phi(Q) sum(phi(K)))`, in time and memory linear in the length.

    Args:
        query: float tensor `[B, N, T, H]`.
        key: float tensor `[B, N, S, H]`.
        value: float tensor `[B, N, S, H]`.
        padding_mask: boolean tensor `[B, S]` or `None`, default `None`. `True` at real keys.
        is_causal: bool, default False. Whether a query sees no later key; T = S then.
        state: `LinearAttentionCache` or `None`, default `None`. The tokens before these, for causal
            attention alone.
        rotate: function or `None`, default `None`. It rotates queries or keys `[B, N, T, H]` by
            their positions. The weights' numerator is rotated, their sum is not, so that it stays
            positive (Su et al. 2021, equation 19).

    Returns:
        The context `[B, N, T, H]`, zeros for a query without keys; and with a state the next one.

    References:
        Katharopoulos et al. 2020, "Transformers are RNNs: fast autoregressive Transformers with
        linear attention".
    """
    dtype = query.dtype
    query, key, value = features(query), features(key), ops.cast(value, "float32")
    if padding_mask is not None:
        key = key * ops.cast(padding_mask, "float32")[:, None, :, None]
    rotated_query, rotated_key = (query, key) if rotate is None else (rotate(query), rotate(key))
    if not is_causal:
        sums = ops.einsum("bnsh,bnsk->bnhk", rotated_key, value)
        context = ops.einsum("bnth,bnhk->bntk", rotated_query, sums)
        total = ops.einsum("bnth,bnh->bnt", query, ops.sum(key, axis=2))
        return _divided(context, total, dtype)
    length = ops.shape(query)[2]
    if isinstance(length, int) and length == 1 and state is not None:
        sums = state.sums + ops.einsum("bnsh,bnsk->bnhk", rotated_key, value)
        keys = state.keys + key[:, :, 0]
        context = ops.einsum("bnth,bnhk->bntk", rotated_query, sums)
        total = ops.einsum("bnth,bnh->bnt", query, keys)
        return _divided(context, total, dtype), LinearAttentionCache(sums, keys, state.length + 1)
    # One at least, also for no tokens: a prompt may be empty.
    chunks = (max if isinstance(length, int) else ops.maximum)((length + _CHUNK - 1) // _CHUNK, 1)
    rotated_query, rotated_key, values, query, key = (
        _chunked(x, chunks, length) for x in (rotated_query, rotated_key, value, query, key)
    )  # [B, N, chunks, C, H]
    # The sums over all chunks before a chunk.
    added, added_keys = ops.einsum("bncsh,bncsk->bnchk", rotated_key, values), ops.sum(key, axis=3)
    sums, keys = ops.cumsum(added, axis=2), ops.cumsum(added_keys, axis=2)
    first, first_keys = ops.zeros_like(sums[:, :, :1]), ops.zeros_like(keys[:, :, :1])
    if state is not None:
        first, first_keys = state.sums[:, :, None], state.keys[:, :, None]
        sums, keys = sums + first, keys + first_keys
    previous_sums, previous_keys = (
        ops.concatenate([start, x[:, :, :-1]], axis=2)
        for start, x in ((first, sums), (first_keys, keys))
    )
    causal = ops.cast(distances(_CHUNK, _CHUNK) <= 0, "float32")
    scores = ops.einsum("bncth,bncsh->bncts", rotated_query, rotated_key) * causal
    plain = scores if rotate is None else ops.einsum("bncth,bncsh->bncts", query, key) * causal
    context = ops.matmul(scores, values) + ops.matmul(rotated_query, previous_sums)
    total = ops.sum(plain, axis=-1) + ops.einsum("bncth,bnch->bnct", query, previous_keys)
    context = _divided(context, total, dtype)
    rows, heads, size = ops.shape(context)[0], context.shape[1], context.shape[-1]
    context = ops.reshape(context, (rows, heads, chunks * _CHUNK, size))[:, :, :length]
    if state is None:
        return context
    return context, LinearAttentionCache(sums[:, :, -1], keys[:, :, -1], state.length + length)


def _divided(context, total, dtype):
    return ops.cast(context / ops.expand_dims(ops.maximum(total, _EPSILON), -1), dtype)


def _chunked(x, chunks, length):
    """`[B, N, T, H]` -> `[B, N, chunks, C, H]`, padded with zeros, which add nothing."""
    x = ops.pad(x, [(0, 0), (0, 0), (0, chunks * _CHUNK - length), (0, 0)])
    return ops.reshape(x, (ops.shape(x)[0], x.shape[1], chunks, _CHUNK, x.shape[-1]))


class LinearAttentionCache(NamedTuple):
    """Two sums over all tokens so far, of a size that does not depend on their number. R rows."""

    sums: Any  # float32 [R, N, H, H]: phi(K)^T V
    keys: Any  # float32 [R, N, H]: the sum of phi(K)
    length: Any  # int32 scalar, the number of tokens so far

    def reorder(self, rows):
        """Returns the cache with its rows reordered: row i is the former row `rows[i]`."""
        sums, keys = (ops.take(x, rows, axis=0) for x in (self.sums, self.keys))
        return self._replace(sums=sums, keys=keys)


class LinearAttention:
    """A feature map replaces the softmax; the interface of `FullAttention`."""

    def init_cache(self, layer, rows, max_length=None):
        """An empty `LinearAttentionCache`, which does not grow."""
        size, shape = layer.head_size, (rows, layer.num_heads, layer.head_size)
        sums, keys = (ops.zeros(each, dtype="float32") for each in ((*shape, size), shape))
        return LinearAttentionCache(sums, keys, ops.zeros((), dtype="int32"))

    def attend(self, layer, query, key, value, cache, call):
        """Attention over split heads, as `FullAttention.attend`."""
        if call.mask is not None or call.bias is not None:
            raise ValueError(
                "Linear attention has no scores, so it takes no attention_mask (as of packed rows) "
                "and no attention_bias (as of ALiBi): give a padding_mask or use_causal_mask, or "
                "choose another kind."
            )
        if call.scores and cache is not None:
            raise ValueError(
                "Linear attention with a cache has no scores: it keeps sums over the keys alone."
            )
        group = layer.num_heads // layer.num_key_value_heads
        if group > 1:
            key, value = (ops.repeat(x, group, axis=1) for x in (key, value))
        start = 0 if cache is None else cache.length
        context = linear_attention(
            query,
            key,
            value,
            padding_mask=call.padding,
            is_causal=call.is_causal or cache is not None,
            state=cache,
            rotate=None if layer.rotary is None else lambda x: layer.rotate(x, start),
        )
        context, cache = context if cache is not None else (context, None)
        weights = None
        if call.scores:  # The weights without rotation, as a matrix.
            length = ops.shape(query)[2]
            causal = causal_mask(length, length) if call.is_causal else None
            mask = combine_masks(over_keys(call.padding), causal)
            scores = ops.einsum("bnth,bnsh->bnts", features(query), features(key))
            scores = scores if mask is None else ops.where(mask, scores, 0.0)
            total = ops.sum(scores, axis=-1, keepdims=True)
            weights = scores / ops.maximum(total, _EPSILON)
        return context, weights, cache
