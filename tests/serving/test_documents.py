"""Texts of LibreTranslate's protocol, and documents that take long to read."""

import asyncio
import dataclasses
import json
import threading
import time

import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient

from kformer.documents import Report
from kformer.documents.job import Request
from kformer.serving import interface, run
from kformer.serving.ingress import documents
from kformer.serving.ingress.app import make_app
from kformer.serving.ingress.documents import Documents
from kformer.serving.ingress.ingress import Ingress
from kformer.serving.interface import DeadlineExceeded, Draining, TooLarge
from kformer.serving.settings import ServerSettings
from tests.serving.conftest import TERMS
from tests.serving.page.engines import ToldEngine, version_of

pytestmark = pytest.mark.any_backend
PAGES = ["<p>page</p>"] * 400


@pytest.fixture
def read(monkeypatch):
    """A list that has an entry for each page that was read, in a tenth of a second each."""
    found = []

    def translated(text, *_, **__):
        time.sleep(0.1)
        found.append(threading.get_ident())
        return text, None
        yield

    monkeypatch.setattr(documents, "translated", translated)
    return found


def translate(pages, deadline_s):
    version = version_of("en-de", {}, pairs=(("en", "de"),))
    ingress = Ingress(ToldEngine([version]), ServerSettings(["m=p"], deadline_s=deadline_s))
    work = Documents(ingress, "", version, ("en", "de"), time.monotonic())
    return work.translate(pages, "html")


def test_the_event_loop_goes_on(read):
    assert asyncio.run(translate(PAGES[:3], 60)) == [(page, None) for page in PAGES[:3]]
    assert threading.get_ident() not in read


def test_the_deadline_ends_the_reading(read):
    with pytest.raises(DeadlineExceeded, match="deadline"):
        asyncio.run(translate(PAGES, 0.5))
    assert 0 < len(read) < 10


def test_a_client_that_leaves_ends_the_reading(read):
    """So does the end of the drain, which cancels requests and then waits for threads."""
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(translate(PAGES, 60), 0.5))
    assert 0 < len(read) < 10


@pytest.mark.heavy
def test_the_deadline_over_http(read, server, client, monkeypatch):
    ingress = server.server.ingress
    monkeypatch.setattr(ingress, "settings", dataclasses.replace(ingress.settings, deadline_s=0.5))
    body = {"q": PAGES, "format": "html", "source": "en", "target": "zh"}
    answered = client.post("/translate", json=body)
    assert answered.status_code == 504 and "deadline" in answered.json()["error"]
    assert 0 < len(read) < 10


@pytest.fixture
def told():
    """An engine that answers in capital letters, and a client of its server."""
    outputs = {"serving_default": ["translation"], "n_best": ["translations"]}
    version = version_of("en-de", outputs, pairs=(("en", "de"),), search={"n_best": 2})
    engine = ToldEngine([version])
    engine.client = TestClient(
        make_app(Ingress(engine, ServerSettings(["m=p"]))), "http://localhost"
    )
    return engine


def ask(told, q, **fields):
    fields = {"q": q, "source": "en", "target": "de", **fields}
    return told.client.post("/translate", json=fields)


def test_a_text_is_parted_into_sentences_and_its_lines_stay(told):
    text = "It snows. It is cold!\r\n\nA new line.\n"
    assert ask(told, text).json() == {"translatedText": text.upper()}
    assert ask(told, text, format=None).json() == ask(told, text, format="").json()
    assert ask(told, [text, ""]).json() == {"translatedText": [text.upper(), ""]}
    assert told.requests[0].texts == [b"It snows.", b"It is cold!", b"A new line."]


def test_coverage_of_each_sentence(told):
    reply = ask(told, ["One. Call 555.", "two"], coverage=True).json()
    assert reply["translatedText"] == ["ONE. CALL 555.", "TWO"]
    (first, second), (third,) = reply["coverage"]
    assert (second["source"], second["translation"]) == ("Call 555.", "CALL 555.")
    assert first["probability"] == third["probability"] == 0 and third["missing"] == []
    assert "coverage" not in ask(told, "One.").json()
    assert ask(told, "a", coverage=True, alternatives=1).status_code == 400
    # A run judges by its model.
    found = {"probability": 0.7, "missing": [], "added": [], "retried": False}
    compute, signatures = told.compute, dict(told.listed[0].signatures)
    signatures["coverage"] = signatures["n_best"]
    told.listed[:] = [dataclasses.replace(told.listed[0], signatures=signatures)]
    told.compute = lambda request: (
        compute(request)
        | {"coverage": np.array([json.dumps(found).encode()] * len(request.texts), object)}
    )
    reply = ask(told, "One.", coverage=True).json()
    assert reply["coverage"] == [{"line": 1, "source": "One.", "translation": "ONE.", **found}]
    assert told.requests[-1].signature == "coverage"


def test_a_document_is_one_request_in_the_metrics(told):
    """The model is asked again for what stands within tags."""
    assert ask(told, "<p>It is <b>very cold</b> here.</p>", format="html").status_code == 200
    assert len(told.requests) == 2
    counted = told.client.get("/metrics").text
    for name, count in (("requests_total", 1), ("texts_total", 2), ("request_seconds_count", 1)):
        (line,) = (line for line in counted.splitlines() if line.startswith(f"kformer_{name}{{"))
        assert line.endswith(f" {count}.0")


def limited(told, **limits):
    app = make_app(Ingress(told, ServerSettings(["m=p"], **limits)))
    told.client = TestClient(app, "http://localhost")


def test_the_limit_of_texts_counts_what_the_client_sent(told):
    """What a text is parted into goes to the model in requests within the limit."""
    limited(told, max_texts=3)
    text = " ".join(f"It is {number}." for number in range(7))
    assert ask(told, [text, "It snows."]).json() == {"translatedText": [text.upper(), "IT SNOWS."]}
    assert [len(request.texts) for request in told.requests] == [3, 3, 2]
    reply = ask(told, ["a", "b", "c", "d"])
    assert reply.status_code == 413
    expected = "The request has 4 texts, but at most 3 are allowed: send fewer at once."
    assert reply.json()["error"] == expected


def test_attention_has_no_more_texts_than_others():
    outputs = {"serving_default": ["translation"], "attention": ["source_tokens"]}
    engine = ToldEngine([version_of("m", outputs)])

    async def refused(count, **limits):
        ingress = Ingress(engine, ServerSettings(["m=p"], **limits))
        with pytest.raises(TooLarge, match=f"at most {count - 1} are allowed for attention"):
            await ingress.answer("", interface.Request("m", [b"a"] * count, "attention"))

    asyncio.run(refused(4, max_texts=3))
    asyncio.run(refused(3, max_attention_texts=2))


def test_alternatives_are_of_one_line_that_the_model_reads_whole(told):
    found = ask(told, "It snows.", alternatives=1).json()
    assert found["translatedText"] == "IT SNOWS." and "alternatives" in found
    reply = ask(told, ["one", "two\nlines"], alternatives=1)
    assert reply.status_code == 400 and "one line" in reply.json()["error"]
    reply = ask(told, "long " * 300, alternatives=1)
    assert reply.status_code == 413 and "longer than the model reads" in reply.json()["error"]


class Ending(ToldEngine):
    """An engine that answers nothing once it was drained, and waits for what it computes."""

    is_drained, computing = False, 0

    async def run(self, request):
        if self.is_drained:
            raise Draining("The engine is ending.")
        self.computing += 1
        try:
            return await super().run(request)
        finally:
            self.computing -= 1

    async def drain(self, seconds):
        self.is_drained = True
        while self.computing:
            await asyncio.sleep(0.01)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("path", "drain_s", "status"),
    [("/translate", 20, 200), ("/page/translate", 20, 200), ("/translate", 0.2, 503)],
)
def test_the_drain_waits_for_documents(path, drain_s, status, monkeypatch):
    """While a document is read the engine has nothing of it."""
    is_read = threading.Event()

    def translated(text, *_, **__):
        for number in (1, 2):
            is_read.set()
            time.sleep(0.7)
            (answer,) = yield [Request(f"{text} {number}")]
        return answer.text, Report()

    version = version_of("en-de", {"serving_default": ["translation"]}, pairs=(("en", "de"),))
    engine = Ending([version])
    monkeypatch.setattr(documents, "translated", translated)
    monkeypatch.setattr(run, "make_engine", lambda settings: engine)
    bound = run.bind("127.0.0.1", 0)
    settings = ServerSettings(["en-de=path"], glossaries=[f"terms={TERMS}"], drain_s=drain_s)
    body = {"q": "a", "source": "en", "target": "de"}
    body |= {"model": "en-de", "text": "a", "glossary": "terms"}

    async def scenario():
        server = run.Server(settings, [bound], [].append)
        serving = asyncio.create_task(server.run())
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            while server.ingress is None or not server.ingress.is_ready:
                await asyncio.sleep(0.01)
            asked = asyncio.create_task(client.post(path, json=body))
            await asyncio.to_thread(is_read.wait, 20)
            server.end()
            while not server.ingress.is_draining:
                await asyncio.sleep(0.01)
            refused = await client.post(path, json=body)
            assert refused.status_code == 503 and "ending" in refused.json()["error"]
            found = await asked
        assert found.status_code == status, found.text
        assert ("A 2" in found.text) == (status == 200)
        await serving

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert engine.is_drained
