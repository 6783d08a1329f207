"""A new version of a served SavedModel comes with notes that somebody changed.

The server refuses it, and the good version stays; or it takes over and translates alike. No request
fails meanwhile. Every second value stands where a reader looks. `--only unchecked` reads the notes
without checks, and must fail.
"""

import os
import pathlib
import shutil
import time

import httpx

from benchmarks.reliability_parts.hostile_values import changed_json
from kformer.export.saved_model import folder as saved_model_folder
from kformer.export.saved_model import reader
from kformer.serving import served_model
from kformer.serving.settings import ServerSettings
from kformer.utils.files import read_json
from tests.serving.conftest import FROZEN, Here

_REQUEST = {"q": "half past four", "source": "en", "target": "zh", "alternatives": 3}
_SECONDS = 180
_NOTHING = pathlib.Path("/nothing")  # A file that the values name.
_READ = [(name,) for name in saved_model_folder._TYPES] + [("search", "n_best")]


def run(tally, options):
    """Runs the part: the server is in this process (TensorFlow)."""
    model, spare = options.work / "odd-metadata" / "en-zh", next(FROZEN.glob("[0-9]*"))
    shutil.rmtree(model.parent, ignore_errors=True)
    shutil.copytree(spare, model / "1")
    if options.only == "unchecked":
        metadata_file = saved_model_folder.METADATA_FILE
        reader.read_metadata = lambda folder: read_json(folder / metadata_file)
    served_model._WARM_UP = ((1, 1),)
    here = Here(ServerSettings([str(model)], port=0, poll_s=0.05))
    with httpx.Client(base_url=here.url, timeout=_SECONDS) as client:
        expected = _translation(client)
        for number, rng in tally.trials():
            version = model / str(2 + number)
            shutil.copytree(spare, version.with_name("coming"))
            notes = version.with_name("coming") / saved_model_folder.METADATA_FILE
            paths = [_READ[number // 2 % len(_READ)]] if number % 2 else None
            text, what = changed_json(notes.read_text(), rng, options.work, _NOTHING, paths)
            notes.write_text(text, encoding="utf-8", errors="surrogatepass")
            os.rename(version.with_name("coming"), version)
            state, fault = _settled(client, version.name, expected)
            tally.add(state, fault and f"{what}: {fault}")
            if state != "taken":  # The one that was taken stays: to load another takes seconds.
                shutil.rmtree(version)
    here.end()


def _settled(client, version, expected):
    """What becomes of a version, and what went wrong meanwhile."""
    states = {"AVAILABLE": "taken", "END": "refused"}
    end = time.monotonic() + _SECONDS
    while (state := _state(client, version)) not in states:
        if time.monotonic() > end:
            return "in trouble", f"it was {state} after {_SECONDS} s"
        time.sleep(0.05)
    answer = _translation(client)
    return states[state], None if answer == expected else f"{answer!r}, not {expected!r}"


def _state(client, version):
    reply = client.get("/v1/models/en-zh").json()
    states = {one["version"]: one["state"] for one in reply["model_version_status"]}
    return states.get(version)


def _translation(client):
    return client.post("/translate", json=_REQUEST).text
