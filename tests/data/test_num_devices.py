"""Batches whose rows divide by the devices are those of one device, and rows of padding."""

import numpy as np
import pytest

from kformer.data import ParallelDataset

pytestmark = pytest.mark.any_backend


@pytest.mark.parametrize("packed", [False, True])
def test_batches_are_those_of_one_device_and_padding(toy, packed):
    tokenizer, (sources, targets) = toy.CharacterTokenizer(), toy.pairs(300)
    options = dict(batch_tokens=200, packed=packed, word_dropout=0.2, num_hosts=2, host=1)
    one = ParallelDataset(sources, targets, tokenizer, **options)
    four = ParallelDataset.from_prepared(one.corpus, num_devices=4, tokenizer=tokenizer, **options)
    assert len(four) == len(one) and four.num_devices == 4
    added = [more - rows for (more, *_), (rows, *_) in zip(four.shapes, one.shapes, strict=True)]
    assert 0 <= min(added) <= max(added) < 4 and any(added)
    for step in range(2 * len(one)):
        inputs, labels = one.batch_at(step)
        more_inputs, more_labels = four.batch_at(step)
        assert len(more_labels) % 4 == 0
        assert four.count_tokens(step) == one.count_tokens(step)
        for name, array in [*inputs.items(), ("labels", labels)]:
            filled = more_labels if name == "labels" else more_inputs[name]
            assert filled.dtype == array.dtype
            np.testing.assert_array_equal(filled[: len(array)], array)
            padding = 0 if name.endswith("segments") else one.pad_id
            assert (filled[len(array) :] == padding).all()
    assert {array.shape for array in (batch[1] for batch in map(four.batch_at, range(9)))} <= {
        (rows, target) for rows, _, target in four.shapes
    }
    assert four.fill < one.fill


def test_a_number_of_devices_is_at_least_one(toy):
    with pytest.raises(ValueError, match="num_devices"):
        ParallelDataset(["a"], ["b"], toy.CharacterTokenizer(), num_devices=0)
