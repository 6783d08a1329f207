"""Which options make a model another one than the paper's and its published descendants (Marian,
fairseq, BART).
"""

from kformer.models.architecture import ARCHITECTURE
from kformer.models.stacks import RELATIVE_POSITIONS

_NAMES = """
    stochastic_depth gated final_norm normalization use_bias head_dim num_key_value_heads attention_scale rotary_base rotary_interleaved
    relative_buckets relative_max_distance attention_kind attention_window attention_dilation global_tokens
""".split()
# Their values in such a model.
VARIANTS = {**{name: ARCHITECTURE[name] for name in _NAMES}, "scale_output": False}
# Those that matter in training alone, or to another option.
_HARMLESS = {
    "stochastic_depth",
    "rotary_base",
    "rotary_interleaved",
    "relative_buckets",
    "relative_max_distance",
}


def variants_of(config, known=()):
    """What a `Transformer`'s configuration has that the paper's and its published descendants have
    not.

    Formats and programs that know those alone refuse a model by this list.

    Args:
        config: dict, of `Transformer.get_config`.
        known: those of `RELATIVE_POSITIONS` that are no variant to the caller.

    Returns:
        List of strings like `"gated=True"`.
    """
    telling = {name: usual for name, usual in VARIANTS.items() if name not in _HARMLESS}
    found = [
        f"{name}={config[name]!r}"
        for name, usual in telling.items()
        if config.get(name, usual) != usual
    ]
    if config["position_encoding"] in {*RELATIVE_POSITIONS}.difference(known):
        found.append(f"position_encoding={config['position_encoding']!r}")
    if config["activation"] == "gelu_tanh":
        found.append("activation='gelu_tanh'")
    return found
