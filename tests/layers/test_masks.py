import keras
import numpy as np
import pytest
from keras import ops

from kformer.layers import (
    DecoderLayer,
    EncoderLayer,
    MultiHeadAttention,
    causal_mask,
    combine_masks,
    padding_mask,
    segment_mask,
)
from kformer.models.encoder_model import Pooling
from tests.peers import to_numpy

D, N, F, T = 8, 2, 16, 4
KINDS = ({}, {"kind": "local", "window": 2}, {"kind": "linear"})


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


def layers_with_masks():
    """Pairs of a function of a mask `[2, 4]` or `[2, 4, 4]`, and the mask's rank."""
    x = np.ones((2, T, D), "float32")
    for options in KINDS:
        layer = MultiHeadAttention(N, **options)
        yield lambda mask, layer=layer: layer(x, padding_mask=mask), 2
        if options.get("kind") != "linear":
            yield lambda mask, layer=layer: layer(x, attention_mask=mask), 3
        yield lambda mask, layer=layer: layer(x, mask=mask), 2
    cross = MultiHeadAttention(N)
    yield lambda mask: cross(x, x + 1, padding_mask=mask), 2
    yield lambda mask: cross(x, x + 1, attention_mask=mask), 3
    yield lambda mask: cross(x, x + 1, value_mask=mask), 2
    encoder, decoder = EncoderLayer(F, N), DecoderLayer(F, N)
    for name, rank in {"padding_mask": 2, "attention_mask": 3, "mask": 2}.items():
        yield lambda mask, name=name: encoder(x, **{name: mask}), rank
        yield lambda mask, name=name: decoder(x, x + 1, **{name: mask}), rank
    yield lambda mask: decoder(x, x + 1, encoded_padding_mask=mask), 2
    yield lambda mask: decoder(x, x + 1, cross_attention_mask=mask), 3
    yield lambda mask: combine_masks(mask), 3


@pytest.mark.any_backend(quickest="torch")
def test_a_mask_of_floats_is_refused():
    """It may be one of 0 and -1e9, which is added, and would be read the wrong way round."""
    words = "True where a query may attend .*float.* -1e9, .* give mask == 0.* give mask == 1"
    added = np.triu(np.full((2, T, T), -1e9, "float32"), 1)
    for call, rank in layers_with_masks():
        for mask in (added, added == 0):
            mask = mask if rank == 3 else mask[:, 1]
            if mask.dtype == bool:
                call(mask)
                call(mask.astype("int32"))
                continue
            for given in (mask, mask.tolist(), ops.cast(mask, "bfloat16")):
                with pytest.raises(ValueError, match=words):
                    call(given)
    with pytest.raises(ValueError, match=words):
        Pooling()(np.ones((2, T, D), "float32"), padding_mask=np.ones((2, T), "float32"))


def test_the_turned_mask_is_that_of_booleans():
    layer, x = MultiHeadAttention(N), np.random.default_rng(0).normal(size=(2, T, D))
    added = np.triu(np.full((T, T), -1e9, "float32"), 1)
    np.testing.assert_array_equal(
        to_numpy(layer(x, attention_mask=added == 0)), to_numpy(layer(x, use_causal_mask=True))
    )


def test_a_mask_of_floats_is_refused_in_training():
    x, mask = keras.Input((T, D)), keras.Input((T, T))
    model = keras.Model([x, mask], EncoderLayer(F, N)(x, attention_mask=mask))
    model.compile("sgd", "mse")
    x, added = np.ones((2, T, D), "float32"), np.triu(np.full((2, T, T), -1e9, "float32"), 1)
    with pytest.raises(ValueError, match="(?s)True where a query may attend .* give mask == 0"):
        model.fit([x, added], x, verbose=0)


@pytest.mark.any_backend(quickest="torch")
@pytest.mark.parametrize("options", KINDS, ids=["full", "local", "linear"])
def test_masks_that_do_not_fit(options):
    layer, x = MultiHeadAttention(N, **options), np.ones((2, T, D), "float32")
    for shape in ((2, T - 1), (2, T + 1), (3, T), (2, T, T), (T,)):
        with pytest.raises(ValueError, match=r"padding_mask must have the shape \[B, S\], here"):
            layer(x, padding_mask=np.ones(shape, bool))
    for shape in ((2, T + 1, T), (2, T, T + 1), (T - 1, T), (3, T, T), (2, 3, T, T)):
        with pytest.raises(ValueError, match=r"attention_mask must have .* here \(2, 2, 4, 4\)"):
            layer(x, attention_mask=np.ones(shape, bool))
    cache = layer.init_cache(2, 6)
    if not options:
        for shape in ((2, T), (2, 7)):
            with pytest.raises(ValueError, match=r"padding_mask .* here \(2, 6\)"):
                layer(x, padding_mask=np.ones(shape, bool), cache=cache)
        with pytest.raises(ValueError, match=r"attention_bias .* here \(2, 2, 4, 4\)"):
            layer(x, attention_bias=np.ones((N, T, T + 1), "float32"))
    with pytest.raises(ValueError, match="attention_bias is added .* as attention_mask"):
        layer(x, attention_bias=np.ones((N, T, T), bool))


@pytest.mark.any_backend(quickest="torch")
def test_calls_of_keras_and_kerashub_name_our_arguments():
    x, padding, square = np.ones((2, T, D)), np.ones((2, T), bool), np.ones((2, T, T), bool)
    words = r"takes masks by name \(padding_mask=mask, attention_mask=mask\)"
    for mask in (padding, padding.astype("int32"), padding.astype("float32"), square):
        for call in (
            lambda *masks: EncoderLayer(F, N)(x, *masks),
            lambda *masks: DecoderLayer(F, N)(x, x, *masks),
            lambda *masks: DecoderLayer(F, N)(x, x, None, *masks),
            lambda *masks: MultiHeadAttention(N)(x, *masks),
            lambda *masks: MultiHeadAttention(N)(x, x, *masks),
        ):
            with pytest.raises(ValueError, match=words):
                call(mask)
    with pytest.raises(TypeError, match="no argument 'key_dim': give 'head_dim' instead"):
        MultiHeadAttention(num_heads=N, key_dim=4)
    with pytest.raises(TypeError, match="no argument 'key_mask': give 'padding_mask' instead"):
        MultiHeadAttention(N)(x, x, key_mask=padding)
    decoder = DecoderLayer(F, N)
    for name, ours in {
        "decoder_padding_mask": "padding_mask",
        "encoder_padding_mask": "encoded_padding_mask",
        "decoder_attention_mask": "attention_mask",
        "encoder_attention_mask": "cross_attention_mask",
    }.items():
        with pytest.raises(TypeError, match=f"no argument '{name}': give '{ours}' instead"):
            decoder(x, x, **{name: padding})
    with pytest.raises(TypeError, match="no argument 'decoder_sequence': give 'x' instead"):
        decoder(decoder_sequence=x, encoder_sequence=x)
