"""Layers and models take nested lists; a wrong shape is one sentence."""

import numpy as np
import pytest
from keras import ops

import kformer
from kformer import layers
from tests.peers import to_numpy

IDS = [[5, 6, 0], [1, 2, 3]]
STATES = np.linspace(-1, 1, 48).reshape(2, 3, 8).astype("float32")
SIZES = {"hidden_dim": 8, "intermediate_dim": 16, "num_heads": 2}


@pytest.mark.parametrize(
    "layer, inputs",
    [
        (lambda: layers.PositionalEmbedding(10, 8, pad_id=0), IDS),
        (lambda: layers.MultiHeadAttention(2), STATES),
        (lambda: layers.EncoderLayer(16, 2), STATES),
        (lambda: layers.DecoderLayer(16, 2, cross_attention=False), STATES),
        (lambda: layers.FeedForward(16), STATES),
        (lambda: layers.FeatureEmbedding(8), STATES),
        (lambda: layers.NormalizedPositions(max_length=5), STATES),
        (lambda: layers.OutputBias(), STATES),
        (lambda: layers.Dropout(0.5), STATES),
        (lambda: layers.StochasticDepth(0.5), STATES),
        (lambda: layers.RelativePositionBias(2), [[0, 1], [-1, 0]]),
        (lambda: layers.Distances(), STATES),
    ],
    ids=lambda part: None if callable(part) else "",
)
def test_a_nested_list_is_a_tensor(layer, inputs):
    layer = layer()
    expected = to_numpy(layer(ops.convert_to_tensor(inputs)))
    np.testing.assert_array_equal(to_numpy(layer(np.array(inputs).tolist())), expected)


def test_lists_of_several_arguments():
    states, other = STATES.tolist(), STATES[:, :2].tolist()
    attention = layers.MultiHeadAttention(2)
    assert attention(states, states, states).shape == (2, 3, 8) and attention.is_self_attention
    masks = {"padding_mask": [[True, True, False]] * 2, "attention_mask": [[True] * 3] * 3}
    tensors = {name: ops.convert_to_tensor(mask, dtype="bool") for name, mask in masks.items()}
    expected = to_numpy(attention(ops.convert_to_tensor(STATES), **tensors))
    np.testing.assert_array_equal(to_numpy(attention(states, **masks)), expected)
    assert layers.DecoderLayer(16, 2)(other, states).shape == (2, 2, 8)
    positions = layers.segment_positions([[1, 1, 2, 0]])
    assert to_numpy(positions).tolist() == [[0, 1, 0, 0]]


def test_models_take_lists():
    model = kformer.Transformer(10, num_encoder_layers=1, num_decoder_layers=1, **SIZES)
    assert model({"source_ids": IDS, "target_ids": IDS}).shape == (2, 3, 10)
    assert kformer.TransformerDecoder(10, num_layers=1, **SIZES)({"token_ids": IDS}).shape[2] == 10
    assert kformer.TransformerEncoder(10, num_layers=1, **SIZES)(IDS).shape == (2, 3, 8)
    model = kformer.Forecaster(3, num_encoder_layers=1, num_decoder_layers=1, **SIZES)
    past = np.ones((1, 2, 3)).tolist()
    assert model(model.teacher_forcing(past, past)).shape == (1, 2, 3)


@pytest.mark.any_backend
def test_wrong_inputs_are_one_sentence():
    embedding, attention = layers.PositionalEmbedding(10, 8, name="e"), layers.MultiHeadAttention(2)
    with pytest.raises(ValueError, match=r"^The input of the layer 'e' must have the shape \[B, T"):
        embedding([5, 6, 0])
    with pytest.raises(ValueError, match="^The rows of a list have different lengths: pad"):
        embedding([[5, 6], [7]])
    with pytest.raises(ValueError, match="it holds 'a': tokenize texts"):
        embedding([["a"]])
    with pytest.raises(ValueError, match=r"must have the shape \[B, T, D\], but .*\(3, 8\)"):
        attention(STATES[0])
    with pytest.raises(ValueError, match=r"must have the shape \[B, T, D\], but .*\(3, 8\)"):
        layers.EncoderLayer(16, 2)(STATES[0])
    model = kformer.Transformer(10, num_encoder_layers=1, num_decoder_layers=1, **SIZES)
    with pytest.raises(ValueError, match="^The input 'source_ids' of 'transformer' must have"):
        model({"source_ids": IDS[0], "target_ids": IDS[0]})
    with pytest.raises(ValueError, match=r"need one number of rows, but have 2 \(source_ids\), 1"):
        model({"source_ids": IDS, "target_ids": IDS[:1]})
    model = kformer.TransformerDecoder(10, num_layers=1, **SIZES)
    for prompts in ([5, 6], ["abc"], [[5.5]]):
        with pytest.raises(ValueError, match="^Prompts are lists of token ids, one list for each"):
            model.generate(prompts)
