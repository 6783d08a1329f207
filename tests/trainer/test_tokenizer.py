"""The tokenizer of a training."""

import dataclasses
import random

import pytest

from kformer.text.sentencepiece_training import VocabularySizeError
from kformer.trainer.lines import Lines, Text
from kformer.trainer.tokenizer import train_tokenizer
from kformer.training.options import TrainOptions


@pytest.mark.any_backend
@pytest.mark.parametrize(
    "separate, lines, most",
    [(None, ["a b c", "d e f"], 1000), (True, ["一二三四五六七八九十", "abc"], 1000)],
)
def test_a_corpus_with_fewer_pieces_gets_the_largest_vocabulary_that_it_has(
    tmp_path, separate, lines, most
):
    paths = []
    for name, line in zip(("source", "target"), lines, strict=True):
        paths.append(tmp_path / name)
        paths[-1].write_text((line + "\n") * 5, encoding="utf-8")
    options = TrainOptions(separate_vocabularies=separate)
    text = Lines([Text(*map(str, paths))])
    said = []
    tokenizer = train_tokenizer(options, text, said.append)
    assert (
        260 < tokenizer.vocabulary_size < most
        and tokenizer.joint == (not separate)
        and len(said) == 1
    )
    with pytest.raises(VocabularySizeError, match="vocabulary_size=1000 is too large") as error:
        train_tokenizer(dataclasses.replace(options, vocabulary_size=1000), text, said.append)
    assert error.value.side == 0 and 260 < error.value.possible < 1000


@pytest.mark.any_backend
def test_two_directions_of_a_text_have_as_many_pieces_as_one(tmp_path):
    generator = random.Random(0)
    paths = [tmp_path / "en", tmp_path / "de"]
    for path in paths:
        words = ("".join(generator.choices("abcdefghij", k=5)) for _ in range(4500))
        lines = (" ".join(three) + "\n" for three in zip(words, words, words, strict=False))
        path.write_text("".join(lines), encoding="utf-8")
    one = Text(*map(str, paths), ("en", "de"))
    first, second = (
        train_tokenizer(TrainOptions(), Lines(texts), [].append)
        for texts in ([one], [one, one.swapped()])
    )
    assert first.vocabulary_size == second.vocabulary_size == 1000
