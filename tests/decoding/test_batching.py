"""Which sentences are searched together."""

import random

import pytest

from kformer.decoding.batching import batches_by_length
from kformer.utils import backend


@pytest.fixture
def dynamic(monkeypatch):
    """As on a backend whose shapes may be any."""
    monkeypatch.setattr(backend, "uses_static_shapes", lambda: False)


LENGTHS = [*random.Random(0).choices(range(1, 60), k=200), 0, 7, 0, 300]


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("batch_size", "batch_tokens"),
    [(32, None), (1, None), (1000, None), (1000, 256), (16, 256), (8, 1)],
)
def test_every_sentence_once_and_long_ones_first(dynamic, batch_size, batch_tokens):
    batches = batches_by_length(LENGTHS, batch_size, batch_tokens)
    indices = [index for batch in batches for index in batch]
    assert sorted(indices) == [index for index, length in enumerate(LENGTHS) if length]
    assert [LENGTHS[index] for index in indices] == sorted(filter(None, LENGTHS), reverse=True)
    for batch, following in zip(batches, [*batches[1:], [None]], strict=True):
        assert 1 <= len(batch) <= batch_size
        longest = LENGTHS[batch[0]]
        if batch_tokens is not None:
            assert len(batch) * longest <= batch_tokens or len(batch) == 1
        # No batch is smaller than it has to be.
        fits = batch_tokens is None or (len(batch) + 1) * longest <= batch_tokens
        assert following == [None] or len(batch) == batch_size or not fits


@pytest.mark.any_backend
def test_static_shapes_are_counted_with_their_padding(monkeypatch):
    """Rows are a power of two, which needs no padding to become one, and a length counts as far as
    it will be padded.
    """
    monkeypatch.setattr(backend, "uses_static_shapes", lambda: True)
    batches = batches_by_length([17] * 100, 1000, 32 * 20, longest=512)
    assert [len(batch) for batch in batches] == [16] * 6 + [4]
    # The model's limit is 18: no length is padded beyond it.
    assert len(batches_by_length([17] * 100, 1000, 32 * 20, longest=18)[0]) == 32
    assert [len(batch) for batch in batches_by_length([5] * 40, 24)] == [24, 16]


@pytest.mark.any_backend
def test_nothing_and_nonsense(dynamic):
    assert batches_by_length([], 32, 4096) == batches_by_length([0, 0], 32) == []
    with pytest.raises(
        ValueError, match="^batch_size must be a whole number of at least 1, but 0 was given.$"
    ):
        batches_by_length([3], 0)
    with pytest.raises(
        ValueError, match="^batch_tokens must be a whole number of at least 1, but -5 was given.$"
    ):
        batches_by_length([3], 4, -5)
