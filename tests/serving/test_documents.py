"""Documents that take long to read: the deadline, clients that leave, and the end of a server."""

import asyncio
import dataclasses
import threading
import time

import pytest

from kformer.serving.ingress import documents
from kformer.serving.ingress.documents import Documents
from kformer.serving.interface import DeadlineExceeded
from kformer.serving.settings import ServerSettings

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
    settings = dataclasses.replace(ServerSettings(["m=path"]), deadline_s=deadline_s)
    return Documents(None, settings, time.monotonic()).translate(pages, "html", ("en", "de"))


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


def test_the_deadline_over_http(read, server, client, monkeypatch):
    ingress = server.server.ingress
    monkeypatch.setattr(ingress, "settings", dataclasses.replace(ingress.settings, deadline_s=0.5))
    body = {"q": PAGES, "format": "html", "source": "en", "target": "zh"}
    answered = client.post("/translate", json=body)
    assert answered.status_code == 504 and "deadline" in answered.json()["error"]
    assert 0 < len(read) < 10
