"""Metrics whose every real token counts the same, over a batch, an epoch or a test set of any
length.
"""

import keras
from keras import ops

from kformer.training.losses import check_shapes, token_crossentropy, token_weights

_CARRY = 65536.0


class TokenMean(keras.metrics.Metric):
    """Base class: the mean of a value per real token over everything seen since the last reset.

    A plain float32 sum stops growing properly long before 10^8 tokens (at 10^8 neighbouring floats
    are 8 apart). Here a sum is kept as `carries * 65536 + remainder` with the remainder below
    65536: both parts stay exact enough for 10^12 tokens, and a compiler that reorders additions
    cannot spoil it.

    Subclasses give `token_values(labels, logits)`, a float tensor `[B, T]`. Where its sum over the
    real tokens is one of the fields of `kformer.training.losses.TokenSums`, the class attribute
    `token_sum` names it: a training step that has the sums then needs no logits.

    Args:
        name: string.
        pad_id: int, the label to ignore; `None` means 0, or the padding id of the model that is
            compiled with this metric. Negative labels are ignored always.
        dtype: kept for Keras; the computation is in float32.
    """

    token_sum = None

    def __init__(self, name=None, pad_id=None, dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.pad_id = pad_id
        # Two numbers each: the weighted sum of the values, and the sum of the weights.
        self.remainders = self.add_variable((2,), "zeros", dtype="float32", name="remainders")
        self.carries = self.add_variable((2,), "zeros", dtype="float32", name="carries")

    def token_values(self, labels, logits):
        raise NotImplementedError

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds a batch.

        Args:
            y_true: int tensor `[B, T]`, labels.
            y_pred: float tensor `[B, T, V]`, logits.
            sample_weight: `None`, or weights `[B]` (per sentence) or `[B, T]` (per token).
        """
        y_true, y_pred = ops.cast(y_true, "int32"), ops.convert_to_tensor(y_pred)
        check_shapes(y_true, y_pred)
        weights = token_weights(y_true, self.pad_id, sample_weight)
        # Without the stop PyTorch would record these operations for a backward pass that never
        # comes.
        values = ops.cast(self.token_values(y_true, ops.stop_gradient(y_pred)), "float32")
        values = ops.where(ops.not_equal(weights, 0), values, 0.0) * weights
        self._add(ops.sum(values), ops.sum(weights))

    @property
    def needs_logits(self):
        """Whether the value is no field of `TokenSums`, as where a subclass overrides what its base
        class computes.
        """
        if self.token_sum is None or type(self).update_state is not TokenMean.update_state:
            return True
        namer = next(base for base in type(self).__mro__ if "token_sum" in vars(base))
        return type(self).token_values is not namer.token_values

    def update_sums(self, sums):
        """Adds a batch of which only the sums are known.

        Args:
            sums: `kformer.training.losses.TokenSums`.
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

    This is the quantity to monitor: the running `loss` of Keras is smoothed, and weights batches by
    their rows. A label of V or more makes it NaN.

    Args:
        name, pad_id, dtype: see `TokenMean`.

    Example:
        >>> metric = kformer.NegativeLogLikelihood()
        >>> metric.update_state([[5, 2, 0]], keras.ops.zeros((1, 3, 8)))
        >>> float(metric.result())      # log(8)
        2.0794415
    """

    token_sum = "nll"

    def __init__(self, name="nll", pad_id=None, dtype=None):
        super().__init__(name=name, pad_id=pad_id, dtype=dtype)
        self._direction = "down"  # Callbacks that compare values then need no `mode`.

    def token_values(self, labels, logits):
        losses = token_crossentropy(labels, logits)
        return ops.where(ops.less(labels, logits.shape[-1]), losses, float("nan"))


@keras.saving.register_keras_serializable(package="kformer")
class Perplexity(NegativeLogLikelihood):
    """`exp` of the negative log-likelihood per real token.

    The exponential stands outside the mean over all tokens, so batches can be split in any way
    without changing it.

    Args:
        name, pad_id, dtype: see `TokenMean`.

    Example:
        >>> metric = kformer.Perplexity()
        >>> metric.update_state([[5, 2, 0]], keras.ops.zeros((1, 3, 8)))
        >>> float(metric.result())
        8.0
    """

    def __init__(self, name="perplexity", pad_id=None, dtype=None):
        super().__init__(name=name, pad_id=pad_id, dtype=dtype)

    def result(self):
        return ops.exp(super().result())


@keras.saving.register_keras_serializable(package="kformer")
class MaskedAccuracy(TokenMean):
    """The share of the real tokens whose label has the highest logit, given the true tokens before
    it.

    Args:
        name, pad_id, dtype: see `TokenMean`.

    Example:
        >>> metric = kformer.MaskedAccuracy()
        >>> metric.update_state([[1, 2, 0]], keras.ops.one_hot([[1, 1, 1]], 4))
        >>> float(metric.result())
        0.5
    """

    token_sum = "hits"

    def __init__(self, name="accuracy", pad_id=None, dtype=None):
        super().__init__(name=name, pad_id=pad_id, dtype=dtype)
        self._direction = "up"

    def token_values(self, labels, logits):
        # A label that shares the highest logit counts. (A search for the highest index is slow on
        # TensorFlow.)
        inside = ops.expand_dims(ops.clip(labels, 0, logits.shape[-1] - 1), -1)
        return ops.equal(
            ops.take_along_axis(logits, inside, axis=-1)[..., 0], ops.max(logits, axis=-1)
        )


@keras.saving.register_keras_serializable(package="kformer")
class LatestValue(keras.metrics.Metric):
    """The value of the last update, as it was given; nothing is averaged.

    Keras's logs hold running averages over the epoch. A model that puts its loss in here reports
    the loss of each very batch in `logs["batch_loss"]`, which `StepHistory` writes down.

    Args:
        name: string, the key in the logs.
        dtype: kept for Keras; the value is float32.

    Example:
        >>> class Model(keras.Model):
        ...     def __init__(self, *args, **kwargs):
        ...         super().__init__(*args, **kwargs)
        ...         self.batch_loss = kformer.training.LatestValue(name="batch_loss")
        ...     def compute_loss(self, *args, **kwargs):
        ...         loss = super().compute_loss(*args, **kwargs)
        ...         self.batch_loss.update_state(loss)
        ...         return loss
    """

    def __init__(self, name="latest_value", dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.latest = self.add_variable(
            (), "zeros", dtype="float32", aggregation="mean", name="latest"
        )

    def update_state(self, value, sample_weight=None):
        """Takes the place of the value before; a sample weight means nothing here."""
        self.latest.assign(ops.stop_gradient(ops.convert_to_tensor(value, dtype="float32")))

    def result(self):
        # A copy: PyTorch's variables change in place under whoever holds them.
        return ops.copy(self.latest)
