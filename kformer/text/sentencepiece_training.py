"""Deterministic training of a SentencePiece model, from files or from an iterable of texts.

References:
    Kudo and Richardson (2018), SentencePiece, https://arxiv.org/abs/1808.06226.
    Kudo (2018), Subword Regularization (the unigram model), https://arxiv.org/abs/1804.10959.
    Sennrich et al. (2016), Neural Machine Translation of Rare Words with Subword Units (BPE),
    https://arxiv.org/abs/1508.07909.
"""

import io
import itertools
import os
import random
import re
from collections.abc import Iterator

import sentencepiece

from kformer.text.normalization import replace_all, valid_text
from kformer.text.unigram_scores import quantize_scores
from kformer.text.vocabulary_size import default_vocabulary_size
from kformer.utils.checks import check_choice, check_whole
from kformer.utils.lines import read_chunks
from kformer_options.names import in_python, named
from kformer_options.text_files import check_readable, check_rereadable, count_lines, is_path

MODEL_TYPES = ("unigram", "bpe")
SPECIAL_IDS = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}

# The last bits of the sums in unigram training depend on the number of threads. With a fixed number
# every machine trains the same model.
_THREADS = 4
# SentencePiece leaves out sentences of more than max_sentence_length bytes, so texts are split into
# shorter parts. A character has at most four bytes, and twice that if it is escaped.
_PART_CHARACTERS = 1000
_MAX_SENTENCE_BYTES = 8 * _PART_CHARACTERS


# The texts of an iterator, which is read only once, are not counted; so many lead to 8,000 pieces.
_USUAL_TEXTS = 100_000
# The most sizes that are tried until one fits the corpus.
_ATTEMPTS = 5


class VocabularySizeError(ValueError):
    """The corpus has fewer pieces than the vocabulary size, or needs more.

    Attributes:
        possible: int, the nearest size that the corpus allows.
        side: int, 0 for the model of both sides or of the source, 1 for that of the target.
    """

    def __init__(self, message, possible, side):
        super().__init__(message)
        self.possible, self.side = possible, side


def train_on_corpus(corpus, vocabulary_size, usual_size=None, **settings):
    """Trains one model on a corpus, of a number of pieces that fits it if none is given.

    A small corpus has fewer pieces than the usual number, and a Chinese one needs more.

    Args:
        corpus: tuple of the arguments of `open_corpus`.
        vocabulary_size: int or `None`.
        usual_size: int or `None`, default `None`. The number of pieces that is tried first if none
            is given; `None` for one by the number of lines.
        **settings: as for `train_sentencepiece`.

    Returns:
        bytes, as `train_sentencepiece`.
    """

    def train(size):
        sentences, name = open_corpus(*corpus)
        return train_sentencepiece(sentences, corpus=name, vocabulary_size=size, **settings)

    if vocabulary_size is not None:
        return train(vocabulary_size)
    files, texts = corpus[:2]
    if usual_size is not None:
        count = None
    elif texts is not None:
        count = len(texts) if hasattr(texts, "__len__") else _USUAL_TEXTS
    else:
        paths = [files] if is_path(files) else files
        for path in paths:
            check_rereadable(path, "text")
        count = max(map(count_lines, paths), default=0)
    size = usual_size or default_vocabulary_size(count)
    for _ in range(_ATTEMPTS - 1):
        try:
            return train(size)
        except VocabularySizeError as error:
            if isinstance(texts, Iterator):
                raise  # It can be read only once.
            size = error.possible
    return train(size)


def train_sentencepiece(
    sentences,
    *,
    corpus,
    vocabulary_size,
    model_type,
    normalization,
    character_coverage,
    max_sentences,
    seed,
    side=0,
    **options,
):
    """Trains one model and returns it serialized.

    Args:
        sentences: iterable of str or bytes.
        corpus: str. What to call these texts in an error.
        normalization: a `Normalization` that has a `sentencepiece_rule`.
        side: int, default 0. 1 for the model of the target side, for a `VocabularySizeError`.
        others: as in `Tokenizer.train`.

    Returns:
        bytes.

    Raises:
        VocabularySizeError: if the vocabulary size does not fit the corpus.
        ValueError: if a setting is impossible.
    """
    check_whole("vocabulary_size", vocabulary_size, least=len(SPECIAL_IDS))
    check_whole("max_sentences", max_sentences)
    check_choice("model_type", model_type, MODEL_TYPES)
    if not 0.0 < character_coverage <= 1.0:
        raise ValueError(f"character_coverage={character_coverage!r} must be in (0, 1].")
    sample = sample_texts(_sentence_parts(sentences, normalization), max_sentences, seed)
    if not sample:
        raise ValueError(f"There is no text in {corpus}; give at least one line that is not blank.")
    writer = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            # Each sentence is removed when it is read, since SentencePiece has its own copy.
            sentence_iterator=(sample.pop() for _ in range(len(sample))),
            model_writer=writer,
            vocab_size=vocabulary_size,
            model_type=model_type,
            normalization_rule_name=normalization.sentencepiece_rule,
            remove_extra_whitespaces=normalization.remove_extra_whitespaces,
            add_dummy_prefix=True,
            character_coverage=character_coverage,
            max_sentence_length=_MAX_SENTENCE_BYTES,
            input_sentence_size=0,
            shuffle_input_sentence=False,
            hard_vocab_limit=True,
            num_threads=_THREADS,
            minloglevel=2,
            **SPECIAL_IDS,
            **options,
        )
    except RuntimeError as error:
        raise _explained(str(error), corpus, vocabulary_size, side) from None
    model = writer.getvalue()
    return quantize_scores(model) if model_type == "unigram" else model


def files_or_texts(files, texts):
    """Returns the files and the texts of a corpus: texts that were given as files become texts.

    A list or tuple of str has paths. Another iterable has texts, unless its first item is a path or
    names a file.
    """
    if isinstance(files, str | bytes | list | tuple) or not hasattr(files, "__iter__"):
        return files, texts
    items = iter(files)
    first = next(items, None)
    if first is None or isinstance(first, os.PathLike) or os.path.isfile(first):
        return [first, *items] if first is not None else [], texts
    # An iterator can be read once.
    return None, itertools.chain([first], items) if items is files else files


def open_corpus(files, texts, files_name, texts_name):
    """Returns an iterable of texts and their name in errors, from files or from texts.

    Raises:
        FileNotFoundError: if a file is not there.
        ValueError: if both ways or neither are used, one string stands for an iterable, or a path
            is of another type.
    """
    if (files is None) == (texts is None):
        raise ValueError(f"Pass either {files_name} or {texts_name} to train a tokenizer.")
    if texts is not None:
        if isinstance(texts, str | bytes) or not hasattr(texts, "__iter__"):
            kind = type(texts).__name__
            raise ValueError(f"{texts_name} must be an iterable of texts, not one {kind}.")
        return texts, texts_name
    is_one = isinstance(files, str | bytes) or not hasattr(files, "__iter__")
    paths = [files] if is_one else list(files)
    for path in paths:
        if not is_path(path):
            raise ValueError(
                f"{files_name} takes paths of text files, but it has a {type(path).__name__}: give "
                f"texts themselves as {texts_name}."
            )
        if not os.path.exists(path):
            raise FileNotFoundError(
                f"The text file {os.fspath(path)!r} does not exist; give the path of a UTF-8 text "
                f"file{in_python(f', or texts themselves as {texts_name}=')}."
            )
        check_readable(path, "text")
    names = ", ".join(repr(os.fspath(path)) for path in paths[:3]) + " ..." * (len(paths) > 3)
    chunks = (chunk for path in paths for chunk in read_chunks(path, "text", 10_000))
    return itertools.chain.from_iterable(chunks), names or files_name


def sample_texts(texts, count, seed):
    """Returns a uniform sample of texts, a list (Vitter's algorithm R).

    Args:
        texts: iterable of texts.
        count: int. The most texts of the sample.
        seed: int.
    """
    generator, sample = random.Random(seed), []
    for index, text in enumerate(texts):
        if index < count:
            sample.append(text)
        elif (slot := generator.randrange(index + 1)) < count:
            sample[slot] = text
    return sample


def _sentence_parts(sentences, normalization):
    for sentence in sentences:
        text = replace_all(valid_text(sentence), normalization.before)
        # SentencePiece leaves out a sentence with a NUL, so only the NUL is removed.
        for line in text.replace("\0", "\n").split("\n"):
            for start in range(0, len(line), _PART_CHARACTERS):
                part = line[start : start + _PART_CHARACTERS]
                if not part.isspace():
                    yield part


def _explained(message, corpus, vocabulary_size, side):
    """Returns SentencePiece's error as an error with one sentence and a remedy."""
    name = named("vocabulary_size")
    for pattern, fault, verb, change in (
        (r"Vocabulary size too high .* <= (\d+)", "large", "has at most", "less"),
        (r"smaller than required_chars\. \d+ vs (\d+)", "small", "needs", "more"),
    ):
        if match := re.search(pattern, message):
            text = (
                f"{name}={vocabulary_size} is too {fault} for {corpus}, which {verb} {match[1]} "
                f"pieces: pass {name}={match[1]} or {change}."
            )
            return VocabularySizeError(text, int(match[1]), side)
    if "all_chars_count" in message:
        return ValueError(f"There is no text in {corpus} after normalisation; give words.")
    return ValueError(f"SentencePiece could not train on {corpus}: {' '.join(message.split())}")
