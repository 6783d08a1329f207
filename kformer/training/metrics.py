"""Metrics in which every real token counts the same, over any number of batches."""

import keras
from keras import ops

from kformer.models.loss_without_logits import SummedMetric
from kformer.training.losses import check_shapes, token_crossentropy, token_weights
from kformer.utils.backend import nan_unless

_CARRY = 65536.0


class TokenMean(SummedMetric, keras.metrics.Metric):
    """Base class: the mean of a value per real token over everything since the last reset.

    A float32 sum stops growing correctly long before 10^8 tokens, where neighbouring floats are 8
    apart. So a sum is kept as `carries * 65536 + remainder`, with a remainder below 65536. Both
    parts stay exact enough for 10^12 tokens, and a compiler that reorders additions does no harm.

    A subclass defines `token_values(labels, logits)`, a float tensor `[B, T]`. If the sum of these
    values is a field of `TokenSums`, it names that field in the class attribute `token_sum`, so
    that a training step needs no logits (see `kformer.models.loss_without_logits`).

    Args:
        name: str or `None`, default `None`.
        pad_id: int or `None`, default `None`. The label to ignore. `None` means the padding id of
            the model that is compiled with this metric, or else 0. Negative labels are always
            ignored.
        dtype: str or `None`, default `None`. Kept for Keras; the computation is in float32.
    """

    def __init__(self, name=None, pad_id=None, dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.pad_id = pad_id
        # Two numbers each: the weighted sum of the values and the sum of the weights.
        self.remainders = self.add_variable((2,), "zeros", dtype="float32", name="remainders")
        self.carries = self.add_variable((2,), "zeros", dtype="float32", name="carries")

    def token_values(self, labels, logits):
        raise NotImplementedError

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds a batch.

        Args:
            y_true: int tensor `[B, T]`. The labels.
            y_pred: float tensor `[B, T, V]`. The logits.
            sample_weight: weights `[B]` (per sentence) or `[B, T]` (per token), or `None`, default
                `None`.
        """
        y_true, y_pred = ops.cast(y_true, "int32"), ops.convert_to_tensor(y_pred)
        check_shapes(y_true, y_pred)
        weights = token_weights(y_true, self.pad_id, sample_weight)
        # Otherwise PyTorch records these operations for a backward pass that never runs.
        values = ops.cast(self.token_values(y_true, ops.stop_gradient(y_pred)), "float32")
        values = ops.where(ops.not_equal(weights, 0), values, 0.0) * weights
        self._add(ops.sum(values), ops.sum(weights))

    def update_sums(self, sums):
        """Adds a batch of which only the sums are known.

        Args:
            sums: `TokenSums`.
        """
        self._add(getattr(sums, self.token_sum), sums.count)

    def _add(self, total, count):
        sums = self.remainders + ops.stack([total, count])
        carried = ops.floor(sums / _CARRY)
        self.remainders.assign(sums - carried * _CARRY)
        self.carries.assign(self.carries + carried)

    def result(self):
        sums = self.carries * _CARRY + self.remainders
        return ops.divide_no_nan(sums[0], sums[1])

    def get_config(self):
        return {**super().get_config(), "pad_id": self.pad_id}


@keras.saving.register_keras_serializable(package="kformer")
class NegativeLogLikelihood(TokenMean):
    """`-log p(label)` per real token, in nats, without label smoothing.

    Monitor this value: the running `loss` of Keras is smoothed, and weights batches by their rows.
    A label of V or more makes it NaN.

    Args:
        name: str, default "nll".
        pad_id: int or `None`, default `None`. The label to ignore. `None` means the padding id of
            the model that is compiled with this metric, or else 0. Negative labels are always
            ignored.
        dtype: str or `None`, default `None`. Kept for Keras; the computation is in float32.

    Example:
    ```python
    metric = kformer.NegativeLogLikelihood()
    metric.update_state([[5, 2, 0]], keras.ops.zeros((1, 3, 8)))
    float(metric.result())  # 2.0794415, which is log(8)
    ```
    """

    token_sum = "nll"

    def __init__(self, name="nll", pad_id=None, dtype=None):
        super().__init__(name=name, pad_id=pad_id, dtype=dtype)
        self._direction = "down"  # Callbacks that compare values need no `mode`.

    def token_values(self, labels, logits):
        losses = token_crossentropy(labels, logits)
        return losses + nan_unless(ops.less(labels, logits.shape[-1]))


@keras.saving.register_keras_serializable(package="kformer")
class Perplexity(NegativeLogLikelihood):
    """`exp` of the negative log-likelihood per real token.

    The exponential is taken of the mean over all tokens, so the split into batches does not matter.

    Args:
        name: str, default "perplexity".
        pad_id: int or `None`, default `None`. The label to ignore. `None` means the padding id of
            the model that is compiled with this metric, or else 0. Negative labels are always
            ignored.
        dtype: str or `None`, default `None`. Kept for Keras; the computation is in float32.

    Example:
    ```python
    metric = kformer.Perplexity()
    metric.update_state([[5, 2, 0]], keras.ops.zeros((1, 3, 8)))
    float(metric.result())  # 8.0
    ```
    """

    def __init__(self, name="perplexity", pad_id=None, dtype=None):
        super().__init__(name=name, pad_id=pad_id, dtype=dtype)

    def result(self):
        return ops.exp(super().result())


@keras.saving.register_keras_serializable(package="kformer")
class MaskedAccuracy(TokenMean):
    """The share of the real tokens whose label has the highest logit.

    A label that shares the highest logit with another class counts as right.

    Args:
        name: str, default "accuracy".
        pad_id: int or `None`, default `None`. The label to ignore. `None` means the padding id of
            the model that is compiled with this metric, or else 0. Negative labels are always
            ignored.
        dtype: str or `None`, default `None`. Kept for Keras; the computation is in float32.

    Example:
    ```python
    metric = kformer.MaskedAccuracy()
    metric.update_state([[1, 2, 0]], keras.ops.one_hot([[1, 1, 1]], 4))
    float(metric.result())  # 0.5
    ```
    """

    token_sum = "hits"

    def __init__(self, name="accuracy", pad_id=None, dtype=None):
        super().__init__(name=name, pad_id=pad_id, dtype=dtype)
        self._direction = "up"

    def token_values(self, labels, logits):
        # Compared by value, since argmax is slow on TensorFlow.
        inside = ops.expand_dims(ops.clip(labels, 0, logits.shape[-1] - 1), -1)
        label_logits = ops.take_along_axis(logits, inside, axis=-1)[..., 0]
        return ops.equal(label_logits, ops.max(logits, axis=-1))


@keras.saving.register_keras_serializable(package="kformer")
class LatestValue(keras.metrics.Metric):
    """The value of the last update, without averaging.

    Keras's logs hold running means over the epoch. A model that updates this metric with its loss
    reports the loss of each batch in `logs["batch_loss"]`, which `StepHistory` writes down.

    Args:
        name: str, default "latest_value". The key in the logs.
        dtype: str or `None`, default `None`. Kept for Keras; the value is float32.

    Example:
    ```python
    class Model(keras.Model):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.batch_loss = kformer.training.LatestValue(name="batch_loss")

        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            self.batch_loss.update_state(loss)
            return loss
    ```
    """

    def __init__(self, name="latest_value", dtype=None):
        super().__init__(name=name, dtype=dtype)
        options = {"dtype": "float32", "aggregation": "mean", "name": "latest"}
        self.latest = self.add_variable((), "zeros", **options)

    def update_state(self, value, sample_weight=None):
        """Replaces the value; `sample_weight` is ignored."""
        self.latest.assign(ops.stop_gradient(ops.convert_to_tensor(value, dtype="float32")))

    def result(self):
        # A copy, since PyTorch changes the variable in place.
        return ops.copy(self.latest)
