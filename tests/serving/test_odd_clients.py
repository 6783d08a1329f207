"""Clients of HTTP that nobody here wrote, as bytes: health probes, proxies, pages, and Java's."""

import errno
import json
import re
import socket
import time

import pytest

from kformer.serving import run
from kformer.serving.ingress import http_server
from kformer.serving.interface import TensorInfo
from kformer.serving.settings import ServerSettings
from tests.serving.conftest import Here, wait_until
from tests.serving.page.engines import ToldEngine, version_of

pytestmark = pytest.mark.any_backend

PREDICT = "/v1/models/en-zh:predict"
TEXT = TensorInfo("text", "string", (-1,))


@pytest.fixture(scope="module")
def engine():
    outputs = {"serving_default": ["translation", "score", "truncated"]}
    version = version_of("en-zh", outputs, pairs=(("en", "zh"),))
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
    body = json.dumps({"instances": ["one" * 10_000] * 4})
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


def test_a_path_that_takes_post_says_so(ask):
    for path in (PREDICT, "/v1/models/en-zh/versions/1:predict", "/v2/models/en-zh/infer"):
        status, headers, content = ask(request("GET", path))
        assert status == 405 and headers["allow"] == "POST", path
        assert "error" in json.loads(content)


def test_a_number_of_many_digits_is_named(ask):
    status, _, content = ask(request("POST", PREDICT, '{"instances": [%s]}' % ("1" * 5000)))
    assert status == 400 and b"4,300 digits" in content


def test_a_slash_at_the_end_is_no_redirect(ask):
    """It would name http, also behind a proxy that has TLS."""
    for path in ("/languages/", "/v2/health/live/", "/"):
        assert ask(request("GET", path))[0] == 200, path


@pytest.mark.parametrize("name", ["sequence_id", "classification"])
def test_extensions_that_are_missing_are_named(ask, name):
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["one"]}
    output = {"name": "score", "parameters": {name: 3}}
    for body in ({"parameters": {name: 3}}, {"outputs": [output]}):
        body = json.dumps({"inputs": [tensor], **body})
        status, _, content = ask(request("POST", "/v2/models/en-zh/infer", body))
        assert status == 400 and name in json.loads(content)["error"]


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        ("/v1/models/nope:predict", {"instances": ["a"]}, "'nope', but en-zh."),
        ("/v1/models/en-zh/versions/7:predict", {"instances": ["a"]}, "version 7 here, but 1."),
        (PREDICT, {"instances": ["a"], "signature_name": "no"}, "'no', but serving_default."),
        ("/translate", {"q": "a", "source": "en", "target": "fr"}, "'fr', but en to zh."),
        ("/translate", {"q": "a", "source": "en", "target": "zh", "glossary": "g"}, "but none."),
    ],
)
def test_errors_name_what_there_is(ask, path, body, names):
    error = json.loads(ask(request("POST", path, json.dumps(body)))[2])["error"]
    assert error.endswith(names)
    for path in ("/v1/models/nope", "/v2/models/nope"):
        assert ask(request("GET", path))[2].endswith(b"'nope', but en-zh.\"}")


def test_a_long_name_is_not_repeated(ask):
    body = json.dumps({"instances": ["a"], "signature_name": "x" * 100_000})
    for content in (
        request("POST", PREDICT, body),
        request("POST", f"/v1/models/{'x' * 50_000}:predict", '{"instances": ["a"]}'),
        request("POST", "/translate", json.dumps({"q": "a", "source": "x" * 99_999, "target": ""})),
    ):
        status, _, content = ask(content)
        assert status in (400, 404) and len(content) < 1000


# ---- clients that do not read, and too many of them ----


def stalled(here, engine, count=1):
    """Connections that ask for much and read nothing of it."""
    engine.answers["much"] = {"best": [("a" * 2 * 10**7, -1.0)]}
    body = json.dumps({"instances": ["much"]})
    connections = []
    for _ in range(count):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", here.port))
        connection.sendall(request("POST", PREDICT, body).encode())
        connections.append(connection)
    return connections


def open_connections(here):
    return len(here.server.http.server_state.connections)


def test_a_client_that_reads_nothing_is_left(here, engine, monkeypatch):
    monkeypatch.setattr(http_server, "_SECONDS_TO_READ", 0.5)
    wait_until(lambda: open_connections(here) == 0, 20)
    (connection,) = stalled(here, engine)
    wait_until(lambda: open_connections(here) == 1, 20)
    wait_until(lambda: open_connections(here) == 0, 20)
    connection.close()


def test_connections_are_bounded(here, ask, monkeypatch):
    wait_until(lambda: open_connections(here) == 0, 20)
    monkeypatch.setattr(here.server.http.config, "limit_connections", 3)
    idle = [socket.create_connection(("127.0.0.1", here.port), 20) for _ in range(5)]
    wait_until(lambda: open_connections(here) == 3, 20)
    for connection in idle:
        connection.close()
    wait_until(lambda: open_connections(here) == 0, 20)
    assert ask(request("GET", "/-/ready"))[0] == 200


def test_a_lack_of_files_is_logged_once(here, caplog):
    loop, error = here.server, OSError(errno.EMFILE, "Too many open files")
    with caplog.at_level("ERROR"):
        for _ in range(100):
            loop._log_error(None, {"message": "socket.accept()", "exception": error})
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "ulimit -n" in caplog.text


@pytest.mark.heavy
def test_the_end_waits_for_no_client_that_reads_nothing(engine, monkeypatch):
    monkeypatch.setattr(run, "make_engine", lambda settings: engine)
    server = Here(ServerSettings(["en-zh=path"], port=0, drain_s=1.0))
    connections = stalled(server, engine, 3)
    wait_until(lambda: len(server.server.http.server_state.connections) == 3, 20)
    time.sleep(0.5)
    start = time.monotonic()
    server.end()
    assert time.monotonic() - start < 2.2
    for connection in connections:
        connection.close()
