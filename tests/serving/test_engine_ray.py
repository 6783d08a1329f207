"""The engine `ray`: the same answers, no request lost by a killed replica or by SIGTERM."""

import asyncio
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import urllib.error
import urllib.request

import psutil
import pytest

from kformer.export import SavedModelTranslator
from kformer.serving.engine_ray import MODELS, RayEngine, _reason
from kformer.serving.interface import (
    AVAILABLE,
    END,
    DeadlineExceeded,
    Draining,
    ModelStats,
    ModelVersion,
    Request,
    UnknownModel,
    UnknownSignature,
)
from kformer.serving.settings import ServerSettings
from tests.serving.conftest import TERMS, copy_version
from tests.serving.shared_ray import shared_ray

ROOT = pathlib.Path(__file__).parent.parent.parent
SAVED = ROOT / "saved_models" / "frozen"
TEXTS = [b"half past four", b"seven", b"", b"ten minutes to nine in the evening"]

pytestmark = pytest.mark.any_backend(quickest="torch")


@pytest.fixture(scope="module")
def expected():
    return [text.encode() for text in SavedModelTranslator(SAVED)([t.decode() for t in TEXTS])]


def replica_pids(deployment=MODELS):
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if re.search(f"ServeReplica:kformer.*:{deployment}", (process.info["cmdline"] or [""])[0])
    ]


@pytest.mark.slow
def test_answers_errors_and_a_killed_replica(expected):
    """`kill -9` of one of two replicas under load: every request is answered."""
    shared_ray()
    settings = ServerSettings([f"m={SAVED}"], engine="ray", replicas=2)

    async def load(engine, seconds):
        """Answers of four clients, each of whom asks again as soon as it is answered."""
        end, found = time.monotonic() + seconds, []

        async def client():
            while time.monotonic() < end:
                request = Request("m", TEXTS, deadline=time.monotonic() + 60)
                found.append((await engine.run(request)).outputs["translation"].tolist())

        await asyncio.gather(*(client() for _ in range(4)))
        return found

    async def test():
        engine = RayEngine(settings)
        await engine.start()
        try:
            info = engine.metadata("m")
            assert (info.version, info.search["beam_size"]) == (1, 4) and engine.models()["m"]
            with pytest.raises(UnknownSignature, match="no signature of that name"):
                await engine.run(Request("m", TEXTS, "x"))
            with pytest.raises(UnknownModel):
                await engine.run(Request("m", TEXTS, version=9))
            with pytest.raises(DeadlineExceeded):
                await engine.run(Request("m", TEXTS * 500, deadline=time.monotonic() + 0.01))
            loading = asyncio.create_task(load(engine, 3))
            await asyncio.sleep(1)
            killed, other = replica_pids()
            os.kill(killed, signal.SIGKILL)
            found = await loading
            assert len(found) > 8 and all(each == expected for each in found)
            assert killed not in replica_pids() and other in replica_pids()
            stats = await engine.stats()
            assert stats[0].texts > 0 and stats[0].name == "m"
            waiting = [asyncio.create_task(engine.run(Request("m", TEXTS))) for _ in range(20)]
            await asyncio.sleep(0)
            await engine.drain(60)
            answers = await asyncio.gather(*waiting)
            assert all(each.outputs["translation"].tolist() == expected for each in answers)
            with pytest.raises(Draining):
                await engine.run(Request("m", TEXTS))
        finally:
            await engine.close()

    asyncio.run(test())


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_is_named_as_by_the_engine_local(tmp_path):
    shared_ray()
    shutil.copytree(SAVED, tmp_path / "m")
    (tmp_path / "m" / "1" / "saved_model.pb").write_bytes(b"broken")
    engine = RayEngine(ServerSettings([f"m={tmp_path / 'm'}"], engine="ray"))
    with pytest.raises(ValueError, match="^The SavedModel .* is damaged .*copy it again"):
        asyncio.run(engine.start())


def test_the_reason_is_the_last_line_that_ray_knows():
    message = "Traceback:\n  at x\nValueError: The SavedModel m/1 is damaged: copy it again.\n"
    failed = types.SimpleNamespace(deployments={MODELS: types.SimpleNamespace(message=message)})
    serve = types.SimpleNamespace(status=lambda: types.SimpleNamespace(applications={"a": failed}))
    assert _reason(serve, "a") == "The SavedModel m/1 is damaged: copy it again."
    assert _reason(serve, "b") == ""


def test_what_is_deployed_after_the_end_is_deleted(monkeypatch):
    """SIGTERM comes while a thread starts Ray and the deployment: the thread cannot be stopped."""
    may_deploy, done = threading.Event(), []

    def deploy(engine):
        assert may_deploy.wait(20)
        engine._stack.callback(done.append, "deleted")
        done.append("deployed")

    monkeypatch.setattr(RayEngine, "_deploy", deploy)

    async def test():
        starting = asyncio.create_task(RayEngine(ServerSettings(["m=path"])).start())
        await asyncio.sleep(0.05)
        starting.cancel()
        asyncio.get_running_loop().call_later(0.2, may_deploy.set)
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(test())
    assert done == ["deployed", "deleted"]


def test_what_replicas_tell_of_themselves():
    """A dead replica has computed what it has, and nothing waits for it; a refused version is
    not newer than one that is served."""
    refused = {"m": [ModelVersion("m", 9, END), ModelVersion("m", 1, AVAILABLE)]}
    newest = {"m": [ModelVersion("m", 2, AVAILABLE)]}
    told = [
        ("a", refused, [ModelStats("m", 1, texts=5, waiting=7)]),
        ("b", newest, [ModelStats("m", 1, texts=3, waiting=1)]),
    ]

    class Handle:
        async def remote(self):
            told.append(told.pop(0))
            return told[-1]

    Handle.state = Handle()

    async def test():
        engine = RayEngine(ServerSettings(["m=path"]), Handle)
        (stats,) = await engine.stats()
        assert (stats.texts, stats.waiting) == (8, 8)
        assert engine.metadata("m").version == 2
        del told[0]
        (stats,) = await engine.stats()
        assert (stats.texts, stats.waiting) == (8, 1)

    asyncio.run(test())


@pytest.mark.slow
def test_sigterm_with_requests_in_flight(expected):
    """20 requests in flight are answered, the exit code is 0, and nothing is left running."""
    _, address = shared_ray()
    command = [sys.executable, "-m", "kformer_cli", "serve", f"m={SAVED}", "--port", 0]
    command += ["--engine", "ray", "--ray-address", address]
    command += ["--drain-s", 300, "--deadline-s", 600]
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    process = subprocess.Popen(
        [*map(str, command)], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        for line in process.stdout:
            if ready := re.match(r"Ready on (\S+)", line):
                break
        body = json.dumps({"inputs": [text.decode() for text in TEXTS * 50]}).encode()
        found = []

        def ask():
            with urllib.request.urlopen(f"{ready[1]}/v1/models/m:predict", body, 600) as reply:
                found.append(json.load(reply)["outputs"]["translation"])

        threads = [threading.Thread(target=ask) for _ in range(20)]
        for thread in threads:
            thread.start()
        # The model takes turns, so all are in flight until the first ones end together.
        in_flight = f"kformer_accepted_texts {20 * 50 * len(TEXTS)}.0"
        while in_flight not in urllib.request.urlopen(f"{ready[1]}/metrics").read().decode():
            assert all(thread.is_alive() for thread in threads)
        listening = {
            connection.laddr.ip
            for connection in psutil.Process(process.pid).net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert found == [[text.decode() for text in expected * 50]] * 20
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}
    assert not replica_pids()


@pytest.mark.slow
def test_new_versions_under_load(expected, tmp_path):
    """Two replicas load a version each by themselves: no request fails, also in between."""
    shared_ray()
    folder = tmp_path / "m"
    shutil.copytree(SAVED, folder)
    settings = ServerSettings([f"m={folder}"], engine="ray", replicas=2, poll_s=0.5)

    async def test():
        engine, versions, is_over = RayEngine(settings), [], asyncio.Event()

        async def load():
            while not is_over.is_set():
                reply = await engine.run(Request("m", TEXTS, deadline=time.monotonic() + 60))
                assert reply.outputs["translation"].tolist() == expected
                versions.append(reply.version)

        async def until(condition):
            while not condition():
                assert not any(task.done() for task in loads)
                await asyncio.sleep(0.1)

        await engine.start()
        try:
            loads = [asyncio.create_task(load()) for _ in range(2)]
            copy_version(folder, 2)
            await until(lambda: len(versions) > 20 and set(versions[-20:]) == {2})
            broken = folder / "3"
            shutil.copytree(SAVED / "1", broken)
            (broken / "saved_model.pb").write_bytes(b"broken")
            await until(lambda: any(one.error for one in engine.models()["m"]))
            assert versions[-1] == 2 and engine.metadata("m").version == 2
            is_over.set()
            await asyncio.gather(*loads)
        finally:
            await engine.close()
        assert set(versions) == {1, 2}

    asyncio.run(test())


@pytest.mark.slow
def test_a_killed_ingress_is_replaced(expected):
    """What `serve deploy` runs answers again within 20 seconds."""
    ray, _ = shared_ray()
    from ray import serve

    from kformer.serving.ray_app import APPLICATION, INGRESS, build, ray_config

    settings = ServerSettings([f"m={SAVED}"], port=free_port(), replicas=1)
    config = ray_config(settings)
    (application,) = config["applications"]
    serve.shutdown()  # What a failed test may have left has another port.
    serve.start(proxy_location=config["proxy_location"], http_options=config["http_options"])
    url = f"http://127.0.0.1:{settings.port}/v1/models/m:predict"
    body = json.dumps({"inputs": [text.decode() for text in TEXTS]}).encode()

    def ask():
        with urllib.request.urlopen(url, body, 60) as reply:
            return json.load(reply)["outputs"]["translation"]

    try:
        serve.run(build(application["args"]), name=APPLICATION, route_prefix="/")
        assert ask() == [text.decode() for text in expected]
        (pid,) = replica_pids(INGRESS)
        os.kill(pid, signal.SIGKILL)
        start = time.monotonic()
        while True:
            try:
                assert ask() == [text.decode() for text in expected]
                break
            except (OSError, urllib.error.HTTPError):
                assert time.monotonic() < start + 20
                time.sleep(0.1)
        seconds = time.monotonic() - start
        assert replica_pids(INGRESS) != [pid]
        print(f"the ingress answered again after {seconds:.1f} s")
    finally:
        serve.shutdown()


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.heavy
def test_print_ray_config(capfd):
    """What is printed is a configuration of Ray Serve, and builds the two deployments."""
    yaml = pytest.importorskip("yaml")
    from ray.serve.schema import ServeDeploySchema

    from kformer.serving.ray_app import build
    from kformer_cli.main import main

    command = ["serve", f"m={SAVED}", "--replicas", "3", "--port", "8600", "--print-ray-config"]
    command += ["--host", "translate.example"]
    terms = os.path.relpath(TERMS)
    assert main([*command, "--glossary", f"times={terms}", "--api-keys", terms]) == 0
    config = yaml.safe_load(capfd.readouterr().out)
    ServeDeploySchema.model_validate(config)
    assert config["http_options"] == {"host": "translate.example", "port": 8600}
    (application,) = config["applications"]
    assert application["args"]["models"] == [{"name": "m", "path": str(SAVED)}]
    # The replicas run in folders of their own.
    assert application["args"]["glossaries"] == [f"times={os.path.abspath(terms)}"]
    assert application["args"]["api_keys"] == os.path.abspath(terms)
    assert main(command) == 0
    (application,) = yaml.safe_load(capfd.readouterr().out)["applications"]
    ingress = build(application["args"])._bound_deployment
    # The ingress answers requests for its host.
    assert ingress.init_args[0].host == "translate.example"
    models = ingress.init_args[1]._bound_deployment
    assert (ingress.name, models.name, models.num_replicas) == ("ingress", "models", 3)
    run = ROOT / "tests" / "frozen_run"
    assert main(["serve", f"m={run}", "--print-ray-config"]) == 1
    assert "is a run, which a cluster cannot serve: export it first" in capfd.readouterr().err
