"""Packed batches: the pairs in each row of each step."""

import itertools

import numpy as np
import pytest

from kformer.data import ParallelDataset, packing
from kformer.data.packing import PackedPlan, choose_row_lengths, pack_cells, segment_numbers

pytestmark = pytest.mark.any_backend


def lengths_of(num_pairs, seed=0, longest=60):
    random = np.random.default_rng(seed)
    sources = np.clip(random.lognormal(2.7, 0.5, num_pairs), 2, longest).astype(np.uint32)
    targets = np.clip(sources * random.normal(1.1, 0.15, num_pairs), 2, longest).astype(np.uint32)
    return sources, targets


def rows_of(plan, steps, host=0):
    """The pairs of each row, of all these steps."""
    rows = []
    for step in steps:
        _, pairs, counts = plan.batch(step, host)
        rows += (
            [row.tolist() for row in np.split(pairs, np.cumsum(counts)[:-1])] if len(counts) else []
        )
    return rows


def test_row_lengths_hold_the_longest_pair_and_four_average_ones():
    assert choose_row_lengths(np.array([10, 14] * 9), np.array([20, 28] * 9)) == (48, 96)
    # One long source: the other side keeps its share of the row.
    assert choose_row_lengths(np.array([12] * 99 + [122]), np.array([12] * 100)) == (128, 112)
    assert choose_row_lengths(np.array([3]), np.array([9])) == (8, 16)


def test_cells_are_packed_by_hand():
    # Capacity (10, 10): 7+3 fills a row; beside 4+4 only a 2 would fit, and there is none.
    sources, targets = np.array([7, 3, 4]), np.array([7, 3, 4])
    rows = pack_cells(sources, targets, np.array([2, 2, 3]), (10, 10))
    assert [(cells.tolist(), times) for cells, times in rows] == [
        ([0, 1], 2),
        ([2, 2], 1),
        ([2], 1),
    ]
    # A short target beside a long source waits for its counterpart.
    rows = pack_cells(np.array([8, 2, 2]), np.array([2, 8, 2]), np.array([1, 1, 1]), (10, 10))
    assert [(cells.tolist(), times) for cells, times in rows] == [([0, 1], 1), ([2], 1)]


def test_segments_are_numbered_in_each_row():
    segments = segment_numbers(np.array([2, 1, 3]), np.array([2, 1]), (3, 4))
    assert (
        segments.tolist() == [[1, 1, 2, 0], [1, 1, 1, 0], [0, 0, 0, 0]]
        and segments.dtype == np.int32
    )


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("num_hosts", [1, 2, 5])
@pytest.mark.parametrize("num_pairs", [1, 7, 3000])
def test_every_pair_exactly_once_per_epoch_over_all_hosts(num_pairs, num_hosts, shuffle):
    sources, targets = lengths_of(num_pairs)
    plan = PackedPlan(sources, targets, 500, num_hosts=num_hosts, shuffle=shuffle, seed=3)
    (bucket,) = plan.buckets
    assert bucket.rows == 1 or bucket.rows * max(bucket.shape[1:]) <= 500
    for epoch in (0, 2):
        seen = []
        for step in range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch):
            for host in range(num_hosts):
                found, pairs, counts = plan.batch(step, host)
                assert found == bucket and len(counts) <= bucket.rows and counts.sum() == len(pairs)
                seen += pairs.tolist()
            for row in itertools.chain(*(rows_of(plan, [step], host) for host in range(num_hosts))):
                assert (
                    sources[row].sum() <= bucket.source_length
                    and targets[row].sum() <= bucket.target_length
                )
        assert sorted(seen) == list(range(num_pairs))


@pytest.mark.parametrize(
    "levels, cells, fill", [(256, 16384, 0.9), (20, 16384, 0.8), (256, 30, 0.5)]
)
def test_rows_keep_their_limits_in_coarse_units_too(monkeypatch, levels, cells, fill):
    monkeypatch.setattr(packing, "MAX_LEVELS", levels)
    monkeypatch.setattr(packing, "MAX_CELLS", cells)
    sources, targets = lengths_of(3000, longest=150)
    sources[:2], targets[:2] = (151, 9), (9, 151)
    plan = PackedPlan(sources, targets, 4000)
    (bucket,) = plan.buckets
    rows = rows_of(plan, range(plan.steps_per_epoch))
    assert sorted(sum(rows, [])) == list(range(3000))
    assert all(
        sources[row].sum() <= bucket.source_length and targets[row].sum() <= bucket.target_length
        for row in rows
    )
    assert targets.sum() / (len(rows) * bucket.target_length) > fill


def test_hardly_anything_is_padding():
    sources, targets = lengths_of(20_000)
    plan = PackedPlan(sources, targets, 4096)
    (bucket,) = plan.buckets
    tokens = bucket.num_batches * bucket.rows
    assert targets.sum() / (tokens * bucket.target_length) > 0.93
    assert sources.sum() / (tokens * bucket.source_length) > 0.93


def test_a_batch_is_a_function_of_seed_and_step():
    lengths = lengths_of(1000)
    steps = range(PackedPlan(*lengths, 500).steps_per_epoch)
    reference = rows_of(PackedPlan(*lengths, 500, seed=1), steps)
    again = PackedPlan(*lengths, 500, seed=1)
    for epoch in (5, 1, 3, 0):  # epochs in any order, more than are kept
        assert (rows_of(again, [step + epoch * len(steps) for step in steps]) == reference) == (
            epoch == 0
        )
    assert rows_of(again, reversed(steps)) != reference and sorted(
        rows_of(again, reversed(steps))
    ) == sorted(reference)
    assert rows_of(PackedPlan(*lengths, 500, seed=2), steps) != reference


def test_the_order_of_a_seed_stays_for_ever():
    sources = np.array([2, 3, 4, 5, 6, 7] * 3, np.uint32)
    plan = PackedPlan(sources, sources, 32, seed=0)
    assert plan.steps_per_epoch == 3 and plan.buckets[0].shape == (2, 16, 16)
    assert rows_of(plan, range(3)) == [
        [16, 4, 14],
        [15, 9, 3],
        [5, 17, 12],
        [11, 10, 1],
        [0],
        [2, 8, 7, 13, 6],
    ]
    assert rows_of(plan, range(3, 6)) == [
        [5, 17, 6],
        [0],
        [10, 16, 8],
        [11, 4, 7],
        [14, 2, 13, 1, 12],
        [9, 15, 3],
    ]


def test_pairs_have_other_neighbours_in_every_epoch():
    plan = PackedPlan(*lengths_of(3000), 500)

    def neighbours(epoch):
        rows = rows_of(
            plan, range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
        )
        return {tuple(sorted(two)) for row in rows for two in itertools.combinations(row, 2)}

    assert len(neighbours(0) & neighbours(1)) < 0.2 * len(neighbours(0))


def packed(toy, pairs, **options):
    return ParallelDataset(*pairs, toy.CharacterTokenizer(), packed=True, **options)


def test_a_batch_by_hand(toy):
    dataset = packed(toy, (["ab", "abcd", "a"], ["x", "xy", "xyz"]), shuffle=False)
    a, x, pad, start, end = 10 + ord("a"), 10 + ord("x"), 3, 5, 7
    assert dataset.packed and len(dataset) == 1 and dataset.shapes == [(2, 8, 8)]
    inputs, labels = dataset[0]
    # The longest target fits beside the longest source.
    assert inputs["source_ids"].tolist() == [
        [a, a + 1, a + 2, a + 3, end, a, end, pad],
        [a, a + 1, end] + 5 * [pad],
    ]
    assert inputs["source_segments"].tolist() == [[1, 1, 1, 1, 1, 2, 2, 0], [1, 1, 1] + 5 * [0]]
    assert inputs["target_ids"].tolist() == [
        [start, x, x + 1, start, x, x + 1, x + 2, pad],
        [start, x] + 6 * [pad],
    ]
    assert inputs["target_segments"].tolist() == [[1, 1, 1, 2, 2, 2, 2, 0], [1, 1] + 6 * [0]]
    assert labels.tolist() == [[x, x + 1, end, x, x + 1, x + 2, end, pad], [x, end] + 6 * [pad]]
    assert {array.dtype for array in (*inputs.values(), labels)} == {np.dtype("int32")}
    assert (dataset.num_tokens, dataset.longest, dataset.fill, dataset.source_fill) == (
        9,
        5,
        9 / 16,
        10 / 16,
    )
    assert dataset.summary().endswith(
        "9 target tokens, 56.2 % full, packed into one shape BxSxT: 2x8x8"
    )


def unpacked(batch):
    """Every pair of a packed batch, as (source ids, target ids, labels)."""
    inputs, labels = batch
    for row in range(len(labels)):
        for number in range(1, inputs["source_segments"][row].max() + 1):
            source, target = (
                inputs[f"{side}_segments"][row] == number for side in ("source", "target")
            )
            yield tuple(
                part.tolist()
                for part in (
                    inputs["source_ids"][row][source],
                    inputs["target_ids"][row][target],
                    labels[row][target],
                )
            )


@pytest.mark.parametrize("num_hosts", [1, 3])
def test_an_epoch_holds_what_the_unpacked_one_holds(toy, num_hosts):
    pairs = toy.pairs(300)
    plain = ParallelDataset(*pairs, toy.CharacterTokenizer(), batch_tokens=200)
    expected = []
    for inputs, labels in plain:
        for source, target, label in zip(
            inputs["source_ids"], inputs["target_ids"], labels, strict=True
        ):
            size = int((label != 3).sum())
            expected += (
                [(source[source != 3].tolist(), target[:size].tolist(), label[:size].tolist())]
                if size
                else []
            )
    hosts = [
        ParallelDataset.from_prepared(
            plain.corpus, batch_tokens=200, packed=True, num_hosts=num_hosts, host=host
        )
        for host in range(num_hosts)
    ]
    assert len({len(host) for host in hosts}) == 1
    assert sorted(pair for host in hosts for batch in host for pair in unpacked(batch)) == sorted(
        expected
    )
    (shape,) = hosts[0].shapes
    tokens = len(hosts[0]) * num_hosts * shape[0]
    assert hosts[0].fill == plain.num_tokens / (tokens * shape[2])
    assert {batch[1].shape for host in hosts for batch in host} == {(shape[0], shape[2])}


def test_segments_agree_with_the_ids(toy):
    for inputs, labels in packed(toy, toy.pairs(100), batch_tokens=300):
        ends = inputs["source_ids"] == 7
        assert (
            (ends.cumsum(1) - ends + 1) * (inputs["source_ids"] != 3) == inputs["source_segments"]
        ).all()
        starts = inputs["target_ids"] == 5
        assert (starts.cumsum(1) * (labels != 3) == inputs["target_segments"]).all()


def test_views_go_on_at_any_step(toy):
    dataset = packed(toy, toy.pairs(200), batch_tokens=200, seed=4)
    size = len(dataset)
    for step in (0, 1, size - 1, size, 2 * size + 3):
        view = dataset.from_step(step).for_fit()
        for i in (0, 1, 2):
            found, expected = view[i], dataset.batch_at(step + i)
            assert (
                all((found[0][key] == expected[0][key]).all() for key in expected[0])
                and (found[1] == expected[1]).all()
            )
    dataset.set_epoch(2)
    assert (dataset[3][1] == dataset.batch_at(2 * size + 3)[1]).all()


def test_a_host_may_be_left_without_rows(toy):
    for host in range(4):
        inputs, labels = packed(toy, (["abc"], ["x"]), num_hosts=4, host=host)[0]
        filled = int((labels != 3).sum())
        assert filled == (2 if host == 3 else 0)
        if not filled:
            assert (inputs["target_ids"] == 3).all() and (inputs["source_segments"] == 0).all()
