"""The best model of a `fit` by a user's own code."""

import keras
import numpy as np
import pytest

import kformer
from kformer.training import (
    BestModel,
    GeneralValidation,
    MaskedCrossentropy,
    NegativeLogLikelihood,
    fit_from,
)
from tests.models.test_transformer_training import reversal_task, values
from tests.training.toy import ToyData, compiled_toy


def compiled():
    sizes = {"hidden_dim": 16, "intermediate_dim": 16, "num_heads": 2}
    model = kformer.Transformer(11, num_encoder_layers=1, num_decoder_layers=1, **sizes)
    optimizer = keras.optimizers.Adam(0.02, use_ema=True, ema_momentum=0.5)
    model.compile(optimizer, MaskedCrossentropy(), metrics=[NegativeLogLikelihood()])
    return model


@pytest.mark.any_backend(quickest="torch")
def test_two_callbacks_validate_the_same_average(tmp_path):
    data = reversal_task()
    found = []
    for count in (1, 2):
        model = compiled()
        callbacks = [BestModel(tmp_path / f"{count}-{index}") for index in range(count)]
        fitted = model.fit(
            *data, epochs=2, validation_data=data, callbacks=callbacks, shuffle=False, verbose=0
        )
        found.append(fitted.history["val_nll"])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


@pytest.mark.any_backend(quickest="torch")
def test_an_exception_in_a_validation_leaves_the_trained_weights():
    class Interrupting(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            if self.model.stops:
                raise KeyboardInterrupt

        def on_train_batch_end(self, batch, logs=None):
            self.model.trained = values(self.model)

    model, data = compiled(), reversal_task()
    model.stops = True
    callbacks = [BestModel(None), Interrupting()]
    settings = {"validation_data": data, "callbacks": callbacks, "shuffle": False, "verbose": 0}
    with pytest.raises(KeyboardInterrupt):
        model.fit(*data, epochs=1, batch_size=8, **settings)
    expected = model.trained
    callbacks[0].on_train_begin()
    for path, value in values(model).items():
        np.testing.assert_array_equal(value, expected[path])


@pytest.mark.any_backend(quickest="torch")
def test_a_training_in_several_calls_of_fit_ends_with_the_best_weights():
    losses, best = [], None
    for callbacks in ([], [BestModel(None, measure="nll")]):
        model = compiled_toy()
        data = ToyData(steps_per_epoch=4)

        class Noted(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                self.model.losses_seen.append(logs["loss"])

            def on_epoch_end(self, epoch, logs=None):
                # The second epoch is the best.
                logs["val_nll"] = abs(epoch - 1.0)
                if epoch == 1:
                    self.model.best = values(self.model)

        model.losses_seen = []
        fit_from(model, data, steps=14, callbacks=[Noted(), *callbacks], verbose=0)
        losses.append(model.losses_seen)
        best = model.best
    assert losses[1] == losses[0]
    for path, value in values(model).items():
        if "weight" in path or "kernel" in path or "bias" in path:
            np.testing.assert_array_equal(value, best[path])


@pytest.mark.any_backend
def test_a_difference_that_float32_does_not_have_is_no_improvement(tmp_path):
    """A training that continues reads float32 from its history, and must judge as one that did not
    stop.
    """
    best = BestModel(tmp_path, patience=1)
    best.set_model(compiled_toy())
    for epoch, value in enumerate([3.0, 3.0 - 1e-9]):
        assert np.float32(value) == 3.0
        best.on_epoch_end(epoch, {"val_nll": value})
    assert best.best == {"epoch": 1, "nll": 3.0} and best.model.stop_training


@pytest.fixture
def normalized():
    """A model of a user with layers and a loss of Keras alone, and data that it forgets."""
    keras.utils.set_random_seed(0)
    layers = [keras.Input((2,)), keras.layers.BatchNormalization(momentum=0.5)]
    model = keras.Sequential([*layers, keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.3), "mse")
    x = np.random.default_rng(0).normal(size=(32, 2)).astype("float32")
    return model, (x, -x[:, :1]), (x, x.sum(axis=1, keepdims=True))


def test_the_best_weights_come_with_their_moving_statistics(normalized):
    model, train, valid = normalized
    best = BestModel(None, "loss", patience=2)
    settings = {"validation_data": valid, "callbacks": [best], "verbose": 0}
    losses = model.fit(*train, epochs=9, **settings).history["val_loss"]
    assert best.best["epoch"] == len(losses) - 2 == np.argmin(losses) + 1
    assert model.evaluate(*valid, verbose=0) == pytest.approx(best.value, rel=1e-5)


def test_frozen_weights_are_not_copied(normalized):
    model, train, valid = normalized
    model.layers[-1].trainable = False
    best = BestModel(None, "loss")
    model.fit(*train, validation_data=valid, callbacks=[best], verbose=0)
    # Scale, offset, moving mean and moving variance; not the kernel and the bias.
    assert [value.shape for value in best._weights] == [(2,)] * 4


def test_parts_of_a_training_keep_moving_statistics(normalized):
    """Where a `BestModel` gives the best weights back between two calls of `fit`."""

    class Batches(ToyData):
        def from_step(self, step):
            return Batches(self.steps_per_epoch, first=step)

        def __getitem__(self, index):
            return normalized[1]

    class Noted(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            variance = self.model.layers[0].moving_variance
            seen.append(keras.ops.convert_to_numpy(variance).copy())

    seen = []
    for callbacks in ([], [BestModel(None, "loss")]):
        model = keras.models.clone_model(normalized[0])
        model.compile("sgd", "mse")
        settings = {"validation_data": normalized[2], "verbose": 0}
        fit_from(model, Batches(4), steps=14, callbacks=[Noted(), *callbacks], **settings)
    assert callbacks[0].best["epoch"] == 1
    np.testing.assert_array_equal(seen[3], seen[1])


@pytest.mark.parametrize(
    "callback, measured",
    [
        (lambda: BestModel(None), "not nll: add it to the metrics"),
        (lambda: BestModel(None, "mixed_nll"), "not mixed_nll: add it to the metrics"),
        (lambda: GeneralValidation(None), "not nll: compile the model with the metric"),
    ],
)
def test_a_measure_that_a_validation_lacks_is_an_error(normalized, callback, measured):
    model, train, valid = normalized
    model.fit(*train, callbacks=[callback()], verbose=0)  # Without validation there is nothing.
    with pytest.raises(ValueError, match=f"The validation measured loss, but {measured}"):
        model.fit(*train, validation_data=valid, callbacks=[callback()], verbose=0)


@pytest.mark.any_backend
@pytest.mark.parametrize("mode, best_epoch", [("max", 2), ("min", 1)])
def test_a_measure_of_the_user_has_a_given_direction(mode, best_epoch):
    best = BestModel(None, "f1", mode=mode)
    best.set_model(compiled_toy())
    for epoch, value in enumerate([0.5, 0.75]):
        best.on_epoch_end(epoch, {"val_loss": 1.0, "val_f1": value})
    assert best.best["epoch"] == best_epoch


def test_a_swap_of_keras_beside_ours_is_refused():
    model, data = compiled(), reversal_task()
    for callback in (BestModel(None), GeneralValidation(None)):
        callbacks = [keras.callbacks.SwapEMAWeights(), callback]
        with pytest.raises(ValueError, match="leave out SwapEMAWeights"):
            model.fit(*data, validation_data=data, callbacks=callbacks, verbose=0)


def test_both_sets_are_measured_with_the_same_weights():
    model, data = compiled_toy(ema_momentum=0.5), ToyData(2)
    callbacks, waits = [GeneralValidation(data)], []
    evaluate = model.evaluate

    def noted(*data, callbacks=None, **settings):
        waits.append(keras.callbacks.CallbackList(callbacks)._async_test is False)
        return evaluate(*data, callbacks=callbacks, **settings)

    model.evaluate = noted
    settings = {"validation_data": data, "callbacks": callbacks, "verbose": 0}
    found = model.fit(ToyData(), epochs=1, **settings).history
    assert waits[-1]  # Several devices would wait for each other for ever.
    assert found["val_general_nll"] == pytest.approx(found["val_nll"], rel=1e-6)
    assert found["val_mixed_nll"] == pytest.approx(found["val_nll"], rel=1e-6)
