"""Reads the models of eole: a folder with weights in safetensors, `config.json` and `vocab.json`.

eole goes on from OpenNMT-py, so its tensors get the names that OpenNMT-py has. What a
configuration leaves out is eole's default (of version 0.6: norms add 1e-5).
"""

import contextlib
import re

from kformer.interop.checkpoint import Weights, open_safetensors
from kformer.interop.limits import read_settings
from kformer.interop.toolkits import opennmt_py
from kformer.interop.toolkits.files import file_beside
from kformer.interop.toolkits.model import TensorTable, ToolkitModel
from kformer.utils.checks import check_choice, shown

_CONFIG, _VOCABULARY, _FIRST = "config.json", "vocab.json", "model.00.safetensors"
_REMEDY = "copy the folder again"
_MOST_SHARDS = 100
_RULES = (
    (r"src_emb\.embeddings\.", "encoder.embeddings.make_embedding.emb_luts.0."),
    (r"tgt_emb\.embeddings\.", "decoder.embeddings.make_embedding.emb_luts.0."),
    (
        r"encoder\.transformer_layers\.(\d+)\.input_layernorm\.",
        r"encoder.transformer.\1.layer_norm.",
    ),
    (r"decoder\.(.*)\.input_layernorm\.", r"decoder.\1.layer_norm_1."),
    (r"decoder\.(.*)\.precontext_layernorm\.", r"decoder.\1.layer_norm_2."),
    (r"(.*)\.post_attention_layernorm\.", r"\1.feed_forward.layer_norm."),
    (r"(.*)\.mlp\.gate_up_proj\.", r"\1.feed_forward.w_1."),
    (r"(.*)\.mlp\.down_proj\.", r"\1.feed_forward.w_2."),
    (r"(.*)\.mlp\.up_proj\.", r"\1.feed_forward.w_3."),
    (r"encoder\.transformer_layers\.", "encoder.transformer."),
)
_IGNORED = re.compile(r"(src|tgt)_emb\.pe\.pe|estimator\..*")
_LAYER_SCALAR = re.compile(r".*\.layer_scalar")
# Options that are read; any other one of the model must have a value that changes nothing.
_READ = {
    *("hidden_size", "architecture", "layers", "transformer_ff", "heads", "position_encoding_type"),
    *("embeddings", "encoder", "decoder", "word_vec_size", "src_word_vec_size"),
    *("tgt_word_vec_size", "encoder_type", "decoder_type", "with_cross_attn", "n_positions"),
    *(
        "share_embeddings",
        "share_decoder_embeddings",
        "mlp_activation_fn",
        "layer_norm",
        "norm_eps",
    ),
    *("add_qkvbias", "add_ffnbias", "add_final_linear_bias", "add_estimator", "generator_bias"),
    *("param_init", "param_init_method", "param_init_glorot", "init_std", "freeze_word_vecs_enc"),
    *("freeze_word_vecs_dec", "valid_layers"),
}


def is_mine(path):
    """Whether a path is a folder of eole's."""
    with contextlib.suppress(OSError):
        return all(file_beside([path], [name]) for name in (_CONFIG, _VOCABULARY, _FIRST))
    return False


def read(path, options):
    """Reads a model of eole's.

    Args:
        path: `pathlib.Path` of a folder with `model.00.safetensors`.
        options: `ToolkitOptions`.

    Returns:
        `ToolkitModel`.

    Raises:
        FileNotFoundError: a file is missing.
        ImportError: safetensors is not installed.
        ValueError: a file is damaged, or kformer has no such model.
    """
    file = path / _FIRST
    settings = _settings(read_settings(path / _CONFIG, _REMEDY), path)
    vocabularies = read_settings(path / _VOCABULARY, _REMEDY)
    names = [f"model.{number:02d}.safetensors" for number in range(_MOST_SHARDS)]
    shards = [file_beside([path], [name]) for name in names]
    weights = Weights([shard for shard in shards if shard is not None], open_safetensors)
    stored = {}
    for name in weights.shapes:
        if _LAYER_SCALAR.fullmatch(name):
            if weights.shapes[name] != (1,) or weights.read(name)[0] != 1:
                raise ValueError(f"{path} has layers that are scaled, which kformer does not have.")
        elif not _IGNORED.fullmatch(name):
            stored[_old_name(name)] = _Tensor(weights, name)
    arguments, table, tokenizer = opennmt_py.read_parts(
        stored, settings, vocabularies, options, file
    )
    table = TensorTable(table, weights.num_bytes)
    # `eole predict`: as OpenNMT-py's, but up to 250 tokens and no limit by the source.
    return ToolkitModel("eole", arguments, table, tokenizer, dict(opennmt_py.SEARCH))


class _Tensor:
    def __init__(self, weights, name):
        self.shape, self._weights, self._name = weights.shapes[name], weights, name

    def read(self):
        return self._weights.read(self._name)


def _old_name(name):
    for pattern, replacement in _RULES:
        if re.match(pattern, name):
            name = re.sub(rf"^{pattern}", replacement, name)
            break
    return name.replace("encoder.transformer_layers.", "encoder.transformer.", 1)


def _settings(config, path):
    """The options of the model by OpenNMT-py's names, dict, checked."""
    model = config.get("model")
    if not isinstance(model, dict):
        raise ValueError(f"{path / _CONFIG} has no model: {_REMEDY}.")
    sides = [model.get(name) for name in ("encoder", "decoder", "embeddings")]
    if not all(isinstance(side, dict) for side in sides):
        raise ValueError(f"{path / _CONFIG} has a model without encoder and decoder: {_REMEDY}.")
    values = {**sides[2], **sides[0], **model}
    for part in (*sides, model):
        for name, value in part.items():
            if name not in _READ and value:
                raise ValueError(
                    f"{path} has {name}={shown(value)}, an architecture that is not imported from "
                    "eole's files."
                )
    for name, side in zip(("encoder_type", "decoder_type"), sides, strict=False):
        check_choice(f"{name} of {path}", side.get(name, "transformer"), ("transformer",))
    kind = values.get("position_encoding_type", "SinusoidalInterleaved")
    check_choice(
        f"position_encoding_type of {path}", kind, ("SinusoidalInterleaved", "SinusoidalConcat")
    )
    check_choice(f"layer_norm of {path}", values.get("layer_norm", "standard"), ("standard", "rms"))
    return {
        "pos_ffn_activation_fn": values.get("mlp_activation_fn", "relu"),
        "position_encoding": True,
        "position_encoding_type": kind,
        "heads": values.get("heads", 8),
        "norm_eps": values.get("norm_eps", 1e-5),
        "layer_norm": values.get("layer_norm", "standard"),
    }
