"""What the page's script asks the server for, without a browser."""

import base64
import dataclasses
import json

import numpy as np
import pytest
from starlette.testclient import TestClient

from kformer.plots.page import content
from kformer.serving import interface
from kformer.serving.ingress.app import make_app
from kformer.serving.ingress.ingress import Ingress
from kformer.serving.page.routes import OPEN_PATHS
from kformer.serving.settings import ServerSettings
from tests.serving.page.conftest import ANSWER, DOUBTFUL, SENTENCE

pytestmark = pytest.mark.any_backend
SETTINGS = ServerSettings(
    ["model=path"], max_texts=3, max_text_bytes=1000, max_body_bytes=4000, deadline_s=5
)


@pytest.fixture
def client(engine):
    app = make_app(Ingress(engine, SETTINGS))
    return TestClient(app, "http://localhost", raise_server_exceptions=False)


def translate(client, text, model="en-de", path="translate"):
    return client.post(f"/page/{path}", json={"model": model, "text": text})


def test_models(client):
    models = {model["name"]: model for model in client.get("/page/models").json()["models"]}
    assert models.keys() == {"en-de", "en-ar", "plain"}
    assert models["en-ar"]["example"] == "Hello" and "snow" in models["en-de"]["example"]
    assert models["en-ar"]["target"] == {"lang": "ar", "dir": "rtl"}
    assert content.model_entry("es_419-en")["source"]["lang"] == "es-419"
    assert models["plain"]["attention"] is False and models["plain"]["source"]["lang"] == ""


def test_a_model_that_is_not_ready_is_not_offered(engine, client, monkeypatch):
    loading = [dataclasses.replace(one, state=interface.LOADING) for one in engine.listed]
    monkeypatch.setattr(engine, "listed", loading)
    assert client.get("/page/models").json()["models"] == []
    assert translate(client, "a").status_code == 503


def test_translations(client, engine):
    reply = translate(client, f"\r\n{SENTENCE}\r\na").json()
    assert [line["source"] for line in reply["lines"]] == ["", SENTENCE, "a"]
    found = [(one["text"], one["score"]) for one in reply["lines"][1]["hypotheses"]]
    assert found == ANSWER["best"] and reply["lines"][0]["hypotheses"] == []
    # What a beam did not find is not a hypothesis.
    assert len(reply["lines"][2]["hypotheses"]) == 1 and reply["milliseconds"] >= 0
    (request,) = engine.requests
    assert request.signature == "n_best" and 0 < request.seconds_left <= SETTINGS.deadline_s
    assert translate(client, "\n").json()["lines"][0]["source"] == ""


def test_what_was_left_out_comes_with_the_lines(client):
    fine, wrong = translate(client, f"{SENTENCE}\n{DOUBTFUL}").json()["lines"]
    assert fine["coverage"]["probability"] == 0 and fine["coverage"]["missing"] == []
    assert [span["text"] for span in wrong["coverage"]["missing"]] == ["555"]
    assert [span["text"] for span in wrong["coverage"]["added"]] == ["ruf an"]


def test_a_version_that_takes_over_harms_no_request(client, engine, monkeypatch):
    """What is in flight is answered by the former version, which is gone by then."""
    newer = [dataclasses.replace(one, version=one.version + 1) for one in engine.listed]

    async def take_over(request):
        monkeypatch.setattr(engine, "listed", newer)

    engine.before = take_over
    reply = translate(client, "a")
    assert reply.status_code == 200 and reply.json()["model"]["version"] == 3
    assert translate(client, "a").json()["model"]["version"] == 4


def test_empty_lines_count_as_texts(client, engine):
    reply = translate(client, "a\n\n\n")
    assert reply.status_code == 413 and "4 texts, but at most 3" in reply.text
    assert not engine.requests


def test_a_glossary(told_ingress, engine):
    client = TestClient(make_app(told_ingress), "http://localhost")
    models = client.get("/page/models").json()["models"]
    assert {tuple(model["glossaries"]) for model in models} == {("winter",)}
    fields = {"model": "en-de", "text": "the snow of Kim\n\nno term", "glossary": "winter"}
    lines = client.post("/page/translate", json=fields).json()["lines"]
    texts = [[one["text"] for one in line["hypotheses"]] for line in lines]
    assert texts == [["THE Pulverschnee OF Kim"], [], ["NO TERM"]]
    assert lines[0]["terms"] == [
        {"source": "snow", "target": "Pulverschnee", "found": 1, "used": 1},
        {"source": "Kim", "target": "Kim", "found": 1, "used": 1},
    ]
    assert lines[2]["terms"] == []
    assert [lines[i]["coverage"]["probability"] for i in (0, 2)] == [0, 0]
    for wrong in ("summer", ["winter"]):
        reply = client.post("/page/translate", json={**fields, "glossary": wrong})
        assert reply.status_code == 400 and "no glossary of that name" in reply.text


def test_attention(client, engine):
    found = translate(client, SENTENCE, path="attention").json()
    (entry,) = found["maps"]
    numbers = np.frombuffer(base64.b64decode(entry["weights"]), "<u2") / 65535
    shape = entry["layers"], entry["heads"], len(entry["rows"]), len(entry["columns"])
    expected = engine.attention(SENTENCE)["attention"][0]
    np.testing.assert_allclose(numbers.reshape(shape), expected, atol=1e-5)
    assert [word["text"] for word in found["target"]["words"]][2] == "spielen"
    assert translate(client, "a", "plain", "attention").status_code == 400


def test_large_attention_is_averaged_or_left_out(monkeypatch):
    weights = np.full((2, 4, 5, 5), 0.2, "float32")
    tokens = list("abcde")
    for most, heads, is_there in ((200, 4, True), (199, 1, True), (49, 1, False)):
        monkeypatch.setattr(content, "MOST_WEIGHTS", most)
        (entry,) = content.attention_entry(tokens, tokens, {"cross": (weights, tokens, tokens)})[
            "maps"
        ]
        assert (entry["heads"], entry["weights"] is not None) == (heads, is_there)
        assert entry["averaged"] == (heads == 1)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"model": "en-de"}', 400),
        (b'{"model": "en-de", "text": 3}', 400),
        (b"\xff\xfe", 400),
        (b'{"model": {}, "text": "a"}', 400),
        (b"[" * 3000, 400),
        (b'{"model": "no", "text": "a"}', 404),
        (json.dumps({"model": "en-de", "text": "a" * 1001}).encode(), 413),
        (json.dumps({"model": "en-de", "text": "a\n" * 4}).encode(), 413),
        (b" " * 4001, 413),
        (b'{"model": "en-de", "text": "\\ud800"}', 200),
    ],
)
def test_malformed_requests(client, body, status):
    for path in ("translate", "attention"):
        reply = client.post(
            f"/page/{path}", content=body, headers={"content-type": "application/json"}
        )
        wanted = 200 if path == "attention" and b"\\n" in body else status
        assert reply.status_code == wanted, reply.text
        assert status == 200 or wanted == 200 or reply.json()["error"]


def test_a_form_of_another_site_is_refused(client):
    reply = client.post("/page/translate", content=b'{"model": "en-de", "text": "a"}')
    assert reply.status_code == 400
    assert client.get("/page/translate").status_code == 405


def test_errors_have_their_status(client, engine):
    for error, status in (
        (interface.Overloaded("full", 2.4), 429),
        (interface.DeadlineExceeded("late"), 504),
        (interface.Draining("ending"), 503),
        (interface.ModelFailed("failed"), 500),
        (interface.Unauthorized("key"), 401),
    ):

        async def before(request, error=error):
            raise error

        engine.before = before
        reply = translate(client, "a")
        assert (reply.status_code, reply.json()["error"]) == (status, str(error))
        assert (reply.headers.get("retry-after") == "3") == (status == 429)


def test_files(client):
    for path in OPEN_PATHS:
        reply = client.get(path)
        assert reply.status_code == 200 and reply.headers["x-content-type-options"] == "nosniff"
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        # Nothing is loaded from another host, and the markup has neither script nor style.
        assert "https://" not in reply.text
    page = client.get("/").text
    assert "<style" not in page and " style=" not in page and " on" not in page.split("<body>")[1]
    assert client.get("/page/../interface.py").status_code == 404
    assert client.get("/page/index.html").status_code == 404
