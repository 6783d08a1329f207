"""Two corpora in one: the share of each, a sample for each epoch, and the same batches again."""

import collections

import numpy as np
import pytest

import kformer
from kformer.data import MixedCorpus, ParallelDataset, prepare

pytestmark = pytest.mark.any_backend


@pytest.fixture
def corpora(toy, tmp_path):
    """Domain text, general text, and both as sets of pairs. All source texts differ."""
    tokenizer = toy.CharacterTokenizer()
    domain = toy.pairs(120, seed=1)
    general = toy.pairs(430, seed=2)
    general = ([f"g{text}" for text in general[0]], general[1])
    prepared = [
        prepare(*pairs, tokenizer, tmp_path / name)
        for name, pairs in (("domain", domain), ("general", general))
    ]
    return tokenizer, *prepared, *(list(zip(*pairs, strict=True)) for pairs in (domain, general))


def dataset(domain, general, share=0.5, seed=0, **options):
    weight = domain.num_pairs / general.num_pairs * share / (1 - share)
    corpus = MixedCorpus([domain, general], [1, weight], seed)
    return ParallelDataset.from_prepared(corpus, batch_tokens=200, seed=seed, **options)


def epoch_of(toy, data, tokenizer, epoch):
    """The pairs of texts of an epoch."""
    steps = range(epoch * len(data), (epoch + 1) * len(data))
    read = packed_pairs_of if data.packed else toy.pairs_of
    return [pair for step in steps for pair in read(data.batch_at(step), tokenizer)]


def packed_pairs_of(batch, tokenizer):
    """The pairs of texts in a packed batch."""
    inputs, labels = batch
    sides = (inputs["source_ids"], "source_segments"), (labels, "target_segments")
    return [
        tuple(tokenizer.detokenize(ids[row][inputs[name][row] == number]) for ids, name in sides)
        for row, numbers in enumerate(inputs["source_segments"])
        for number in range(1, numbers.max() + 1)
    ]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_an_epoch_is_all_of_one_and_a_share_of_the_other(toy, corpora, packed, share):
    tokenizer, domain, general, *sets = corpora
    data = dataset(domain, general, share, packed=packed)
    counts = []
    for epoch in range(3):
        pairs = epoch_of(toy, data, tokenizer, epoch)
        own = [pair for pair in pairs if pair in sets[0]]
        others = [pair for pair in pairs if pair in sets[1]]
        assert sorted(own) == sorted(sets[0]) and len(own) + len(others) == len(pairs)
        assert (
            len(others) == data.corpus.counts[1] == pytest.approx(120 * share / (1 - share), abs=1)
        )
        counts.append(set(others))
        if share < 0.9:  # There are enough of them.
            assert len(set(others)) == len(others)
    if share < 0.9:
        assert counts[0] != counts[1] != counts[2]
    else:  # Each of 430 at least twice among 1,080.
        assert counts[0] == set(sets[1])


def test_every_general_pair_comes_before_any_comes_again(toy, corpora):
    tokenizer, domain, general, _, others = corpora
    data = dataset(domain, general)
    size = -(-general.num_pairs // data.corpus.counts[1])
    seen = [epoch_of(toy, data, tokenizer, epoch) for epoch in range(size)]
    seen = [pair for pairs in seen for pair in pairs if pair in others]
    assert set(seen) == set(others)
    assert max(seen.count(pair) for pair in others) <= 2


@pytest.mark.parametrize("packed", [False, True])
def test_an_epoch_has_each_pair_by_the_weight_of_its_corpus(toy, tmp_path, packed):
    tokenizer = toy.CharacterTokenizer()
    weights = (1, 3, 0.1, 2.5)
    texts = [[f"{name}{text}" for text in toy.pairs(120, seed=1)[0]] for name in "abcd"]
    corpora = [prepare(side, side, tokenizer, tmp_path / str(n)) for n, side in enumerate(texts)]
    corpus = MixedCorpus(corpora, weights, seed=3)
    assert corpus.counts == [120, 360, 12, 300]
    data = ParallelDataset.from_prepared(corpus, batch_tokens=300, packed=packed)
    seen = collections.Counter()
    for epoch in range(10):
        pairs = epoch_of(toy, data, tokenizer, epoch)
        seen.update(source for source, _ in pairs)
        if epoch == 2:
            counts = [sorted(seen[text] for text in side) for side in texts]
            assert counts[:2] == [[3] * 120, [9] * 120]
            assert counts[2] == [0] * 84 + [1] * 36
            assert set(counts[3]) == {7, 8} and sum(counts[3]) == 900
    assert [{seen[text] for text in side} for side in texts] == [{10}, {30}, {1}, {25}]


def test_corpora_of_weight_1_are_one_text(toy, tmp_path):
    tokenizer = toy.CharacterTokenizer()
    sides = toy.pairs(120, seed=1)
    whole = prepare(*sides, tokenizer, tmp_path / "whole")
    parts = [
        prepare(*(side[part] for side in sides), tokenizer, tmp_path / str(number))
        for number, part in enumerate((slice(70), slice(70, None)))
    ]
    mixed = MixedCorpus(parts, [1, 1])
    data = [ParallelDataset.from_prepared(each, batch_tokens=200) for each in (whole, mixed)]
    for step in range(2 * len(data[0])):
        (inputs, labels), (others, other_labels) = (each.batch_at(step) for each in data)
        np.testing.assert_array_equal(labels, other_labels)
        np.testing.assert_array_equal(inputs["source_ids"], others["source_ids"])


def test_batches_are_functions_of_seed_and_step(toy, corpora):
    tokenizer, domain, general, *_ = corpora
    first, again, other = (dataset(domain, general, seed=seed) for seed in (0, 0, 1))
    assert first.steps_per_epoch == again.steps_per_epoch
    for step in (first.steps_per_epoch + 3, 0, 2 * first.steps_per_epoch):
        one, two = first.batch_at(step), again.batch_at(step)
        np.testing.assert_array_equal(one[1], two[1])
        np.testing.assert_array_equal(one[0]["source_ids"], two[0]["source_ids"])
    samples = [set(epoch_of(toy, data, tokenizer, 0)) for data in (first, other)]
    assert samples[0] != samples[1], "another seed has another sample"
    # All shapes are those that were planned, in every epoch.
    shapes = {first.batch_at(step)[0]["source_ids"].shape for step in range(4 * len(first))}
    assert shapes <= {(rows, length) for rows, length, _ in first.shapes}
    assert first.from_step(5)[2][1].tolist() == first.batch_at(7)[1].tolist()


def test_hosts_share_an_epoch(toy, corpora):
    tokenizer, domain, general, *sets = corpora
    whole = dataset(domain, general)
    hosts = [dataset(domain, general, num_hosts=2, host=host, num_devices=3) for host in range(2)]
    pairs = [pair for data in hosts for pair in epoch_of(toy, data, tokenizer, 1)]
    assert sorted(pairs) == sorted(epoch_of(toy, whole, tokenizer, 1))
    assert len(hosts[0]) == len(hosts[1])
    assert all(data.batch_at(4)[1].shape[0] % 3 == 0 for data in hosts)


def test_it_is_a_corpus_like_others(corpora):
    _, domain, general, *_ = corpora
    corpus = MixedCorpus([domain, general], [1, 120 / 430])
    assert corpus.num_pairs == 240 and corpus.counts == [120, 120]
    domain.too_long_examples, general.empty_examples = [3], [1, 4]
    joined = MixedCorpus([domain, general], [1, 1])
    assert (joined.too_long_examples, joined.empty_examples) == ([3], [1, 4])
    for side in ("source", "target"):
        lengths = corpus.lengths(side)
        pairs = corpus.in_epoch(np.arange(corpus.num_pairs), 0)
        assert lengths.tolist() == [len(corpus.ids(side, pair)) for pair in pairs]
        assert (corpus.planned_lengths(side) >= lengths).all()
        assert getattr(corpus, f"num_{side}_tokens") == lengths.sum()
        # The batches' positions are planned for the longest of a group, which is not much longer.
        assert corpus.planned_lengths(side).sum() < 1.15 * lengths.sum()
    names = {MixedCorpus([domain, general], [1, weight]).folder.name for weight in (1, 2)}
    assert len({*names, corpus.folder.name}) == 3 and corpus.folder.parent == domain.folder.parent
    data = ParallelDataset.from_prepared(corpus, batch_tokens=200)
    assert data.num_pairs == 240 and data.pairs_at(3).max() < 550


def test_the_segmentation_is_resampled_as_ever(tmp_path):
    texts = [[f"half past {word}", f"nothing but {word}"] for word in "four five six seven".split()]
    sides = [[text for pair in texts for text in pair] for _ in range(2)]
    tokenizer = kformer.Tokenizer.train(texts=sides[0], vocabulary_size=290)
    parts = [
        prepare(side[begin::2], side[begin::2], tokenizer, tmp_path / f"{begin}")
        for begin, side in enumerate(sides)
    ]
    noise = {"tokenizer": tokenizer, "subword_sampling": 0.5, "word_dropout": 0.1}
    data = dataset(*parts, **noise)
    plain = dataset(*parts)
    assert len(data.batch_at(0)[1]) and not np.array_equal(
        data.batch_at(0)[1], plain.batch_at(0)[1]
    )
    np.testing.assert_array_equal(data.batch_at(5)[1], dataset(*parts, **noise).batch_at(5)[1])


def test_what_cannot_be_mixed(toy, corpora, tmp_path):
    _, domain, general, *_ = corpora
    with pytest.raises(ValueError, match="A weight must be above 0, but 0 was given"):
        MixedCorpus([domain, general], [1, 0])
    tokenizer = kformer.Tokenizer.train(texts=["half past four"] * 9, vocabulary_size=271)
    other = prepare(["half"], ["past"], tokenizer, tmp_path / "other")
    with pytest.raises(ValueError, match="prepared with another tokenizer"):
        MixedCorpus([domain, other], [1, 1])
    general.target_vocabulary_size += 1
    with pytest.raises(ValueError, match="prepared with another tokenizer"):
        MixedCorpus([domain, general], [1, 1])
