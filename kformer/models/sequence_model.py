"""What the models share that are trained on sequences of tokens: `compile`, `fit` and a training
step without logits.
"""

import contextlib
import contextvars

import keras
from keras import ops

from kformer.layers.products import training_products
from kformer.models.architecture import check_packing

# The model whose training step needs no logits, in the thread that runs the step: a strategy with
# several devices has a thread each.
_PROJECTING = contextvars.ContextVar("projecting", default=None)


class SequenceModel(keras.Model):
    """What the models share that read tokens: `compile`, `fit` and their steps.

    A model has `pad_id`, `max_length`, `policy_name` and a `_config`, the other arguments that make
    it anew.

    One whose last step is a projection to the vocabulary names its inputs in `_token_inputs` and
    has `_output_table`; its `call` then returns what is to be projected, in place of logits, while
    `_projects_loss` holds."""

    _token_inputs = None

    @property
    def _ignored_label(self):
        """What losses and metrics that were told nothing else leave out, beside negative labels."""
        return self.pad_id

    # A metric that training may set to see each batch's own loss, which the progress bar's running
    # mean hides.
    loss_observer = None

    def compile(self, optimizer="rmsprop", loss=None, *args, jit_compile="auto", **kwargs):
        """`keras.Model.compile`, with the model's padding id told to losses and metrics that were
        given none.

        `jit_compile="auto"` compiles on JAX, and runs a graph (TensorFlow) or eagerly (PyTorch)
        elsewhere: there XLA would compile anew for every shape of batch."""
        for part in [
            *_flatten(loss),
            *_flatten(kwargs.get("metrics")),
            *_flatten(kwargs.get("weighted_metrics")),
        ]:
            if getattr(part, "pad_id", 0) is None:
                part.pad_id = self._ignored_label
        self._chooses_jit = jit_compile == "auto"
        if self._chooses_jit:
            jit_compile = keras.backend.backend() == "jax"
        super().compile(optimizer, loss, *args, jit_compile=jit_compile, **kwargs)

    def get_compile_config(self):
        """As Keras's, but the choice of `jit_compile="auto"` is not saved: it is another one on
        another backend.
        """
        config = super().get_compile_config()
        if config and self._chooses_jit:
            config["jit_compile"] = "auto"
        return config

    def compile_from_config(self, config):
        """Compiles a model that is being loaded: Keras does so by itself only where `compile` is
        its own.
        """
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def fit(self, x=None, *args, **kwargs):
        """`keras.Model.fit`. A `ParallelDataset` is read in its own order, which is shuffled
        already and can be resumed.
        """
        if getattr(x, "is_ordered", False):
            kwargs["shuffle"] = False
        data = getattr(x, "dataset", x)
        is_packed = getattr(data, "packed", False)
        if is_packed:
            check_packing(self._config)
        # Rows of packed pairs say nothing of the longest position.
        if (
            is_packed
            and self._config["position_encoding"] == "learned"
            and data.longest > self.max_length
        ):
            raise ValueError(
                f"The data has a sequence of {data.longest} tokens, longer than the model's {self.max_length} learned positions: "
                f"prepare it with max_length={self.max_length}."
            )
        if keras.backend.backend() == "tensorflow" and self.built and not self._distribute_strategy:
            optimizer = getattr(self, "optimizer", None)
            if not getattr(optimizer, "built", True):
                # Else Keras makes its variables in the midst of the first step, which TensorFlow
                # then traces a second time.
                optimizer.build(self.trainable_variables)
        return super().fit(x, *args, **kwargs)

    # A training step with this package's loss and metrics needs no logits: loss and projection are
    # computed in one, which takes less time and far less memory. `call` then returns what would be
    # projected.

    def train_step(self, *args, **kwargs):
        *state, data = args
        if self._runs_twice:
            data = _twice(data)
        with self._projecting_loss(data), training_products():
            return super().train_step(*state, data, **kwargs)

    def test_step(self, *args, **kwargs):
        with self._projecting_loss(args[-1]):
            return super().test_step(*args, **kwargs)

    @contextlib.contextmanager
    def _projecting_loss(self, data):
        token = _PROJECTING.set(self if self._can_project_loss(data) else None)
        try:
            yield
        finally:
            _PROJECTING.reset(token)

    @property
    def _runs_twice(self):
        """Whether a training step runs its batch with two draws of the dropout, for a loss that
        wants them alike.
        """
        return getattr(self.loss, "consistency", 0) > 0

    @property
    def _projects_loss(self):
        return _PROJECTING.get() is self

    def _can_project_loss(self, data):
        """Whether loss and metrics of a step on `data` can be had without logits."""
        inputs, labels, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        own = next((base for base in type(self).__mro__ if "_output_table" in vars(base)), None)
        # A subclass of the user's that overrides one of these expects logits.
        if own is None or any(
            getattr(type(self), name) is not getattr(own, name)
            for name in ("call", "compute_loss", "compute_metrics")
        ):
            return False
        if labels is None or sample_weight is not None or getattr(self.loss, "needs_logits", True):
            return False
        if not isinstance(inputs, dict) or not set(self._token_inputs) <= inputs.keys():
            return False
        if self._compile_loss._user_loss_weights or (
            self._compile_metrics and self._compile_metrics._user_weighted_metrics
        ):
            return False
        metrics = self._compiled_metrics()
        return all(
            not getattr(metric, "needs_logits", True) and metric.pad_id == self.loss.pad_id
            for metric in metrics
        )

    def _compiled_metrics(self):
        return _flatten(self._compile_metrics and self._compile_metrics._user_metrics)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        soft_targets = _soft_targets(x) if training else None
        if soft_targets is not None and not hasattr(self.loss, "in_training"):
            raise ValueError(
                "A batch with soft targets needs kformer.training.MaskedCrossentropy as the model's loss."
            )
        if self._projects_loss:
            table = self._output_table()
            loss, sums = self.loss.of_projection(
                y, y_pred, table, training=training, soft_targets=soft_targets
            )
            loss = sum(
                (
                    ops.cast(self._aggregate_additional_loss(part), "float32")
                    for part in self.losses
                ),
                loss,
            )
            if self._compile_metrics is not None and not self._compile_metrics.built:
                self._compile_metrics.build(
                    y, keras.KerasTensor((*y_pred.shape[:2], table.shape[0]))
                )
            # Here rather than in compute_metrics: on JAX the sums may not leave the function that
            # is differentiated.
            for metric in self._compiled_metrics():
                metric.update_sums(sums)
        elif soft_targets is not None or training and self._runs_twice:
            loss = self.loss.in_training(y, y_pred, sample_weight, soft_targets)
            loss = sum(
                (
                    ops.cast(self._aggregate_additional_loss(part), "float32")
                    for part in self.losses
                ),
                loss,
            )
        else:
            loss = super().compute_loss(
                x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training
            )
        if self.loss_observer is not None:
            self.loss_observer.update_state(loss)
        return loss

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        if self._projects_loss:
            return self.get_metrics_result()
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def with_dropout(self, *, seed=None, **rates):
        """A copy of the model with other rates of dropout, as for training it further on another
        amount of text.

        Args:
            seed: int, what the noise is drawn from in place of the model's seed; `None` leaves
                that.
            **rates: `dropout`, `attention_dropout`, `activation_dropout` or `stochastic_depth`; the
                others stay as they are.

        Returns:
            A model of the same class with the same weights, not compiled.

        Raises:
            TypeError: the model has no such rate.

        Example:
            >>> model = kformer.Transformer(1000, dropout=0.1).with_dropout(dropout=0.3)
        """
        unknown = rates.keys() - (
            {"dropout", "attention_dropout", "activation_dropout", "stochastic_depth"}
            & self._config.keys()
        )
        if unknown:
            raise TypeError(
                f"{type(self).__name__} has no rate {', '.join(sorted(unknown))} that could be chosen anew."
            )
        return self._copy(rates if seed is None else {**rates, "seed": seed})

    def with_precision(self, dtype):
        """A copy of the model that computes in another precision, as for training it further on a
        GPU.

        Args:
            dtype: a Keras dtype policy or its name, such as "mixed_bfloat16". The weights are
                rounded where it has smaller ones.

        Returns:
            A model of the same class with the same weights, not compiled.

        Example:
            >>> model = kformer.Transformer(1000).with_precision("mixed_bfloat16")
        """
        return self._copy({"dtype": dtype})

    def _copy(self, changes):
        copy = type(self).from_config({**self.get_config(), **changes})
        own = {weight.path: weight for weight in self.weights}
        for weight in copy.weights:
            # Without a rate a layer of dropout has no counter.
            if weight.path in own:
                weight.assign(own[weight.path])
        return copy

    def get_config(self):
        return {
            **self._config,
            "name": self.name,
            "trainable": self.trainable,
            "dtype": self.policy_name,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**config)


def _soft_targets(inputs):
    """Classes and their probabilities of a batch that teachers have looked at
    (`kformer.data.SoftTargets`); `None` for others.
    """
    if not isinstance(inputs, dict) or "soft_target_ids" not in inputs:
        return None
    return inputs["soft_target_ids"], inputs["soft_targets"]


def _twice(data):
    """A batch of Keras's, its rows once more behind themselves."""
    return keras.tree.map_structure(
        lambda part: None if part is None else ops.concatenate([part, part]), data
    )


def _flatten(parts):
    """The losses or metrics of a `compile` argument, whatever its nesting."""
    return [] if parts is None else keras.tree.flatten(parts)
