"""What each backend must do in the short form of the tests: three architectures with the numbers
that the others have, three steps, a beam, saving and loading.

The numbers were computed on the three backends, which agree within 2e-5. That they are right is
what the other tests show, by comparison with other libraries.
"""

import json
import pathlib

import keras
import numpy as np
import pytest
from keras import ops

import kformer

pytestmark = pytest.mark.smoke

SIZES = {
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "hidden_dim": 8,
    "intermediate_dim": 16,
    "num_heads": 2,
    "max_length": 16,
}
ARCHITECTURES = {
    "paper": {},
    "today": {
        "normalize_first": True,
        "position_encoding": "rope",
        "normalization": "rms_norm",
        "gated": True,
        "num_key_value_heads": 1,
    },
    "recurrent": {"decoder_autoregression": "ssru", "activation": "gelu_sigmoid"},
}
SOURCE = np.array([[5, 6, 7, 8, 9], [10, 4, 6, 0, 0]], "int32")
TARGET = np.array([[2, 7, 5, 9], [2, 8, 0, 0]], "int32")
LABELS = np.array([[7, 5, 9, 3], [8, 3, 0, 0]], "int32")
EXPECTED = {
    "paper": {
        "logits": [[2.2815, -0.4434, -1.7009, 1.7167], [2.3059, -0.4723, -1.7256, 1.7038]],
        "ids": [[[7, 7, 7, 3, 0], [7, 7, 7, 7, 3]], [[7, 7, 7, 3, 0], [7, 7, 7, 7, 3]]],
        "scores": [[-4.4418, -5.1877], [-4.9274, -5.9732]],
        "losses": [4.2024, 2.3899, 2.3648],
    },
    "today": {
        "logits": [[1.3472, -2.4316, -1.2991, -0.1303], [1.1689, -2.8661, -1.21, 0.0288]],
        "ids": [[[7, 10, 10, 3, 0], [10, 10, 10, 3, 0]], [[7, 10, 10, 3, 0], [7, 10, 10, 10, 3]]],
        "scores": [[-6.7527, -7.0445], [-6.7283, -7.3352]],
        "losses": [2.9648, 2.4352, 2.0512],
    },
    "recurrent": {
        "logits": [[-1.1598, 2.4987, 0.0645, 1.0533], [-1.1555, 2.4927, 0.0635, 1.0512]],
        "ids": [[[1, 1, 1, 3, 0], [1, 1, 1, 1, 3]], [[1, 1, 1, 3, 0], [1, 1, 1, 1, 3]]],
        "scores": [[-3.7864, -4.3732], [-3.8506, -4.4635]],
        "losses": [2.9544, 2.3164, 2.1327],
    },
}


def model_of(architecture, **options):
    """Returns a model whose weights are a function of their order alone, the same everywhere."""
    model = kformer.Transformer(11, **SIZES, **ARCHITECTURES[architecture], **options)
    model({"source_ids": SOURCE, "target_ids": TARGET})
    for number, weight in enumerate(model.trainable_weights):
        values = np.sin(0.37 * np.arange(np.prod(weight.shape)) ** 2 + number)
        weight.assign(values.reshape(weight.shape).astype("float32"))
    return model


def logits_of(model):
    return ops.convert_to_numpy(model({"source_ids": SOURCE, "target_ids": TARGET}))


@pytest.fixture(params=ARCHITECTURES)
def architecture(request):
    return request.param


def test_logits(architecture):
    logits = logits_of(model_of(architecture))[0, ::3, :4]
    np.testing.assert_allclose(logits, EXPECTED[architecture]["logits"], atol=1e-4)


def test_three_steps(architecture):
    model = model_of(architecture, dropout=0.1, seed=3)
    model.compile(keras.optimizers.SGD(0.1), kformer.MaskedCrossentropy(label_smoothing=0.1))
    batch = {"source_ids": SOURCE, "target_ids": TARGET}
    history = model.fit(batch, LABELS, epochs=3, shuffle=False, verbose=0).history
    np.testing.assert_allclose(history["loss"], EXPECTED[architecture]["losses"], atol=1e-4)


def test_a_beam(architecture):
    options = kformer.decoding.SearchOptions(beam_size=3, n_best=2, min_length=3, max_length=6)
    result = kformer.decoding.Searcher(model_of(architecture), options)(SOURCE)
    assert ops.convert_to_numpy(result.ids)[:, :, :5].tolist() == EXPECTED[architecture]["ids"]
    np.testing.assert_allclose(result.scores, EXPECTED[architecture]["scores"], atol=1e-4)


def test_saved_and_loaded(architecture, tmp_path):
    model = model_of(architecture)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(logits_of(loaded), logits_of(model))


def test_the_frozen_run():
    folder = pathlib.Path(__file__).parent / "frozen_run"
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    translator = kformer.Translator.load(folder)
    assert translator(expected["texts"][:8]) == expected["beam_4"][:8]
