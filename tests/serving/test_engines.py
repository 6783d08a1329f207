"""The engines without TensorFlow: a run by PyTorch and a folder for CTranslate2 answer the tests
that a SavedModel answers.
"""

import concurrent.futures
import json

import httpx
import keras
import numpy as np
import pytest

import kformer
from kformer.export.ctranslate2_reader import CTranslate2Translator
from kformer.serving.settings import ServerSettings
from tests.serving.conftest import MODEL, TERMS, TEXTS, Here
from tests.serving.test_protocols import (  # noqa: F401 - they are this module's tests, too
    best,
    inference,
    test_base64,
    test_bodies_are_limited_before_they_are_read,
    test_columns,
    test_errors_in_libretranslate,
    test_errors_in_open_inference,
    test_hostile_json,
    test_open_inference,
    test_rows,
)
from tests.serving.test_runs import RUN

pytestmark = pytest.mark.any_backend(quickest="torch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The run, exported for CTranslate2."""
    pytest.importorskip("ctranslate2")
    path = tmp_path_factory.mktemp("engines") / "folder"
    return kformer.Translator.load(RUN).export(path, format="ctranslate2")


@pytest.fixture(scope="module", params=["torch", "ctranslate2"])
def engine(request):
    if request.param == "torch" and keras.backend.backend() != "torch":
        pytest.skip("the engine torch needs that backend")
    return request.param


@pytest.fixture(scope="module")
def server(engine, request):
    path = RUN if engine == "torch" else request.getfixturevalue("folder")
    limits = {"max_texts": 500, "max_text_bytes": 2000, "max_body_bytes": 200_000}
    glossaries = [f"times={TERMS}"]
    settings = ServerSettings(
        [f"{MODEL}={path}"], port=0, engine=engine, replicas=2, glossaries=glossaries, **limits
    )
    settings.check_files()
    server = Here(settings)
    yield server
    server.end()


@pytest.fixture(scope="module")
def client(server):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def expected(engine, request):
    if engine == "torch":
        return kformer.Translator.load(RUN).translate(TEXTS, n_best=4)
    return CTranslate2Translator(request.getfixturevalue("folder")).translate(TEXTS, n_best=4)


def ask(client, signature, texts=TEXTS):
    body = {"signature_name": signature, "inputs": texts}
    answer = client.post(f"/v1/models/{MODEL}:predict", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["outputs"]


def test_n_best_and_requests_at_the_same_time(client, expected):
    outputs = ask(client, "n_best")
    assert outputs["translations"] == [[h.text for h in one.hypotheses] for one in expected]
    scores = [[h.score for h in one.hypotheses] for one in expected]
    np.testing.assert_allclose(outputs["scores"], scores, atol=1e-3)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        rows = pool.map(lambda text: ask(client, "serving_default", [text]), TEXTS)
        assert [row["translation"] for row in rows] == [[one.text] for one in expected]


def test_attention_is_that_of_a_run(client, engine):
    if engine == "ctranslate2":
        body = {"signature_name": "attention", "inputs": TEXTS}
        assert client.post(f"/v1/models/{MODEL}:predict", json=body).status_code == 400
        return
    outputs = ask(client, "attention", ["noon", "half past nine"])
    for i, text in enumerate(["noon", "half past nine"]):
        expected = kformer.Translator.load(RUN).attention(text)
        tokens = [token for token in outputs["target_tokens"][i] if token]
        assert tokens == expected.target_tokens
        weights = np.array(outputs["attention"][i])[:, :, : len(tokens)]
        np.testing.assert_allclose(
            weights[..., : len(expected.source_tokens)], expected.weights, atol=1e-5
        )


def test_coverage_is_that_of_a_run(client, engine):
    if engine == "torch":
        found = ask(client, "coverage", ["noon", "half past nine"])
        expected = kformer.Translator.load(RUN)(["noon", "half past nine"], coverage=True)
        assert found["translation"] == [each.text for each in expected]
        for text, each in zip(found["coverage"], expected, strict=True):
            assert json.loads(text) == each.coverage.as_dict()


def test_what_the_server_tells_of_its_models(client, engine):
    metadata = client.get(f"/v2/models/{MODEL}").json()
    assert metadata["versions"] == ["1"]
    platforms = {"torch": "pytorch_keras", "ctranslate2": "ctranslate2"}
    assert metadata["platform"] == platforms[engine]
    found = client.get(f"/v1/models/{MODEL}/metadata").json()["metadata"]["signature_def"]
    assert {"serving_default", "n_best"} <= set(found["signature_def"])
    assert client.get("/languages").json()[0]["targets"] == ["zh"]
