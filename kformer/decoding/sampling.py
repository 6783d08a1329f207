"""Token-by-token generation: the most probable token (greedy search), or a sampled one.

Shape letters: R rows (sentences times samples), V vocabulary, L the longest hypothesis with its end
token, W rows per sentence.
"""

from typing import Any, NamedTuple

from keras import ops

from kformer.decoding.constraints import IMPOSSIBLE, forbid, log_normaliser, log_softmax
from kformer.decoding.loop import run_steps
from kformer.decoding.repetition import NO_TOKEN
from kformer.decoding.row_constraints import first_progress, follow, is_empty, prefix_tokens
from kformer.layers.counter_hash import fold_key, uniform
from kformer.utils.backend import pick, stable_top_k


class Sampling(NamedTuple):
    """How random tokens are sampled.

    Args:
        temperature: float, default 1.0. Logits are divided by it.
        top_k: int, default 0. Only the k most probable tokens are sampled; 0 for all.
        top_p: float, default 1.0. Only the fewest tokens whose probabilities reach p are sampled.
        seed: int or int32 scalar tensor, default 0.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: Any = 0


class SampleState(NamedTuple):
    """The state of a search after `length` steps."""

    length: Any  # int32 scalar
    last: Any  # int32 [R], the previous token
    ids: Any  # int32 [R, L], the end token included
    scores: Any  # float32 [R], sums of log-probabilities under the model
    is_done: Any  # bool [R]
    limits: Any  # int32 [R], the most tokens before the end token
    row_numbers: Any  # int32 [R], on which the random numbers depend
    decoder: Any  # the step function's state, R rows
    prompt: Any = ()  # int32 [R, P] where repetition is penalised: the tokens before, right-aligned
    rows: Any = ()  # `RowConstraints` where sentences have their own, R rows
    progress: Any = ()  # `Progress` with them, one hypothesis per row


class SampleResult(NamedTuple):
    """The result of `sample`."""

    ids: Any  # int32 [R, L]
    scores: Any  # float32 [R]
    is_done: Any  # bool [R / W]; `False` where the steps ran out before the sentence was done


def sample(
    step,
    state,
    limits,
    constraints,
    *,
    steps,
    sampling=None,
    row_numbers=None,
    rows_per_sentence=1,
    drop_finished=False,
    prompt=None,
    rows=(),
):
    """Extends each row by one token at a time until its end token.

    Args:
        step: function (ids int32 `[R]`, state) -> (logits or log-probabilities `[R, V]`, state),
            see `Decoder`.
        state: the step function's state, with R rows.
        limits: int32 tensor `[R]`. The most tokens before the end token.
        constraints: `Constraints`.
        steps: int, or scalar tensor where shapes are dynamic. L, usually `max(limits) + 1`. After
            fewer steps some rows may not be done.
        sampling: `Sampling`, default `None`. `None` takes the most probable token (greedy search).
        row_numbers: int32 tensor `[R]`, default `None`. The random numbers of a row depend on the
            seed, its number and its own logits alone. `None` counts the rows.
        rows_per_sentence: int, default 1. W: so many rows, neighbours, are the samples of one
            sentence.
        drop_finished: bool, default `False`. Whether sentences all of whose rows are done are no
            longer computed; needs a backend whose shapes may change inside a loop. The step
            function then gets fewer and fewer rows.
        prompt: int32 tensor `[R, P]`, default `None`, for the start token. The tokens before a
            hypothesis that count as repeated, for constraints with a `repetition`.
        rows: `RowConstraints` of tensors with R rows, default none; for constraints that are
            `by_row`. No phrase may have to occur: that needs a beam.

    Returns:
        `SampleResult`: ids int32 `[R, L]`, padded with `pad_id`; scores float32 `[R]`, the sum of
        the log-probabilities that the model (at temperature 1, unfiltered) gives to the tokens, the
        end token included; is_done bool `[R / W]`.

    Example:
        ```python
        from kformer.decoding import Constraints, Sampling, SpecialTokens, sample

        logits = ops.convert_to_tensor([[0.0, 0.0, 1.0, 2.0, 2.0]])


        def step(ids, state):  # The same logits at every step.
            return ops.repeat(logits, ids.shape[0], axis=0), state


        constraints = Constraints(SpecialTokens(pad_id=0, start_id=1, end_id=2))
        limits = ops.convert_to_tensor([4, 4])
        found = sample(step, (), limits, constraints, steps=5, sampling=Sampling(seed=1))
        found.ids.shape  # (2, 5)
        ```
    """
    count = ops.shape(limits)[0]

    def is_live(state):
        live = ops.logical_not(state.is_done)
        if rows_per_sentence == 1:
            return live
        return ops.any(ops.reshape(live, (-1, rows_per_sentence)), axis=1)

    def outcome(state):
        if rows_per_sentence == 1:
            return state.ids, state.scores
        ids = ops.reshape(state.ids, (-1, rows_per_sentence, ops.shape(state.ids)[1]))
        return ids, ops.reshape(state.scores, (-1, rows_per_sentence))

    first = SampleState(
        length=ops.zeros((), dtype="int32"),
        last=ops.full((count,), constraints.special.start_id, dtype="int32"),
        ids=ops.full((count, steps), constraints.special.pad_id, dtype="int32"),
        scores=ops.zeros((count,), dtype="float32"),
        is_done=ops.zeros((count,), dtype="bool"),
        limits=limits,
        row_numbers=ops.arange(count, dtype="int32") if row_numbers is None else row_numbers,
        decoder=state,
        prompt=constraints.first_prompt(prompt, limits),
        rows=rows,
        progress=first_progress(rows, 1) if rows else (),
    )
    (ids, scores), is_done = run_steps(
        lambda state: _advance(state, step, constraints, sampling),
        is_live,
        outcome,
        first,
        steps,
        width=rows_per_sentence if drop_finished else None,
        per_row=True,
    )
    ids, scores = ops.reshape(ids, (count, ops.shape(ids)[-1])), ops.reshape(scores, (count,))
    return SampleResult(ids, scores, is_done)


def _advance(state, step, constraints, sampling):
    """The `SampleState` one step later."""
    raw, decoder = step(state.last, state.decoder)
    # Without `renormalize`, forbidden tokens cannot be chosen, but the score is the model's own.
    logits = candidates = constraints.prepare(raw, state.length)
    if constraints.by_row:
        logits, candidates = _row_candidates(raw, state, constraints)
    elif constraints.repetition:
        candidates = constraints.penalize(raw, state.length, state.prompt, state.ids)
        candidates = constraints.prepare(candidates, state.length)
        logits = candidates if constraints.renormalize else logits
    if sampling is None and not constraints.by_row:
        _, tokens, normaliser = constraints.best_tokens(candidates, 1, state.length)
        tokens, normaliser = tokens[:, 0], normaliser[:, 0]
    elif sampling is None:
        tokens = ops.cast(ops.argmax(candidates, axis=1), "int32")
    else:
        keys = fold_key(0, sampling.seed, state.row_numbers, state.length)
        if not constraints.by_row:
            candidates = constraints.mask(candidates, state.length)
        tokens = _sampled(candidates, sampling, keys)
    if sampling is not None or constraints.repetition or constraints.by_row:
        normaliser = log_normaliser(logits)[:, 0]
    at_limit = state.length >= state.limits
    if constraints.at_limit != "any":
        tokens = ops.where(at_limit, constraints.special.end_id, tokens)
    log_probabilities = _token_of(logits, tokens) - normaliser
    if constraints.end_is_free:
        log_probabilities = ops.where(at_limit, 0.0, log_probabilities)
    is_here = ops.arange(ops.shape(state.ids)[1], dtype="int32") == state.length
    writes = ops.logical_and(is_here, ops.expand_dims(ops.logical_not(state.is_done), 1))
    ends = ops.logical_or(tokens == constraints.special.end_id, at_limit)
    progress = state.progress
    if constraints.by_row:
        progress = follow(state.rows, progress, ops.expand_dims(tokens, 1), constraints.joins)
    return state._replace(
        length=state.length + 1,
        last=tokens,
        ids=ops.where(writes, ops.expand_dims(tokens, 1), state.ids),
        scores=ops.where(state.is_done, state.scores, state.scores + log_probabilities),
        is_done=ops.logical_or(state.is_done, ends),
        decoder=decoder,
        progress=progress,
    )


def _row_candidates(raw, state, constraints):
    """The logits of the score, and those to choose from, where rows have their own constraints."""
    raw = ops.cast(raw, "float32")
    values = constraints.row_values(raw, state.length, state, (state.prompt, state.ids))
    if constraints.forbids_end:
        values = forbid(values, [constraints.special.end_id])
    if constraints.renormalize:
        return values, values
    log_probabilities = log_softmax(raw)
    if not is_empty(state.rows.prefix):
        in_prefix = prefix_tokens(state.rows, state.length, 1) != NO_TOKEN
        log_probabilities = ops.where(in_prefix, values, log_probabilities)
    return log_probabilities, values


def _sampled(logits, sampling, keys):
    """One token per row `[R]`, sampled from the filtered softmax of the logits `[R, V]`."""
    logits = logits / sampling.temperature
    size, top_k, top_p = logits.shape[-1], sampling.top_k, sampling.top_p
    candidates = None
    if top_k or top_p < 1:
        logits, candidates = stable_top_k(logits, min(top_k or size, size))  # sorted, best first
        if top_p < 1:
            probabilities = ops.softmax(logits, axis=-1)
            better = ops.cumsum(probabilities, axis=-1) - probabilities  # of all better tokens
            logits = ops.where(better < top_p, logits, IMPOSSIBLE)
    # Gumbel's trick: the maximum of logits plus Gumbel noise is a sample of their softmax.
    # log1p(-u), not log(u): float32 rounds the largest u up to 1. Its noise would be infinite, and
    # a forbidden token could win.
    noise = -ops.log(-ops.log1p(-uniform(ops.shape(logits)[0], logits.shape[-1], keys)))
    indices = ops.cast(ops.argmax(logits + noise, axis=-1), "int32")
    return indices if candidates is None else _token_of(candidates, indices)


def _token_of(matrix, columns):
    """`matrix[r, columns[r]]` for each row."""
    return pick(matrix, ops.expand_dims(columns, 1))[:, 0]
