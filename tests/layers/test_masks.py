import numpy as np
import pytest
from keras import ops

from kformer.layers import causal_mask, combine_masks, padding_mask, segment_mask


def picture(mask):
    """A mask as its docstring draws it: `1` may be attended, `.` may not."""
    return [
        " ".join(".1"[int(cell)] for cell in row) for row in np.array(ops.convert_to_numpy(mask))
    ]


def test_padding_mask():
    mask = padding_mask(ops.array([[5, 6, 7, 0], [8, 0, 0, 0]]))
    assert picture(mask) == ["1 1 1 .", "1 . . ."]
    assert picture(padding_mask(ops.array([[1, 1, 5]]), pad_id=1)) == [". . 1"]


def test_causal_mask():
    assert picture(causal_mask(3, 3)) == ["1 . .", "1 1 .", "1 1 1"]
    assert picture(causal_mask(2, 4, offset=2)) == ["1 1 1 .", "1 1 1 1"]
    assert picture(causal_mask(1, 3, offset=ops.convert_to_tensor(1))) == ["1 1 ."]


def test_segment_mask():
    mask = segment_mask(ops.array([[1, 1, 2]]), ops.array([[1, 2, 2]]))
    assert mask.shape == (1, 3, 3)
    assert picture(mask[0]) == ["1 . .", "1 . .", ". 1 1"]


def test_masks_are_boolean():
    ids = ops.array([[5, 0]])
    for mask in (
        padding_mask(ids),
        causal_mask(2, 2),
        segment_mask(ids, ids),
        combine_masks(ops.ones((2, 2), "int32")),
    ):
        assert ops.convert_to_numpy(mask).dtype == bool


def test_combining_is_and_over_all_ranks(rng):
    matrix, per_row, per_head = (
        rng.random(shape) < 0.6 for shape in [(3, 4), (2, 3, 4), (2, 5, 3, 4)]
    )
    padding = rng.random((2, 4)) < 0.6
    combined = combine_masks(
        None,
        *(ops.convert_to_tensor(mask) for mask in (matrix, per_row, per_head, padding[:, None, :])),
        None,
    )
    expected = matrix & per_row[:, None] & per_head & padding[:, None, None]
    assert expected.any()
    np.testing.assert_array_equal(ops.convert_to_numpy(combined), expected)


def test_combining_nothing_is_none():
    assert combine_masks() is None
    assert combine_masks(None, None) is None


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((3, 4), (1, 1, 3, 4)), ((2, 1, 4), (2, 1, 1, 4)), ((2, 5, 3, 4), (2, 5, 3, 4))],
)
def test_combined_masks_broadcast_over_rows_heads_queries_keys(shape, expected):
    assert tuple(combine_masks(None, ops.ones(shape, "bool")).shape) == expected


@pytest.mark.parametrize("shape", [(4,), (1, 2, 3, 4, 5)])
def test_a_mask_of_another_rank_is_refused(shape):
    with pytest.raises(ValueError, match="expand_dims"):
        combine_masks(ops.ones(shape, "bool"))
