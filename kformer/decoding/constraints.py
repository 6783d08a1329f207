"""The constraints of all hypotheses of a search, and its special tokens.

Shape letters: R rows, V vocabulary.
"""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from keras import ops

from kformer.decoding.repetition import NO_TOKEN, Repetition
from kformer.decoding.row_constraints import Joins, forbid_phrases, is_empty, prefix_tokens
from kformer.utils.backend import pick, prefers_few_passes, stable_top_k
from kformer.utils.checks import check_choice

IMPOSSIBLE = float("-inf")

# No `logsumexp` of a row with a finite logit is below it.
_LEAST = -1e30

# Up to this many forbidden tokens are removed from the best tokens of a row. More are masked in the
# whole row.
_FEW = 8


class SpecialTokens(NamedTuple):
    """The ids of the special tokens.

    Args:
        pad_id: int, default 0. The padding after the end token.
        start_id: int, default 2. What the decoder reads first.
        end_id: int, default 3. The last token of a hypothesis.
    """

    pad_id: int = 0
    start_id: int = 2
    end_id: int = 3

    @classmethod
    def of(cls, model):
        """The special tokens of a model, or of any object with the three attributes."""
        return cls(model.pad_id, model.start_id, model.end_id)


@dataclass(frozen=True)
class Constraints:
    """Which tokens a hypothesis may have; every search takes one such object.

    Args:
        special: `SpecialTokens`, default those of this package's own tokenizers.
        prefix: tuple of ids, default `()`. Every hypothesis begins with them. They cost nothing,
            and may be tokens that are forbidden elsewhere.
        forbidden: set of ids, default `None`. Tokens that are never generated after the prefix;
            `None` forbids the start and the padding token, unless one of them is the end token. At
            a limit an end token follows even if it is forbidden.
        min_length: int, default 0. The number of tokens before an end token is allowed.
        renormalize: bool, default `False`. Whether the probabilities of the allowed tokens sum to
            one again. Otherwise each token keeps its probability among all tokens.
        at_limit: str, default `"end"`. The token after a hypothesis at its limit: `"end"`, an end
            token, whose log-probability counts; `"free_end"`, an end token at no cost; `"any"`, one
            more token of any kind, and no end token.
        repetition: `Repetition`, default none. Penalties on tokens and n-grams that have occurred.
            With `at_limit="end"` an end token may always follow.
        by_row: bool, default `False`. Whether sentences have constraints of their own, which are
            tensors and come with a search (`RowConstraints`). Those need log-probabilities.
        joins: `Joins`, default `None`. Which tokens write no whole word; `None` for none.

    Raises:
        ValueError: `at_limit` is none of these.

    Example:
        ```python
        from kformer.decoding import Constraints, SpecialTokens

        special = SpecialTokens(pad_id=0, start_id=1, end_id=2)
        constraints = Constraints(special, prefix=(7,), min_length=3)
        constraints.forbidden_ids  # {0, 1}
        ```
    """

    special: SpecialTokens = SpecialTokens()
    prefix: tuple = ()
    forbidden: frozenset | None = None
    min_length: int = 0
    renormalize: bool = False
    at_limit: str = "end"
    repetition: Repetition = Repetition()
    by_row: bool = False
    joins: Joins | None = None

    def __post_init__(self):
        check_choice("at_limit", self.at_limit, ("end", "free_end", "any"))

    @property
    def forbidden_ids(self):
        """The set of ids that are never generated after the prefix."""
        if self.forbidden is not None:
            return set(self.forbidden)
        return {self.special.start_id, self.special.pad_id} - {self.special.end_id}

    @property
    def forbids_end(self):
        """Whether no end token is generated before the limit."""
        return self.special.end_id in self.forbidden_ids

    @property
    def end_is_free(self):
        """Whether the end token at a limit costs nothing.

        A forbidden end token is the only token that is allowed there, so its renormalized
        probability is one.
        """
        return self.at_limit == "free_end" or (self.renormalize and self.forbids_end)

    def prepare(self, logits, length):
        """Returns the float32 logits that a search ranks: renormalized if so set, prefix forced.

        Without `renormalize`, forbidden tokens keep their logits. `best_tokens`,
        `best_continuations` and `mask` leave them out later, among fewer numbers.

        Args:
            logits: float tensor `[R, V]`.
            length: int32 scalar tensor. The number of tokens so far.

        Returns:
            float32 tensor `[R, V]`.
        """
        logits = ops.cast(logits, "float32")
        if self.renormalize:
            return self.log_probabilities(logits, length)
        return force_prefix(logits, length, self.prefix)

    def first_prompt(self, prompt, limits):
        """Returns the tokens before each hypothesis that count as repeated; `()` without penalties.

        Args:
            prompt: int32 tensor `[B, P]` or `None`. `None` for the start token.
            limits: int32 tensor `[B]`. The limits of the search.
        """
        if not self.repetition:
            return ()
        if prompt is None:
            return ops.full((ops.shape(limits)[0], 1), self.special.start_id, dtype="int32")
        return prompt

    def penalize(self, scores, length, prompt, ids):
        """Returns scores `[R, V]` after penalties on repetition; arguments as in `Repetition`."""
        spared = self.special.end_id if self.at_limit == "end" else None
        return self.repetition(ops.cast(scores, "float32"), prompt, ids, length, spared)

    def row_values(self, values, length, state, history, width=1):
        """Returns the values that a search ranks where sentences have constraints of their own.

        Tokens that are not allowed have minus infinity, except a forbidden end token, which a limit
        may need.

        Args:
            values: float32 tensor `[R, V]`. Log-probabilities, or logits where they are sampled.
            length: int32 scalar tensor. The number of tokens so far.
            state: with `RowConstraints` and `Progress` of R / `width` sentences, such as a
                `BeamState`.
            history: pair of a prompt and ids, as `Repetition` takes them.
            width: int, default 1. Rows per sentence.

        Returns:
            float32 tensor `[R, V]`.
        """
        if self.repetition:
            values = self.penalize(values, length, *history)
        exempt = set() if self.renormalize else {self.special.end_id}
        values = _mask(values, self.forbidden_ids - exempt, self._too_early(length))
        values = forbid_phrases(values, state.rows, state.progress)
        if self.renormalize:
            values = log_softmax(values)
        if is_empty(state.rows.prefix):
            return values
        token = prefix_tokens(state.rows, length, width)
        is_token = ops.arange(ops.shape(values)[-1], dtype="int32") == token
        return ops.where(token == NO_TOKEN, values, ops.where(is_token, 0.0, IMPOSSIBLE))

    def log_probabilities(self, logits, length, history=None):
        """Returns log-probabilities under all constraints but the limit.

        Forbidden tokens have minus infinity.

        Args:
            logits: float32 tensor `[R, V]`.
            length: int32 scalar tensor. The number of tokens so far.
            history: pair of a prompt and ids, as `Repetition` takes them, default `None`. `None`
                penalises no repetition.

        Returns:
            float32 tensor `[R, V]`.
        """
        is_penalized = history is not None and self.repetition
        values = log_softmax(logits) if is_penalized or not self.renormalize else logits
        if is_penalized:
            values = self.penalize(values, length, *history)
        values = _mask(values, self.forbidden_ids, self._too_early(length))
        if self.renormalize:
            values = log_softmax(values)
        return force_prefix(values, length, self.prefix)

    def best_continuations(self, logits, k, length):
        """Returns the k best allowed tokens of each row, without the end token.

        Args:
            logits: float32 tensor `[R, V]`, from `prepare` or `row_values`.
            k: int, at most V.
            length: int32 scalar tensor. The number of tokens so far.

        Returns:
            As `best_tokens`.
        """
        forbidden, in_prefix = {*self.forbidden_ids, self.special.end_id}, self._in_prefix(length)
        if not self.by_row and not self.repetition:
            return best_tokens(logits, k, forbidden, unless=in_prefix)
        if self.by_row:  # The others are forbidden already, except in a sentence's own prefix.
            forbidden = {self.special.end_id}
        # The logits are log-probabilities already, which need not sum to one.
        best = stable_top_k(forbid(logits, forbidden, in_prefix), k)
        return *best, ops.zeros_like(logits[:, :1])

    def best_tokens(self, logits, k, length):
        """Returns the k best allowed tokens of each row, the end token included.

        Args and returns are those of `best_continuations`.
        """
        return best_tokens(logits, k, *self._still_forbidden(length))

    def mask(self, logits, length):
        """Returns logits `[R, V]` of `prepare` with minus infinity at forbidden tokens."""
        return _mask(logits, *self._still_forbidden(length))

    def _still_forbidden(self, length):
        """Returns the arguments `forbidden`, `too_early` and `unless` of `best_tokens`."""
        if self.renormalize:
            return (), None, None
        return self.forbidden_ids, self._too_early(length), self._in_prefix(length)

    def _too_early(self, length):
        """Returns the end token and whether it is too early for it; `None` without `min_length`."""
        return (self.special.end_id, length < self.min_length) if self.min_length else None

    def _in_prefix(self, length):
        """Returns whether the next token is in the prefix, boolean scalar; `None` without one."""
        return length < len(self.prefix) if self.prefix else None


def log_softmax(logits):
    """Returns log-probabilities of float32 logits `[R, V]`; minus infinity if all of a row are."""
    return logits - log_normaliser(logits)


def log_normaliser(logits):
    """Returns `logsumexp` of each row of float32 logits `[R, V]`, as `[R, 1]`.

    It is finite also where no token of a row is allowed: minus infinity less itself would be NaN.
    """
    return ops.maximum(ops.logsumexp(logits, axis=-1, keepdims=True), _LEAST)


def force_prefix(logits, length, prefix):
    """Returns logits that allow only the next token of the prefix, at no cost, until its end.

    Args:
        logits: float32 tensor `[R, V]`.
        length: int32 scalar tensor. The number of tokens so far.
        prefix: tuple of ids.

    Returns:
        float32 tensor `[R, V]`. Within the prefix its next token has the log-probability 0, and all
        others have minus infinity.
    """
    if not prefix:
        return logits
    index = ops.minimum(length, len(prefix) - 1)
    token = ops.take(ops.convert_to_tensor(prefix, dtype="int32"), index)
    columns = ops.arange(ops.shape(logits)[-1], dtype="int32")
    only = ops.where(columns == token, 0.0, IMPOSSIBLE)  # [V]
    return ops.where(length < len(prefix), only, logits)


def forbid(values, ids, unless=None):
    """Returns values with minus infinity at some tokens.

    Args:
        values: float32 tensor `[R, V]`.
        ids: iterable of ids.
        unless: boolean scalar tensor, default `None`. Where it is `True`, nothing is forbidden.

    Returns:
        float32 tensor `[R, V]`.
    """
    ids = sorted(set(ids))
    if not ids:
        return values
    # An addition is one pass over the values; `where` would be two.
    barrier = np.zeros(values.shape[-1] or ids[-1] + 1, "float32")
    barrier[ids] = IMPOSSIBLE
    barrier = ops.convert_to_tensor(barrier)
    if values.shape[-1] is None:
        others = ops.zeros((ops.shape(values)[-1] - ids[-1] - 1,), "float32")
        barrier = ops.concatenate([barrier, others])
    return values + (barrier if unless is None else ops.where(unless, 0.0, barrier))


def best_tokens(logits, k, forbidden, too_early=None, unless=None):
    """Returns the k best tokens of each row that are not forbidden, best first.

    Args:
        logits: float32 tensor `[R, V]`.
        k: int, at most V.
        forbidden: iterable of ids.
        too_early: pair of an id and a boolean scalar tensor, default `None`. The id is forbidden,
            too, where the tensor is `True`.
        unless: boolean scalar tensor, default `None`. Where it is `True`, the ids in `forbidden`
            are allowed.

    Returns:
        The tokens' logits `[R, k]` (minus infinity where fewer than k are allowed), the tokens
        int32 `[R, k]`, and the `logsumexp` of all logits of each row `[R, 1]`.
    """
    forbidden = sorted(set(forbidden))
    if unless is not None or len(forbidden) > _FEW or not prefers_few_passes():
        best = stable_top_k(_mask(logits, forbidden, too_early, unless), k)
        return *best, ops.logsumexp(logits, axis=-1, keepdims=True)
    # The best tokens, and as many more as may be forbidden: this saves a pass over all logits.
    count = at_most_columns(k + len(forbidden) + (too_early is not None), logits)
    values, tokens = stable_top_k(logits, count)
    # `logsumexp` by the softmax, which is one operation where `logsumexp` is five.
    normaliser = values[:, :1] - ops.log(pick(ops.softmax(logits), tokens[:, :1]))
    matches = [tokens == token for token in forbidden]
    if too_early is not None:
        matches.append(ops.logical_and(tokens == too_early[0], too_early[1]))
    if matches:
        is_forbidden = functools.reduce(ops.logical_or, matches)
        values, indices = stable_top_k(ops.where(is_forbidden, IMPOSSIBLE, values), k)
        tokens = pick(tokens, indices)
    return values, tokens, normaliser


def at_most_columns(k, logits):
    """Returns `k`, or the number of columns of logits `[R, V]` if that is known to be less.

    A graph does not know the columns of a union of lists. There are enough (`fixed_tokens`).
    """
    return min(k, logits.shape[-1] or k)


def _mask(logits, forbidden, too_early=None, unless=None):
    """Returns logits with minus infinity at forbidden tokens; arguments as in `best_tokens`."""
    logits = forbid(logits, forbidden, unless)
    if too_early is None:
        return logits
    return forbid(logits, [too_early[0]], unless=ops.logical_not(too_early[1]))
