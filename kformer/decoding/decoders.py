"""The bridge from a model to a search: a step function and its state."""

from typing import Any, NamedTuple

from keras import ops

from kformer.decoding.fast.decoder import InferenceModel, can_infer
from kformer.models.ensemble import Ensemble, mean_log_probabilities
from kformer.utils.backend import take, uses_static_shapes


class DecoderState(NamedTuple):
    """What a `Transformer` carries from step to step."""

    cache: Any  # kformer.models.DecoderCache or InferenceCache
    index: Any  # int32 scalar: tokens in the cache

    def reorder(self, rows):
        """The state in which row i is what row `rows[i]` was."""
        return DecoderState(self.cache.reorder(rows), self.index)

    def select(self, sentences, rows):
        """The state of some sentences, whose rows are `rows`."""
        return DecoderState(self.cache.select(sentences, rows), self.index)


def decoder_step(model):
    """The step function of a `Transformer`: (ids `[R]`, state) -> (logits `[R, V]`, state)."""

    def step(ids, state):
        logits, cache = model.decode_step(ops.expand_dims(ids, 1), state.cache, state.index)
        return logits[:, 0], DecoderState(cache, state.index + 1)

    return step


def begin(model, source_ids, width, steps, kernels=None, shortlist=None):
    """Encodes the source: what a search begins with.

    Args:
        model: a `Transformer`, or an `Ensemble` of them.
        source_ids: int32 tensor `[B, S]`, padded.
        width: K, rows per sentence.
        steps: the most steps that will follow, an int or a scalar tensor.
        kernels: in which form an `InferenceModel` has its weights; `None` for the backend's plain
            one.
        shortlist: int array `[C]`, the tokens whose logits are computed, in this order; `None` for
            all.

    Returns:
        The step function for R = B K rows, and its state.
    """
    if isinstance(model, Ensemble):
        return _begin_together(
            [begin(each, source_ids, width, steps, kernels, shortlist) for each in model.models]
        )
    index = ops.zeros((), dtype="int32")
    if not can_infer(model):
        encoded, source_mask = model.encode(source_ids)
        rows, max_length = ops.shape(source_ids)[0] * width, steps if uses_static_shapes() else None
        cache = model.init_cache(
            encoded, source_mask, rows=rows, max_length=max_length, shortlist=shortlist
        )
        return decoder_step(model), DecoderState(cache, index)
    inference = InferenceModel(model, width, kernels, shortlist)

    def step(ids, state):
        logits, cache = inference.step(ids, state.cache, state.index)
        return logits, DecoderState(cache, state.index + 1)

    return step, DecoderState(inference.init_cache(inference.encode(source_ids), steps), index)


def _begin_together(begun):
    """One step function and one state of several."""
    steps, states = zip(*begun, strict=True)

    def step(ids, states):
        logits, states = zip(
            *[one(ids, state) for one, state in zip(steps, states, strict=True)], strict=True
        )
        return mean_log_probabilities(logits), states

    return step, states


def reorder(state, rows):
    """Row i of every part becomes what row `rows[i]` was.

    Args:
        state: an object with a `reorder` method, or a nested structure of tensors with rows first.
        rows: int32 tensor `[R]`.
    """
    if hasattr(state, "reorder"):
        return state.reorder(rows)
    return _each_part(state, lambda part: reorder(part, rows), lambda tensor: take(tensor, rows))


def select(state, sentences, rows):
    """The state of some sentences only.

    Args:
        state: as for `reorder`; an object that has a part with rows of another kind than the
            decoder's has a method `select`, too.
        sentences: int32 tensor `[C]`, their numbers.
        rows: int32 tensor `[R]`, their rows.
    """
    if hasattr(state, "reorder"):  # PyTorch's tensors have a `select`, which is another thing.
        return state.select(sentences, rows) if hasattr(state, "select") else state.reorder(rows)
    return _each_part(
        state, lambda part: select(part, sentences, rows), lambda tensor: take(tensor, rows)
    )


def _each_part(state, of_part, of_tensor):
    """The structure with each of its parts changed by a function; a tensor has none."""
    if isinstance(state, dict):
        return {key: of_part(value) for key, value in state.items()}
    if hasattr(state, "_fields"):  # a NamedTuple takes its parts one by one
        return type(state)(*map(of_part, state))
    if isinstance(state, tuple | list):
        return type(state)(map(of_part, state))
    return of_tensor(state)
