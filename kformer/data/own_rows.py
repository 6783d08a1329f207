"""The rows of each batch that one of several hosts computes."""

import keras

from kformer.data.endless_batches import OneReader


class OwnRows(OneReader):
    """Batches of which this host has its rows: all hosts together have the batches of one.

    So the batches, and with them the training, do not depend on the number of hosts. (With
    `ParallelDataset(host=..., num_hosts=...)` they do: each host has batches of its own.)

    Args:
        batches: `PyDataset` over a `ParallelDataset` whose `num_devices` is a multiple of the
            hosts.
        host: int. The number of this host, from 0.
        num_hosts: int.
    """

    def __init__(self, batches, host, num_hosts):
        super().__init__()
        self._batches, self._host, self._num_hosts = batches, host, num_hosts
        self.dataset = batches.dataset

    @property
    def num_batches(self):
        return self._batches.num_batches

    def for_fit(self):
        """Returns the same rows for one call of `fit`."""
        return OwnRows(self._batches.for_fit(), self._host, self._num_hosts)

    def __getitem__(self, index):
        def own(array):
            rows = len(array) // self._num_hosts
            return array[self._host * rows : (self._host + 1) * rows]

        return keras.tree.map_structure(own, self._batches[index])

    def on_epoch_begin(self):
        self._batches.on_epoch_begin()


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
        return OwnRows(self._dataset.from_step(step), *self._place)
