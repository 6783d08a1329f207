"""A SavedModel of several target languages: each text of a batch chooses its own."""

import keras
import numpy as np
import pytest

import kformer
from kformer.decoding.fast.ops_stored import has_int8_products
from kformer.export import SavedModelTranslator
from kformer.export.saved_model import reader
from kformer.translating.streaming import open_translator
from kformer.translating.translator import SEARCH_BY_LANGUAGE
from tests.export.saved_model.test_export import check_ops
from tests.two_languages import new_model

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(
        keras.backend.backend() != "tensorflow", reason="from other backends it is made by this one"
    ),
]

TEXTS = ["half past four", "", "a quarter to ten", ">>en<< noon", "half past four", "ten to six"]
CODES = ["en", "en", None, "de", "de", "zh"]
SIGNATURES = ["serving_default", "n_best", "attention", "alignment", "constrained", "prefix"]
# What the training chose by language.
SEARCH = {
    "en": {"length_penalty": 0.0, "length_offset": 6},
    "zh": {"length_ratio": 0.5, "length_offset": 2},
}


@pytest.fixture(scope="module")
def translator():
    tokenizer = kformer.Tokenizer.train(
        texts=TEXTS, vocabulary_size=300, languages=["de", "en", "zh"]
    )
    options = kformer.decoding.SearchOptions(max_length=20, beam_size=3)
    return kformer.Translator(
        new_model(tokenizer), tokenizer, options, {SEARCH_BY_LANGUAGE: SEARCH}
    )


@pytest.fixture(scope="module", params=["float32", "int8"])
def exported(request, translator, tmp_path_factory):
    dtype = request.param
    if dtype == "int8" and not has_int8_products():
        pytest.skip("this build of TensorFlow has no int8 products")
    folder = tmp_path_factory.mktemp(dtype, numbered=False) / "model"
    is_whole = dtype == "float32"
    settings = {"signatures": SIGNATURES if is_whole else SIGNATURES[:2], "single": is_whole}
    return translator.export(folder, dtype=None if is_whole else dtype, **settings)


@pytest.fixture(scope="module")
def saved(exported):
    return SavedModelTranslator(exported)


def alone(saved, text, code, **options):
    [result] = saved.translate([text], target_language=code, **options)
    return result


def test_mixed_languages_are_translated_as_alone(saved):
    for options in ({}, {"n_best": 3}):
        together = saved.translate(TEXTS, target_language=CODES, **options)
        for text, code, result in zip(TEXTS, CODES, together, strict=True):
            expected = alone(saved, text, code, **options)
            assert [each.text for each in result.hypotheses] == [
                each.text for each in expected.hypotheses
            ]
            for pair in zip(result.hypotheses, expected.hypotheses, strict=True):
                assert pair[0].score == pytest.approx(pair[1].score, abs=1e-4)
    texts = [saved(TEXTS[0], target_language=code) for code in ("de", "en", "zh")]
    assert len(set(texts)) == 3


def test_as_the_run_translates(translator, saved, exported):
    dtype = exported.parent.parent.name
    settings = translator.options, translator.config
    run = kformer.Translator(translator.model, translator.tokenizer, *settings, dtype=dtype)
    calls = [{}, {"n_best": 3}]
    if dtype == "float32":
        calls.append({"terms": [["noon"], [], ["ten"], [], [], []]})
        calls.append({"prefixes": ["ten", "", "noon", "", "", ""]})
    for call in calls:
        both = [each.translate(TEXTS, target_language=CODES, **call) for each in (saved, run)]
        for found, expected in zip(*both, strict=True):
            hypotheses = list(zip(found.hypotheses, expected.hypotheses, strict=True))
            assert all(ours.text == theirs.text for ours, theirs in hypotheses)
            assert all(np.isclose(ours.score, theirs.score) for ours, theirs in hypotheses)
    # Another search finds other translations.
    run.config.clear()
    for ours, theirs in zip(
        *(each(TEXTS[:1] * 2, target_language=["en", "zh"]) for each in (saved, run)), strict=True
    ):
        assert ours != theirs


def test_languages_and_the_default(translator, saved):
    assert (saved.languages, saved.target_language) == (["de", "en", "zh"], "de")
    english = saved.for_languages(target="en")
    assert (english.target_language, saved.target_language) == ("en", "de")
    assert english(TEXTS) == saved(TEXTS, target_language="en") != saved(TEXTS)
    assert english(TEXTS, target_language=[None, *["de"] * 5])[0] == english(TEXTS[0])
    with pytest.raises(ValueError, match="The target language 'fr' is unknown; choose one of de, "):
        saved.translate(TEXTS, target_language=[*CODES[:-1], "fr"])
    with pytest.raises(ValueError, match="6 .*2"):
        saved.translate(TEXTS, target_language=["de", "en"])
    with pytest.raises(ValueError, match="source language of the SavedModel .* is fixed"):
        saved.for_languages(source="en")
    assert saved.translate([], target_language=[]) == saved.translate([], target_language="en")


def test_the_command_opens_it_for_a_language(saved, exported):
    english = open_translator(exported, target_language="en")
    assert english.target_language == "en"
    assert english(TEXTS) == saved(TEXTS, target_language="en")
    with pytest.raises(ValueError, match="only a run takes source_language"):
        open_translator(exported, source_language="en")


def test_each_signature_takes_languages(saved):
    import tensorflow as tf

    signatures = saved._module.signatures
    more = {"constrained": {"terms": [["noon"], ["ten"]]}, "prefix": {"prefix": ["noon", ""]}}
    for name, function in signatures.items():
        size = 1 if name == "single" else 2
        inputs = {key: tf.constant(value) for key, value in more.get(name, {}).items()}
        text = tf.constant(TEXTS[:1] * size)

        def call(*codes, text=text, function=function, inputs=inputs):
            return function(text=text, target_language=tf.constant(codes), **inputs)

        both = [call(code)["translation"].numpy().tolist() for code in ("de", "en")]
        assert both[0] != both[1]
        assert call("")["translation"].numpy().tolist() == both[0]
        if size == 2:
            mixed = call("en", "")["translation"].numpy().tolist()
            assert mixed == [both[1][0], both[0][1]]
            none = {key: value[:0] for key, value in inputs.items()}
            for codes in ([], [""]):
                codes = tf.constant(codes, tf.string)
                outputs = function(text=text[:0], target_language=codes, **none)
                assert all(value.shape[0] == 0 for value in outputs.values())
            with pytest.raises(tf.errors.InvalidArgumentError, match="one row for each text"):
                call("de", "en", "de")
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=r"The target language f\?r is unknown; choose one of de, en, zh, or",
        ):
            call(b"f?r")


def test_only_ops_that_a_server_has(translator, tmp_path):
    check_ops(translator.export(tmp_path / "plain", signatures=["serving_default"]))


def test_a_request_may_leave_the_language_out(exported, saved):
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2

    proto = saved_model_pb2.SavedModel.FromString((exported / "saved_model.pb").read_bytes())
    signatures = proto.meta_graphs[0].signature_def
    for name, signature in signatures.items():
        if not name.startswith("__"):
            assert [*signature.defaults] == ["target_language"]
            default = tf.make_ndarray(signature.defaults["target_language"])
            assert default.tolist() == [b""]
    codes = tf.constant(default)
    outputs = saved._module.signatures["serving_default"](
        text=tf.constant(TEXTS), target_language=codes
    )
    assert [each.decode() for each in outputs["translation"].numpy()] == saved(TEXTS)


def published(translator, place, mode):
    """The model as published ones have languages: before the translation, or tags of texts."""
    tokenizer = translator.tokenizer
    changed = kformer.Tokenizer.from_sentencepiece(
        tokenizer.sentencepiece_model(),
        control_ids=tokenizer.languages.values(),
        languages=tokenizer.languages,
        language_places={"target": [place]},
        language_tags=place == "source_prefix",
    )
    if place == "target_prefix":
        changed = changed.for_languages(target="de")
    options = kformer.decoding.SearchOptions(max_length=20, beam_size=2, mode=mode)
    return kformer.Translator(translator.model, changed, options, translator.config)


@pytest.mark.parametrize(
    ("place", "mode", "dtype"),
    [
        ("target_prefix", "kformer", None),
        ("target_prefix", "huggingface", "int8"),
        pytest.param("source_prefix", "huggingface", None, marks=pytest.mark.slow),
    ],
)
def test_published_models(translator, tmp_path, place, mode, dtype):
    other = published(translator, place, mode)
    names = ["serving_default"] if dtype else ["serving_default", "n_best", "prefix"]
    saved = SavedModelTranslator(other.export(tmp_path / "model", signatures=names, dtype=dtype))
    settings = other.options, other.config
    run = kformer.Translator(other.model, other.tokenizer, *settings, dtype=dtype)
    texts = [*TEXTS, ">>zh<<", ">>zh<< noon"]
    codes = [*CODES, "de", None]
    assert saved.target_language == other.tokenizer.target_language
    for call in [{}] if dtype else [{"n_best": 2}, {"prefixes": ["ten", "noon"] * 4}]:
        both = [each.translate(texts, target_language=codes, **call) for each in (saved, run)]
        for found, expected in zip(*both, strict=True):
            hypotheses = list(zip(found.hypotheses, expected.hypotheses, strict=True))
            assert all(ours.text == theirs.text for ours, theirs in hypotheses)
            assert all(np.isclose(ours.score, theirs.score) for ours, theirs in hypotheses)


def test_a_search_that_cannot_choose_keeps_its_language(translator, tmp_path):
    other = published(translator, "target_prefix", "kformer")
    forbidden = [other.tokenizer.languages["en"]]
    settings = {"signatures": ["serving_default"], "forbidden_ids": forbidden}
    saved = SavedModelTranslator(other.export(tmp_path / "model", **settings))
    assert saved.languages == [] and saved(TEXTS) == other(TEXTS, forbidden_ids=forbidden)
    with pytest.raises(ValueError, match="has no choice of languages"):
        saved(TEXTS, target_language="en")


def test_a_source_language_that_the_export_fixed_is_that_of_each_direction(monkeypatch):
    metadata = {"search": {}, "languages": ["de", "en"], "source_language": "en"}
    monkeypatch.setattr(reader, "find_version", lambda path: path)
    monkeypatch.setattr(reader, "open_saved_model", lambda *_, **__: (None, metadata))
    saved = SavedModelTranslator("model")
    for source in ("en", None):
        assert saved.for_direction(source, "de").target_language == "de"
    with pytest.raises(ValueError, match="source language .* is fixed, en: leave out 'de'"):
        saved.for_direction("de", "en")
