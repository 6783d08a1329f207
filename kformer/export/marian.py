"""The format marian: a model in Marian's own files, which Marian and the engine of Firefox read."""

import json

import numpy as np
from keras import ops

from kformer.export.checks import check_exact, check_export, check_layers, write_sentencepiece
from kformer.interop.slots import slots
from kformer.interop.toolkits.marian import ACTIVATIONS, RATIO_STEP, layer_tensors
from kformer.text.vocabulary import model_pieces
from kformer.utils.files import new_folder

_VARIANTS = ("ssru",)
# The first version that computes norms before sub-layers as kformer does.
_VERSION = "v1.12.42"
_NAMES = {ours: theirs for theirs, ours in ACTIVATIONS.items()}


def export_marian(translator, path, *, dtype="float32", **options):
    """Writes a translator as a folder that Marian loads.

    The folder has `model.npz`, the vocabulary (`vocab.spm`; or `vocab.yml`, `source.spm` and
    `target.spm` where the ids are not SentencePiece's own) and `decoder.yml` with the search. Only
    a model as Marian has them fits, such as one that was imported from it: fixed positions of
    tensor2tensor's layout, an epsilon of 1e-6, and a start token whose vector is zero. In an
    imported model of several languages their tags are tokens of the vocabulary, and the first of a
    source, as Marian reads them; there is no default language.

    Args:
        translator: `kformer.Translator`.
        path: path. The folder to make.
        dtype: str, default "float32". How weights are stored.
        **options: fields of `kformer.decoding.SearchOptions` that differ from the translator's.
            `decoder.yml` has the width of the beam, the length penalty (exactly in the mode
            "huggingface") and the length ratio.

    Returns:
        `pathlib.Path` of the folder.

    Raises:
        ValueError: Marian has no such model or tokenizer, or something exists at `path`.

    Example:

    ```python
    translator = kformer.interop.load_checkpoint("opus-2020-02-26.zip")
    kformer.export.export(translator, "exports/marian", format="marian")
    # PosixPath('exports/marian')
    # marian-decoder -c exports/marian/decoder.yml reads it.
    ```
    """
    path = check_export(path, "marian", dtype)
    model, tokenizer = translator.model, translator.tokenizer
    config = model.get_config()
    _check_model(model, config)
    sizes = _check_tokenizer(tokenizer, model)
    tensors = _tensors(model, config, sizes)
    names, vocabularies = _vocabularies(tokenizer, sizes)
    settings = _settings(config, sizes)
    text = "".join(f"{name}: {json.dumps(value)}\n" for name, value in settings.items())
    tensors["special:model.yml"] = np.frombuffer(text.encode() + b"\0", "int8")
    search = translator.search_options(options)
    decoder = {
        "relative-paths": True,
        "models": ["model.npz"],
        "vocabs": names,
        "beam-size": search.beam_size,
        "normalize": search.length_penalty,
        "max-length-factor": round(search.length_ratio + RATIO_STEP, 5),
        "allow-unk": tokenizer.unknown_id not in search.forbidden_ids,
    }
    with new_folder(path) as folder:
        np.savez(folder / "model.npz", **tensors)
        for name, content in vocabularies.items():
            (folder / name).write_bytes(content)
        if names[0].endswith(".yml"):
            write_sentencepiece(tokenizer, folder)
        lines = (f"{name}: {json.dumps(value)}\n" for name, value in decoder.items())
        (folder / "decoder.yml").write_text("".join(lines), encoding="utf-8")
    return path


def _check_model(model, config):
    check_exact(model, "the format marian")
    check_layers(model, "the format marian", _VARIANTS)
    expected = {
        "position_encoding": "sinusoidal_fairseq",
        "position_offset": 0,
        "layer_norm_epsilon": 1e-6,
        "scale_embeddings": True,
        "decoder_num_heads": None,
        "decoder_normalize_first": None,
    }
    for name, value in expected.items():
        if config[name] != value:
            raise ValueError(
                f"The model has {name}={config[name]!r}, but Marian has {value!r}: only a model as "
                "Marian has them can be exported to it, such as one that was imported."
            )
    if config["activation"] not in _NAMES:
        raise ValueError(
            f"The model has activation={config['activation']!r}, but Marian has "
            f"{', '.join(_NAMES)}."
        )
    network = model.network
    start = ops.convert_to_numpy(network.target_embedding.embeddings[model.start_id])
    if start.any():
        raise ValueError(
            "The start token's vector is not zero, as Marian's always is: a model can be exported "
            "to Marian if it was imported from it, also when it was trained further."
        )


def _check_tokenizer(tokenizer, model):
    """The number of tokens of each side, without rows behind the last token that is a piece."""
    first = min(model.pad_id, model.start_id)
    sides = [tokenizer.vocabulary(side) for side in ("source", "target")]
    sizes = []
    for side in sides:
        size = first
        while size and side.pieces[size - 1] == f"<no piece {size - 1}>":
            size -= 1
        sizes.append(size)
    names = [side.pieces[i] for side in sides for i in (tokenizer.end_id, tokenizer.unknown_id)]
    # Rows behind the padding token, such as of languages that were added, would be lost.
    has_more = any(len(side) > max(model.pad_id, model.start_id) + 1 for side in sides)
    if names != ["</s>", "<unk>"] * 2 or tokenizer.normalization == "identity" or has_more:
        raise ValueError(
            "Marian has no padding token and no start token, which must be the last here, and "
            "calls those of end and unknown </s> and <unk>: only a tokenizer as Marian has them "
            "can be exported to it, such as one that was imported; export others to ctranslate2."
        )
    return [max(sizes)] * 2 if model.get_config()["share_embeddings"] else sizes


def _tensors(model, config, sizes):
    stored = {}
    for slot in slots(model):
        array = ops.convert_to_numpy(ops.cast(slot.variable, "float32"))
        stored |= dict(zip(slot.names, slot.split(array), strict=True))
    tensors = {}
    tables = {
        "model.shared.weight": ("Wemb", sizes[1]),
        "model.encoder.embed_tokens.weight": ("encoder_Wemb", sizes[0]),
        "model.decoder.embed_tokens.weight": ("decoder_Wemb", sizes[1]),
    }
    for ours, (theirs, size) in tables.items():
        if ours in stored:
            tensors[theirs] = stored[ours][:size]
    if "lm_head.weight" in stored:
        tensors["decoder_ff_logit_out_W"] = stored["lm_head.weight"][: sizes[1]].T
    bias = stored.get("final_logits_bias", np.zeros((1, sizes[1]), "float32"))
    tensors["decoder_ff_logit_out_b"] = bias[:, : sizes[1]]
    for ours, theirs, is_matrix in layer_tensors(config):
        is_inner = "_top_" not in theirs and "_ln_" in theirs
        if is_inner and (config["normalize_first"] or "_emb_" in theirs):
            theirs = f"{theirs}_pre"
        tensors[theirs] = stored[ours].T if is_matrix else stored[ours][None]
    return {name: np.ascontiguousarray(array) for name, array in tensors.items()}


def _vocabularies(tokenizer, sizes):
    """The names of the vocabularies of both sides, and the files' contents by name."""
    sides = [tokenizer.vocabulary(side) for side in ("source", "target")]
    if all(
        model_pieces(side.processor) == side.pieces[:size]
        for side, size in zip(sides, sizes, strict=True)
    ):
        names = ["vocab.spm"] * 2
        if sides[0].model != sides[1].model:
            names = ["srcvocab.spm", "trgvocab.spm"]
        return names, {name: side.model for name, side in zip(names, sides, strict=True)}
    texts = [
        "".join(
            f"{json.dumps(piece, ensure_ascii=False)}: {i}\n"
            for i, piece in enumerate(side.pieces[:size])
            if piece != f"<no piece {i}>"
        ).encode()
        for side, size in zip(sides, sizes, strict=True)
    ]
    names = ["vocab.yml"] * 2 if texts[0] == texts[1] else ["srcvocab.yml", "trgvocab.yml"]
    return names, dict(zip(names, texts, strict=True))


def _settings(config, sizes):
    """The options that Marian reads from a model's file."""
    is_first, final = config["normalize_first"], config["final_norm"]
    shared, tied = config["share_embeddings"], config["share_output"]
    is_recurrent = config["decoder_autoregression"] == "ssru"
    return {
        "type": "transformer",
        "dim-vocabs": sizes,
        "dim-emb": config["hidden_dim"],
        "enc-depth": config["num_encoder_layers"],
        "dec-depth": config["num_decoder_layers"],
        "dec-cell": "ssru" if is_recurrent else "gru",
        "dec-cell-base-depth": 2,
        "dec-cell-high-depth": 1,
        "tied-embeddings-all": shared and tied,
        "tied-embeddings-src": shared and not tied,
        "tied-embeddings": tied and not shared,
        "transformer-decoder-autoreg": "rnn" if is_recurrent else "self-attention",
        "transformer-dim-ffn": config["intermediate_dim"],
        "transformer-decoder-dim-ffn": config["decoder_intermediate_dim"] or 0,
        "transformer-ffn-depth": 2,
        "transformer-decoder-ffn-depth": 0,
        "transformer-ffn-activation": _NAMES[config["activation"]],
        "transformer-heads": config["num_heads"],
        "transformer-preprocess": "n" if is_first else "",
        "transformer-postprocess": "da" if is_first else "dan",
        "transformer-postprocess-emb": "nd" if config["normalize_embeddings"] else "d",
        "transformer-postprocess-top": "n" if (is_first if final is None else final) else "",
        "transformer-no-projection": False,
        "transformer-rnn-projection": False,
        "transformer-train-position-embeddings": False,
        "transformer-tied-layers": [],
        "layer-normalization": False,
        "lemma-dim-emb": 0,
        "right-left": False,
        "skip": False,
        "ulr": False,
        "version": f"{_VERSION} by kformer",
    }
