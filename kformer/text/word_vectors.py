"""Pretrained word vectors (word2vec, GloVe) as the first values of an embedding table."""

import pathlib
from dataclasses import dataclass, field

import numpy as np

from kformer.text.normalization import SPACE_SIGN
from kformer.utils.checks import check_choice
from kformer_options.text_files import check_rereadable

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
        text = f"{len(self.found):,} of {total:,} tokens have a vector ({self.coverage:.1%})"
        return f"{text}; not {some} ..." if some else text


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
    check_rereadable(path, "file of word vectors")
    if not path.is_file():
        raise FileNotFoundError(f"There is no file of word vectors at {path}.")
    if isinstance(tokens, str | bytes):
        raise ValueError("tokens must be a tokenizer or a list of words, but one text was given.")
    if isinstance(tokens, list | tuple):
        labels = words = list(tokens)
    else:
        labels = tokens.vocabulary("source").pieces
        words = [piece.removeprefix(SPACE_SIGN) or piece for piece in labels]
    vocabulary = {*words, *(word.lower() for word in words if lowercase)}
    vectors = _read(path, _format_of(path) if format == "auto" else format, vocabulary)
    rows = [vectors.get(word, vectors.get(word.lower()) if lowercase else None) for word in words]
    indices = [i for i, row in enumerate(rows) if row is not None]
    if not indices:
        raise ValueError(f"{path} has no vector for any token of the vocabulary: another language?")
    known = np.stack([rows[i] for i in indices])
    spread = float(known.std()) or 1.0
    scale = 1.0 if std is None else std / spread
    generator = np.random.default_rng(seed)
    table = generator.normal(0, spread * scale, (len(words), known.shape[1])).astype("float32")
    table[indices] = known * scale
    missing = [label for label, row in zip(labels, rows, strict=True) if row is None]
    return WordVectors(table, [labels[i] for i in indices], missing)


def _format_of(path):
    with open(path, "rb") as file:
        first, sample = file.readline(1 << 16), file.readline(1 << 16)
    if not _is_header(first):
        return "glove"
    try:  # A binary file is not valid text after the header.
        numbers = sample.decode("utf-8").split()
        float(numbers[-1])
        return "word2vec" if len(numbers) > int(first.split()[1]) else "word2vec_binary"
    except (ValueError, IndexError):
        return "word2vec_binary"


def _is_header(line):
    numbers = line.split()
    return len(numbers) == 2 and all(number.isdigit() for number in numbers)


def _read(path, format, vocabulary):
    """Returns a dict of the words of a vocabulary that a file has to their vectors."""
    vectors = {}
    with open(path, "rb") as file:
        count = size = None
        if format != "glove":
            header = file.readline(1 << 16)
            if not _is_header(header) or int(header.split()[1]) < 1:
                raise ValueError(
                    f"{path} does not begin with the numbers of words and dimensions: try "
                    "format='glove'."
                )
            count, size = map(int, header.split())
        is_binary = format == "word2vec_binary"
        rows = _binary_rows(file, path, count, size) if is_binary else _rows(file, path, size)
        for word, numbers, number in rows:
            if word not in vocabulary or word in vectors:
                continue
            if is_binary:
                vectors[word] = np.frombuffer(numbers, dtype="<f4").astype("float32")
            else:
                try:
                    vectors[word] = np.array(numbers, dtype="float32")
                except ValueError:
                    text = b" ".join(numbers)[:40].decode(errors="replace")
                    raise ValueError(f"{path}, line {number}: {text!r} are not numbers.") from None
            if not np.isfinite(vectors[word]).all():
                raise ValueError(f"{path}: the vector of {word!r} has numbers that are not finite.")
    return vectors


def _rows(file, path, size):
    """Yields the word of each line of a text file, its numbers, and the number of the line."""
    for number, line in enumerate(file, 1 if size is None else 2):
        columns = line.rstrip().split(b" ")
        if columns == [b""]:
            continue
        size = len(columns) - 1 if size is None else size
        if size < 1 or len(columns) <= size:
            fault = f"{len(columns)} parts in place of a word and {size} numbers"
            raise ValueError(f"{path}, line {number}: {fault}.")
        # From the end, since words in GloVe files may have spaces.
        word = b" ".join(columns[:-size]).decode("utf-8", errors="replace").strip()
        yield word, columns[-size:], number


def _binary_rows(file, path, count, size):
    """Yields each word of a binary file, the bytes of its numbers, and its index from 1."""
    for number in range(1, count + 1):
        word = bytearray()
        while (byte := file.read(1)) != b" ":
            if not byte or len(word) > _LONGEST_WORD:
                raise ValueError(
                    f"{path} breaks off at word {number:,} of {count:,}: is it binary?"
                )
            if byte != b"\n" or word:  # Some writers end each vector with a line break.
                word += byte
        numbers = file.read(4 * size)
        if len(numbers) < 4 * size:
            raise ValueError(f"{path} ends within word {number:,} of {count:,}; copy it again.")
        yield word.decode("utf-8", errors="replace"), numbers, number
