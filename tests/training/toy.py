"""A small model and endless data for the tests of training; run as a program, one training that may
kill itself.
"""

import argparse
import os
import signal

import keras
import numpy as np

from kformer import saving, training
from kformer.layers import Dropout

VOCABULARY = 19


@keras.saving.register_keras_serializable(package="kformer_tests")
class ToyModel(keras.Model):
    """Predicts each next token from the one before, with dropout on the way."""

    def __init__(self, keras_dropout=False, **kwargs):
        super().__init__(**kwargs)
        self.keras_dropout = keras_dropout
        policy = self.dtype_policy
        dropout_class = keras.layers.Dropout if keras_dropout else Dropout
        self.embedding = keras.layers.Embedding(VOCABULARY, 16, dtype=policy)
        self.dropout = dropout_class(0.3, seed=1, dtype=policy)
        self.hidden = keras.layers.Dense(16, activation="relu", dtype=policy)
        self.logits = keras.layers.Dense(VOCABULARY, dtype=policy)
        self.batch_loss = training.LatestValue(name="batch_loss")

    def build(self, input_shape):
        for layer, size in (
            (self.embedding, None),
            (self.dropout, 16),
            (self.hidden, 16),
            (self.logits, 16),
        ):
            layer.build((None, None, size) if size else (None, None))
        self.built = True

    def call(self, inputs, training=None):
        return self.logits(self.hidden(self.dropout(self.embedding(inputs), training=training)))

    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        self.batch_loss.update_state(loss)
        return loss

    def get_config(self):
        return {
            "keras_dropout": self.keras_dropout,
            "name": self.name,
            "dtype": self.dtype_policy.name,
        }


class ToyData(keras.utils.PyDataset):
    """Batches that are a function of the step: 8 sentences of two lengths, padded with 0."""

    def __init__(self, steps_per_epoch=7, first=None):
        super().__init__()
        self.steps_per_epoch = steps_per_epoch
        self.first = first

    def from_step(self, step):
        return ToyData(self.steps_per_epoch, first=step)

    @property
    def num_batches(self):
        return self.steps_per_epoch if self.first is None else None

    def __len__(self):
        return self.steps_per_epoch

    def __getitem__(self, index):
        rng = np.random.default_rng(index + (self.first or 0))
        ids = rng.integers(1, VOCABULARY, (8, 7)).cumsum(axis=1).astype("int32") % VOCABULARY
        return ids[:, :-1], ids[:, 1:]


def compiled_toy(policy="float32", keras_dropout=False, **recipe):
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    model = ToyModel(keras_dropout=keras_dropout)
    model.build((None, None))
    model.compile(**training.paper_recipe(16, **{"warmup_steps": 20, "scale": 2.0, **recipe}))
    return model


class KillAt(keras.callbacks.Callback):
    """`kill -9` of this very process when it has trained on so many batches."""

    def __init__(self, step, state):
        super().__init__()
        self.left = step - (state.step if state else 0)

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def train(run_dir, *, epochs=3, every=5, keep=3, resume=False, kill_at=None, model=None, **recipe):
    """One training with history and checkpoints; returns the model."""
    state = None
    if resume:
        model, state = saving.load_checkpoint(run_dir)
    elif model is None:
        model = compiled_toy(**recipe)
    history = training.StepHistory(run_dir, resume_from=state)
    checkpoint = training.Checkpoint(
        run_dir, every=every, keep=keep, resume_from=state, history=history, data={"seed": 0}
    )
    callbacks = [history, checkpoint, *([KillAt(kill_at, state)] if kill_at else [])]
    validation = ToyData(2)
    training.fit_from(
        model,
        ToyData(),
        state,
        epochs=epochs,
        callbacks=callbacks,
        validation_data=validation,
        verbose=0,
    )
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir")
    parser.add_argument("--kill-at", type=int)
    options = parser.parse_args()
    train(options.run_dir, kill_at=options.kill_at)
