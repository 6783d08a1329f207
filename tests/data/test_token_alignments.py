"""Aligned words as aligned tokens, in batches."""

import numpy as np
import pytest

import kformer
from kformer.data import ParallelDataset, TokenAlignments, align_words, prepare
from kformer.text.words import TokenWords, split_words

pytestmark = pytest.mark.any_backend


@pytest.fixture(scope="module")
def text():
    pairs = kformer.examples.generate_pairs(300, seed=4, categories=("time", "number"))
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    for i in (5, 17):
        targets[i] = ""  # A pair that is left out.
    sources[40] = "very " * 60  # And one that is too long.
    return sources, targets


@pytest.fixture(scope="module")
def tokenizer(text):
    return kformer.Tokenizer.train(texts=[line for side in text for line in side])


@pytest.fixture
def corpus(text, tokenizer, tmp_path):
    return prepare(*text, tokenizer, tmp_path / "pairs", max_length=50, report=lambda _: None)


def dense(tokenizer, source, target, alignment):
    """The alignment of a pair's tokens `[T, S]`, by its definition, from loops."""
    sides = []
    for text, side in ((source, "source"), (target, "target")):
        (ids,) = tokenizer.tokenize([text], side=side, special_tokens=True)
        sides.append(TokenWords(tokenizer.vocabulary(side))(ids, split_words(text)))
    found = np.zeros((len(sides[1]), len(sides[0])))
    for t, target_words in enumerate(sides[1]):
        for s, source_words in enumerate(sides[0]):
            found[t, s] = any((i, j) in alignment for i in source_words for j in target_words)
    return found / np.maximum(found.sum(axis=1, keepdims=True), 1)


@pytest.mark.parametrize("options", [{}, {"packed": True}, {"num_devices": 3}])
def test_batches_have_the_alignment_of_each_pair(text, tokenizer, corpus, options):
    words = align_words(*text)
    alignments = TokenAlignments(corpus, tokenizer, *text, words)
    data = ParallelDataset.from_prepared(corpus, alignments=alignments, batch_tokens=256, **options)
    kept = [i for i in range(300) if i not in (5, 17, 40)]
    seen = 0
    for step in range(data.steps_per_epoch):
        inputs, _ = data.batch_at(step)
        found, pairs = inputs["alignment"], data.pairs_at(step)
        rows, tokens = inputs["target_ids"].shape
        assert found.shape == (rows, tokens, inputs["source_ids"].shape[1])
        assert found.dtype == np.float32
        expected, place = np.zeros_like(found), {}
        counts = [1] * len(pairs)
        if data.packed:
            counts = inputs["target_segments"].max(axis=1)
        owners = np.repeat(np.arange(len(counts)), counts)
        for row, pair in zip(owners, pairs, strict=True):
            line = kept[pair]
            t, s = place.get(row, (0, 0))
            one = dense(tokenizer, text[0][line], text[1][line], set(words[line]))
            # The decoder reads a token one position after it has predicted it, and the last never.
            assert not one[-1].any()
            height, width = one.shape
            expected[row, t + 1 : t + height, s : s + width] = one[:-1]
            place[row] = (t + height, s + width)
            seen += 1
        np.testing.assert_array_equal(found, expected.astype("float32"))
    assert seen == len(kept)
    everything = sum(
        (dense(tokenizer, text[0][i], text[1][i], set(words[i])).any(1)).sum() for i in kept
    )
    assert alignments.num_aligned == everything > 0


def test_what_does_not_fit_is_refused(text, tokenizer, corpus, tmp_path):
    words = align_words(*text)
    with pytest.raises(ValueError, match="differ in length"):
        TokenAlignments(corpus, tokenizer, *text, words[1:])
    others = [list(reversed(side)) for side in text]
    with pytest.raises(ValueError, match="297 pairs, of which .* were found"):
        TokenAlignments(corpus, tokenizer, *others, words)
    alignments = TokenAlignments(corpus, tokenizer, *text, words)
    with pytest.raises(ValueError, match="one segmentation of the text"):
        ParallelDataset.from_prepared(
            corpus, alignments=alignments, tokenizer=tokenizer, subword_sampling=0.1
        )
    other = prepare(*text, tokenizer, tmp_path / "other", max_length=40, report=lambda _: None)
    with pytest.raises(ValueError, match="were made for the corpus '.*pairs', not for '.*other'"):
        ParallelDataset.from_prepared(other, alignments=alignments)
