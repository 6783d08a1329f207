"""Servers for the tests, on the frozen SavedModel.

Most tests ask one server in the process of the tests, for the whole session: TensorFlow is imported
already. What is about a process, such as signals and sockets, has one process for a module.
"""

import asyncio
import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time

import httpx
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FROZEN = ROOT / "saved_models" / "frozen"
TERMS = ROOT / "tests" / "serving" / "terms.tsv"
TEXTS = ["half past nine", "ten to six", "a quarter to three", "", "noon", "five past eight"] * 3
MODEL = "en-zh"
KEY = "a-key-of-the-tests-0123456789"


class Running:
    """A server process that is ready."""

    def __init__(self, process, lines):
        self.process, self.lines = process, lines
        self.port = int(re.search(r"Ready on http://127.0.0.1:(\d+)", lines)[1])
        found = re.search(r"gRPC on 127.0.0.1:(\d+)", lines)
        self.grpc_port = found and int(found[1])
        self.url = f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def running(*arguments, log):
    """A context with a `Running` server, which is killed if it does not end by itself."""
    with open(log, "w+b") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "kformer_cli", "serve", *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, "KERAS_BACKEND": "tensorflow", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
        )
        try:
            lines = ""
            while "Ready on" not in lines:
                line = process.stdout.readline()
                assert line, pathlib.Path(log).read_text()
                lines += line
            yield Running(process, lines)
        finally:
            process.terminate()
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def copy_version(folder, version):
    """Copies the frozen version as another one, which appears whole."""
    aside = folder.with_name(f"{folder.name}-{version}-aside")
    shutil.copytree(FROZEN / "1", aside)
    os.rename(aside, folder / str(version))


def wait_until(condition, seconds=240):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.05)


class Gate:
    """Every batch of the server passes it, and waits while it is shut."""

    def __init__(self, call):
        self._call, self._is_open, self.batches = call, threading.Event(), []
        self._is_open.set()

    def call(self, model, signature, texts, languages):
        self.batches.append(list(texts))
        assert self._is_open.wait(60)
        return self._call(model, signature, texts, languages)

    @contextlib.contextmanager
    def shut(self):
        self.batches.clear()
        self._is_open.clear()
        try:
            yield
        finally:
            self.open()

    def open(self):
        self._is_open.set()


class Here:
    """A server in this process, on a thread with an event loop of its own."""

    def __init__(self, settings):
        from kformer.serving.run import Server, bind

        socket = bind(settings.host, settings.port)
        lines = []
        self.server = Server(settings, [socket], lines.append)
        self._loop = asyncio.new_event_loop()
        self._run = asyncio.run_coroutine_threadsafe(self.server.run(), self._loop)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        wait_until(lambda: self._run.done() or any("Ready on" in line for line in lines))
        if self._run.done():
            self._run.result()
        self.port, self.grpc_port = socket.getsockname()[1], self.server.grpc_port
        self.url = f"http://127.0.0.1:{self.port}"
        self.lines = lines

    def end(self):
        self._loop.call_soon_threadsafe(self.server.end)
        self._run.result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()


@pytest.fixture(autouse=True)
def same_start():
    """No seeds: nothing here is random, and with a new seed TensorFlow prepares graphs anew."""


@pytest.fixture(scope="session")
def server():
    """The server that most tests ask, with two replicas; its `gate` holds batches."""
    from kformer.serving.served_model import ServedModel
    from kformer.serving.settings import ServerSettings

    settings = ServerSettings(
        [f"{MODEL}={FROZEN}"],
        port=0,
        grpc_port=0,
        replicas=2,
        max_texts=500,
        max_text_bytes=2000,
        max_body_bytes=200_000,
        glossaries=[f"times={TERMS}"],
    )
    gate = Gate(ServedModel.call)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServedModel, "call", lambda *arguments: gate.call(*arguments))
        found = Here(settings)
        found.gate = gate
        yield found
        found.end()


@pytest.fixture(scope="session")
def client(server):
    with httpx.Client(base_url=server.url, timeout=60) as found:
        yield found


@pytest.fixture(scope="session")
def frozen():
    """The SavedModel of the repository, as its reader in Python."""
    pytest.importorskip("tensorflow_text")
    from kformer.export import SavedModelTranslator

    return SavedModelTranslator(FROZEN)


@pytest.fixture(scope="session")
def expected(frozen):
    """What the SavedModel itself returns for `TEXTS`: (the best, the n best)."""
    return frozen.translate(TEXTS, n_best=4)
