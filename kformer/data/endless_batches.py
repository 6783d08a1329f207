"""Views of a dataset: its batches from any step on, and its first epoch."""

import keras
import numpy as np

from kformer.utils.checks import check_whole, shown


class OneReader(keras.utils.PyDataset):
    """Base class of datasets that one thread reads."""

    @property
    def workers(self):
        return 1

    @workers.setter
    def workers(self, workers):
        if workers != 1:
            raise ValueError(
                "One thread reads the batches, in their order, so that a training can be "
                f"continued at any of them: leave workers at 1, not {shown(workers)}."
            )


class EndlessBatches(OneReader):
    """The batches `ParallelDataset.batch_at(step)`, `batch_at(step + 1)`, ... without end.

    TensorFlow's `fit` reads items 0 and 1 before its first epoch, to find out which dimensions
    vary, and refuses any later batch that varies in another dimension. In mid-epoch the next two
    batches may have the same shape. So until `on_epoch_begin` items 0 and 1 of a view for `fit` are
    padding in the smallest and the largest shape, which differ in every dimension. No training step
    uses them. Packed batches have only one shape.

    Args:
        dataset: `ParallelDataset`.
        step: int of at least 0. The global step of item 0.
        is_for_fit: bool, default False. Whether one call of `fit` reads this view, from its begin.
    """

    def __init__(self, dataset, step, is_for_fit=False):
        super().__init__()
        self.dataset = dataset
        self.step = check_whole("step", step, least=0)
        self._shows_shapes = is_for_fit and not dataset.packed

    def for_fit(self):
        """Returns the same batches for one call of `fit`."""
        return EndlessBatches(self.dataset, self.step, is_for_fit=True)

    @property
    def num_batches(self):
        return None

    def __getitem__(self, index):
        if self._shows_shapes and index in (0, 1):
            rows, source_length, target_length = self.dataset.shapes[-index]
            source_ids = np.full((rows, source_length), self.dataset.pad_id, np.int32)
            labels = np.full((rows, target_length), self.dataset.pad_id, np.int32)
            inputs = {"source_ids": source_ids, "target_ids": labels}
            return self.dataset.completed(inputs, labels, *np.zeros((2, 0), np.int64))
        return self.dataset.batch_at(self.step + index)

    def on_epoch_begin(self):
        self._shows_shapes = False


class FirstEpoch(keras.utils.PyDataset):
    """The batches of a `ParallelDataset`'s epoch 0, for an evaluation. Nothing advances it.

    Args:
        dataset: `ParallelDataset`.
    """

    def __init__(self, dataset):
        super().__init__()
        self.dataset = dataset

    def __len__(self):
        return self.dataset.steps_per_epoch

    def __getitem__(self, index):
        return self.dataset.batch_at(index)
