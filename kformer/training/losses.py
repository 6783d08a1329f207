"""Cross-entropy over the real tokens of a batch."""

import keras
from keras import ops

from kformer.models.loss_without_logits import ProjectedLoss, TokenSums
from kformer.training.projected_loss import projected_crossentropy
from kformer.utils.backend import nan_unless, sum_over_replicas
from kformer.utils.checks import check_number

# The default share of soft targets in the target distribution.
TEACHER_WEIGHT = 0.8
# The default weight of guided alignment.
ALIGNMENT_WEIGHT = 0.05
# The least probability whose logarithm guided alignment takes: a masked token has probability 0.
_LEAST_PROBABILITY = 1e-9


def check_shapes(labels, logits):
    """Checks that logits have the shape of the labels with one more axis at the end.

    Args:
        labels: tensor `[B, T]` (or of any rank).
        logits: tensor `[B, T, V]`.

    Raises:
        ValueError: the shapes do not match.
    """
    expected, shape = tuple(labels.shape), tuple(logits.shape)[:-1]
    pairs = zip(expected, shape, strict=False)
    if len(expected) != len(shape) or any(None not in (a, b) and a != b for a, b in pairs):
        raise ValueError(
            f"Labels of shape {expected} need logits of that shape with the vocabulary axis added, "
            f"but the logits have shape {tuple(logits.shape)}."
        )


def token_weights(labels, pad_id=None, sample_weight=None):
    """Returns the weight of each token: 0 for padding, the sample weight (or 1) for a real token.

    Args:
        labels: int tensor `[B, T]`. Padding is `pad_id` or any negative number.
        pad_id: int or `None`, default `None`. `None` means 0.
        sample_weight: tensor `[B]` (one weight per sentence) or `[B, T]`, or `None`, default
            `None`.

    Returns:
        float32 tensor `[B, T]`.
    """
    is_real = ops.not_equal(labels, 0 if pad_id is None else pad_id)
    weights = ops.cast(ops.logical_and(is_real, ops.greater_equal(labels, 0)), "float32")
    if sample_weight is not None:
        sample_weight = ops.convert_to_tensor(sample_weight, dtype="float32")
        if len(sample_weight.shape) > len(labels.shape):
            raise ValueError(
                f"Labels of shape {tuple(labels.shape)} take one sample weight per sentence or "
                f"per token, but the sample weights have shape {tuple(sample_weight.shape)}."
            )
        while len(sample_weight.shape) < len(labels.shape):
            sample_weight = ops.expand_dims(sample_weight, -1)
        weights = weights * sample_weight
    return weights


def token_crossentropy(labels, logits, label_smoothing=0.0):
    """Returns `-sum(q * log_softmax(logits))` of each token; q is the smoothed label.

    q is `1 - label_smoothing + label_smoothing / V` at the label and `label_smoothing / V` at every
    other class. So the loss is `logsumexp(logits) - (1 - label_smoothing) * logits[label] -
    label_smoothing * mean(logits)`, which needs no one-hot tensor.

    The gradient `softmax(logits) - q` is computed in closed form, in one elementwise pass without a
    scatter. It has the same bits in every run, and only the logits are kept for it.

    Args:
        labels: int tensor `[B, T]` (any rank). A label outside `[0, V)` counts as the nearest
            class.
        logits: float tensor `[B, T, V]`.
        label_smoothing: float in `[0, 1)`, default 0.0.

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
            # PyTorch passes the upstream gradient by name, TensorFlow and JAX as the only argument.
            upstream = args[0] if upstream is None else upstream
            is_label = ops.equal(ops.arange(classes, dtype="int32"), labels)
            targets = ops.where(is_label, 1.0 - label_smoothing + uniform, uniform)
            slope = ops.exp(ops.cast(logits, "float32") - log_sums) - ops.cast(targets, "float32")
            return ops.cast(slope * ops.expand_dims(upstream, -1), logits.dtype)

        return ops.squeeze(losses, -1), gradient

    return crossentropy(logits)


def soft_crossentropy(logits, ids, shares):
    """Returns `-sum(q * log_softmax(logits))` of each token, for K given probabilities of q.

    Args:
        logits: float tensor `[B, T, V]` (any rank).
        ids: int tensor `[B, T, K]`. Distinct classes.
        shares: float tensor `[B, T, K]`. Their probabilities in q, at most 1 together; the rest
            of q is spread evenly over all V classes.

    Returns:
        float32 tensor `[B, T]`.
    """
    logits, shares = ops.cast(logits, "float32"), ops.cast(shares, "float32")
    class_logits = ops.take_along_axis(logits, ops.cast(ids, "int32"), axis=-1)
    class_sums = ops.sum(shares * class_logits, axis=-1)
    uniform = 1.0 - ops.sum(shares, axis=-1)
    return ops.logsumexp(logits, axis=-1) - class_sums - uniform * ops.mean(logits, axis=-1)


@keras.saving.register_keras_serializable(package="kformer")
class MaskedCrossentropy(ProjectedLoss, keras.losses.Loss):
    """Cross-entropy with label smoothing: the mean over the real tokens of the batch.

    A token is real if its label is neither `pad_id` nor negative. Each real token counts the same,
    whatever the length of its sentence: the loss is `sum(weight * loss) / sum(weight)` over tokens,
    and 0 for a batch without real tokens. Only the labels decide which tokens are real. An implicit
    Keras mask on the logits is ignored, since it comes from the target inputs, where the start
    token may be the padding token.

    Keras's running mean of the loss over an epoch weights batches by rows. The metrics `nll`,
    `perplexity` and `accuracy` of this package weight them by tokens.

    A label of V or more is an error in the data. A compiled step cannot raise, so the loss of such
    a batch is NaN on every backend. `fit` of this package's models refuses such labels in arrays
    before it begins.

    Args:
        label_smoothing: float in `[0, 1)`, default 0.0. The share of the target distribution that
            is spread evenly over all V classes.
        pad_id: int or `None`, default `None`. The label to ignore. `None` means the padding id of
            the model that is compiled with this loss, or else 0.
        consistency: float, default 0.0. The weight alpha of R-Drop; its authors use 5 for
            translation. `Transformer.fit` then runs every batch twice with different dropout, and
            pulls the two distributions of each token together: the loss of a token is the mean of
            its two cross-entropies plus `alpha / 2` times the mean of the two Kullback-Leibler
            divergences. Evaluation does not use it. Nor does a direct call of the loss, as in a
            model of your own. In a loop of your own, double the rows before `model.compute_loss`.
        teacher_weight: float in `[0, 1]`, default 0.8. The share of the target distribution that
            comes from soft targets in training, if a batch has them (see
            `kformer.distillation.soft_targets`). The target of a token is `teacher_weight` times
            the teachers' distribution plus `1 - teacher_weight` times the smoothed label.
            Evaluation uses labels only.
        alignment_weight: float of at least 0, default 0.05. The weight of guided alignment in
            training, if a batch has alignments (see `kformer.data.TokenAlignments`): the loss
            grows by this weight times `of_alignment`.
        name: str, default "masked_crossentropy".

    Call arguments:
        y_true: int tensor `[B, T]`. The labels.
        y_pred: float tensor `[B, T, V]`. The logits; the computation is in float32.
        sample_weight: weights `[B]` (per sentence) or `[B, T]` (per token), or `None`, default
            `None`.

    Returns:
        float32 scalar.

    Raises:
        ValueError: `label_smoothing`, `consistency`, `teacher_weight` or `alignment_weight` is out
            of range, or the shapes do not match.

    Example:
    ```python
    loss = kformer.MaskedCrossentropy(label_smoothing=0.1, pad_id=0)
    labels = [[5, 2, 0]]  # two real tokens, one of padding
    float(loss(labels, keras.ops.zeros((1, 3, 8))))  # 2.0794415, which is log(8)
    ```

    References:
        Szegedy et al. 2016, "Rethinking the Inception architecture", section 7 (label smoothing).
        Vaswani et al. 2017, "Attention is all you need", section 5.4 (0.1).
        Liang et al. 2021, "R-Drop: Regularized Dropout for Neural Networks".
        Kim and Rush 2016, "Sequence-level knowledge distillation", section 3.1 (soft targets).
        Garg et al. 2019, "Jointly learning to align and translate with Transformer models",
        sections 4.1 and 5.2 (guided alignment, 0.05).
    """

    def __init__(
        self,
        label_smoothing=0.0,
        pad_id=None,
        consistency=0.0,
        teacher_weight=TEACHER_WEIGHT,
        alignment_weight=ALIGNMENT_WEIGHT,
        name="masked_crossentropy",
    ):
        # `__call__` takes the mean over tokens: no reduction of Keras is that mean for all weights.
        super().__init__(name=name, reduction=None, dtype="float32")
        self.label_smoothing = check_number("label_smoothing", label_smoothing, at_least=0, below=1)
        self.consistency = check_number("consistency", consistency, at_least=0)
        self.teacher_weight = check_number("teacher_weight", teacher_weight, at_least=0, at_most=1)
        self.alignment_weight = check_number("alignment_weight", alignment_weight, at_least=0)
        self.pad_id = pad_id

    def call(self, y_true, y_pred):
        """Returns the loss of each token, float32 `[B, T]`, padding included."""
        losses = token_crossentropy(y_true, y_pred, self.label_smoothing)
        return losses + nan_unless(ops.less(y_true, y_pred.shape[-1]))

    def __call__(self, y_true, y_pred, sample_weight=None):
        y_true, y_pred = ops.cast(y_true, "int32"), ops.convert_to_tensor(y_pred)
        check_shapes(y_true, y_pred)
        weights = token_weights(y_true, self.pad_id, sample_weight)
        return self._token_mean(self.call(y_true, y_pred), weights)

    def _token_mean(self, values, weights):
        values = ops.where(ops.not_equal(weights, 0), values, 0.0)
        return self._mean(ops.sum(values * weights), ops.sum(weights))

    def in_training(self, y_true, y_pred, sample_weight=None, soft_targets=None):
        """Returns the loss of a batch in training, with `consistency` and soft targets.

        Args:
            y_true: int tensor `[B, T]`. The labels. With `consistency` the second half of the rows
                repeats the first half.
            y_pred: float tensor `[B, T, V]`. The logits; with `consistency` those of two passes.
            sample_weight: as for a call.
            soft_targets: pair of tensors `[B, T, K]` or `None`, default `None`. The ids and
                probabilities of `kformer.data.SoftTargets`.

        Returns:
            float32 scalar.
        """
        y_true = ops.cast(y_true, "int32")
        weights = token_weights(y_true, self.pad_id, sample_weight)
        if soft_targets is None:
            loss = self(y_true, y_pred, sample_weight)
        else:
            losses = soft_crossentropy(y_pred, *self._target_distribution(soft_targets))
            losses = losses + nan_unless(ops.less(y_true, y_pred.shape[-1]))
            loss = self._token_mean(losses, weights)
        if not self.consistency:
            return loss
        first, second = ops.split(ops.log_softmax(ops.cast(y_pred, "float32"), axis=-1), 2)
        divergences = 0.5 * ops.sum((ops.exp(first) - ops.exp(second)) * (first - second), axis=-1)
        return loss + self.consistency / 2 * self._token_mean(divergences, ops.split(weights, 2)[0])

    def _target_distribution(self, soft_targets):
        """Returns the classes of the target distribution and their probabilities.

        Each class has the teachers' probability times `teacher_weight`. The first class is the
        label, which has the share of the smoothed label, too.
        """
        ids, probabilities = soft_targets
        shares = self.teacher_weight * ops.cast(probabilities, "float32")
        label_share = (1.0 - self.teacher_weight) * (1.0 - self.label_smoothing)
        return ids, ops.concatenate([shares[..., :1] + label_share, shares[..., 1:]], axis=-1)

    def of_projection(self, y_true, hidden, table, training=True, soft_targets=None):
        """Returns the loss of the logits `hidden @ table.T` without computing these logits.

        See `kformer.models.loss_without_logits`.

        Args:
            y_true: int tensor `[B, T]`. The labels.
            hidden: float tensor `[B, T, D]`. The hidden states before the projection.
            table: float tensor `[V, D]`. The projection.
            training: bool, default True. Whether the loss has a gradient. If it has, and with
                `consistency`, the rows are those of `in_training`.
            soft_targets: as for `in_training`.

        Returns:
            float32 scalar, and `TokenSums`.
        """
        y_true = ops.cast(y_true, "int32")
        if tuple(hidden.shape)[-1] != table.shape[1]:
            raise ValueError(
                f"Vectors of size {hidden.shape[-1]} cannot be projected by a table of shape "
                f"{tuple(table.shape)}."
            )
        check_shapes(y_true, hidden)
        weights = token_weights(y_true, self.pad_id)
        is_class = ops.less(y_true, table.shape[0])
        consistency = self.consistency if training else 0.0
        soft_targets = None if soft_targets is None else self._target_distribution(soft_targets)
        options = {"consistency": consistency, "soft_targets": soft_targets}
        options |= {"label_smoothing": self.label_smoothing, "training": training}
        sums = projected_crossentropy(hidden, table, y_true, weights, **options)
        is_valid = ops.all(ops.logical_or(is_class, ops.equal(weights, 0)))
        sums, count = sums + nan_unless(is_valid), ops.sum(weights)
        values = ops.stop_gradient(sums)
        return self._mean(sums[0], count), TokenSums(values[1], values[2], ops.stop_gradient(count))

    def of_alignment(self, attention, alignment):
        """Returns the cross-entropy of a head's attention with the aligned source tokens.

        Args:
            attention: float tensor `[B, T, S]`. Probabilities over the source tokens.
            alignment: float tensor `[B, T, S]`. For each target token a row that sums to 1, or to 0
                if it is aligned with no source token; then it does not count.

        Returns:
            float32 scalar. The mean over the aligned target tokens; 0 if there are none.
        """
        alignment = ops.cast(alignment, "float32")
        logs = ops.log(ops.maximum(ops.cast(attention, "float32"), _LEAST_PROBABILITY))
        return self._mean(-ops.sum(alignment * logs), ops.sum(alignment))

    def _mean(self, total, count):
        # Replicas have different numbers of real tokens, so a mean of their means would weight
        # tokens differently. TensorFlow adds the replicas' gradients, so each replica divides by
        # the count of all.
        return ops.divide_no_nan(total, sum_over_replicas(count))

    def get_config(self):
        names = "label_smoothing pad_id consistency teacher_weight alignment_weight name"
        return {name: getattr(self, name) for name in names.split()}
