"""Clients of the server's protocols that no one here wrote, and what they get beside what is right.

`benchmarks/serving.py same` uses them.
"""

import base64
import sys
import threading

import numpy as np

NAME = "en-zh"
PREDICT = f"/v1/models/{NAME}:predict"


class Clients(threading.local):
    """A client of each protocol, for each thread: methods of texts and a signature.

    They return the outputs by name. LibreTranslate's has translations alone.
    """

    def __init__(self, url, port):
        import grpc
        import requests
        import tritonclient.http as triton
        from tensorflow_serving.apis import prediction_service_pb2_grpc

        self._url, self._session = url, requests.Session()
        channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        self._triton = triton.InferenceServerClient(url.removeprefix("http://"))

    def _post(self, path, body):
        return self._session.post(self._url + path, json=body).json()

    def rows(self, texts, signature):
        encoded = [{"b64": base64.b64encode(text.encode()).decode()} for text in texts]
        body = {"signature_name": signature, "instances": encoded}
        rows = self._post(PREDICT, body)["predictions"]
        return {name: [row[name] for row in rows] for name in rows[0]}

    def columns(self, texts, signature):
        return self._post(PREDICT, {"signature_name": signature, "inputs": texts})["outputs"]

    def grpc(self, texts, signature):
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2

        request = predict_pb2.PredictRequest()
        request.model_spec.name, request.model_spec.signature_name = NAME, signature
        request.inputs["text"].CopyFrom(tf.make_tensor_proto(texts))
        outputs = self._stub.Predict(request).outputs
        return {name: tf.make_ndarray(value) for name, value in outputs.items()}

    def open_inference(self, texts, signature):
        import tritonclient.http as triton

        tensor = triton.InferInput("text", [len(texts)], "BYTES")
        tensor.set_data_from_numpy(np.array(texts, object))
        found = self._triton.infer(NAME, [tensor], parameters={"signature_name": signature})
        names = [output["name"] for output in found.get_response()["outputs"]]
        return {name: found.as_numpy(name) for name in names}

    def libretranslate(self, texts, signature):
        body = {"q": texts, "source": "en", "target": "zh", "alternatives": 3}
        if signature != "n_best":
            del body["alternatives"]
        found = self._post("/translate", body)
        best, others = found["translatedText"], found.get("alternatives", [[]] * len(texts))
        pairs = zip(best, others, strict=True)
        return {"translation": best, "translations": [[one, *more] for one, more in pairs]}


PROTOCOLS = {
    "TensorFlow Serving, rows": Clients.rows,
    "TensorFlow Serving, columns": Clients.columns,
    "TensorFlow Serving, gRPC": Clients.grpc,
    "Open Inference": Clients.open_inference,
    "LibreTranslate": Clients.libretranslate,
}


def as_texts(values):
    """Nested lists of str, of an array of bytes or lists of str."""
    if isinstance(values, bytes):
        return values.decode()
    if isinstance(values, list | np.ndarray):
        return [as_texts(value) for value in values]
    return values


def compare(answers, texts, few, expected, attention):
    """The cells of a protocol."""
    found = [
        (as_texts(one["translation"])[0], one.get("score"))
        for one in answers(texts, 1, "serving_default")
    ]
    unequal = [
        (text, one) for (text, _), one in zip(found, expected, strict=True) if text != one.text
    ]
    for text, one in unequal:
        scores = {hypothesis.text: hypothesis.score for hypothesis in one.hypotheses}
        print(f"unequal: gap of score {one.score - scores.get(text, -np.inf):.4f}", file=sys.stderr)
    gaps = [
        abs(score[0] - one.score)
        for (text, score), one in zip(found, expected, strict=True)
        if score is not None and text == one.text
    ]
    lists = [row for one in answers(texts, 32, "n_best") for row in as_texts(one["translations"])]
    wanted = [[hypothesis.text for hypothesis in one.hypotheses] for one in expected]
    equal = sum(a == b for a, b in zip(lists, wanted, strict=True))
    cells = [len(found), f"{len(found) - len(unequal)} of {len(found)}"]
    cells += [f"{max(gaps):.1e}" if gaps else "not carried", f"{equal} of {len(wanted)}"]
    if not gaps:  # LibreTranslate has neither.
        return [*cells, "not carried"]
    differences = [
        np.abs(np.array(one["attention"]) - direct["attention"]).max()
        for one, direct in zip(answers(few, 16, "attention"), attention, strict=True)
    ]
    return [*cells, f"{max(differences):.1e} of {len(few)} texts"]
