"""Attention in a window: a band of the scores is computed, so the cost is linear in the length.

Shape letters: B batch, N heads, T tokens, H head size, W window, d dilation, g global tokens. With
the dilation d the tokens are split into d sequences of every d-th token, and these into C blocks of
W tokens each. A block's queries see the keys of their own block and of its neighbours."""

from typing import Any, NamedTuple

from keras import ops

from kformer.layers.cache import reorder_rows
from kformer.layers.full_attention import MASKED, full_attention
from kformer.layers.masks import combine_masks, over_keys
from kformer.layers.relative_positions import distances
from kformer.utils.checks import check_whole


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
        queries = keys - distance
        mask = ops.logical_or(mask, ops.logical_or(keys < global_tokens, queries < global_tokens))
    return ops.logical_and(mask, distance <= 0) if is_causal else mask


def sees(distance, window, dilation):
    """Whether a key at some distance (int32 tensor) is in the window."""
    near = ops.less_equal(ops.abs(distance), window * dilation)
    if dilation == 1:
        return near
    return ops.logical_and(near, ops.equal(ops.mod(distance, dilation), 0))


class _Blocks:
    """The blocks of a sequence: token `t` is in the sequence `t mod d`, split into blocks of W.

    C is the number of blocks of all d sequences. Positions `[T]` and masks `[B, T]` have no
    axis H.
    """

    def __init__(self, length, window, dilation, is_causal):
        self.length, self.window = length, window
        self.dilation, self.is_causal = dilation, is_causal
        # Blocks of one of the d sequences.
        self.count = (length + window * dilation - 1) // (window * dilation)

    def _apart(self, x, fill):
        """`[..., T, H]` -> `[..., d, C / d, W, H]` and the index of the axis d."""
        axis = min(len(x.shape) - 1, 2)
        missing = self.count * self.window * self.dilation - self.length
        x = _padded(x, axis, (0, missing), fill)
        lead, size = ops.shape(x)[:axis], x.shape[axis + 1 :]
        if self.dilation > 1:
            x = ops.reshape(x, (*lead, self.count * self.window, self.dilation, *size))
            x = ops.swapaxes(x, axis, axis + 1)
        return ops.reshape(x, (*lead, self.dilation, self.count, self.window, *size)), axis

    def _together(self, x, axis):
        shape = ops.shape(x)
        return ops.reshape(x, (*shape[:axis], self.dilation * self.count, *shape[axis + 2 :]))

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
        lead, length, size = ops.shape(x)[:2], self.count * self.window, x.shape[-1]
        x = ops.swapaxes(ops.reshape(x, (*lead, self.dilation, length, size)), 2, 3)
        return ops.reshape(x, (*lead, length * self.dilation, size))[:, :, : self.length]


def _padded(x, axis, width, fill):
    widths = [width if index == axis else (0, 0) for index in range(len(x.shape))]
    return ops.pad(x, widths, constant_values=fill)


def _unmasked(seen, padding, mask, query_positions, key_positions):
    """`seen` without what a padding mask hides, or a mask at queries `[C, W, 1]` and keys.

    The keys are `[C, 1 or W, X]`. All axes of the mask but the last may be 1.
    """
    if padding is not None:
        seen = ops.logical_and(seen, padding)
    if mask is None:
        return seen
    *lead, rows, columns = ops.shape(mask)
    zeros = ops.zeros_like(query_positions)
    queries = ops.maximum(query_positions, 0) if mask.shape[2] != 1 else zeros
    keys = ops.maximum(key_positions, 0) if mask.shape[3] != 1 else ops.zeros_like(key_positions)
    index = queries * columns + keys  # [C, W, X]
    flat = ops.reshape(mask, (*lead, rows * columns))
    values = ops.take(flat, ops.reshape(index, (-1,)), axis=2)
    return ops.logical_and(seen, ops.reshape(values, (*lead, *ops.shape(index))))


class LocalAttention:
    """Every query attends to the keys in a window around it; the interface of `FullAttention`.

    Args:
        window: int. A query sees keys at up to `window` steps of `dilation` positions.
        dilation: int, default 1. The length of a step.
        global_tokens: int, default 0. The number of first tokens that see all and are seen by all.
    """

    def __init__(self, window, dilation=1, global_tokens=0):
        self.window = check_whole("window of local attention", window)
        self.dilation = check_whole("dilation of local attention", dilation)
        self.global_tokens = check_whole("global_tokens of local attention", global_tokens, 0)

    def init_cache(self, layer, rows, max_length=None):
        """An empty `WindowCache`, which does not grow."""
        slots, dtype = self.global_tokens + self.window * self.dilation, layer.compute_dtype
        shape = (rows, layer.num_key_value_heads, slots, layer.head_size)
        keys, values = (ops.zeros(shape, dtype=dtype) for _ in range(2))
        length, global_slots = ops.zeros((), dtype="int32"), (0, self.global_tokens)
        return WindowCache(keys, values, length, ops.zeros(global_slots, dtype=dtype))

    def attend(self, layer, query, key, value, cache, call):
        """Attention over split heads, as `FullAttention.attend`."""
        start = 0 if cache is None else cache.length
        query, key = layer.rotate(query, start), layer.rotate(key, start)
        if cache is not None:
            return self._attend_cache(layer, query, key, value, cache, call)
        if call.scores:
            length = ops.shape(query)[2]
            options = {"dilation": self.dilation, "global_tokens": self.global_tokens}
            band = window_mask(length, length, self.window, **options, is_causal=call.is_causal)
            seen = combine_masks(call.mask, over_keys(call.padding), band)
            call = call._replace(mask=seen, is_causal=False)
            return *full_attention(layer, query, key, value, call), None
        if call.bias is not None and self.global_tokens:
            raise ValueError(
                f"Local attention with global_tokens={self.global_tokens} has no attention_bias: "
                "choose other positions."
            )
        return self._attend_band(layer, query, key, value, call), None, None

    def _attend_band(self, layer, query, key, value, call):
        """Attention under `window_mask`, over the band alone; zeros for a query without keys.

        `call.bias` is `[N, W, 3 W]` (causal: `[N, W, 2 W]`), a bias of the distances that
        `band_distances` returns. Returns the context `[B, N, T, H]`.
        """
        num_heads, length, first = query.shape[1], ops.shape(query)[2], self.global_tokens
        mask, padding, dropout = call.mask, call.padding, layer.dropout_of_scores(call.training)
        if key.shape[1] < num_heads:
            key, value = (ops.repeat(x, num_heads // key.shape[1], axis=1) for x in (key, value))
        blocks = _Blocks(length, self.window, self.dilation, call.is_causal)
        queries = blocks.split(ops.cast(query, "float32") * layer.score_scale)  # [B, N, C, W, H]
        keys = blocks.neighbours(ops.cast(key, "float32"))
        scores = ops.einsum("bncwh,bncxh->bncwx", queries, keys)
        if call.bias is not None:
            scores = scores + ops.cast(call.bias[:, None], "float32")
        positions = ops.arange(length, dtype="int32")
        query_positions = ops.expand_dims(blocks.split(positions, fill=-1), -1)  # [C, W, 1]
        key_positions = ops.expand_dims(blocks.neighbours(positions, fill=-1), -2)  # [C, 1, X]
        distance, is_query = key_positions - query_positions, query_positions >= 0
        seen = ops.less_equal(ops.abs(distance), self.window * self.dilation)
        seen = ops.logical_and(ops.logical_and(seen, key_positions >= first), is_query)
        if call.is_causal:
            seen = ops.logical_and(seen, distance <= 0)
        real = None
        if padding is not None:
            real = blocks.neighbours(padding, fill=False)[:, None, :, None, :]  # [B, 1, C, 1, X]
        seen = _unmasked(seen, real, mask, query_positions, key_positions)
        scores = ops.where(seen, scores, MASKED)
        width = scores.shape[-1]
        if first:
            first_keys = ops.cast(key[:, :, :first], "float32")
            first_scores = ops.einsum("bncwh,bngh->bncwg", queries, first_keys)
            count = ops.shape(first_scores)[-1]
            indices = ops.zeros_like(query_positions) + ops.arange(
                count, dtype="int32"
            )  # [C, W, g]
            seen = ops.logical_and(is_query, indices >= 0)
            if call.is_causal:
                seen = ops.logical_and(seen, indices <= query_positions)
            real = None if padding is None else padding[:, None, None, None, :count]
            seen = _unmasked(seen, real, mask, query_positions, indices)
            scores = ops.concatenate([scores, ops.where(seen, first_scores, MASKED)], axis=-1)
        attends = ops.any(scores > 0.5 * MASKED, axis=-1, keepdims=True)
        weights = ops.softmax(scores, axis=-1) * ops.cast(attends, "float32")
        weights = ops.cast(weights, query.dtype)
        weights = weights if dropout is None else dropout(weights)
        values = blocks.neighbours(value)
        context = ops.einsum("bncwx,bncxh->bncwh", weights[..., :width], values)
        if first:
            values, weights = value[:, :, :first], weights[..., width:]
            context = context + ops.einsum("bncwg,bngh->bncwh", weights, values)
        context = blocks.join(context)
        if first and not call.is_causal:
            # The first tokens see everything. By scores, as the others do.
            rows = mask if mask is None or mask.shape[2] == 1 else mask[:, :, :first]
            whole = combine_masks(rows, over_keys(padding))
            call = call._replace(mask=whole, scores=True)
            start, _ = full_attention(layer, query[:, :, :first], key, value, call)
            context = ops.concatenate([start, context[:, :, first:]], axis=2)
        return context

    def _attend_cache(self, layer, query, key, value, cache, call):
        if call.mask is not None or call.padding is not None:
            raise ValueError(
                "Local attention with a cache takes no masks: the cache keeps a window alone."
            )
        length = ops.shape(query)[2]
        distance = cache.distances(length)
        seen = ops.logical_or(sees(distance, self.window, self.dilation), cache.is_global(length))
        seen = ops.logical_and(seen, distance <= 0)
        if call.left_padding is not None:
            queries = ops.expand_dims(cache.length + ops.arange(length, dtype="int32"), 1)
            first = ops.cast(call.left_padding, "int32")[:, None, None]
            seen = ops.logical_and(seen, distance + queries >= first)
        keys, values = cache.view(key, value)
        call = call._replace(mask=combine_masks(seen), is_causal=False)
        return *full_attention(layer, query, keys, values, call), cache.append(key, value)


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

    def append(self, key, value):
        """The cache after T more tokens, `[R, G, T, H]`."""
        first, slots = self._sizes()
        length, added = self.length, ops.shape(key)[2]
        newest = _slot_positions(length + added, first, slots)
        # A slot gets one of the new tokens, or keeps its own.
        slot = ops.arange(slots, dtype="int32")
        source = ops.where(newest >= length, slots + newest - length, slot)
        keys, values = (ops.take(x, source, axis=2) for x in self.view(key, value))
        return self._replace(key=keys, value=values, length=length + added)

    def view(self, key, value):
        """Keys and values `[R, G, slots + T, H]`: of the cache, then of the next T tokens."""
        pairs = ((self.key, key), (self.value, value))
        return tuple(ops.concatenate(pair, axis=2) for pair in pairs)

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
        cached = ops.arange(slots, dtype="int32")
        return ops.concatenate([cached, ops.where(new < first, new, slots)], axis=0) < first

    reorder = reorder_rows

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
