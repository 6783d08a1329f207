"""The target tokens of a sentence: those that a plain aligner finds; a file keeps them."""

import json
import math

import numpy as np
import pytest

import kformer
from kformer.data import TokenLists
from kformer.data.word_alignment import translation_probabilities

pytestmark = pytest.mark.any_backend
SOURCES = ["a house", "a dog", "the house", "the dog", "a small house"] * 3
TARGETS = ["ein Haus", "ein Hund", "das Haus", "der Hund", "ein kleines Haus"] * 3


@pytest.fixture(scope="module")
def tokenizer():
    return kformer.Tokenizer.train(texts=SOURCES + TARGETS, vocabulary_size=300)


def plain_probabilities(sources, targets, iterations):
    """IBM's second model with a diagonal, by dictionaries: {(source, target): probability}."""
    table = {}
    for _ in range(iterations):
        counts, totals = {}, {}
        for source, target in zip(sources, targets, strict=True):
            for j, word in enumerate(target):
                near = [
                    math.exp(-4 * abs((i + 1) / len(source) - (j + 1) / len(target)))
                    for i in range(len(source))
                ]
                prior = [0.08, *(0.92 * value / sum(near) for value in near)]
                words = [None, *source]
                values = [
                    share * table.get((other, word), 1)
                    for share, other in zip(prior, words, strict=True)
                ]
                for other, value in zip(words, values, strict=True):
                    share = value / sum(values)
                    counts[other, word] = counts.get((other, word), 0) + share
                    totals[other] = totals.get(other, 0) + share
        table = {pair: count / totals[pair[0]] for pair, count in counts.items()}
    return table


def test_probabilities_are_those_of_a_plain_aligner(rng):
    sources, targets = (
        [rng.integers(0, 9, rng.integers(0, 6)).tolist() for _ in range(40)] for _ in range(2)
    )
    expected = plain_probabilities(sources, targets, iterations=3)
    source, target, probability = translation_probabilities(sources, targets, iterations=3)
    computed = dict(zip(zip(source, target, strict=True), probability, strict=True))
    assert computed.keys() == {pair for pair in expected if pair[0] is not None}
    for pair, value in computed.items():
        assert value == pytest.approx(expected[pair], rel=1e-5)


def test_the_most_probable_tokens_are_listed(tokenizer):
    lists = TokenLists.build(tokenizer, SOURCES, TARGETS, candidates=5, frequent=1)
    for source, target in zip(SOURCES, TARGETS, strict=True):
        (row,) = tokenizer.tokenize([source])
        listed = set(lists(row))
        assert set(tokenizer.tokenize([target], side="target")[0]) <= listed
        # Names are copied, and any text can end or be written by bytes.
        assert {*row, *lists.always} <= listed and tokenizer.end_id in lists.always
    assert max(map(len, lists.lists)) <= 6
    assert len(lists(tokenizer.tokenize(["a dog"])[0])) < len(lists(range(len(lists.lists))))


def test_a_file_keeps_them(tokenizer, tmp_path):
    lists = TokenLists.build(tokenizer, SOURCES, TARGETS)
    path = tmp_path / "shortlist.json"
    lists.save(path, tokenizer)
    loaded = TokenLists.load(path, tokenizer)
    assert (loaded.always, loaded.lists) == (lists.always, lists.lists)
    other = kformer.Tokenizer.train(texts=TARGETS, vocabulary_size=290)
    assert TokenLists.load(path, other) is None
    value = json.loads(path.read_text())
    assert path.read_text().count("\n") == 1, "a line for each number would be three times as large"
    path.write_text(json.dumps({**value, "always": [1]}))
    with pytest.raises(ValueError, match=r"damaged or was edited.*: remove it, and make it again"):
        TokenLists.load(path, tokenizer)
    del value["checksum"]
    path.write_text(json.dumps({**value, "always": [10**6]}))
    with pytest.raises(ValueError, match="no lists of tokens"):
        TokenLists.load(path, tokenizer)


def test_sides_and_empty_texts(tokenizer):
    with pytest.raises(ValueError, match="the sources"):
        TokenLists.build(tokenizer, ["a"], ["ein", "Haus"])
    with pytest.raises(ValueError, match="no token"):
        TokenLists.build(tokenizer, [""], [""])
    source, *_ = translation_probabilities([[]], [[]])
    assert np.shape(source) == (0,)
