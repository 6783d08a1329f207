"""The order and the shapes of batches as they arrive in the training step of Keras, on each
backend.
"""

import itertools

import keras
import numpy as np
import pytest

from kformer.data import ParallelDataset
from kformer.models.base_model import BaseModel
from kformer.saving import TrainingState
from kformer.training import fit_from


@keras.saving.register_keras_serializable(package="kformer_tests")
class LastBatch(keras.metrics.Metric):
    """A checksum of the labels of the latest batch alone, and of its shape."""

    def __init__(self, name="checksum", **kwargs):
        super().__init__(name=name, **kwargs)
        self.value = self.add_variable((), "zeros", dtype="float32", name="value")

    def update_state(self, y_true, y_pred, sample_weight=None):
        labels = keras.ops.cast(y_true, "float32")
        rows, columns = keras.ops.shape(labels)[0], keras.ops.shape(labels)[1]
        positions = keras.ops.arange(rows, dtype="float32")[:, None] + 3 * keras.ops.arange(
            columns, dtype="float32"
        )
        self.value.assign(keras.ops.sum(keras.ops.mod(labels * (positions + 1), 9973.0)))

    def reset_state(self):
        self.value.assign(0.0)

    def result(self):
        return self.value + 0.0


def checksum(batch):
    labels = batch[1].astype("float32")
    positions = np.arange(labels.shape[0])[:, None] + 3 * np.arange(labels.shape[1])
    return float(np.mod(labels * (positions + 1), 9973).sum())


def toy_model(kind=BaseModel):
    source = keras.Input([None], dtype="int32", name="source_ids")
    target = keras.Input([None], dtype="int32", name="target_ids")
    embed = keras.layers.Embedding(2048, 2)
    context = keras.layers.GlobalAveragePooling1D(keepdims=True)(embed(source))
    outputs = keras.layers.Dense(1)(keras.layers.Add()([embed(target), context]))
    model = kind({"source_ids": source, "target_ids": target}, outputs)
    model.compile(
        "sgd", loss=lambda labels, outputs: keras.ops.mean(outputs**2), metrics=[LastBatch()]
    )
    return model


class Recorder(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.steps = []

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append(float(logs["checksum"]))


class TestRecorder(Recorder):
    __test__ = False
    on_test_batch_end = Recorder.on_train_batch_end


def train(model, dataset, **options):
    recorder = Recorder()
    model.fit(dataset, callbacks=[recorder], verbose=0, **options)
    return recorder.steps


@pytest.fixture
def dataset(toy):
    return ParallelDataset(*toy.pairs(60), toy.CharacterTokenizer(), batch_tokens=160, max_shapes=3)


def expected(dataset, steps):
    return [checksum(dataset.batch_at(step)) for step in steps]


def test_fit_reads_every_epoch_in_its_order(dataset, toy):
    size = len(dataset)
    assert size >= 6 and len(dataset.shapes) == 3
    assert (
        len(set(expected(dataset, range(3 * size)))) == 3 * size
    )  # the checksums do tell batches apart
    valid = ParallelDataset(
        *toy.pairs(20, seed=1), toy.CharacterTokenizer(), batch_tokens=100, shuffle=False
    )
    model = toy_model()
    assert train(model, dataset, epochs=2, validation_data=valid) == expected(
        dataset, range(2 * size)
    )
    assert dataset.epoch == 2
    # A second `fit` goes on with the next epoch, also without the trial step of a model that is not
    # built yet.
    assert train(model, dataset, epochs=1) == expected(dataset, range(2 * size, 3 * size))
    dataset.set_epoch(1)
    assert train(model, dataset, epochs=1) == expected(dataset, range(size, 2 * size))


def test_fit_in_steps_per_epoch_does_not_cut_an_epoch_short(dataset):
    size = len(dataset)
    model = toy_model()
    train(model, dataset, epochs=1)
    dataset.set_epoch(0)
    assert train(model, dataset, epochs=2, steps_per_epoch=size // 2) == expected(
        dataset, range(size // 2 * 2)
    )
    dataset.set_epoch(0)
    assert train(model, dataset, epochs=2, steps_per_epoch=2) == expected(dataset, range(4))
    assert dataset.epoch == 0


def test_stopping_early_starts_the_epoch_again(dataset):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 2

    model = toy_model()
    model.fit(dataset, callbacks=[Stop()], verbose=0)
    assert dataset.epoch == 0
    assert train(model, dataset, epochs=1) == expected(dataset, range(len(dataset)))


def test_one_step_per_epoch(toy):
    dataset = ParallelDataset(
        *toy.pairs(9), toy.CharacterTokenizer(), batch_tokens=4000, max_shapes=1
    )
    assert len(dataset) == 1
    assert train(toy_model(), dataset, epochs=3) == expected(dataset, range(3))


def test_fit_goes_on_at_any_step_whatever_shapes_come_next(toy):
    # Most batches have one shape, so at many steps the next two are alike and a later one is not.
    sources = ["aaa"] * 90 + ["a" * 12] * 6
    targets = ["bb" + chr(200 + i) for i in range(90)] + ["b" * 9 + chr(300 + i) for i in range(6)]
    dataset = ParallelDataset(
        sources, targets, toy.CharacterTokenizer(), batch_tokens=40, max_shapes=2
    )
    assert len(dataset.shapes) == 2
    size = len(dataset)
    kinds = [dataset.batch_at(step)[1].shape for step in range(3 * size)]
    start = next(
        s
        for s in range(1, size)
        if kinds[s] == kinds[s + 1] == kinds[s + 2] and len(set(kinds[s : s + size])) > 1
    )
    uninterrupted = expected(dataset, range(3 * size))
    model = toy_model()
    view = dataset.from_step(start)
    assert (
        train(model, view, epochs=2, steps_per_epoch=size // 2)
        == uninterrupted[start : start + size // 2 * 2]
    )
    assert train(model, view, epochs=1, steps_per_epoch=size) == uninterrupted[start : start + size]
    foreign, recorder = toy_model(keras.Model), Recorder()
    fit_from(
        foreign,
        view.dataset,
        TrainingState(start, 0, start),
        epochs=2,
        callbacks=[recorder],
        verbose=0,
    )
    assert recorder.steps == uninterrupted[start : 2 * size]
    assert all(np.array_equal(view[i][1], dataset.batch_at(start + i)[1]) for i in range(3))


def test_evaluate_and_predict_see_every_batch(dataset):
    model = toy_model()
    recorder = TestRecorder()
    model.evaluate(dataset, callbacks=[recorder], verbose=0)
    assert recorder.steps == expected(dataset, range(len(dataset)))
    view = itertools.islice(dataset.from_step(0), len(dataset))
    assert sum(len(model.predict_on_batch(batch[0])) for batch in view) == sum(
        b.rows * b.num_batches for b in dataset.buckets
    )


def test_compilations_are_as_few_as_the_shapes(dataset):
    """Under TensorFlow and JAX, a training step is traced once per shape at most."""
    if keras.backend.backend() == "torch":
        pytest.skip("PyTorch runs this step without tracing it")
    traces = []

    def loss(labels, outputs):
        traces.append(outputs.shape)
        return keras.ops.mean(outputs**2)

    model = toy_model()
    model.compile("sgd", loss=loss, jit_compile=keras.backend.backend() == "jax")
    model.fit(dataset, epochs=1, verbose=0)
    first = len(traces)
    model.fit(dataset, epochs=3, verbose=0)
    assert (
        0 < first <= 2 * len(dataset.shapes)
    )  # the loss is traced once more while Keras builds the model
    assert len(traces) == first  # later epochs bring no new shape


class EvaluatesWithin(keras.callbacks.Callback):
    """Evaluates the training data in the middle of an epoch."""

    def __init__(self, dataset):
        super().__init__()
        self.dataset = dataset

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            self.model.evaluate(self.dataset, verbose=0)


def test_evaluating_the_training_data_does_not_change_its_order(dataset):
    """By `evaluate` and `predict`, as `validation_data`, and by a callback within an epoch."""
    size, model, recorder = len(dataset), toy_model(), TestRecorder()
    model.evaluate(dataset, callbacks=[recorder], verbose=0)
    model.predict(dataset, steps=1, verbose=0)
    assert dataset.epoch == 0 and recorder.steps == expected(dataset, range(size))
    steps = train(model, dataset, epochs=2, validation_data=dataset)
    assert steps == expected(dataset, range(2 * size))
    model.evaluate(dataset, verbose=0)
    training = Recorder()
    callbacks = [training, EvaluatesWithin(dataset)]
    model.fit(dataset, epochs=2, callbacks=callbacks, verbose=0)
    assert training.steps == expected(dataset, range(2 * size, 4 * size))
    dataset.set_epoch(0)
    cut = {"epochs": 3, "steps_per_epoch": 2, "validation_data": dataset}
    assert train(model, dataset, **cut) == expected(dataset, range(6))
    # Every evaluation reads the same batches.
    again = TestRecorder()
    model.evaluate(dataset, callbacks=[again], verbose=0)
    assert again.steps == recorder.steps


def test_a_foreign_model_reads_whole_epochs(dataset):
    """Keras's own `fit` skips numbers of epochs; `fit_from` and views do not."""
    size, model, recorder = len(dataset), toy_model(keras.Model), Recorder()
    model.fit(dataset, callbacks=[recorder], shuffle=False, epochs=2, verbose=0)
    epochs = [expected(dataset, range(n * size, (n + 1) * size)) for n in range(5)]
    assert recorder.steps[:size] in epochs and recorder.steps[size:] in epochs
    assert recorder.steps[:size] != recorder.steps[size:]
    tested = TestRecorder()
    model.evaluate(dataset.first_epoch(), callbacks=[tested], verbose=0)
    assert tested.steps == epochs[0]
