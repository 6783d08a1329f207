"""Training without logits: the protocol between a model, its loss and its metrics.

The logits `[B, T, V]` are by far the largest tensor of a training step: 512 MiB for 4,096 tokens
and 32,000 pieces, and as much again for their softmax and for its gradient. With this package's
loss and metrics a step never computes all of them at once. The loss computes projection and
cross-entropy together, chunk by chunk, and returns the sums that the metrics need.

| Side | Base class | What it offers |
|---|---|---|
| model | `ProjectingModel` | `output_table()`; `call` returns hidden states if `skips_logits` |
| loss | `ProjectedLoss` | `of_projection(...)`: the loss of hidden states and a table; the sums |
| metric | `SummedMetric` | `update_sums(sums)`: adds a batch, given its sums |

One step:

1. `train_step` or `test_step` runs inside `model.without_logits(data)`.
2. `call` returns the hidden states `[B, T, D]` instead of the logits.
3. `compute_loss` calls `model.projected_loss`, which calls `loss.of_projection` and hands the
   returned `TokenSums` to each metric's `update_sums`.
4. `compute_metrics` only reads the metrics.

A step does this if `model.can_skip_logits(data)` is true. Otherwise it is Keras's own step on
logits, which gives the same numbers. A step needs logits if

- the loss or a metric does not offer the protocol, or a subclass overrides what it computes;
- a subclass of the model overrides `call`, `compute_loss` or `compute_metrics`;
- a metric ignores another label than the loss;
- there are sample weights, loss weights or weighted metrics;
- the inputs are not the dictionary that `token_inputs` names.

Calling the model outside a step always returns logits.
"""

import contextvars
from typing import Any, NamedTuple

import keras

from kformer.models.configured_model import ConfiguredModel
from kformer.utils.contexts import context_value

# The model whose current step skips the logits. It is per thread, since a strategy with several
# devices runs the steps in one thread per device.
_SKIPPING = contextvars.ContextVar("kformer_skips_logits", default=None)


class TokenSums(NamedTuple):
    """Sums over the real tokens of a batch, which a loss returns for the metrics.

    Attributes:
        nll: float32 scalar. The negative log-likelihood, in nats.
        hits: float32 scalar. The number of tokens whose label has the highest logit.
        count: float32 scalar. The number of tokens.
    """

    nll: Any
    hits: Any
    count: Any


class ProjectedLoss:
    """The loss's side of the protocol: a second base class, besides `keras.losses.Loss`.

    Attributes:
        pad_id: int or `None`. The label to ignore.
        needs_logits: bool. Whether `of_projection` may not be used, since a subclass overrides
            `call` or `__call__` and so computes another loss.
    """

    pad_id = None

    @property
    def needs_logits(self):
        return is_overridden(self, "of_projection", ("call", "__call__"))

    def of_projection(self, y_true, hidden, table, training=True, soft_targets=None):
        """Computes the loss of the logits `hidden @ table.T` without making these logits.

        Args:
            y_true: int tensor `[B, T]`. The labels.
            hidden: float tensor `[B, T, D]`. The hidden states before the projection.
            table: float tensor `[V, D]`. The projection.
            training: bool, default True. Whether the loss has a gradient.
            soft_targets: pair of tensors `[B, T, K]` or `None`, default `None`. Classes and their
                probabilities; see `kformer.data.SoftTargets`.

        Returns:
            The loss, a float32 scalar, and `TokenSums`.
        """
        raise NotImplementedError


class SummedMetric:
    """The metric's side of the protocol: a second base class, besides `keras.metrics.Metric`.

    Attributes:
        token_sum: str or `None`. The field of `TokenSums` that is the sum of the metric's values;
            `None` for a metric that needs logits.
        pad_id: int or `None`. The label to ignore.
        needs_logits: bool. Whether `update_sums` may not be used, since no field of `TokenSums` is
            the metric's sum or a subclass overrides `update_state` or `token_values`.
    """

    token_sum = None
    pad_id = None

    @property
    def needs_logits(self):
        return (
            self.token_sum is None
            or is_overridden(self, "update_sums", ("update_state",))
            or is_overridden(self, "token_sum", ("token_values",))
        )

    def update_sums(self, sums):
        """Adds a batch, given its sums.

        Args:
            sums: `TokenSums` of the batch.
        """
        raise NotImplementedError


class ProjectingModel(ConfiguredModel):
    """The model's side of the protocol.

    A subclass whose last operation is a projection to the vocabulary sets `token_inputs`, defines
    `output_table`, and returns hidden states from `call` if `skips_logits`.

    Attributes:
        token_inputs: tuple of str or `None`. The inputs that a batch must have; `None` for a model
            that always returns its usual output.
    """

    token_inputs = None

    @property
    def skips_logits(self):
        """Whether `call` returns the hidden states to be projected instead of logits."""
        return _SKIPPING.get() is self

    def output_table(self):
        """Returns the projection to the vocabulary, `[V, D]` in the compute dtype."""
        raise NotImplementedError

    def can_skip_logits(self, data):
        """Returns whether loss and metrics of a step can be computed without logits.

        Args:
            data: a batch, as Keras passes it to `train_step`.
        """
        inputs, labels, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        return (
            self.token_inputs is not None
            and labels is not None
            and sample_weight is None
            and isinstance(inputs, dict)
            and set(self.token_inputs) <= inputs.keys()
            and not is_overridden(self, "output_table", ("call", "compute_loss", "compute_metrics"))
            and isinstance(self.loss, ProjectedLoss)
            and not self.loss.needs_logits
            and not self._compile_loss._user_loss_weights
            and not (self._compile_metrics and self._compile_metrics._user_weighted_metrics)
            and all(
                isinstance(metric, SummedMetric)
                and not metric.needs_logits
                and metric.pad_id == self.loss.pad_id
                for metric in self._step_metrics()
            )
        )

    def without_logits(self, data):
        """A context in which `skips_logits` is `can_skip_logits(data)`."""
        return context_value(_SKIPPING, self if self.can_skip_logits(data) else None)

    def projected_loss(self, y_true, hidden, training=True, soft_targets=None):
        """Computes the loss of hidden states and updates the metrics.

        Args:
            y_true, hidden, training, soft_targets: as for `ProjectedLoss.of_projection`.

        Returns:
            The loss, a float32 scalar.
        """
        table = self.output_table()
        loss, sums = self.loss.of_projection(y_true, hidden, table, training, soft_targets)
        if self._compile_metrics is not None and not self._compile_metrics.built:
            logits = keras.KerasTensor((*hidden.shape[:2], table.shape[0]))
            self._compile_metrics.build(y_true, logits)
        # Not in compute_metrics: on JAX the sums may not leave the function that is
        # differentiated.
        for metric in self._step_metrics():
            metric.update_sums(sums)
        return loss

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        if self.skips_logits:
            return self.get_metrics_result()
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def _step_metrics(self):
        metrics = self._compile_metrics and self._compile_metrics._user_metrics
        return [] if metrics is None else keras.tree.flatten(metrics)


def is_overridden(instance, offer, methods):
    """Returns whether a subclass overrides a method that must match an attribute of its base.

    A subclass that overrides the attribute too may override the methods.

    Args:
        instance: model, loss or metric.
        offer: str. The attribute, such as `"of_projection"`.
        methods: tuple of str. The names of methods that must match it.
    """
    owner = next(base for base in type(instance).__mro__ if offer in vars(base))
    return any(getattr(type(instance), name) is not getattr(owner, name) for name in methods)
