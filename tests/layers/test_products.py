"""Products of a training step in bfloat16: what is rounded, and what is not."""

import numpy as np
import pytest
from keras import ops

import kformer
from kformer.layers import products
from kformer.layers.shapes import linear
from kformer.training import paper_recipe


@pytest.fixture
def bfloat16_products():
    products.set_training_products("bfloat16")
    yield
    products.set_training_products(None)


def rounded(x):
    """The nearest numbers with 8 significant bits."""
    bits = np.asarray(x, "float32").view("uint32")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view("float32")


def cut(x):
    """The numbers without what follows the 8th significant bit."""
    return (np.asarray(x, "float32").view("uint32") & 0xFFFF0000).view("float32")


def test_a_product_is_that_of_rounded_matrices(bfloat16_products):
    random = np.random.default_rng(1)
    x, kernel = (
        random.normal(size=(2, 5, 64)).astype("float32"),
        random.normal(size=(64, 32)).astype("float32"),
    )
    exact, product = x @ kernel, rounded(x) @ rounded(kernel)
    with products.training_products():
        found = ops.convert_to_numpy(
            linear(ops.convert_to_tensor(x), ops.convert_to_tensor(kernel))
        )
    assert found.dtype == np.float32
    # The result is float32's, or bfloat16's: the nearest one, or cut off where a processor has no
    # products of bfloat16.
    expected = min(
        (product, rounded(product), cut(product)), key=lambda kind: np.abs(found - kind).mean()
    )
    np.testing.assert_allclose(found, expected, rtol=2**-8, atol=1e-5)
    assert np.abs(found - expected).mean() < 0.5 * np.abs(found - exact).mean()
    outside = ops.convert_to_numpy(linear(ops.convert_to_tensor(x), ops.convert_to_tensor(kernel)))
    np.testing.assert_allclose(outside, exact, rtol=1e-5, atol=1e-5)

    # What is lost before the product: 1 + 2^-9 is 1 in bfloat16, so its difference from 1 is
    # nothing.
    row, ones = ops.convert_to_tensor(np.array([[[1 + 2**-9, -1.0]]], "float32")), ops.ones((2, 1))
    with products.training_products():
        assert ops.convert_to_numpy(linear(row, ones)).item() == 0.0
    assert ops.convert_to_numpy(linear(row, ones)).item() == 2**-9


def test_other_dtypes_stay_as_they_are(bfloat16_products):
    with products.training_products():
        assert (
            products.product_dtype("float16") == "float16"
            and products.product_dtype("float32") == "bfloat16"
        )
    assert products.product_dtype("float32") == "float32"


@pytest.mark.any_backend
def test_an_unknown_dtype():
    with pytest.raises(
        ValueError, match="of bfloat16 or, with None, of float32, but 'int8' was given"
    ):
        products.set_training_products("int8")


@pytest.mark.heavy
@pytest.mark.parametrize(
    "consistency", [0.0, pytest.param(3.0, marks=pytest.mark.any_backend(quickest="torch"))]
)
def test_a_training_in_bfloat16_products_is_near_that_in_float32(consistency, quick_compile):
    random = np.random.default_rng(2)
    source, target = random.integers(4, 50, (8, 9)), random.integers(4, 50, (8, 11))
    data = {"source_ids": source, "target_ids": target[:, :-1]}, target[:, 1:]
    sizes = {
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "hidden_dim": 32,
        "intermediate_dim": 64,
        "num_heads": 2,
    }

    def course(dtype):
        products.set_training_products(dtype)
        try:
            model = kformer.Transformer(50, **sizes, dropout=0.1, normalize_first=True, seed=3)
            recipe = paper_recipe(model, learning_rate=0.01, consistency=consistency)
            # A graph is traced in one case.
            model.compile(**recipe, **(quick_compile if consistency else {}))
            before = model.evaluate(*data, verbose=0, return_dict=True)["nll"]
            losses = [
                model.fit(*data, verbose=0, shuffle=False, batch_size=8).history["loss"][0]
                for _ in range(12)
            ]
            assert {weight.dtype for weight in model.trainable_weights} == {"float32"}
            return (
                before,
                np.array(losses),
                model.evaluate(*data, verbose=0, return_dict=True)["nll"],
            )
        finally:
            products.set_training_products(None)

    exact, near = course(None), course("bfloat16")
    # Nothing is rounded in an evaluation; in training every loss is a little different, and learns
    # as well.
    assert near[0] == exact[0]
    differences = np.abs(near[1] - exact[1])
    assert differences[0] > 0 and differences.max() < 0.02 * exact[1].min()
    assert near[2] == pytest.approx(exact[2], rel=0.05) and near[2] < 0.6 * near[0]
