"""Bounds of texts and of translations are those of Python in the graph of a SavedModel."""

import pathlib

import keras
import pytest

import kformer

FROZEN_RUN = pathlib.Path(__file__).resolve().parents[2] / "frozen_run"
TEXTS = ["noon", "half past four", "", "ten minutes to nine in the evening"]

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="the graph is TensorFlow's"
)


@pytest.fixture(scope="module")
def translator():
    return kformer.Translator.load(FROZEN_RUN)


def graph_outputs(translator, texts, **options):
    """The outputs of `n_best` of the graph that an export holds, as lists."""
    import tensorflow as tf

    from kformer.export.saved_model.tokenizer import GraphTokenizer
    from kformer.export.saved_model.translation import TranslationGraph

    search = translator.search_options(options)
    tokenizer = GraphTokenizer(translator.tokenizer)
    graph = TranslationGraph(translator.model, tokenizer, translator.tokenizer, search)
    function = graph.build()[1]["n_best"]
    found = function(tf.constant(texts))
    return {name: value.numpy().tolist() for name, value in found.items()}


def test_a_prefix_beyond_the_limit_of_a_row(translator):
    """A row whose limit is below the length of the prefix has the whole prefix, and a score."""
    prefix = tuple(translator.tokenizer.tokenize("下午四点五十分", side="target"))
    options = {"prefix_ids": prefix, "length_ratio": 0.0, "length_offset": 1, "beam_size": 2}
    options["n_best"] = 2
    found = translator.translate(TEXTS, **options)
    for result in (found[0], found[1], found[3]):
        best = result.hypotheses[0]
        assert best.score > -1e30 and best.ids == [*prefix, translator.tokenizer.end_id]
    outputs = graph_outputs(translator, TEXTS, **options)
    for result, texts, scores in zip(
        found, outputs["translations"], outputs["scores"], strict=True
    ):
        assert [text.decode() for text in texts] == [each.text for each in result.hypotheses]
        assert scores == pytest.approx([each.score for each in result.hypotheses], abs=1e-4)
