"""The state of a decoder between two steps, so that no token is computed twice.

A cache is passed in and returned, never stored in a layer: one model can serve many searches at
once, and a loop of any backend can carry it (all classes are tuples of tensors).

Shape letters: R rows of the decoder's batch (sentences times beams), N heads, H head size, S keys.
"""

from typing import Any, NamedTuple

from keras import ops

from kformer.layers.masks import causal_mask
from kformer.layers.relative_positions import distances


def reorder_rows(cache, rows):
    """Returns the cache with its rows reordered: row i is the former row `rows[i]`."""
    return cache._replace(
        key=ops.take(cache.key, rows, axis=0), value=ops.take(cache.value, rows, axis=0)
    )


class KeyValueCache(NamedTuple):
    """Keys and values of the tokens so far; grows with each step.

    This layout is faster where a shape may change inside a loop (PyTorch, a plain TensorFlow
    graph).
    """

    key: Any  # [R, N, S, H]
    value: Any  # [R, N, S, H]

    @classmethod
    def empty(cls, rows, num_heads, head_dim, dtype):
        """Returns a cache without tokens."""
        return cls(*(ops.zeros((rows, num_heads, 0, head_dim), dtype=dtype) for _ in range(2)))

    @property
    def length(self):
        """The number of tokens in the cache."""
        return ops.shape(self.key)[2]

    def append(self, key, value):
        """Returns the cache with the keys and values `[R, N, T, H]` of T more tokens."""
        return KeyValueCache(
            ops.concatenate([self.key, key], axis=2), ops.concatenate([self.value, value], axis=2)
        )

    reorder = reorder_rows

    def view(self):
        """Returns keys and values, both `[R, N, S, H]`. Every slot is filled."""
        return self.key, self.value

    def causal_mask(self, query_length):
        """Returns the causal mask `[T, S]` for the T tokens appended last; `None` if T is 1.

        The last token attends to all keys, so it needs no mask.
        """
        if isinstance(query_length, int) and query_length == 1:
            return None
        return causal_mask(query_length, self.length, offset=self.length - query_length)

    def distances(self, query_length):
        """Returns distances `[T, S + T]` from the next T tokens to all keys, their own included."""
        return distances(query_length, self.length + query_length, offset=self.length)


class StaticKeyValueCache(NamedTuple):
    """Keys and values of the tokens so far, in arrays of a fixed length.

    The first `length` slots are filled; the causal mask hides the others. Compilers that do not let
    a shape change inside a loop (JAX, XLA) need this layout.
    """

    key: Any  # [R, N, S, H]
    value: Any  # [R, N, S, H]
    length: Any  # int32 scalar

    @classmethod
    def empty(cls, rows, num_heads, head_dim, dtype, max_length):
        """Returns a cache without tokens whose capacity is `max_length`."""
        arrays = (ops.zeros((rows, num_heads, max_length, head_dim), dtype=dtype) for _ in range(2))
        return cls(*arrays, ops.zeros((), dtype="int32"))

    def append(self, key, value):
        """Returns the cache with keys and values `[R, N, T, H]` of T more tokens; they must fit."""
        # JAX wants one dtype, and an int is int64 under JAX_ENABLE_X64.
        zero = ops.zeros_like(self.length)
        start = (zero, zero, self.length, zero)
        return StaticKeyValueCache(
            ops.slice_update(self.key, start, key),
            ops.slice_update(self.value, start, value),
            self.length + ops.shape(key)[2],
        )

    reorder = reorder_rows

    def view(self):
        """Returns keys and values, both `[R, N, S, H]`, the unfilled slots included."""
        return self.key, self.value

    def causal_mask(self, query_length):
        """Returns the causal mask `[T, S]` for the last T tokens; it hides unfilled slots, too."""
        return causal_mask(query_length, ops.shape(self.key)[2], offset=self.length - query_length)

    def distances(self, query_length):
        """Returns distances `[T, S]` from the next T tokens to all slots."""
        return distances(query_length, ops.shape(self.key)[2], offset=self.length)


class CrossAttentionCache(NamedTuple):
    """Keys and values of the encoded source, computed once per sentence.

    It has one row per sentence (B), even if the decoder has one row per beam. The beams of a
    sentence become queries of one attention, so nothing is repeated, and reordering beams changes
    nothing here.
    """

    key: Any  # [B, N, S, H]
    value: Any  # [B, N, S, H]

    def reorder(self, rows):
        """Returns the cache itself, since beams stay with their sentence."""
        return self

    select = reorder_rows  # A row is a sentence here.


class DecoderLayerCache(NamedTuple):
    """The two caches of a decoder layer; the second is `()` where there is no cross-attention."""

    self_attention: Any
    cross_attention: Any

    def reorder(self, rows):
        """Returns the cache with its rows reordered: row i is the former row `rows[i]`."""
        cross_attention = self.cross_attention.reorder(rows) if self.cross_attention else ()
        return DecoderLayerCache(self.self_attention.reorder(rows), cross_attention)

    def select(self, sentences, rows):
        """Returns the cache of some sentences alone; their rows are `rows`."""
        cross_attention = self.cross_attention.select(sentences) if self.cross_attention else ()
        return DecoderLayerCache(self.self_attention.reorder(rows), cross_attention)
