"""Beam search over a step function.

Shape letters: B sentences, K beams, V vocabulary, L the longest hypothesis with its end token.
"""

from keras import ops

from kformer.decoding.allocation import allocated_continuations
from kformer.decoding.beams import (
    add_finished,
    decoder_rows,
    last_tokens,
    penalized,
    run_beams,
    write_token,
)
from kformer.decoding.constraints import IMPOSSIBLE, at_most_columns, log_softmax
from kformer.decoding.decoders import reorder
from kformer.decoding.row_constraints import follow, is_complete, is_empty, of_parents
from kformer.utils.backend import pick, stable_top_k
from kformer.utils.checks import check_choice


def length_penalty(length, alpha):
    """Returns GNMT's divisor of the score of a hypothesis: `((5 + length) / 6)^alpha`.

    Args:
        length: int or integer tensor. The tokens of the hypothesis, the end token included.
        alpha: float, or a tensor of that shape. The exponent; 0 for no penalty.

    Returns:
        float32 tensor of the shape of `length`.
    """
    return ((5.0 + ops.cast(length, "float32")) / 6.0) ** alpha


def beam_search(
    step,
    state,
    limits,
    constraints,
    *,
    steps,
    beam_size,
    n_best=1,
    alpha=0.6,
    early_stopping=False,
    drop_finished=False,
    prompt=None,
    rows=(),
    penalty=length_penalty,
):
    """Finds the hypotheses of the highest penalised log-probability that a beam of width K reaches.

    At each step every live hypothesis proposes two things: to end here, or to go on with one of its
    K best tokens. All endings compete for the K entries of the finished set, all continuations for
    the K entries of the live set. A finished hypothesis is never extended or scored again. A
    sentence is done when none of its live hypotheses could enter the first `n_best` entries of its
    finished set any more, even if every further token were certain (with `early_stopping`: even if
    it ended now at no cost). A hypothesis at its sentence's limit must end.

    Args:
        step: function (ids int32 `[B K]`, state) -> (logits or log-probabilities `[B K, V]`,
            state), see `Decoder`.
        state: the step function's state, with `[B K]` rows; the K rows of a sentence are
            neighbours.
        limits: int32 tensor `[B]`. The most tokens of a hypothesis before its end token.
        constraints: `Constraints`. Their `at_limit` must be `"end"`.
        steps: int, or scalar tensor where shapes are dynamic. L, usually `max(limits) + 1`. After
            fewer steps some sentences may not be done.
        beam_size: int. K.
        n_best: int, default 1. The number of best hypotheses that must be exact. The further ones
            are those that the search has found by then.
        alpha: float, default 0.6. The exponent of the length penalty; or a float32 tensor `[B]`,
            with that of each sentence.
        early_stopping: bool, default `False`. Whether a sentence is done as soon as its `n_best`
            hypotheses rank above the best live one at its present length. That takes fewer steps,
            and may miss a longer hypothesis of a higher rank.
        drop_finished: bool, default `False`. Whether sentences that are done are no longer
            computed; needs a backend whose shapes may change inside a loop. The step function then
            gets fewer and fewer rows.
        prompt: int32 tensor `[B, P]`, default `None`. The tokens before each hypothesis, which the
            `repetition` of the constraints counts; `None` for the start token.
        rows: `RowConstraints` of tensors, default none. They need constraints `by_row`. Where
            phrases must occur, a hypothesis ends only with all of them, and beams are allocated
            dynamically (see `kformer.decoding.allocation`). A limit below
            `row_constraints.num_tokens` may leave a sentence without hypothesis.
        penalty: function of a length and `alpha`, default `length_penalty`. The divisor of a score;
            it must grow with the length.

    Returns:
        `BeamResult`: ids int32 `[B, K, L]`, padded with `pad_id`; scores float32 `[B, K]` (sums of
        log-probabilities, the end token's included); ranks float32 `[B, K]` (scores after the
        length penalty); is_done bool `[B]`.

    Raises:
        ValueError: `at_limit` of the constraints is not `"end"`.

    Example:
        ```python
        from kformer.decoding import Constraints, SpecialTokens, beam_search

        table = ops.log(ops.convert_to_tensor([[0.0, 0.0, 0.4, 0.6], [0.0, 0.0, 0.9, 0.1]]))


        def step(ids, state):  # After the start token 3 is likely, after 3 the end token 2.
            return ops.take(table, ops.cast(ids == 3, "int32"), axis=0), state


        constraints = Constraints(SpecialTokens(pad_id=0, start_id=1, end_id=2))
        limits = ops.convert_to_tensor([4])
        result = beam_search(step, (), limits, constraints, steps=5, beam_size=2)
        result.ids[0, 0]  # [3, 2, 0, 0, 0]
        ```

    References:
        Wu et al. 2016, "Google's neural machine translation system", section 7.
    """
    check_choice("at_limit of a beam_search", constraints.at_limit, ["end"])
    special = constraints.special

    def advance(beams):
        def ranks(scores, length):
            return penalized(scores, length, alpha, beams, penalty)

        logits, decoder = step(last_tokens(beams, special.start_id), beams.decoder)
        end_scores, scores, tokens, parents = _proposals(logits, beams, constraints)
        if early_stopping:
            # A done sentence takes no more hypotheses. (Without early stopping, none that comes
            # later can enter its first `n_best` entries.)
            end_scores = ops.where(ops.expand_dims(beams.is_open, 1), end_scores, IMPOSSIBLE)
        length = beams.length + 1
        ended_ids = write_token(beams.live_ids, beams.length, special.end_id)
        finished = add_finished(beams, ended_ids, end_scores, ranks(end_scores, length))
        # Scores only fall, so a live hypothesis ranks highest at the shortest or the longest length
        # that it may still have.
        attainable = ranks(scores[:, 0], length + 1)
        if not early_stopping:
            attainable = ops.maximum(attainable, ranks(scores[:, 0], beams.limits + 1))
        can_win = attainable > finished.finished_ranks[:, n_best - 1]
        live_ids = pick(beams.live_ids, parents)
        live_ids = write_token(live_ids, beams.length, ops.expand_dims(tokens, 2))
        progress = beams.progress
        if constraints.by_row:
            progress = of_parents(progress, parents)
            progress = follow(beams.rows, progress, tokens, constraints.joins)
        return finished._replace(
            length=length,
            live_ids=live_ids,
            live_scores=scores,
            is_open=ops.logical_and(beams.is_open, can_win),
            decoder=reorder(decoder, decoder_rows(parents)),
            progress=progress,
        )

    return run_beams(
        advance, state, limits, beam_size, steps, constraints, drop_finished, prompt, rows, alpha
    )


def _proposals(logits, beams, constraints):
    """Computes the two proposals of each live hypothesis: to end, or to go on.

    Returns:
        The scores of ending here `[B, K]`; scores, tokens and parents (beam numbers) of the K best
        continuations, `[B, K]`.
    """
    beam_size, length = beams.live_scores.shape[1], beams.length
    width, end_id = at_most_columns(beam_size, logits), constraints.special.end_id
    history, joins = (beams.prompt, beams.live_ids), constraints.joins
    if constraints.by_row or constraints.repetition:
        logits = log_softmax(ops.cast(logits, "float32"))
    if constraints.by_row:
        values = constraints.row_values(logits, length, beams, history, beam_size)
    elif constraints.repetition:
        values = constraints.prepare(constraints.penalize(logits, length, *history), length)
    else:
        values = constraints.prepare(logits, length)
    # log-probability = logit - normaliser: only the few logits that matter are normalised.
    best, tokens, normaliser = constraints.best_continuations(values, width, length)  # [B K, width]
    log_ends = values[:, end_id : end_id + 1] - normaliser
    end_scores = beams.live_scores + ops.reshape(log_ends, (-1, beam_size))
    at_limit = ops.expand_dims(length >= beams.limits, 1)  # [B, 1]
    if constraints.forbids_end:
        forced = beams.live_scores if constraints.end_is_free else end_scores
        end_scores = ops.where(at_limit, forced, IMPOSSIBLE)
    if constraints.min_length:
        end_scores = ops.where(length < constraints.min_length, IMPOSSIBLE, end_scores)
    if constraints.by_row and not is_empty(beams.rows.phrases):
        has_all = is_complete(beams.rows, beams.progress)
        end_scores = ops.where(has_all, end_scores, IMPOSSIBLE)
        return end_scores, *allocated_continuations(logits, values, best, tokens, beams, joins)
    scores = ops.reshape(best - normaliser, (-1, beam_size, width))
    scores = scores + ops.expand_dims(beams.live_scores, 2)
    scores = ops.where(at_limit, IMPOSSIBLE, ops.reshape(scores, (-1, beam_size * width)))
    scores, indices = stable_top_k(scores, beam_size)
    tokens = pick(ops.reshape(tokens, (-1, beam_size * width)), indices)
    return end_scores, scores, tokens, indices // width
