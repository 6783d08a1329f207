import itertools

import numpy as np
import pytest

from kformer.data.batching import (
    BATCH_OVERHEAD,
    SOURCE_WEIGHT,
    TARGET_WEIGHT,
    BatchPlan,
    choose_lengths,
)

pytestmark = pytest.mark.any_backend


def lengths_of(num_pairs, seed=0, longest=100):
    random = np.random.default_rng(seed)
    sources = np.clip(random.lognormal(2.7, 0.6, num_pairs), 2, longest).astype(np.uint32)
    targets = np.clip(sources * random.normal(1.1, 0.15, num_pairs), 2, longest).astype(np.uint32)
    return sources, targets


def padded_cost(ladder, sources, targets, batch_tokens, num_hosts=1):
    """Written out pair by pair: each goes to the first rung that holds it."""
    counts = [0] * len(ladder)
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        counts[next(i for i, (s, t) in enumerate(ladder) if source <= s and target <= t)] += 1
    cost = 0
    for count, (s, t) in zip(counts, ladder, strict=True):
        most = max(1, batch_tokens // max(s, t))
        batches = -(-count // (most * num_hosts)) * num_hosts
        if batches:
            cost += batches * (
                -(-count // batches) * (SOURCE_WEIGHT * s + TARGET_WEIGHT * t) + BATCH_OVERHEAD
            )
    return cost


@pytest.mark.parametrize("num_hosts", [1, 3])
@pytest.mark.parametrize("max_shapes", [1, 2, 3])
def test_the_ladder_is_the_best_there_is(max_shapes, num_hosts):
    random = np.random.default_rng(max_shapes)
    sources, targets = random.integers(2, 7, (2, 60)).astype(np.uint32)
    ladder = choose_lengths(sources, targets, 40, max_shapes, num_hosts)
    # Every ladder that rises on both sides up to the longest pair.
    tops = int(sources.max()), int(targets.max())
    below = list(itertools.product(range(2, tops[0]), range(2, tops[1])))
    best = np.inf
    for size in range(max_shapes):
        for rungs in itertools.combinations(below, size):
            if all(a[0] < b[0] and a[1] < b[1] for a, b in itertools.pairwise(rungs)):
                best = min(best, padded_cost([*rungs, tops], sources, targets, 40, num_hosts))
    assert len(ladder) <= max_shapes
    assert padded_cost(ladder, sources, targets, 40, num_hosts) == best


@pytest.mark.parametrize("max_shapes", [1, 4, 8])
def test_shapes_are_few_rise_on_both_sides_and_keep_the_budget(max_shapes):
    plan = BatchPlan(*lengths_of(5000), 1000, max_shapes=max_shapes)
    shapes = [bucket.shape for bucket in plan.buckets]
    assert len(shapes) == max_shapes
    assert all(a[1] < b[1] and a[2] < b[2] for a, b in itertools.pairwise(shapes))
    assert all(rows * max(source, target) <= 1000 for rows, source, target in shapes)


def test_a_budget_below_one_pair_makes_batches_of_one_row():
    sources = np.array([5, 9, 20], np.uint32)
    plan = BatchPlan(sources, sources, 8)
    assert all(bucket.rows == 1 for bucket in plan.buckets) and plan.steps_per_epoch == 3


def test_more_shapes_waste_less():
    sources, targets = lengths_of(20_000)
    fills = []
    for max_shapes in (1, 2, 4, 8):
        plan = BatchPlan(sources, targets, 4096, max_shapes=max_shapes)
        fills.append(
            targets.sum() / sum(b.num_batches * b.rows * b.target_length for b in plan.buckets)
        )
    assert fills == sorted(fills) and fills[0] < 0.3 and fills[-1] > 0.8


def test_hardly_a_row_is_padding():
    plan = BatchPlan(*lengths_of(3000), 1000)
    for bucket in plan.buckets:
        assert 0 <= bucket.num_batches * bucket.rows - bucket.num_pairs < bucket.num_batches


def test_very_many_lengths():
    random = np.random.default_rng(0)
    sources, targets = random.integers(1, 3000, (2, 20_000)).astype(np.uint32)
    plan = BatchPlan(sources, targets, 30_000)
    assert len(plan.buckets) == 8 and plan.buckets[-1].shape[1:] == (2999, 2999)
    assert sum(bucket.num_pairs for bucket in plan.buckets) == 20_000


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("num_hosts", [1, 2, 5])
@pytest.mark.parametrize("num_pairs", [1, 7, 3000])
def test_every_pair_exactly_once_per_epoch_over_all_hosts(num_pairs, num_hosts, shuffle):
    sources, targets = lengths_of(num_pairs)
    plan = BatchPlan(sources, targets, 500, num_hosts=num_hosts, shuffle=shuffle, seed=3)
    for epoch in (0, 2):
        seen = []
        for step in range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch):
            batches = [plan.batch(step, host) for host in range(num_hosts)]
            assert len({bucket for bucket, _ in batches}) == 1  # the same shape on all hosts
            for bucket, pairs in batches:
                assert len(pairs) <= bucket.rows
                assert (sources[pairs] <= bucket.source_length).all() and (
                    targets[pairs] <= bucket.target_length
                ).all()
                seen += pairs.tolist()
        assert sorted(seen) == list(range(num_pairs))


def order(plan, steps):
    return [plan.batch(step)[1].tolist() for step in steps]


def test_a_batch_is_a_function_of_seed_and_step():
    lengths = lengths_of(1000)
    steps = range(BatchPlan(*lengths, 500).steps_per_epoch)
    reference = order(BatchPlan(*lengths, 500, seed=1), steps)
    again = BatchPlan(*lengths, 500, seed=1)
    assert order(again, reversed(steps)) == reference[::-1]
    for epoch in (5, 1, 3, 0):  # epochs in any order, more than are kept
        assert (order(again, [step + epoch * len(steps) for step in steps]) == reference) == (
            epoch == 0
        )
    assert order(BatchPlan(*lengths, 500, seed=2), steps) != reference


def test_the_order_of_a_seed_stays_for_ever():
    sources = np.arange(2, 14, dtype=np.uint32)
    plan = BatchPlan(sources, sources, 26, seed=0)
    assert plan.steps_per_epoch == 5
    assert order(plan, range(5)) == [[3, 4, 5], [8, 9], [6, 7], [2, 1, 0], [11, 10]]
    assert order(plan, range(5, 10)) == [[9, 8], [1, 2, 0], [10, 11], [4, 5, 3], [7, 6]]


def test_pairs_are_mixed_again_in_every_epoch():
    plan = BatchPlan(*lengths_of(3000), 500, seed=0)
    size = plan.steps_per_epoch

    def neighbours(epoch):
        batches = order(plan, range(epoch * size, (epoch + 1) * size))
        return {pair for batch in batches for pair in itertools.pairwise(sorted(batch))}

    assert len(neighbours(0) & neighbours(1)) < 0.2 * len(neighbours(0))


def test_without_shuffle_the_order_is_the_corpus():
    plan = BatchPlan(*lengths_of(3000), 500, shuffle=False)
    size = plan.steps_per_epoch
    assert order(plan, range(size)) == order(plan, range(4 * size, 5 * size))
    for bucket in plan.buckets:
        batches = [pairs.tolist() for b, pairs in map(plan.batch, range(2, size)) if b == bucket]
        assert sum(batches, []) == sorted(sum(batches, []))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("num_hosts", [1, 2])
def test_the_first_two_steps_of_every_epoch_differ_in_every_length(num_hosts, shuffle):
    # Nine tenths of the batches have one shape, so two in a row are alike more often than not.
    sources = np.array([10] * 1800 + [30] * 60, np.uint32)
    plan = BatchPlan(sources, sources, 100, num_hosts=num_hosts, shuffle=shuffle)
    assert len(plan.buckets) == 2 and plan.buckets[0].num_batches > 8 * plan.buckets[1].num_batches
    for epoch in range(10):
        shapes = [plan.batch(epoch * plan.steps_per_epoch + i)[0].shape for i in (0, 1)]
        assert shapes[0][1] != shapes[1][1] and shapes[0][2] != shapes[1][2]


def test_all_pairs_alike_make_one_shape():
    sources = np.full(100, 9, np.uint32)
    plan = BatchPlan(sources, sources, 90)
    assert [bucket.shape for bucket in plan.buckets] == [(10, 9, 9)] and plan.steps_per_epoch == 10
