"""Loss and metric for models that embed pairs, such as `kformer.models.DualEncoder`."""

import keras
from keras import ops

from kformer.layers.normalization import unit_vectors
from kformer.utils.checks import check_number

# Added to the cosines with rows of padding, which so have no part in a sum of exponentials.
_HIDDEN = -1e9


@keras.saving.register_keras_serializable(package="kformer")
class ContrastiveLoss(keras.losses.Loss):
    """Cross-entropy of each text's partner among all texts of the batch, in both directions.

    The logits are the cosines of the embeddings divided by the temperature. The loss of a pair is
    the mean of two cross-entropies: of its target among all targets, and of its source among all
    sources. The other pairs of the batch are the wrong answers, so larger batches teach more.

    Args:
        temperature: float above 0, default 0.05. Smaller values put more weight on near mistakes.
        name: str, default "contrastive_loss".
        **kwargs: further arguments of `keras.losses.Loss`.

    Call arguments:
        y_true: ignored.
        y_pred: float tensor `[B, 2, K]`. The embeddings of both sides, as
            `kformer.models.DualEncoder` returns them. Zeros are a row of padding, which fills up a
            batch: it is not a wrong answer, its loss is 0, and a mean is that of the other rows.

    Raises:
        ValueError: the temperature is not above 0.

    Example:
    ```python
    loss = kformer.training.ContrastiveLoss()
    embeddings = keras.ops.convert_to_tensor([[[1.0, 0.0]] * 2, [[0.0, 1.0]] * 2])
    float(loss([0, 0], embeddings))  # nearly 0: each source is nearest to its own target
    ```

    References:
        van den Oord et al. 2018, "Representation learning with contrastive predictive coding"
        (InfoNCE). Radford et al. 2021, "Learning transferable visual models from natural language
        supervision", figure 3 (both directions).
    """

    def __init__(self, temperature=0.05, name="contrastive_loss", **kwargs):
        super().__init__(name=name, **kwargs)
        self.temperature = check_number("temperature", temperature, above=0)

    def call(self, y_true, y_pred):
        is_pair = real_pairs(y_pred)
        cosines = pair_cosines(y_pred) / self.temperature
        partners = ops.diagonal(cosines)
        hidden = ops.where(is_pair, 0.0, _HIDDEN)
        targets = ops.logsumexp(cosines + hidden[None, :], axis=1)
        sources = ops.logsumexp(cosines + hidden[:, None], axis=0)
        losses = ops.where(is_pair, 0.5 * (targets + sources) - partners, 0.0)
        if self.reduction in ("sum", "none", None):
            return losses
        # Keras takes the mean over all rows.
        is_pair = ops.cast(is_pair, "float32")
        return losses / ops.maximum(ops.mean(is_pair), keras.config.epsilon())

    def get_config(self):
        return {**super().get_config(), "temperature": self.temperature}


@keras.saving.register_keras_serializable(package="kformer")
class RetrievalAccuracy(keras.metrics.Mean):
    """The share of sources whose own target is the nearest of all targets in the batch.

    Args:
        name: str, default "retrieval_accuracy".
        **kwargs: further arguments of `keras.metrics.Mean`.

    Call arguments:
        y_true: ignored.
        y_pred: float tensor `[B, 2, K]`. The embeddings of both sides. Zeros are a row of padding,
            which is not counted.

    Example:
    ```python
    metric = kformer.training.RetrievalAccuracy()
    metric.update_state([0, 0], keras.ops.convert_to_tensor([[[1.0, 0.0]] * 2, [[0.0, 1.0]] * 2]))
    float(metric.result())  # 1.0
    ```
    """

    def __init__(self, name="retrieval_accuracy", **kwargs):
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true, y_pred, sample_weight=None):
        is_pair = real_pairs(y_pred)
        cosines = ops.where(is_pair[None, :], pair_cosines(y_pred), -2.0)
        # Not with argmax, which would favour the first pair if all embeddings are equal.
        is_best = ops.equal(ops.diagonal(cosines), ops.max(cosines, axis=1))
        is_highest = ops.equal(cosines, ops.max(cosines, axis=1, keepdims=True))
        is_alone = ops.equal(ops.sum(ops.cast(is_highest, "int32"), axis=1), 1)
        weight = ops.cast(is_pair, "float32")
        if sample_weight is not None:
            weight = weight * ops.reshape(ops.cast(sample_weight, "float32"), (-1,))
        super().update_state(ops.cast(ops.logical_and(is_best, is_alone), "float32"), weight)


def pair_cosines(pairs):
    """The cosines of every source with every target: `[B, 2, K]` -> float32 `[B, B]`."""
    pairs = unit_vectors(pairs)
    return ops.matmul(pairs[:, 0], ops.transpose(pairs[:, 1]))


def real_pairs(pairs):
    """Which rows of `[B, 2, K]` are pairs, and not padding: boolean `[B]`."""
    return ops.any(pairs != 0, axis=(1, 2))
