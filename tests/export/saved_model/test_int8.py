"""A SavedModel in int8: the same signatures in a quarter of the bytes, and about the same texts."""

import copy
import functools
import json

import keras
import numpy as np
import pytest

import kformer
from kformer.data import TokenLists
from kformer.export import SavedModelTranslator
from tests.export.saved_model.test_export import FROZEN_RUN, run_bare, size_of

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="from other backends it is made by this one"
)

TEXTS = [*(f"{hour}:{minute:02} a.m." for hour in range(1, 11) for minute in (5, 30)), "noon", ""]


@pytest.fixture(scope="module")
def translator():
    return kformer.Translator.load(FROZEN_RUN)


@pytest.fixture(scope="module")
def exported(translator, tmp_path_factory):
    return translator.export(tmp_path_factory.mktemp("models") / "int8", beam_size=4, dtype="int8")


def test_texts_and_scores(translator, exported):
    outputs = run_bare(exported, TEXTS)
    assert sorted(outputs) == ["n_best", "serving_default"]
    found = translator.translate(TEXTS, beam_size=4)
    scores = [result.score for result in found]
    assert np.allclose(outputs["serving_default"]["score"].astype(float), scores, atol=0.3)
    pairs = zip(outputs["serving_default"]["translation"], found, strict=True)
    assert sum(ours == result.text for ours, result in pairs) >= len(TEXTS) - 1
    assert outputs["n_best"]["translations"].shape == (len(TEXTS), 4)
    assert outputs["serving_default"]["translation"][-1] == ""


@pytest.fixture(scope="module")
def attention(translator, tmp_path_factory):
    """A function that exports a model in a dtype and returns its signature `attention`."""
    import tensorflow as tf

    folder, names = tmp_path_factory.mktemp("attention"), ["serving_default", "attention"]

    @functools.cache
    def export(dtype):
        path = translator.export(folder / str(dtype), beam_size=4, dtype=dtype, signatures=names)
        module = tf.saved_model.load(str(path))
        return module, module.signatures["attention"]

    return export


@pytest.mark.parametrize("dtype", ["int8", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_attention(attention, dtype):
    """About that of the float32 model, for the same tokens; and for no text at all."""
    import tensorflow as tf

    found, own = (attention(kind)[1] for kind in (dtype, None))
    ours, exact = (each(text=tf.constant(TEXTS[:6])) for each in (found, own))
    assert ours["target_tokens"].numpy().tolist() == exact["target_tokens"].numpy().tolist()
    assert ours["source_tokens"].numpy().tolist() == exact["source_tokens"].numpy().tolist()
    is_token = (ours["target_tokens"].numpy() != b"")[:, None, None, :, None]
    gaps = np.abs(ours["attention"] - exact["attention"])
    assert 0 < np.max(gaps, where=is_token, initial=0) < 0.2
    assert np.mean(gaps, where=np.broadcast_to(is_token, gaps.shape)) < 0.01
    nothing = found(text=tf.constant([], tf.string))
    assert nothing["attention"].shape[0] == nothing["translation"].shape[0] == 0


def test_no_texts(exported):
    import tensorflow as tf

    module = tf.saved_model.load(str(exported))
    outputs = module.signatures["serving_default"](text=tf.constant([], tf.string))
    assert outputs["translation"].shape == (0,)


def test_a_text_alone_has_the_translation_of_its_batch(exported):
    model = SavedModelTranslator(exported)
    assert [model([text])[0] for text in TEXTS[::4]] == model(TEXTS)[::4]


def test_size(translator, exported):
    """Matrices take a quarter; scales, norms and biases are as large as ever. (A model this small
    has few large matrices.)
    """
    whole = 4 * sum(int(np.prod(weight.shape)) for weight in translator.model.trainable_weights)
    assert size_of(exported) < 0.42 * whole
    metadata = json.loads((exported / "assets.extra" / "kformer.json").read_text())
    assert metadata["dtype"] == "int8"


def test_a_shortlist(translator, tmp_path):
    few = translator.shortlist(["上午九点", "下午四点半"])
    folder = translator.export(
        tmp_path / "few",
        dtype="int8",
        shortlist=few,
        beam_size=2,
        signatures=["serving_default"],
    )
    texts = ["9:00 a.m.", "4:30 p.m."]
    expected = translator(texts, beam_size=2, shortlist=few)
    assert SavedModelTranslator(folder)(texts) == expected


def test_a_list_of_all_tokens_changes_nothing(translator, exported, tmp_path):
    """Rows of the table that are gathered at each call have the product of the whole one."""
    size, other = translator.model.target_vocabulary_size, copy.copy(translator)
    other.token_lists = TokenLists(range(size), [[]] * size)
    names = ["serving_default"]
    folder = other.export(tmp_path / "all", dtype="int8", beam_size=4, signatures=names)
    found, expected = (SavedModelTranslator(each).translate(TEXTS) for each in (folder, exported))
    assert [each.text for each in found] == [each.text for each in expected]
    scores = [[each.score for each in results] for results in (found, expected)]
    np.testing.assert_allclose(*scores, rtol=1e-5, atol=1e-5)


def test_a_single_signature_is_refused(translator, tmp_path):
    with pytest.raises(ValueError, match=r"single texts is for a float32 model .* \(dtype=int8\)"):
        translator.export(tmp_path / "x", dtype="int8", single=True)
    assert not list((tmp_path / "x").glob("*"))


def test_signatures_are_chosen(translator, tmp_path):
    """In int8 each signature keeps matrices of its own in memory."""
    folder = translator.export(
        tmp_path / "one", dtype="int8", beam_size=2, signatures=["serving_default"]
    )
    import tensorflow as tf

    assert list(tf.saved_model.load(str(folder)).signatures) == ["serving_default"]
    model = SavedModelTranslator(folder)
    assert len(model(TEXTS)) == len(TEXTS)
    with pytest.raises(ValueError, match="no signature n_best, .*serving_default,n_best"):
        model.translate(TEXTS, n_best=2)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["n_best"], "signatures must have serving_default.* but n_best was given"),
        (["serving_default", "other"], "in int8 must be one of .*, but 'other' was"),
        ("serving_default", "signatures must be a list of names, but 'serving_default'"),
    ],
    ids=["no default", "unknown", "no list"],
)
def test_signatures_that_cannot_be(translator, tmp_path, names, message):
    with pytest.raises(ValueError, match=message):
        translator.export(tmp_path / "x", dtype="int8", signatures=names)
    assert not (tmp_path / "x").exists()


def test_a_build_without_the_operation(translator, exported, tmp_path, monkeypatch):
    from tensorflow.python.framework import op_def_library

    def unknown(operation, **arguments):
        raise RuntimeError(f"Unrecognized Op name {operation}")

    monkeypatch.setattr(op_def_library, "apply_op", unknown)
    with pytest.raises(RuntimeError, match="needs int8 products, which this build of TensorFlow"):
        SavedModelTranslator(exported)
    with pytest.raises(RuntimeError, match="^This build of TensorFlow has no int8 products"):
        translator.export(tmp_path / "x", dtype="int8")
    assert not list((tmp_path / "x").glob("*"))
