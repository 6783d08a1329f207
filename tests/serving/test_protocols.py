"""Every protocol returns what the SavedModel returns, to clients that no one here wrote."""

import base64
import json

import grpc
import libretranslatepy
import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.utils

from kformer.documents import Glossary
from kformer.serving.ingress import tensorflow_serving
from tests.serving.conftest import MODEL, TERMS, TEXTS

pytestmark = pytest.mark.any_backend

PREDICT = f"/v1/models/{MODEL}:predict"


@pytest.fixture
def best(expected):
    return [one.text for one in expected]


# ---- TensorFlow Serving, REST ----


@pytest.mark.parametrize("path", [PREDICT, f"/v1/models/{MODEL}/versions/1:predict"])
def test_rows(client, path, best, expected):
    body = {"signature_name": "serving_default", "instances": [{"text": text} for text in TEXTS]}
    answered = client.post(path, json=body)
    assert answered.status_code == 200
    rows = answered.json()["predictions"]
    assert [row["translation"] for row in rows] == best
    scores = [row["score"] for row in rows]
    np.testing.assert_allclose(scores, [one.score for one in expected], atol=1e-4)
    assert client.post(path, json={"instances": TEXTS}).json()["predictions"] == rows


def test_columns(client, best):
    for inputs in (TEXTS, {"text": TEXTS}):
        outputs = client.post(PREDICT, json={"inputs": inputs}).json()["outputs"]
        assert outputs["translation"] == best
        assert outputs["truncated"] == [False] * len(TEXTS)


def test_base64(client, best):
    rows = [{"b64": base64.b64encode(text.encode()).decode()} for text in TEXTS]
    for body in ({"instances": rows}, {"instances": [{"text": row} for row in rows]}):
        found = client.post(PREDICT, json=body).json()["predictions"]
        assert [row["translation"] for row in found] == best


def test_n_best_and_attention(client, expected):
    body = {"signature_name": "n_best", "inputs": TEXTS}
    outputs = client.post(PREDICT, json=body).json()["outputs"]
    assert outputs["translations"] == [[h.text for h in one.hypotheses] for one in expected]
    body = {"signature_name": "attention", "inputs": TEXTS[:2]}
    outputs = client.post(PREDICT, json=body).json()["outputs"]
    weights = np.array(outputs["attention"])
    assert weights.shape[3:] == np.shape(outputs["target_tokens"])[1:] + (
        len(outputs["source_tokens"][0]),
    )


def test_json_is_limited(client, inference, monkeypatch):
    """To write an attention of many long texts as JSON would hold all other requests."""
    monkeypatch.setattr(tensorflow_serving, "_MOST_VALUES", 500)
    body = {"signature_name": "attention", "inputs": TEXTS[:2]}
    answered = client.post(PREDICT, json=body)
    assert answered.status_code == 413 and "or by gRPC or for binary" in answered.json()["error"]
    text = triton.InferInput("text", [2], "BYTES")
    text.set_data_from_numpy(np.array(TEXTS[:2], object))
    for is_binary in (True, False):
        attention = [triton.InferRequestedOutput("attention", binary_data=is_binary)]
        options = {"outputs": attention, "parameters": {"signature_name": "attention"}}
        if is_binary:
            assert inference.infer(MODEL, [text], **options).as_numpy("attention").size > 500
        else:
            with pytest.raises(tritonclient.utils.InferenceServerException, match="at most 500"):
                inference.infer(MODEL, [text], **options)


def test_status_and_metadata(client):
    status = client.get(f"/v1/models/{MODEL}").json()["model_version_status"]
    assert {"version": "1", "state": "AVAILABLE"}.items() <= status[-1].items()
    found = client.get(f"/v1/models/{MODEL}/versions/1/metadata").json()
    assert found["model_spec"] == {"name": MODEL, "signature_name": "", "version": "1"}
    signatures = found["metadata"]["signature_def"]["signature_def"]
    assert set(signatures) == {"serving_default", "n_best", "attention"}
    assert signatures["serving_default"]["inputs"]["text"] == {
        "dtype": "DT_STRING",
        "tensor_shape": {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False},
        "name": "serving_default_text:0",
    }


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/models/no:predict", {"instances": ["a"]}, 404),
        (f"/v1/models/{MODEL}/versions/77:predict", {"instances": ["a"]}, 404),
        (f"/v1/models/{MODEL}/versions/x:predict", {"instances": ["a"]}, 400),
        (PREDICT, {"instances": ["a"], "signature_name": "no"}, 400),
        (PREDICT, {"instances": ["a"], "inputs": ["a"]}, 400),
        (PREDICT, {"instances": [1]}, 400),
        (PREDICT, {"instances": []}, 400),
        (PREDICT, {"instances": [{"b64": "???"}]}, 400),
        (PREDICT, {"instances": ["a"] * 501}, 413),
        (PREDICT, {"instances": ["a" * 2001]}, 413),
        (PREDICT, {"instances": ["a"] * 17, "signature_name": "attention"}, 413),
        (PREDICT, {"instances": ["a" * 1000] * 300}, 413),
        ("/v1/models/../../etc/passwd", {}, 404),
    ],
)
def test_errors_in_rest(client, path, body, status):
    answered = client.post(path, json=body)
    assert answered.status_code == status
    assert list(answered.json()) == ["error"] and answered.json()["error"]


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b'{"instances": ' + b"[" * 90_000, b"", b"\xff", b"1" * 9999, b"[]"]
)
def test_hostile_json(client, content):
    assert client.post(PREDICT, content=content).status_code == 400


def test_bodies_are_limited_before_they_are_read(client):
    def endless():
        for _ in range(10_000):
            yield b" " * 10_000

    try:
        status = client.post(PREDICT, content=endless()).status_code
    except Exception as error:  # The server may have closed the connection while we wrote.
        assert "WriteError" in type(error).__name__ or "Protocol" in type(error).__name__
    else:
        assert status == 413
    assert client.post(PREDICT, content=b"{}", headers={"content-encoding": "gzip"}).is_client_error


# ---- TensorFlow Serving, gRPC ----


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as found:
        yield found


def request_of(texts, **spec):
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2

    request = predict_pb2.PredictRequest()
    request.model_spec.name = spec.get("name", MODEL)
    request.model_spec.signature_name = spec.get("signature", "")
    if "version" in spec:
        request.model_spec.version.value = spec["version"]
    request.inputs["text"].CopyFrom(tf.make_tensor_proto(texts))
    return request


def test_grpc(channel, best, expected):
    import tensorflow as tf
    from tensorflow_serving.apis import (
        get_model_metadata_pb2,
        get_model_status_pb2,
        model_service_pb2_grpc,
        prediction_service_pb2_grpc,
    )

    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    response = stub.Predict(request_of(TEXTS), timeout=60)
    found = tf.make_ndarray(response.outputs["translation"])
    assert [text.decode() for text in found] == best
    found = tf.make_ndarray(response.outputs["score"])
    np.testing.assert_allclose(found, [one.score for one in expected], atol=1e-4)
    response = stub.Predict(request_of(TEXTS, signature="n_best", version=1), timeout=60)
    assert tf.make_ndarray(response.outputs["translations"]).shape == (len(TEXTS), 4)
    request = get_model_metadata_pb2.GetModelMetadataRequest()
    request.model_spec.name = MODEL
    request.metadata_field.append("signature_def")
    response = stub.GetModelMetadata(request, timeout=60)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(signatures)
    assert signatures.signature_def["serving_default"].inputs["text"].dtype == 7
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = MODEL
    status = model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus(request, timeout=60)
    assert 30 in {one.state for one in status.model_version_status}


@pytest.mark.parametrize(
    ("texts", "spec", "code"),
    [
        (["a"], {"name": "no"}, "NOT_FOUND"),
        (["a"], {"version": 77}, "NOT_FOUND"),
        (["a"], {"signature": "no"}, "INVALID_ARGUMENT"),
        ([1.5], {}, "INVALID_ARGUMENT"),
        (["a"] * 501, {}, "INVALID_ARGUMENT"),
    ],
)
def test_errors_in_grpc(channel, texts, spec, code):
    from tensorflow_serving.apis import prediction_service_pb2_grpc

    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    with pytest.raises(grpc.RpcError) as error:
        stub.Predict(request_of(texts, **spec), timeout=60)
    assert error.value.code().name == code and error.value.details()


def test_an_error_of_the_server_keeps_its_text(channel, server, monkeypatch):
    """As in HTTP: the log has what happened."""
    from tensorflow_serving.apis import prediction_service_pb2_grpc

    def metadata(*_):
        raise RuntimeError("/a/path")

    monkeypatch.setattr(server.server.ingress.engine, "metadata", metadata)
    with pytest.raises(grpc.RpcError) as error:
        prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request_of(["a"]))
    assert error.value.code().name == "INTERNAL" and "path" not in error.value.details()


def test_a_message_that_cannot_be_read(channel):
    call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
    with pytest.raises(grpc.RpcError) as error:
        call(b"\xff\xff\xff", timeout=60)
    assert error.value.code().name == "INVALID_ARGUMENT"


def test_health_in_grpc(channel, server, monkeypatch):
    """The protocol of Kubernetes' probe: a name in field 1, and 1 for "serving" in field 1."""
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    name = b"tensorflow.serving.PredictionService"
    asked = b"\x0a" + bytes([len(name)]) + name
    assert check(b"", timeout=60) == check(asked, timeout=60) == b"\x08\x01"
    with pytest.raises(grpc.RpcError) as error:
        check(b"\x0a\x02no", timeout=60)
    assert error.value.code().name == "NOT_FOUND"
    monkeypatch.setattr(server.server.ingress, "is_started", False)
    assert check(b"", timeout=60) == b"\x08\x02"


# ---- Open Inference ----


@pytest.fixture
def inference(server):
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as found:
        yield found


@pytest.mark.parametrize("is_binary", [True, False])
def test_open_inference(inference, best, expected, is_binary):
    assert inference.is_server_live() and inference.is_server_ready()
    assert inference.is_model_ready(MODEL) and inference.is_model_ready(MODEL, "1")
    assert inference.get_server_metadata()["name"] == "kformer"
    metadata = inference.get_model_metadata(MODEL)
    assert metadata["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    text = triton.InferInput("text", [len(TEXTS)], "BYTES")
    text.set_data_from_numpy(np.array(TEXTS, object), binary_data=is_binary)
    names = [output["name"] for output in metadata["outputs"]]
    outputs = [triton.InferRequestedOutput(name, binary_data=is_binary) for name in names]
    for asked in (None, outputs):
        found = inference.infer(MODEL, [text], outputs=asked, request_id="7")
        assert found.get_response()["id"] == "7"
        texts = [t.decode() if isinstance(t, bytes) else t for t in found.as_numpy("translation")]
        assert texts == best
        scores = [one.score for one in expected]
        np.testing.assert_allclose(found.as_numpy("score"), scores, atol=1e-4)
        assert not found.as_numpy("truncated").any()
    found = inference.infer(MODEL, [text], parameters={"signature_name": "n_best"})
    assert found.as_numpy("translations").shape == (len(TEXTS), 4)


def test_an_id_is_any_string_of_json(client):
    """Half of a surrogate pair is one, which no UTF-8 has."""
    inputs = [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["noon"]}]
    body = json.dumps({"id": "\ud800", "inputs": inputs})
    answered = client.post(f"/v2/models/{MODEL}/infer", content=body)
    assert answered.status_code == 200 and answered.json()["id"] == "\ud800"


def test_errors_in_open_inference(inference):
    for name, kind in (("no", "BYTES"), (MODEL, "FP32")):
        text = triton.InferInput("text", [1], kind)
        values = np.array(["a"], object) if kind == "BYTES" else np.zeros(1, np.float32)
        text.set_data_from_numpy(values)
        with pytest.raises(tritonclient.utils.InferenceServerException) as error:
            inference.infer(name, [text])
        assert error.value.status() in ("404", "400")
        assert "model" in error.value.message() or "BYTES" in error.value.message()


# ---- LibreTranslate ----


def test_libretranslate(server, client, best, expected):
    api = libretranslatepy.LibreTranslateAPI(server.url)
    assert [api.translate(text, "en", "zh") for text in TEXTS[:5]] == best[:5]
    assert {(one["code"], one["name"]) for one in api.languages()} == {
        ("en", "English"),
        ("zh", "Chinese"),
    }
    body = {"q": TEXTS, "source": "en", "target": "zh", "alternatives": 2}
    found = client.post("/translate", json=body).json()
    assert found["translatedText"] == best
    assert found["alternatives"] == [[h.text for h in one.hypotheses[1:3]] for one in expected]


def test_libretranslate_has_html_and_glossaries(client, frozen):
    pages = ['<p class="x">Half past <b>four</b>, Smith.</p><pre>noon</pre>', "<i>At noon</i>"]
    body = {"q": pages, "source": "en", "target": "zh", "format": "html", "glossary": "times"}
    found = client.post("/translate", json=body).json()["translatedText"]
    options = {"target_language": "zh", "glossary": Glossary.load(TERMS)}
    assert found == [frozen.document(page, "html", **options) for page in pages]
    assert found[0].endswith("</p><pre>noon</pre>") and found[0].count("<b>") == 1
    assert "Smith" in found[0] and "中午" in found[1]
    body |= {"format": "text", "q": "noon"}
    assert client.post("/translate", json=body).json() == {"translatedText": "中午"}


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"target": "fr"}, 400),
        ({"source": "auto"}, 400),
        ({"q": 7}, 400),
        ({"q": None}, 400),
        ({"format": "docx"}, 400),
        ({"format": "html", "alternatives": 1}, 400),
        ({"glossary": "absent"}, 400),
        ({"format": "html", "q": "<p>" + "a " * 1000}, 413),
        ({"format": "html", "q": [""] * 10_000}, 413),
        ({"alternatives": 4}, 413),
        ({"alternatives": -1}, 400),
    ],
)
def test_errors_in_libretranslate(client, change, status):
    body = {"q": "noon", "source": "en", "target": "zh", **change}
    answered = client.post("/translate", json=body)
    assert answered.status_code == status and answered.json()["error"]
