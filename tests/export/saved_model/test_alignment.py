"""The signature `alignment`: what `Translator.align` finds in Python, in a graph."""

import pathlib

import keras
import numpy as np
import pytest

import kformer
from kformer.data import alignment_error_rate
from kformer.decoding import SearchOptions
from kformer.text.words import TokenWords, split_words
from kformer.translating.word_alignment import WordPairs

FROZEN = pathlib.Path(__file__).parents[2] / "frozen_run"
SEARCH = SearchOptions()
SOURCES = [pair.source for pair in kformer.examples.generate_pairs(40, seed=3, split="test")]
SOURCES += [
    "",
    "noon",
    "half  past\tfour",
    "四点 then noon",
    "zzz qqq \u2603x nine",
    "ﬁve past two",
]


@pytest.fixture(scope="module")
def translator():
    if keras.backend.backend() != "tensorflow":
        pytest.skip("a SavedModel is made by TensorFlow")
    return kformer.Translator.load(FROZEN)


def aligned(translator, folder, source, texts=SOURCES, **options):
    """The outputs of the signature as lists: source words, target words, pairs, translations."""
    import tensorflow as tf

    translator.config["alignment"] = source
    names = ["serving_default", "alignment"]
    path = translator.export(folder / "times", signatures=names, **options)
    run = tf.saved_model.load(str(path)).signatures["alignment"]
    for nothing in ([""], []):
        empty = run(text=tf.constant(nothing, tf.string, shape=[len(nothing)]))
        assert empty["alignment"].shape == (len(nothing), 0)
    found = run(text=tf.constant(texts))
    found = {name: value.numpy() for name, value in found.items()}
    words = [
        [[word.decode() for word in row if word] for row in found[f"{side}_words"]]
        for side in ("source", "target")
    ]
    pairs = [sorted((int(i), j) for j, i in enumerate(row) if i >= 0) for row in found["alignment"]]
    assert (found["alignment"][found["target_words"] == b""] == -1).all()
    texts = [text.decode() for text in found["translation"]]
    return *words, pairs, texts, found["source_coverage"]


@pytest.mark.parametrize(
    "source",
    [
        {"layer": 0, "head": None, "after": False},
        {"layer": 0, "head": 1, "after": True},
    ],
)
def test_words_and_pairs_are_those_of_python(translator, tmp_path, source):
    source_words, target_words, pairs, texts, coverage = aligned(translator, tmp_path, source)
    expected, results = translator(SOURCES, alignment=True), translator.translate(SOURCES)
    assert texts == [each.text for each in expected]
    assert any(pairs)
    for i, each in enumerate(expected):
        assert target_words[i] == each.words
        if results[i].truncated:
            continue  # It has the words of the text that was read.
        if SOURCES[i] != "ﬁve past two":
            assert source_words[i] == split_words(SOURCES[i])
        assert pairs[i] == each.alignment, (SOURCES[i], each.text)
    rows = [result.hypotheses[0].ids for result in results]
    words = WordPairs(translator._reader, translator._reader.pairs(SOURCES, texts, rows, SEARCH))
    heads = slice(None) if source["head"] is None else slice(source["head"], source["head"] + 1)
    for i, weights in words._attention(source["layer"], 64):
        expected = words._of_words(i, weights[heads].mean(axis=0), source["after"]).max(axis=0)
        np.testing.assert_allclose(coverage[i, : len(expected)], expected, atol=1e-5)
        assert not coverage[i, len(expected) :].any()
    assert source_words[SOURCES.index("ﬁve past two")] == ["five", "past", "two"]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_words_of_several_pieces_and_other_scripts(kind):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("a SavedModel is made by TensorFlow")
    import tensorflow as tf

    from kformer.export.saved_model.alignment import WordAlignment

    pairs = kformer.examples.generate_pairs(300, seed=1)
    texts = [f"{pair.target} {pair.source}" for pair in pairs]
    tokenizer = kformer.Tokenizer.train(texts=texts, vocabulary_size=500, model_type=kind)
    texts = [
        *texts[:40],
        "",
        "ab",
        "四点半OK 五",
        "unseen wörds \u2603x\u20dd",
        "が か\u3099 a\u0301b",
    ]
    ids = tokenizer.tokenize(texts, side="source", special_tokens=True)
    padded = tf.ragged.constant(ids).to_tensor(tokenizer.pad_id)
    found = WordAlignment(tokenizer, None)._words(padded, "source")
    found_words, members = (part.numpy() for part in found)
    find = TokenWords(tokenizer.vocabulary("source"))
    for row, text in enumerate(texts):
        normalized = tokenizer.detokenize([ids[row]], side="source")[0]
        words = split_words(normalized)
        assert [word.decode() for word in found_words[row] if word] == words
        expected = np.zeros_like(members[row])
        for token, of_token in enumerate(find(ids[row], words)):
            expected[token, of_token.start : of_token.stop] = 1
        np.testing.assert_array_equal(members[row], expected, text)


def test_bytes_that_are_no_text_belong_to_the_word_that_they_write():
    if keras.backend.backend() != "tensorflow":
        pytest.skip("a SavedModel is made by TensorFlow")
    import tensorflow as tf

    from kformer.export.saved_model.alignment import WordAlignment

    tokenizer = kformer.Tokenizer.train(texts=["man in the x a b"] * 30, vocabulary_size=280)
    vocabulary, random = tokenizer.vocabulary("target"), np.random.default_rng(0)
    rare = [
        vocabulary.pieces.index(f"<0x{b:02X}>") for b in b"\xe4\xb8\xad\xf0\x9f\x98\xe3\x80\xc2"
    ]
    others = [i for i in range(len(vocabulary)) if vocabulary.pieces[i].isalpha()]
    ids = [random.choice(rare * 3 + others, 12).tolist() + [tokenizer.end_id] for _ in range(300)]
    ids.append([rare[0], *tokenizer.tokenize("man in the"), tokenizer.end_id])
    padded = tf.ragged.constant(ids).to_tensor(tokenizer.pad_id)
    words, members = WordAlignment(tokenizer, None)._words(padded, "target")
    for row, text in enumerate(tokenizer.detokenize(ids)):
        expected = split_words(text)
        assert [word.decode() for word in words[row].numpy() if word] == expected
        for token, indices in enumerate(TokenWords(vocabulary)(ids[row], expected)):
            of_token = members[row, token].numpy().nonzero()[0].tolist()
            assert of_token == list(indices), (text, token)


def test_it_is_in_int8_too_and_needs_its_name(translator, tmp_path):
    source = {"layer": 0, "head": 0, "after": True}
    _, _, pairs, texts, _ = aligned(translator, tmp_path, source, dtype="int8")
    expected = translator(SOURCES, alignment=True)
    equal = [i for i, each in enumerate(expected) if texts[i] == each.text]
    assert len(equal) > 20
    found, whole = [pairs[i] for i in equal], [expected[i].alignment for i in equal]
    assert alignment_error_rate(found, whole) < 0.1
    without = kformer.export.SavedModelTranslator(translator.export(tmp_path / "default"))
    assert "alignment" not in without._module.signatures
