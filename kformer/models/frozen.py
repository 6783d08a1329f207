"""Frozen layers and weights, which are saved with a model and have the same flags in its copies."""

import keras

from kformer.models.lora import has_adapters

FROZEN_OPTIONS = ("frozen_layers", "trainable_layers")


def frozen_config(model):
    """Returns the `trainable` flags of a model for its `get_config`; empty where all layers train.

    A layer or weight is named only where its flag differs from that of the innermost named layer
    around it. Outside of all named layers every layer and weight trains; with LoRA adapters, every
    layer and the weights of the adapters.

    Args:
        model: a built Keras model.

    Returns:
        Dict of lists of paths, each left out if empty: `frozen_layers` and `trainable_layers`.
    """
    flags = {}
    all_train = not has_adapters(model)
    layers, weights = _layers_and_weights(model)
    expected_flags = [(layer, True) for layer in layers]
    expected_flags += [(weight, all_train or "_lora_" in weight.name) for weight in weights]
    for item, expected in expected_flags:
        outer = [path for path in flags if item.path.startswith(f"{path}/")]
        if outer:
            expected = flags[max(outer, key=len)]
        if item.trainable != expected:
            flags[item.path] = item.trainable
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
    layers, weights = _layers_and_weights(model)
    for item in (*layers, *weights):
        # A layer's flag sets those of all within it, so the outer layers come first.
        if item.path in frozen_layers:
            item.trainable = False
        elif item.path in trainable_layers:
            item.trainable = True


def weight_values(model):
    """Returns copies of the weights that a training changes, a list of NumPy arrays."""
    return [keras.ops.convert_to_numpy(weight).copy() for weight in _changing_weights(model)]


def assign_weights(model, values):
    """Gives a model the weights that `weight_values` returned."""
    for weight, value in zip(_changing_weights(model), values, strict=True):
        weight.assign(value)


def _changing_weights(model):
    """The float weights that train, and statistics such as moving means."""
    frozen = {id(weight) for weight in _layers_and_weights(model)[1] if not weight.trainable}
    return [
        weight
        for weight in model.weights
        if keras.backend.is_float_dtype(weight.dtype) and id(weight) not in frozen
    ]


def _layers_and_weights(model):
    """The layers of a model, outer ones first, and the weights that train unless frozen."""
    layers = model._flatten_layers(include_self=False, recursive=True)
    weights = [weight for layer in layers for weight in layer._trainable_variables]
    return [layer for layer in layers if layer.path is not None], weights  # Inputs have none.
