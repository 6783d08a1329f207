"""The server is asked by odd clients: other protocols, forms, no Host, odd heads, no reader.

What HTTP allows is answered, with the right translation; what it does not gets a status below 500,
or the end of the connection; and an honest request behind it is answered. At the end the server has
hardly more threads, open files and memory than at the beginning. `--only unchecked` reads
requests as uvicorn does, and must fail.
"""

import contextlib
import json
import os
import pathlib
import re
import socket
import threading

import httptools

from benchmarks.reliability_parts.hostile_values import pick
from kformer.serving import run as server_run
from kformer.serving.ingress import http_server
from kformer.serving.interface import TensorInfo
from kformer.serving.settings import ServerSettings
from tests.serving.conftest import Here
from tests.serving.page.engines import ToldEngine, version_of
from tests.serving.test_odd_clients import FIELDS, PREDICT, multipart, request

_SECONDS = 20
# For an answer to what may be no whole request.
_PATIENCE = 0.3
# What may be held besides when all has been asked.
_MOST_MORE = {"threads": 10, "files": 10, "MiB of memory": 64}
_WORDS = ("one", "é", "短", "two words", "a" * 5000)


def run(tally, options):
    """Runs the part: the server is in this process, and its engine writes capital letters."""
    outputs = {"serving_default": ["translation", "score", "truncated"]}
    version = version_of("en-zh", outputs, languages=("en", "zh"))
    for signature in version.signatures.values():
        inputs = (TensorInfo("text", "string", (-1,)),)
        object.__setattr__(signature, "inputs", inputs)
    server_run.make_engine = lambda settings: ToldEngine([version])
    if options.only == "unchecked":
        http_server._Parser = httptools.HttpRequestParser
    here = Here(ServerSettings(["en-zh=path"], port=0))
    _ask(here, _plain("one"))
    before = _held()
    for _, rng in tally.trials():
        kind, content, expected, parts = pick(rng, _KINDS)(rng)
        fault = _fault(here, kind, content, expected, parts)
        tally.add(kind, fault and f"{content[:200]!r}: {fault}")
    after = _held()
    what = ", ".join(f"{name} {before[name]:,} to {after[name]:,}" for name in after)
    print(f"before and after: {what}")
    is_more = any(after[name] - before[name] > most for name, most in _MOST_MORE.items())
    tally.add("what is left", what if is_more else None)
    here.end()


def _fault(here, kind, content, expected, parts):
    """What was wrong with the answer, or with that to an honest request behind it."""
    try:
        patience = _SECONDS if expected else _PATIENCE
        answer = _ask(here, content, parts, 0 if kind == "no reader" else patience)
    except OSError:
        answer = b""  # The server has ended the connection.
    status = re.match(rb"HTTP/1\.[01] (\d{3})", answer)
    if expected is not None and (status is None or expected.encode() not in answer):
        return f"no answer with {expected!r}: {answer[:300]!r}"
    if status is not None and int(status[1]) >= 500 and int(status[1]) != 501:
        return f"{answer[:300]!r}"
    if answer and status is None:
        return f"no HTTP: {answer[:100]!r}"
    honest = _ask(here, _plain("one"))
    return None if b"ONE" in honest else f"then an honest request got {honest[:300]!r}"


def _ask(here, content, parts=1, seconds=_SECONDS):
    """The first answer to some bytes, which are sent in parts: what has come in some seconds."""
    content, answer = content if isinstance(content, bytes) else content.encode(), b""
    with socket.create_connection(("127.0.0.1", here.port), _SECONDS) as connection:
        size = -(-len(content) // parts)
        for begin in range(0, len(content), size):
            connection.sendall(content[begin : begin + size])
        connection.settimeout(seconds)
        with contextlib.suppress(TimeoutError):
            while seconds and not _is_whole(answer) and (more := connection.recv(1 << 16)):
                answer += more
    return answer


def _is_whole(answer):
    head, end, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
    return bool(end) and length is not None and len(body) >= int(length[1])


def _held():
    """What this process holds."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    files = len(os.listdir("/proc/self/fd"))
    memory = pages * os.sysconf("SC_PAGE_SIZE") >> 20
    return {"threads": threading.active_count(), "files": files, "MiB of memory": memory}


def _body(text):
    return json.dumps({"instances": [text]})


def _plain(text, **headers):
    return request("POST", PREDICT, _body(text), **{"Connection": "close", **headers})


def _parts(rng):
    return int(rng.integers(1, 8))


def _another_protocol(rng):
    text = pick(rng, _WORDS)
    offer = pick(rng, ["h2c", "websocket", "TLS/1.0, h2c", "h2c, foo", "IRC/6.9"])
    headers = {"Upgrade": offer, "Connection": pick(rng, ["Upgrade", "close, Upgrade", "upgrade"])}
    if rng.integers(2):
        headers["HTTP2_Settings"] = "AAMAAABkAAQA"
    expected = json.dumps(text.upper(), ensure_ascii=False)[1:-1]
    return "another protocol", _plain(text, **headers), expected, _parts(rng)


def _odd_space(rng):
    text, space = pick(rng, _WORDS[:3]), pick(rng, [" ", "  ", "\t", " \t "])
    length = f"{space}{len(_body(text).encode())}{space}"
    headers = {"Content_Length": length, "Host": f"{space}localhost{space}"}
    expected = json.dumps(text.upper(), ensure_ascii=False)[1:-1]
    return "spaces in headers", _plain(text, **headers), expected, _parts(rng)


def _health(rng):
    path = pick(rng, ["/-/healthz", "/-/ready", "/v2/health/live", "/v2/health/ready"])
    host = pick(rng, ["", "Host: translate\r\n", "Host: a b\r\n", "Host: [::1]evil\r\n"])
    version = pick(rng, ["HTTP/1.0", "HTTP/1.1"]) if host else "HTTP/1.0"
    content = f"GET {path} {version}\r\n{host}Connection: close\r\n\r\n"
    return "health without a known Host", content, " 200 ", _parts(rng)


def _form(rng):
    boundary = pick(rng, ["a", "----page-7", "x" * 70, "a'b"])
    if rng.integers(2):
        content = multipart(FIELDS, boundary=boundary)
        return "a form", content, json.dumps("TWO")[1:-1], _parts(rng)
    content = multipart(FIELDS, boundary=boundary)
    begin = int(rng.integers(content.index("\r\n\r\n") + 4, len(content)))
    cut = content[:begin] + pick(rng, ["", "\x00", "--", "\r\n"]) + content[begin + 3 :]
    return "a broken form", cut, None, _parts(rng)


def _chunks(rng):
    text = pick(rng, _WORDS[:3])
    body, pieces = _body(text).encode(), []
    while body:
        size = int(rng.integers(1, 40))
        piece, body = body[:size], body[size:]
        extension = pick(rng, ["", ";a=b", ';name="v"'])
        pieces.append(f"{len(piece):x}{extension}\r\n".encode() + piece + b"\r\n")
    head = _plain(text, Content_Length="", Transfer_Encoding="chunked").partition("\r\n\r\n")[0]
    content = head.encode() + b"\r\n\r\n" + b"".join(pieces) + b"0\r\n\r\n"
    expected = json.dumps(text.upper(), ensure_ascii=False)[1:-1]
    return "chunks", content, expected, _parts(rng)


def _odd_head(rng):
    lines = [
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: -1",
        "Content-Length: 1_0",
        "Content-Length: 99999999999999999999",
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: gzip, chunked",
        "Content-Encoding: gzip",
        "X: a\x00b",
        "X : y",
        " folded",
        "no colon",
        "Expect: 100-continue",
        f"X: {'a' * 70_000}",
        *["Host: a"] * 2,
    ]
    start = pick(rng, ["POST", "PUT", "PATCH", "OPTIONS", "TRACE", "G\x00T", "post", ""])
    path = pick(rng, [PREDICT, "*", "http://localhost/v2", "//x", "/%", "/\xff", "/" + "a" * 9000])
    version = pick(rng, ["HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/9", "", "HTTP/1.1 "])
    head = "\r\n".join([f"{start} {path} {version}", "Host: localhost", pick(rng, lines)])
    return "an odd head", f"{head}\r\nConnection: close\r\n\r\n{_body('one')}", None, _parts(rng)


def _bytes(rng):
    content = bytearray(_plain(pick(rng, _WORDS[:3])).encode())
    for _ in range(int(rng.integers(1, 6))):
        content[int(rng.integers(len(content)))] = int(rng.integers(256))
    return "changed bytes", bytes(content), None, _parts(rng)


def _no_reader(rng):
    content = _plain(pick(rng, _WORDS))
    return "no reader", content[: int(rng.integers(1, len(content) + 1))], None, _parts(rng)


_KINDS = (
    *(_another_protocol, _odd_space, _health, _form, _chunks),
    *(_odd_head, _odd_head, _bytes, _bytes, _no_reader),
)
