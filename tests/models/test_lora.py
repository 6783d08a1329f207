"""Adapters: what they compute, what trains, and the model without them."""

import keras
import numpy as np
import pytest
from keras import ops

import kformer
from kformer.data import TokenLists
from kformer.decoding import decoder_for
from kformer.export.onnx import export_onnx
from kformer.layers import FeedForward, MultiHeadAttention
from kformer.layers.low_rank import add_adapter
from kformer.models.lora import describe_lora
from kformer.saving import load_checkpoint, load_run, save_checkpoint
from kformer.saving.checkpoints import TrainingState
from kformer.training import average_checkpoints, enable_lora, merge_lora, paper_recipe
from tests.peers import to_numpy

SIZES = {
    "num_encoder_layers": 1,
    "num_decoder_layers": 2,
    "hidden_dim": 16,
    "intermediate_dim": 24,
    "num_heads": 4,
    "max_length": 20,
}
KINDS = {
    "plain": {},
    "gated, shared keys": {"gated": True, "num_key_value_heads": 2, "normalize_first": True},
    "without biases": {"use_bias": False, "share_embeddings": False},
    "recurrent": {"decoder_autoregression": "ssru"},
}


def transformer(**options):
    return kformer.Transformer(31, **{**SIZES, "seed": 3, **options})


def batch(rows=3, seed=0):
    random = np.random.default_rng(seed)
    return {
        "source_ids": random.integers(4, 31, (rows, 7)).astype("int32"),
        "target_ids": random.integers(4, 31, (rows, 5)).astype("int32"),
    }


def set_adapters(model, seed=1):
    """Random numbers in place of the zeros of B."""
    random = np.random.default_rng(seed)
    for weight in model.trainable_variables:
        if weight.path.endswith("_lora_b"):
            weight.assign(random.normal(0, 0.1, weight.shape))


def trained(model, steps=2, **recipe):
    inputs = batch(8)
    model.compile(**paper_recipe(model, **{"learning_rate": 0.01, **recipe}))
    model.fit(inputs, inputs["target_ids"], epochs=steps, batch_size=8, verbose=0, shuffle=False)
    return model


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_a_merged_model_computes_what_the_adapters_compute(options):
    model, inputs = transformer(**options), batch()
    before = to_numpy(model(inputs))
    enable_lora(model, 3, alpha=6.0)
    np.testing.assert_array_equal(to_numpy(model(inputs)), before)
    set_adapters(model)
    adapted = to_numpy(model(inputs))
    assert np.abs(adapted - before).max() > 0.05
    merged = merge_lora(model)
    np.testing.assert_allclose(to_numpy(merged(inputs)), adapted, atol=1e-5)
    assert merged.lora is None and merge_lora(merged) is merged
    assert [weight.path for weight in merged.trainable_variables] == [
        weight.path for weight in transformer(**options).trainable_variables
    ]


def test_every_kernel_has_an_adapter_and_nothing_else_trains():
    model = transformer(gated=True)
    total = model.count_params()
    enable_lora(model, 4)
    names = {weight.path.rpartition("/")[2] for weight in model.trainable_variables}
    kernels = ("query_key_value", "query", "key_value", "output")
    kernels += ("gate", "intermediate", "output_projection")
    assert names == {f"{name}_lora_{part}" for name in kernels for part in "ab"}
    # An encoder layer has one attention, each of two decoder layers two of them; D is 16, F 24.
    own, cross = 4 * (16 + 48) + 4 * (16 + 16), 4 * (16 + 16) + 4 * (16 + 32) + 4 * (16 + 16)
    count = 3 * (own + 3 * 4 * (16 + 24)) + 2 * cross
    assert describe_lora(model).startswith(
        f"lora: {count:,} of {total + count:,} parameters train ("
    )
    assert {weight.dtype for weight in model.trainable_variables} == {"float32"}


@pytest.mark.any_backend
def test_a_model_of_the_user_may_have_an_attribute_of_that_name():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    model.lora = 4
    assert merge_lora(model) is model
    with pytest.raises(ValueError, match="A Sequential takes no adapters"):
        enable_lora(model, 2)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.any_backend(quickest="torch")
def test_frozen_weights_stay_bit_for_bit(policy):
    model = transformer(dtype=policy)
    enable_lora(model, 2)
    before = {weight.path: to_numpy(weight) for weight in model.weights}
    trained(model, clip_norm=1.0)
    trains = {weight.path for weight in model.trainable_variables}
    for weight in model.weights:
        if not weight.path.endswith("/step"):  # Of dropout.
            is_equal = (to_numpy(weight) == before[weight.path]).all()
            assert is_equal == (weight.path not in trains), weight.path


def one_step(layer, x, target):
    """The negative gradients of the adapters of a layer: what a step of gradient descent adds."""
    inputs = keras.Input(x.shape[1:])
    model = keras.Model(inputs, layer(inputs))
    for weight in model.trainable_variables:
        weight.trainable = False
    if isinstance(layer, FeedForward):
        kernels = {name: dense.kernel for name, dense in layer.maps().items()}
    else:
        kernels = layer.kernels()
    random = np.random.default_rng(7)
    for name, kernel in kernels.items():
        add_adapter(layer, name, kernel, 2, 3.0)
        _, b = layer.adapters[name]
        b.assign(random.normal(0, 0.5, b.shape))
    before = {weight.path.rpartition("/")[2]: to_numpy(weight) for weight in layer.weights}
    before |= {f"{name}_kernel": to_numpy(kernel) for name, kernel in kernels.items()}
    model.compile(keras.optimizers.SGD(1.0), "mse", jit_compile=False)
    model.fit(x, target, batch_size=len(x), verbose=0)
    weights = {weight.path.rpartition("/")[2]: weight for weight in layer.trainable_variables}
    return before, {name: to_numpy(weight) - before[name] for name, weight in weights.items()}


@pytest.mark.parametrize("kind", ["feed-forward", "attention"])
def test_gradients_are_those_of_an_explicit_product(kind):
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(5)
    x, target = (random.normal(size=(2, 5, 8)).astype("float32") for _ in range(2))
    is_attention = kind == "attention"
    layer = MultiHeadAttention(2, seed=1) if is_attention else FeedForward(12, seed=1)
    before, steps = one_step(layer, x, target)
    parts = {
        name: torch.tensor(value, requires_grad="_lora_" in name) for name, value in before.items()
    }

    def linear(inputs, name):
        a, b = (parts[f"{name}_lora_{part}"] for part in "ab")
        return inputs @ parts[f"{name}_kernel"] + 3.0 / 2 * (inputs @ a @ b)

    inputs = torch.tensor(x)
    if is_attention:
        q, k, v = (
            part.reshape(2, 5, 2, 4).transpose(1, 2)
            for part in linear(inputs, "query_key_value").split(8, dim=-1)
        )
        context = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        output = linear(context.transpose(1, 2).reshape(2, 5, 8), "output")
    else:
        output = linear(torch.relu(linear(inputs, "intermediate")), "output_projection")
    ((output - torch.tensor(target)) ** 2).mean().backward()
    assert len(steps) == 4
    for name, step in steps.items():
        expected = -parts[name].grad.numpy()
        np.testing.assert_allclose(step, expected, rtol=1e-4, atol=1e-5, err_msg=name)
        assert np.abs(step).max() > 1e-4


@pytest.mark.any_backend(quickest="torch")
def test_a_checkpoint_has_the_adapters_and_a_run_has_them_merged(tmp_path):
    model = transformer(dropout=0.1)
    enable_lora(model, 2, alpha=4)
    trained(model, ema_momentum=0.5)
    save_checkpoint(tmp_path, model, TrainingState(2))
    again, _ = load_checkpoint(tmp_path)  # It compares every weight.
    assert again.lora == model.lora == (2, 4.0)
    assert len(again.trainable_variables) == len(model.trainable_variables)
    inputs = batch()
    adapted = to_numpy(model(inputs))
    np.testing.assert_array_equal(to_numpy(again(inputs)), adapted)
    averaged, _ = average_checkpoints(tmp_path, last=1)
    assert averaged.lora is None
    np.testing.assert_allclose(to_numpy(averaged(inputs)), adapted, atol=1e-5)
    # So do copies with other dropout.
    copy = model.with_dropout(dropout=0.3)
    np.testing.assert_array_equal(to_numpy(copy(inputs)), adapted)


@pytest.mark.any_backend(quickest="torch")
def test_runs_and_exports_have_no_adapters(tmp_path):
    model, tokenizer, _ = load_run("tests/frozen_run")
    enable_lora(model, 2)
    set_adapters(model)
    decoder = decoder_for(model)  # JAX has no fast one.
    assert decoder.name == "layers"
    assert keras.backend.backend() == "jax" or decoder.reason == "the model has LoRA adapters"
    translator = kformer.Translator(model, tokenizer)
    saved = kformer.Translator.load(translator.save(tmp_path / "run"))
    texts = ["half past four", "ten to six"]
    assert saved.model.lora is None and saved(texts) == translator(texts)
    translator.token_lists = TokenLists([tokenizer.end_id], [[]] * tokenizer.vocabulary_size)
    kformer.export.export(translator, tmp_path / "onnx", format="onnx")
    kformer.export.export(translator, tmp_path / "ctranslate2", format="ctranslate2")
    assert (tmp_path / "ctranslate2" / "vmap.txt").is_file()
    with pytest.raises(ValueError, match="has LoRA adapters, which ONNX does not know here"):
        export_onnx(translator, tmp_path / "direct")


@pytest.mark.any_backend(quickest="torch")
def test_what_cannot_be():
    model = transformer()
    for rank, alpha, message in (
        (0, 16, "rank must be a whole number of at least 1, but 0"),
        (2, 0, "alpha must be a finite number above 0, but 0"),
    ):
        with pytest.raises(ValueError, match=message):
            enable_lora(model, rank, alpha)
    assert model.lora is None and len(model.trainable_variables) > 10
    enable_lora(model, 2)
    with pytest.raises(ValueError, match="has adapters of rank 2 already: merge them first"):
        enable_lora(model, 2)
    with pytest.raises(ValueError, match="compiled, for training all of its weights"):
        enable_lora(trained(transformer(), steps=1), 2)
    with pytest.raises(ValueError, match="A Sequential takes no adapters"):
        enable_lora(keras.Sequential(), 2)
    language_model = kformer.TransformerDecoder(
        11, num_layers=1, hidden_dim=8, intermediate_dim=8, num_heads=2, max_length=9
    )
    ids = {"token_ids": np.array([[4, 5, 6]], "int32")}
    before = to_numpy(language_model(ids))
    enable_lora(language_model, 2)
    set_adapters(language_model)
    adapted = to_numpy(language_model(ids))
    assert np.abs(adapted - before).max() > 1e-3
    np.testing.assert_allclose(to_numpy(merge_lora(language_model)(ids)), adapted, atol=1e-5)
    assert ops.shape(adapted) == (1, 3, 11)
