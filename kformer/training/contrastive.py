"""Embeddings of pairs that shall find each other."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="kformer")
class ContrastiveLoss(keras.losses.Loss):
    """Cross-entropy of each text's partner among all of the batch, in both directions.

    Each pair counts `(CE(row of sources) + CE(row of targets)) / 2` over the cosines of the
    embeddings divided by the temperature: the other pairs of the batch are the wrong answers, so
    larger batches teach more.

    Args:
        temperature: float; smaller ones weigh near mistakes more.

    Call arguments:
        y_true: of no account; whatever labels the data has.
        y_pred: float tensor `[B, 2, K]`, the embeddings of both sides, as a
            `kformer.models.DualEncoder` gives them.

    References:
        van den Oord et al. 2018, "Representation learning with contrastive predictive coding"
        (InfoNCE). Radford et al. 2021, "Learning transferable visual models from natural language
        supervision", figure 3 (both directions).
    """

    def __init__(self, temperature=0.05, name="contrastive_loss", **kwargs):
        super().__init__(name=name, **kwargs)
        if not temperature > 0:
            raise ValueError(f"The temperature must be above 0, but {temperature} was given.")
        self.temperature = temperature

    def call(self, y_true, y_pred):
        cosines = pair_cosines(y_pred) / self.temperature
        partners = ops.diagonal(cosines)
        return 0.5 * (ops.logsumexp(cosines, axis=1) + ops.logsumexp(cosines, axis=0)) - partners

    def get_config(self):
        return {**super().get_config(), "temperature": self.temperature}


@keras.saving.register_keras_serializable(package="kformer")
class RetrievalAccuracy(keras.metrics.Mean):
    """How many sources of a batch have their own target as the nearest of all targets.

    Call arguments:
        y_true: of no account.
        y_pred: float tensor `[B, 2, K]`.
    """

    def __init__(self, name="retrieval_accuracy", **kwargs):
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true, y_pred, sample_weight=None):
        cosines = pair_cosines(y_pred)
        # Not by argmax: with equal embeddings everywhere it would favour the first pair.
        is_best = ops.equal(ops.diagonal(cosines), ops.max(cosines, axis=1))
        is_alone = ops.equal(
            ops.sum(
                ops.cast(ops.equal(cosines, ops.max(cosines, axis=1, keepdims=True)), "int32"),
                axis=1,
            ),
            1,
        )
        super().update_state(ops.cast(ops.logical_and(is_best, is_alone), "float32"), sample_weight)


def pair_cosines(pairs):
    """Cosines of every source with every target: `[B, 2, K]` -> float32 `[B, B]`."""
    pairs = ops.normalize(ops.cast(pairs, "float32"), axis=-1)
    return ops.matmul(pairs[:, 0], ops.transpose(pairs[:, 1]))
