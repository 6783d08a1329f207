"""The life of a server: ready, versions that come, limits, keys, overload, the end."""

import asyncio
import concurrent.futures
import contextlib
import http.client
import json
import os
import shutil
import signal
import threading

import grpc
import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kformer.serving import run
from kformer.serving.ingress import http_server
from kformer.serving.ingress.grpc_server import make_server
from kformer.serving.ingress.ingress import Ingress
from kformer.serving.settings import ServerSettings
from tests.serving.conftest import FROZEN, KEY, MODEL, TEXTS, copy_version, running, wait_until
from tests.serving.page.engines import ToldEngine, version_of

pytestmark = [pytest.mark.any_backend, pytest.mark.heavy]

PREDICT = f"/v1/models/{MODEL}:predict"


def listening(process):
    """(address, port) of each socket that a process and its children listen on."""
    family = [process, *process.children(recursive=True)]
    connections = [one for member in family for one in member.net_connections(kind="all")]
    found = [one.laddr for one in connections if one.status == "LISTEN"]
    # gRPC writes an address of IPv4 as one of IPv6.
    return sorted({(one.ip.removeprefix("::ffff:"), one.port) for one in found})


def test_health_and_metrics(client):
    assert client.get("/-/healthz").status_code == client.get("/-/ready").status_code == 200
    client.post(PREDICT, json={"instances": TEXTS})
    client.post("/v1/models/made-up:predict", json={"instances": ["a"]})
    client.post("/v2/models/made-up/infer", content=b"no JSON")
    text = client.get("/metrics").text
    found = {
        (sample.name, sample.labels.get("model"), sample.labels.get("protocol")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["kformer_requests_total", MODEL, "tensorflow_rest"] >= 1
    assert found["kformer_texts_total", MODEL, "tensorflow_rest"] >= len(TEXTS)
    assert found["kformer_request_seconds_count", MODEL, "tensorflow_rest"] >= 1
    for name in ("kformer_tokens_total", "kformer_batch_texts_count"):
        assert found[name, MODEL, None] >= 1
    assert found["kformer_waiting_texts", MODEL, None] == 0
    outcomes = ('outcome="UnknownModel",protocol="tensorflow_rest"', 'outcome="InvalidRequest"')
    assert "made-up" not in text and all(outcome in text for outcome in outcomes)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 400),
        ({"host": "evil.example:8501"}, 400),
        ({"host": "localhost:8501"}, 200),
        ({"host": "[::1]:8501"}, 200),
        ({"origin": "http://evil.example"}, 400),
    ],
)
def test_host_and_origin(client, headers, status):
    answered = client.get(f"/v1/models/{MODEL}", headers=headers)
    assert answered.status_code == status
    assert not any(name.startswith("access-control") for name in answered.headers)


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/v1/models", "/nothing"])
def test_no_other_pages(client, path):
    assert client.get(path).status_code == 404


def test_sigterm_is_heard_where_an_engine_took_it_for_itself(monkeypatch):
    """As Ray does when it is connected to."""
    taken, before = [], signal.getsignal(signal.SIGTERM)

    class Taking(ToldEngine):
        async def start(self):
            signal.signal(signal.SIGTERM, lambda *_: taken.append(1))

    def report(line):
        if line.startswith("Ready on"):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(run, "make_engine", lambda settings: Taking([]))
    server = run.Server(ServerSettings(["m=path"]), [run.bind("127.0.0.1", 0)], report)
    try:
        asyncio.run(asyncio.wait_for(server.run(), 30))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not taken


def test_a_port_has_one_server():
    with run.bind("127.0.0.1", 0) as first, pytest.raises(OSError, match="in use"):
        run.bind(*first.getsockname())
    ingress = Ingress(ToldEngine([]), ServerSettings(["m=path"]))

    async def both():
        first, second = make_server(ingress), make_server(ingress)
        port = first.add_insecure_port("127.0.0.1:0")
        with pytest.raises(RuntimeError):
            second.add_insecure_port(f"127.0.0.1:{port}")

    asyncio.run(both())


def test_a_server_whose_http_ends_says_why(monkeypatch):
    class Http:
        async def serve(self, sockets):
            raise OSError("no more files")

    monkeypatch.setattr(run, "make_engine", lambda settings: ToldEngine([]))
    monkeypatch.setattr(http_server, "make_http_server", lambda *arguments: Http())
    with run.bind("127.0.0.1", 0) as bound, pytest.raises(OSError, match="no more files"):
        server = run.Server(ServerSettings(["m=path"]), [bound], print)
        asyncio.run(asyncio.wait_for(server.run(), 30))


def test_connections_that_ask_nothing_are_closed(monkeypatch):
    """Whoever has no key must not hold sockets and memory."""
    monkeypatch.setattr(http_server, "_SECONDS_FOR_HEAD", 0.4)
    engine = ToldEngine([version_of("m", {"serving_default": ["translation"]})])
    engine.before = lambda request: asyncio.sleep(0.8)
    monkeypatch.setattr(run, "make_engine", lambda settings: engine)
    bound = run.bind("127.0.0.1", 0)
    head = "POST /page/translate HTTP/1.1\r\nHost: localhost\r\ncontent-type: application/json\r\n"
    body = json.dumps({"model": "m", "text": f"{'a' * 9000}\n" * 20})

    async def reply(*parts, after=0.0):
        """What comes until the server closes the connection."""
        reader, writer = await asyncio.open_connection(*bound.getsockname())
        found = asyncio.create_task(asyncio.wait_for(reader.read(), 20))
        with contextlib.suppress(ConnectionError):
            for part in parts:
                writer.write(part.encode())
                await asyncio.sleep(after)
            return await found
        return b""  # It was closed while something was written.

    async def scenario():
        server = run.Server(ServerSettings(["m=path"]), [bound], [].append)
        running = asyncio.create_task(server.run())
        while server.ingress is None or not server.ingress.is_ready:
            await asyncio.sleep(0.01)
        assert await reply() == b""
        assert await reply(*f"{head}x-slow: {'a' * 50}", after=0.02) == b""
        # A request that takes longer than a head may is answered, and its body may be long.
        whole = f"{head}content-length: {len(body)}\r\n\r\n{body}"
        found = await reply(whole, "\r\n", after=1.5)
        assert found.startswith(b"HTTP/1.1 200 ") and b"A" * 9000 in found
        chunked = f"{head}transfer-encoding: chunked\r\n\r\n0\r\n"
        for start in ("GET /", head + "x-long: ", chunked + "x-long: "):
            found = await reply(start, *["a" * 10_000] * 7, after=0.03)
            assert found.startswith(b"HTTP/1.1 400 ") and b"too long" in found
        server.end()
        await running

    asyncio.run(asyncio.wait_for(scenario(), 60))


# ---- a server in a process of its own: with keys, a queue of 12 texts, and an end ----


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "keys").write_text(f"# of the tests\n{KEY}\n")
    shutil.copytree(FROZEN, folder / MODEL)
    arguments = (f"{MODEL}={folder / MODEL}", "--port", 0, "--grpc-port", 0, "--poll-s", 0.2)
    limits = ("--api-keys", folder / "keys", "--max-queue", 12, "--max-batch-texts", 2)
    with running(*arguments, *limits, log=folder / "log") as found:
        found.folder, found.log = folder / MODEL, folder / "log"
        yield found


@pytest.fixture(scope="module")
def known(guarded):
    """A client that has a key."""
    headers = {"authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=guarded.url, headers=headers, timeout=60) as found:
        yield found


def test_it_listens_where_it_was_told_to_and_nowhere_else(guarded):
    found = listening(psutil.Process(guarded.process.pid))
    ports = sorted([("127.0.0.1", guarded.port), ("127.0.0.1", guarded.grpc_port)])
    assert found == ports


def test_texts_are_never_logged(guarded, known):
    known.post(PREDICT, json={"instances": ["secret-sentence"]})
    known.post(PREDICT, json={"instances": "secret-sentence"})
    assert "secret-sentence" not in guarded.log.read_text()


def test_keys(guarded):
    with httpx.Client(base_url=guarded.url, timeout=60) as client:
        check_keys(client)
    with grpc.insecure_channel(f"127.0.0.1:{guarded.grpc_port}") as channel:
        call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        for metadata, code in (((), "UNAUTHENTICATED"), ((("x-api-key", KEY),), "NOT_FOUND")):
            with pytest.raises(grpc.RpcError) as error:
                call(b"", timeout=60, metadata=metadata)
            assert error.value.code().name == code
        # Whoever has no key is refused before a message has come.
        call = channel.stream_unary("/tensorflow.serving.PredictionService/Predict")
        is_over = threading.Event()
        with pytest.raises(grpc.RpcError) as error:
            call(iter(is_over.wait, True), timeout=20)
        is_over.set()
        assert error.value.code().name == "UNAUTHENTICATED"


def check_keys(client):
    for headers in ({}, {"x-api-key": "wrong"}, {"authorization": f"Basic {KEY}x"}):
        for path in ("/metrics", f"/v1/models/{MODEL}", "/v2", "/languages"):
            assert client.get(path, headers=headers).status_code == 401
        answered = client.post(PREDICT, json={"instances": ["noon"]}, headers=headers)
        assert answered.status_code == 401 and answered.json()["error"]
    for path in ("/-/healthz", "/-/ready", "/v2/health/live", "/openapi.json"):
        assert client.get(path).status_code == 200
    for headers in ({"x-api-key": KEY}, {"authorization": f"bearer {KEY}"}):
        assert client.get("/metrics", headers=headers).status_code == 200
    body = {"q": "noon", "source": "en", "target": "zh"}
    assert client.post("/translate", json=body).status_code == 401
    assert client.post("/translate", json={**body, "api_key": KEY}).status_code == 200


def test_overload_is_answered_with_429(guarded, known):
    def ask(_):
        answered = known.post(PREDICT, json={"instances": ["half past nine"]})
        if answered.status_code == 429:
            assert int(answered.headers["retry-after"]) >= 1
        return answered.status_code

    with concurrent.futures.ThreadPoolExecutor(60) as pool:
        statuses = list(pool.map(ask, range(60)))
    assert set(statuses) == {200, 429} and statuses.count(200) >= 12
    assert ask(0) == 200


def versions_of(client):
    status = client.get(f"/v1/models/{MODEL}").json()["model_version_status"]
    return {int(one["version"]): one["state"] for one in status}


def test_a_new_version_takes_over_under_load_and_a_broken_one_is_refused(guarded, known):
    statuses, is_over = [], threading.Event()

    def ask():
        while not is_over.wait(0.02):  # The new version needs the CPU, too.
            statuses.append(known.post(PREDICT, json={"instances": ["ten to six"]}).status_code)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        try:
            copy_version(guarded.folder, 2)
            wait_until(lambda: versions_of(known) == {2: "AVAILABLE"})
            broken = guarded.folder / "3"
            for part in ("variables", "assets.extra"):
                (broken / part).mkdir(parents=True)
            for name in ("variables/variables.index", "assets.extra/kformer.json"):
                (broken / name).write_bytes((FROZEN / "1" / name).read_bytes())
            (broken / "saved_model.pb").write_bytes(b"broken")
            wait_until(lambda: versions_of(known) == {3: "END", 2: "AVAILABLE"})
        finally:
            is_over.set()
        asked.result()
    assert set(statuses) == {200} and len(statuses) > 5
    assert known.post(f"/v1/models/{MODEL}/versions/3:predict", json={}).status_code == 404
    shown = known.get(f"/v1/models/{MODEL}/versions/3").json()["model_version_status"][0]
    assert "log" in shown["status"]["error_message"] and "/" not in str(shown)


def test_the_end(guarded):
    """SIGTERM with requests in flight: each is answered, and then nobody listens."""
    body = json.dumps({"instances": ["ten to six"]})
    connections = [http.client.HTTPConnection("127.0.0.1", guarded.port) for _ in range(10)]
    for connection in connections:
        connection.request("POST", PREDICT, body, {"x-api-key": KEY})
    guarded.process.send_signal(signal.SIGTERM)
    assert [connection.getresponse().status for connection in connections] == [200] * 10
    assert guarded.process.wait(40) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(guarded.url + "/-/healthz")
