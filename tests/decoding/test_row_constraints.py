"""Phrases that must occur, phrases that must not, and prefixes, against all sequences there are."""

import numpy as np
import pytest
from keras import ops

from kformer.decoding import Constraints, Joins, RowConstraints, beam_search
from tests.decoding.toys import Toy, compiled, cut, oracle_penalty

TOKENS = (3, 4, 5)  # of a Toy with 6
LIMIT, ALPHA = 5, 0.6
SENTENCES, SETS = 25, 20  # 500 cases
# 4 goes on with a word, and so may what comes after 3 and 5.
JOINS = Joins(np.array([0, 0, 0, 0, 1, 0], bool), np.array([0, 0, 0, 1, 0, 1], bool))


def random_rows(rng, sentences):
    """Constraints that fit the limit: lists of prefix, phrases (lists of forms) and forbidden."""

    def phrase(most):
        return tuple(rng.choice(TOKENS, rng.integers(1, most + 1)).tolist())

    rows = []
    while len(rows) < sentences:
        prefix = phrase(2) if rng.random() < 0.3 else ()
        phrases = [[phrase(2) for _ in range(rng.integers(1, 3))] for _ in range(rng.integers(3))]
        forbidden = [phrase(3) for _ in range(rng.integers(3))]
        if len(prefix) + sum(min(map(len, forms)) for forms in phrases) <= LIMIT:
            rows.append((prefix, phrases, forbidden))
    return rows


def arrays_of(rows):
    """`RowConstraints` of arrays."""
    prefix = np.full((len(rows), 2), -1, "int32")
    phrases = np.full((len(rows), 2, 2, 2), -1, "int32")
    forbidden = np.full((len(rows), 2, 3), -1, "int32")
    for i, (first, musts, must_nots) in enumerate(rows):
        prefix[i, : len(first)] = first
        for c, forms in enumerate(musts):
            for a, form in enumerate(forms):
                phrases[i, c, a, : len(form)] = form
        for f, phrase in enumerate(must_nots):
            forbidden[i, f, : len(phrase)] = phrase
    return RowConstraints(prefix, phrases, forbidden)


def occurs(phrase, ids, joins=None):
    """Whether a phrase occurs in ids without end token, and its last word ends."""
    for start in range(len(ids) - len(phrase) + 1):
        behind = start + len(phrase)
        if ids[start:behind] == phrase:
            goes_on = behind < len(ids) and joins is not None
            if not (goes_on and joins.is_open[phrase[-1]] and joins.continues[ids[behind]]):
                return True
    return False


def is_allowed(ids, row, joins):
    """Whether ids without end token keep the constraints. What must occur, and the prefix, may
    contain what is forbidden; so no forbidden phrase counts that ends within one of them.
    """
    prefix, phrases, forbidden = row
    if ids[: len(prefix)] != prefix:
        return False
    if not all(any(occurs(form, ids, joins) for form in forms) for forms in phrases):
        return False
    return not any(occurs(phrase, ids) for phrase in forbidden)


class AllSequences:
    """The scores of all sequences of each sentence of a Toy."""

    def __init__(self, toy, sentences):
        self.found = []
        for sentence in range(sentences):
            scores = {}
            self._extend(toy, scores, (), 0.0, toy.special.start_id, toy.start[sentence])
            self.found.append(scores)

    def _extend(self, toy, scores, ids, score, last, hidden):
        log_p, hidden = toy.log_probabilities(last, hidden)
        scores[ids] = (score, log_p[toy.special.end_id], log_p)
        if len(ids) < LIMIT:
            for token in TOKENS:
                self._extend(toy, scores, (*ids, token), score + log_p[token], token, hidden)

    def best(self, sentence, row, joins):
        """The best allowed sequence with its end token, its score and its rank."""
        scores, prefix = self.found[sentence], len(row[0])
        found = []
        for ids, (score, end, _) in scores.items():
            if is_allowed(ids, row, joins):
                total = score - scores[ids[:prefix]][0] + end  # The prefix costs nothing.
                rank = total / oracle_penalty(len(ids) + 1, ALPHA)
                found.append((rank, total, ids))
        return max(found, default=None)


@pytest.fixture(scope="module")
def toy():
    return Toy(3, SENTENCES, vocabulary_size=6, sharpness=2.0)


@pytest.fixture(scope="module")
def everything(toy):
    return AllSequences(toy, SENTENCES)


@pytest.fixture(scope="module")
def searches(toy):
    """A function of constraints of 25 sentences, a beam and joins to a `BeamResult` of arrays."""
    runs = {}

    def search(rows, beam_size, joins):
        if (key := (beam_size, joins is None)) not in runs:
            constraints = Constraints(toy.special, by_row=True, joins=joins)

            @compiled
            def run(*parts):
                limits = ops.full((SENTENCES,), LIMIT, dtype="int32")
                arguments = (toy.state(beam_size), limits, constraints)
                return beam_search(
                    toy.step,
                    *arguments,
                    steps=LIMIT + 1,
                    beam_size=beam_size,
                    alpha=ALPHA,
                    rows=RowConstraints(*parts),
                )

            runs[key] = run
        parts = map(ops.convert_to_tensor, arrays_of(rows))
        return [ops.convert_to_numpy(part) for part in runs[key](*parts)]

    return search


@pytest.mark.heavy
@pytest.mark.parametrize("joins", [None, JOINS], ids=["tokens", "words"])
@pytest.mark.any_backend(quickest="torch")
def test_a_beam_that_keeps_everything_finds_the_best(toy, everything, searches, joins, rng):
    """500 cases: three tokens to the power of the limit hypotheses."""
    compared = impossible = forced = 0
    for _ in range(SETS // 2):
        rows = random_rows(rng, SENTENCES)
        ids, scores, ranks, _ = searches(rows, len(TOKENS) ** LIMIT, joins)
        for i, row in enumerate(rows):
            best = everything.best(i, row, joins)
            if best is None or any(occurs(bad, row[0]) for bad in row[2]):
                impossible += 1
                continue
            if any(
                occurs(bad, form) for forms in row[1] for form in forms for bad in row[2]
            ):  # What must occur contains what must not.
                forced += 1
                continue
            compared += 1
            rank, total, expected = best
            assert cut(ids[i, 0], toy.special)[:-1] == expected, (row, rank, ranks[i, 0])
            np.testing.assert_allclose([ranks[i, 0], scores[i, 0]], [rank, total], atol=1e-4)
    assert compared > 150, (compared, impossible, forced)


@pytest.mark.parametrize("beam_size", [2, 4])
def test_a_narrow_beam_finds_hypotheses_with_all_phrases(toy, everything, searches, beam_size, rng):
    best_found = compared = 0
    for _ in range(2):
        rows = [(prefix, phrases, []) for prefix, phrases, _ in random_rows(rng, SENTENCES)]
        ids, scores, ranks, is_done = searches(rows, beam_size, JOINS)
        assert is_done.all() and np.isfinite(scores[:, 0]).all()
        for i, row in enumerate(rows):
            for hypothesis in ids[i][np.isfinite(scores[i])]:
                assert is_allowed(cut(hypothesis, toy.special)[:-1], row, JOINS), row
            rank = everything.best(i, row, JOINS)[0]
            assert ranks[i, 0] <= rank + 1e-4
            compared, best_found = compared + 1, best_found + (ranks[i, 0] > rank - 1e-4)
    assert best_found > compared / 2
