"""A toy decoder for tests of search, and searches of it in plain NumPy that share no code with the
package.
"""

import dataclasses
import importlib
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from kformer.decoding import Constraints

# The module in which tests replace the loop.
LOOP_MODULE = importlib.import_module("kformer.decoding.loop")


class Special(NamedTuple):
    """Ids of the special tokens; not those of `kformer.decoding.SpecialTokens`."""

    pad_id: int = 0
    start_id: int = 1
    end_id: int = 2

    @property
    def forbidden(self):
        return {self.pad_id, self.start_id} - {self.end_id}


class Toy:
    """A recurrent network with random weights; each sentence begins in a state of its own, so every
    sentence differs.

    What comes next depends on all tokens before, not on the last one alone. `sharpness` scales the
    logits, `end` is added to the end token's; `offset` adds to all logits of a row a number that
    its log-probabilities do not show."""

    def __init__(
        self,
        seed,
        sentences,
        vocabulary_size=12,
        hidden_dim=8,
        special=None,
        sharpness=4.0,
        end=-1.5,
        offset=0.0,
    ):
        rng = np.random.default_rng(seed)
        self.offset = offset
        self.special = Special() if special is None else special
        self.vocabulary_size = vocabulary_size
        self.start = rng.normal(size=(sentences, hidden_dim)).astype("float32")
        self.tokens = rng.normal(size=(vocabulary_size, hidden_dim)).astype("float32")
        self.recurrent = (rng.normal(size=(hidden_dim, hidden_dim)) * 1.5 / hidden_dim**0.5).astype(
            "float32"
        )
        self.output = (
            rng.normal(size=(hidden_dim, vocabulary_size)) * sharpness / hidden_dim**0.5
        ).astype("float32")
        self.bias = np.zeros(vocabulary_size, dtype="float32")
        self.bias[self.special.end_id] += end

    def step(self, ids, state):
        """The step function; its state is a dict of the hidden state `[R, H]`."""
        tokens, recurrent, output, bias = map(
            ops.convert_to_tensor, (self.tokens, self.recurrent, self.output, self.bias)
        )
        hidden = ops.tanh(ops.matmul(state["hidden"], recurrent) + ops.take(tokens, ids, axis=0))
        return ops.matmul(hidden, output) + bias + self.offset * hidden[:, :1], {"hidden": hidden}

    def state(self, width):
        """The step function's state before the first token, `width` rows per sentence."""
        return {"hidden": ops.convert_to_tensor(np.repeat(self.start, width, axis=0))}

    def log_probabilities(self, token, hidden):
        """The same step for one row in float64: log-probabilities `[V]` and the hidden state after
        it `[H]`.
        """
        hidden = np.tanh(hidden.astype("float64") @ self.recurrent + self.tokens[token])
        logits = hidden @ self.output + self.bias
        return logits - np.log(np.exp(logits).sum()), hidden

    def score(self, sentence, ids):
        """Log-probability of ids (the end token included, padding cut off) as a continuation of a
        sentence.
        """
        hidden, last, total = self.start[sentence], self.special.start_id, 0.0
        for token in ids:
            log_p, hidden = self.log_probabilities(last, hidden)
            total, last = total + log_p[token], token
        return total


class Hypothesis(NamedTuple):
    """A finished hypothesis of the oracle."""

    ids: tuple
    score: float
    rank: float


class Trace(NamedTuple):
    """What the oracle saw on the way."""

    permuted: int  # steps at which the live hypotheses' parents were not 0, 1, 2, ...
    late_winner: bool  # whether the winner finished after some other hypothesis
    first_step: int  # tokens of the hypothesis that finished first


def oracle_penalty(length, alpha):
    return ((5 + length) / 6) ** alpha


def oracle_beam(toy, sentence, limit, *, beam_size, alpha, min_length=0):
    """Beam search without early stopping over one sentence.

    Returns:
        The `beam_size` best hypotheses, best first, and the `Trace`.
    """
    special = toy.special
    allowed = [
        token
        for token in range(toy.vocabulary_size)
        if token not in special.forbidden | {special.end_id}
    ]
    live, finished, permuted = [((), 0.0, toy.start[sentence])], [], 0
    first_step = None
    for length in range(limit + 1):
        ended, continued = [], []
        for parent, (ids, score, hidden) in enumerate(live):
            log_p, hidden = toy.log_probabilities(ids[-1] if ids else special.start_id, hidden)
            if length >= min_length:
                total = score + log_p[special.end_id]
                ended.append(
                    Hypothesis(
                        (*ids, special.end_id), total, total / oracle_penalty(length + 1, alpha)
                    )
                )
            if length < limit:
                continued += [
                    ((*ids, token), score + log_p[token], hidden, parent) for token in allowed
                ]
        finished = sorted(finished + ended, key=lambda hypothesis: -hypothesis.rank)[:beam_size]
        first_step = len(finished[0].ids) if finished and first_step is None else first_step
        continued = sorted(continued, key=lambda candidate: -candidate[1])[:beam_size]
        parents = [candidate[3] for candidate in continued]
        permuted += length > 0 and parents != list(range(len(parents)))
        live = [candidate[:3] for candidate in continued]
    return finished, Trace(permuted, len(finished[0].ids) > first_step, first_step)


def oracle_greedy(toy, sentence, limit, min_length=0):
    """The most probable token at each step: ids with the end token, and their log-probability."""
    special, hidden, ids, total = toy.special, toy.start[sentence], [], 0.0
    while not ids or ids[-1] != special.end_id:
        log_p, hidden = toy.log_probabilities(ids[-1] if ids else special.start_id, hidden)
        choice = log_p.copy()
        choice[list(special.forbidden)] = -np.inf
        if len(ids) < min_length:
            choice[special.end_id] = -np.inf
        token = special.end_id if len(ids) >= limit else int(choice.argmax())
        ids.append(token)
        total += log_p[token]
    return tuple(ids), total


def cut(ids, special):
    """A row of a result without its padding, as a tuple; the padding is checked."""
    ids = [int(token) for token in ids]
    if special.end_id not in ids:
        assert set(ids) == {special.pad_id}
        return ()
    length = ids.index(special.end_id) + 1
    assert set(ids[length:]) <= {special.pad_id}
    return tuple(ids[:length])


def constraints_of(special, arguments):
    """`Constraints` of those of a dict's entries that are constraints, and a dict of the others."""
    names = [field.name for field in dataclasses.fields(Constraints)]
    chosen = {name: value for name, value in arguments.items() if name in names}
    others = {name: value for name, value in arguments.items() if name not in names}
    return Constraints(special, **chosen), others


def compiled(function):
    """The function, compiled as a whole on JAX, where compiling each operation takes longer."""
    if keras.backend.backend() != "jax":
        return function
    import jax

    return jax.jit(function)


def python_loop(visit):
    """A `while_loop` for the search that runs in Python on every backend and shows each state to
    `visit`.
    """

    def loop(condition, body, state):
        while ops.convert_to_numpy(condition(state)):
            state = body(state)
            visit(state)
        return state

    return loop
