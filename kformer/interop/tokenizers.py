"""The tokenizers of published translation models, from the files of a Hugging Face folder.

The result must have the ids that the model was trained with, and each family assigns them in its
own way: Marian looks pieces up in `vocab.json`, M2M100 adds its languages after such a file, NLLB
and mBART shift SentencePiece's ids for fairseq's four special tokens. Nothing in a folder is run,
and no library of Hugging Face is needed."""

import pathlib
import re
import tomllib

from kformer.interop.limits import MOST_GAPS, read_sentencepiece
from kformer.interop.sentencepiece_proto import add_tokens
from kformer.interop.tokenizer_files import (
    MODEL_NAME,
    TokenizerFolder,
    converted_pieces,
    fairseq_pieces,
    id_of,
    piece_list,
    with_added,
)
from kformer.text import Tokenizer
from kformer.text.languages import some_languages
from kformer.text.vocabulary import load_sentencepiece, model_pieces
from kformer.utils.checks import check_choice, check_whole

_FILE = pathlib.Path(__file__).with_name("published_languages.toml")
# Of published models, in the order of their ids.
LANGUAGES = {name: codes.split() for name, codes in tomllib.loads(_FILE.read_text("utf-8")).items()}
_T5_MODEL_NAME = "spiece.model"
_T5_EXTRA_IDS = 100
# Classes that may belong to any model; the model_type decides then.
_GENERIC_CLASSES = ("", "PreTrainedTokenizer", "TokenizersBackend")
_PREFIXES = {"source": ["source_prefix"], "target": ["target_prefix"]}
# Generation puts the target's language first, also where the source follows the older pattern.
_NLLB_LEGACY = {"source": ["source_suffix"], "target": ["target_prefix"]}
_MBART = {"source": ["source_suffix"], "target": ["target_suffix", "start"]}
_MARIAN = {"source": [], "target": ["source_prefix"]}


def read_tokenizer(folder, config, *, source_language=None, target_language=None):
    """The tokenizer of a published checkpoint, with the ids that its model knows.

    Args:
        folder: path of the checkpoint's folder.
        config: dict, the content of `config.json`.
        source_language, target_language: str, default `None`, for those in
            `tokenizer_config.json`. Language codes of a multilingual model, as it names them
            ("eng_Latn", "en", "en_XX", "fra" or ">>fra<<"). `Tokenizer.for_languages` changes them
            later.

    Returns:
        `kformer.Tokenizer`. It may have fewer ids than the model has rows of embeddings.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: kformer does not read this kind of tokenizer, its files contradict each other,
            or a language is unknown or missing.
    """
    checkpoint = TokenizerFolder(pathlib.Path(folder), config)
    kind = config.get("model_type")
    if kind == "pegasus" and checkpoint.tokenizer_class == "MarianTokenizer":
        kind = "marian"  # a pre-norm model that kformer exported
    readers = {"marian": _read_marian, "m2m_100": _read_m2m_100, "mbart": _read_mbart}
    readers |= {"bart": _read_bart, "t5": _read_t5, "mt5": _read_t5}
    if kind not in readers:
        raise ValueError(
            f"The tokenizer of the model_type {kind!r} is none that kformer reads; it reads those "
            f"of {', '.join(readers)}."
        )
    return readers[kind](checkpoint, {"source": source_language, "target": target_language})


# ---- Marian ----


def _read_marian(checkpoint, codes):
    pieces, size = checkpoint.vocabulary("vocab.json"), checkpoint.config.get("vocab_size")
    settings = checkpoint.settings
    special_ids = checkpoint.special_ids(pieces, "vocab.json")
    words, added_words, hidden = checkpoint.added_words(pieces, normalizes=False)
    pieces = add_tokens(pieces, words)
    tags = {i: piece for i, piece in pieces.items() if re.fullmatch(r"(?s)>>.*<<", piece)}
    languages = {piece[2:-2]: token_id for token_id, piece in tags.items()}
    vocabulary, gaps = piece_list(pieces, size)
    target_vocabulary, target_gaps = None, None
    if settings.get("separate_vocabs"):
        target_pieces = add_tokens(checkpoint.vocabulary("target_vocab.json"), words)
        for name in ("pad_id", "unknown_id", "end_id"):
            token = pieces[special_ids[name]]
            if target_pieces.get(special_ids[name]) != token:
                raise ValueError(
                    f"target_vocab.json gives {token!r} another id than vocab.json; kformer has "
                    f"one {name}."
                )
        size = checkpoint.config.get("decoder_vocab_size") or size
        target_vocabulary, target_gaps = piece_list(target_pieces, size)
    tokenizer = Tokenizer.from_sentencepiece(
        checkpoint.model("source.spm"),
        checkpoint.model("target.spm"),
        vocabulary=vocabulary,
        target_vocabulary=target_vocabulary,
        control_ids=(*gaps, *hidden, *languages.values()),
        target_control_ids=None if target_gaps is None else [*target_gaps, *hidden],
        languages=languages,
        language_places=_MARIAN if languages else None,
        language_tags="known" if settings.get("language_tags") == "known" else bool(languages),
        added_words=added_words,
        **special_ids,
    )
    if "language_tags" in settings and (code := str(settings.get("target_lang"))) in languages:
        tokenizer = tokenizer.for_languages(target=code)  # kformer exported it with this one.
    for side, code in codes.items():
        # A bilingual model's own two languages may be codes, too: they change nothing.
        if code == settings.get(f"{side}_lang") and code not in languages:
            codes = {**codes, side: None}
    _refuse_languages({**codes, "target": None}, "A Marian model is not told its source language")
    if not languages:
        reason = "This Marian model has no language tags, so it has one target language"
        _refuse_languages(codes, reason)
    return tokenizer.for_languages(target=codes["target"])


# ---- M2M100 and NLLB ----


def _read_m2m_100(checkpoint, codes):
    classes = ("M2M100Tokenizer", "NllbTokenizer")
    if not _is_second(checkpoint, classes, lambda: not checkpoint.has("vocab.json")):
        has_json_alone = checkpoint.has("tokenizer.json") and not checkpoint.has("vocab.json")
        read = converted_pieces(checkpoint) if has_json_alone else _m2m100_pieces(checkpoint)
        options = {"normalizes": False}
        return _multilingual(checkpoint, read, r"__(.+)__", _PREFIXES, codes, options)
    positions = _NLLB_LEGACY if checkpoint.settings.get("legacy_behaviour") else _PREFIXES
    read = fairseq_pieces(checkpoint, LANGUAGES["nllb"])
    pattern = r"([a-z]{3}_[A-Z][a-z]{3})"
    return _multilingual(checkpoint, read, pattern, positions, codes, {"keeps_spaces": True})


def _m2m100_pieces(checkpoint):
    pieces = checkpoint.vocabulary("vocab.json")
    name = checkpoint.settings.get("language_codes") or "m2m100"
    check_choice("language_codes of tokenizer_config.json", name, ("m2m100", "wmt21"))
    first = len(pieces)
    published = {f"__{code}__": first + i for i, code in enumerate(LANGUAGES[name])}
    added = {**published, **checkpoint.added_tokens()}
    return with_added(checkpoint, checkpoint.model(MODEL_NAME), pieces, added)


# ---- what NLLB, mBART and M2M100 have in common ----


def _multilingual(checkpoint, read, pattern, positions, codes, options):
    """A `Tokenizer` whose languages are the added tokens that match a pattern."""
    added = sorted(read.added.items(), key=lambda item: item[1])
    matches = ((re.fullmatch(pattern, token), token_id) for token, token_id in added)
    languages = {match[1]: token_id for match, token_id in matches if match}
    if not languages:
        raise ValueError(
            "The tokenizer's files name no language, but the model needs one on each side; copy "
            "them from the hub again."
        )
    signs = {token for token, _ in added if re.fullmatch(pattern, token)}
    tokenizer = _tokenizer(
        checkpoint, read, signs, options, languages=languages, language_places=positions
    )
    for side, setting in (("source", "src_lang"), ("target", "tgt_lang")):
        code = codes[side] or checkpoint.settings.get(setting)
        if side == "target" and not codes[side]:
            # Every translation may begin with the token of a language.
            forced = checkpoint.token_id("forced_bos_token_id")
            code = next((name for name, i in languages.items() if i == forced), code)
        if not code:
            raise ValueError(
                f"This model needs a {side} language, and its tokenizer_config.json names none; "
                f"pass {side}_language= (--{side}-language), one of {some_languages(languages)}."
            )
        try:
            tokenizer = tokenizer.for_languages(**{side: code})
        except ValueError as error:
            raise ValueError(f"{error} Pass {side}_language= (--{side}-language).") from None
    return tokenizer


def _tokenizer(checkpoint, read, signs=(), reading=None, *, start="end_id", prefix=(), **options):
    """The tokenizer of a folder that names no start token begins with the token `start`; `signs`
    and `reading` are those of its added words.
    """
    reading = {"keeps_spaces": read.keeps_spaces, **(reading or {})}
    words, added_words, hidden = checkpoint.added_words(signs, **reading)
    if words and not read.adds_spaces:
        raise ValueError(
            f"After the added word {next(iter(words))!r} this tokenizer.json puts no space before "
            "text, which kformer does not follow: save it with prepend_scheme 'always'."
        )
    pieces = add_tokens(read.pieces, words)
    special_ids = checkpoint.special_ids(pieces, "The tokenizer", unknown=read.unknown, start=start)
    vocabulary, gaps = piece_list(pieces, checkpoint.config.get("vocab_size"))
    controls = {
        *gaps,
        *hidden,
        *(i for token, i in read.added.items() if token not in words),
        *(i for i, piece in pieces.items() if piece in ("<s>", "<pad>", "</s>")),
    }
    return Tokenizer.from_sentencepiece(
        read.model,
        vocabulary=vocabulary,
        source_prefix=prefix,
        target_prefix=prefix,
        control_ids=sorted(controls - {special_ids["unknown_id"]}),
        added_words=added_words,
        **special_ids,
        **options,
    )


# ---- mBART and BART ----


def _read_mbart(checkpoint, codes):
    classes = ("MBartTokenizer", "MBart50Tokenizer")
    name, positions, keeps_spaces = "mbart", _MBART, False
    if _is_second(checkpoint, classes, lambda: _has_mbart50_languages(checkpoint)):
        name, positions, keeps_spaces = "mbart50", _PREFIXES, True
    read = fairseq_pieces(checkpoint, LANGUAGES[name])
    options = {"keeps_spaces": keeps_spaces}
    return _multilingual(checkpoint, read, r"([a-z]{2,3}_[A-Z]{2})", positions, codes, options)


def _has_mbart50_languages(checkpoint):
    """Whether it is mBART-50, by the last language that only that has, or by the number of
    embeddings.
    """
    added, languages = checkpoint.added_tokens(), LANGUAGES["mbart50"]
    if not checkpoint.has(MODEL_NAME) or set(added) & set(LANGUAGES["mbart"]):
        return languages[-1] in added
    size = len(load_sentencepiece(read_sentencepiece(checkpoint.path(MODEL_NAME))))
    return checkpoint.config.get("vocab_size", 0) >= size + len(languages) + 2


def _read_bart(checkpoint, codes):
    _refuse_languages(codes, "A BART model has no languages")
    if not checkpoint.has(MODEL_NAME) and not checkpoint.has("tokenizer.json"):
        raise ValueError(
            f"The folder {str(checkpoint.folder)!r} has no {MODEL_NAME}. BART's own tokenizer is "
            "a byte-level BPE, which SentencePiece cannot express; kformer reads BART models "
            "with a SentencePiece model."
        )
    read = fairseq_pieces(checkpoint, ())
    return _tokenizer(checkpoint, read, prefix=[id_of(read.pieces, "<s>", "The tokenizer")])


# ---- T5 ----


def _read_t5(checkpoint, codes):
    _refuse_languages(codes, "A T5 model has no languages, the task is part of the text")
    if not checkpoint.has(_T5_MODEL_NAME) and checkpoint.has("tokenizer.json"):
        return _tokenizer(checkpoint, converted_pieces(checkpoint), start="pad_id")
    model = checkpoint.model(_T5_MODEL_NAME)
    pieces = model_pieces(load_sentencepiece(model))
    added = checkpoint.added_tokens()
    if not any(token.startswith("<extra_id_") for token in added):
        # The tokens for the spans of a text that training left out, numbered from the end.
        count = checkpoint.settings.get("extra_ids", _T5_EXTRA_IDS)
        check_whole("extra_ids of tokenizer_config.json", count, least=0, most=MOST_GAPS)
        names = (f"<extra_id_{number}>" for number in reversed(range(count)))
        missing = [name for name in names if name not in pieces]
        added |= {token: len(pieces) + i for i, token in enumerate(missing)}
    read = with_added(checkpoint, model, dict(enumerate(pieces)), added)
    return _tokenizer(checkpoint, read, start="pad_id")


def _refuse_languages(codes, reason):
    for side, code in codes.items():
        if code is not None:
            raise ValueError(f"{reason}; leave out {side}_language={code!r}.")


def _is_second(checkpoint, classes, guess):
    """Whether the second of two classes wrote the files, by its name, or else by `guess()`."""
    name = checkpoint.tokenizer_class.removesuffix("Fast")
    if name in _GENERIC_CLASSES:
        return guess()
    if name not in classes:
        raise ValueError(
            f"tokenizer_config.json names the class {checkpoint.tokenizer_class!r}, which adds "
            "languages in a way that kformer does not know; for the model_type "
            f"{checkpoint.config.get('model_type')!r} it reads {' and '.join(classes)}."
        )
    return name == classes[1]
