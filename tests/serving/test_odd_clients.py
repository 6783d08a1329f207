"""Clients of HTTP that nobody here wrote, as bytes: health probes, proxies, pages, and Java's."""

import json
import re
import socket

import pytest

from kformer.serving import run
from kformer.serving.interface import TensorInfo
from kformer.serving.settings import ServerSettings
from tests.serving.conftest import Here
from tests.serving.page.engines import ToldEngine, version_of

pytestmark = pytest.mark.any_backend

PREDICT = "/v1/models/en-zh:predict"
TEXT = TensorInfo("text", "string", (-1,))


@pytest.fixture(scope="module")
def engine():
    outputs = {"serving_default": ["translation", "score", "truncated"]}
    version = version_of("en-zh", outputs, languages=("en", "zh"))
    for signature in version.signatures.values():
        object.__setattr__(signature, "inputs", (TEXT,))
    return ToldEngine([version])


@pytest.fixture(scope="module")
def here(engine):
    """A server in this process, whose engine writes texts in capital letters."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "make_engine", lambda settings: engine)
        server = Here(ServerSettings(["en-zh=path"], port=0))
        yield server
        server.end()


@pytest.fixture
def ask(here):
    """Sends bytes: returns the status, the headers and the body of the first response."""

    def send(content, *others):
        with socket.create_connection(("127.0.0.1", here.port), 20) as connection:
            for part in (content, *others):
                connection.sendall(part.encode() if isinstance(part, str) else part)
            file = connection.makefile("rb")
            status = int(file.readline().split()[1])
            head = b"".join(iter(file.readline, b"\r\n"))
            headers = dict(re.findall(rb"([^:]+): (.*)\r\n", head))
            headers = {key.decode().lower(): value.decode() for key, value in headers.items()}
            return status, headers, file.read(int(headers.get("content-length", 0)))

    return send


def request(method, path, body="", **headers):
    lines = {"Host": "localhost", "Content-Length": len(body.encode()), **headers}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in lines.items() if value != ""]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", body])


def test_health_has_the_bodies_of_the_specification(ask, here, monkeypatch):
    """Of the Open Inference Protocol, version 2, whose clients read them."""
    model = {"name": "en-zh", "ready": True}
    for path, body in {
        "/v2/health/live": {"live": True},
        "/v2/health/ready": {"ready": True},
        "/v2/models/en-zh/ready": model,
        "/v2/models/en-zh/versions/1/ready": model,
    }.items():
        status, headers, content = ask(request("GET", path))
        assert (status, headers["content-type"]) == (200, "application/json"), path
        assert json.loads(content) == body, path
    monkeypatch.setattr(here.server.ingress, "is_started", False)
    for path, body in (("health", {"ready": False}), ("models/en-zh", {**model, "ready": False})):
        status, _, content = ask(request("GET", f"/v2/{path}/ready"))
        assert status == 503 and json.loads(content) == body
