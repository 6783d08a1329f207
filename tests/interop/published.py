"""Models with random weights, made and saved by the Hugging Face library, for tests of imports."""

import numpy as np
import torch

KINDS = ("marian", "m2m_100", "mbart", "bart", "t5", "t5-v1.1")
SMALL = {
    "vocab_size": 150,
    "hidden_dim": 32,
    "intermediate_dim": 64,
    "layers": 2,
    "heads": 4,
    "positions": 64,
}
# Standard deviations of the embeddings, of cross-attention and of the other matrices; the bias of
# the end token; and how many times longer its vector is than others (default 1), which makes it the
# likeliest now and then. Found by trial: of 64 outputs at least 50 are distinct and at least half
# end before the limit, so that a wrong search shows.
SPREAD = {
    "marian": (0.5, 8, 0.5, 4),
    "m2m_100": (0.5, 8, 0.5, 6),
    "mbart": (0.2, 8, 1, 2),
    "bart": (0.1, 8, 0.5, 4),
}
SPREAD |= {
    "t5": (1, 8, 0.5, None, 3),
    "t5-v1.1": (1, 8, 0.5, None, 1.5),
}  # without a bias, the score of a token depends on its vector alone


def published_model(kind, *, spread=None, seed=1, sizes=SMALL, **overrides):
    """A model of the Hugging Face library with random weights and biases.

    Args:
        kind: the `model_type`.
        spread: as in `SPREAD`, which is right for the sizes `SMALL`.
        seed: of the weights.
        sizes: dict as `SMALL`.
        **overrides: other fields of its configuration.
    """
    import transformers

    if kind.startswith("t5"):
        return _published_t5(
            kind, SPREAD[kind] if spread is None else spread, seed, sizes, overrides
        )
    classes = {
        "marian": (transformers.MarianConfig, transformers.MarianMTModel),
        "m2m_100": (transformers.M2M100Config, transformers.M2M100ForConditionalGeneration),
        "mbart": (transformers.MBartConfig, transformers.MBartForConditionalGeneration),
        "bart": (transformers.BartConfig, transformers.BartForConditionalGeneration),
    }
    config = {
        "vocab_size": sizes["vocab_size"],
        "d_model": sizes["hidden_dim"],
        "max_position_embeddings": sizes["positions"],
        "decoder_start_token_id": 2,
        "scale_embedding": kind != "bart",
    }
    for side in ("encoder", "decoder"):
        config |= {f"{side}_layers": sizes["layers"], f"{side}_attention_heads": sizes["heads"]}
        config[f"{side}_ffn_dim"] = sizes["intermediate_dim"]
    if kind == "marian":
        pad = sizes["vocab_size"] - 1
        config |= {
            "pad_token_id": pad,
            "decoder_start_token_id": pad,
            "eos_token_id": 0,
            "activation_function": "swish",
        }
    config_class, model_class = classes[kind]
    model = model_class(config_class(**{**config, **overrides})).eval()
    _randomize(model, SPREAD[kind] if spread is None else spread, seed)
    return model


@torch.no_grad()
def _published_t5(kind, spread, seed, sizes, overrides):
    import transformers

    embeddings, cross, others, _, length = spread
    is_newer = kind == "t5-v1.1"
    config = {
        "vocab_size": sizes["vocab_size"],
        "d_model": sizes["hidden_dim"],
        "d_kv": sizes["hidden_dim"] // sizes["heads"] + 2,
        "d_ff": sizes["intermediate_dim"],
        "num_layers": sizes["layers"],
        "num_heads": sizes["heads"],
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 12,
        "decoder_start_token_id": 0,
        "n_positions": sizes["positions"],
    }
    config |= {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False} if is_newer else {}
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(**{**config, **overrides})
    ).eval()
    if is_newer:  # The library ties it, published files have another.
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if weight.ndim == 1:
            weight.copy_(1 + 0.2 * noise)
        elif "relative_attention_bias" in name:
            weight.copy_(noise)
        elif "shared" in name:
            weight.copy_(noise * embeddings)
        elif "lm_head" in name:
            weight.copy_(noise * embeddings * weight.shape[1] ** -0.5)
        else:
            weight.copy_(
                noise * weight.shape[1] ** -0.5 * (cross if "EncDecAttention" in name else others)
            )
            if name.endswith(
                "Attention.q.weight"
            ):  # Scores are not divided by a root: large heads need small queries.
                weight.mul_(sizes.get("query_scale", 1.0))
    model.get_output_embeddings().weight[model.config.eos_token_id] *= length
    return model


@torch.no_grad()
def _randomize(model, spread, seed):
    embeddings, cross, others, end, length = (*spread, 1)[:5]
    generator = torch.Generator().manual_seed(seed)
    size, scaled = model.config.d_model, model.config.scale_embedding
    for name, weight in model.named_parameters():
        if "embed_positions" in name and model.config.model_type == "marian":
            continue  # fixed
        noise = torch.randn(weight.shape, generator=generator)
        if weight.ndim == 2 and ("shared" in name or "embed" in name):
            weight.copy_(noise * (embeddings if scaled else embeddings * size**0.5 / 2))
        elif weight.ndim == 2:
            weight.copy_(
                noise * weight.shape[1] ** -0.5 * (cross if "encoder_attn" in name else others)
            )
        else:
            weight.copy_(0.2 * noise + (0 if name.endswith("bias") else 1))
    end_id = model.config.eos_token_id
    model.get_input_embeddings().weight[end_id] *= length
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_(0, 0.3, generator=generator)
        model.final_logits_bias[0, end_id] += end
    else:  # A direction that is always there in what is projected.
        row = model.get_input_embeddings().weight[end_id]
        model.model.decoder.layer_norm.bias.add_(row * end / (row @ row))


def random_sources(model, sentences=64, longest=20, seed=1, shortest=3):
    """Padded ids int32 `[B, S]` of sentences of `shortest` to `longest` - 1 tokens, the end token
    included.
    """
    rng = np.random.default_rng(seed)
    ids = np.full((sentences, longest), model.config.pad_token_id, dtype="int32")
    for row, length in zip(ids, rng.integers(shortest, longest, sentences), strict=True):
        row[: length - 1] = rng.integers(4, model.config.vocab_size - 2, length - 1)
        row[length - 1] = model.config.eos_token_id
    return ids


def random_targets(model, sentences=64, length=10, seed=2):
    """Ids int32 `[B, T]`, the start token first."""
    ids = (
        np.random.default_rng(seed)
        .integers(4, model.config.vocab_size - 2, (sentences, length))
        .astype("int32")
    )
    ids[:, 0] = model.config.decoder_start_token_id
    return ids


@torch.no_grad()
def forward(model, source_ids, target_ids):
    """Encoder output `[B, S, D]` and logits `[B, T, V]` of the Hugging Face model, NumPy arrays."""
    source_ids, target_ids = (
        torch.tensor(ids, dtype=torch.int64) for ids in (source_ids, target_ids)
    )
    outputs = model(
        input_ids=source_ids,
        attention_mask=source_ids != model.config.pad_token_id,
        decoder_input_ids=target_ids,
    )
    return outputs.encoder_last_hidden_state.numpy(), outputs.logits.numpy()


@torch.no_grad()
def generate(model, source_ids, generation, batch_size=64):
    """Lists of generated ids, without the start token and without padding, by the library's
    `generate`.
    """
    import transformers

    special = {
        f"{name}_token_id": getattr(model.config, f"{name}_token_id")
        for name in ("pad", "eos", "decoder_start")
    }
    model.generation_config = transformers.GenerationConfig(**{**special, **generation})
    rows = []
    for start in range(0, len(source_ids), batch_size):
        ids = torch.tensor(source_ids[start : start + batch_size], dtype=torch.int64)
        rows += model.generate(input_ids=ids, attention_mask=ids != model.config.pad_token_id)[
            :, 1:
        ].tolist()
    return [trim(row, model.config.eos_token_id, model.config.pad_token_id) for row in rows]


def trim(row, end_id, pad_id):
    """A row of ids up to its end token, or without the padding behind it."""
    row = [int(token) for token in row]
    if end_id in row:
        return row[: row.index(end_id) + 1]
    while row and row[-1] == pad_id:
        row.pop()
    return row
