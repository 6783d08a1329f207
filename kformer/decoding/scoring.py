"""The log-probability that a model gives to a target sentence."""

import numpy as np
from keras import ops

from kformer.decoding.batching import pad_shape
from kformer.utils import backend


class Scorer:
    """Scores given targets with one forward pass; the counterpart of a search's `scores`.

    Args:
        model: a `Transformer` or an `Ensemble`.

    Call arguments:
        source_ids: integer array `[B, S]`, padded with `pad_id`.
        labels: integer array `[B, T]`: the target's tokens, its end token, then padding.
        lengths: integer array `[B]`, the tokens of each target, the end token included.
        prefix_length: int, default 0. The tokens at the beginning of each target that do not count,
            since a search does not choose them.

    Returns:
        float32 array `[B]`: sums of log-probabilities (natural logarithm), the end token's
        included.

    Example:
        ```python
        model = kformer.Transformer.from_preset("tiny", vocabulary_size=100)
        scorer = kformer.decoding.Scorer(model)
        labels = np.array([[7, 8, 3], [9, 3, 0]])  # 3 is the end token, 0 padding
        scorer(np.array([[5, 6], [7, 8]]), labels, [3, 2]).shape  # (2,)
        ```
    """

    def __init__(self, model):
        self.model = model
        self._run = backend.compile_function(self._score, model)

    def _score(self, source_ids, target_ids, labels, is_real):
        inputs = {"source_ids": source_ids, "target_ids": target_ids}
        logits = ops.cast(self.model(inputs, training=False), "float32")
        values = ops.squeeze(ops.take_along_axis(logits, ops.expand_dims(labels, 2), axis=2), 2)
        # `where` and not a product, since the value at padding may be infinite.
        return ops.sum(ops.where(is_real, values - ops.logsumexp(logits, axis=2), 0.0), axis=1)

    def __call__(self, source_ids, labels, lengths, prefix_length=0):
        source_ids, labels = (np.asarray(ids, dtype="int32") for ids in (source_ids, labels))
        rows = len(source_ids)
        if not rows:
            return np.zeros(0, dtype="float32")
        if backend.uses_static_shapes():
            source_ids, labels = (pad_shape(ids, self.model) for ids in (source_ids, labels))
            lengths = np.pad(lengths, (0, len(labels) - rows))
        positions = np.arange(labels.shape[1])
        is_real = (positions < np.asarray(lengths)[:, None]) & (positions >= prefix_length)
        starts = np.full((len(labels), 1), self.model.start_id, "int32")
        target_ids = np.concatenate([starts, labels[:, :-1]], axis=1)
        return self._run(source_ids, target_ids, labels, is_real)[:rows]
