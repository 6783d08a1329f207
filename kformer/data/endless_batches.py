"""A dataset's batches from any step on."""

import operator

import keras
import numpy as np


class EndlessBatches(keras.utils.PyDataset):
    """The batches `ParallelDataset.batch_at(step)`, `batch_at(step + 1)`, ... without end.

    TensorFlow's `fit` reads items 0 and 1 before it starts, to find out which dimensions vary, and
    refuses any later batch that varies in another dimension. In mid-epoch the next two batches may
    have the same shape. So between the building of Keras's adapter (which reads `workers`) and the
    first `on_epoch_begin`, items 0 and 1 are padding in the smallest and the largest shape, which
    differ in every dimension. No training step uses them. Packed batches have only one shape.

    Args:
        dataset: `ParallelDataset`.
        step: int of at least 0. The global step of item 0.
    """

    def __init__(self, dataset, step):
        super().__init__()
        self.dataset = dataset
        self.step = operator.index(step)
        if self.step < 0:
            raise ValueError(f"The step must not be negative, but it is {self.step}.")
        self._fit_starts = False

    @property
    def num_batches(self):
        return None

    def __getitem__(self, index):
        if self._fit_starts and index in (0, 1) and not self.dataset.packed:
            rows, source_length, target_length = self.dataset.shapes[-index]
            source_ids = np.full((rows, source_length), self.dataset.pad_id, np.int32)
            labels = np.full((rows, target_length), self.dataset.pad_id, np.int32)
            soft_targets = self.dataset._soft_targets
            more = {} if soft_targets is None else soft_targets.empty(labels.shape)
            return {"source_ids": source_ids, "target_ids": labels, **more}, labels
        return self.dataset.batch_at(self.step + index)

    @property
    def workers(self):
        self._fit_starts = True
        return 1

    def on_epoch_begin(self):
        self._fit_starts = False

    def on_epoch_end(self):
        self._fit_starts = False
