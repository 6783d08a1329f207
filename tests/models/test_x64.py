"""JAX with 64-bit numbers, which a user's other code may need."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from keras import ops

import kformer
from kformer.decoding import Searcher, SearchOptions
from kformer.training.projected_loss import projected_crossentropy
from tests.peers import to_numpy

SIZES = {"hidden_dim": 8, "intermediate_dim": 16, "num_heads": 2, "seed": 3}
LAYERS = {"num_encoder_layers": 1, "num_decoder_layers": 1, **SIZES}
IDS = [[4, 5, 6], [5, 6, 7]]
_WITH_JAX = """
import sys
import keras, numpy as np
from tests.models.test_x64 import results

models = [keras.saving.load_model(f"{sys.argv[1]}/{index}.keras") for index in range(3)]
np.savez(f"{sys.argv[1]}/results.npz", *results(*models))
"""


def results(translator, language_model, forecaster):
    """Two translations by beam and by greedy search, continuations, a forecast, a sum of losses."""
    ids = np.array(IDS, "int32")
    for beam_size in (3, 1):
        options = SearchOptions(beam_size=beam_size, min_length=4, max_length=5)
        yield Searcher(translator, options)(ids).ids[:, :, :6]  # JAX pads more.
    yield np.array(language_model.generate(IDS, max_new_tokens=4))
    yield forecaster.forecast(np.ones((2, 5, 3)), 3)
    hidden, table = np.arange(80).reshape(5, 2, 8) / 80, np.arange(72).reshape(9, 8) / 9
    values = [ops.convert_to_tensor(value.astype("float32")) for value in (hidden, table)]
    labels = ops.convert_to_tensor(np.arange(10).reshape(5, 2).astype("int32") % 9)
    weights = ops.ones((5, 2), "float32")
    yield to_numpy(projected_crossentropy(*values, labels, weights, 0.1, chunk_rows=4))


@pytest.mark.slow
@pytest.mark.any_backend(quickest="torch")
def test_results_are_those_of_32_bits(tmp_path):
    models = (
        kformer.Transformer(11, max_length=16, **LAYERS),
        kformer.TransformerDecoder(11, num_layers=1, max_length=16, **SIZES),
        kformer.Forecaster(3, max_length=16, **LAYERS),
    )
    for index, model in enumerate(models):
        model.save(tmp_path / f"{index}.keras")
    run = subprocess.run(
        [sys.executable, "-c", _WITH_JAX, str(tmp_path)],
        cwd=pathlib.Path(__file__).parents[2],
        env={**os.environ, "KERAS_BACKEND": "jax", "JAX_ENABLE_X64": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    with np.load(tmp_path / "results.npz") as file:
        for found, expected in zip(file.values(), results(*models), strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-4)
