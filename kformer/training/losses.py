"""Cross-entropy over the real tokens of a batch."""

from typing import Any, NamedTuple

import keras
from keras import ops

from kformer.training.projected_loss import projected_crossentropy
from kformer.utils.checks import check_rate

# How far soft targets replace labels, unless something else is said.
TEACHER_WEIGHT = 0.8


def check_shapes(labels, logits):
    """Refuses labels and logits that cannot belong together.

    Args:
        labels: tensor `[B, T]` (or of any rank).
        logits: tensor of the labels' shape with the vocabulary axis behind it, `[B, T, V]`.

    Raises:
        ValueError: the logits' shape is not the labels' shape with one axis more.
    """
    expected, found = tuple(labels.shape), tuple(logits.shape)[:-1]
    pairs = zip(expected, found, strict=False)
    if len(expected) != len(found) or any(None not in (a, b) and a != b for a, b in pairs):
        raise ValueError(
            f"Labels of shape {expected} need logits of that shape with the vocabulary axis added, but the logits have "
            f"shape {tuple(logits.shape)}."
        )


def token_weights(labels, pad_id=None, sample_weight=None):
    """What each token counts: 0 for padding, the sample weight (or 1) for a real token.

    Args:
        labels: int tensor `[B, T]`; padding is `pad_id` or any negative number.
        pad_id: int; `None` means 0.
        sample_weight: `None`, or a tensor `[B]` (one weight per sentence) or `[B, T]`.

    Returns:
        float32 tensor `[B, T]`.
    """
    real = ops.logical_and(
        ops.not_equal(labels, 0 if pad_id is None else pad_id), ops.greater_equal(labels, 0)
    )
    weights = ops.cast(real, "float32")
    if sample_weight is not None:
        sample_weight = ops.convert_to_tensor(sample_weight, dtype="float32")
        if len(sample_weight.shape) > len(labels.shape):
            raise ValueError(
                f"Labels of shape {tuple(labels.shape)} take one sample weight per sentence or per token, but the "
                f"sample weights have shape {tuple(sample_weight.shape)}."
            )
        while len(sample_weight.shape) < len(labels.shape):
            sample_weight = ops.expand_dims(sample_weight, -1)
        weights = weights * sample_weight
    return weights


def token_crossentropy(labels, logits, label_smoothing=0.0):
    """`-sum(q * log_softmax(logits))` of each token, with q the smoothed label.

    The label has `1 - label_smoothing + label_smoothing / V` of q, every other class
    `label_smoothing / V`. Written out, that is `logsumexp(logits) - (1 - label_smoothing) *
    logits[label] - label_smoothing * mean(logits)`: no one-hot tensor is multiplied by anything.
    The gradient `softmax(logits) - q` is given in closed form: one elementwise pass without a
    scatter, hence the same bits in every run on every device, and nothing but the logits is kept
    for it.

    Args:
        labels: int tensor `[B, T]` (any rank). The value at a label outside `[0, V)` is that of the
            nearest class.
        logits: float tensor `[B, T, V]`, of any float dtype.
        label_smoothing: float in `[0, 1)`.

    Returns:
        float32 tensor `[B, T]`.
    """
    classes = logits.shape[-1]
    uniform = label_smoothing / classes
    labels = ops.expand_dims(ops.clip(ops.cast(labels, "int32"), 0, classes - 1), -1)

    @ops.custom_gradient
    def crossentropy(logits):
        values = ops.cast(logits, "float32")
        log_sums = ops.logsumexp(values, axis=-1, keepdims=True)
        losses = log_sums - (1.0 - label_smoothing) * ops.take_along_axis(values, labels, axis=-1)
        if label_smoothing:
            losses = losses - label_smoothing * ops.mean(values, axis=-1, keepdims=True)

        def gradient(*args, upstream=None):
            # PyTorch hands the upstream gradient by name (behind the inputs), TensorFlow and JAX as
            # the one argument.
            upstream = args[0] if upstream is None else upstream
            is_label = ops.equal(ops.arange(classes, dtype="int32"), labels)
            targets = ops.where(is_label, 1.0 - label_smoothing + uniform, uniform)
            slope = ops.exp(ops.cast(logits, "float32") - log_sums) - ops.cast(targets, "float32")
            return ops.cast(slope * ops.expand_dims(upstream, -1), logits.dtype)

        return ops.squeeze(losses, -1), gradient

    return crossentropy(logits)


def soft_crossentropy(logits, ids, shares):
    """`-sum(q * log_softmax(logits))` of each token, with q a distribution of a few classes and the
    same for all others.

    Args:
        logits: float tensor `[B, T, V]` (any rank).
        ids: int tensor `[B, T, K]`, distinct classes.
        shares: float tensor `[B, T, K]`, what of q falls to each of them, in all at most 1; what is
            left is spread over all V.

    Returns:
        float32 tensor `[B, T]`.
    """
    logits, shares = ops.cast(logits, "float32"), ops.cast(shares, "float32")
    named = ops.sum(shares * ops.take_along_axis(logits, ops.cast(ids, "int32"), axis=-1), axis=-1)
    rest = 1.0 - ops.sum(shares, axis=-1)
    return ops.logsumexp(logits, axis=-1) - named - rest * ops.mean(logits, axis=-1)


class TokenSums(NamedTuple):
    """Sums over the real tokens of a batch, float32 scalars."""

    nll: Any  # negative log-likelihood, in nats
    hits: Any  # tokens whose label has the highest logit
    count: Any  # tokens


class _ReplicaMean(keras.losses.Loss):
    """A value that is a mean already, divided by the number of replicas under `tf.distribute` as
    Keras's losses are.
    """

    def call(self, y_true, y_pred):
        return y_pred


@keras.saving.register_keras_serializable(package="kformer")
class MaskedCrossentropy(keras.losses.Loss):
    """Cross-entropy with label smoothing: the mean over the real tokens of the batch.

    A token is real when its label is neither `pad_id` nor negative. Each real token counts the
    same, whatever the length of its sentence: the loss is `sum(weight * loss) / sum(weight)` over
    tokens, and 0 for a batch without real tokens. The labels alone decide: an implicit Keras mask
    on the logits comes from the target inputs, where the start token may be the padding token, and
    is not looked at. (Keras's running average of the loss over an epoch weights batches by rows;
    the metrics `nll`, `perplexity` and `accuracy` of this package weight them by tokens.)

    A label of `V` or more is an error in the data. A compiled step cannot raise, so such a batch's
    loss is NaN, on every backend, and does not pass for a good one.

    Args:
        label_smoothing: float in `[0, 1)`, the share of the target distribution that is spread
            evenly over all V classes.
        pad_id: int, the label to ignore. `None` means 0, or the padding id of the model that is
            compiled with this loss.
        consistency: float, the weight alpha of R-Drop; 5 is its authors' for translation.
            `Transformer.fit` then runs every batch twice, with another dropout each time, and draws
            the two distributions of each token together. The loss of one token is the mean of its
            two cross-entropies and `alpha / 2` times the mean of the two Kullback-Leibler
            divergences. Evaluation has no part of it.
        teacher_weight: float in `[0, 1]`, how far soft targets replace the labels in training,
            where a batch has them (see `kformer.distillation.soft_targets`): the target of a token
            is `teacher_weight` times the teachers' distribution and `1 - teacher_weight` times the
            smoothed label. Evaluation knows labels alone.
        name: string.

    Call arguments:
        y_true: int tensor `[B, T]`, labels.
        y_pred: float tensor `[B, T, V]`, logits of any float dtype; the computation is in float32.
        sample_weight: `None`, or weights `[B]` (per sentence) or `[B, T]` (per token).

    Returns:
        float32 scalar.

    Raises:
        ValueError: `label_smoothing` lies outside `[0, 1)`, `consistency` is negative, or the
            shapes do not belong together.

    Example:
        >>> loss = kformer.MaskedCrossentropy(label_smoothing=0.1, pad_id=0)
        >>> labels = [[5, 2, 0]]                                # two real tokens, one of padding
        >>> float(loss(labels, keras.ops.zeros((1, 3, 8))))     # log(8)
        2.0794415

    References:
        Szegedy et al. 2016, "Rethinking the Inception architecture", section 7 (label smoothing).
        Vaswani et al. 2017, "Attention is all you need", section 5.4 (0.1).
        Liang et al. 2021, "R-Drop: Regularized Dropout for Neural Networks".
        Kim and Rush 2016, "Sequence-level knowledge distillation", section 3.1 (soft targets).
    """

    def __init__(
        self,
        label_smoothing=0.0,
        pad_id=None,
        consistency=0.0,
        teacher_weight=TEACHER_WEIGHT,
        name="masked_crossentropy",
    ):
        # Of Keras's reductions none gives the token mean under every kind of weight: `__call__`
        # reduces.
        super().__init__(name=name, reduction=None, dtype="float32")
        check_rate("label_smoothing", label_smoothing)
        if not 0 <= consistency < float("inf"):
            raise ValueError(f"consistency must be at least 0, but {consistency} was given.")
        if not 0 <= teacher_weight <= 1:
            raise ValueError(f"teacher_weight must lie in [0, 1], but {teacher_weight} was given.")
        self.label_smoothing = float(label_smoothing)
        self.consistency = float(consistency)
        self.teacher_weight = float(teacher_weight)
        self.pad_id = pad_id
        self._replica_mean = _ReplicaMean(name="replica_mean", dtype="float32")

    @property
    def needs_logits(self):
        """Whether a subclass computes something else, so that `of_projection` is not its loss."""
        return (
            type(self).call is not MaskedCrossentropy.call
            or type(self).__call__ is not MaskedCrossentropy.__call__
        )

    def call(self, y_true, y_pred):
        """The loss of each token, float32 `[B, T]`; padding is not yet taken out."""
        losses = token_crossentropy(y_true, y_pred, self.label_smoothing)
        return ops.where(ops.less(y_true, y_pred.shape[-1]), losses, float("nan"))

    def __call__(self, y_true, y_pred, sample_weight=None):
        y_true, y_pred = ops.cast(y_true, "int32"), ops.convert_to_tensor(y_pred)
        check_shapes(y_true, y_pred)
        return self._of_tokens(y_true, self.call(y_true, y_pred), sample_weight)

    def _of_tokens(self, y_true, losses, sample_weight):
        weights = token_weights(y_true, self.pad_id, sample_weight)
        losses = ops.where(ops.not_equal(weights, 0), losses, 0.0)
        return self._mean(ops.sum(losses * weights), ops.sum(weights))

    def in_training(self, y_true, y_pred, sample_weight=None, soft_targets=None):
        """The loss in training with `consistency`, or of a batch with soft targets.

        Args:
            y_true: int tensor `[B, T]`, labels; with `consistency` the second half of the rows is
                the first once more.
            y_pred: float tensor `[B, T, V]`, logits; with `consistency` those of two passes.
            sample_weight: as for a call.
            soft_targets: `None`, or the ids and probabilities `[B, T, K]` that a batch has of
                `kformer.data.SoftTargets`.

        Returns:
            float32 scalar.
        """
        y_true = ops.cast(y_true, "int32")
        if soft_targets is None:
            loss = self(y_true, y_pred, sample_weight)
        else:
            losses = soft_crossentropy(y_pred, *self._mixed(soft_targets))
            known = ops.less(y_true, y_pred.shape[-1])
            loss = self._of_tokens(y_true, ops.where(known, losses, float("nan")), sample_weight)
        if not self.consistency:
            return loss
        first, second = ops.split(ops.log_softmax(ops.cast(y_pred, "float32"), axis=-1), 2)
        divergences = 0.5 * ops.sum((ops.exp(first) - ops.exp(second)) * (first - second), axis=-1)
        weights = ops.split(
            token_weights(ops.cast(y_true, "int32"), self.pad_id, sample_weight), 2
        )[0]
        divergences = ops.where(ops.not_equal(weights, 0), divergences, 0.0)
        drawn = self._mean(ops.sum(divergences * weights), ops.sum(weights))
        return loss + self.consistency / 2 * drawn

    def _mixed(self, soft_targets):
        """Classes, and what of a token's target falls to each: the teachers' share and, for the
        first, the smoothed label's.
        """
        ids, probabilities = soft_targets
        probabilities = self.teacher_weight * ops.cast(probabilities, "float32")
        own = (1.0 - self.teacher_weight) * (1.0 - self.label_smoothing)
        return ids, ops.concatenate([probabilities[..., :1] + own, probabilities[..., 1:]], axis=-1)

    def of_projection(self, y_true, hidden, table, training=True, soft_targets=None):
        """The same loss of logits `hidden @ table.T`, which are never kept; and what metrics want
        to know of them.

        Args:
            y_true: int tensor `[B, T]`, labels.
            hidden: float tensor `[B, T, D]`, what would be projected to the vocabulary.
            table: float tensor `[V, D]`, the projection.
            training: bool; without it the loss has no gradient. With `consistency` the rows are
                then those of `in_training`.
            soft_targets: as for `in_training`.

        Returns:
            float32 scalar, and `TokenSums`.
        """
        y_true = ops.cast(y_true, "int32")
        if tuple(hidden.shape)[-1] != table.shape[1]:
            raise ValueError(
                f"Vectors of size {hidden.shape[-1]} cannot be projected by a table of shape {tuple(table.shape)}."
            )
        check_shapes(y_true, hidden)
        weights = token_weights(y_true, self.pad_id)
        known = ops.less(y_true, table.shape[0])
        consistency = self.consistency if training else 0.0
        soft_targets = None if soft_targets is None else self._mixed(soft_targets)
        options = {"consistency": consistency, "soft_targets": soft_targets}
        sums = projected_crossentropy(
            hidden, table, y_true, weights, self.label_smoothing, training, **options
        )
        sums = ops.where(ops.all(ops.logical_or(known, ops.equal(weights, 0))), sums, float("nan"))
        count = ops.sum(weights)
        told = ops.stop_gradient(sums)
        return self._mean(sums[0], count), TokenSums(told[1], told[2], ops.stop_gradient(count))

    def _mean(self, total, count):
        mean = ops.reshape(ops.divide_no_nan(total, count), (1,))
        return self._replica_mean(mean, mean)

    def get_config(self):
        config = {
            "label_smoothing": self.label_smoothing,
            "pad_id": self.pad_id,
            "consistency": self.consistency,
            "name": self.name,
        }
        # An option that came later stands in a file only where it is in use, so that older versions
        # read what they can.
        return (
            config
            if self.teacher_weight == TEACHER_WEIGHT
            else {**config, "teacher_weight": self.teacher_weight}
        )
