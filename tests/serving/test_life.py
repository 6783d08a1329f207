"""The life of a server: ready, versions that come, limits, keys, overload, the end."""

import concurrent.futures
import signal
import threading
import time

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.serving.conftest import FROZEN, KEY, MODEL, TEXTS, copy_version, running, wait_until

pytestmark = pytest.mark.any_backend

PREDICT = f"/v1/models/{MODEL}:predict"


def listening(process):
    """(address, port) of each socket that a process and its children listen on."""
    family = [process, *process.children(recursive=True)]
    connections = [one for member in family for one in member.net_connections(kind="all")]
    found = [one.laddr for one in connections if one.status == "LISTEN"]
    # gRPC writes an address of IPv4 as one of IPv6.
    return sorted({(one.ip.removeprefix("::ffff:"), one.port) for one in found})


def test_it_listens_where_it_was_told_to_and_nowhere_else(server):
    found = listening(psutil.Process(server.process.pid))
    ports = sorted([("127.0.0.1", server.port), ("127.0.0.1", server.grpc_port)])
    assert found == ports


def test_health_and_metrics(client):
    assert client.get("/-/healthz").status_code == client.get("/-/ready").status_code == 200
    client.post(PREDICT, json={"instances": TEXTS})
    client.post("/v1/models/made-up:predict", json={"instances": ["a"]})
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
    assert "made-up" not in text


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


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json", "/v1/models", "/nothing"])
def test_no_other_pages(client, path):
    assert client.get(path).status_code == 404


def versions_of(client):
    status = client.get(f"/v1/models/{MODEL}").json()["model_version_status"]
    return {int(one["version"]): one["state"] for one in status}


def test_a_new_version_takes_over_under_load_and_a_broken_one_is_refused(server, client):
    statuses, is_over = [], threading.Event()

    def ask():
        with httpx.Client(base_url=server.url, timeout=60) as asking:
            while not is_over.is_set():
                statuses.append(asking.post(PREDICT, json={"instances": TEXTS[:3]}).status_code)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(ask) for _ in range(2)]
        try:
            copy_version(server.folder, 2)
            wait_until(lambda: versions_of(client) == {2: "AVAILABLE"})
            broken = server.folder / "3"
            for part in ("variables", "assets.extra"):
                (broken / part).mkdir(parents=True)
            for name in ("variables/variables.index", "assets.extra/kformer.json"):
                (broken / name).write_bytes((FROZEN / "1" / name).read_bytes())
            (broken / "saved_model.pb").write_bytes(b"broken")
            wait_until(lambda: versions_of(client) == {3: "END", 2: "AVAILABLE"})
        finally:
            is_over.set()
        for one in asked:
            one.result()
    assert set(statuses) == {200} and len(statuses) > 5
    assert client.post(f"/v1/models/{MODEL}/versions/3:predict", json={}).status_code == 404
    shown = client.get(f"/v1/models/{MODEL}/versions/3").json()["model_version_status"][0]
    assert "log" in shown["status"]["error_message"] and "/" not in str(shown)
    # The old version is back for the other tests.
    for part in sorted(broken.rglob("*"), reverse=True):
        part.rmdir() if part.is_dir() else part.unlink()
    broken.rmdir()
    (server.folder / "2").rename(server.folder.with_name("2-away"))
    wait_until(lambda: versions_of(client) == {1: "AVAILABLE"})


def test_texts_are_never_logged(server, client):
    client.post(PREDICT, json={"instances": ["secret-sentence"]})
    client.post(PREDICT, json={"instances": "secret-sentence"})
    assert "secret-sentence" not in server.log.read_text()


def test_keys_overload_deadline_and_the_end(tmp_path):
    """One small server with keys, a queue of 12 texts and a short deadline."""
    keys = tmp_path / "keys"
    keys.write_text(f"# of the tests\n{KEY}\n")
    arguments = (f"{MODEL}={FROZEN}/1", "--port", 0, "--grpc-port", 0, "--api-keys", keys)
    limits = ("--max-queue", 12, "--max-batch-texts", 2, "--batch-wait-ms", 50)
    with running(*arguments, *limits, log=tmp_path / "log") as server:
        with_key = {"authorization": f"Bearer {KEY}"}
        with httpx.Client(base_url=server.url, timeout=60) as client:
            check_keys(client, server)
        statuses = ask_at_once(server, 60, with_key)
        assert set(statuses) == {200, 429} and statuses.count(200) >= 12
        check_end(server, with_key)
    assert server.process.returncode == 0


def check_keys(client, server):
    import grpc

    for headers in ({}, {"x-api-key": "wrong"}, {"authorization": f"Basic {KEY}x"}):
        for path in ("/metrics", f"/v1/models/{MODEL}", "/v2", "/languages"):
            assert client.get(path, headers=headers).status_code == 401
        answered = client.post(PREDICT, json={"instances": ["noon"]}, headers=headers)
        assert answered.status_code == 401 and answered.json()["error"]
    for path in ("/-/healthz", "/-/ready", "/v2/health/live"):
        assert client.get(path).status_code == 200
    for headers in ({"x-api-key": KEY}, {"authorization": f"bearer {KEY}"}):
        assert client.get("/metrics", headers=headers).status_code == 200
    body = {"q": "noon", "source": "en", "target": "zh"}
    assert client.post("/translate", json=body).status_code == 401
    assert client.post("/translate", json={**body, "api_key": KEY}).status_code == 200
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        with pytest.raises(grpc.RpcError) as error:
            call(b"", timeout=60)
        assert error.value.code().name == "UNAUTHENTICATED"
        with pytest.raises(grpc.RpcError) as error:
            call(b"", timeout=60, metadata=(("x-api-key", KEY),))
        assert error.value.code().name == "NOT_FOUND"


def ask_at_once(server, count, headers):
    def ask(_):
        body = {"instances": ["half past nine"]}
        answered = httpx.post(server.url + PREDICT, json=body, headers=headers, timeout=60)
        if answered.status_code == 429:
            assert int(answered.headers["retry-after"]) >= 1
        return answered.status_code

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(ask, range(count)))


def check_end(server, headers):
    """SIGTERM with requests in flight: each is answered, and then nobody listens."""
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        body = {"instances": ["ten to six"]}
        asked = [
            pool.submit(httpx.post, server.url + PREDICT, json=body, headers=headers, timeout=60)
            for _ in range(10)
        ]
        time.sleep(0.1)  # They are on their way; what they meet there is a matter of chance.
        server.process.send_signal(signal.SIGTERM)
        assert [one.result().status_code for one in asked] == [200] * 10
    server.process.wait(40)
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url + "/-/healthz")
