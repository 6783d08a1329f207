"""The signatures `constrained` and `prefix`: what the translator finds in Python, in a graph."""

import pathlib
import time

import keras
import numpy as np
import pytest

import kformer

FROZEN = pathlib.Path(__file__).parents[2] / "frozen_run"
SOURCES = ["half past four", "noon", "", "a quarter to nine in the evening", "seven o'clock"]
TERMS = [["四点"], ["下午"], ["四点"], ["晚上", "九点"], []]
PREFIXES = ["下午", "", "四", "差一刻", "七点"]


@pytest.fixture(scope="module")
def translator():
    return kformer.Translator.load(FROZEN)


@pytest.fixture(scope="module")
def folder(translator, tmp_path_factory):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("a SavedModel is made by TensorFlow")
    path = tmp_path_factory.mktemp("times") / "times"
    return translator.export(path, signatures=["serving_default", "constrained", "prefix"])


@pytest.fixture(scope="module")
def signatures(folder):
    import tensorflow as tf

    found = tf.saved_model.load(str(folder)).signatures
    assert set(found) == {"serving_default", "constrained", "prefix"}
    return found


def texts(outputs):
    return [text.decode() for text in outputs["translation"].numpy()]


def test_terms_in_a_graph(translator, signatures):
    import tensorflow as tf

    padded = tf.constant([[*row, *[""] * (3 - len(row))] for row in TERMS])
    found = signatures["constrained"](text=tf.constant(SOURCES), terms=padded)
    expected = translator.translate(SOURCES, terms=TERMS)
    assert texts(found) == [result.text for result in expected]
    scores = [result.score for result in expected]
    np.testing.assert_allclose(found["score"].numpy(), scores, atol=1e-3)
    assert found["has_terms"].numpy().tolist() == [True, True, True, True, True]
    assert all(
        term in text
        for text, terms in zip(texts(found), TERMS, strict=True)
        for term in terms
        if text
    )


def test_prefixes_in_a_graph(translator, signatures):
    import tensorflow as tf

    found = signatures["prefix"](text=tf.constant(SOURCES), prefix=tf.constant(PREFIXES))
    assert texts(found) == translator(SOURCES, prefixes=PREFIXES)


def test_no_rows_no_terms_and_more_than_fit(translator, signatures):
    import tensorflow as tf

    nothing = signatures["constrained"](
        text=tf.constant([], tf.string), terms=tf.constant([], tf.string, shape=[0, 2])
    )
    assert texts(nothing) == []
    free = signatures["constrained"](
        text=tf.constant(SOURCES), terms=tf.constant([], tf.string, shape=[len(SOURCES), 0])
    )
    assert texts(free) == translator(SOURCES)
    many = signatures["constrained"](
        text=tf.constant(["noon"]), terms=tf.constant([["四点", "九点 " * 400]])
    )
    assert not many["has_terms"].numpy()[0] and "四点" in texts(many)[0]
    long = signatures["prefix"](text=tf.constant(["noon"]), prefix=tf.constant(["九点 " * 400]))
    assert texts(long)[0].startswith("九点 九点")


def test_long_and_many_terms_and_prefixes_cost_little(signatures):
    """Without a bound one megabyte took 20 s, and ten would take memory without end."""
    import tensorflow as tf

    text, long = tf.constant(["noon"]), "九点 " * 400_000
    # The first call of each takes seconds.
    signatures["constrained"](text=text, terms=tf.constant([["四点"]]))
    signatures["prefix"](text=text, prefix=tf.constant(["四点"]))
    begin = time.perf_counter()
    for terms in ([["四点", long]], [["四点", *["九点"] * 20_000]]):
        found = signatures["constrained"](text=text, terms=tf.constant(terms))
        assert not found["has_terms"].numpy()[0] and "四点" in texts(found)[0]
    found = signatures["prefix"](text=text, prefix=tf.constant([long]))
    assert texts(found)[0].startswith("九点 九点")
    assert time.perf_counter() - begin < 10
    # Terms behind many empty places count all the same.
    found = signatures["constrained"](text=text, terms=tf.constant([[""] * 20_000 + ["四点"]]))
    assert found["has_terms"].numpy()[0] and "四点" in texts(found)[0]


def test_a_prefix_that_cannot_be_written_is_left_out_and_said():
    """`<unk>` is forced nowhere, as Python refuses such a prefix."""
    if keras.backend.backend() != "tensorflow":
        pytest.skip("a SavedModel is made by TensorFlow")
    import tensorflow as tf

    from kformer.export.saved_model.constrained import RowSignatures
    from kformer.export.saved_model.tokenizer import GraphTokenizer
    from kformer.export.saved_model.translation import TranslationGraph

    texts = ["a man in the sun", "the sun in a man"] * 10
    tokenizer = kformer.Tokenizer.train(texts=texts, vocabulary_size=24, byte_fallback=False)
    sizes = {"hidden_dim": 8, "num_heads": 2, "intermediate_dim": 8, "num_encoder_layers": 1}
    model = kformer.Transformer(24, **sizes, num_decoder_layers=1, max_length=20)
    options = kformer.decoding.SearchOptions(beam_size=2, max_length=6)
    graph = TranslationGraph(model, GraphTokenizer(tokenizer), tokenizer, options)
    signatures = RowSignatures(graph, tokenizer.vocabulary("target"))
    prefixes = ["the sun", "the \u732b", "", "the man in the sun in the man"]
    outputs = signatures.prefix(tf.constant(["a man"] * 4), tf.constant(prefixes))
    assert outputs["has_prefix"].numpy().tolist() == [True, False, True, False]
    unwritable, free = outputs["translation"].numpy()[1:3]
    assert unwritable == free and "\u2047".encode() not in unwritable
    with pytest.raises(ValueError, match="the model's vocabulary lacks one of its characters"):
        kformer.Translator(model, tokenizer, options)(["a man"], prefixes=["the \u732b"])


def test_each_text_needs_a_row(signatures):
    import tensorflow as tf

    text = tf.constant(["noon", "noon"])
    with pytest.raises(tf.errors.InvalidArgumentError, match="terms needs one row for each text"):
        signatures["constrained"](text=text, terms=tf.constant([["四点"]]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="prefix needs one row for each text"):
        signatures["prefix"](text=text, prefix=tf.constant(["四点"] * 3))


def test_a_saved_model_refuses_terms_that_it_cannot_write(translator, folder):
    saved = kformer.export.SavedModelTranslator(folder)
    assert [one.text for one in saved.translate(SOURCES, terms=TERMS)] == translator(
        SOURCES, terms=TERMS
    )
    terms = [["四点"], ["九点 " * 400]]
    with pytest.raises(ValueError, match="terms of text 2"):
        saved.translate(["half past four", "noon"], terms=terms, batch_size=1)
    with pytest.raises(ValueError, match="terms of text 2"):
        translator.translate(["half past four", "noon"], terms=terms)
    with pytest.raises(ValueError, match="The prefix of text 1 cannot be written"):
        saved.translate(["noon"], prefixes=["九点 " * 400])
    with pytest.raises(TypeError, match="Give a list of texts, not one text"):
        saved.translate(["noon", "noon"], prefixes="九点")
    half = ["\ud800"]  # Of a pair of surrogates.
    assert (
        saved.translate(["noon"], prefixes=half)[0].text == translator(["noon"], prefixes=half)[0]
    )
    # A document is translated all the same, and has the term.
    glossary = kformer.documents.Glossary([("noon", "九点 " * 400)])
    assert "九点" in saved.document("noon", glossary=glossary)


@pytest.mark.any_backend
def test_signatures_that_a_search_cannot_have(translator, tmp_path):
    names = ["serving_default", "constrained"]
    with pytest.raises(ValueError, match="constrained needs a beam, but beam_size is 1"):
        translator.export(tmp_path / "x", signatures=names, beam_size=1)
    with pytest.raises(ValueError, match="leave out the shortlist"):
        translator.export(tmp_path / "x", signatures=names, shortlist=(5, 6))
