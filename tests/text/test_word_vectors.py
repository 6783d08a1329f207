"""Word vectors of every format, for words and for pieces."""

import struct

import numpy as np
import pytest

import kformer
from kformer.layers import PositionalEmbedding
from kformer.text import load_word_vectors
from tests.peers import to_numpy
from tests.text_samples import corpus

pytestmark = pytest.mark.any_backend

WORDS = {"the": [1, 2, 3], "dog": [-1, 0.5, 2], "人": [0, 0, 7], "new york": [4, 4, 4]}


def write(path, format, words=WORDS):
    numbers = {word: " ".join(map(str, row)) for word, row in words.items()}
    header = f"{len(words)} 3\n" if format != "glove" else ""
    if format == "word2vec_binary":
        content = b"".join(
            word.encode() + b" " + struct.pack("<3f", *row) + b"\n" for word, row in words.items()
        )
        path.write_bytes(header.encode() + content)
    else:
        path.write_text(
            header + "".join(f"{word} {row}\n" for word, row in numbers.items()), encoding="utf-8"
        )
    return path


@pytest.mark.parametrize("format", ["word2vec", "word2vec_binary", "glove"])
@pytest.mark.parametrize("named", [True, False], ids=["named", "auto"])
def test_every_format_gives_the_same_table(tmp_path, format, named):
    words = {
        word: row for word, row in WORDS.items() if format != "word2vec_binary" or " " not in word
    }
    path = write(tmp_path / "vectors", format, words)
    vectors = load_word_vectors(
        path, ["dog", "cat", "人", "The"], format=format if named else "auto"
    )
    assert vectors.table.dtype == "float32" and vectors.table[[0, 2]].tolist() == [
        [-1, 0.5, 2],
        [0, 0, 7],
    ]
    assert (vectors.found, vectors.missing, vectors.coverage) == (
        ["dog", "人"],
        ["cat", "The"],
        0.5,
    )
    assert vectors.report() == "2 of 4 tokens have a vector (50.0%); not 'cat', 'The' ..."
    lower = load_word_vectors(path, ["dog", "cat", "人", "The"], lowercase=True)
    assert lower.table[3].tolist() == [1, 2, 3] and lower.missing == ["cat"]
    if format != "word2vec_binary":
        assert load_word_vectors(path, ["new york"]).table.tolist() == [[4, 4, 4]]


def test_pieces_of_a_tokenizer_and_an_embedding(tmp_path):
    texts = corpus(200)
    tokenizer = kformer.Tokenizer.train(texts=texts, vocabulary_size=400, model_type="unigram")
    names = [tokenizer.id_to_token(i, "source") for i in range(tokenizer.vocabulary_size)]
    begins = next(i for i, name in enumerate(names) if len(name) > 3 and name.startswith("\u2581"))
    path = write(
        tmp_path / "glove.txt", "glove", {names[begins][1:]: [1, 2, 3], "other": [4, 5, 6]}
    )
    vectors = load_word_vectors(path, tokenizer, std=0.5)
    assert names[begins] in vectors.found and vectors.table.shape == (tokenizer.vocabulary_size, 3)
    ratio = vectors.table[begins] / np.array([1, 2, 3])
    np.testing.assert_allclose(ratio, ratio[0])
    assert 0.4 < vectors.table.std() < 0.6
    again = load_word_vectors(path, tokenizer, std=0.5)
    np.testing.assert_array_equal(again.table, vectors.table)
    embedding = PositionalEmbedding(
        *vectors.table.shape, pretrained=vectors.table, position_encoding=None, scale=False
    )
    np.testing.assert_allclose(
        to_numpy(embedding(np.array([[begins]])))[0, 0], vectors.table[begins], rtol=1e-6
    )


def test_of_a_word_that_stands_twice_the_first_counts(tmp_path):
    (tmp_path / "vectors").write_text("dog 1 2\ndog 3 4\n", encoding="utf-8")
    assert load_word_vectors(tmp_path / "vectors", ["dog"]).table.tolist() == [[1, 2]]


@pytest.mark.parametrize(
    "content, options, words",
    [
        (
            b"dog 1 2\ncat 1\n",
            {},
            "line 2: 2 parts in place of a word and 2 numbers",
        ),
        (b"dog 1 x\n", {}, "line 1: '1 x' are not numbers"),
        (b"cat 1 2\n", {}, "no vector for any token of the vocabulary"),
        (b"dog 1 nan\n", {}, "'dog' has numbers that are not finite"),
        (
            b"dog 1 2\n",
            {"format": "word2vec"},
            "does not begin with the numbers of words and dimensions",
        ),
        (b"2 3\ndog " + struct.pack("<3f", 1, 2, 3), {}, "breaks off at word 2 of 2"),
        (
            b"1 3\ndog " + struct.pack("<2f", 1, 2),
            {"format": "word2vec_binary"},
            "ends within word 1 of 1",
        ),
        (b"", {"format": "fasttext"}, "format must be one of .* 'fasttext'"),
    ],
)
def test_bad_files(tmp_path, content, options, words):
    (tmp_path / "vectors").write_bytes(content)
    with pytest.raises(ValueError, match=words):
        load_word_vectors(tmp_path / "vectors", ["dog"], **options)


def test_what_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file of word vectors"):
        load_word_vectors(tmp_path / "nothing", ["dog"])
    write(tmp_path / "vectors", "glove")
    with pytest.raises(ValueError, match="one text was given"):
        load_word_vectors(tmp_path / "vectors", "the dog")
