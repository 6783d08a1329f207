"""Words of a text, and the words that tokens write."""

import pathlib

import pytest

import kformer
from kformer.text.words import TokenWords, split_words

pytestmark = pytest.mark.any_backend(quickest="torch")
FROZEN = pathlib.Path(__file__).resolve().parents[1] / "frozen_run" / "tokenizer"


@pytest.fixture(scope="module")
def tokenizer():
    return kformer.Tokenizer.load(FROZEN)


def test_words_stand_between_spaces_and_a_chinese_character_is_one():
    assert split_words("  a man,\trides ") == ["a", "man,", "rides"] and split_words("") == []
    assert split_words("四点半 OK，3个") == ["四", "点", "半", "OK，3", "个"]
    assert split_words("naïve Übung 한국어") == ["naïve", "Übung", "한국어"]
    assert split_words("か\u3099い") == ["か\u3099", "い"], "a mark belongs to its character"


@pytest.mark.parametrize(
    "text", ["half past four", "四点半了 12 X", "½ ﬁnal… x´y 😀 了了", "e\u0301e  Ab", "日本"]
)
@pytest.mark.parametrize("side", ["source", "target"])
def test_the_tokens_of_a_word_write_it(tokenizer, text, side):
    """Each word tokenized alone has the characters of its tokens in the text."""
    words = split_words(text)
    ids = tokenizer.tokenize(text, side=side, special_tokens=True)
    found = TokenWords(tokenizer.vocabulary(side))(ids, words)
    assert len(found) == len(ids) and not found[-1], "the end token writes no word"
    assert all(len(words_of) for words_of in found[:-1])
    for number, word in enumerate(words):
        own = [i for i, each in zip(ids, found, strict=True) if number in each]
        alone = tokenizer.detokenize(tokenizer.tokenize(word, side=side), side=side)
        # A piece of several characters belongs to several words.
        shared = any(len(each) > 1 and number in each for each in found)
        joined = tokenizer.detokenize(own, side=side).strip()
        assert alone in joined if shared else alone.strip() == joined


def test_an_unknown_token_belongs_to_a_word_and_hides_no_later_one(tokenizer):
    vocabulary = tokenizer.vocabulary("source")
    ids = [vocabulary.unknown_id, *tokenizer.tokenize("four"), 10**6]
    assert [list(each) for each in TokenWords(vocabulary)(ids, ["?", "four"])][0] == [0]
    assert all(1 in each for each in TokenWords(vocabulary)(ids, ["?", "four"])[1:-1])
    assert TokenWords(vocabulary)([5], []) == [range(0)]


@pytest.mark.parametrize(
    "tokens, words, expected",
    [
        ([0xE4, "▁man", "▁in"], ["\ufffd", "man", "in"], [[0], [1], [2]]),
        (["x", 0xE4, "▁man"], ["x\ufffd", "man"], [[0], [0], [1]]),
        ([0xE4, "▁b", 0xE4, 0xB8, 0xAD], ["\ufffd", "b", "中"], [[0], [1], [2], [2], [2]]),
        ([0xE4, 0xB8, 0xF0, 0x9F], ["\ufffd\ufffd"], [[0]] * 4),
        (["a", 0xE3, 0x80, 0x80, "b"], ["a", "b"], [[0], [1], [1], [1], [1]]),
        ([0xC2, 0xBD, "▁b"], ["½", "b"], [[0], [0], [1]]),
    ],
)
def test_bytes_that_are_no_text_belong_to_the_word_that_they_write(tokens, words, expected):
    """A byte that is not UTF-8 shifts no later token, and is sought in no later word."""
    tokenizer = kformer.Tokenizer.train(texts=["man in the x a b"] * 30, vocabulary_size=280)
    vocabulary = tokenizer.vocabulary("target")
    ids = [vocabulary.pieces.index(t if isinstance(t, str) else f"<0x{t:02X}>") for t in tokens]
    assert split_words(tokenizer.detokenize([ids])[0]) == words
    assert [list(each) for each in TokenWords(vocabulary)(ids, words)] == expected
