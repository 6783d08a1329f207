"""The options that all models of stacked layers share, with their defaults."""

from kformer.utils.checks import check_whole

ARCHITECTURE = {
    "hidden_dim": 512,
    "intermediate_dim": 2048,
    "num_heads": 8,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "stochastic_depth": 0.0,
    "activation": "relu",
    "gated": False,
    "normalize_first": True,
    "final_norm": None,
    "normalization": "layer_norm",
    "layer_norm_epsilon": 1e-5,
    "use_bias": True,
    "head_dim": None,
    "num_key_value_heads": None,
    "attention_scale": None,
    "position_encoding": "sinusoidal",
    "rotary_base": 10_000.0,
    "rotary_interleaved": False,
    "relative_buckets": 32,
    "relative_max_distance": 128,
    "attention_kind": "full",
    "attention_window": None,
    "attention_dilation": 1,
    "global_tokens": 0,
}


def architecture_of(options, **sizes):
    """Options with the defaults of those that were left out.

    Args:
        options: dict, what was given; names as in `kformer.Transformer`.
        **sizes: further numbers that must be positive and whole.

    Returns:
        dict with every name of `ARCHITECTURE`.

    Raises:
        ValueError: a name is unknown, or a size is none.
    """
    unknown = sorted(set(options) - set(ARCHITECTURE))
    if unknown:
        raise ValueError(
            f"Unknown option {unknown[0]!r}: the options are {', '.join(ARCHITECTURE)}."
        )
    found = {**ARCHITECTURE, **options}
    check_sizes(
        **{name: found[name] for name in ("hidden_dim", "intermediate_dim", "num_heads")}, **sizes
    )
    check_heads(found["hidden_dim"], found["num_heads"], found["head_dim"])
    return found


def check_packing(options):
    """Makes sure that a model keeps the sequences of packed rows apart.

    Args:
        options: dict, what was given; names as in `kformer.Transformer`.

    Raises:
        ValueError: linear attention sums over all of a row, or global tokens are the first of a
            row, whatever sequence they belong to.
    """
    what = None
    if options.get("attention_kind") == "linear":
        what = "attention_kind='linear'"
    elif options.get("global_tokens"):
        what = f"global_tokens={options['global_tokens']}"
    if what is not None:
        raise ValueError(
            f"A model with {what} cannot keep apart the sequences of packed rows: give it rows of one, or other attention."
        )


def check_sizes(**sizes):
    """Raises a ValueError where a size is not a positive whole number."""
    for name, value in sizes.items():
        check_whole(name, value)


def check_heads(hidden_dim, num_heads, head_dim):
    """Raises a ValueError where the hidden size cannot be split into heads."""
    if head_dim is None and hidden_dim % num_heads:
        raise ValueError(
            f"num_heads must divide hidden_dim, but {hidden_dim} / {num_heads} is not whole."
        )
