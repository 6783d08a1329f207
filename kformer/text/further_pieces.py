"""Pieces for further languages, at the end of a SentencePiece model whose own pieces stay.

A BPE model learns further merges from the new text as it segments it itself, so each new piece can
be reached, and old text without a new pair is segmented as before. For a unigram model another one
is trained on the new text, and what it has more is taken with its scores.
"""

import itertools
import unicodedata
from collections import Counter

from kformer.text.merges import learn_merges, pairs_of
from kformer.text.normalization import SPACE_SIGN, replace_all, valid_text
from kformer.text.protobuf import message
from kformer.text.scripts import script_name
from kformer.text.sentencepiece_training import SPECIAL_IDS, train_on_corpus
from kformer.text.subword_sampling import BPE, model_type
from kformer.text.vocabulary import load_sentencepiece, model_pieces

_NORMAL, _CONTROL = 1, 3
# The share of the characters of new text that have pieces, as in `Tokenizer.train`.
_COVERAGE = 0.9995
# A rarer piece of the new text could not be learned.
_MIN_OCCURRENCES = 10
# The most pieces of a word, as text without spaces may have no end.
_LONGEST_WORD = 100
# Scripts that are mixed within a word, as SentencePiece has it.
_JAPANESE = dict.fromkeys(("HIRAGANA", "KATAKANA", "IDEOGRAPHIC"), "CJK")


def with_further_pieces(vocabulary, controls, texts, former_texts, num_pieces=None):
    """Returns the SentencePiece model of a vocabulary with further pieces at the end, as bytes.

    Args:
        vocabulary: `Vocabulary` of a model of BPE or unigram.
        controls: list of str. Further control pieces.
        texts: list of str or bytes. The text that the other pieces are for.
        former_texts: list of str or bytes. Text that is segmented as before.
        num_pieces: int or `None`, default `None`. The most pieces of several characters; `None` for
            half as many as the model has pieces.
    """
    model = _appended(vocabulary.model, dict.fromkeys(controls, 0.0), _CONTROL)
    if not texts:
        return model
    pieces = _scores(model)
    limit = len(vocabulary.processor) // 2 if num_pieces is None else num_pieces
    read, former = (_read(vocabulary, each) for each in (texts, former_texts))
    characters = _frequent_characters(_count_characters(vocabulary, read))
    new = [each for each in characters if each not in pieces]
    if model_type(model) == BPE:
        return _with_merges(model, new, read, former, limit)
    trained = train_on_corpus(
        (None, texts, "", "texts"),
        None,
        usual_size=len(SPECIAL_IDS) + len(characters) + limit,
        model_type="unigram",
        normalization=vocabulary.normalization,
        character_coverage=_COVERAGE,
        max_sentences=len(texts),
        seed=0,
    )
    return _with_unigrams(model, new, _scores(trained), read, former, limit)


def share_without_pieces(vocabulary, texts):
    """Returns the share of the characters of texts for which a vocabulary has no pieces, float.

    Args:
        vocabulary: `Vocabulary`.
        texts: list of str or bytes.
    """
    counts = _count_characters(vocabulary, _read(vocabulary, texts))
    pieces = {*vocabulary.pieces}
    lacking = sum(count for character, count in counts.items() if character not in pieces)
    return lacking / max(1, sum(counts.values()))


def _read(vocabulary, texts):
    """Texts as SentencePiece reads them."""
    return [replace_all(valid_text(text), vocabulary.normalization.before) for text in texts]


def _count_characters(vocabulary, texts):
    counts = Counter(itertools.chain.from_iterable(map(vocabulary.processor.normalize, texts)))
    del counts[SPACE_SIGN]
    return counts


def _frequent_characters(counts):
    """The characters that get pieces, as SentencePiece's training chooses them."""
    total, seen, characters = sum(counts.values()), 0, []
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if seen >= _COVERAGE * total:
            break
        seen += count
        characters.append(character)
    return characters


def _with_merges(model, characters, texts, former_texts, limit):
    lowest = min(_scores(model).values())
    model = _appended(model, {each: lowest - 1 - i for i, each in enumerate(characters)})
    processor = load_sentencepiece(model)
    words, former_words = (
        Counter(
            word
            for row in processor.encode(each, out_type=str)
            for word in _words(row)
            if len(word) > 1
        )
        for each in (texts, former_texts)
    )
    former_pairs = {pair for word in former_words for pair in pairs_of(word)}
    merges = learn_merges(words, _scores(model), limit, _MIN_OCCURRENCES, former_pairs)
    return _appended(model, merges)


def _words(pieces):
    """Yields tuples of neighbouring pieces that may become one: letters of one script, the first
    of which may have a space in front.
    """
    word, script = [], None
    for piece in pieces:
        scripts = _scripts(piece)
        is_inside = scripts is not None and not piece.startswith(SPACE_SIGN)
        is_inside = is_inside and len({*scripts, script} - {None}) <= 1
        if not is_inside or len(word) == _LONGEST_WORD:
            yield tuple(word)
            word, script = [], None
        if scripts is not None:
            word.append(piece)
            script = next(iter(scripts), script)
    yield tuple(word)


def _scripts(piece):
    """The scripts of the letters of a piece, at most one, or `None` if something else is in it.

    A mark belongs to the letter before it.
    """
    letters = piece.removeprefix(SPACE_SIGN)
    scripts = {script_name(each) for each in letters if unicodedata.category(each)[0] != "M"}
    scripts = {_JAPANESE.get(script, script) for script in scripts}
    return None if None in scripts or len(scripts) > 1 else scripts


def _with_unigrams(model, characters, trained, texts, former_texts, limit):
    old = _scores(model)
    # A score below all others would change what an unknown character costs.
    lowest = min(old.values())
    pieces = {
        piece: max(score, lowest)
        for piece, score in trained.items()
        if piece not in old and len(piece) > 1 and _scripts(piece)
    }
    best = sorted(pieces, key=lambda piece: (-pieces[piece], piece))[:limit]
    characters = {each: max(trained.get(each, lowest), lowest) for each in characters}
    pieces = {piece: pieces[piece] for piece in best}
    while True:
        larger = _appended(model, characters | pieces)
        processor = load_sentencepiece(larger)
        counts, former_counts = (
            Counter(itertools.chain.from_iterable(processor.encode(each, out_type=str)))
            for each in (texts, former_texts)
        )
        useful = {
            piece: score
            for piece, score in pieces.items()
            if counts[piece] >= _MIN_OCCURRENCES and not former_counts[piece]
        }
        if len(useful) == len(pieces):
            return larger
        pieces = useful


def _scores(model):
    """The score of each ordinary piece."""
    processor = load_sentencepiece(model)
    return {
        piece: processor.get_score(i)
        for i, piece in enumerate(model_pieces(processor))
        if not (processor.is_control(i) or processor.is_unknown(i) or processor.is_byte(i))
    }


def _appended(model, scores, kind=_NORMAL):
    """A SentencePiece model with further pieces, a dict of piece to score, at the end."""
    pieces = [(1, {1: piece.encode("utf-8"), 2: score, 3: kind}) for piece, score in scores.items()]
    return model + message(pieces)
