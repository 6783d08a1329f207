import itertools
import os

import numpy as np
import pytest

from kformer.data import ParallelDataset, prepare

any_backend = pytest.mark.any_backend


@pytest.fixture
def tokenizer(toy):
    return toy.CharacterTokenizer()


@pytest.fixture
def pairs(toy):
    return toy.pairs(300)


def same(first, second):
    arrays = [
        (batch[0]["source_ids"], batch[0]["target_ids"], batch[1]) for batch in (first, second)
    ]
    return all(
        a.shape == b.shape and a.dtype == b.dtype and (a == b).all()
        for a, b in zip(*arrays, strict=True)
    )


@any_backend
def test_shift_padding_and_types(tokenizer):
    dataset = ParallelDataset(
        ["ab", "abcd"], ["x", "xyz"], tokenizer, batch_tokens=10, max_shapes=1, shuffle=False
    )
    assert len(dataset) == 1 and dataset.shapes == [(2, 5, 4)]
    inputs, labels = dataset[0]
    a, x, pad, start, end = 10 + ord("a"), 10 + ord("x"), 3, 5, 7
    assert inputs["source_ids"].tolist() == [
        [a, a + 1, end, pad, pad],
        [a, a + 1, a + 2, a + 3, end],
    ]
    assert inputs["target_ids"].tolist() == [[start, x, pad, pad], [start, x, x + 1, x + 2]]
    assert labels.tolist() == [[x, end, pad, pad], [x, x + 1, x + 2, end]]
    assert {array.dtype for array in (*inputs.values(), labels)} == {np.dtype("int32")}
    assert (dataset.pad_id, dataset.num_pairs, dataset.num_tokens) == (3, 2, 6)
    assert dataset.fill == 6 / 8 and dataset.source_fill == 8 / 10


@any_backend
def test_rows_of_padding_carry_nothing(tokenizer):
    dataset = ParallelDataset(
        ["a"] * 5, ["b"] * 5, tokenizer, batch_tokens=4, num_hosts=4, host=3, max_shapes=1
    )
    assert dataset.shapes == [(2, 2, 2)] and len(dataset) == 1
    hosts = [
        ParallelDataset.from_prepared(
            dataset.corpus, batch_tokens=4, num_hosts=4, host=host, max_shapes=1
        )[0]
        for host in range(4)
    ]
    empty = [(inputs["target_ids"] == 3).all(axis=1) for inputs, _ in hosts]
    assert np.sum(empty) == 3
    for (inputs, labels), rows in zip(hosts, empty, strict=True):
        assert (labels[rows] == 3).all() and (inputs["source_ids"][rows] == 3).all()
        assert (inputs["target_ids"][~rows, 0] == 5).all()


@any_backend
def test_an_epoch_is_every_pair_once_and_the_next_is_in_another_order(toy, tokenizer, pairs):
    dataset = ParallelDataset(*pairs, tokenizer, batch_tokens=200)
    expected = sorted(zip(*pairs, strict=True))
    epochs = []
    for epoch in range(3):
        assert dataset.epoch == epoch
        epochs.append([pair for batch in dataset for pair in toy.pairs_of(batch, tokenizer)])
        assert sorted(epochs[-1]) == expected
        dataset.on_epoch_end()
    assert epochs[0] != epochs[1] != epochs[2]
    assert len(dataset) == dataset.steps_per_epoch == dataset.num_batches
    assert (
        len({batch[0]["source_ids"].shape + batch[1].shape for batch in dataset})
        == len(dataset.shapes)
        <= 8
    )
    assert dataset.num_tokens == sum(len(target) + 1 for target in pairs[1])
    with pytest.raises(IndexError):
        dataset[len(dataset)]


@any_backend
def test_two_datasets_agree_and_seeds_differ(tokenizer, pairs, tmp_path):
    corpus = prepare(*pairs, tokenizer, tmp_path / "pairs")
    steps = [0, 5, 40, 3, 1000]
    first = ParallelDataset(*pairs, tokenizer, batch_tokens=200, seed=4)
    second = ParallelDataset.from_prepared(corpus, batch_tokens=200, seed=4)
    third = ParallelDataset.from_prepared(tmp_path / "pairs", batch_tokens=200, seed=5)
    assert all(same(first.batch_at(step), second.batch_at(step)) for step in steps)
    assert not any(same(first.batch_at(step), third.batch_at(step)) for step in steps)


@any_backend
def test_without_shuffle_every_epoch_is_the_same(tokenizer, pairs):
    dataset = ParallelDataset(*pairs, tokenizer, batch_tokens=200, shuffle=False)
    first = list(dataset)
    dataset.on_epoch_end()
    assert all(same(*batches) for batches in zip(first, dataset, strict=True))


@any_backend
def test_hosts_share_an_epoch(toy, tokenizer, pairs):
    hosts = [
        ParallelDataset(*pairs, tokenizer, batch_tokens=200, num_hosts=3, host=host)
        for host in range(3)
    ]
    assert len({len(host) for host in hosts}) == 1
    seen = []
    for step in range(len(hosts[0])):
        batches = [host[step] for host in hosts]
        assert len({batch[1].shape + batch[0]["source_ids"].shape for batch in batches}) == 1
        seen += [pair for batch in batches for pair in toy.pairs_of(batch, tokenizer)]
    assert sorted(seen) == sorted(zip(*pairs, strict=True))


@any_backend
def test_views_go_on_at_any_step(tokenizer, pairs):
    dataset = ParallelDataset(*pairs, tokenizer, batch_tokens=200)
    size = len(dataset)
    for step in (0, 1, size - 1, size, 2 * size + 3):
        view = dataset.from_step(step)
        assert view.num_batches is None and not hasattr(view, "__len__")
        for i in (0, 1, 2, size):
            assert same(view[i], dataset.batch_at(step + i))
        assert all(
            same(batch, dataset.batch_at(step + i))
            for i, batch in enumerate(itertools.islice(view, 3))
        )
    dataset.set_epoch(2)
    assert same(dataset[3], dataset.batch_at(2 * size + 3))


@any_backend
def test_what_the_corpus_left_out_is_known(tokenizer):
    with pytest.warns(UserWarning, match="left out") as caught:
        dataset = ParallelDataset(["aaa", "aaaa", "", "a"], ["b"] * 4, tokenizer, max_length=4)
    assert (dataset.num_pairs, dataset.num_too_long, dataset.num_empty, len(caught)) == (2, 1, 1, 2)
    assert repr(dataset) == f"<ParallelDataset: {dataset.summary()}>"
    assert dataset.summary() == (
        "2 pairs (1 too long and 1 empty left out), 1 step per epoch, 4 target tokens, 100.0 % "
        "full, 1 shape BxSxT: 2x4x2"
    )


@any_backend
def test_files_and_the_temporary_folder(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    os.mkdir(tmp_path / "tmp")
    (tmp_path / "s").write_text("ab\ncd\n")
    (tmp_path / "t").write_text("x\ny\n")
    dataset = ParallelDataset(str(tmp_path / "s"), tmp_path / "t", tokenizer)
    view = dataset.from_step(0)
    assert dataset.num_pairs == 2 and len(os.listdir(tmp_path / "tmp")) == 1
    del dataset
    assert (
        view[0][1].shape == (2, 2) and len(os.listdir(tmp_path / "tmp")) == 1
    )  # the view still needs it
    del view
    assert os.listdir(tmp_path / "tmp") == []


@any_backend
def test_cache_dir_prepares_once(toy, pairs, tmp_path):
    first, second = toy.CharacterTokenizer(), toy.CharacterTokenizer()
    ParallelDataset(*pairs, first, cache_dir=tmp_path)
    assert first.texts_seen > 0
    dataset = ParallelDataset(*pairs, second, cache_dir=tmp_path, batch_tokens=100, seed=9)
    assert second.texts_seen == 0 and dataset.num_pairs == 300
    del dataset
    assert len(os.listdir(tmp_path)) == 1


@any_backend
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"batch_tokens": 0}, "batch_tokens must be a whole number of at least 1, but 0"),
        ({"batch_tokens": 4096.0}, "batch_tokens must be a whole number"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
        ({"max_shapes": 0}, "max_shapes must be a whole number of at least 1"),
        ({"num_hosts": 0}, "num_hosts must be a whole number of at least 1"),
        ({"num_hosts": 2, "host": 2}, "host must be a whole number from 0 to 1, but 2"),
        ({"max_length": 1}, "max_length must be a whole number of at least 2"),
    ],
)
def test_options_out_of_range(tokenizer, option, message):
    with pytest.raises(ValueError, match=message):
        ParallelDataset(["a"], ["b"], tokenizer, **option)


@any_backend
def test_steps_and_epochs_out_of_range(tokenizer):
    dataset = ParallelDataset(["a"], ["b"], tokenizer)
    for call in (dataset.batch_at, dataset.from_step, dataset.set_epoch):
        with pytest.raises(ValueError, match="must be a whole number of at least 0, but -1"):
            call(-1)


@any_backend
def test_readers_side_by_side_are_refused(tokenizer, pairs):
    data = ParallelDataset(*pairs, tokenizer, batch_tokens=200)
    for dataset in (data, data.from_step(1)):
        dataset.workers = 1
        with pytest.raises(ValueError, match="leave workers at 1, not 2"):
            dataset.workers = 2


@any_backend
def test_bad_files_are_the_callers_sentence(tokenizer, tmp_path):
    with pytest.raises(FileNotFoundError, match="target file '.*none' does not exist"):
        ParallelDataset(["a"], str(tmp_path / "none"), tokenizer)
    with pytest.raises(ValueError, match="2 lines in the source texts, but 1 in the target texts"):
        ParallelDataset(["a", "b"], ["a"], tokenizer)


def test_a_backend_that_compiles_each_shape_gets_few(pairs, tokenizer, backend):
    data = ParallelDataset(*pairs, tokenizer, batch_tokens=100)
    again = ParallelDataset.from_prepared(data.corpus, batch_tokens=100)
    assert len(data.shapes) == len(again.shapes) == (3 if backend == "jax" else 8)
