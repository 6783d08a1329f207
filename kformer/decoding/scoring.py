"""The log-probability that a model gives to a target sentence."""

import numpy as np
from keras import ops

from kformer.utils import backend


class Scorer:
    """Scores given targets with one forward pass; the counterpart of a search's `scores`.

    Args:
        model: a `Transformer`.

    Call arguments:
        source_ids: integer array `[B, S]`, padded with `pad_id`.
        labels: integer array `[B, T]`: the target's tokens, its end token, then padding. `lengths`
            tells where it ends.
        lengths: integer array `[B]`, tokens of each target, the end token included.
        prefix_length: int, tokens at the beginning of each target that count nothing, since no
            search may choose them.

    Returns:
        float32 array `[B]`: sums of log-probabilities (natural logarithm), the end token's
        included.
    """

    def __init__(self, model):
        self.model = model
        self._run = backend.compile_function(self._score, model)

    def _score(self, source_ids, target_ids, labels, is_real):
        logits = ops.cast(
            self.model({"source_ids": source_ids, "target_ids": target_ids}, training=False),
            "float32",
        )
        chosen = ops.squeeze(ops.take_along_axis(logits, ops.expand_dims(labels, 2), axis=2), 2)
        # `where`, not a product: what stands at padding may be infinite.
        return ops.sum(ops.where(is_real, chosen - ops.logsumexp(logits, axis=2), 0.0), axis=1)

    def __call__(self, source_ids, labels, lengths, prefix_length=0):
        source_ids, labels = (
            np.asarray(source_ids, dtype="int32"),
            np.asarray(labels, dtype="int32"),
        )
        rows = len(source_ids)
        if not rows:
            return np.zeros(0, dtype="float32")
        if backend.uses_static_shapes():
            pads = [(0, backend.padded_rows(rows) - rows)]
            source_ids, labels = (
                np.pad(
                    ids,
                    [
                        *pads,
                        (
                            0,
                            backend.padded_length(ids.shape[1], self.model.max_length)
                            - ids.shape[1],
                        ),
                    ],
                    constant_values=self.model.pad_id,
                )
                for ids in (source_ids, labels)
            )
            lengths = np.pad(lengths, pads[0])
        places = np.arange(labels.shape[1])
        is_real = (places < np.asarray(lengths)[:, None]) & (places >= prefix_length)
        target_ids = np.concatenate(
            [np.full((len(labels), 1), self.model.start_id, "int32"), labels[:, :-1]], axis=1
        )
        return self._run(source_ids, target_ids, labels, is_real)[:rows]
