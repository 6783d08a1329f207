"""Which options make a model another one than the paper's and its published descendants (Marian, fairseq, BART)."""

from kformer.models.stacks import RELATIVE_POSITIONS

# Their values in such a model.
VARIANTS = {
    "stochastic_depth": 0.0,
    "gated": False,
    "final_norm": None,
    "normalization": "layer_norm",
    "use_bias": True,
    "head_dim": None,
    "num_key_value_heads": None,
    "attention_scale": None,
    "rotary_base": 10_000.0,
    "rotary_interleaved": False,
    "relative_buckets": 32,
    "relative_max_distance": 128,
    "attention_kind": "full",
    "attention_window": None,
    "attention_dilation": 1,
    "global_tokens": 0,
    "scale_output": False,
}
# Those that matter in training alone, or to another option.
_HARMLESS = {"stochastic_depth", "rotary_base", "rotary_interleaved", "relative_buckets", "relative_max_distance"}


def variants_of(config):
    """What a `Transformer`'s configuration has that the paper's and its published descendants have not.

    Formats and programs that know those alone refuse a model by this list.

    Args:
        config: dict, of `Transformer.get_config`.

    Returns:
        List of strings like `"gated=True"`.
    """
    telling = {name: usual for name, usual in VARIANTS.items() if name not in _HARMLESS}
    found = [f"{name}={config[name]!r}" for name, usual in telling.items() if config.get(name, usual) != usual]
    if config["position_encoding"] in RELATIVE_POSITIONS:
        found.append(f"position_encoding={config['position_encoding']!r}")
    if config["activation"] == "gelu_tanh":
        found.append("activation='gelu_tanh'")
    return found
