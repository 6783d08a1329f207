"""int8 products are exact integer products on every instruction set, and rows stay apart."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import ops

import kformer
from kformer.decoding.fast.decoder import FastNetwork, backend_ops, ops_in
from kformer.decoding.fast.ops_stored import stored_ops
from kformer.decoding.fast.ops_torch_stored import Int8TorchOps
from kformer.utils.rows import pad_rows
from tests.export.saved_model.test_export import FROZEN_RUN

pytestmark = pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX has no fast decoder")

INSTRUCTIONS = ("default", "AVX512_CORE", "AVX2", "AVX2_VNNI")
# Writes the products of a file's matrices, with biases, on each instruction set. oneDNN reads the
# variable at its first product, so that what is imported can serve several processes.
PROGRAM = """
import json, os, sys
import keras, numpy as np
from keras import ops
import kformer
from kformer.decoding.fast.decoder import FastNetwork, backend_ops

def write_products(path):
    inputs, fast = np.load(sys.argv[1]), backend_ops("int8")
    x, bias = (ops.convert_to_tensor(inputs[name]) for name in ("x", "bias"))
    kernel, table = (keras.Variable(inputs[name]) for name in ("kernel", "table"))

    def products(x):
        projection = fast.bind_projection(table, True)
        bound = fast.bind_kernel(kernel)
        return (
            fast.product(x, bound, bias),
            fast.project(x, projection, (), bias),
            fast.product(ops.relu(x), bound, bias, is_positive=True),
        )

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf
        products = tf.function(products)
    with open(path, "w") as file:
        json.dump([ops.convert_to_numpy(y).tolist() for y in products(x)], file)

for instructions in sys.argv[2:]:
    if os.fork() == 0:
        if instructions != "default":
            os.environ["ONEDNN_MAX_CPU_ISA"] = instructions
        write_products(f"{sys.argv[1]}.{instructions}")
        os._exit(0)
    assert os.wait()[1] == 0
"""


torch_alone = pytest.mark.skipif(keras.backend.backend() != "torch", reason="PyTorch alone")


@torch_alone
def test_where_pytorch_has_no_int8_products(monkeypatch):
    sizes = {"hidden_dim": 8, "intermediate_dim": 8, "num_heads": 2}
    model = kformer.Transformer(11, num_encoder_layers=1, num_decoder_layers=1, **sizes)
    assert ops_in(model, "int8") is not None
    with keras.device("meta"):
        elsewhere = kformer.Transformer.from_config(model.get_config())
    with pytest.raises(RuntimeError, match="weights are on meta: translate with the dtype float32"):
        ops_in(elsewhere, "int8")

    def missing(self, matrix):
        raise AttributeError("'_OpNamespace' 'onednn' object has no attribute 'qlinear_prepack'")

    monkeypatch.setattr(Int8TorchOps, "convert", missing)
    with pytest.raises(RuntimeError, match="build of PyTorch has no int8 products.* float32"):
        ops_in(model, "int8")


@torch_alone
def test_only_the_last_shortlists_are_kept(inputs):
    fast, table = backend_ops("bfloat16"), keras.Variable(inputs[1]["table"])
    for first in range(30):
        fast.bind_projection(table, True, np.arange(first, 35, dtype="int32"))
    assert len(fast._shortlists) == fast._shortlists.most < 30


def quantize(x, highest):
    """NumPy's own: integers of each row, and what one of them is worth."""
    units = np.abs(x).max(axis=1, keepdims=True) / highest
    return np.round(x / np.where(units > 0, units, 1)), units


def exact_product(x, matrix, bias, highest):
    rows, units = quantize(x, highest)
    columns, scales = quantize(matrix.T, 127)
    return (rows @ columns.T) * units * scales.T + bias


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Random matrices, and the largest products there can be in the first rows and columns."""
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=(9, 96)), rng.normal(size=(96, 40))
    x[0], x[1], kernel[:, 0], kernel[:, 1] = 3.0, -3.0, 2.0, -2.0
    x[2] = 0.0
    values = {"x": x, "kernel": kernel, "table": kernel.T, "bias": rng.normal(size=40)}
    values = {name: value.astype("float32") for name, value in values.items()}
    file = tmp_path_factory.mktemp("int8") / "inputs.npz"
    np.savez(file, **values)
    return file, values


@pytest.fixture(scope="module")
def written_products(inputs):
    """The folder with each instruction set's products, written by one program for all."""
    environment = {name: os.environ[name] for name in os.environ if name != "ONEDNN_MAX_CPU_ISA"}
    program = [sys.executable, "-c", PROGRAM, str(inputs[0]), *INSTRUCTIONS]
    subprocess.run(program, env=environment, check=True)
    return inputs[0].parent


@pytest.mark.heavy
@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_products_are_exact_on_every_instruction_set(inputs, written_products, instructions):
    file, values = inputs
    text = (written_products / f"{file.name}.{instructions}").read_text()
    # Without VNNI activations have 7 bits.
    bits = (7,) if instructions in ("AVX2", "AVX512_CORE") else (8, 7)
    positive = np.maximum(values["x"], 0)
    *products, positive_product = json.loads(text)

    def is_product(y, x, highest):
        # One integer more or less would make a difference of 3e-4.
        expected = exact_product(x, values["kernel"], values["bias"], highest)
        return np.allclose(y, expected, rtol=0, atol=1.5e-4)

    assert all(any(is_product(y, values["x"], 2**n // 2 - 1) for n in bits) for y in products)
    # Without negative numbers there are twice as many levels.
    assert any(is_product(positive_product, positive, 2**n - 1) for n in bits)


@pytest.fixture
def product(inputs, backend):
    """The product with the random kernel, as a function of its rows, and the operations."""
    fast, variable = backend_ops("int8"), keras.Variable(inputs[1]["kernel"])

    def function(x):
        return fast.product(x, fast.bind_kernel(variable))

    if backend == "tensorflow":
        import tensorflow as tf

        spec = tf.TensorSpec([None, 96], "float32")
        function = tf.function(function, input_signature=[spec])
    return lambda x: ops.convert_to_numpy(function(ops.convert_to_tensor(x))), fast


def test_a_row_does_not_depend_on_the_others(inputs, product, rng):
    multiply, x = product[0], inputs[1]["x"]
    together = multiply(x)
    for index in range(len(x)):
        assert np.array_equal(multiply(x[index : index + 1])[0], together[index])
    large = np.concatenate([x, 1e6 * rng.normal(size=(5, 96)).astype("float32")])
    assert np.array_equal(multiply(large)[: len(x)], together)


def test_rows_of_zeros_no_rows_and_numbers_that_are_none(inputs, product):
    multiply, x = product[0], inputs[1]["x"].copy()
    assert multiply(x[:0]).shape == (0, 40)
    assert np.array_equal(multiply(x)[2], np.zeros(40))
    expected = multiply(x)
    x[4, 7], x[5, 3] = np.nan, np.inf
    found = multiply(x)
    assert np.isnan(found[4]).all()
    assert not np.isfinite(found[5]).any()
    rest = [0, 1, 2, 3, 6, 7, 8]
    assert np.array_equal(found[rest], expected[rest])


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="of TensorFlow's operation")
def test_an_assignment_after_the_first_product_has_all_or_no_effect(inputs):
    """With VNNI the operation keeps the matrix of its first product; without, it may read anew."""
    import tensorflow as tf

    fast, variable = backend_ops("int8"), keras.Variable(inputs[1]["kernel"])
    x = tf.constant(inputs[1]["x"])

    def new_function():
        return tf.function(lambda x: fast.product(x, fast.bind_kernel(variable)), autograph=False)

    multiply = new_function()
    before = multiply(x).numpy()
    values = fast.variables[0]
    values.assign(values[::-1])
    anew = new_function()(x).numpy()
    assert not np.array_equal(anew, before)
    assert any(np.array_equal(multiply(x), product) for product in (before, anew))


def logits(model, dtype, source_ids, ids):
    """Logits `[T, B, V]` of the fast decoder, token by token."""

    fast = backend_ops(dtype)

    def run():
        network = FastNetwork(model, 1, fast)
        cache, found = network.init_cache(network.encode(source_ids), ids.shape[1]), []
        for index in range(ids.shape[1]):
            step, cache = network.step(ids[:, index], cache, index)
            found.append(step)
        return ops.stack(found)

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        run = tf.function(run, autograph=False)
    return ops.convert_to_numpy(run())


def enlarge_channels(model, factor):
    """Enlarges a channel of each norm, and makes up for it in the matrices behind: the model's
    outputs stay what they were.
    """
    network, channel = model.network, 3
    behind = [(network.decoder.norm, [network.output_projection.kernel])]
    cross = [layer.cross_attention for layer in network.decoder_layers]
    behind += [(network.encoder.norm, [attention.key_value_kernel for attention in cross])]
    for layer in network.encoder_layers + network.decoder_layers:
        attention = layer.self_attention
        behind += [(layer.self_attention_norm, [attention.query_key_value_kernel])]
        behind += [(layer.feed_forward_norm, [layer.feed_forward.intermediate.kernel])]
    for layer in network.decoder_layers:
        behind += [(layer.cross_attention_norm, [layer.cross_attention.query_kernel])]
    for norm, kernels in behind:
        for variable in (norm.gamma, norm.beta):
            values = ops.convert_to_numpy(variable).copy()
            values[channel] *= factor
            variable.assign(values)
        for kernel in kernels:
            values = ops.convert_to_numpy(kernel).copy()
            values[channel] /= factor
            kernel.assign(values)


def test_a_channel_far_larger_than_the_others(rng):
    """It would leave few levels to the others, were it not smoothed."""
    model = kformer.Transformer(
        30,
        num_encoder_layers=2,
        num_decoder_layers=2,
        hidden_dim=64,
        intermediate_dim=128,
        num_heads=4,
        normalize_first=True,
        share_output=False,
    )
    for weight in model.weights:
        is_norm = "gamma" in weight.path
        weight.assign(is_norm + rng.normal(size=weight.shape) * (0.2 if is_norm else 0.1))
    source_ids = ops.convert_to_tensor(rng.integers(4, 30, (16, 9)), dtype="int32")
    ids = ops.convert_to_tensor(rng.integers(4, 30, (16, 8)), dtype="int32")
    expected = logits(model, None, source_ids, ids)
    error = np.abs(logits(model, "int8", source_ids, ids) - expected).mean()
    enlarge_channels(model, 50.0)
    np.testing.assert_allclose(logits(model, None, source_ids, ids), expected, atol=1e-3)
    found = np.abs(logits(model, "int8", source_ids, ids) - expected).mean()
    assert found < 1.1 * error < 0.03 * np.abs(expected).mean()


def test_a_layer_norm_is_the_same_at_every_index(rng):
    """To the last bit: a product of quantized rows can make another word of it."""
    fast = backend_ops()
    x = rng.normal(size=(64, 128)).astype("float32")
    gamma, beta = (ops.convert_to_tensor(rng.normal(size=128).astype("float32")) for _ in "ab")

    def function(x):
        return fast.layer_norm(x, gamma, beta, 1e-5)

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        function = tf.function(function, input_signature=[tf.TensorSpec([None, 128], "float32")])
    expected = ops.convert_to_numpy(function(ops.convert_to_tensor(x)))
    for rows in range(1, 20):
        found = ops.convert_to_numpy(function(ops.convert_to_tensor(x[-rows:])))
        assert np.array_equal(found, expected[-rows:]), rows


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the graph of an export")
def test_logits_do_not_depend_on_the_other_texts():
    """To the last bit: activations that differ a little may become other bytes."""
    import tensorflow as tf

    translator = kformer.Translator.load(FROZEN_RUN)
    width, times = 4, [f"{hour}:30 p.m." for hour in range(1, 9)]
    texts = [" and ".join(times[:size]) for size in (1, 3, 4, 6, 8)]
    rows = translator.tokenizer.tokenize(texts, special_tokens=True)
    network = FastNetwork(translator.model, width, stored_ops("int8"))

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def logits(source_ids):
        cache, found = network.init_cache(network.encode(source_ids), 4), []
        for index, token in enumerate((2, 7, 9)):
            ids = tf.fill([width * tf.shape(source_ids)[0]], token)
            step, cache = network.step(ids, cache, index)
            found.append(step)
        return tf.stack(found, axis=1)

    together = logits(pad_rows(rows, translator.model.pad_id)).numpy()
    for number, row in enumerate(rows):
        alone = logits(np.array([row], "int32")).numpy()
        assert np.array_equal(alone, together[width * number : width * (number + 1)])
