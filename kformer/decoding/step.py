"""The bridge from a model to a search: a step function and its state."""

from typing import Any, NamedTuple

from keras import ops


class DecoderState(NamedTuple):
    """What a `Transformer` carries from step to step."""

    cache: Any  # kformer.models.DecoderCache
    index: Any  # int32 scalar: tokens in the cache

    def reorder(self, rows):
        """The state in which row i is what row `rows[i]` was."""
        return DecoderState(self.cache.reorder(rows), self.index)


def decoder_step(model):
    """The step function of a `Transformer`: (ids `[R]`, state) -> (logits `[R, V]`, state)."""

    def step(ids, state):
        logits, cache = model.decode_step(ops.expand_dims(ids, 1), state.cache, state.index)
        return logits[:, 0], DecoderState(cache, state.index + 1)

    return step


def reorder(state, rows):
    """Row i of every part becomes what row `rows[i]` was.

    Args:
        state: an object with a `reorder` method, or a nested structure of tensors with rows first.
        rows: int32 tensor `[R]`.
    """
    if hasattr(state, "reorder"):
        return state.reorder(rows)
    if isinstance(state, dict):
        return {key: reorder(value, rows) for key, value in state.items()}
    if hasattr(state, "_fields"):  # a NamedTuple takes its parts one by one
        return type(state)(*(reorder(value, rows) for value in state))
    if isinstance(state, tuple | list):
        return type(state)(reorder(value, rows) for value in state)
    return ops.take(state, rows, axis=0)
