"""A run as PATH: it is exported first, and the command says so."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import types

import httpx
import psutil
import pytest

from kformer.serving import run
from kformer.serving.settings import ModelSettings, ServerSettings
from kformer_cli.main import main
from tests.serving.conftest import FROZEN, TEXTS, running, wait_until

pytestmark = pytest.mark.any_backend

RUN = pathlib.Path(__file__).resolve().parents[1] / "frozen_run"


@pytest.fixture
def exports(monkeypatch):
    """Kind, folder, output and options of exports, which copy the frozen SavedModel; a run named
    `broken` fails.
    """
    calls = []

    def export(command, input, **options):
        *_, kind, folder, output = command
        calls.append((kind, folder, output, json.loads(input)))
        is_broken = folder.endswith("broken")
        if not is_broken:
            shutil.copytree(FROZEN, output)
        errors = "a line\nValueError: it is damaged.\n" if is_broken else ""
        return types.SimpleNamespace(returncode=int(is_broken), stderr=errors)

    monkeypatch.setattr(subprocess, "run", export)
    return calls


def test_runs_are_exported_and_their_folders_are_removed(exports):
    models = [f"m={FROZEN}", f"a={RUN}", ModelSettings("b", RUN, dtype="float32")]
    lines = []
    with run.with_exported_runs(ServerSettings(models, dtype="int8"), lines.append) as settings:
        m, a, b = settings.models
        assert m.path == FROZEN and not a.is_run and not b.is_run
        settings.check_files()
        folders = [a.path, b.path]
        assert [path.name for path in folders] == ["a", "b"]
    assert not any(path.exists() for path in folders)
    assert exports == [
        ("run", str(RUN), str(path), {"imports": [], "dtype": dtype})
        for path, dtype in zip(folders, ("int8", "float32"), strict=True)
    ]
    assert lines == [
        f"a: {RUN} is a run, so it is exported first in int8.",
        f"b: {RUN} is a run, so it is exported first in float32.",
    ]


def test_a_run_that_cannot_be_exported_is_one_sentence(exports, tmp_path):
    broken = shutil.copytree(RUN, tmp_path / "broken")
    settings = ServerSettings([str(RUN), str(broken)])
    with pytest.raises(RuntimeError) as error, run.with_exported_runs(settings, [].append):
        pass
    assert str(error.value) == f"{broken} cannot be exported: it is damaged."
    assert len(exports) == 2 and not pathlib.Path(exports[0][2]).exists()


def test_sigterm_during_an_export_leaves_nothing(tmp_path, monkeypatch):
    export, noted = tmp_path / "export", tmp_path / "noted"
    lines = ["#!/bin/sh", f'echo "$$" "$5" > {noted}.part', f"mv {noted}.part {noted}", "sleep 60"]
    export.write_text("\n".join(lines))
    export.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(export))

    def end():
        wait_until(noted.exists)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=end)
    thread.start()
    assert main(["serve", str(RUN), "--port", "0"]) == 143
    thread.join()
    process, folder = noted.read_text().split()
    assert not pathlib.Path(folder).parent.exists()
    with contextlib.suppress(psutil.NoSuchProcess):  # A killed one may wait to be reaped.
        assert psutil.Process(int(process)).status() == psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_a_run_in_int8_beside_another_model(tmp_path, frozen):
    """The whole way, with a real export; both models answer at once."""
    arguments = (f"en-zh={FROZEN}", f"en-fr={RUN}", "--dtype", "int8", "--port", 0)
    with running(*arguments, log=tmp_path / "log") as server:
        assert f"en-fr: {RUN} is a run, so it is exported first in int8." in server.lines
        assert "en-fr: version 1, int8" in server.lines
        expected = frozen(TEXTS)
        with httpx.Client(base_url=server.url, timeout=60) as client:
            found = {}
            for name in ("en-zh", "en-fr"):
                body = {"inputs": TEXTS}
                outputs = client.post(f"/v1/models/{name}:predict", json=body).json()["outputs"]
                found[name] = outputs["translation"]
            assert found["en-zh"] == expected
            # The run is that of the SavedModel; int8 may choose another word once.
            assert sum(a == b for a, b in zip(found["en-fr"], expected, strict=True)) >= 17
            languages = {one["code"]: one["targets"] for one in client.get("/languages").json()}
            assert languages == {"en": ["fr", "zh"], "fr": [], "zh": []}
