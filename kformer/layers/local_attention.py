"""Attention in a window: a band of the scores is computed, so the cost is linear in the length.

Shape letters: B batch, N heads, T tokens, H head size, W window, d dilation, g global tokens. With
the dilation d the tokens are split into d sequences of every d-th token, and these into C blocks of
W tokens each. A block's queries see the keys of their own block and of its neighbours."""

from typing import Any, NamedTuple

import keras
from keras import ops

from kformer.layers.full_attention import MASKED, attend_all, full_attention
from kformer.layers.masks import combine_masks, over_keys
from kformer.layers.relative_positions import distances


def window_mask(
    query_length, key_length, window, *, dilation=1, global_tokens=0, is_causal=False, offset=0
):
    """The mask under which a position sees the keys in a window around it, and the first tokens.

        window_mask(5, 5, 1)    1 1 . . .     dilation=2   1 . 1 . .     global_tokens=1   1 1 1 1 1
                                1 1 1 . .                  . 1 . 1 .                       1 1 1 . .
                                . 1 1 1 .                  1 . 1 . 1                       1 1 1 1 .
                                . . 1 1 1                  . 1 . 1 .                       1 . 1 1 1
                                . . . 1 1                  . . 1 . 1                       1 . . 1 1

    Args:
        query_length: int or scalar tensor. T.
        key_length: int or scalar tensor. S.
        window: int. W, the steps in each direction.
        dilation: int, default 1. The length of a step.
        global_tokens: int, default 0. How many first tokens see all tokens and are seen by all.
        is_causal: bool, default False. Whether a query sees no later key, the global ones included.
        offset: int or scalar tensor, default 0. The position of the first query among the keys.

    Returns:
        Boolean tensor `[T, S]`.

    References:
        Beltagy et al. 2020, "Longformer: the long-document Transformer", figure 2.
    """
    distance = distances(query_length, key_length, offset)
    mask = sees(distance, window, dilation)
    if global_tokens:
        keys = ops.expand_dims(ops.arange(key_length, dtype="int32"), 0)
        queries = ops.expand_dims(
            ops.arange(query_length, dtype="int32") + ops.cast(offset, "int32"), 1
        )
        mask = ops.logical_or(mask, ops.logical_or(keys < global_tokens, queries < global_tokens))
    return ops.logical_and(mask, distance <= 0) if is_causal else mask


def sees(distance, window, dilation):
    """Whether a key at some distance (int32 tensor) is in the window."""
    near = ops.less_equal(ops.abs(distance), window * dilation)
    return (
        near if dilation == 1 else ops.logical_and(near, ops.equal(ops.mod(distance, dilation), 0))
    )


def local_attention(
    query,
    key,
    value,
    *,
    scale,
    window,
    dilation=1,
    global_tokens=0,
    mask=None,
    padding_mask=None,
    bias=None,
    is_causal=False,
    dropout=None,
):
    """Attention under `window_mask`, over the band alone; zeros for a query with all keys masked.

    Args:
        query: float tensor `[B, N, T, H]`.
        key: float tensor `[B, G, T, H]`, where G divides N.
        value: float tensor `[B, G, T, H]`.
        scale: float. The factor of the scores.
        window: int. As in `window_mask`.
        dilation: int, default 1. As in `window_mask`.
        global_tokens: int, default 0. As in `window_mask`.
        mask: boolean tensor broadcastable to `[B, N, T, T]`, or `None`, default `None`. It is as
            large as the scores of full attention.
        padding_mask: boolean tensor `[B, T]` or `None`, default `None`. `True` at real keys.
        bias: float tensor `[N, W, 3 W]` (causal: `[N, W, 2 W]`) or `None`, default `None`. A bias
            of the distances that `band_distances` returns. Not with global tokens.
        is_causal: bool, default False. As in `window_mask`.
        dropout: function or `None`, default `None`. Called with the probabilities.

    Returns:
        The context `[B, N, T, H]`.
    """
    num_heads, dtype, length = query.shape[1], query.dtype, ops.shape(query)[2]
    if key.shape[1] < num_heads:
        key, value = (ops.repeat(x, num_heads // key.shape[1], axis=1) for x in (key, value))
    blocks = _Blocks(length, window, dilation, is_causal)
    queries = blocks.split(ops.cast(query, "float32") * scale)  # [B, N, C, W, H]
    scores = ops.einsum("bncwh,bncxh->bncwx", queries, blocks.neighbours(ops.cast(key, "float32")))
    if bias is not None:
        scores = scores + ops.cast(bias[:, None], "float32")
    positions = ops.arange(length, dtype="int32")
    query_positions = ops.expand_dims(blocks.split(positions, fill=-1), -1)  # [C, W, 1]
    seen = _seen_in_band(blocks, positions, query_positions, global_tokens, mask, padding_mask)
    scores = ops.where(seen, scores, MASKED)
    values = blocks.neighbours(value)
    width = scores.shape[-1]
    if global_tokens:
        first_keys = ops.cast(key[:, :, :global_tokens], "float32")
        first = ops.einsum("bncwh,bngh->bncwg", queries, first_keys)
        seen = _seen_of_first(query_positions, ops.shape(first)[-1], is_causal, mask, padding_mask)
        scores = ops.concatenate([scores, ops.where(seen, first, MASKED)], axis=-1)
    weights = ops.softmax(scores, axis=-1) * ops.cast(
        ops.any(scores > 0.5 * MASKED, axis=-1, keepdims=True), "float32"
    )
    weights = ops.cast(weights, dtype)
    weights = weights if dropout is None else dropout(weights)
    context = ops.einsum("bncwx,bncxh->bncwh", weights[..., :width], values)
    if global_tokens:
        context = context + ops.einsum(
            "bncwg,bngh->bncwh", weights[..., width:], value[:, :, :global_tokens]
        )
    context = blocks.join(context)
    if global_tokens and not is_causal:
        # The first tokens see everything.
        whole = None if padding_mask is None else padding_mask[:, None, None, :]
        if mask is not None:
            rows = mask[:, :, :global_tokens] if mask.shape[2] != 1 else mask
            whole = rows if whole is None else ops.logical_and(rows, whole)
        first, _ = full_attention(
            query[:, :, :global_tokens], key, value, scale=scale, mask=whole, dropout=dropout
        )
        context = ops.concatenate([first, context[:, :, global_tokens:]], axis=2)
    return context


def _seen_in_band(blocks, positions, query_positions, global_tokens, mask, padding_mask):
    """Which band keys (no global ones) each query sees: broadcastable to `[B, N, C, W, X]`."""
    key_positions = ops.expand_dims(blocks.neighbours(positions, fill=-1), -2)  # [C, 1, X]
    distance = key_positions - query_positions
    is_near = ops.less_equal(ops.abs(distance), blocks.window * blocks.dilation)
    seen = ops.logical_and(is_near, key_positions >= global_tokens)
    if blocks.is_causal:
        seen = ops.logical_and(seen, distance <= 0)
    seen = ops.logical_and(seen, query_positions >= 0)
    if padding_mask is not None:
        keys = blocks.neighbours(padding_mask, fill=False)  # [B, C, X]
        seen = ops.logical_and(seen, keys[:, None, :, None, :])
    if mask is not None:
        seen = ops.logical_and(seen, _of_band(mask, query_positions, key_positions))
    return seen


def _seen_of_first(query_positions, count, is_causal, mask, padding_mask):
    """Which of the `count` global tokens each query sees: broadcastable to `[B, N, C, W, g]`."""
    indices = ops.arange(count, dtype="int32")
    seen = ops.broadcast_to(query_positions >= 0, (*ops.shape(query_positions)[:-1], count))
    if is_causal:
        seen = ops.logical_and(seen, indices <= query_positions)
    if padding_mask is not None:
        seen = ops.logical_and(seen, padding_mask[:, None, None, None, :count])
    if mask is not None:
        keys = ops.zeros_like(query_positions) + indices
        seen = ops.logical_and(seen, _of_band(mask, query_positions, keys))
    return seen


class _Blocks:
    """The blocks of a sequence: token `t` is in the sequence `t mod d`, split into blocks of W.

    C is the number of blocks of all d sequences. Tensors of booleans or ints have no axis H.
    """

    def __init__(self, length, window, dilation, is_causal):
        self.length, self.window = length, window
        self.dilation, self.is_causal = dilation, is_causal
        # Blocks of one of the d sequences.
        self.count = (length + window * dilation - 1) // (window * dilation)

    def _apart(self, x, fill):
        """`[..., T, H]` -> `[..., d, C / d, W, H]` and the index of the axis d."""
        axis = len(x.shape) - 1 - _has_size(x)
        missing = self.count * self.window * self.dilation - self.length
        x = _padded(x, axis, (0, missing), fill)
        lead, size = list(ops.shape(x)[:axis]), list(x.shape[axis + 1 :])
        if self.dilation > 1:
            x = ops.swapaxes(
                ops.reshape(x, (*lead, self.count * self.window, self.dilation, *size)),
                axis,
                axis + 1,
            )
        return ops.reshape(x, (*lead, self.dilation, self.count, self.window, *size)), axis

    def _together(self, x, axis):
        return ops.reshape(
            x, (*ops.shape(x)[:axis], self.dilation * self.count, *ops.shape(x)[axis + 2 :])
        )

    def split(self, x, fill=0):
        """`[..., T, H]` -> `[..., C, W, H]`"""
        return self._together(*self._apart(x, fill))

    def neighbours(self, x, fill=0):
        """`[..., T, H]` -> `[..., C, X, H]`: the keys of each block and of its neighbours.

        If causal, the next block is omitted.
        """
        x, axis = self._apart(x, fill)
        x = _padded(x, axis + 1, (1, 0 if self.is_causal else 1), fill)
        leading = (slice(None),) * (axis + 1)
        blocks = [
            x[(*leading, slice(start, start + self.count))]
            for start in range(2 if self.is_causal else 3)
        ]
        return self._together(ops.concatenate(blocks, axis=axis + 2), axis)

    def join(self, x):
        """`[..., C, W, H]` -> `[..., T, H]`"""
        axis, size = len(x.shape) - 3, x.shape[-1]
        lead = list(ops.shape(x)[:axis])
        x = ops.reshape(x, (*lead, self.dilation, self.count * self.window, size))
        x = ops.reshape(
            ops.swapaxes(x, axis, axis + 1), (*lead, self.count * self.window * self.dilation, size)
        )
        return x[..., : self.length, :]


def _has_size(x):
    return "float" in keras.backend.standardize_dtype(x.dtype)


def _padded(x, axis, width, fill):
    widths = [width if index == axis else (0, 0) for index in range(len(x.shape))]
    return ops.pad(x, widths, constant_values=fill)


def _of_band(mask, query_positions, key_positions):
    """A mask at queries `[C, W, 1]` and keys `[C, 1 or W, X]`; all axes but the last may be 1."""
    queries = (
        ops.maximum(query_positions, 0) if mask.shape[2] != 1 else ops.zeros_like(query_positions)
    )
    keys = ops.maximum(key_positions, 0) if mask.shape[3] != 1 else ops.zeros_like(key_positions)
    *lead, rows, columns = ops.shape(mask)
    flat = ops.reshape(mask, (*lead, rows * columns))
    index = queries * columns + keys  # [C, W, X]
    return ops.reshape(
        ops.take(flat, ops.reshape(index, (-1,)), axis=2), (*lead, *ops.shape(index))
    )


class LocalAttention:
    """Every query attends to the keys in a window around it; the interface of `FullAttention`.

    Args:
        window: int. A query sees keys at up to `window` steps of `dilation` positions.
        dilation: int, default 1. The length of a step.
        global_tokens: int, default 0. The number of first tokens that see all and are seen by all.
    """

    def __init__(self, window, dilation=1, global_tokens=0):
        self.window, self.dilation, self.global_tokens = window, dilation, global_tokens

    def init_cache(self, layer, rows, max_length=None):
        """An empty `WindowCache`, which does not grow."""
        return WindowCache.empty(
            rows,
            layer.num_key_value_heads,
            layer.head_size,
            layer.compute_dtype,
            window=self.window,
            dilation=self.dilation,
            global_tokens=self.global_tokens,
        )

    def attend(self, layer, query, key, value, cache, call):
        """Attention over split heads, as `FullAttention.attend`."""
        start = 0 if cache is None else cache.length
        query, key = layer.rotate(query, start), layer.rotate(key, start)
        if cache is not None:
            return self._attend_cache(layer, query, key, value, cache, call)
        options = {
            "dilation": self.dilation,
            "global_tokens": self.global_tokens,
            "is_causal": call.is_causal,
        }
        if call.scores:
            length = ops.shape(query)[2]
            band = window_mask(length, length, self.window, **options)
            seen = combine_masks(call.mask, over_keys(call.padding), band)
            call = call._replace(mask=seen, is_causal=False)
            return *attend_all(layer, query, key, value, call), None
        if call.bias is not None and self.global_tokens:
            raise ValueError(
                f"Local attention with global_tokens={self.global_tokens} has no attention_bias: "
                "choose other positions."
            )
        context = local_attention(
            query,
            key,
            value,
            scale=layer.score_scale,
            window=self.window,
            **options,
            mask=call.mask,
            padding_mask=call.padding,
            bias=call.bias,
            dropout=layer.dropout_of_scores(call.training),
        )
        return context, None, None

    def _attend_cache(self, layer, query, key, value, cache, call):
        if call.mask is not None or call.padding is not None:
            raise ValueError(
                "Local attention with a cache takes no masks: its cache keeps a window, not the "
                "whole sequence."
            )
        length = ops.shape(query)[2]
        distance = cache.distances(length)
        seen = ops.logical_or(sees(distance, self.window, self.dilation), cache.is_global(length))
        seen = ops.logical_and(seen, distance <= 0)
        if call.left_padding is not None:
            # of the keys, [T, S]
            positions = distance + ops.expand_dims(
                cache.length + ops.arange(length, dtype="int32"), 1
            )
            first = ops.cast(call.left_padding, "int32")[:, None, None]
            seen = ops.logical_and(seen, positions >= first)
        keys, values = cache.view(key, value)
        call = call._replace(mask=combine_masks(seen), is_causal=False)
        return *attend_all(layer, query, keys, values, call), cache.append(key, value)


class WindowCache(NamedTuple):
    """Keys and values that a causal window can still see.

    They are those of the first g tokens, and of the last W d tokens in a ring. The size does not
    depend on the number of tokens. R rows, G heads of keys.
    """

    key: Any  # [R, G, g + W d, H]
    value: Any  # [R, G, g + W d, H]
    length: Any  # int32 scalar, the number of tokens so far
    # Empty. Its size is g, which stays known in a loop of any backend.
    global_slots: Any  # [0, g]

    @classmethod
    def empty(cls, rows, num_heads, head_dim, dtype, *, window, dilation, global_tokens):
        """A cache that holds no token."""
        slots = global_tokens + window * dilation
        arrays = (ops.zeros((rows, num_heads, slots, head_dim), dtype=dtype) for _ in range(2))
        return cls(
            *arrays, ops.zeros((), dtype="int32"), ops.zeros((0, global_tokens), dtype=dtype)
        )

    def append(self, key, value):
        """The cache after T more tokens, `[R, G, T, H]`."""
        first, slots = self._sizes()
        length, added = self.length, ops.shape(key)[2]
        newest = _slot_positions(length + added, first, slots)
        # A slot gets one of the new tokens, or keeps its own.
        source = ops.where(
            newest >= length, slots + newest - length, ops.arange(slots, dtype="int32")
        )
        keys, values = (
            ops.take(ops.concatenate(pair, axis=2), source, axis=2)
            for pair in ((self.key, key), (self.value, value))
        )
        return self._replace(key=keys, value=values, length=length + added)

    def view(self, key, value):
        """Keys and values `[R, G, slots + T, H]`: of the cache, then of the next T tokens."""
        return ops.concatenate([self.key, key], axis=2), ops.concatenate(
            [self.value, value], axis=2
        )

    def distances(self, query_length):
        """Distances `[T, slots + T]` from the next T tokens to the keys of `view`.

        The distance of an empty slot is large.
        """
        first, slots = self._sizes()
        cached = _slot_positions(self.length, first, slots)
        new = self.length + ops.arange(query_length, dtype="int32")
        positions = ops.concatenate([ops.where(cached < 0, 2**30, cached), new], axis=0)
        return ops.expand_dims(positions, 0) - ops.expand_dims(new, 1)

    def is_global(self, query_length):
        """Whether the keys of `view` belong to the global tokens: boolean `[slots + T]`."""
        first, slots = self._sizes()
        new = self.length + ops.arange(query_length, dtype="int32")
        return (
            ops.concatenate(
                [ops.arange(slots, dtype="int32"), ops.where(new < first, new, slots)], axis=0
            )
            < first
        )

    def reorder(self, rows):
        """The cache in which row i is what row `rows[i]` was."""
        return self._replace(
            key=ops.take(self.key, rows, axis=0), value=ops.take(self.value, rows, axis=0)
        )

    def _sizes(self):
        return self.global_slots.shape[1], ops.shape(self.key)[2]


def _slot_positions(length, first, slots):
    """The position in each slot after `length` tokens: int32 `[slots]`, negative for none."""
    slot = ops.arange(slots, dtype="int32")
    ring = slots - first
    last = length - 1 - first  # the index of the last token after the first ones
    newest = last - ops.mod(last - (slot - first), ring)
    in_ring = ops.where(newest < 0, -1, newest + first)
    return ops.where(slot < first, ops.where(slot < length, slot, -1), in_ring)
