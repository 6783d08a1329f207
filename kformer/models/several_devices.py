"""What `fit` refuses on several devices."""

import keras

from kformer.utils.backend import devices_in_use


def check_devices(model, datasets):
    """Checks that data and optimizer are fit for the devices of the distribution in use.

    Args:
        model: a compiled Keras model.
        datasets: list of `ParallelDataset`, views of them, or other data, which is not checked.

    Raises:
        ValueError: the batches do not divide by the devices; or TensorFlow would clip or accumulate
            gradients of each device by itself, so that the training would not be that of one
            device.
    """
    strategy = model._distribute_strategy if keras.backend.backend() == "tensorflow" else None
    count = strategy.num_replicas_in_sync if strategy else devices_in_use()
    if count == 1:
        return
    for data in datasets:
        made_for = getattr(getattr(data, "dataset", data), "num_devices", None)
        if made_for is not None and made_for % count:
            raise ValueError(
                f"The batches are made for num_devices={made_for}, but {count} devices share them: "
                f"make the data with num_devices={count}."
            )
    if strategy is None:
        return
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if any(getattr(optimizer, name) for name in ("clipnorm", "global_clipnorm", "clipvalue")):
        raise ValueError(
            f"On TensorFlow Keras clips the gradient of each of the {count} devices by itself, "
            "which changes the result: train without clipping, on one device, or on JAX."
        )
    if optimizer.gradient_accumulation_steps:
        raise ValueError(
            "On TensorFlow Keras cannot accumulate gradients on several devices: train without "
            "accumulation, on one device, or on JAX."
        )
