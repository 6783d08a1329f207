"""Token-by-token generation: the most probable token (greedy search), or a draw.

Shape letters: R rows (sentences times draws), V vocabulary, L the longest hypothesis with its end
token."""

from typing import Any, NamedTuple

from keras import ops

from kformer.decoding.beams import IMPOSSIBLE, bar, best_tokens, constrain, force_prefix
from kformer.decoding.loop import run_steps
from kformer.layers.counter_hash import fold_key, uniform
from kformer.utils.backend import pick, stable_top_k


class SampleState(NamedTuple):
    """What is known after `length` steps."""

    length: Any  # int32 scalar
    last: Any  # int32 [R], the token before
    ids: Any  # int32 [R, L], the end token included
    scores: Any  # float32 [R], sums of log-probabilities under the model
    is_done: Any  # bool [R]
    limits: Any  # int32 [R], the most tokens before the end token
    row_numbers: Any  # int32 [R], on which the draws depend
    decoder: Any  # the step function's state, R rows


def sample(
    step,
    state,
    limits,
    *,
    start_id,
    end_id,
    pad_id,
    steps,
    min_length=0,
    greedy=True,
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    seed=0,
    row_numbers=None,
    prefix=(),
    forbidden=None,
    renormalize=False,
    forced_end=True,
    charges_forced_end=True,
    rows_per_sentence=1,
    drop_finished=False,
    return_done=False,
):
    """Extends each row by one token at a time until its end token.

    Args:
        step: function (ids int32 `[R]`, state) -> (logits or log-probabilities `[R, V]`, state).
        state: the step function's state, with R rows.
        limits: int32 tensor `[R]`, the most tokens before the end token.
        start_id, end_id, pad_id: ids; results are filled up with padding.
        steps: L, at least `max(limits) + 1`; an int, or a scalar tensor where shapes are dynamic.
        min_length: tokens that must stand before an end token.
        greedy: take the most probable token; otherwise draw one.
        temperature, top_k, top_p: as in `SearchOptions`, for draws.
        seed: int or int32 scalar tensor, of the draws.
        row_numbers: int32 tensor `[R]`; a row's draws depend on the seed, its number and its own
            logits alone. `None` counts the rows.
        prefix: ids that every row begins with; they cost nothing.
        forbidden: ids that are not generated; `None` for start and padding token.
        renormalize: whether the probabilities of what may be generated sum to one again.
        forced_end: whether the end token is set at the limit; otherwise any token may stand there,
            and the row is done.
        charges_forced_end: whether that end token counts in the score.
        rows_per_sentence: W, rows that belong together, next to each other: the draws of one
            sentence.
        drop_finished: whether sentences all of whose rows are done are no longer computed, where
            shapes may change inside a loop. The step function then gets ever fewer rows.
        return_done: whether to tell also which sentences are done; `steps` may then be fewer.

    Returns:
        ids int32 `[R, L]` and scores float32 `[R]`: the sum of the log-probabilities that the model
        (at temperature 1, unfiltered) gives to the tokens, the end token included. With
        `return_done` also a boolean tensor `[R / W]`.
    """
    rows = ops.shape(limits)[0]
    if row_numbers is None:
        row_numbers = ops.arange(rows, dtype="int32")
    if forbidden is None:
        forbidden = {start_id, pad_id} - {end_id}

    def advance(state):
        logits, decoder = step(state.last, state.decoder)
        logits = ops.cast(logits, "float32")
        # A token of the prefix may be one that is forbidden elsewhere.
        bars, unless = forbidden, state.length < len(prefix) if prefix else None
        too_soon = (end_id, state.length < min_length) if min_length else None
        if renormalize:
            logits = constrain(
                logits, state.length, end_id, min_length, prefix, forbidden, renormalize
            )
            bars, unless, too_soon = (), None, None
        else:  # What is forbidden cannot be chosen, but the score is the model's own.
            logits = force_prefix(logits, state.length, prefix)
        if greedy:
            _, tokens, normaliser = best_tokens(logits, 1, bars, too_soon, unless)
            tokens, normaliser = tokens[:, 0], normaliser[:, 0]
        else:
            allowed = bar(logits, bars, too_soon, unless)
            keys = fold_key(0, seed, state.row_numbers, state.length)
            tokens, normaliser = (
                _draw(allowed / temperature, top_k, top_p, keys),
                ops.logsumexp(logits, axis=-1),
            )
        at_limit = state.length >= state.limits
        if forced_end:
            tokens = ops.where(at_limit, end_id, tokens)
        log_probabilities = _token_of(logits, tokens) - normaliser
        if forced_end and not charges_forced_end:
            log_probabilities = ops.where(at_limit, 0.0, log_probabilities)
        is_here = ops.arange(ops.shape(state.ids)[1], dtype="int32") == state.length
        writes = ops.logical_and(is_here, ops.expand_dims(ops.logical_not(state.is_done), 1))
        return SampleState(
            length=state.length + 1,
            last=tokens,
            ids=ops.where(writes, ops.expand_dims(tokens, 1), state.ids),
            scores=ops.where(state.is_done, state.scores, state.scores + log_probabilities),
            is_done=ops.logical_or(state.is_done, ops.logical_or(tokens == end_id, at_limit)),
            limits=state.limits,
            row_numbers=state.row_numbers,
            decoder=decoder,
        )

    def is_live(state):
        is_live = ops.logical_not(state.is_done)
        return (
            is_live
            if rows_per_sentence == 1
            else ops.any(ops.reshape(is_live, (-1, rows_per_sentence)), axis=1)
        )

    def outcome(state):
        if rows_per_sentence == 1:
            return state.ids, state.scores
        ids = ops.reshape(state.ids, (-1, rows_per_sentence, ops.shape(state.ids)[1]))
        return ids, ops.reshape(state.scores, (-1, rows_per_sentence))

    state = SampleState(
        length=ops.zeros((), dtype="int32"),
        last=ops.full((rows,), start_id, dtype="int32"),
        ids=ops.full((rows, steps), pad_id, dtype="int32"),
        scores=ops.zeros((rows,), dtype="float32"),
        is_done=ops.zeros((rows,), dtype="bool"),
        limits=limits,
        row_numbers=row_numbers,
        decoder=state,
    )
    width = rows_per_sentence if drop_finished else None
    (ids, scores), is_done = run_steps(advance, is_live, outcome, state, steps, width, per_row=True)
    ids, scores = ops.reshape(ids, (rows, ops.shape(ids)[-1])), ops.reshape(scores, (rows,))
    return (ids, scores, is_done) if return_done else (ids, scores)


def _draw(logits, top_k, top_p, keys):
    """One token per row `[R]`, drawn from the softmax of the logits `[R, V]` after the filters."""
    size = logits.shape[-1]
    if top_k or top_p < 1:
        logits, candidates = stable_top_k(logits, min(top_k or size, size))  # sorted, best first
        if top_p < 1:
            probabilities = ops.softmax(logits, axis=-1)
            before = ops.cumsum(probabilities, axis=-1) - probabilities
            logits = ops.where(before < top_p, logits, IMPOSSIBLE)
    # Gumbel's trick: the maximum of logits plus Gumbel noise is a draw from their softmax.
    # log1p(-u), not log(u): float32 rounds the largest u up to 1, whose noise would be infinite and
    # let a forbidden token win.
    noise = -ops.log(-ops.log1p(-uniform(ops.shape(logits)[0], logits.shape[-1], keys)))
    places = ops.cast(ops.argmax(logits + noise, axis=-1), "int32")
    if top_k or top_p < 1:
        return _token_of(candidates, places)
    return places


def _token_of(matrix, columns):
    """`matrix[r, columns[r]]` for each row."""
    return pick(matrix, ops.expand_dims(columns, 1))[:, 0]
