"""What does not train: saved with a model, and kept by its copies."""

import keras

from kformer.models.lora import has_adapters

FROZEN_OPTIONS = ("frozen_layers", "trainable_layers")


def frozen_config(model):
    """What a model's `get_config` has of its `trainable` flags: nothing where all layers train.

    A layer or weight is named only where its flag differs from that of the innermost named layer
    around it. Around all of them everything trains; with LoRA adapters, of the weights these alone.

    Args:
        model: a built Keras model.

    Returns:
        Dict of lists of paths, each left out if empty: `frozen_layers` and `trainable_layers`.
    """
    flags = {}
    all_train = not has_adapters(model)
    layers, weights = _parts(model)
    parts = [(layer, True) for layer in layers]
    parts += [(weight, all_train or "_lora_" in weight.name) for weight in weights]
    for part, expected in parts:
        around = [path for path in flags if part.path.startswith(f"{path}/")]
        if around:
            expected = flags[max(around, key=len)]
        if part.trainable != expected:
            flags[part.path] = part.trainable
    config = {
        name: [path for path, trains in flags.items() if trains == value]
        for name, value in zip(FROZEN_OPTIONS, (False, True), strict=True)
    }
    return {name: paths for name, paths in config.items() if paths}


def freeze_layers(model, frozen_layers=(), trainable_layers=()):
    """Sets the `trainable` flags of layers and weights.

    Args:
        model: a built Keras model.
        frozen_layers: collection of str, default empty. As `frozen_config` returns them.
        trainable_layers: collection of str, default empty. As `frozen_config` returns them.
    """
    layers, weights = _parts(model)
    for part in (*layers, *weights):
        # A layer's flag sets those of all within it, so the outer layers come first.
        if part.path in frozen_layers:
            part.trainable = False
        elif part.path in trainable_layers:
            part.trainable = True


def changing_weights(model):
    """The weights that a training changes: those that train, and statistics such as moving means.

    Args:
        model: a built Keras model.

    Returns:
        List of variables with float values.
    """
    frozen = {id(weight) for weight in _parts(model)[1] if not weight.trainable}
    return [
        weight
        for weight in model.weights
        if keras.backend.is_float_dtype(weight.dtype) and id(weight) not in frozen
    ]


def _parts(model):
    """The layers of a model, outer ones first, and the weights that train unless frozen."""
    layers = model._flatten_layers(include_self=False, recursive=True)
    weights = [weight for layer in layers for weight in layer._trainable_variables]
    return [layer for layer in layers if layer.path is not None], weights  # Inputs have none.
