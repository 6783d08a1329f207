"""A plain search in NumPy, sentence by sentence, without a cache: what kformer's search must equal.

It shares no code with kformer's. `logits_of(prefixes)` gives the logits after each of some lists of
tokens; everything else is Python lists, sorted as the docstrings of the searches say.
"""

from typing import NamedTuple

import numpy as np


class Found(NamedTuple):
    """A hypothesis."""

    ids: tuple  # the end token included, if it has one
    score: float
    rank: float


class Special(NamedTuple):
    """The ids of the special tokens."""

    pad: int
    start: int
    end: int


class Oracle:
    """Searches for one sentence.

    Args:
        logits_of: function of a list of tuples of tokens, all of one length, to float64 logits.
        options: `SearchOptions`.
        special: `Special`.
        limit: int. The most tokens before the end token.

    Attributes:
        margin: float. The smallest difference of ranks by which something was decided; below the
            rounding of float32 another result is as good.
    """

    def __init__(self, logits_of, options, special, limit):
        self._logits_of, self._options, self._special = logits_of, options, special
        self._limit, self.margin = limit, np.inf
        self._is_kformer = options.mode == "kformer"
        forbidden = set(options.forbidden_ids)
        if self._is_kformer:
            forbidden |= {special.start, special.pad} - {special.end}
        self._forbidden, self._columns = forbidden, None
        if options.shortlist:
            allowed = {*options.shortlist, special.end} - (forbidden - {special.end})
            self._columns = sorted(allowed | set(options.prefix_ids))
            self._forbidden = forbidden | (set(self._columns) - allowed)

    def search(self):
        """The `n_best` hypotheses, best first."""
        if self._options.beam_size == 1 and not self._options.sampling:
            return [self._greedy()]
        return self._beam() if self._is_kformer else self._huggingface_beam()

    def log_probabilities(self, prefixes):
        """Log-probabilities of the next token after each prefix, minus infinity if forbidden."""
        length, options = len(prefixes[0]), self._options
        logits = np.asarray(self._logits_of(prefixes), "float64")
        result = np.full(logits.shape, -np.inf)
        columns = slice(None) if self._columns is None else self._columns
        result[:, columns] = _log_softmax(logits[:, columns])
        if length < len(options.prefix_ids):
            result[:] = -np.inf
            result[:, options.prefix_ids[length]] = 0
            return result
        result[:, sorted(self._forbidden)] = -np.inf
        if length < options.min_length:
            result[:, self._special.end] = -np.inf
        return _log_softmax(result) if options.renormalize else result

    def _penalty(self, length):
        base = (5 + length) / 6 if self._is_kformer else length
        return base**self._options.length_penalty

    def _best(self, candidates, count, key):
        """The best candidates; remembers how near the first left out is."""
        candidates = sorted(candidates, key=key, reverse=True)
        if len(candidates) > count:
            last, next_one = key(candidates[count - 1]), key(candidates[count])
            if np.isfinite(next_one):
                self._decided(last - next_one)
        return candidates[:count]

    def _decided(self, difference):
        if np.isfinite(difference):
            self.margin = min(self.margin, abs(float(difference)))

    def _greedy(self):
        options, end = self._options, self._special.end
        ids, score = (), 0.0
        while True:
            row = self.log_probabilities([ids])[0]
            first, second = np.sort(row)[::-1][:2]
            at_limit = len(ids) >= self._limit
            token = int(row.argmax())
            if at_limit and (self._is_kformer or options.forced_end):
                token = end
            else:
                self._decided(first - second)
            is_free = at_limit and not self._is_kformer and options.forced_end
            score += 0.0 if is_free else row[token]
            ids = (*ids, token)
            if at_limit or token == end:
                return Found(ids, score, score / self._penalty(len(ids)))

    def _beam(self):
        options, end = self._options, self._special.end
        live, finished = [((), 0.0)], []
        for length in range(self._limit + 1):
            rows = self.log_probabilities([ids for ids, _ in live])
            ended, longer = [], []
            for (ids, score), row in zip(live, rows, strict=True):
                total = score + row[end]
                ended.append(Found((*ids, end), total, total / self._penalty(length + 1)))
                longer += [((*ids, t), score + p) for t, p in enumerate(row) if t != end]
            ended = [found for found in ended if np.isfinite(found.score)]
            finished = self._best(finished + ended, options.beam_size, key=lambda f: f.rank)
            if length == self._limit:
                break
            longer = [item for item in longer if np.isfinite(item[1])]
            live = self._best(longer, options.beam_size, key=lambda item: item[1])
            if not live:
                break
            if options.early_stopping is True and len(finished) >= options.n_best:
                now = live[0][1] / self._penalty(length + 2)
                self._decided(now - finished[options.n_best - 1].rank)
                if now <= finished[options.n_best - 1].rank:
                    break
        return self._in_order(finished)

    def _huggingface_beam(self):
        options, end, width = self._options, self._special.end, self._options.beam_size
        live, finished = [((), 0.0)], []
        for length in range(self._limit + 1):
            at_limit = length >= self._limit
            rows = self.log_probabilities([ids for ids, _ in live])
            if at_limit and options.forced_end:
                rows[:] = -np.inf
                rows[:, end] = 0.0
            candidates = [
                ((*ids, token), score + p)
                for (ids, score), row in zip(live, rows, strict=True)
                for token, p in enumerate(row)
                if np.isfinite(p)
            ]
            candidates = self._best(candidates, 2 * width, key=lambda item: item[1])
            shrinks = options.early_stopping == "shrink"
            first = width - len(finished) if shrinks else width
            self._boundary(candidates, first)
            candidates = candidates[:first] if shrinks else candidates
            ends = [item for item in candidates[:first] if at_limit or item[0][-1] == end]
            ranked = [Found(ids, s, s / self._penalty(length + 1)) for ids, s in ends]
            finished = self._best(finished + ranked, width, key=lambda f: f.rank)
            live = [item for item in candidates if not at_limit and item[0][-1] != end]
            live = self._best(live, width, key=lambda item: item[1])
            if not live or not self._goes_on(live[0][1], finished, length):
                break
        return self._in_order(finished)

    def _goes_on(self, best, finished, length):
        """Whether a sentence of Hugging Face's search is not done."""
        options = self._options
        if len(finished) < options.beam_size:
            return True
        if options.early_stopping in (True, "shrink"):
            return False
        never = options.early_stopping == "never" and options.length_penalty > 0
        rank = best / self._penalty(self._limit + 1 if never else length + 1)
        self._decided(rank - finished[-1].rank)
        return rank > finished[-1].rank

    def _boundary(self, candidates, width):
        """Endings count only among the first: how near the first that does not count is."""
        if len(candidates) > width:
            self._decided(candidates[width - 1][1] - candidates[width][1])

    def _in_order(self, finished):
        finished = finished[: self._options.n_best + 1]
        for one, other in zip(finished, finished[1:], strict=False):
            self._decided(one.rank - other.rank)
        return finished[: self._options.n_best]


def _log_softmax(logits):
    with np.errstate(divide="ignore"):
        shifted = logits - logits.max(axis=-1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
