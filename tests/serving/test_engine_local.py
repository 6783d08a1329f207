"""The engine `local` with models that need no TensorFlow: several of them, and their versions."""

import asyncio
import pathlib
import threading

import numpy as np
import pytest

from kformer.serving import engine_local
from kformer.serving.interface import Request, SignatureInfo, TensorInfo, UnknownModel
from kformer.serving.settings import ModelSettings, ServerSettings
from kformer.serving.versions import NEEDED, VersionWatch

pytestmark = [pytest.mark.any_backend, pytest.mark.heavy]


class Model:
    """Stands for `ServedModel`: a text comes back with the folders of model and version."""

    may_compute = {}
    texts_per_second = 0.0

    def __init__(self, folder, trust_models):
        if (folder / "saved_model.pb").read_bytes() == b"broken":
            raise ValueError("it is broken")
        self.label = f"{folder.parent.name}/{folder.name} ".encode()
        inputs, outputs = ((TensorInfo(name, "string", (-1,)),) for name in ("text", "translation"))
        self.signatures = {"serving_default": SignatureInfo(inputs, outputs)}
        self.metadata = {"search": {}}

    def warm_up(self, max_texts): ...

    def call(self, signature, texts, languages):
        name = self.label.split(b"/")[0].decode()
        assert self.may_compute.get(name, threading.Event()).wait(20)
        return {"translation": np.array([self.label + text for text in texts], object)}


def add_version(path, number, content=b"whole"):
    for name in ("saved_model.pb", *NEEDED["saved_model.pb"]):
        file = path / str(number) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Runs a scenario, a coroutine function of an engine with the models `a` and `b`."""
    gates = {name: threading.Event() for name in "ab"}
    for name, gate in gates.items():
        gate.set()
        add_version(tmp_path / name, 1)
    monkeypatch.setattr(engine_local, "ServedModel", Model)
    monkeypatch.setattr(Model, "may_compute", gates)

    def run(scenario, **versions):
        models = [ModelSettings(name, tmp_path / name, versions.get(name)) for name in "ab"]
        engine = engine_local.LocalEngine(ServerSettings(models, poll_s=0.01))

        async def inside():
            await engine.start()
            try:
                return await asyncio.wait_for(scenario(engine), 30)
            finally:
                for gate in gates.values():
                    gate.set()
                await engine.close()

        return asyncio.run(inside())

    run.gates, run.folder = gates, pathlib.Path(tmp_path)
    return run


async def ask(engine, model, version=None):
    reply = await engine.run(Request(model, [b"text"], version=version))
    return reply.outputs["translation"][0].decode()


def test_each_of_several_models_answers_its_own_requests(serve):
    async def scenario(engine):
        assert await asyncio.gather(*(ask(engine, name) for name in "abab")) == [
            f"{name}/1 text" for name in "abab"
        ]
        serve.gates["a"].clear()
        held = asyncio.create_task(ask(engine, "a"))
        assert await ask(engine, "b") == "b/1 text"  # It does not wait for the other model.
        assert not held.done()
        serve.gates["a"].set()
        assert await held == "a/1 text"
        assert {(one.name, one.texts) for one in await engine.stats()} == {("a", 3), ("b", 3)}
        with pytest.raises(UnknownModel):
            await ask(engine, "c")

    serve(scenario)


def test_batches_of_few_long_texts_show_the_rate(serve):
    """Without a rate, what is asked for is accepted until the deadline."""

    async def scenario(engine):
        for count in (1, 6):  # Two fit into a batch.
            await engine.run(Request("a", [b"x" * 8000] * count))
        (stats,) = (one for one in await engine.stats() if one.name == "a")
        assert stats.texts == 7 and stats.busy_texts == 4
        assert 0 < stats.busy_seconds < stats.seconds

    serve(scenario)


def test_pinned_versions_are_served_and_no_other(serve):
    for number in (2, 3):
        add_version(serve.folder / "a", number)

    async def scenario(engine):
        found = [await ask(engine, "a", version) for version in (None, 1, 2)]
        assert found == ["a/2 text", "a/1 text", "a/2 text"]
        with pytest.raises(UnknownModel):
            await ask(engine, "a", 3)

    serve(scenario, a=(1, 2))
    with pytest.raises(FileNotFoundError, match="models.a: there is no version 9"):
        serve(scenario, a=(9,))


def test_a_file_that_changes_brings_no_lower_version_back(tmp_path):
    for number in (2, 3):
        add_version(tmp_path, number)
    watch = VersionWatch(tmp_path)
    watch.look()
    assert watch.look()[0] == 3
    (tmp_path / "3" / "more").write_bytes(b"a new file")
    assert watch.look({3}) is None and watch.look({3})[0] == 3
    add_version(tmp_path, 4)
    watch.look({3})
    assert watch.look({3})[0] == 4
    for number in (3, 4):
        (tmp_path / str(number)).rename(tmp_path / f"away-{number}")
    assert watch.look({3})[0] == 2


def test_five_versions_under_load_and_a_broken_one(serve):
    answers, is_over = [], threading.Event()

    async def load(engine):
        while not is_over.is_set():
            answers.append(await ask(engine, "a"))

    def states(engine):
        return {one.version: one.state for one in engine.models()["a"]}

    async def until(engine, expected):
        while states(engine) != expected:
            await asyncio.sleep(0.005)

    async def scenario(engine):
        loads = [asyncio.create_task(load(engine)) for _ in range(4)]
        for number in range(2, 7):
            add_version(serve.folder / "a", number)
            await until(engine, {number: "AVAILABLE"})
        add_version(serve.folder / "a", 7, b"broken")
        await until(engine, {7: "END", 6: "AVAILABLE"})
        is_over.set()
        await asyncio.gather(*loads)  # None of them failed.
        for number in (6, 7):  # Without them the next lower version is served again.
            (serve.folder / "a" / str(number)).rename(serve.folder / f"away-{number}")
        await until(engine, {5: "AVAILABLE"})

    serve(scenario)
    assert {answer.split()[0] for answer in answers} == {f"a/{n}" for n in range(1, 7)}


def test_a_refused_version_has_the_languages_of_its_model(tmp_path, monkeypatch):
    """LibreTranslate's protocol finds a model by them, whichever version is the newest."""
    monkeypatch.setattr(engine_local, "ServedModel", Model)
    add_version(tmp_path, 1)
    add_version(tmp_path, 2, b"broken")
    engine = engine_local.LocalEngine(ServerSettings([ModelSettings("en-de", tmp_path)]))

    async def inside():
        await engine.start()
        try:
            return engine.models()["en-de"]
        finally:
            await engine.close()

    found = [(one.state, *one.pairs) for one in asyncio.run(inside())]
    assert found == [("END", ("en", "de")), ("AVAILABLE", ("en", "de"))]
