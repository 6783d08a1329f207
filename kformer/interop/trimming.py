"""Trims the vocabulary of a model to the pieces that some text needs.

A multilingual model spends most of its weights on pieces of languages that a user never reads:
NLLB-200's 256,000 pieces are 262 of its 600 million parameters. Those that do not occur in a
user's text can go, with their rows of the embeddings and of the output projection.
"""

import dataclasses
import itertools
import unicodedata

import numpy as np
from keras import ops

from kformer.decoding.options import TOKEN_LISTS
from kformer.models import Ensemble
from kformer.text import Tokenizer
from kformer.text.folder import SIDES
from kformer.text.normalization import SPACE_SIGN, replace_all, valid_text
from kformer.text.unigram_scores import message_fields
from kformer.translating.translator import Translator
from kformer.translating.word_alignment import without_calibration
from kformer.utils.checks import check_texts

# Field numbers of SentencePiece's ModelProto, and of the messages inside it.
_PIECES_FIELD, _TRAINER_FIELD = 1, 2
_NAME_FIELD, _SCORE_FIELD, _TYPE_FIELD, _MODEL_TYPE_FIELD = 1, 2, 3, 3
_UNIGRAM, _BPE = 1, 2
# The types of pieces that text is made of: ordinary, defined by a user, unused.
_ORDINARY = {1, 4, 5}


def trim_vocabulary(translator, texts):
    """A translator with only the pieces that some text needs.

    Kept are the pieces of the text's segmentation, of BPE also those that lead to them; special
    tokens, languages and bytes; and single characters, except letters of scripts that the text has
    not. So the text has the same segmentation as before, and other text of its languages can be
    read and written. The logits of the pieces that are kept are what they were; probabilities
    become a little higher, since fewer pieces share them.

    Args:
        translator: `kformer.Translator`.
        texts: iterable of str. Text of both languages, such as a training set: what is rare in it
            stays, what does not occur in it goes.

    Returns:
        `kformer.Translator` with new model and tokenizer. Search options are kept; forbidden tokens
        and shortlists lose what is gone.

    Raises:
        ValueError: the translator has an ensemble, or there is no text.

    Example:
    ```python
    translator = kformer.Translator.load("runs/en-de")
    small = kformer.interop.trim_vocabulary(translator, open("train.en", encoding="utf-8"))
    print(len(translator.tokenizer.vocabulary()), len(small.tokenizer.vocabulary()))
    ```

    References:
        Abdaoui et al. 2020, "Load what you need: smaller versions of multilingual BERT".
    """
    if isinstance(translator.model, Ensemble):
        raise ValueError("An ensemble cannot be trimmed: trim each of its runs by the same text.")
    texts = [valid_text(text) for text in check_texts(texts)]
    if not any(text.strip() for text in texts):
        raise ValueError("There is no text to trim a vocabulary by: give some of both languages.")
    tokenizer, config = translator.tokenizer, translator.model.config
    ids, names = {}, {}
    for side in SIDES:
        ids[side], names[side] = _needed_ids(tokenizer, side, texts)
    if config.target_vocabulary_size is None or tokenizer.joint:
        ids = dict.fromkeys(SIDES, ids["source"] | ids["target"])
    ids = {side: np.array(sorted(ids[side])) for side in SIDES}
    numbers = {side: {int(old): new for new, old in enumerate(ids[side])} for side in SIDES}
    model = _trimmed_model(translator.model, ids, numbers["target"])
    changes, targets = {}, numbers["target"]
    for name in TOKEN_LISTS:
        listed = getattr(translator.options, name)
        changes[name] = tuple(targets[i] for i in listed if i in targets)
    options = dataclasses.replace(translator.options, **changes)
    return Translator(
        model,
        _trimmed_tokenizer(tokenizer, ids, numbers, names),
        options,
        config=without_calibration(translator.config),
        dtype=translator.dtype,
    )


# ---- which pieces stay ----


def _needed_ids(tokenizer, side, texts):
    """The ids of a side that stay, and the names of the pieces that its SentencePiece model needs.

    The model may have pieces without an id of their own, which become the unknown token. Those that
    the text has stay, or others would take their place.
    """
    vocabulary = tokenizer.vocabulary(side)
    ids = {i for row in vocabulary.encode(texts) for i in row}
    ids |= set(tokenizer.special_ids.values()) | set(vocabulary.control_ids)
    ids |= set(tokenizer.languages.values())
    ids |= {*tokenizer.source_prefix, *tokenizer.source_suffix}
    ids |= {*tokenizer.target_prefix, *tokenizer.target_suffix}
    pieces = _proto_pieces(vocabulary.model)
    special = {name for name, _, kind in pieces if kind not in _ORDINARY}  # bytes, controls
    scripts = {None, *(_script(character) for text in texts for character in text)}
    for i, piece in enumerate(vocabulary.pieces):
        is_character = len(piece.strip(SPACE_SIGN)) < 2 and _script(piece[-1:]) in scripts
        if piece in special or is_character:
            ids.add(i)
    before = vocabulary.normalization.before
    read = [replace_all(valid_text(text), before) for text in texts]
    names = {piece for row in vocabulary.processor.encode(read, out_type=str) for piece in row}
    names |= {vocabulary.pieces[i] for i in ids}
    if _model_type(vocabulary.model) == _BPE:
        numbers = {piece: i for i, piece in enumerate(vocabulary.pieces)}
        scores = {name: score for name, score, kind in pieces if kind in _ORDINARY}
        names |= {merged for name in names for merged in _merges(name, scores)}
        ids |= {numbers[name] for name in names if name in numbers}
    return ids, names


def _script(character):
    """The script of a letter, by the first word of its name; `None` for all else."""
    if not character or not character.isalpha():
        return None
    return unicodedata.name(character, "").partition(" ")[0].partition("-")[0]


def _merges(piece, scores):
    """The pieces that BPE makes on its way from characters to a piece."""
    symbols, merges = list(piece), []
    while True:
        pairs = [first + second for first, second in itertools.pairwise(symbols)]
        ranked = [(scores[pair], -i, pair) for i, pair in enumerate(pairs) if pair in scores]
        if not ranked:
            return merges
        _, i, pair = max(ranked)
        symbols[-i : 2 - i] = [pair]
        merges.append(pair)


# ---- the tokenizer ----


def _trimmed_tokenizer(tokenizer, ids, numbers, names):
    models, pieces, controls = [], [], []
    for side in SIDES:
        vocabulary = tokenizer.vocabulary(side)
        listed = [vocabulary.pieces[i] for i in ids[side]]
        models.append(_trimmed_proto(vocabulary.model, {*names[side], *listed}))
        pieces.append(None if vocabulary.custom_pieces is None else listed)
        controls.append(tuple(numbers[side][i] for i in vocabulary.control_ids))
    source = numbers["source"]
    prefixes = {"source": tokenizer.source_prefix, "target": tokenizer.target_prefix}
    suffixes = {"source": tokenizer.source_suffix, "target": tokenizer.target_suffix}
    return Tokenizer._from_parts(
        models,
        pieces,
        controls,
        normalization=tokenizer.normalization,
        special_ids={name: source[i] for name, i in tokenizer.special_ids.items()},
        languages={code: source[i] for code, i in tokenizer.languages.items()} or None,
        language_places=tokenizer._language_places,
        language_tags=tokenizer.language_tags,
        prefixes={side: [numbers[side][i] for i in prefixes[side]] for side in SIDES},
        suffixes={side: [numbers[side][i] for i in suffixes[side]] for side in SIDES},
    )


def _trimmed_proto(model, names):
    """A SentencePiece model without the ordinary pieces that are not among the names."""
    out, begin = bytearray(), 0
    for field, _, start, end in message_fields(model, 0, len(model)):
        if field != _PIECES_FIELD:
            out += model[begin:end]
        else:
            name, _, kind = _proto_piece(model, start, end)
            if kind not in _ORDINARY or name in names:
                out += model[begin:end]
        begin = end
    return bytes(out)


def _proto_pieces(model):
    """Name, score and type of each piece of a SentencePiece model."""
    return [
        _proto_piece(model, start, end)
        for field, _, start, end in message_fields(model, 0, len(model))
        if field == _PIECES_FIELD
    ]


def _proto_piece(model, start, end):
    name, score, kind = "", 0.0, 1
    for field, _, begin, stop in message_fields(model, start, end):
        if field == _NAME_FIELD:
            name = model[begin:stop].decode("utf-8")
        elif field == _SCORE_FIELD:
            score = float(np.frombuffer(model[begin:stop], "<f4")[0])
        elif field == _TYPE_FIELD:
            kind = model[begin]
    return name, score, kind


def _model_type(model):
    for field, _, start, end in message_fields(model, 0, len(model)):
        if field == _TRAINER_FIELD:
            for inner, _, begin, _ in message_fields(model, start, end):
                if inner == _MODEL_TYPE_FIELD:
                    return model[begin]
    return _UNIGRAM


# ---- the model ----


def _trimmed_model(model, ids, numbers):
    """The model with the rows alone of the ids that stay."""
    config = model.get_config()
    config["vocabulary_size"] = len(ids["source"])
    if config.get("target_vocabulary_size") is not None:
        config["target_vocabulary_size"] = len(ids["target"])
    config |= {name: numbers[config[name]] for name in ("pad_id", "start_id", "end_id")}
    trimmed = type(model).from_config(config)
    weights = {weight.path: weight for weight in model.weights}
    for weight in trimmed.weights:
        value = ops.convert_to_numpy(weights[weight.path])
        axes = [axis for axis, size in enumerate(weight.shape) if size != value.shape[axis]]
        if axes:
            side = "source" if weight.path.startswith("source_embedding") else "target"
            value = np.take(value, ids[side], axis=axes[0])
        weight.assign(value)
    return trimmed
