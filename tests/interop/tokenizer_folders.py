"""Tokenizer files as published folders have them, around SentencePiece models that are trained
here.
"""

import base64
import io
import json

import sentencepiece

from kformer.interop.tokenizers import LANGUAGES
from kformer.text.protobuf import message_fields
from tests.text_samples import corpus

TAGS = [">>fra<<", ">>deu<<", ">>cmn_Hans<<"]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


def trained(model_type, texts=None, seed=0, vocabulary_size=500, **settings):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus(seed=seed) if texts is None else texts),
        model_writer=out,
        model_type=model_type,
        vocab_size=vocabulary_size,
        hard_vocab_limit=False,
        minloglevel=2,
        **settings,
    )
    return out.getvalue()


def trained_models():
    """SentencePiece models as publishers train them: float scores, no byte fallback."""
    models = {
        "unigram": trained("unigram"),
        "other": trained("unigram", seed=3),
        "bpe": trained("bpe"),
    }
    return {**models, "t5": trained("unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)}


def processor(model):
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def own_pieces(model):
    return [processor(model).id_to_piece(i) for i in range(len(processor(model)))]


def write(folder, **files):
    """A checkpoint's folder; a file's name with its dots as two underscores."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(json.dumps(content, ensure_ascii=False, indent=2), encoding="utf-8")
    return folder


def marian(folder, models, tags=TAGS, **settings):
    """opus-mt: `</s>` first, one list for both sides, `<pad>` last. Some pieces of the models are
    not in it.
    """
    pieces = dict.fromkeys(
        piece for name in ("unigram", "other") for piece in own_pieces(models[name])[3:]
    )
    kept = [piece for i, piece in enumerate(pieces) if i % 17]
    vocabulary = ["</s>", "<unk>", *tags, *kept, "<pad>"]
    pad = len(vocabulary) - 1
    config = {
        "model_type": "marian",
        "vocab_size": len(vocabulary),
        "pad_token_id": pad,
        "eos_token_id": 0,
        "decoder_start_token_id": pad,
        "bos_token_id": 0,
    }
    write(
        folder,
        source__spm=models["unigram"],
        target__spm=models["other"],
        vocab__json={piece: i for i, piece in enumerate(vocabulary)},
        tokenizer_config__json={"source_lang": "eng", "target_lang": "mul", **settings},
    )
    return config


def m2m100(folder, models, **settings):
    vocabulary = [*SPECIAL, *own_pieces(models["bpe"])[3:]]
    write(
        folder,
        **{"sentencepiece__bpe__model": models["bpe"]},
        vocab__json={piece: i for i, piece in enumerate(vocabulary)},
        tokenizer_config__json={
            "tokenizer_class": "M2M100Tokenizer",
            "language_codes": "m2m100",
            "src_lang": "en",
            "tgt_lang": "fr",
            **settings,
        },
    )
    size = len(vocabulary) + 100 + 8
    return {
        "model_type": "m2m_100",
        "vocab_size": size,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
    }


def fairseq(folder, model, languages, model_type, padding=0, **settings):
    """NLLB and both mBART: one SentencePiece model, everything else by rule."""
    write(folder, **{"sentencepiece__bpe__model": model}, tokenizer_config__json=settings)
    size = len(processor(model)) + 1 + len(languages) + 1 + padding
    return {
        "model_type": model_type,
        "vocab_size": size,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
    }


def nllb(folder, models, **settings):
    settings = {
        "tokenizer_class": "NllbTokenizer",
        "src_lang": "eng_Latn",
        "tgt_lang": "fra_Latn",
        **settings,
    }
    return fairseq(folder, models["bpe"], LANGUAGES["nllb"], "m2m_100", padding=2, **settings)


def mbart50(folder, models, **settings):
    settings = {
        "tokenizer_class": "MBart50Tokenizer",
        "src_lang": "en_XX",
        "tgt_lang": "fr_XX",
        **settings,
    }
    return fairseq(folder, models["unigram"], LANGUAGES["mbart50"], "mbart", **settings)


def mbart(folder, models, **settings):
    settings = {
        "tokenizer_class": "MBartTokenizer",
        "src_lang": "en_XX",
        "tgt_lang": "ro_RO",
        **settings,
    }
    return fairseq(folder, models["unigram"], LANGUAGES["mbart"], "mbart", **settings)


def t5(folder, models, **settings):
    """SentencePiece's own ids, and a hundred behind them."""
    settings = {"tokenizer_class": "T5Tokenizer", "extra_ids": 100, **settings}
    write(folder, spiece__model=models["t5"], tokenizer_config__json=settings)
    size = len(processor(models["t5"])) + 100 + 28
    return {
        "model_type": "t5",
        "vocab_size": size,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    }


def charsmap_of(model):
    for field, _, start, end in message_fields(model, 0, len(model)):
        if field == 3:
            return next(
                model[a:b] for inner, _, a, b in message_fields(model, start, end) if inner == 2
            )
    raise AssertionError


def _bpe_part(pieces, names):
    """The model of a BPE `tokenizer.json`, with a merge for every pair that makes a piece."""
    order = {piece: i for i, piece in enumerate(pieces)}
    merges = [
        (order[piece], i, f"{piece[:i]} {piece[i:]}")
        for piece in pieces
        for i in range(1, len(piece))
        if piece[:i] in order and piece[i:] in order
    ]
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": "<unk>",
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": False,
        "vocab": {name: i for i, name in enumerate(names)},
        "merges": [merge for _, _, merge in sorted(merges)],
    }


def tokenizer_json(model, kind, languages, normalizers=None, pre_tokenizer=None, **changes):
    """The file as the hub's NLLB and mBART have it, made from a SentencePiece model."""
    pieces = own_pieces(model)[3:]
    names = [*SPECIAL, *pieces, *languages, "<mask>"]
    if kind == "BPE":
        part = _bpe_part(pieces, names)
    else:
        own = processor(model)
        scores = {piece: own.get_score(own.piece_to_id(piece)) for piece in pieces}
        part = {
            "type": "Unigram",
            "unk_id": 3,
            "vocab": [[name, scores.get(name, 0.0)] for name in names],
        }
    added = [
        {
            "id": i,
            "content": name,
            "single_word": False,
            "lstrip": name == "<mask>",
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, name in enumerate(names)
        if name in SPECIAL or name in languages or name == "<mask>"
    ]
    charsmap = base64.b64encode(charsmap_of(model)).decode()
    usual = [
        {"type": "Precompiled", "precompiled_charsmap": charsmap},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
    ]
    metaspace = {
        "type": "Metaspace",
        "replacement": "\u2581",
        "add_prefix_space": True,
        "prepend_scheme": "always",
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {
            "type": "Sequence",
            "normalizers": usual if normalizers is None else normalizers,
        },
        "pre_tokenizer": pre_tokenizer or metaspace,
        "post_processor": None,
        "decoder": metaspace,
        "model": {**part, **changes},
    }
