"""Factors that even out the channels between a norm and the matrices behind it."""

import numpy as np
import pytest

from kformer.decoding.fast.smoothing import smoothing_factors

pytestmark = pytest.mark.any_backend


def test_the_sizes_of_channels_and_rows_become_alike(rng):
    gamma, beta = rng.normal(size=8) * np.logspace(-2, 2, 8), np.zeros(8)
    matrices = [rng.normal(size=(8, 5)), rng.normal(size=(8, 3))]
    factors = smoothing_factors(gamma, beta, matrices)
    rows = np.max([np.abs(matrix).max(axis=1) for matrix in matrices], axis=0)
    ratios = np.abs(gamma) / factors / (rows * factors)
    np.testing.assert_allclose(ratios / ratios[0], 1, rtol=1e-4)


@pytest.mark.filterwarnings("error")
def test_numbers_that_are_zero_or_hardly_more():
    matrix = np.ones((5, 3), "float32")
    matrix[0], matrix[1] = 1e-42, 0.0
    gamma = np.array([1, 1, 0, 1e-42, 1], "float32")
    factors = smoothing_factors(gamma, np.zeros(5, "float32"), [matrix])
    assert np.isfinite(factors).all() and (factors > 0).all()
    assert factors[1] == factors[2] == 1
