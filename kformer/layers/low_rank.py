"""Low-rank adapters (LoRA) of the kernels within a layer."""

import keras
from keras import ops

from kformer.layers.initializers import seeded
from kformer.layers.shapes import linear


def add_adapter(layer, name, kernel, rank, alpha):
    """Adds the matrices A `[D, R]` and B `[R, K]` of a kernel W `[D, K]` to a built layer.

    A is random and B zero, so the layer's outputs stay the same until B is trained. Both are
    float32, whatever the layer's policy. `keras.layers.Dense.enable_lora` is not used, since it
    saves the sum `W + A B` alone: a training could not be resumed from that exactly.

    Args:
        layer: `keras.layers.Layer` with the attributes `seed` and `adapters`, a dict that receives
            A and B; it calls `adapted`.
        name: str. The name of the linear map within the layer.
        kernel: Keras variable `[D, K]`.
        rank: int. R.
        alpha: float. The factor of the product is `alpha / rank`.
    """
    initializer = seeded(keras.initializers.HeUniform(), layer.seed, f"lora/{name}")
    layer._tracker.unlock()  # As Keras's own layers do.
    layer.adapters[name] = [
        layer.add_weight(shape=shape, initializer=initial, dtype="float32", name=label)
        for label, shape, initial in (
            (f"{name}_lora_a", (kernel.shape[0], rank), initializer),
            (f"{name}_lora_b", (rank, kernel.shape[1]), "zeros"),
        )
    ]
    layer.lora_scale = alpha / rank
    layer._tracker.lock()


def adapted(layer, name, inputs, outputs):
    """The outputs of a linear map, with those of its adapter added if it has one.

    Args:
        layer: `keras.layers.Layer`.
        name: str. The name of the linear map within the layer.
        inputs: float tensor `[..., D]`.
        outputs: float tensor `[..., K]`.

    Returns:
        Float tensor `[..., K]`: `outputs + alpha / rank * inputs A B`.
    """
    if name not in layer.adapters:
        return outputs
    a, b = (ops.cast(matrix, layer.compute_dtype) for matrix in layer.adapters[name])
    # Never W + A B: its gradient would be as large as W.
    return outputs + layer.lora_scale * linear(linear(inputs, a), b)


def layers_inside(layer):
    """All layers in a layer's attributes, at any depth, each once.

    Args:
        layer: `keras.layers.Layer`. It is not among them itself.

    Returns:
        List of layers.
    """
    layers, seen, waiting = [], {id(layer)}, [vars(layer)]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, keras.layers.Layer):
            layers.append(value)
            waiting.append(vars(value))
        elif isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list | tuple):
            waiting.extend(value)
    return layers
