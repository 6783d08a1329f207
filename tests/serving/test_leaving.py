"""Deadlines, clients that leave, and clients that send slowly, over HTTP and gRPC."""

import concurrent.futures
import dataclasses
import json
import re
import socket

import grpc
import pytest

from tests.serving.conftest import MODEL, wait_until
from tests.serving.test_protocols import request_of

pytestmark = pytest.mark.any_backend

PREDICT = f"/v1/models/{MODEL}:predict"
V2 = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["v2"]}
ASKED = {
    PREDICT: {"instances": ["rest"]},
    f"/v2/models/{MODEL}/infer": {"inputs": [V2]},
    "/translate": {"q": "libretranslate", "source": "en", "target": "zh"},
    "/page/translate": {"model": MODEL, "text": "page"},
}


@pytest.fixture
def busy(server, client):
    """The server while its two replicas compute a batch each, until the gate opens."""
    with server.gate.shut(), concurrent.futures.ThreadPoolExecutor(2) as pool:
        for number in (1, 2):
            pool.submit(client.post, PREDICT, json={"instances": ["computed"]})
            wait_until(lambda number=number: len(server.gate.batches) == number)
        yield server
        server.gate.open()
    wait_until(lambda: accepted(server) == 0)


def accepted(server):
    return server.server.ingress.admission.texts


def predict(server, text, **options):
    """A call of gRPC under way, and its channel."""
    channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}")
    call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
    return call.future(request_of([text]).SerializeToString(), **options), channel


def computed(server):
    return {text.decode() for batch in server.gate.batches for text in batch}


def test_the_deadline_is_504_and_drops_what_has_not_begun(busy, client, monkeypatch):
    ingress = busy.server.ingress
    settings = dataclasses.replace(ingress.settings, deadline_s=1.0)
    monkeypatch.setattr(ingress, "settings", settings)
    with concurrent.futures.ThreadPoolExecutor(len(ASKED)) as pool:
        call, channel = predict(busy, "grpc", timeout=60)
        found = list(pool.map(lambda path: client.post(path, json=ASKED[path]), ASKED))
    assert [one.status_code for one in found] == [504] * len(ASKED)
    assert all("deadline" in one.json()["error"] for one in found)
    with channel, pytest.raises(grpc.RpcError) as error:
        call.result()
    assert error.value.code().name == "DEADLINE_EXCEEDED" and "deadline" in error.value.details()
    busy.gate.open()
    wait_until(lambda: accepted(busy) == 0)
    assert computed(busy) == {"computed"}


def test_a_client_of_grpc_has_a_deadline_of_its_own(busy):
    call, channel = predict(busy, "late", timeout=0.3)
    with channel, pytest.raises(grpc.RpcError) as error:
        call.result()
    assert error.value.code().name == "DEADLINE_EXCEEDED"
    wait_until(lambda: accepted(busy) == 2)
    busy.gate.open()
    wait_until(lambda: accepted(busy) == 0)
    assert computed(busy) == {"computed"}


def send(server, path, body, length=None):
    """A connection on which a request has been sent, whole unless `length` is larger."""
    connection = socket.create_connection(("127.0.0.1", server.port), 60)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    length = len(body) if length is None else length
    connection.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode() + body)
    return connection


def left(client):
    """How many clients have left, by the metrics."""
    text = client.get("/metrics").text
    found = re.findall(r'requests_total\{.*outcome="ClientLeft".*\} (\S+)', text)
    return sum(map(float, found))


@pytest.mark.parametrize("path", ASKED)
def test_a_client_that_leaves_takes_along_what_has_not_begun(busy, client, path):
    before = left(client)
    connection = send(busy, path, json.dumps(ASKED[path]).encode())
    wait_until(lambda: accepted(busy) == 3)
    connection.close()
    wait_until(lambda: accepted(busy) == 2)
    assert left(client) == before + 1
    busy.gate.open()
    wait_until(lambda: accepted(busy) == 0)
    assert computed(busy) == {"computed"}


def test_a_client_of_grpc_that_leaves(busy):
    call, channel = predict(busy, "leaving", timeout=60)
    wait_until(lambda: accepted(busy) == 3)
    call.cancel()
    channel.close()
    wait_until(lambda: accepted(busy) == 2)
    busy.gate.open()
    wait_until(lambda: accepted(busy) == 0)
    assert computed(busy) == {"computed"}


@pytest.mark.parametrize("path", ASKED)
def test_a_body_that_comes_slowly_is_not_waited_for(server, client, path, monkeypatch):
    from kformer.serving.ingress import bodies

    monkeypatch.setattr(bodies, "_SECONDS_FOR_BODY", 0.2)
    with send(server, path, b'{"instances": ["no', length=100) as connection:
        assert client.post(PREDICT, json={"instances": ["noon"]}).status_code == 200
        reply = connection.makefile("rb").read()
    assert reply.startswith(b"HTTP/1.1 408 ") and b'{"error"' in reply


def test_a_body_in_small_parts_is_read(server, client):
    body = json.dumps({"instances": ["noon"]}).encode()
    with send(server, PREDICT, body[:1], length=len(body)) as connection:
        for index in range(1, len(body)):
            connection.sendall(body[index : index + 1])
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")


def test_two_replicas_compute_at_the_same_time(busy):
    """The fixture has one batch on each: neither waits for the other."""
    assert busy.gate.batches == [[b"computed"], [b"computed"]]
