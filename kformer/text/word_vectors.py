"""Pretrained word vectors (word2vec, GloVe) as the first values of an embedding table."""

import pathlib
from dataclasses import dataclass, field

import numpy as np

from kformer.text.normalization import SPACE_SIGN
from kformer.utils.checks import check_choice

FORMATS = ("auto", "word2vec", "word2vec_binary", "glove")
_LONGEST_WORD = 10_000  # In bytes; a longer word means that the file is not binary word2vec.


@dataclass(frozen=True)
class WordVectors:
    """A table for an embedding, and the tokens that the file has.

    Attributes:
        table: float32 array `[V, D]`. A row for each token.
        found: list of str. The tokens that have a vector in the file.
        missing: list of str. The other tokens; their rows are random, with the same standard
            deviation.
    """

    table: np.ndarray
    found: list = field(repr=False)
    missing: list = field(repr=False)

    @property
    def coverage(self):
        """The share of the tokens that were found, in `[0, 1]`."""
        return len(self.found) / max(len(self.found) + len(self.missing), 1)

    def report(self):
        """The coverage as a sentence."""
        total = len(self.found) + len(self.missing)
        some = ", ".join(repr(token) for token in self.missing[:5])
        return f"{len(self.found):,} of {total:,} tokens have a vector ({self.coverage:.1%})" + (
            f"; not {some} ..." if some else ""
        )


def load_word_vectors(path, tokens, *, format="auto", lowercase=False, std=None, seed=0):
    """Reads the vectors of a tokenizer's pieces or of a list of words.

    The file is read once, and only the wanted rows are kept, so it may be larger than the memory.
    If a word occurs twice, the first vector counts.

    Args:
        path: path of a word2vec file (text or binary) or of a GloVe file (text).
        tokens: `kformer.Tokenizer` or list of str. Of a tokenizer the source pieces are looked up,
            without the sign that marks the begin of a word.
        format: str, default "auto". `"word2vec"` (the first line has the numbers of words and
            dimensions), `"word2vec_binary"`, `"glove"` (no such line) or `"auto"`, which looks at
            the beginning of the file.
        lowercase: bool, default False. Whether a token that the file lacks is looked up in lower
            case.
        std: float or `None`, default `None`. The standard deviation that the vectors are scaled to;
            `None` does not scale them. An embedding of this package that multiplies by sqrt(D)
            learns best from 1 / sqrt(D).
        seed: int, default 0. The seed of the rows of missing tokens.

    Returns:
        `WordVectors`. Pass its `table` to `kformer.layers.PositionalEmbedding(pretrained=...)`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged or has another format, or has none of the tokens.

    Example:
    ```python
    vectors = kformer.text.load_word_vectors("glove.6B.100d.txt", ["the", "dog"], std=0.1)
    vectors.report()  # "2 of 2 tokens have a vector (100.0%)"
    ```

    References:
        Mikolov et al. 2013, "Efficient estimation of word representations in vector space";
        Pennington et al. 2014, "GloVe".
    """
    path = pathlib.Path(path)
    check_choice("format", format, FORMATS)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file of word vectors at {path}.")
    names = _names(tokens)
    wanted = {*names, *(word.lower() for word in names if lowercase)}
    vectors = _read(path, _format_of(path) if format == "auto" else format, wanted)
    rows = [vectors.get(word, vectors.get(word.lower()) if lowercase else None) for word in names]
    labels = tokens if isinstance(tokens, list | tuple) else _pieces(tokens)
    found = [label for label, row in zip(labels, rows, strict=True) if row is not None]
    if not found:
        raise ValueError(
            f"{path} has no vector for any token of the vocabulary; is it of the same language, "
            "and written in the same way?"
        )
    known = np.stack([row for row in rows if row is not None])
    spread = float(known.std()) or 1.0
    scale = 1.0 if std is None else std / spread
    generator = np.random.default_rng(seed)
    table = generator.normal(0, spread * scale, (len(names), known.shape[1])).astype("float32")
    for index, row in enumerate(rows):
        if row is not None:
            table[index] = row * scale
    return WordVectors(
        table, found, [label for label, row in zip(labels, rows, strict=True) if row is None]
    )


def _pieces(tokenizer):
    return [
        tokenizer.id_to_token(token_id, "source") for token_id in range(tokenizer.vocabulary_size)
    ]


def _names(tokens):
    """The word to look up for each token."""
    if isinstance(tokens, str | bytes):
        raise ValueError(
            "tokens must be a tokenizer or a list of words, but one text was given; split it."
        )
    if isinstance(tokens, list | tuple):
        return list(tokens)
    return [piece.removeprefix(SPACE_SIGN) or piece for piece in _pieces(tokens)]


def _format_of(path):
    with open(path, "rb") as file:
        first = file.readline(1 << 16)
        if not _is_header(first):
            return "glove"
        # A binary file is not valid text after the header.
        sample = file.readline(1 << 16)
    try:
        parts = sample.decode("utf-8").split()
        return (
            "word2vec"
            if len(parts) > int(first.split()[1]) and float(parts[-1]) is not None
            else "word2vec_binary"
        )
    except ValueError:
        return "word2vec_binary"


def _is_header(line):
    parts = line.split()
    return len(parts) == 2 and all(part.isdigit() for part in parts)


def _read(path, format, wanted):
    with open(path, "rb") as file:
        size = None
        if format != "glove":
            header = file.readline(1 << 16)
            if not _is_header(header) or int(header.split()[1]) < 1:
                raise ValueError(
                    f"{path} does not begin with the numbers of words and dimensions, as "
                    "word2vec's files do; try format='glove'."
                )
            count, size = map(int, header.split())
        if format == "word2vec_binary":
            return _read_binary(file, path, count, size, wanted)
        return _read_text(file, path, size, wanted)


def _read_text(file, path, size, wanted):
    vectors = {}
    for number, line in enumerate(file, 1 if size is None else 2):
        parts = line.rstrip().split(b" ")
        if parts == [b""]:
            continue
        size = len(parts) - 1 if size is None else size
        # From the end, since words in GloVe files may have spaces.
        word, numbers = (
            b" ".join(parts[:-size]).decode("utf-8", errors="replace").strip(),
            parts[-size:],
        )
        if size < 1 or len(parts) <= size:
            raise ValueError(
                f"{path}, line {number}: there must be a word and {size} numbers, but there are "
                f"{len(parts)} parts."
            )
        if word in wanted and word not in vectors:
            try:
                vectors[word] = np.array(numbers, dtype="float32")
            except ValueError:
                raise ValueError(
                    f"{path}, line {number}: "
                    f"{b' '.join(numbers)[:40].decode(errors='replace')!r} are not numbers."
                ) from None
            _check_finite(vectors[word], path, word)
    return vectors


def _read_binary(file, path, count, size, wanted):
    vectors, width = {}, 4 * size
    for number in range(count):
        word = bytearray()
        while (byte := file.read(1)) != b" ":
            if not byte or len(word) > _LONGEST_WORD:
                raise ValueError(
                    f"{path} breaks off at word {number + 1:,} of {count:,}; it is damaged, or no "
                    "binary file of word2vec."
                )
            if byte != b"\n" or word:  # Some writers end each vector with a line break.
                word += byte
        numbers = file.read(width)
        if len(numbers) < width:
            raise ValueError(
                f"{path} ends in the midst of word {number + 1:,} of {count:,}; copy it again."
            )
        text = word.decode("utf-8", errors="replace")
        if text in wanted and text not in vectors:
            vectors[text] = np.frombuffer(numbers, dtype="<f4").astype("float32")
            _check_finite(vectors[text], path, text)
    return vectors


def _check_finite(vector, path, word):
    if not np.isfinite(vector).all():
        raise ValueError(f"{path}: the vector of {word!r} holds numbers that are not finite.")
