"""Loss and projection in one: equal to the loss of the logits, which it never makes as a whole."""

import keras
import numpy as np
import pytest
from keras import ops

import kformer
from kformer.training import paper_recipe
from kformer.training.losses import MaskedCrossentropy, token_crossentropy
from kformer.training.projected_loss import projected_crossentropy
from tests.gradients import gradients

V = 30


def numpy_sums(hidden, table, labels, weights, smoothing):
    """Loss, negative log-likelihood and hits by the definition, in float64."""
    logits = hidden.astype("float64") @ table.astype("float64").T
    log_probs = logits - logits.max(-1, keepdims=True)
    log_probs = log_probs - np.log(np.exp(log_probs).sum(-1, keepdims=True))
    target = np.full(logits.shape, smoothing / V)
    np.put_along_axis(target, labels[..., None], 1 - smoothing + smoothing / V, -1)
    nll = -np.take_along_axis(log_probs, labels[..., None], -1)[..., 0]
    loss = -(target * log_probs).sum(-1)
    return [(values * weights).sum() for values in (loss, nll, logits.argmax(-1) == labels)]


def random_batch(batch=3, length=5, size=8, scale=1.0):
    random = np.random.default_rng(4)
    hidden = (scale * random.normal(size=(batch, length, size))).astype("float32")
    table = random.normal(size=(V, size)).astype("float32")
    labels = random.integers(0, V, (batch, length)).astype("int32")
    weights = (random.random((batch, length)) * (random.random((batch, length)) > 0.3)).astype(
        "float32"
    )
    return hidden, table, labels, weights


@pytest.mark.parametrize("chunk_rows", [1, 4, 5, 100, None])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_sums_and_gradients_are_those_of_the_logits(chunk_rows, smoothing):
    hidden, table, labels, weights = random_batch()
    variables = [keras.Variable(hidden), keras.Variable(table)]
    labels_, weights_ = ops.convert_to_tensor(labels), ops.convert_to_tensor(weights)

    def projected():
        values = [ops.convert_to_tensor(variable) for variable in variables]
        return projected_crossentropy(*values, labels_, weights_, smoothing, chunk_rows=chunk_rows)

    def plain():
        logits = ops.matmul(variables[0], ops.transpose(variables[1]))
        return ops.sum(token_crossentropy(labels_, logits, smoothing) * weights_)

    found = ops.convert_to_numpy(ops.stop_gradient(projected()))
    np.testing.assert_allclose(
        found, numpy_sums(hidden, table, labels, weights, smoothing), rtol=1e-5
    )
    for mine, other in zip(
        gradients(lambda: projected()[0] * 3.0, variables),
        gradients(lambda: plain() * 3.0, variables),
        strict=True,
    ):
        np.testing.assert_allclose(mine, other, atol=1e-5)


@pytest.mark.parametrize("chunk_rows", [1, 4, None])
def test_two_passes_are_pulled_together(chunk_rows):
    """R-Drop: sums and gradients by automatic differentiation of its definition."""
    hidden, table, labels, weights = random_batch()
    random = np.random.default_rng(5)
    hidden = np.concatenate(
        [hidden, hidden + random.normal(size=hidden.shape).astype("float32") * 0.3]
    )
    labels, weights = np.concatenate([labels, labels]), np.concatenate([weights, weights])
    variables = [keras.Variable(hidden), keras.Variable(table)]
    labels_, weights_ = ops.convert_to_tensor(labels), ops.convert_to_tensor(weights)

    def projected():
        values = [ops.convert_to_tensor(variable) for variable in variables]
        return projected_crossentropy(
            *values, labels_, weights_, 0.1, chunk_rows=chunk_rows, consistency=5.0
        )

    def plain():
        logits = ops.matmul(variables[0], ops.transpose(variables[1]))
        first, second = ops.split(ops.log_softmax(logits, axis=-1), 2)
        forth, back = (
            ops.sum(ops.exp(p) * (p - q), axis=-1) for p, q in ((first, second), (second, first))
        )
        likelihoods = ops.sum(token_crossentropy(labels_, logits, 0.1) * weights_)
        return likelihoods + 5.0 / 2 * ops.sum((forth + back) * weights_[: len(forth)])

    found = ops.convert_to_numpy(ops.stop_gradient(projected()))
    assert found[0] == pytest.approx(
        float(ops.convert_to_numpy(ops.stop_gradient(plain()))), rel=1e-5
    )
    np.testing.assert_allclose(
        found[1:], numpy_sums(hidden, table, labels, weights, 0.1)[1:], rtol=1e-5
    )
    for mine, other in zip(
        gradients(lambda: projected()[0] * 3.0, variables),
        gradients(lambda: plain() * 3.0, variables),
        strict=True,
    ):
        np.testing.assert_allclose(mine, other, atol=3e-5)


def test_huge_logits_stay_finite():
    hidden, table, labels, weights = random_batch(scale=1e3)
    values = [ops.convert_to_tensor(value) for value in (hidden, table, labels, weights)]
    found = ops.convert_to_numpy(projected_crossentropy(*values, 0.1))
    np.testing.assert_allclose(found, numpy_sums(hidden, table, labels, weights, 0.1), rtol=1e-5)


def test_the_loss_of_a_projection_is_the_loss_of_its_logits():
    hidden, table, labels, _ = random_batch()
    labels[:, 3:] = 7
    loss = MaskedCrossentropy(label_smoothing=0.1, pad_id=7)
    value, sums = loss.of_projection(
        labels, ops.convert_to_tensor(hidden), ops.convert_to_tensor(table), training=False
    )
    expected = loss(labels, hidden @ table.T)
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
    assert float(sums.count) == (labels != 7).sum()
    labels[0, 0] = V  # Beyond the vocabulary: never a good batch.
    value, _ = loss.of_projection(
        labels, ops.convert_to_tensor(hidden), ops.convert_to_tensor(table), training=False
    )
    assert np.isnan(float(value))


class WithLogits(kformer.Transformer):
    """Overriding the loss takes the way over the logits, since the override may look at them."""

    logits_shape = None

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        self.logits_shape = tuple(y_pred.shape)
        return super().compute_loss(x, y, y_pred, sample_weight, training)


def train(
    model_class,
    metrics=None,
    weighted=None,
    sample_weight=None,
    consistency=0.0,
    run_eagerly=False,
    **options,
):
    """Losses and metrics of a few steps, the evaluation after them, and the weights."""
    random = np.random.default_rng(0)
    sizes = {
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "hidden_dim": 16,
        "intermediate_dim": 16,
        "num_heads": 2,
    }
    model = model_class(V, **sizes, dropout=0.1, seed=1, **options)
    # Not Adam, which makes a whole step of the noise that is a key's bias gradient (a bias that no
    # softmax can see).
    recipe = {
        **paper_recipe(model, consistency=consistency),
        "optimizer": keras.optimizers.SGD(0.3),
    }
    model.compile(
        **{**recipe, "metrics": recipe["metrics"] if metrics is None else metrics},
        weighted_metrics=weighted,
        run_eagerly=run_eagerly,
    )
    steps = []
    for _ in range(3):
        labels = random.integers(4, V, (4, 7)).astype("int32")
        labels[2:, 4:] = 0
        data = (
            {
                name: random.integers(1, V, (4, 7)).astype("int32")
                for name in ("source_ids", "target_ids")
            },
            labels,
        )
        steps.append(model.train_on_batch(*data, sample_weight=sample_weight, return_dict=True))
    steps.append(model.evaluate(*data, sample_weight=sample_weight, verbose=0, return_dict=True))
    return model, steps


@pytest.mark.parametrize(
    "options, tolerance",
    [
        ({}, 1e-4),
        ({"share_output": False}, 1e-4),
        ({"output_bias": True}, 1e-4),
        ({"consistency": 5.0}, 1e-4),
        ({"dtype": "mixed_bfloat16"}, 2e-2),
        ({"dtype": "mixed_float16"}, 1e-2),
    ],
    ids=["shared", "own_projection", "output_bias", "consistency", "bfloat16", "float16"],
)
def test_training_without_logits_is_training_with_them(options, tolerance, quick_compile):
    if options:  # A graph is traced in one case.
        options = {**options, **quick_compile}
    model, mine = train(kformer.Transformer, **options)
    other, expected = train(WithLogits, **options)
    assert other.logits_shape[-1] == V
    if "consistency" in options:  # The passes differ, and their distance counts.
        plain = train(kformer.Transformer, **quick_compile)[1]
        assert mine[0]["loss"] > plain[0]["loss"]
    for found, wanted in zip(mine, expected, strict=True):
        assert set(found) == {"loss", "nll", "perplexity", "accuracy"} == set(wanted)
        for name in ("loss", "nll"):
            assert float(found[name]) == pytest.approx(float(wanted[name]), rel=tolerance)
    if not options.get("dtype"):
        assert [step["accuracy"] for step in mine] == pytest.approx(
            [step["accuracy"] for step in expected]
        )
        for a, b in zip(model.trainable_variables, other.trainable_variables, strict=True):
            np.testing.assert_allclose(ops.convert_to_numpy(a), ops.convert_to_numpy(b), atol=1e-5)


class Doubled(MaskedCrossentropy):
    def call(self, y_true, y_pred):
        return 2.0 * super().call(y_true, y_pred)


class Sure(kformer.MaskedAccuracy):
    """The share of tokens with a probability above one half."""

    def token_values(self, labels, logits):
        return ops.max(ops.softmax(logits), axis=-1) > 0.5


@pytest.mark.parametrize("dtype, tolerance", [("bfloat16", 0.02), ("float16", 0.003)])
def test_half_precision_keeps_the_gradient_of_a_sure_model(dtype, tolerance):
    random = np.random.default_rng(4)
    table = random.normal(size=(V, 16)).astype("float32")
    labels = random.integers(0, V, (40, 5)).astype("int32")
    hidden = 1.2 * table[labels] / 4
    values = [
        ops.convert_to_numpy(ops.cast(value, dtype)).astype("float32") for value in (hidden, table)
    ]
    weights = ops.ones(labels.shape)

    def slopes(dtype):
        variables = [keras.Variable(value) for value in values]

        def loss():
            cast = [ops.cast(ops.convert_to_tensor(variable), dtype) for variable in variables]
            return projected_crossentropy(
                *cast, ops.convert_to_tensor(labels), weights, 0.1, chunk_rows=64
            )[0]

        return gradients(loss, variables)

    for mine, exact in zip(slopes(dtype), slopes("float32"), strict=True):
        assert np.linalg.norm(mine - exact) < tolerance * np.linalg.norm(exact)


@pytest.mark.any_backend(quickest="torch")
def test_what_needs_logits_gets_them(quick_compile):
    random = np.random.default_rng(0)
    labels = random.integers(1, V, (2, 3)).astype("int32")
    inputs = {"source_ids": labels, "target_ids": labels}
    model, _ = train(kformer.Transformer, **quick_compile)
    assert model.can_skip_logits((inputs, labels)) and not model.can_skip_logits(
        (inputs, labels, np.ones(2))
    )
    assert not model.can_skip_logits(([labels, labels], labels))
    # Subclasses that compute something else.
    plain = float(model.evaluate(inputs, labels, verbose=0, return_dict=True)["nll"])
    model.compile("sgd", Doubled(), metrics=[Sure(name="sure")], **quick_compile)
    found = model.evaluate(inputs, labels, verbose=0, return_dict=True)
    assert found["loss"] == pytest.approx(2 * plain, rel=1e-4) and found["sure"] == 0
    model.compile("sgd", MaskedCrossentropy(), metrics=[Sure()])
    assert not model.can_skip_logits((inputs, labels))
    keras_metric = keras.metrics.SparseCategoricalAccuracy(name="keras")
    model, steps = train(kformer.Transformer, metrics=[keras_metric], **quick_compile)
    assert not model.can_skip_logits((inputs, labels)) and 0 <= steps[-1]["keras"] <= 1
    model, steps = train(
        kformer.Transformer,
        metrics=[],
        weighted=[kformer.MaskedAccuracy()],
        sample_weight=np.ones(4, "float32"),
        **quick_compile,
    )
    assert not model.can_skip_logits((inputs, labels)) and 0 <= steps[-1]["accuracy"] <= 1
    # A metric that counts other tokens than the loss does.
    model, _ = train(
        kformer.Transformer, metrics=[kformer.MaskedAccuracy(pad_id=5)], **quick_compile
    )
    assert not model.can_skip_logits((inputs, labels))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert not model.can_skip_logits((inputs, labels))
    # Outside of a step the model gives logits.
    assert tuple(model({"source_ids": labels, "target_ids": labels}).shape) == (2, 3, V)
