"""Initial weights."""


def seeded(initializer, seed):
    """A copy of an initializer with another seed, so that no two weights start equal.

    Args:
        initializer: `keras.initializers.Initializer`.
        seed: int or `None`.

    Returns:
        `keras.initializers.Initializer`.
    """
    config = initializer.get_config()
    if "seed" in config:
        config["seed"] = seed
    return initializer.__class__.from_config(config)
