"""Rows that hold several pairs: what the model computes for a pair is what it computes for it
alone.
"""

import keras
import numpy as np
import pytest
from keras import ops

import kformer
from kformer.layers import NormalizedPositions, PositionalEmbedding, segment_positions
from kformer.training import MaskedAccuracy, MaskedCrossentropy, NegativeLogLikelihood
from tests.gradients import value_and_gradients

START, END, LONGEST = 2, 3, 9
# Lengths (source, target) of the pairs of each row.
ROWS = [[(5, 4), (3, 6), (2, 2)], [(9, 3), (4, 9)], []]
ROOM = 14
MODELS = {
    "pre-norm, sinusoidal": {"normalize_first": True},
    "post-norm, sinusoidal, as Marian": {
        "position_encoding": "sinusoidal_halves",
        "start_id": 0,
        "output_bias": True,
    },
    "post-norm, learned": {
        "position_encoding": "learned",
        "max_length": LONGEST,
        "target_vocabulary_size": 13,
    },
    "pre-norm, learned, as mBART": {
        "position_encoding": "learned",
        "max_length": LONGEST,
        "normalize_embeddings": True,
        "normalize_first": True,
    },
    "SSRU": {"decoder_autoregression": "ssru"},
}


def draw_pairs(rng, vocabulary_size=11):
    """Pairs (source ids, labels) row by row, each side with its end token."""
    return [
        [
            tuple(np.append(rng.integers(4, vocabulary_size, size - 1), END) for size in pair)
            for pair in row
        ]
        for row in ROWS
    ]


def batch_of(rows, start_id=START, room=ROOM):
    """A packed batch of these rows; one pair in each row makes an ordinary batch."""
    arrays = {
        key: np.zeros((len(rows), room), "int32")
        for key in ("source_ids", "target_ids", "source_segments", "target_segments")
    }
    labels = np.zeros((len(rows), room), "int32")
    for index, row in enumerate(rows):
        source_begin = target_begin = 0
        for number, (source, target) in enumerate(row, 1):
            sources = slice(source_begin, source_begin + len(source))
            targets = slice(target_begin, target_begin + len(target))
            arrays["source_ids"][index, sources], arrays["source_segments"][index, sources] = (
                source,
                number,
            )
            arrays["target_ids"][index, targets] = [start_id, *target[:-1]]
            labels[index, targets], arrays["target_segments"][index, targets] = target, number
            source_begin, target_begin = sources.stop, targets.stop
    return arrays, labels


def plain(inputs):
    return {key: inputs[key] for key in ("source_ids", "target_ids")}


def logits_of(model, inputs):
    return ops.convert_to_numpy(
        model({key: ops.convert_to_tensor(value) for key, value in inputs.items()})
    )


@pytest.mark.parametrize("kind", MODELS)
def test_loss_and_gradients_are_those_of_the_unpacked_pairs(tiny_transformer, rng, kind):
    model = tiny_transformer(
        **MODELS[kind], dropout=0.0, num_encoder_layers=1, num_decoder_layers=1
    )
    rows = draw_pairs(rng)
    packed = batch_of(rows, model.start_id)
    alone, labels = batch_of([[pair] for row in rows for pair in row], model.start_id, room=LONGEST)
    losses, slopes = [], []
    for inputs, y in (packed, (plain(alone), labels)):
        count = int((y != 0).sum())

        def total(inputs=inputs, y=y, count=count):
            logits = model(
                {key: ops.convert_to_tensor(value) for key, value in inputs.items()}, training=True
            )
            return MaskedCrossentropy(label_smoothing=0.1)(ops.convert_to_tensor(y), logits) * count

        value, found = value_and_gradients(total, model.trainable_variables)
        losses.append(value)
        slopes.append(found)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for variable, found, expected in zip(model.trainable_variables, *slopes, strict=True):
        scale = np.abs(expected).max()
        # Softmax ignores what all keys have in common, so the gradient of the keys' bias is zero
        # but for rounding.
        np.testing.assert_allclose(
            found, expected, rtol=1e-5, atol=1e-5 * max(scale, 0.1), err_msg=variable.path
        )


@pytest.mark.parametrize("kind", ["pre-norm, sinusoidal", "pre-norm, learned, as mBART"])
def test_the_logits_of_a_pair_are_the_same_in_any_company(tiny_transformer, rng, kind):
    model = tiny_transformer(**MODELS[kind], num_encoder_layers=1, num_decoder_layers=1)
    rows = draw_pairs(rng)
    logits = logits_of(model, batch_of(rows)[0])
    assert np.isfinite(logits).all()
    others = draw_pairs(rng)
    others[0][1] = rows[0][1]
    begin, end = 4, 10
    np.testing.assert_array_equal(
        logits_of(model, batch_of(others)[0])[0, begin:end], logits[0, begin:end]
    )
    # At another place, with others before it and behind it.
    moved = logits_of(model, batch_of([[rows[0][0], rows[0][2], rows[0][1]], rows[1], []])[0])
    np.testing.assert_allclose(moved[0, 6:12], logits[0, begin:end], rtol=1e-5, atol=1e-5)
    alone = logits_of(model, plain(batch_of([[rows[0][1]]], room=LONGEST)[0]))
    np.testing.assert_allclose(alone[0, :6], logits[0, begin:end], rtol=1e-5, atol=1e-5)


def test_the_masks_by_hand(tiny_transformer):
    model = tiny_transformer(num_encoder_layers=1, num_decoder_layers=1)
    inputs = {
        "source_ids": [[5, 3, 6, 3, 0]],
        "source_segments": [[1, 1, 2, 2, 0]],
        "target_ids": [[2, 5, 2, 0]],
        "target_segments": [[1, 1, 2, 0]],
    }
    seen = model.inspect({key: np.array(value) for key, value in inputs.items()})
    attended = {
        key: ops.convert_to_numpy(seen[key][0][0, 0]) > 0 for key in seen if key.endswith("scores")
    }
    expected = {
        "encoder_attention_scores": [
            [1, 1, 0, 0, 0],
            [1, 1, 0, 0, 0],
            [0, 0, 1, 1, 0],
            [0, 0, 1, 1, 0],
        ],
        "decoder_attention_scores": [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0]],
        "cross_attention_scores": [[1, 1, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 1, 0]],
    }
    for key, rows in expected.items():
        np.testing.assert_array_equal(attended[key][: len(rows)], np.array(rows, bool), err_msg=key)


def test_positions_begin_anew_with_each_segment():
    segments = np.array([[1, 1, 1, 2, 2, 0, 0], [4, 7, 7, 7, 7, 7, 7], [0] * 7])
    positions = segment_positions(ops.convert_to_tensor(segments, "int32"))
    assert ops.convert_to_numpy(positions).tolist() == [
        [0, 1, 2, 0, 1, 0, 0],
        [0, 0, 1, 2, 3, 4, 5],
        [0] * 7,
    ]


@pytest.mark.parametrize(
    "encoding", ["sinusoidal", "sinusoidal_halves", "sinusoidal_fairseq", "learned"]
)
@pytest.mark.parametrize("layer_class", [PositionalEmbedding, NormalizedPositions])
def test_explicit_positions_are_those_of_a_sequence_of_its_own(layer_class, encoding):
    sizes = {
        "max_length": 4,
        "position_encoding": encoding,
        "position_offset": 0 if encoding == "learned" else 2,
    }
    layer = (
        PositionalEmbedding(11, 8, **sizes)
        if layer_class is PositionalEmbedding
        else NormalizedPositions(**sizes)
    )
    ids = np.array([[5, 6, 7, 8, 5, 6]])
    inputs = (
        ops.convert_to_tensor(ids)
        if layer_class is PositionalEmbedding
        else ops.one_hot(ids, 8 + 1)[..., :8]
    )
    together = layer(inputs, positions=ops.convert_to_tensor([[0, 1, 2, 3, 0, 1]]))
    for begin, end in ((0, 4), (4, 6)):
        np.testing.assert_allclose(
            *(
                ops.convert_to_numpy(x)
                for x in (together[:, begin:end], layer(inputs[:, begin:end]))
            ),
            atol=1e-6,
        )
    if encoding == "learned":
        beyond = ops.convert_to_numpy(
            layer(inputs, positions=ops.convert_to_tensor([[0, 1, 2, 3, 4, 5]]))
        )
        assert np.isfinite(beyond[:, :4]).all() and np.isnan(beyond[:, 4:]).all()


def test_one_side_alone_is_refused(tiny_transformer, rng):
    inputs, _ = batch_of(draw_pairs(rng))
    del inputs["target_segments"]
    with pytest.raises(ValueError, match="Packed rows need the segments of both sides"):
        tiny_transformer()(inputs)


@pytest.mark.any_backend(quickest="torch")
def test_fit_reads_packed_data_and_the_model_stays_what_it_was(
    tiny_transformer, tmp_path, quick_compile
):
    model = tiny_transformer(
        vocabulary_size=30,
        max_length=32,
        attention_dropout=0.1,
        num_encoder_layers=1,
        num_decoder_layers=1,
    )
    config = model.get_config()
    letters = ["abc", "ab", "bcdea", "a", "cd", "dcbae", "edc", "bb"] * 4
    data = kformer.data.ParallelDataset(letters, letters, _Letters(), packed=True, batch_tokens=32)
    assert len(data) > 3
    read = []
    data.batch_at, batch_at = lambda step: read.append(step) or batch_at(step), data.batch_at
    model.compile(
        keras.optimizers.Adam(0.02),
        MaskedCrossentropy(),
        metrics=[NegativeLogLikelihood(), MaskedAccuracy()],
        **quick_compile,
    )
    history = model.fit(data, epochs=6, verbose=0).history
    assert np.isfinite(history["loss"]).all() and history["nll"][-1] < history["nll"][0]
    # In the data's own order. Keras reads a batch or two before, only to learn what they look like,
    # and on TensorFlow one ahead.
    epochs = read[len(read) - 1 - read[::-1].index(0) :]
    assert len(epochs) - 6 * len(data) in (0, 1) and epochs == list(range(len(epochs)))
    together = model.evaluate(data, verbose=0, return_dict=True)
    alone = kformer.data.ParallelDataset.from_prepared(data.corpus, shuffle=False)
    expected = model.evaluate(alone, verbose=0, return_dict=True)
    assert together["nll"] == pytest.approx(expected["nll"], rel=1e-5)
    assert model.get_config() == config
    model.save(tmp_path / "model.keras")
    inputs = plain(alone[0][0])
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(logits_of(loaded, inputs), logits_of(model, inputs))


def test_pairs_longer_than_the_learned_positions_are_refused(tiny_transformer, quick_compile):
    model = tiny_transformer(vocabulary_size=30, position_encoding="learned", max_length=5)
    model.compile("adam", MaskedCrossentropy(), **quick_compile)
    data = kformer.data.ParallelDataset(["ab", "abcde"], ["ab", "a"], _Letters(), packed=True)
    for view in (data, data.from_step(3)):
        with pytest.raises(
            ValueError, match="a sequence of 6 tokens, longer than the model's 5 learned positions"
        ):
            model.fit(view, steps_per_epoch=1, verbose=0)


class _Letters:
    """A tokenizer of single letters, as far as the data needs one."""

    pad_id, unknown_id, start_id, end_id = 0, 1, START, END
    vocabulary_size = target_vocabulary_size = 30

    def tokenize(self, texts, side="source", special_tokens=False, **options):
        return [[4 + ord(letter) - ord("a") for letter in text] + [self.end_id] for text in texts]
