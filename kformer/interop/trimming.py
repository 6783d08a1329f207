"""Trims the vocabulary of a model to the pieces that some text needs.

A multilingual model spends most of its weights on pieces of languages that a user never reads:
NLLB-200's 256,000 pieces are 262 of its 600 million parameters. Those that do not occur in a
user's text can go, with their rows of the embeddings and of the output projection.
"""

import dataclasses

import numpy as np

from kformer.models import Ensemble
from kformer.models.token_tables import with_tables
from kformer.text import Tokenizer
from kformer.text.folder import SIDES
from kformer.text.merges import merge_pieces
from kformer.text.normalization import SPACE_SIGN, replace_all, valid_text
from kformer.text.protobuf import message_fields
from kformer.text.scripts import script_name
from kformer.text.subword_sampling import BPE, model_type
from kformer.text.vocabulary import model_pieces
from kformer.translating.translator import Translator
from kformer.translating.word_alignment import without_calibration
from kformer.utils.checks import check_texts
from kformer_options.search import TOKEN_LISTS

# The number of the pieces in SentencePiece's ModelProto.
_PIECES_FIELD = 1


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
    # Special tokens have one id on both sides. Ids that are not SentencePiece's own may be in any
    # order, so these come first.
    first = set(tokenizer.special_ids.values())
    if _language_sides(tokenizer) == {*SIDES}:
        first |= {*tokenizer.languages.values()}
    if tokenizer.joint or any(tokenizer.vocabulary(side).custom_pieces is None for side in SIDES):
        first = set()
    ids = {side: np.array(sorted(ids[side], key=lambda i: (i not in first, i))) for side in SIDES}
    numbers = {side: {int(old): new for new, old in enumerate(ids[side])} for side in SIDES}
    targets = numbers["target"]
    changes = {
        name: tuple(targets[i] for i in getattr(translator.options, name) if i in targets)
        for name in TOKEN_LISTS
    }
    return Translator(
        _trimmed_model(translator.model, ids, targets),
        _trimmed_tokenizer(tokenizer, ids, numbers, names),
        dataclasses.replace(translator.options, **changes),
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
    ids = {
        *(i for row in vocabulary.encode(texts) for i in row),
        *(*tokenizer.special_ids.values(), *vocabulary.control_ids),
        *(tokenizer.languages.values() if side in _language_sides(tokenizer) else ()),
        *(vocabulary.added_words.ids.values() if vocabulary.added_words else ()),
        *(*getattr(tokenizer, f"{side}_prefix"), *getattr(tokenizer, f"{side}_suffix")),
    }
    processor = vocabulary.processor
    ordinary = _ordinary_pieces(processor)
    special = set(model_pieces(processor)) - set(ordinary)  # bytes, controls
    scripts = {None, *(script_name(character) for text in texts for character in text)}
    for i, piece in enumerate(vocabulary.pieces):
        is_character = len(piece.strip(SPACE_SIGN)) < 2 and script_name(piece[-1:]) in scripts
        if piece in special or is_character:
            ids.add(i)
    before = vocabulary.normalization.before
    read = [replace_all(valid_text(text), before) for text in texts]
    names = {piece for row in processor.encode(read, out_type=str) for piece in row}
    names |= {vocabulary.pieces[i] for i in ids}
    if model_type(vocabulary.model) == BPE:
        numbers = {piece: i for i, piece in enumerate(vocabulary.pieces)}
        names |= {merged for name in names for merged in merge_pieces(list(name), ordinary)}
        ids |= {numbers[name] for name in names if name in numbers}
    return ids, names


def _language_sides(tokenizer):
    """The sides on which the ids of languages are pieces, a set; the start token is on both."""
    places = [place for places in tokenizer._language_places.values() for place in places]
    return {side for side in SIDES for place in places if place.startswith((side, "start"))}


def _ordinary_pieces(processor):
    """The score of each piece that text is made of: ordinary, defined by a user, or unused."""
    return {
        processor.id_to_piece(i): processor.get_score(i)
        for i in range(len(processor))
        if not (processor.is_control(i) or processor.is_unknown(i) or processor.is_byte(i))
    }


# ---- the tokenizer ----


def _trimmed_tokenizer(tokenizer, ids, numbers, names):
    models, pieces, controls = [], [], []
    for side in SIDES:
        vocabulary = tokenizer.vocabulary(side)
        listed = [vocabulary.pieces[i] for i in ids[side]]
        models.append(_trimmed_proto(vocabulary, {*names[side], *listed}))
        pieces.append(None if vocabulary.custom_pieces is None else listed)
        controls.append(tuple(numbers[side][i] for i in vocabulary.control_ids))
    source = numbers["source"]
    of_languages = source if "source" in _language_sides(tokenizer) else numbers["target"]
    prefixes = {"source": tokenizer.source_prefix, "target": tokenizer.target_prefix}
    suffixes = {"source": tokenizer.source_suffix, "target": tokenizer.target_suffix}
    return Tokenizer(
        models,
        pieces,
        controls,
        normalization=tokenizer.normalization,
        special_ids={name: source[i] for name, i in tokenizer.special_ids.items()},
        languages={code: of_languages[i] for code, i in tokenizer.languages.items()} or None,
        language_places=tokenizer._language_places,
        language_tags=tokenizer.language_tags,
        added_words=tokenizer._added_words,
        prefixes={side: [numbers[side][i] for i in prefixes[side]] for side in SIDES},
        suffixes={side: [numbers[side][i] for i in suffixes[side]] for side in SIDES},
    )


def _trimmed_proto(vocabulary, names):
    """The SentencePiece model without the ordinary pieces that are not among the names."""
    model, dropped = vocabulary.model, _ordinary_pieces(vocabulary.processor).keys() - names
    pieces = iter(model_pieces(vocabulary.processor))
    out, begin = bytearray(), 0
    for field, _, _, end in message_fields(model, 0, len(model)):
        if field != _PIECES_FIELD or next(pieces) not in dropped:
            out += model[begin:end]
        begin = end
    return bytes(out)


# ---- the model ----


def _trimmed_model(model, ids, numbers):
    """The model with the rows alone of the ids that stay."""
    changes = {name: numbers[getattr(model, name)] for name in ("pad_id", "start_id", "end_id")}
    changes["vocabulary_size"] = len(ids["source"])
    if model.config.target_vocabulary_size is not None:
        changes["target_vocabulary_size"] = len(ids["target"])
    return with_tables(model, changes, lambda table, side, _: table[ids[side]])
