"""Layers whose weights do not train: saved with a model, and kept by its copies."""


def frozen_layers(model):
    """The paths of the layers with `trainable=False`, without those inside of such a layer.

    Args:
        model: a built Keras model.

    Returns:
        List of str.
    """
    found = []
    for layer in _layers(model):
        if not layer.trainable and not layer.path.startswith(tuple(f"{path}/" for path in found)):
            found.append(layer.path)
    return found


def frozen_config(model):
    """What a model's `get_config` has of them: nothing where all layers train."""
    frozen = frozen_layers(model)
    return {"frozen_layers": frozen} if frozen else {}


def freeze_layers(model, paths):
    """Sets `trainable=False` for layers.

    Args:
        model: a built Keras model.
        paths: collection of str, as `frozen_layers` returns them.
    """
    for layer in _layers(model):
        if layer.path in paths:
            layer.trainable = False


def _layers(model):
    layers = model._flatten_layers(include_self=False, recursive=True)
    return [layer for layer in layers if layer.path is not None]  # Inputs have none.
