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
    lines = {"Host": "localhost", "Content_Length": len(body.encode()), **headers}
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


def multipart(fields, boundary="----page-7", end="--"):
    parts = "".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields
    )
    kind = f"multipart/form-data; boundary={boundary}"
    return request("POST", "/translate", f"{parts}--{boundary}{end}\r\n", Content_Type=kind)


FIELDS = [("q", "one é\r\n\r\ntwo"), ("source", "en"), ("target", "zh")]


def test_a_form_of_a_page(ask):
    """LibreTranslate's own page sends `multipart/form-data`."""
    status, _, content = ask(multipart(FIELDS))
    assert status == 200, content
    assert json.loads(content)["translatedText"].splitlines() == ["ONE É", "", "TWO"]
    status, _, content = ask(multipart([("q", "a"), *FIELDS, ("format", "text")]))
    assert json.loads(content)["translatedText"] == ["A", "ONE É\r\n\r\nTWO"]


@pytest.mark.parametrize(
    "content",
    [
        multipart(FIELDS, end=""),
        multipart(FIELDS).replace("form-data; boundary=", "form-data; b="),
        multipart([("q", "a")] * 10_001),
        request("POST", "/translate", "", Content_Type="multipart/form-data; boundary=a"),
        request(
            "POST", "/translate", "--a\r\n\r\n--a--", Content_Type="multipart/form-data; boundary=a"
        ),
    ],
)
def test_a_broken_form_of_a_page(ask, content):
    status, _, content = ask(content)
    assert status == 400 and b"form" in content


@pytest.mark.parametrize("kind", ["", "application/x-www-form-urlencoded", "text/plain"])
def test_json_is_read_whatever_its_content_type(ask, kind):
    """`curl -d` calls every body a form."""
    body = '\n {"q": "one", "source": "en", "target": "zh"}'
    status, _, content = ask(request("POST", "/translate", body, Content_Type=kind))
    assert status == 200 and json.loads(content) == {"translatedText": "ONE"}


@pytest.mark.parametrize("path", ["translate_file", "detect", "suggest", "frontend/settings"])
def test_what_is_missing_of_libretranslate_is_named(ask, path):
    for method in ("GET", "POST"):
        status, _, content = ask(request(method, f"/{path}"))
        assert status == 501 and f"/{path}" in json.loads(content)["error"]


@pytest.mark.parametrize("host", ["", "translate", "translate:8501", "10.0.0.1:8501", "a b"])
@pytest.mark.parametrize("path", ["/-/healthz", "/-/ready", "/v2/health/live", "/v2/health/ready"])
def test_probes_of_health_need_no_known_host(ask, path, host):
    assert ask(request("GET", path, Host=host))[0] == 200
    assert ask(f"GET {path} HTTP/1.0\r\n\r\n")[0] == 200
    evil = request("GET", path, Host=host, Origin="http://evil.example")
    assert ask(evil)[0] == 400


@pytest.mark.parametrize(
    "host",
    ["", "[::1]evil", "[::1]evil:80", "[::1", "::1]", "127.0.0.1:80:80", "localhost:x", "[]"],
)
def test_an_odd_host_is_refused(ask, host):
    status, _, content = ask(request("GET", "/v1/models/en-zh", Host=host))
    assert status == 400 and "Host" in json.loads(content)["error"]


def test_space_around_a_header_is_none_of_its_value(ask):
    body = json.dumps({"instances": ["one"]})
    spaced = {"Content_Length": f"  {len(body)} ", "Host": " localhost\t "}
    status, _, content = ask(request("POST", PREDICT, body, **spaced, Content_Encoding="identity "))
    assert status == 200 and b"ONE" in content


@pytest.mark.parametrize("offer", ["h2c", "websocket", "TLS/1.0, h2c"])
def test_an_offer_of_another_protocol_loses_no_body(ask, here, offer):
    """Java's client and `curl --http2` offer HTTP/2 with each request."""
    body = json.dumps({"instances": ["one" * 30_000]})
    headers = {"Upgrade": offer, "HTTP2_Settings": "AAMAAABkAAQA"}
    headers["Connection"] = "Upgrade, HTTP2-Settings"
    whole = request("POST", PREDICT, body, **headers)
    for cut in (len(whole), 9, whole.index("\r\n\r\n") + 2, whole.index("\r\n\r\n") + 4, -1):
        status, _, content = ask(whole[:cut], whole[cut:])
        assert status == 200 and b"ONEONE" in content
    chunks = f"{len(body):x}\r\n{body}\r\n0\r\n\r\n"
    head = request("POST", PREDICT, **headers, Content_Length="", Transfer_Encoding="chunked")
    assert ask(head, chunks)[0] == 200
    # The next request of the connection is read as always, and a tunnel is nothing to read.
    last = request("GET", "/absent", Connection="close")
    content = whole + request("GET", "/v2", **headers) + last
    with socket.create_connection(("127.0.0.1", here.port), 20) as connection:
        connection.sendall(content.encode())
        answers = connection.makefile("rb").read()
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"200", b"404"]
    assert ask("CONNECT localhost:80 HTTP/1.1\r\nHost: localhost:80\r\n\r\n")[0] in (400, 404)
