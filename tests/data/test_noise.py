"""Subword sampling and word dropout in batches."""

import concurrent.futures

import numpy as np
import pytest

import kformer
from kformer.data import ParallelDataset
from kformer.text import Tokenizer
from kformer.text.subword_sampling import BPE, model_type

pytestmark = pytest.mark.any_backend


@pytest.fixture(scope="module")
def pairs():
    found = kformer.examples.generate_pairs(400, split="train", categories="date")
    return [pair.target for pair in found], [pair.source for pair in found]


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def tokenizer(pairs, request):
    return kformer.Tokenizer.train(
        texts=[*pairs[0], *pairs[1]], vocabulary_size=360, model_type=request.param
    )


def strength_of(tokenizer):
    """Much noise, for either kind of model."""
    return 0.4 if model_type(tokenizer.vocabulary("source").model) == BPE else 0.05


def texts_of(batch, tokenizer):
    """The texts of both sides of a batch that is not packed."""
    inputs, labels = batch
    sides = [(inputs["source_ids"], "source"), (labels, "target")]
    return list(
        zip(
            *(
                [text for text in tokenizer.detokenize(ids.tolist(), side=side)]
                for ids, side in sides
            ),
            strict=True,
        )
    )


@pytest.mark.heavy
@pytest.mark.parametrize("packed", [False, True])
def test_every_epoch_has_all_pairs_and_resamples_the_segmentation(pairs, tokenizer, packed):
    plain = ParallelDataset(*pairs, tokenizer, batch_tokens=300, packed=packed)
    dataset = ParallelDataset(
        *pairs, tokenizer, batch_tokens=300, packed=packed, subword_sampling=strength_of(tokenizer)
    )
    settings = {
        "batch_tokens": 300,
        "packed": packed,
        "tokenizer": tokenizer,
        "subword_sampling": strength_of(tokenizer),
    }
    again = ParallelDataset.from_prepared(dataset.corpus, **settings)
    steps = dataset.steps_per_epoch
    rows = []
    for epoch in range(2):
        batches = [dataset.batch_at(epoch * steps + step) for step in range(steps)]
        if not packed:
            texts = [
                pair for batch in batches for pair in texts_of(batch, tokenizer) if pair != ("", "")
            ]
            assert sorted(texts) == sorted(zip(*pairs, strict=True))
        shapes = {(*labels.shape, *inputs["source_ids"].shape) for inputs, labels in batches}
        assert {(rows, source, target) for rows, target, _, source in shapes} == set(dataset.shapes)
        rows.append({row.tobytes() for _, labels in batches for row in labels})
        tokens = sum(int((labels != dataset.pad_id).sum()) for _, labels in batches)
        assert tokens > 1.05 * plain.num_tokens
        assert tokens == sum(dataset.count_tokens(epoch * steps + step) for step in range(steps))
        positions = sum(labels.size for _, labels in batches)
        assert abs(tokens / positions - dataset.fill) < 0.05
    assert len(rows[0] & rows[1]) < 0.5 * len(rows[0])
    # A function of the step, whoever reads it and when.
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for step, (inputs, labels) in zip(
            range(2 * steps), pool.map(again.batch_at, range(2 * steps)), strict=True
        ):
            expected = dataset.batch_at(step)
            assert (labels == expected[1]).all() and all(
                (inputs[name] == expected[0][name]).all() for name in inputs
            )


def test_targets_and_segments_follow_the_resampled_segmentation(pairs, tokenizer):
    dataset = ParallelDataset(
        *pairs, tokenizer, batch_tokens=300, packed=True, subword_sampling=strength_of(tokenizer)
    )
    inputs, labels = dataset.batch_at(3)
    numbers = inputs["target_segments"]
    assert ((labels != dataset.pad_id) == (numbers > 0)).all()
    for row, segments, shifted in zip(labels, numbers, inputs["target_ids"], strict=True):
        for number in range(1, segments.max(initial=0) + 1):
            here = segments == number
            assert row[here][-1] == dataset.end_id
            assert shifted[here].tolist() == [dataset.start_id, *row[here][:-1]]


def test_hidden_words(pairs, tokenizer):
    plain = ParallelDataset(*pairs, tokenizer, batch_tokens=2000)
    dataset = ParallelDataset(*pairs, tokenizer, batch_tokens=2000, word_dropout=0.2)
    hidden = real = 0
    for step in range(dataset.steps_per_epoch):
        (inputs, labels), (expected, expected_labels) = dataset.batch_at(step), plain.batch_at(step)
        assert (labels == expected_labels).all()
        for name, ids in inputs.items():
            changed = ids != expected[name]
            assert (ids[changed] == tokenizer.unknown_id).all()
            assert not np.isin(
                expected[name][changed], [tokenizer.pad_id, tokenizer.start_id, tokenizer.end_id]
            ).any()
            hidden, real = (
                hidden + changed.sum(),
                real + (~np.isin(expected[name], [0, 2, 3])).sum(),
            )
        again = dataset.batch_at(step)[0]
        assert all((again[name] == inputs[name]).all() for name in inputs)
    assert abs(hidden / real - 0.2) < 0.02


def test_languages_are_not_hidden(pairs, tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer")
    (model,) = (tmp_path / "tokenizer").glob("*.model")
    language = tokenizer.vocabulary_size - 1
    ids = {"pad_id": 0, "unknown_id": 1, "start_id": 2, "end_id": 3, "control_ids": (language,)}
    places = {"source_prefix": (language,), "target_prefix": (language,)}
    multilingual = Tokenizer.from_sentencepiece(model, **ids, **places)
    dataset = ParallelDataset(*pairs, multilingual, batch_tokens=2000, word_dropout=0.9)
    inputs, _ = dataset.batch_at(0)
    for name, place in (("source_ids", 0), ("target_ids", 1)):
        rows = inputs[name][(inputs[name] != 0).any(axis=1)]
        assert (rows[:, place] == language).all() and (rows == 1).mean() > 0.3


def test_wrong_settings(pairs, tokenizer):
    with pytest.raises(ValueError, match="word_dropout must be in"):
        ParallelDataset(*pairs, tokenizer, word_dropout=1.0)
    with pytest.raises(ValueError, match="strength of subword sampling must be"):
        ParallelDataset(*pairs, tokenizer, subword_sampling=-1)
    corpus = ParallelDataset(*pairs, tokenizer).corpus
    with pytest.raises(ValueError, match="need the tokenizer that the corpus was prepared with"):
        ParallelDataset.from_prepared(corpus, subword_sampling=0.1)
