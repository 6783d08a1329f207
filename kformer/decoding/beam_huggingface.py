"""Beam search by the rules of Hugging Face's `generate`, for the same texts of an imported model.

It differs from `beam_search`:

- A score is divided by `length^alpha`, the end token counted, instead of by GNMT's
  `((5 + length) / 6)^alpha`.
- The 2 K best of all continuations, endings among them, are the candidates. Endings count only
  among the first K of them; the best K that do not end live on. (In `beam_search` every ending
  competes for the finished set.)
- `early_stopping` decides when a sentence with K finished hypotheses is done: `True` at once;
  `False` when the best live one, at its present length, ranks below the worst finished one;
  `"never"` when it would do so even at the longest length. The first two may stop before the best
  hypothesis is found.
- `"shrink"` is Marian's rule, not that library's: each finished hypothesis leaves a beam less for
  live ones, and a sentence is done when K are finished.

Shape letters: B sentences, K beams, C candidates, V vocabulary, L the longest hypothesis.
"""

from keras import ops

from kformer.decoding.beams import (
    add_finished,
    decoder_rows,
    last_tokens,
    penalized,
    run_beams,
    write_token,
)
from kformer.decoding.constraints import IMPOSSIBLE, at_most_columns
from kformer.decoding.decoders import reorder
from kformer.utils.backend import pick, stable_top_k


def huggingface_beam_search(
    step,
    state,
    limits,
    constraints,
    *,
    steps,
    beam_size,
    alpha=1.0,
    early_stopping=False,
    drop_finished=False,
    prompt=None,
):
    """Finds hypotheses by Hugging Face's rules.

    Args:
        step: function (ids int32 `[B K]`, state) -> (logits or log-probabilities `[B K, V]`,
            state), see `Decoder`.
        state: the step function's state, with `[B K]` rows; the K rows of a sentence are
            neighbours.
        limits: int32 tensor `[B]`. A hypothesis has at most one token more.
        constraints: `Constraints`. That library forbids no token by default (`forbidden=()`), and
            its end token at the limit is free (`at_limit="free_end"`) or not forced (`"any"`).
        steps: int, or scalar tensor where shapes are dynamic. L, usually `max(limits) + 1`. After
            fewer steps some sentences may not be done.
        beam_size: int. K.
        alpha: float, default 1.0. Exponent of the length; or a float32 tensor `[B]`, with that of
            each sentence.
        early_stopping: `True`, `False`, `"never"` or `"shrink"`, default `False`. See above.
        drop_finished: bool, default `False`. As for `beam_search`.
        prompt: int32 tensor `[B, P]`, default `None`. As for `beam_search`.

    Returns:
        `BeamResult`, as `beam_search`.

    References:
        The documentation of `generate` and of its `GenerationConfig` in the library `transformers`.
    """
    special = constraints.special

    def advance(beams):
        def ranks(scores, length):
            return penalized(scores, length, alpha, beams, _penalty)

        logits, decoder = step(last_tokens(beams, special.start_id), beams.decoder)
        at_limit = beams.length >= beams.limits  # [B]
        log_probabilities = constraints.log_probabilities(
            ops.cast(logits, "float32"), beams.length, (beams.prompt, beams.live_ids)
        )
        if constraints.at_limit != "any":
            numbers = ops.arange(ops.shape(log_probabilities)[-1], dtype="int32")
            is_end = numbers == special.end_id
            cost = 0.0 if constraints.at_limit == "free_end" else log_probabilities
            forced = ops.where(is_end, cost, IMPOSSIBLE)
            rows_at_limit = ops.expand_dims(ops.repeat(at_limit, beam_size), 1)
            log_probabilities = ops.where(rows_at_limit, forced, log_probabilities)
        scores, tokens, parents = _candidates(log_probabilities, beams.live_scores)  # [B, C]
        ids = pick(beams.live_ids, parents)  # [B, C, L]
        ids = write_token(ids, beams.length, ops.expand_dims(tokens, 2))
        ends = ops.logical_or(tokens == special.end_id, ops.expand_dims(at_limit, 1))

        places = beam_size
        if early_stopping == "shrink":
            is_finished = ops.logical_not(ops.isinf(beams.finished_ranks))
            places -= ops.sum(ops.cast(is_finished, "int32"), axis=1, keepdims=True)  # [B, 1]
        is_among_first = ops.arange(tokens.shape[1], dtype="int32") < places
        if early_stopping == "shrink":
            scores = ops.where(is_among_first, scores, IMPOSSIBLE)
        counts = ops.logical_and(ends, is_among_first)
        counts = ops.logical_and(counts, ops.expand_dims(beams.is_open, 1))
        counted = ops.where(counts, scores, IMPOSSIBLE)
        finished = add_finished(beams, ids, counted, ranks(counted, beams.length + 1))
        live_scores, indices = stable_top_k(ops.where(ends, IMPOSSIBLE, scores), beam_size)
        attainable = ranks(live_scores[:, 0], beams.length + 1)
        if early_stopping == "never":  # Scores only fall, so it is the highest at either length.
            at_longest = ranks(live_scores[:, 0], beams.limits + 1)
            attainable = ops.maximum(attainable, at_longest)
        worst = finished.finished_ranks[:, -1]  # minus infinity until K hypotheses are finished
        can_win = attainable > worst
        if early_stopping is True:
            can_win = ops.logical_and(can_win, ops.isinf(worst))
        elif early_stopping == "shrink":
            can_win = ops.logical_not(ops.isinf(live_scores[:, 0]))
        return finished._replace(
            length=beams.length + 1,
            live_ids=pick(ids, indices),
            live_scores=live_scores,
            is_open=ops.logical_and(
                ops.logical_and(can_win, beams.is_open), ops.logical_not(at_limit)
            ),
            decoder=reorder(decoder, decoder_rows(pick(parents, indices))),
        )

    return run_beams(
        advance, state, limits, beam_size, steps, constraints, drop_finished, prompt, alpha=alpha
    )


def _penalty(length, alpha):
    return ops.cast(length, "float32") ** alpha


def _candidates(log_probabilities, live_scores):
    """Scores, tokens and parents (beam numbers) of the 2 K best continuations of a sentence.

    Args:
        log_probabilities: float32 tensor `[B K, V]`.
        live_scores: float32 tensor `[B, K]`.

    Returns:
        Three tensors `[B, C]`.
    """
    sentences, beam_size = ops.shape(live_scores)[0], live_scores.shape[1]
    width = at_most_columns(2 * beam_size, log_probabilities)
    best, tokens = stable_top_k(log_probabilities, width)  # [B K, width]
    scores = ops.reshape(best, (sentences, beam_size, width)) + ops.expand_dims(live_scores, 2)
    shape = (sentences, beam_size * width)
    scores, indices = stable_top_k(ops.reshape(scores, shape), min(2 * beam_size, shape[1]))
    tokens = pick(ops.reshape(tokens, shape), indices)
    return scores, tokens, indices // width
