"""Initial weights."""

import keras

from kformer.layers.counter_hash import derive_seed


def seeded(initializer, seed, name):
    """Returns an initializer with the seed of one weight, so that no two weights start equal.

    Args:
        initializer: `keras.initializers.Initializer` or another callable, which has no seed and is
            returned as it is.
        seed: int. The seed of the layer; the initializer's own seed, if it has one, outranks it.
        name: str. The name of the weight within the layer.

    Returns:
        `keras.initializers.Initializer` or the callable.
    """
    if not isinstance(initializer, keras.initializers.Initializer):
        return initializer
    config = initializer.get_config()
    if "seed" in config:
        seed = config["seed"] if isinstance(config["seed"], int) else seed
        config["seed"] = derive_seed(seed, name)
    return initializer.__class__.from_config(config)
