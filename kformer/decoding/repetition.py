"""Penalties on repetition, as in Hugging Face's `generate`.

Tokens that have occurred become less likely, or no n-gram occurs twice.

Shape letters: R rows, V vocabulary, P tokens of a prompt, L the longest hypothesis, H = P + L.
"""

from dataclasses import dataclass

from keras import ops

from kformer.utils.backend import pick, take

# Stands where a row has no token: in front of a shorter prompt, and after the newest token.
NO_TOKEN = -1


@dataclass(frozen=True)
class Repetition:
    """The cost of repetition; an object that is false where it costs nothing.

    The tokens of the prompt count, too: the start token of an encoder-decoder, all tokens that a
    language model continues.

    Args:
        penalty: float, default 1.0. Where a token has occurred, a negative score is multiplied by
            it, another divided. Above 1 it makes repetition less likely, below 1 more.
        ngram_size: int, default 0. No n-gram of so many tokens occurs twice; 0 for no limit.

    Example:
        ```python
        from kformer.decoding.repetition import Repetition

        repetition = Repetition(penalty=2.0)
        prompt, ids = ops.convert_to_tensor([[1]]), ops.convert_to_tensor([[3, 0]])
        # The prompt and the first of the ids count.
        repetition(ops.convert_to_tensor([[4.0, 4.0, 4.0, -4.0]]), prompt, ids, length=1)
        # [[4.0, 2.0, 4.0, -8.0]]
        ```

    References:
        Keskar et al. 2019, "CTRL: a conditional transformer language model for controllable
        generation", section 4.1 (the penalty). Paulus et al. 2017, "A deep reinforced model for
        abstractive summarization", section 2.5 (n-grams).
    """

    penalty: float = 1.0
    ngram_size: int = 0

    def __bool__(self):
        return self.penalty != 1 or self.ngram_size > 0

    def __call__(self, scores, prompt, ids, length, spared=None):
        """Scores after the penalty, with minus infinity at tokens that would end a repeated n-gram.

        Args:
            scores: float32 tensor `[R, V]`. Logits or log-probabilities.
            prompt: int32 tensor `[R / K, P]`, the same for K neighbouring rows. `NO_TOKEN` may
                stand in front; a number from V on counts as a token, and has no score.
            ids: int32 tensor `[R, L]`, or `[R / K, K, L]` with K beams.
            length: int32 scalar tensor. The number of tokens in `ids` so far.
            spared: int, default `None`. A token that may end a repeated n-gram.

        Returns:
            float32 tensor `[R, V]`.
        """
        longest = ops.shape(ids)[-1]
        if len(ids.shape) == 3:
            prompt, ids = ops.repeat(prompt, ids.shape[1], axis=0), ops.reshape(ids, (-1, longest))
        ids = ops.where(ops.arange(longest, dtype="int32") < length, ids, NO_TOKEN)
        history = ops.concatenate([prompt, ids], axis=1)  # [R, H]
        if self.penalty != 1:
            scores = _change(scores, history, ops.ones_like(history, dtype="bool"), self._penalise)
        if self.ngram_size:
            is_repeated = self._repeated(history, ops.shape(prompt)[1] + length)
            if spared is not None:
                is_repeated = ops.logical_and(is_repeated, history != spared)
            scores = forbid_tokens(scores, history, is_repeated)
        return scores

    def _penalise(self, scores):
        return ops.where(scores < 0, scores * self.penalty, scores / self.penalty)

    def _repeated(self, history, length):
        """Which tokens of a history `[R, H]` come after the n - 1 tokens that its first `length`
        tokens end with, boolean `[R, H]`.
        """
        context = self.ngram_size - 1
        windows = ops.shape(history)[1]
        # Padded on the left, so that every token ends a window, also in a short history.
        padded = ops.pad(history, ((0, 0), (context, 0)), constant_values=NO_TOKEN)
        last = take(padded, length + ops.arange(context, dtype="int32"), axis=1)  # [R, n - 1]
        is_repeated = ops.ones_like(history, dtype="bool")
        for index in range(context):
            equal = padded[:, index : index + windows] == last[:, index : index + 1]
            is_repeated = ops.logical_and(is_repeated, equal)
        return is_repeated


def forbid_tokens(scores, tokens, is_meant):
    """Scores `[R, V]` with minus infinity at those of some tokens `[R, H]` that are meant."""
    return _change(scores, tokens, is_meant, lambda scores: ops.full_like(scores, float("-inf")))


def _change(scores, tokens, is_meant, change):
    """Scores `[R, V]` after a change of those of some tokens, each changed once.

    Args:
        scores: float32 tensor `[R, V]`.
        tokens: int32 tensor `[R, H]`. A token may occur several times. Numbers outside the
            vocabulary are left out.
        is_meant: boolean tensor `[R, H]`. Which of the tokens are meant.
        change: function of a float32 tensor `[R, H]` to another.
    """
    rows, size = ops.shape(tokens)
    is_meant = ops.logical_and(
        is_meant, ops.logical_and(tokens >= 0, tokens < ops.shape(scores)[1])
    )
    # Masked entries write token 0's own value, so that all writes to one score agree.
    tokens = ops.where(is_meant, tokens, 0)
    is_first = ops.logical_and(is_meant, tokens == 0)
    is_meant = ops.logical_or(is_meant, ops.any(is_first, axis=1, keepdims=True))
    values = pick(scores, tokens)
    values = ops.where(is_meant, change(values), values)
    row = ops.broadcast_to(ops.expand_dims(ops.arange(rows, dtype="int32"), 1), (rows, size))
    indices = ops.reshape(ops.stack([row, tokens], axis=2), (-1, 2))
    return ops.scatter_update(scores, indices, ops.reshape(values, (-1,)))
