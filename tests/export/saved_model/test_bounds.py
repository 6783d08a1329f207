"""Bounds of texts and of translations are those of Python in the graph of a SavedModel."""

import pathlib
import random
import subprocess
import sys

import keras
import pytest

import kformer
from kformer.text.text_bound import cut_text

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


def test_a_text_is_cut_as_in_python(translator):
    """Hostile strings at every bound: the same bytes, and the same rows are marked."""
    import tensorflow as tf

    from kformer.export.saved_model.graph import cut_texts

    random.seed(0)
    parts = [part.encode() for part in ("a", " ", "é", "中", "\ufdfa", "😀")]
    parts += [b"\x80", b"\xff", b"\xed\xa0\x80", b"\0"]
    texts = [b"".join(random.choices(parts, k=random.randrange(30))) for _ in range(300)]
    for bound in range(4, 60):
        found = [part.numpy().tolist() for part in cut_texts(tf.constant(texts), bound)]
        expected = [cut_text(text, bound) for text in texts]
        assert list(zip(*found, strict=True)) == expected
    ends, _ = cut_texts(tf.constant(["中中中a", "short", "a" * 30]), 9, from_end=True)
    assert [end.decode() for end in ends.numpy()] == ["中中a", "short", "a" * 9]


@pytest.mark.parametrize("end_id", [1, 0])
def test_a_translation_ends_in_a_graph_where_it_does_in_python(end_id):
    """A padding token that was generated is a token, and padding is none."""
    import tensorflow as tf

    from kformer.export.saved_model.graph import hypothesis_lengths
    from kformer.utils.rows import up_to_end

    rows = [[random.randrange(4) for _ in range(5)] for _ in range(200)]
    lengths = hypothesis_lengths(tf.constant(rows), end_id, 0).numpy().tolist()
    assert lengths == [len(up_to_end(row, end_id, 0)) for row in rows]


def test_generated_padding_is_a_token_of_attention(translator, monkeypatch):
    import tensorflow as tf

    from kformer.decoding.run_search import SearchResult
    from kformer.export.saved_model.tokenizer import GraphTokenizer
    from kformer.export.saved_model.translation import TranslationGraph

    tokenizer, search = translator.tokenizer, translator.options
    graph = TranslationGraph(translator.model, GraphTokenizer(tokenizer), tokenizer, search)
    ids = [20, tokenizer.pad_id, 21, tokenizer.end_id]
    result = SearchResult(tf.constant([[[*ids, tokenizer.pad_id]]]), tf.zeros([1, 1]), None)
    monkeypatch.setattr(graph, "search", lambda *arguments: result)
    tokens = graph.attention(tf.constant(["noon"]))["target_tokens"].numpy()[0]
    assert [token.decode() for token in tokens] == [*tokenizer.tokens(ids, side="target"), ""]


def test_the_bound_of_a_graph_is_that_of_the_translator(translator):
    texts = ["half past four", " " * 5000 + "half past four", "half past four" + " " * 5000]
    texts += [" " * 5000, "seven " * 100, "\ufdfa" * 5000, ""]
    for options in ({}, {"max_text_bytes": 6000}, {"max_text_bytes": 9}):
        found = translator.translate(texts, n_best=2, beam_size=2, **options)
        outputs = graph_outputs(translator, texts, n_best=2, beam_size=2, **options)
        assert outputs["truncated"] == [result.truncated for result in found]
        assert [text.decode() for text in outputs["translation"]] == [each.text for each in found]
        scores = [[each.score for each in result.hypotheses] for result in found]
        for mine, theirs in zip(outputs["scores"], scores, strict=True):
            assert mine == pytest.approx(theirs, abs=1e-4)


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


# Calls a graph for one text of each kind in a process of its own, and prints the seconds of each,
# and how many more mebibytes the process then has needed at most.
PROCESS = """
import resource, sys, time
import tensorflow as tf, tensorflow_text
module = tf.saved_model.load(sys.argv[1])
run = module.signatures["serving_default"]
run(text=tf.constant([b"half past four", b""]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
for part in ("a", "half past ", " ", "\\ufdfa"):
    text = part.encode() * (10_000_000 // len(part.encode()))
    start = time.perf_counter()
    assert run(text=tf.constant([text]))["truncated"].numpy().tolist() == [True]
    print(time.perf_counter() - start)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before)
"""


@pytest.fixture(scope="module")
def exported(translator, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved_models") / "times"
    return translator.export(folder, beam_size=2, signatures=["serving_default"])


def test_ten_megabytes_cost_little(exported):
    """Less than 2 s each, and 100 MiB more than an empty text."""
    command = [sys.executable, "-c", PROCESS, exported]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    *seconds, mebibytes = map(float, process.stdout.split())
    assert len(seconds) == 4 and max(seconds) < 2 and mebibytes < 100
