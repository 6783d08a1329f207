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
from kformer_options.names import named
from kformer_options.text_files import check_readable, count_lines

MODEL_TYPES = ("unigram", "bpe")
PAD_ID, UNKNOWN_ID, START_ID, END_ID = range(4)

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


def train_on_corpus(corpus, vocabulary_size, **settings):
    """Trains one model on a corpus, of a number of pieces that fits it if none is given.

    A small corpus has fewer pieces than the usual number, and a Chinese one needs more.

    Args:
        corpus: tuple of the arguments of `open_corpus`.
        vocabulary_size: int or `None`.
        **settings: as for `train_sentencepiece`.

    Returns:
        bytes, as `train_sentencepiece`.
    """

    def train(size):
        sentences, name = open_corpus(*corpus)
        return train_sentencepiece(sentences, corpus=name, vocabulary_size=size, **settings)

    if vocabulary_size is not None:
        return train(vocabulary_size)
    size = default_vocabulary_size(_count_texts(*corpus[:2]))
    for _ in range(_ATTEMPTS - 1):
        try:
            return train(size)
        except VocabularySizeError as error:
            if isinstance(corpus[1], Iterator):
                raise  # It can be read only once.
            size = error.possible
    return train(size)


def _count_texts(files, texts):
    """The number of texts (of the longest file), or a usual one for an iterator."""
    if texts is not None:
        return len(texts) if hasattr(texts, "__len__") else _USUAL_TEXTS
    paths = [files] if isinstance(files, str | os.PathLike) else files
    return max(map(count_lines, paths), default=0)


def train_sentencepiece(
    sentences,
    *,
    corpus,
    vocabulary_size,
    model_type,
    normalization,
    byte_fallback,
    character_coverage,
    split_digits,
    max_sentences,
    seed,
    side=0,
):
    """Trains one model and returns it serialized.

    Args:
        sentences: iterable of str or bytes.
        corpus: what to call these texts in an error.
        normalization: a `Normalization` that has a `sentencepiece_rule`.
        side: int, default 0. 1 for the model of the target side, for a `VocabularySizeError`.
        others: as in `Tokenizer.train`.

    Returns:
        bytes.

    Raises:
        VocabularySizeError: if the vocabulary size does not fit the corpus.
        ValueError: if a setting is impossible.
    """
    _check_settings(vocabulary_size, model_type, character_coverage, max_sentences)
    sample = _sample(_sentence_parts(sentences, normalization), max_sentences, seed)
    if not sample:
        raise ValueError(
            f"There is no text in {corpus}; a tokenizer needs at least one line that is not blank."
        )
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
            byte_fallback=byte_fallback,
            character_coverage=character_coverage,
            split_digits=split_digits,
            max_sentence_length=_MAX_SENTENCE_BYTES,
            input_sentence_size=0,
            shuffle_input_sentence=False,
            hard_vocab_limit=True,
            num_threads=_THREADS,
            pad_id=PAD_ID,
            unk_id=UNKNOWN_ID,
            bos_id=START_ID,
            eos_id=END_ID,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _explained(str(error), corpus, vocabulary_size, side) from None
    model = writer.getvalue()
    return quantize_scores(model) if model_type == "unigram" else model


def open_corpus(files, texts, files_name, texts_name):
    """(iterable of texts, their name in errors), from files or from texts.

    Raises:
        FileNotFoundError: if a file is not there.
        ValueError: if both ways or neither are used, one string stands for an iterable, or a path
            is of another type.
    """
    if (files is None) == (texts is None):
        raise ValueError(f"Pass either {files_name} or {texts_name} to train a tokenizer.")
    if texts is not None:
        if isinstance(texts, str | bytes) or not hasattr(texts, "__iter__"):
            raise ValueError(
                f"{texts_name} must be an iterable of texts, not one {type(texts).__name__}."
            )
        return texts, texts_name
    is_one = isinstance(files, str | bytes) or not hasattr(files, "__iter__")
    paths = [files] if is_one else list(files)
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            raise ValueError(
                f"{files_name} takes paths of text files, but it has a {type(path).__name__}: give "
                f"texts themselves as {texts_name}."
            )
        if not os.path.isfile(path):
            raise FileNotFoundError(f"There is no text file {os.fspath(path)!r}; check the path.")
        check_readable(path, "text")
    names = ", ".join(repr(os.fspath(path)) for path in itertools.islice(paths, 3))
    return read_lines(paths), names + (" ..." if len(paths) > 3 else "") or files_name


def read_lines(paths):
    """Lines of UTF-8 files, one file after the other, without their line ends.

    Raises:
        ValueError: if a line is not valid UTF-8.
    """
    for path in paths:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield line.rstrip(b"\r\n").decode("utf-8")
                except UnicodeDecodeError:
                    raise ValueError(
                        f"Line {number} of {os.fspath(path)!r} is not valid UTF-8; convert the "
                        "file to UTF-8 (for example with iconv)."
                    ) from None


def _check_settings(vocabulary_size, model_type, character_coverage, max_sentences):
    check_whole("vocabulary_size", vocabulary_size, least=END_ID + 1)
    check_whole("max_sentences", max_sentences)
    check_choice("model_type", model_type, MODEL_TYPES)
    if not 0.0 < character_coverage <= 1.0:
        raise ValueError(
            f"character_coverage={character_coverage!r} must be above 0 and at most 1, such as "
            "0.9995."
        )


def _sentence_parts(sentences, normalization):
    for sentence in sentences:
        text = replace_all(valid_text(sentence), normalization.before)
        # SentencePiece leaves out a sentence with a NUL, so only the NUL is removed.
        for line in text.replace("\0", "\n").split("\n"):
            for start in range(0, len(line), _PART_CHARACTERS):
                part = line[start : start + _PART_CHARACTERS]
                if not part.isspace():
                    yield part


def _sample(sentences, size, seed):
    """A uniform sample of at most `size` sentences (Vitter's algorithm R) for a seed."""
    generator = random.Random(seed)
    kept = []
    for index, sentence in enumerate(sentences):
        if index < size:
            kept.append(sentence)
        else:
            slot = generator.randrange(index + 1)
            if slot < size:
                kept[slot] = sentence
    return kept


def _explained(message, corpus, vocabulary_size, side):
    """SentencePiece's error as an error with one sentence and a remedy."""
    name = named("vocabulary_size")
    size = f"{name}={vocabulary_size}"
    if match := re.search(r"Vocabulary size too high .* <= (\d+)", message):
        text = (
            f"{size} is too large for {corpus}, which supports at most {match[1]} pieces; pass "
            f"{name}={match[1]} or less, or train on more text."
        )
        return VocabularySizeError(text, int(match[1]), side)
    if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        text = (
            f"{size} is too small for {corpus}, whose characters, bytes and special tokens need "
            f"{match[1]} pieces; pass {name}={match[1]} or more."
        )
        return VocabularySizeError(text, int(match[1]), side)
    if "all_chars_count" in message:
        return ValueError(
            f"There is no text in {corpus} after normalisation; a tokenizer needs at least one "
            "visible character."
        )
    return ValueError(f"SentencePiece could not train on {corpus}: {' '.join(message.split())}")
