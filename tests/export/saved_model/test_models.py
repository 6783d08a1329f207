"""SavedModels of encoders, language models and forecasters compute what the models compute."""

import functools
import json
import warnings

import keras
import numpy as np
import pytest

import kformer
from kformer import Forecaster, TransformerDecoder, TransformerEncoder
from kformer.export import SavedModelTranslator, export_model
from tests.text_samples import corpus

SIZES = {
    "num_layers": 1,
    "hidden_dim": 16,
    "intermediate_dim": 32,
    "num_heads": 2,
    "max_length": 24,
}
TEXTS = [
    "The dog crosses the old bridge 17.",
    "",
    "男人骑着马。",
    "A small child sees the very very long street near the river and the garden.",
]
on_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="others leave it to a process with TensorFlow"
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    file = tmp_path_factory.mktemp("corpus") / "text"
    file.write_text("\n".join(corpus(600)), encoding="utf-8")
    return kformer.Tokenizer.train([str(file)], vocabulary_size=500, model_type="unigram")


@functools.lru_cache(maxsize=1)
def signatures(path):
    """The signatures of a SavedModel, which is loaded once."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 - its kernels

    module = tf.saved_model.load(str(path))
    return module, module.signatures


def run(path, name="serving_default", **inputs):
    """What a signature of the SavedModel returns."""
    import tensorflow as tf

    _, functions = signatures(path)
    outputs = functions[name](**{key: tf.constant(x) for key, x in inputs.items()})
    return {key: value.numpy() for key, value in outputs.items()}


def padded(rows, length=None):
    ids = np.zeros((len(rows), length or max(map(len, rows))), "int32")
    for row, given in zip(ids, rows, strict=True):
        row[: len(given)] = given
    return ids


def randomized(model, rng):
    for weight in model.trainable_weights:
        if len(weight.shape) == 2:
            weight.assign(rng.normal(0, 0.4, weight.shape).astype("float32"))
    return model


@pytest.mark.heavy
def test_a_language_model_from_any_backend(tokenizer, rng, tmp_path, backend):
    if backend == "jax":
        pytest.skip("JAX makes it in the same process as PyTorch does")
    model = randomized(
        TransformerDecoder(tokenizer.vocabulary_size, position_encoding="rope", **SIZES), rng
    )
    path = export_model(model, tmp_path / "writer", tokenizer, max_new_tokens=8, beam_size=3)
    assert path == tmp_path / "writer" / "1"
    assert [entry.name for entry in (tmp_path / "writer").iterdir()] == ["1"]
    found = run(path, text=TEXTS)
    # A prompt that leaves no capacity is truncated at its beginning.
    whole = tokenizer.tokenize(TEXTS, side="target")
    prompts = [ids if len(ids) <= 22 else ids[-15:] for ids in whole]
    expected = model.generate(prompts, max_new_tokens=8, beam_size=3)
    with pytest.warns(UserWarning, match="only its last 15 are read"):
        assert model.generate(whole, max_new_tokens=8, beam_size=3) == expected
    assert [text.decode() for text in found["continuation"]] == tokenizer.detokenize(expected)
    assert found["truncated"].tolist() == [len(ids) > 22 for ids in whole] != [False] * 4
    texts = [text.decode() for text in found["text"]]
    assert texts[1] == found["continuation"][1].decode()
    assert texts[0].startswith(TEXTS[0])
    by_ids = run(path, "token_ids", token_ids=padded(prompts))
    assert [
        [token for token in row if token != model.pad_id] for row in by_ids["continuation"].tolist()
    ] == [[token for token in row if token != model.pad_id] for row in expected]
    np.testing.assert_allclose(by_ids["score"], found["score"], atol=1e-4)
    assert not by_ids["truncated"].any()
    if backend != "tensorflow":
        return  # The graph is the same.
    # Prompts that leave capacity for 7 tokens, for 1 and for none.
    longer = [rng.integers(4, model.vocabulary_size, length).tolist() for length in (16, 22, 23)]
    expected = model.generate([*longer[:2], longer[2][-15:]], max_new_tokens=8, beam_size=3)
    cut = run(path, "token_ids", token_ids=padded(longer))
    assert [[token for token in row if token] for row in cut["continuation"].tolist()] == expected
    assert cut["truncated"].tolist() == [False, False, True]
    assert run(path, text=np.array([], object))["continuation"].shape == (0,)
    assert run(path, "token_ids", token_ids=np.zeros((0, 4), "int32"))["continuation"].shape[0] == 0


@on_tensorflow
@pytest.mark.parametrize("count", [8, 1])
def test_learned_positions_and_the_huggingface_search(tokenizer, rng, tmp_path, count):
    model = randomized(
        TransformerDecoder(tokenizer.vocabulary_size, position_encoding="learned", **SIZES), rng
    )
    search = {"max_new_tokens": count, "mode": "huggingface", "forced_end": False, "beam_size": 2}
    path = export_model(model, tmp_path / "writer", tokenizer, **search)
    prompts = tokenizer.tokenize(TEXTS, side="target")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = model.generate(prompts, **search)
    assert max(map(len, expected)) == count
    assert [
        text.decode() for text in run(path, text=TEXTS)["continuation"]
    ] == tokenizer.detokenize(expected)
    assert np.isfinite(
        run(path, "token_ids", token_ids=np.full((1, 40), 7, "int32"))["score"]
    ).all()


@on_tensorflow
@pytest.mark.parametrize("head", [None, "classification", "regression", "labelling", "embedding"])
def test_an_encoder_with_its_head(tokenizer, rng, tmp_path, head):
    outputs = {"classification": 3, "labelling": 4, "regression": 2}.get(head)
    model = randomized(
        TransformerEncoder(
            tokenizer.vocabulary_size, head=head, num_outputs=outputs, dropout=0.5, **SIZES
        ),
        rng,
    )
    labels = (
        ["one", "two", "three", "four"][:outputs]
        if head in ("classification", "labelling")
        else None
    )
    path = export_model(model, tmp_path / "encoder", tokenizer, labels=labels)
    found, rows = run(path, text=TEXTS), [ids[:24] for ids in tokenizer.tokenize(TEXTS)]
    ids = padded(rows)
    expected = keras.ops.convert_to_numpy(model({"token_ids": ids}))
    if labels:
        best = expected.argmax(-1)
        expected = np.exp(expected) / np.exp(expected).sum(-1, keepdims=True)
        np.testing.assert_allclose(found["probabilities"], expected, atol=1e-5)
        names = (
            np.array(labels)[best]
            if head == "classification"
            else np.where(ids == 0, "", np.array(labels)[best])
        )
        assert found["label"].astype(str).tolist() == names.tolist()
    else:
        name = {"regression": "values", "embedding": "embedding"}.get(head, "hidden_states")
        np.testing.assert_allclose(found[name], expected, atol=1e-5)
    if head in (None, "labelling"):
        pieces = [[piece.decode() for piece in row if piece] for row in found["tokens"]]
        assert pieces == [tokenizer.tokens(row, side="source") for row in rows]
    assert found["truncated"].tolist() == [False, False, False, True]
    by_ids = run(path, "token_ids", token_ids=ids)
    assert by_ids.keys() == found.keys() - {"tokens"} and not by_ids.pop("truncated").any()
    for name, values in by_ids.items():
        np.testing.assert_array_equal(values, found[name])
    longer = np.concatenate([ids[3:], [[9]]], axis=1).astype("int32")
    cut = run(path, "token_ids", token_ids=longer)
    assert cut.pop("truncated").all()
    for name, values in cut.items():
        np.testing.assert_allclose(
            values, found[name][3:], atol=1e-5
        ) if values.dtype != object else None
    for inputs in (
        {"text": np.array([], object)},
        {"token_ids": np.zeros((0, 3), "int32")},
        {"token_ids": np.zeros((2, 0), "int32")},
    ):
        name = "token_ids" if "token_ids" in inputs else "serving_default"
        assert len(run(path, name, **inputs)["truncated"]) == len(next(iter(inputs.values())))
    with pytest.raises(ValueError, match="holds a TransformerEncoder, which translates nothing"):
        SavedModelTranslator(path)


@on_tensorflow
def test_special_tokens_are_those_of_training(tokenizer, rng, tmp_path):
    sizes = {**SIZES, "position_encoding": "learned"}
    model = randomized(
        TransformerEncoder(tokenizer.vocabulary_size, head="embedding", **sizes), rng
    )
    path = export_model(model, tmp_path / "encoder", tokenizer, special_tokens=True)
    rows = tokenizer.tokenize(TEXTS, special_tokens=True)
    suffix = list(tokenizer.source_suffix)
    assert suffix and len(rows[3]) > 24
    rows[3] = rows[3][: 24 - len(suffix)] + suffix
    expected = keras.ops.convert_to_numpy(model({"token_ids": padded(rows)}))
    np.testing.assert_allclose(run(path, text=TEXTS)["embedding"], expected, atol=1e-5)


@on_tensorflow
def test_a_forecaster_and_a_model_without_a_tokenizer(rng, tmp_path):
    sizes = {
        name: value for name, value in SIZES.items() if name not in ("num_layers", "max_length")
    }
    model = Forecaster(2, 1, num_encoder_layers=1, num_decoder_layers=1, **sizes)
    past = rng.normal(size=(3, 9, 2)).astype("float32")
    path = export_model(model, tmp_path / "forecast", steps=5)
    np.testing.assert_allclose(run(path, past=past)["forecast"], model.forecast(past, 5), atol=1e-5)
    assert export_model(model, tmp_path / "forecast", steps=6).name == "2"
    assert json.loads((path / "assets.extra" / "kformer.json").read_text())["steps"] == 5
    short = Forecaster(
        2,
        1,
        num_encoder_layers=1,
        num_decoder_layers=1,
        position_encoding="learned",
        max_length=8,
        **sizes,
    )
    path = export_model(short, tmp_path / "short", steps=5)
    np.testing.assert_allclose(
        run(path, past=past[:, :8])["forecast"], short.forecast(past[:, :8], 5), atol=1e-5
    )
    for bad, message in (
        (past, "longer than the 8 learned positions"),
        (past[:, :0], "has no steps"),
    ):
        with pytest.raises(Exception, match=message):
            run(path, past=bad)
    encoder = TransformerEncoder(30, head="classification", num_outputs=3, **SIZES)
    ids = np.array([[4, 5, 6]], "int32")
    found = run(export_model(encoder, tmp_path / "ids"), token_ids=ids)
    assert (
        found["label"].tolist()
        == keras.ops.convert_to_numpy(encoder({"token_ids": ids})).argmax(-1).tolist()
    )


@pytest.mark.any_backend
def test_what_does_not_belong_together_is_refused(tokenizer, tmp_path):
    size = tokenizer.vocabulary_size
    encoder = TransformerEncoder(size, head="classification", num_outputs=3, **SIZES)
    decoder = TransformerDecoder(size, **SIZES)
    sizes = {name: value for name, value in SIZES.items() if name != "num_layers"}
    forecaster = Forecaster(1, position_encoding="learned", **sizes)
    for model, given, message in [
        (keras.Sequential(), {}, "not a Sequential; a translator is exported by"),
        (encoder, {"labels": ["a"]}, r"labels must be 3 strings, one a class, but \['a'\]"),
        (encoder, {"labels": [1, 2, 3]}, "labels must be 3 strings"),
        (encoder, {"special_tokens": True}, "special_tokens are a tokenizer's"),
        (encoder, {"steps": 3}, "steps: a TransformerEncoder has no use"),
        (encoder, {"max_new_tokens": 3}, "max_new_tokens: a TransformerEncoder has no use"),
        (encoder, {"beam_size": 3}, "beam_size: a TransformerEncoder has no use"),
        (TransformerEncoder(size, **SIZES), {"labels": ["a"]}, "the model's head is None"),
        (
            TransformerEncoder(size - 1, **SIZES),
            {"tokenizer": tokenizer},
            "give the tokenizer that the model was trained with",
        ),
        (decoder, {"max_new_tokens": 24}, "from 1 to 23"),
        (decoder, {"steps": 2}, "steps: a TransformerDecoder has no use"),
        (
            decoder,
            {"max_new_tokens": 8.5},
            "max_new_tokens must be a whole number from 1 to 23, but 8.5",
        ),
        (
            decoder,
            {"max_length": 9},
            "max_length: max_new_tokens limits a continuation; leave this out.",
        ),
        (decoder, {"n_best": 2}, "n_best: a SavedModel returns the best"),
        (decoder, {"beam": 2}, "Unknown search option beam"),
        (decoder, {"forbidden_ids": [9000]}, "forbidden_ids holds 9000"),
        (decoder, {"sampling": True}, "sampling cannot be exported"),
        (forecaster, {"steps": None}, "steps must be a whole number of at least 1, but None"),
        (forecaster, {"steps": 25}, "25 steps is longer than the 24 learned positions"),
        (forecaster, {"steps": 5, "tokenizer": tokenizer}, "reads numbers"),
    ]:
        with pytest.raises((ValueError, TypeError), match=message):
            export_model(model, tmp_path / "refused", **given)
    assert not list(tmp_path.iterdir())
