"""`compile` and `fit` with nothing special."""

import keras
import numpy as np
import pytest

from kformer.training import MaskedAccuracy, MaskedCrossentropy, NegativeLogLikelihood


def reversal_task(rows=32, length=4, vocabulary_size=11, pad_id=0):
    """The target is the source backwards; some rows are padded."""
    rng = np.random.default_rng(5)
    source = rng.integers(4, vocabulary_size, (rows, length)).astype("int32")
    labels = source[:, ::-1].copy()
    source[::3, -1] = pad_id
    labels[::3, 0] = labels[::3, 1]
    labels[::3, -1] = pad_id
    target = np.concatenate([np.full((rows, 1), 2, "int32"), labels[:, :-1]], axis=1)
    return {"source_ids": source, "target_ids": target}, labels


def values(model):
    """All weights by path, as copies."""
    return {
        weight.path: np.array(keras.ops.convert_to_numpy(weight.value)) for weight in model.weights
    }


def test_fit_lowers_the_loss_in_every_precision(tiny_transformer, policy, quick_compile):
    model = tiny_transformer(num_encoder_layers=1, num_decoder_layers=1, hidden_dim=16, dropout=0.1)
    inputs, labels = reversal_task()
    model.compile(
        keras.optimizers.Adam(0.02),
        MaskedCrossentropy(label_smoothing=0.1),
        metrics=[NegativeLogLikelihood(), MaskedAccuracy()],
        **({} if policy == "mixed_float16" else quick_compile),
    )
    assert (policy == "mixed_float16") == (
        model.optimizer.__class__.__name__ == "LossScaleOptimizer"
    )
    history = model.fit(inputs, labels, batch_size=32, epochs=12, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert (
        history["loss"][-1] < 0.8 * history["loss"][0]
        and history["nll"][-1] < 0.8 * history["nll"][0]
    )
    assert history["accuracy"][-1] > history["accuracy"][0] + 0.1


def test_a_step_moves_every_weight_and_every_counter(tiny_transformer, quick_compile):
    model = tiny_transformer(
        num_encoder_layers=1,
        num_decoder_layers=1,
        dropout=0.1,
        attention_dropout=0.1,
        activation_dropout=0.1,
    )
    inputs, labels = reversal_task(rows=4)
    before = values(model)
    model.compile(keras.optimizers.Adam(0.01), MaskedCrossentropy(), **quick_compile)
    model.train_on_batch(inputs, labels)
    assert not [path for path, array in values(model).items() if (array == before[path]).all()]
    # Every dropout layer is called once a step, but the shared embedding's, which serves source and
    # target.
    counters = {
        weight.path: int(weight.value)
        for weight in model.non_trainable_weights
        if weight.name == "step"
    }
    assert set(counters.values()) == {1, 2} and [
        path for path in counters if counters[path] == 2
    ] == [path for path in counters if path.startswith("embedding/")]


def test_losses_and_metrics_take_the_padding_id_of_their_model(tiny_transformer):
    model = tiny_transformer(pad_id=7)
    given = [MaskedCrossentropy(), MaskedAccuracy(), NegativeLogLikelihood()]
    model.compile("adam", given[0], metrics=[given[1]], weighted_metrics=[given[2]])
    assert pad_ids(model) == [7, 7, 7]
    model.compile("adam", given[0], None, [given[1]], [given[2]])
    assert pad_ids(model) == [7, 7, 7]
    assert [part.pad_id for part in given] == [None] * 3
    model.compile("adam", [MaskedCrossentropy(pad_id=1)], metrics=[MaskedAccuracy(pad_id=0)])
    assert pad_ids(model) == [1, 0]
    model.compile("adam", [given[0]])
    assert model.loss[0].pad_id == 7


def pad_ids(model):
    """The padding ids of a compiled model's loss and metrics."""
    metrics, weighted = (
        getattr(model._compile_metrics, name, None) or []
        for name in ("_user_metrics", "_user_weighted_metrics")
    )
    return [part.pad_id for part in [*keras.tree.flatten(model.loss), *metrics, *weighted]]


@pytest.mark.parametrize("by_position", [False, True])
@pytest.mark.any_backend(quickest="torch")
def test_one_loss_and_one_metric_serve_several_models(tiny_transformer, by_position):
    def compile_with(model, loss, metric):
        if by_position:
            model.compile("adam", loss, None, [metric])
        else:
            model.compile("adam", loss, metrics=[metric])

    inputs, labels = reversal_task(rows=4, vocabulary_size=7, pad_id=6)
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    models = [tiny_transformer(**sizes, pad_id=pad_id) for pad_id in (0, 6)]
    expected = []
    for model in models:
        compile_with(model, MaskedCrossentropy(), NegativeLogLikelihood())
        expected.append(model.evaluate(inputs, labels, verbose=0))
    loss, metric = MaskedCrossentropy(), NegativeLogLikelihood()
    for model in models:
        compile_with(model, loss, metric)
    assert [model.evaluate(inputs, labels, verbose=0) for model in models] == expected
    assert loss.pad_id is None and metric.pad_id is None and float(metric.result()) == 0


def test_padding_counts_for_nothing(tiny_transformer):
    """Labels at padding do not matter."""
    model = tiny_transformer(num_encoder_layers=1, num_decoder_layers=1, pad_id=7)
    inputs, labels = reversal_task(rows=4, vocabulary_size=7, pad_id=7)
    model.compile("adam", MaskedCrossentropy(), metrics=[NegativeLogLikelihood()])
    loss, nll = model.test_on_batch(inputs, labels)
    real = labels != 7
    assert not real.all()
    logits = model.predict_on_batch(inputs).astype("float64")
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    expected = -np.take_along_axis(log_probabilities, labels[..., None], axis=-1)[..., 0][
        real
    ].mean()
    np.testing.assert_allclose([loss, nll], expected, rtol=1e-5)


def test_jit_compile_is_on_where_shapes_may_not_change_anyway(tiny_transformer, backend):
    model = tiny_transformer()
    model.compile("adam")
    assert model.jit_compile == (backend == "jax")
    model.compile("adam", jit_compile=False)
    assert model.jit_compile is False
    # What a saved model says of the choice holds on every backend.
    assert model.get_compile_config()["jit_compile"] is False
    model.compile("adam")
    assert model.get_compile_config()["jit_compile"] == "auto"


def test_keras_does_not_look_for_layers_in_the_state_of_a_jax_step(tiny_transformer):
    model, state = tiny_transformer(), {"trainable_variables": [np.zeros(2)]}
    model._jax_state = state
    assert model._jax_state is state  # Keras would have made a copy of it, list by list.
    model.others = others = [keras.layers.Dense(2)]
    assert model.others is not others  # As ever.


def test_keras_callbacks_work_on_it(tiny_transformer, quick_compile, tmp_path):
    model = tiny_transformer(num_encoder_layers=1, num_decoder_layers=1, hidden_dim=16)
    inputs, labels = reversal_task()
    model.compile(
        keras.optimizers.Adam(0.01),
        MaskedCrossentropy(),
        metrics=[NegativeLogLikelihood()],
        **quick_compile,
    )
    callbacks = [
        keras.callbacks.TensorBoard(tmp_path / "board", histogram_freq=1),
        keras.callbacks.ModelCheckpoint(
            tmp_path / "best.keras", monitor="val_nll", save_best_only=True
        ),
        # Nothing is ever better by that much: the second epoch is the last.
        keras.callbacks.EarlyStopping(monitor="val_nll", min_delta=100.0, patience=1),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
    ]
    history = model.fit(
        inputs,
        labels,
        validation_data=(inputs, labels),
        batch_size=32,
        epochs=5,
        verbose=0,
        callbacks=callbacks,
    )
    assert len(history.history["val_nll"]) == 2
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 3
    assert {path.name for path in (tmp_path / "board").iterdir()} >= {"train", "validation"}
    assert any((tmp_path / "board" / "train").glob("events.*"))
    best = keras.saving.load_model(tmp_path / "best.keras").evaluate(
        inputs, labels, verbose=0, return_dict=True
    )
    assert abs(best["nll"] - min(history.history["val_nll"])) < 1e-4


class Constant(NegativeLogLikelihood):
    """A metric with an argument that its `get_config` does not have."""

    def __init__(self, value=1.0, name="constant"):
        super().__init__(name=name)
        self.value = value

    def result(self):
        return keras.ops.convert_to_tensor(self.value)


def test_a_metric_keeps_arguments_that_its_config_lacks(tiny_transformer):
    model, (inputs, labels) = tiny_transformer(), reversal_task()
    model.compile("adam", MaskedCrossentropy(), metrics=[Constant(5.0)])
    found = model.evaluate(inputs, labels, verbose=0, return_dict=True)
    assert float(found["constant"]) == 5.0


@pytest.mark.any_backend
def test_what_keras_would_do_wrongly_is_refused(tiny_transformer):
    model, (inputs, labels) = tiny_transformer(), reversal_task()
    with pytest.raises(ValueError, match="takes no loss_weights"):
        model.compile("adam", MaskedCrossentropy(consistency=1.0), loss_weights=10.0)
    model.compile("adam", [MaskedCrossentropy(consistency=1.0)])
    assert model._runs_twice
    with pytest.raises(ValueError, match="give weights of tokens by sample_weight"):
        model.fit(inputs, labels, class_weight={2: 0.0}, verbose=0)


@pytest.mark.any_backend
def test_labels_beyond_the_vocabulary_are_refused_before_a_training(tiny_transformer):
    model = tiny_transformer(num_encoder_layers=1, num_decoder_layers=1)
    inputs, labels = reversal_task(rows=4)
    wrong = np.where(labels == labels[0, 0], 10**6, labels)
    model.compile("sgd", MaskedCrossentropy())
    for data in ({"y": wrong}, {"y": labels, "validation_data": (inputs, wrong)}):
        with pytest.raises(ValueError, match="A label is 1000000, but the model predicts"):
            model.fit(inputs, verbose=0, **data)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a switch of TensorFlow")
def test_a_training_runs_while_tensorflow_looks_for_nan(tiny_transformer):
    """Its `enable_check_numerics` stops at any constant that is NaN."""
    import tensorflow as tf

    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "position_encoding": "learned"}
    model = tiny_transformer(**sizes, dropout=0.1, max_length=8)
    inputs, labels = reversal_task(rows=4)
    metrics = [NegativeLogLikelihood(), MaskedAccuracy()]
    model.compile("adam", MaskedCrossentropy(label_smoothing=0.1), metrics=metrics)
    tf.debugging.enable_check_numerics()
    try:
        history = model.fit(inputs, labels, verbose=0).history
        tf.function(MaskedCrossentropy())(labels, tf.zeros([*labels.shape, 11]))
    finally:
        tf.debugging.disable_check_numerics()
    assert np.isfinite(history["loss"]).all() and np.isfinite(history["nll"]).all()
