"""Published architectures as `Transformer`s: their `config.json` as its arguments.

| `model_type` | norm | positions                    | embedding norm | bias | models           |
|--------------|------|------------------------------|----------------|------|------------------|
| `marian`     | post | sines before cosines         | no             | yes  | OPUS-MT          |
| `m2m_100`    | pre  | fairseq's sinusoids, from 2  | no             | no   | M2M100, NLLB-200 |
| `mbart`      | pre  | learned, first 2 rows unused | yes            | yes  | mBART, mBART-50  |
| `bart`       | post | learned, first 2 rows unused | yes            | yes  | BART             |
| `pegasus`    | pre  | sines before cosines         | no             | yes  | kformer's export |
| `t5`, `mt5`  | pre  | learned bias by distance     | no             | no   | T5, T5 v1.1, mT5 |

The positions are those of the library: Marian itself has fairseq's sinusoids, from 0
(`kformer.interop.toolkits.marian`). "Bias" is that of the output layer. T5's norm is RMSNorm, its
linear layers have no biases, its scores are not scaled, and its feed-forward networks may be gated.
"""

from kformer.interop.limits import MOST_LAYERS
from kformer.utils.checks import check_choice, check_whole

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}
_ACTIVATIONS["quick_gelu"] = "gelu_sigmoid"
_T5_ACTIVATIONS = {**_ACTIVATIONS, "gelu_new": "gelu_tanh"}
_T5_ACTIVATIONS |= {f"gated-{name}": ours for name, ours in _T5_ACTIVATIONS.items()}
# In T5's files it has always meant the tanh approximation.
_T5_ACTIVATIONS["gated-gelu"] = "gelu_tanh"
# Rows at the beginning of a learned table that no position uses.
UNUSED_POSITIONS = 2

_STYLE_OPTIONS = (
    *("normalize_first", "position_encoding", "position_offset"),
    *("normalize_embeddings", "output_bias"),
)
_STYLES = {
    "marian": (False, "sinusoidal_halves", 0, False, True),
    "m2m_100": (True, "sinusoidal_fairseq", 2, False, False),
    "mbart": (True, "learned", 0, True, True),
    "bart": (False, "learned", 0, True, True),
    "pegasus": (True, "sinusoidal_halves", 0, False, True),
}
# Our options of size, by the names that the configurations have for them.
_SIZES = {
    "vocabulary_size": "vocab_size",
    "num_encoder_layers": "encoder_layers",
    "num_decoder_layers": "decoder_layers",
    "hidden_dim": "d_model",
    "intermediate_dim": "encoder_ffn_dim",
    "num_heads": "encoder_attention_heads",
    "decoder_intermediate_dim": "decoder_ffn_dim",
    "decoder_num_heads": "decoder_attention_heads",
    "max_length": "max_position_embeddings",
}
_T5_SIZES = {
    "vocabulary_size": "vocab_size",
    "num_encoder_layers": "num_layers",
    "num_decoder_layers": "num_decoder_layers",
    "hidden_dim": "d_model",
    "intermediate_dim": "d_ff",
    "num_heads": "num_heads",
    "head_dim": "d_kv",
    "max_length": "n_positions",
    "relative_buckets": "relative_attention_num_buckets",
    "relative_max_distance": "relative_attention_max_distance",
}
# What `transformers` takes for a key that is missing.
_DEFAULTS = {
    "activation_function": "gelu",
    "scale_embedding": False,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
}
_OWN_DEFAULTS = {
    "m2m_100": {"activation_function": "relu", "scale_embedding": True, "attention_dropout": 0.1},
}
_T5 = ("t5", "mt5")
MODEL_TYPES = (*_T5, *_STYLES)


def model_arguments(config, where="config.json"):
    """The arguments of `Transformer` for a published configuration.

    Args:
        config: dict, the content of `config.json`.
        where: str, default "config.json". The file's name in error messages.

    Returns:
        Dict of keyword arguments.

    Raises:
        ValueError: the architecture is unknown, a value is missing or not allowed, or `Transformer`
            cannot be this architecture.
    """
    model_type = config.get("model_type")
    if model_type in _T5:
        return _t5_arguments(config, where)
    if model_type not in _STYLES:
        raise ValueError(
            f"{where} has the model_type {model_type!r}; kformer imports "
            f"{', '.join(MODEL_TYPES[:-1])}."
        )
    config = {**_DEFAULTS, **_OWN_DEFAULTS.get(model_type, {}), **config}
    sizes = _sizes(config, _SIZES, where)
    name = config["activation_function"]
    activation = _ACTIVATIONS[check_choice(f"activation_function of {where}", name, _ACTIVATIONS)]
    shared = bool(config.get("share_encoder_decoder_embeddings", True))
    size = sizes["vocabulary_size"]
    target_size = config.get("decoder_vocab_size") or size
    if shared and target_size != size:
        raise ValueError(
            f"{where} shares the embeddings of {size} and {target_size} tokens, which cannot be."
        )
    return {
        **sizes,
        "target_vocabulary_size": None if target_size == size else target_size,
        "activation": activation,
        **{name: config[name] for name in ("dropout", "attention_dropout", "activation_dropout")},
        "scale_embeddings": bool(config["scale_embedding"]),
        "share_embeddings": shared,
        "share_output": bool(config.get("tie_word_embeddings", True)),
        **_special_ids(config),
        **dict(zip(_STYLE_OPTIONS, _STYLES[model_type], strict=True)),
    }


def _t5_arguments(config, where):
    tied, is_mt5 = bool(config.get("tie_word_embeddings", True)), config["model_type"] == "mt5"
    version = str(config.get("transformers_version", "")).partition(".")[0]
    is_newer_mt5 = is_mt5 and version.isdecimal() and int(version) >= 5
    settings = {
        "feed_forward_proj": "gated-gelu" if is_mt5 else "relu",
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "num_decoder_layers": config.get("num_layers"),
        "n_positions": 512,
        "dropout_rate": 0.1,
        "decoder_start_token_id": config.get("pad_token_id"),
        **{name: value for name, value in config.items() if value is not None},
    }
    inner = settings["feed_forward_proj"]
    check_choice(f"feed_forward_proj of {where}", inner, _T5_ACTIVATIONS)
    rates = ("dropout", "attention_dropout", "activation_dropout")
    return {
        **_sizes(settings, _T5_SIZES, where),
        "target_vocabulary_size": None,
        "activation": _T5_ACTIVATIONS[inner],
        "gated": inner.startswith("gated-"),
        **dict.fromkeys(rates, settings["dropout_rate"]),
        "normalize_first": True,
        "normalization": "rms_norm",
        "layer_norm_epsilon": float(config.get("layer_norm_epsilon", 1e-6)),
        "use_bias": False,
        "attention_scale": 1.0,
        "position_encoding": "t5",
        "scale_embeddings": False,
        # Models with an output projection of their own do not scale; newer configurations have an
        # option for it, but not those of mT5, which that library has not scaled since version 5.
        "scale_output": bool(config.get("scale_decoder_outputs", tied and not is_newer_mt5)),
        "share_output": tied,
        **_special_ids(settings),
    }


def _special_ids(config):
    """Three ids, unchecked: the import compares them with the tokenizer's."""
    end_id, start_id = config.get("eos_token_id"), config.get("decoder_start_token_id")
    if isinstance(end_id, list) and len(end_id) == 1:
        end_id = end_id[0]
    if start_id is None:
        start_id = end_id  # mBART's configuration leaves it to the tokenizer.
    return {"pad_id": config.get("pad_token_id"), "end_id": end_id, "start_id": start_id}


def _sizes(config, names, where):
    """Our options of size, from a dict of their names to the configuration's."""
    return {
        ours: check_whole(
            f"{theirs} of {where}",
            config.get(theirs),
            most=MOST_LAYERS if theirs.endswith("layers") else None,
        )
        for ours, theirs in names.items()
    }
