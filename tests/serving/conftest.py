"""A server for the tests: one process, for the whole session, on the frozen SavedModel."""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import httpx
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FROZEN = ROOT / "saved_models" / "frozen"
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


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The server that most tests ask."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copytree(FROZEN, folder / MODEL)
    arguments = (f"{MODEL}={folder / MODEL}", "--port", 0, "--grpc-port", 0, "--poll-s", 0.2)
    limits = ("--max-texts", 500, "--max-text-bytes", 2000, "--max-body-bytes", 200_000)
    with running(*arguments, *limits, log=folder / "log") as found:
        found.folder = folder / MODEL
        found.log = folder / "log"
        yield found


@pytest.fixture(scope="session")
def client(server):
    with httpx.Client(base_url=server.url, timeout=60) as found:
        yield found


@pytest.fixture(scope="session")
def expected():
    """What the SavedModel itself returns for `TEXTS`: (the best, the n best)."""
    from kformer.export import SavedModelTranslator

    return SavedModelTranslator(FROZEN).translate(TEXTS, n_best=4)
