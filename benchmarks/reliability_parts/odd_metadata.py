"""A new version of a served SavedModel comes with notes that somebody changed.

The server refuses it, and the good version stays; or it takes over and translates alike. No request
fails meanwhile. `--only unchecked` leaves the checks of the notes out, and must fail.
"""

import asyncio
import os
import shutil

from benchmarks.reliability_parts.hostile_values import changed_json
from kformer.export.saved_model import folder as saved_model_folder
from kformer.serving import interface, served_model
from kformer.serving.engine_local import LocalEngine
from kformer.serving.settings import ServerSettings
from tests.serving.conftest import FROZEN

_TEXT = "half past four"
_SECONDS = 60


def run(tally, options):
    """Runs the part: the engine is that of the server, in this process (TensorFlow)."""
    model, spare = options.work / "odd-metadata" / "en-zh", next(FROZEN.glob("[0-9]*"))
    shutil.rmtree(model.parent, ignore_errors=True)
    shutil.copytree(spare, model / "1")
    if options.only == "unchecked":
        saved_model_folder._TYPES = {}
        saved_model_folder._raise_odd = lambda *arguments: None
    served_model._WARM_UP = ((1, 1),)
    asyncio.run(_serve(tally, options, model, spare))


async def _serve(tally, options, model, spare):
    engine = LocalEngine(ServerSettings([str(model)], poll_s=0.05))
    await engine.start()
    expected = await _translation(engine)
    try:
        for number, rng in tally.trials():
            version = model / str(2 + number)
            shutil.copytree(spare, version.with_name("coming"))
            notes = version.with_name("coming") / saved_model_folder.METADATA_FILE
            text, what = changed_json(notes.read_text(), rng, options.work, options.work / "canary")
            notes.write_text(text, encoding="utf-8", errors="surrogatepass")
            os.rename(version.with_name("coming"), version)
            state, fault = await _settled(engine, 2 + number, expected)
            tally.add(state, fault and f"{what}: {fault}")
            if state != "taken":  # The one that was taken stays: to load another takes seconds.
                shutil.rmtree(version)
    finally:
        await engine.close()


async def _settled(engine, number, expected):
    """The state that a version comes to, and what went wrong meanwhile."""
    try:
        settled = (interface.AVAILABLE, interface.END)
        await _until(lambda: _states(engine).get(number) in settled)
        state = _states(engine)[number]
        found = await _translation(engine)
    except Exception as error:
        return "in trouble", f"{type(error).__name__}: {error}"
    fault = None if found == expected else f"translated {found!r}, not {expected!r}"
    return {interface.AVAILABLE: "taken", interface.END: "refused"}[state], fault


def _states(engine):
    return {info.version: info.state for info in engine.models()["en-zh"]}


async def _until(is_true):
    for _ in range(20 * _SECONDS):
        if is_true():
            return
        await asyncio.sleep(0.05)
    raise TimeoutError(f"it did not come in {_SECONDS} s")


async def _translation(engine):
    outputs = (await engine.run(interface.Request("en-zh", [_TEXT.encode()]))).outputs
    await engine.stats()
    return outputs["translation"][0].decode()
