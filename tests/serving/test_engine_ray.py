"""The engine `ray`: the same answers, no request lost by a killed replica or by SIGTERM."""

import asyncio
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import psutil
import pytest

from kformer.export import SavedModelTranslator
from kformer.serving.engine_ray import RayEngine
from kformer.serving.interface import (
    DeadlineExceeded,
    Draining,
    Request,
    UnknownModel,
    UnknownSignature,
)
from kformer.serving.settings import ServerSettings
from tests.serving.shared_ray import shared_ray

ROOT = pathlib.Path(__file__).parent.parent.parent
SAVED = ROOT / "saved_models" / "frozen"
TEXTS = [b"half past four", b"seven", b"", b"ten minutes to nine in the evening"]

pytestmark = pytest.mark.any_backend(quickest="torch")


@pytest.fixture(scope="module")
def expected():
    return [text.encode() for text in SavedModelTranslator(SAVED)([t.decode() for t in TEXTS])]


def replica_pids():
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if re.search("ServeReplica:kformer.*:models", (process.info["cmdline"] or [""])[0])
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
            with pytest.raises(UnknownSignature, match="no signature 'x'"):
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
def test_sigterm_with_requests_in_flight(expected):
    """20 requests in flight are answered, the exit code is 0, and nothing is left running."""
    _, address = shared_ray()
    command = [sys.executable, "-m", "kformer_cli", "serve", f"m={SAVED}", "--port", 0]
    command += ["--engine", "ray", "--ray-address", address]
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    process = subprocess.Popen(
        [*map(str, command)], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        for line in process.stdout:
            if ready := re.match(r"Ready on (\S+)", line):
                break
        body = json.dumps({"inputs": [text.decode() for text in TEXTS * 20]}).encode()
        found = []

        def ask():
            with urllib.request.urlopen(f"{ready[1]}/v1/models/m:predict", body, 60) as reply:
                found.append(json.load(reply)["outputs"]["translation"])

        threads = [threading.Thread(target=ask) for _ in range(20)]
        for thread in threads:
            thread.start()
        metrics = f"{ready[1]}/metrics"
        while not re.search(
            r"waiting_texts\S* [1-9]", urllib.request.urlopen(metrics).read().decode()
        ):
            assert any(thread.is_alive() for thread in threads)
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
    assert found == [[text.decode() for text in expected * 20]] * 20
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}
    assert not replica_pids()


def test_print_ray_config(capfd):
    """What is printed is a configuration of Ray Serve, and builds the two deployments."""
    yaml = pytest.importorskip("yaml")
    from ray.serve.schema import ServeDeploySchema

    from kformer.serving.ray_app import build
    from kformer_cli.main import main

    command = ["serve", f"m={SAVED}", "--replicas", "3", "--port", "8600", "--print-ray-config"]
    assert main(command) == 0
    config = yaml.safe_load(capfd.readouterr().out)
    ServeDeploySchema.model_validate(config)
    assert config["http_options"] == {"host": "127.0.0.1", "port": 8600}
    (application,) = config["applications"]
    assert application["args"]["models"] == [{"name": "m", "path": str(SAVED)}]
    ingress = build(application["args"])._bound_deployment
    models = ingress.init_args[1]._bound_deployment
    assert (ingress.name, models.name, models.num_replicas) == ("ingress", "models", 3)
    run = ROOT / "tests" / "frozen_run"
    assert main(["serve", f"m={run}", "--print-ray-config"]) == 1
    assert "is a run, which a cluster cannot serve: export it first" in capfd.readouterr().err
