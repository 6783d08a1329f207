"""The loop of every search, which drops the rows of sentences that are done.

A batch takes as many steps as its slowest sentence, but sentences that are done need no more
computing. Where shapes may change (TensorFlow and PyTorch), the loop pauses each time that a share
of its sentences is done, stores their results, and goes on with the rows of the others. The steps
of a sentence depend on its own rows alone, so its result is the same.

Shape letters: B sentences at first, C sentences that remain, W decoder rows per sentence.
"""

from typing import Any, NamedTuple

import keras
from keras import ops

from kformer.decoding.decoders import select
from kformer.utils.backend import take, while_loop

# The loop pauses when one sentence in this many is done. (A pause costs about as much as a step's
# reordering of beams.)
_SHARE = 4


class Shrinking(NamedTuple):
    """The state of the loop over pauses."""

    indices: Any  # int32 [C], the sentences that remain
    results: Any  # tuple of tensors [B, ...]
    state: Any  # the search's state, of C sentences


def run_steps(advance, is_live, outcome, state, steps, width=None, per_row=False):
    """Runs a search.

    Args:
        advance: function of a state to the state one step later.
        is_live: function of a state to a boolean tensor: which sentences go on. A sentence that is
            done stays done, and its part of `outcome` does not change any more.
        outcome: function of a state to a tuple of tensors, the results so far, sentences first.
        state: `NamedTuple` with an int32 scalar `length`, the steps so far, `decoder`, the step
            function's state, and other tensors, or tuples of them, with sentences first.
        steps: int or scalar tensor. The most steps.
        width: int, default `None`. W, to drop sentences that are done; `None` never drops any. The
            step function must then accept fewer rows than at first.
        per_row: bool, default `False`. Whether the state's tensors have one entry per decoder row,
            not one per sentence.

    Returns:
        The outcome, and a boolean tensor `[B]`: which sentences are done. The others did not finish
        within `steps`.
    """

    def result(state):
        return (*outcome(state), ops.logical_not(is_live(state)))

    def run_until(state, count):
        """Runs until at most `count` sentences go on."""

        def goes_on(state):
            live = ops.sum(ops.cast(is_live(state), "int32"))
            return ops.logical_and(state.length < steps, live > count)

        return while_loop(goes_on, advance, state)

    if width is None:
        *results, is_done = result(run_until(state, 0))
        return tuple(results), is_done

    def goes_on(loop):
        return ops.logical_and(loop.state.length < steps, ops.shape(loop.indices)[0] > 0)

    def run_and_drop(loop):
        count = ops.shape(loop.indices)[0]
        state = run_until(loop.state, count - ops.maximum(count // _SHARE, 1))
        indices = ops.expand_dims(loop.indices, 1)
        results = tuple(
            ops.scatter_update(old, indices, new)
            for old, new in zip(loop.results, result(state), strict=True)
        )
        live = ops.cast(ops.nonzero(is_live(state))[0], "int32")
        state = keep_sentences(state, live, width, per_row)
        return Shrinking(take(loop.indices, live), results, state)

    results = result(state)
    loop = Shrinking(ops.arange(ops.shape(results[-1])[0], dtype="int32"), results, state)
    *results, is_done = while_loop(goes_on, run_and_drop, loop).results
    return tuple(results), is_done


def keep_sentences(state, sentences, width, per_row=False):
    """Returns the state of a search with some of its sentences alone.

    Args:
        state: `NamedTuple`, as in `run_steps`.
        sentences: int32 tensor `[C]`. The indices of the sentences.
        width: int. W, decoder rows per sentence.
        per_row: bool, default `False`. As in `run_steps`.

    Returns:
        A state of the same kind.
    """
    rows = sentences
    if width > 1:
        rows = ops.expand_dims(sentences * width, 1) + ops.arange(width, dtype="int32")
        rows = ops.reshape(rows, (-1,))
    indices = rows if per_row else sentences
    values = {
        name: keras.tree.map_structure(lambda tensor: take(tensor, indices), value)
        for name, value in state._asdict().items()
        if name not in ("length", "decoder")
    }
    return state._replace(**values, decoder=select(state.decoder, sentences, rows))
