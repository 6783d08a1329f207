"""Training on several devices of one machine, by what Keras and its backends have for it."""

import functools

import keras

from kformer.utils.backend import devices_in_use
from kformer.utils.checks import check_whole
from kformer_options.names import named
from kformer_options.training import default_of
from kformer_options.wording import counted

# How a split model's weights lie on its devices, by their whole paths. What is not named (norms,
# biases of outputs, counters) is on each of them.
_LAYOUTS = {
    r".*/embeddings": ("model", None),  # [V, D]
    r".*/(query_key_value|query|key_value)_kernel": (None, "model"),  # [D, heads H]
    r".*/(query_key_value|query|key_value)_bias": ("model",),
    r".*attention/output_kernel": ("model", None),  # [heads H, D]
    r".*/(intermediate|gate)/kernel": (None, "model"),  # [D, inner size]
    r".*/(intermediate|gate)/bias": ("model",),
    r".*feed_forward/output_projection/kernel": ("model", None),
    r"output_projection/kernel": (None, "model"),  # [D, V]
}


def distribution(devices="all", model_parallel=1):
    """A distribution of each batch over several devices, and of the model if it is large.

    With a whole model on each device it is the backend's own: `keras.distribution.DataParallel` on
    JAX, and `tf.distribute.MirroredStrategy` on TensorFlow. Make the model, compile it and call
    `fit` within its `scope()`. The data needs `num_devices`, so that the rows of every batch divide
    by the devices. The losses of a `kformer.Transformer` are then those of one device: every real
    token counts the same, on whichever device it is, and dropout has the same masks.

    A checkpoint does not depend on the number of devices, so a training may go on with another.

    TensorFlow clips and accumulates the gradients of each device by itself, before their sum. So
    `fit` refuses gradient clipping and gradient accumulation there. JAX has both.

    Args:
        devices: int or "all", default "all". The number of devices; "all" means all that the
            backend has, which are the CPU if it has no other.
        model_parallel: int, default 1. The devices that share a model, on JAX; it divides the
            number of devices. Embeddings and projection are split by vocabulary, attention by head
            and feed-forward networks by inner size, each where the size divides. For models that
            one device cannot hold; others train faster whole.

    Returns:
        `keras.distribution.DataParallel` or `ModelParallel`, or `tf.distribute.MirroredStrategy`.

    Raises:
        ValueError: the backend has fewer devices, cannot split a model, or is PyTorch, for which
            Keras has no training on several devices; or the devices are not a multiple of
            `model_parallel`.

    Example:
    ```python
    if keras.backend.backend() != "torch":
        tokenizer = kformer.Tokenizer.train(["train.en", "train.de"], vocabulary_size=400)
        with kformer.training.distribution(1).scope():  # 4 on a machine with four GPUs
            data = kformer.data.ParallelDataset(
                "train.en", "train.de", tokenizer, batch_tokens=512, num_devices=1
            )
            model = kformer.Transformer.from_preset("tiny", tokenizer.vocabulary_size)
            model.compile(**kformer.training.paper_recipe(model))
            model.fit(data.from_step(0), steps_per_epoch=1, verbose=0)
    ```
    """
    if devices != "all":
        check_whole("devices", devices)
    backend = keras.backend.backend()
    if backend == "torch":
        raise ValueError(
            "Keras has no training on several devices with PyTorch yet: choose the backend jax or "
            "tensorflow, or train on one device."
        )
    if backend == "jax":
        names = keras.distribution.list_devices()
    else:
        import tensorflow as tf

        gpus = tf.config.list_logical_devices("GPU")
        names = [device.name for device in gpus or tf.config.list_logical_devices("CPU")]
    count = len(names) if devices == "all" else devices
    if count > len(names):
        raise ValueError(
            f"{counted(count, 'device')} were asked for, but {backend} has "
            f"{counted(len(names), 'device')}: give at most {len(names)}, or 'all'."
        )
    if check_whole("model_parallel", model_parallel) > 1:
        return _split_model(names[:count], model_parallel)
    if backend == "jax":
        return keras.distribution.DataParallel(devices=names[:count], auto_shard_dataset=False)
    return _mirrored(tuple(names[:count]))


def share_texts(devices):
    """Lets all translations of this process share each batch among devices.

    Args:
        devices: int or "all". As for `distribution`.

    Raises:
        ValueError: the backend is not JAX, or has fewer devices.
    """
    if keras.backend.backend() != "jax":
        raise ValueError(
            "A batch of texts is shared among devices on JAX alone: choose the backend jax, or "
            "translate on one device."
        )
    keras.distribution.set_distribution(distribution(devices))


def _split_model(names, parts):
    if keras.backend.backend() != "jax":
        raise ValueError("Keras splits a model over devices on JAX alone: choose the backend jax.")
    if len(names) % parts:
        raise ValueError(
            f"{counted(len(names), 'device')} cannot hold whole models of {parts} devices each: "
            f"give {named('devices')}={len(names) // parts * parts or parts}."
        )
    mesh = keras.distribution.DeviceMesh((len(names) // parts, parts), ("batch", "model"), names)
    layouts = keras.distribution.LayoutMap(mesh)
    for pattern, axes in _LAYOUTS.items():
        layouts[pattern] = keras.distribution.TensorLayout(axes, mesh)
    return _SplitModel(layout_map=layouts, batch_dim_name="batch", auto_shard_dataset=False)


class _SplitModel(keras.distribution.ModelParallel):
    """`ModelParallel` that splits a weight along another axis where the size does not divide."""

    def get_variable_layout(self, variable):
        layout = super().get_variable_layout(variable)
        if "model" not in layout.axes:
            return layout
        parts = self.device_mesh.shape[self.device_mesh.axis_names.index("model")]
        shape = variable.shape
        candidates = (layout.axes.index("model"), *range(len(shape)))
        split = next((axis for axis in candidates if shape[axis] % parts == 0), None)
        axes = ["model" if axis == split else None for axis in range(len(shape))]
        return keras.distribution.TensorLayout(axes, self.device_mesh)


@functools.cache
def _mirrored(names):
    """The strategy of some devices. TensorFlow numbers the sums over devices of a process for each
    strategy anew, and fails where two with one number differ in shape: so a process has one.
    """
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(names)


def check_updates(options):
    """Checks that the devices in use can compute the updates of a training, before the long work.

    Args:
        options: `TrainOptions`.

    Raises:
        ValueError: TensorFlow would clip or accumulate the gradient of each device by itself.
    """
    count = devices_in_use()
    if count == 1 or keras.backend.backend() != "tensorflow":
        return
    if default_of("clip_norm") if options.clip_norm is None else options.clip_norm:
        raise ValueError(
            f"On TensorFlow Keras clips the gradient of each of the {count} devices by itself, "
            f"which changes the result: give {named('clip_norm')}=0, or train on one device or "
            "with the backend jax."
        )
    if (options.accumulate or 1) > 1:
        raise ValueError(
            "On TensorFlow Keras cannot accumulate gradients on several devices: leave "
            f"{named('accumulate')} out, or train on one device or with the backend jax."
        )
