"""The length penalty and the limits that a validation set chooses."""

import numpy as np
import pytest
from keras import ops

from kformer.decoding import SearchOptions
from kformer.decoding.beam import length_penalty
from kformer.evaluation import choose_search, length_limits
from kformer.evaluation.scores import corpus_bleu, is_better
from kformer.translating.translation import Hypothesis, Translation

pytestmark = pytest.mark.any_backend

SHORT, LONG = "a b c d e f", "a b c d e f g h i j k l"
# Probabilities per token at which the long text ranks first from a length penalty of 1.2 on.
SHORT_SCORE, LONG_SCORE = -6.0, -6.0 * (17 / 11) ** 1.1


class BeamOfTwo:
    """A translator with two hypotheses of each text, ranked as its options tell."""

    def __init__(self, cut_short=False, **options):
        self.options = SearchOptions(beam_size=2, **options)
        self.cut_short, self.asked = cut_short, []
        self.wild_from = np.inf

    def translate(self, texts, *, batch_size=64, progress=None, **options):
        self.asked.append(options)
        penalty = options.get("length_penalty", self.options.length_penalty)
        found = []
        for text, score in ((SHORT, SHORT_SCORE), (LONG, LONG_SCORE)):
            length = len(text.split())
            rank = score / ((5 + length) / 6) ** penalty
            found.append(Hypothesis(text, score, rank, [1] * length))
        found.sort(key=lambda each: -each.rank)
        if penalty >= self.wild_from:  # What the first search did not find.
            found = [Hypothesis("b b b", -1.0, -1.0, [1, 1, 1])]
        if self.cut_short and "length_ratio" in options:
            found = [Hypothesis("a b", -1.0, -1.0, [1, 1])]
        return [Translation(found, False) for _ in texts]


@pytest.mark.parametrize(
    "references, penalty, words",
    [([LONG] * 3, 1.2, "better than 1"), ([SHORT] * 3, 1.0, "no other is better by more than")],
)
def test_the_penalty_is_1_or_the_nearest_that_is_better(references, penalty, words):
    translator = BeamOfTwo()
    choice = choose_search(translator, ["x"] * 3, references, tokenize="none")
    assert choice.options.length_penalty == penalty
    assert choice.bleu == pytest.approx(100)
    assert f"length penalty {penalty:g} ({words}" in choice.reason
    first, *second = translator.asked  # one search of the beam, one of another penalty
    assert first["n_best"] == 2 and len(second) == (penalty != 1.0)
    assert translator.options == SearchOptions(beam_size=2)  # The caller decides.


def test_hypotheses_are_ranked_as_a_search_ranks_them():
    for length in (1, 4, 19):
        for penalty in (0.0, 0.6, 1.4):
            expected = -3.0 / ops.convert_to_numpy(length_penalty(length, penalty))
            found = -3.0 / SearchOptions(length_penalty=penalty).penalty(length)
            assert found == pytest.approx(expected, rel=1e-6)


def test_a_gain_that_may_be_chance_is_not_taken():
    references = [SHORT] * 20 + [LONG] * 20
    scores = [corpus_bleu([text] * 40, references, "none") for text in (SHORT, LONG)]
    assert scores[0] + 5 < scores[1]
    choice = choose_search(BeamOfTwo(), ["x"] * 40, references, tokenize="none")
    assert choice.options.length_penalty == 1.0 and choice.bleu == pytest.approx(scores[0])
    assert not is_better([LONG] * 40, [SHORT] * 40, references, "none")
    assert not is_better([SHORT] * 40, [LONG] * 40, references, "none")
    assert is_better([LONG] * 40, [SHORT] * 40, [SHORT] * 8 + [LONG] * 32, "none")


def test_the_default_is_told_beside_the_choice():
    choice = choose_search(BeamOfTwo(), ["x"] * 3, [LONG] * 3, tokenize="none")
    assert choice.default_bleu < 50 < choice.bleu


@pytest.mark.parametrize("cut_short", [False, True])
def test_limits_are_taken_unless_they_cost_bleu(cut_short):
    lengths = np.array([10, 20, 30]), np.array([10, 20, 30])
    translator = BeamOfTwo(cut_short)
    options = choose_search(
        translator, ["x"] * 3, [SHORT] * 3, lengths=lengths, tokenize="none"
    ).options
    assert len(translator.asked) == 2
    expected = (2.0, 32) if cut_short else length_limits(*lengths)
    assert (options.length_ratio, options.length_offset) == expected


@pytest.mark.parametrize("wild_from, expected", [(1.1, 1.0), (1.3, 1.2)])
def test_a_penalty_that_does_not_keep_its_promise_is_not_chosen(wild_from, expected):
    """Rescored, the longest hypotheses are the best; a search finds longer ones, which are not."""
    translator = BeamOfTwo()
    translator.wild_from = wild_from
    lengths = np.array([10, 20, 30]), np.array([10, 20, 30])
    choice = choose_search(translator, ["x"] * 3, [LONG] * 3, lengths=lengths, tokenize="none")
    assert len(translator.asked) == 3
    assert choice.options.length_penalty == expected
    assert choice.bleu >= choice.default_bleu


def test_limits_let_almost_all_pairs_through(rng):
    source = rng.integers(1, 60, 20_000)
    target = np.maximum(1, (source * rng.normal(1.3, 0.1, 20_000)).astype(int) + 2)
    ratio, offset = length_limits(source, target)
    options = SearchOptions(length_ratio=ratio, length_offset=offset)
    assert (target <= options.limits(source)).mean() >= 0.999
    lower = SearchOptions(length_ratio=ratio, length_offset=offset - 1)
    assert (target <= lower.limits(source)).mean() < 0.999
    assert options.limits(source).mean() < SearchOptions().limits(source).mean() * 0.6


def test_what_cannot_be_chosen_is_one_sentence():
    with pytest.raises(ValueError, match="mode 'huggingface'"):
        choose_search(BeamOfTwo(mode="huggingface"), ["x"], ["y"])
    with pytest.raises(ValueError, match="the sources.*the references"):
        choose_search(BeamOfTwo(), ["x"], [])
    with pytest.raises(ValueError, match="no sentences"):
        choose_search(BeamOfTwo(), [], [])
    with pytest.raises(TypeError, match="not one text"):
        choose_search(BeamOfTwo(), "val.en", "val.de")
    with pytest.raises(ValueError, match="no pairs"):
        length_limits([], [])
