"""Initial weights."""


def seeded(initializer, seed):
    """A copy of an initializer under a seed of its own, so that two weights never start from the
    same numbers.

    Args:
        initializer: a `keras.initializers.Initializer`.
        seed: int or `None`.
    """
    config = initializer.get_config()
    if "seed" in config:
        config["seed"] = seed
    return initializer.__class__.from_config(config)
