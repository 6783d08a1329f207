"""The views of a `kformer.data.ParallelDataset` that a training and an evaluation read."""

import keras


class EpochCounter(keras.callbacks.Callback):
    """Advances the `epoch` of a dataset when `fit` has trained on all of its batches.

    Args:
        dataset: `ParallelDataset`.
        steps: int. The batches of an epoch of `fit`, which may be fewer than the dataset's.
    """

    def __init__(self, dataset, steps):
        super().__init__()
        self._dataset, self._steps = dataset, steps
        self._num_batches = dataset.epoch * len(dataset)

    def on_epoch_end(self, epoch, logs=None):
        if not self.model.stop_training:  # An epoch that was stopped begins again.
            self._num_batches += self._steps
            self._dataset.set_epoch(self._num_batches // len(self._dataset))


def evaluated(data):
    """Returns the view of a dataset that an evaluation reads, or other data as it is."""
    return data.first_epoch() if hasattr(data, "first_epoch") else data


def trained_on(arguments):
    """Returns arguments of `keras.Model.fit` with views of datasets in place of the datasets.

    Args:
        arguments: dict of the arguments by name, with the data as `x`.

    Raises:
        ValueError: `SwapEMAWeights` comes with a callback that has `swaps_average`.
    """
    data, callbacks = arguments.get("x"), arguments.get("callbacks") or []
    # A CallbackList of Keras has its callbacks in a list of this name.
    callbacks = keras.tree.flatten(getattr(callbacks, "callbacks", callbacks))
    swaps = [each for each in callbacks if getattr(each, "swaps_average", False)]
    if swaps and any(isinstance(each, keras.callbacks.SwapEMAWeights) for each in callbacks):
        raise ValueError(
            f"{type(swaps[0]).__name__} swaps the weights and their moving average by itself, and "
            "SwapEMAWeights would swap them back: leave out SwapEMAWeights."
        )
    arguments = {**arguments, "validation_data": evaluated(arguments.get("validation_data"))}
    if not hasattr(data, "for_fit"):
        return arguments
    arguments.update(x=data.for_fit(), shuffle=False)
    if hasattr(data, "set_epoch"):
        steps = arguments["steps_per_epoch"] = arguments.get("steps_per_epoch") or len(data)
        # First, since a later one may stop the training at the end of an epoch.
        arguments["callbacks"] = [EpochCounter(data, steps), *callbacks]
    return arguments
