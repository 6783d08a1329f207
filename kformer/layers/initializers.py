"""Initial weights."""

import keras

from kformer.layers.counter_hash import derive_seed


def seeded(initializer, seed, name):
    """An initializer with a seed of its own for one part, so that no two parts start equal.

    Args:
        initializer: `keras.initializers.Initializer` or another callable, which has no seed and is
            returned as it is.
        seed: int. The seed of the layer; a seed that the initializer was given comes before it.
        name: str. The name of the part within the layer.

    Returns:
        `keras.initializers.Initializer` or the callable.
    """
    if not isinstance(initializer, keras.initializers.Initializer):
        return initializer
    config = initializer.get_config()
    if "seed" in config:
        own = config["seed"]
        config["seed"] = derive_seed(own if isinstance(own, int) else seed, name)
    return initializer.__class__.from_config(config)
