"""Beam search over a step function.

Shape letters: B sentences, K beams, V vocabulary, L the longest hypothesis with its end token.
"""

from keras import ops

from kformer.decoding.allocation import allocated_continuations
from kformer.decoding.beams import (
    decoder_rows,
    first_state,
    last_tokens,
    merge_finished,
    run_beams,
    write_token,
)
from kformer.decoding.constraints import IMPOSSIBLE, log_softmax
from kformer.decoding.decoders import reorder
from kformer.decoding.row_constraints import follow, is_complete, is_empty, of_parents
from kformer.utils.backend import pick, stable_top_k


def length_penalty(length, alpha):
    """GNMT's divisor of the score of a hypothesis: `((5 + length) / 6)^alpha`.

    Args:
        length: int or integer tensor. The tokens of the hypothesis, the end token included.
        alpha: float. The exponent; 0 for no penalty.

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
        n_best: int, default 1. The number of best hypotheses that must be exact. The others are
            what was found by then.
        alpha: float, default 0.6. Exponent of the length penalty.
        early_stopping: bool, default `False`. Whether a sentence is done as soon as its `n_best`
            hypotheses rank above the best live one at its present length. That takes fewer steps,
            and may miss a longer hypothesis of a higher rank.
        drop_finished: bool, default `False`. Whether sentences that are done are no longer
            computed; needs a backend whose shapes may change inside a loop. The step function then
            gets fewer and fewer rows.
        prompt: int32 tensor `[B, P]`, default `None`, for the start token. The tokens before a
            hypothesis that count as repeated, for constraints with a `repetition`.
        rows: `RowConstraints` of tensors, default none; for constraints that are `by_row`. Where
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
        ValueError: the constraints ask for another end at the limit.

    Example:
        ```python
        from kformer.decoding import Constraints, SpecialTokens, beam_search

        table = ops.log(ops.convert_to_tensor([[0.0, 0.0, 0.4, 0.6], [0.0, 0.0, 0.9, 0.1]]))


        def step(ids, state):  # After the start token 3 is likely, after 3 the end token 2.
            return ops.take(table, ops.cast(ids == 3, "int32"), axis=0), state


        constraints = Constraints(SpecialTokens(pad_id=0, start_id=1, end_id=2))
        limits = ops.convert_to_tensor([4])
        found = beam_search(step, (), limits, constraints, steps=5, beam_size=2)
        found.ids[0, 0]  # [3, 2, 0, 0, 0]
        ```

    References:
        Wu et al. 2016, "Google's neural machine translation system", section 7.
    """
    if constraints.at_limit != "end":
        raise ValueError(
            "A hypothesis of beam_search at its limit must end at the cost of its end token, but "
            f'at_limit is "{constraints.at_limit}"; set it to "end".'
        )
    special = constraints.special

    def advance(beams):
        last = last_tokens(beams.live_ids, beams.length, special.start_id)
        logits, decoder = step(ops.reshape(last, (-1,)), beams.decoder)
        propose = _row_proposals if constraints.by_row else _proposals
        end_scores, scores, tokens, parents = propose(logits, beams, beam_size, constraints)
        if early_stopping:
            # Otherwise no later hypothesis can change the first entries of a done sentence.
            end_scores = ops.where(ops.expand_dims(beams.is_open, 1), end_scores, IMPOSSIBLE)
        length = beams.length + 1
        finished_ids, finished_scores, finished_ranks = merge_finished(
            beams,
            write_token(beams.live_ids, beams.length, special.end_id),
            end_scores,
            end_scores / penalty(length, alpha),
        )
        divisors = [penalty(length + 1, alpha)]
        if not early_stopping:
            divisors.append(penalty(beams.limits + 1, alpha))
        can_win = _can_win(scores, finished_ranks[:, n_best - 1], divisors)
        live_ids = write_token(
            pick(beams.live_ids, parents), beams.length, ops.expand_dims(tokens, 2)
        )
        return beams._replace(
            length=length,
            live_ids=live_ids,
            live_scores=scores,
            finished_ids=finished_ids,
            finished_scores=finished_scores,
            finished_ranks=finished_ranks,
            is_open=ops.logical_and(beams.is_open, can_win),
            decoder=reorder(decoder, decoder_rows(parents)),
            progress=_followed(beams, parents, tokens, constraints),
        )

    prompt = constraints.first_prompt(prompt, limits)
    beams = first_state(state, limits, beam_size, steps, special.pad_id, prompt, rows)
    return run_beams(advance, beams, steps, drop_finished)


def _can_win(live_scores, rank, divisors):
    """Which sentences have a live hypothesis that may still rank above `rank` `[B]`.

    Scores only fall, so a live hypothesis ranks highest at the shortest or the longest length that
    it may still have, whose penalties are the divisors.
    """
    best = live_scores[:, 0]
    attainable = best / divisors[0]
    for divisor in divisors[1:]:
        attainable = ops.maximum(attainable, best / divisor)
    return ops.greater(attainable, rank)


def _row_proposals(logits, beams, beam_size, constraints):
    """As `_proposals`, where sentences have constraints of their own."""
    log_probabilities = log_softmax(ops.cast(logits, "float32"))
    history = (beams.prompt, beams.live_ids)
    values = constraints.row_values(
        log_probabilities, beams.length, beams.rows, beams.progress, history, beam_size
    )
    end_id = constraints.special.end_id
    end_scores = _end_scores(values[:, end_id : end_id + 1], beams, beam_size, constraints)
    if is_empty(beams.rows.phrases):
        width = min(beam_size, logits.shape[-1])
        best, tokens, _ = constraints.best_continuations(values, width, beams.length)
        return end_scores, *_continuations(best, tokens, beams, beam_size)
    has_all = is_complete(beams.rows, beams.progress)
    end_scores = ops.where(has_all, end_scores, IMPOSSIBLE)
    return end_scores, *allocated_continuations(
        log_probabilities, values, beams, beam_size, constraints
    )


def _followed(beams, parents, tokens, constraints):
    """`Progress` of the hypotheses that live on."""
    if not constraints.by_row:
        return beams.progress
    progress = of_parents(beams.progress, parents)
    return follow(beams.rows, progress, tokens, constraints.joins)


def _proposals(logits, beams, beam_size, constraints):
    """What each live hypothesis proposes: to end, or to go on.

    Returns:
        The scores of ending here `[B, K]`; scores, tokens and parents (beam numbers) of the K best
        continuations, `[B, K]`.
    """
    logits = constraints.prepare_beams(logits, beams)
    width, end_id = min(beam_size, logits.shape[-1]), constraints.special.end_id
    # log-probability = logit - normaliser: only the few logits that matter are normalised.
    best, tokens, normaliser = constraints.best_continuations(
        logits, width, beams.length
    )  # [B K, width], [B K, width], [B K, 1]
    log_ends = logits[:, end_id : end_id + 1] - normaliser
    end_scores = _end_scores(log_ends, beams, beam_size, constraints)
    return end_scores, *_continuations(best - normaliser, tokens, beams, beam_size)


def _end_scores(log_ends, beams, beam_size, constraints):
    """The scores `[B, K]` of ending here, from log-probabilities of the end token `[B K, 1]`."""
    end_scores = beams.live_scores + ops.reshape(log_ends, (-1, beam_size))
    if constraints.forbids_end:
        at_limit = ops.expand_dims(beams.length >= beams.limits, 1)  # [B, 1]
        forced = beams.live_scores if constraints.end_is_free else end_scores
        end_scores = ops.where(at_limit, forced, IMPOSSIBLE)
    if constraints.min_length:
        end_scores = ops.where(beams.length < constraints.min_length, IMPOSSIBLE, end_scores)
    return end_scores


def _continuations(best, tokens, beams, beam_size):
    """Scores, tokens and parents `[B, K]` of the best continuations, from the log-probabilities of
    each hypothesis's best tokens, and the tokens, `[B K, width]`.
    """
    width = tokens.shape[1]
    at_limit = ops.expand_dims(beams.length >= beams.limits, 1)  # [B, 1]
    scores = ops.reshape(best, (-1, beam_size, width)) + ops.expand_dims(beams.live_scores, 2)
    scores = ops.where(at_limit, IMPOSSIBLE, ops.reshape(scores, (-1, beam_size * width)))
    scores, indices = stable_top_k(scores, beam_size)
    tokens = pick(ops.reshape(tokens, (-1, beam_size * width)), indices)
    return scores, tokens, indices // width
