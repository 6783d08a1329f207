"""Products, reshapes and layer norms in few operations equal the ordinary ones, values and
gradients.
"""

import keras
import numpy as np
import pytest
from keras import ops

from kformer.layers.normalization import normalize
from kformer.layers.shapes import align_right, flat, linear, reshape, unflat
from tests.gradients import gradients


@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 8), (2, 1, 3, 8)], ids=str)
@pytest.mark.parametrize("biased", [True, False])
def test_linear(rng, shape, biased):
    x, kernel, bias = (rng.normal(size=size).astype("float32") for size in (shape, (8, 5), (5,)))
    expected = x @ kernel + (bias if biased else 0)
    found = linear(
        ops.convert_to_tensor(x),
        ops.convert_to_tensor(kernel),
        ops.convert_to_tensor(bias) if biased else None,
    )
    np.testing.assert_allclose(ops.convert_to_numpy(found), expected, atol=1e-5)
    there_and_back = unflat(flat(ops.convert_to_tensor(x)), ops.convert_to_tensor(x))
    np.testing.assert_array_equal(ops.convert_to_numpy(there_and_back), x)
    np.testing.assert_array_equal(
        ops.convert_to_numpy(reshape(ops.convert_to_tensor(x), (-1, 4))), x.reshape(-1, 4)
    )


def test_norm(rng):
    x = rng.normal(2.0, 3.0, (2, 3, 8)).astype("float32")
    norm = keras.layers.LayerNormalization(epsilon=1e-5)
    norm.build(x.shape)
    norm.gamma.assign(rng.normal(size=8))
    norm.beta.assign(rng.normal(size=8))
    variable = keras.Variable(x)
    weights = ops.convert_to_tensor(rng.normal(size=x.shape).astype("float32"))
    np.testing.assert_allclose(
        ops.convert_to_numpy(normalize(norm, variable.value)),
        ops.convert_to_numpy(norm(x)),
        atol=1e-5,
    )
    slopes = [
        gradients(
            lambda f=f: ops.sum(f(ops.convert_to_tensor(variable)) * weights),
            [variable, norm.gamma, norm.beta],
        )
        for f in (lambda x: normalize(norm, x), norm)
    ]
    for mine, theirs in zip(*slopes, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_norm_of_half_precision_computes_in_float32(rng, dtype):
    x = ops.convert_to_tensor((300 + rng.normal(size=(2, 64))).astype("float32"))
    norm = keras.layers.LayerNormalization(dtype=dtype)
    norm.build((2, 64))
    half = ops.cast(x, norm.compute_dtype)
    exact = ops.convert_to_numpy(ops.cast(half, "float32"))
    expected = (exact - exact.mean(-1, keepdims=True)) / np.sqrt(
        exact.var(-1, keepdims=True) + norm.epsilon
    )
    found = normalize(norm, half)
    assert keras.backend.standardize_dtype(found.dtype) == norm.compute_dtype
    np.testing.assert_allclose(
        ops.convert_to_numpy(ops.cast(found, "float32")), expected, atol=0.05
    )


def test_rows_aligned_to_the_right():
    ids = ops.convert_to_tensor(np.array([[1, 5, 6], [1, 0, 0], [1, 7, 0]], "int32"))
    lengths = ops.convert_to_tensor(np.array([3, 1, 2], "int32"))
    aligned, positions = map(ops.convert_to_numpy, align_right(ids, lengths, -1))
    assert aligned.tolist() == [[1, 5, 6], [-1, -1, 1], [-1, 1, 7]]
    assert positions.tolist() == [[0, 1, 2], [-2, -1, 0], [-1, 0, 1]]
