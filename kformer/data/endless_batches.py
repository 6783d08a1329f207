"""Views of a dataset: its batches from any step on, and its first epoch.

Several hosts that train together take the rows of the batches of one, each its own share: so the
batches, and with them the training, do not depend on the number of hosts. (With
`ParallelDataset(host=..., num_hosts=...)` they do: each host has batches of its own.)
"""

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


class _View(OneReader):
    """Base class of views.

    Args:
        dataset: `ParallelDataset`; with several hosts its `num_devices` is a multiple of them.
        host: int, default 0. The number of this host, from 0.
        num_hosts: int, default 1.
    """

    def __init__(self, dataset, host=0, num_hosts=1):
        super().__init__()
        self.dataset, self._place = dataset, (host, num_hosts)

    def _own_rows(self, batch):
        host, num_hosts = self._place

        def own(array):
            rows = len(array) // num_hosts
            return array[host * rows : (host + 1) * rows]

        return batch if num_hosts == 1 else keras.tree.map_structure(own, batch)


class EndlessBatches(_View):
    """The batches `ParallelDataset.batch_at(step)`, `batch_at(step + 1)`, ... without end.

    TensorFlow's `fit` reads items 0 and 1 before its first epoch, to find out which dimensions
    vary, and refuses any later batch that varies in another dimension. In mid-epoch the next two
    batches may have the same shape. So until `on_epoch_begin` items 0 and 1 of a view for `fit` are
    padding in the smallest and the largest shape, which differ in every dimension. No training step
    uses them. Packed batches have only one shape.

    Args:
        dataset: `ParallelDataset`.
        step: int of at least 0. The global step of item 0.
        host, num_hosts: ints, default 0 and 1. As of the module.
        is_for_fit: bool, default False. Whether one call of `fit` reads this view, from its begin.
    """

    def __init__(self, dataset, step, host=0, num_hosts=1, is_for_fit=False):
        super().__init__(dataset, host, num_hosts)
        self.step = check_whole("step", step, least=0)
        self._shows_shapes = is_for_fit and not dataset.packed

    def for_fit(self):
        """Returns the same batches for one call of `fit`."""
        return EndlessBatches(self.dataset, self.step, *self._place, is_for_fit=True)

    @property
    def num_batches(self):
        return None

    def __getitem__(self, index):
        if self._shows_shapes and index in (0, 1):
            rows, source_length, target_length = self.dataset.shapes[-index]
            source_ids = np.full((rows, source_length), self.dataset.pad_id, np.int32)
            labels = np.full((rows, target_length), self.dataset.pad_id, np.int32)
            inputs = {"source_ids": source_ids, "target_ids": labels}
            batch = self.dataset.completed(inputs, labels, *np.zeros((2, 0), np.int64))
        else:
            batch = self.dataset.batch_at(self.step + index)
        return self._own_rows(batch)

    def on_epoch_begin(self):
        self._shows_shapes = False


class FirstEpoch(_View):
    """The batches of a `ParallelDataset`'s epoch 0, for an evaluation. Nothing advances it."""

    def __len__(self):
        return self.dataset.steps_per_epoch

    def __getitem__(self, index):
        return self._own_rows(self.dataset.batch_at(index))


class RowsOfHost:
    """A `ParallelDataset` of which this host reads its rows, for `kformer.training.fit_from`.

    Args:
        dataset: `ParallelDataset`.
        host: int. The number of this host, from 0.
        num_hosts: int.
    """

    def __init__(self, dataset, host, num_hosts):
        self._dataset, self._place = dataset, (host, num_hosts)

    def __len__(self):
        return len(self._dataset)

    def from_step(self, step):
        return EndlessBatches(self._dataset, step, *self._place)
