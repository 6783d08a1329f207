"""Subword sampling: the right distribution, the same text, repeatable."""

import collections
import concurrent.futures
import itertools
import math

import numpy as np
import pytest

from kformer.text import SubwordSampler, Tokenizer
from tests.text_samples import corpus, tricky_texts

pytestmark = pytest.mark.any_backend


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def tokenizer(request):
    return Tokenizer.train(texts=corpus(), vocabulary_size=600, model_type=request.param)


def is_bpe(tokenizer):
    return all(
        tokenizer.vocabulary("source").processor.get_score(i).is_integer() for i in range(300, 600)
    )


def test_the_text_stays_and_so_do_special_tokens_and_bytes(tokenizer):
    vocabulary = tokenizer.vocabulary("source")
    texts = [*corpus()[:200], *tricky_texts(50), "", " ", "a"]
    rows = tokenizer.tokenize(texts, special_tokens=True)
    sampled = SubwordSampler(vocabulary, 0.5 if is_bpe(tokenizer) else 0.1)(
        rows, np.arange(len(rows))
    )
    assert tokenizer.detokenize(sampled) == tokenizer.detokenize(rows)
    assert [row[-1] for row in sampled] == [tokenizer.end_id] * len(rows)
    assert sum(len(row) for row in sampled) > 1.05 * sum(len(row) for row in rows)
    for before, after in zip(rows, sampled, strict=True):
        kept = [[i for i in row if vocabulary.processor.is_byte(int(i))] for row in (before, after)]
        assert kept[0] == kept[1]


def test_hardly_any_noise_gives_the_tokenizers_own_pieces(tokenizer):
    # A unigram model's likeliest path, and all merges of BPE.
    rows = tokenizer.tokenize(corpus()[:300])
    sampled = SubwordSampler(
        tokenizer.vocabulary("source"), 1e-12 if is_bpe(tokenizer) else 1000.0
    )(rows, np.zeros(len(rows)))
    assert [row.tolist() for row in sampled] == rows


def test_a_segmentation_depends_on_key_and_seed_alone(tokenizer):
    vocabulary, strength = tokenizer.vocabulary("source"), 0.3 if is_bpe(tokenizer) else 0.05
    rows = tokenizer.tokenize(corpus()[:60])
    keys = np.arange(len(rows))
    expected = [row.tolist() for row in SubwordSampler(vocabulary, strength)(rows, keys)]
    backwards = SubwordSampler(vocabulary, strength)
    for i in reversed(range(len(rows))):
        assert backwards([rows[i]], keys[i : i + 1])[0].tolist() == expected[i]
    shared = SubwordSampler(vocabulary, strength)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: shared(rows, keys), range(8)):
            assert [row.tolist() for row in found] == expected
    for other in (shared(rows, keys + 1), SubwordSampler(vocabulary, strength, seed=1)(rows, keys)):
        assert (
            sum(row.tolist() != mine for row, mine in zip(other, expected, strict=True))
            > len(rows) / 2
        )


def test_segmentations_of_a_unigram_model_have_their_probabilities():
    tokenizer = Tokenizer.train(texts=corpus(), vocabulary_size=600, model_type="unigram")
    vocabulary, alpha = tokenizer.vocabulary("source"), 0.05
    word = max(
        (
            word
            for text in corpus()[:50]
            for word in text.split()
            if word.isascii() and len(word) <= 7
        ),
        key=len,
    )
    (row,) = tokenizer.tokenize([word])
    text = "▁" + word
    scores = {
        vocabulary.pieces[i]: vocabulary.processor.get_score(i)
        for i in range(4, 600)
        if not vocabulary.processor.is_byte(i)
    }
    weights = {}
    for cuts in itertools.product((False, True), repeat=len(text) - 1):
        edges = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), len(text)]
        pieces = [text[begin:end] for begin, end in itertools.pairwise(edges)]
        if all(piece in scores for piece in pieces):
            weights[tuple(pieces)] = math.exp(alpha * sum(scores[piece] for piece in pieces))
    counts = collections.Counter()
    for seed in range(400):
        sampled = SubwordSampler(vocabulary, alpha, seed=seed)([row] * 8, np.arange(8))
        counts.update(tuple(tokenizer.tokens(found)) for found in sampled)
    assert set(counts) <= set(weights) and len(counts) > 2
    for pieces, weight in weights.items():
        share = weight / sum(weights.values())
        # Five standard deviations, for 3,200 samples, some of which are equal.
        assert abs(counts[pieces] / 3200 - share) < 5 * (share * (1 - share) / 2000) ** 0.5 + 1e-3


def test_merges_are_left_out_with_their_probability():
    tokenizer = Tokenizer.train(
        texts=["ab ab ab ab b a"] * 20, vocabulary_size=4 + 256 + 5, model_type="bpe"
    )
    vocabulary = tokenizer.vocabulary("source")
    assert {"▁ab", "▁", "a", "b"} <= set(vocabulary.pieces)
    first = "▁a" if "▁a" in vocabulary.pieces else "ab"
    (row,) = tokenizer.tokenize(["ab"])
    found = collections.Counter()
    for seed in range(2000):
        found[len(SubwordSampler(vocabulary, 0.4, seed=seed)([row], [0])[0])] += 1
    # Two merges of three symbols: the only pair that is a piece, with the rest; each is left out
    # with 0.4.
    assert first and abs(found[3] / 2000 - 0.4) < 0.05 and abs(found[2] / 2000 - 0.6 * 0.4) < 0.05


def test_bad_strengths_are_refused(tokenizer):
    vocabulary = tokenizer.vocabulary("source")
    for strength in (0, -1, float("nan"), float("inf"), True):
        with pytest.raises(ValueError, match="strength of subword sampling must be"):
            SubwordSampler(vocabulary, strength)
    if is_bpe(tokenizer):
        with pytest.raises(
            ValueError, match="a probability below 1, as 0.1, with a BPE model, but 1.5"
        ):
            SubwordSampler(vocabulary, 1.5)
