"""The best model of a `fit` by a user's own code."""

import keras
import numpy as np
import pytest

import kformer
from kformer.training import BestModel, MaskedCrossentropy, NegativeLogLikelihood, fit_from
from tests.models.test_transformer_training import reversal_task, values
from tests.training.toy import ToyData, compiled_toy


def compiled():
    sizes = {"hidden_dim": 16, "intermediate_dim": 16, "num_heads": 2}
    model = kformer.Transformer(11, num_encoder_layers=1, num_decoder_layers=1, **sizes)
    optimizer = keras.optimizers.Adam(0.02, use_ema=True, ema_momentum=0.5)
    model.compile(optimizer, MaskedCrossentropy(), metrics=[NegativeLogLikelihood()])
    return model


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
