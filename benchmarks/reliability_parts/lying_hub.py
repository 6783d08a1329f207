"""Models are asked of a hub that lies: in what it says about a model, about a file, or in bytes;
or its answer has no end.

Nothing may be written outside of the cache, and what is refused is one sentence. `--only unchecked`
leaves the checks out, and must fail.
"""

import contextlib
import json
import pathlib
import shutil

from huggingface_hub import constants, file_download

from benchmarks.reliability_parts.attacks import made_outside
from benchmarks.reliability_parts.hostile_values import changed_json, pick
from kformer.interop import hub as kformer_hub
from tests.interop.hub_server import COMMIT, Hub, serving

_MOST_BYTES = 3 * 2**24
_NAME = "owner/model"
_SMALL = {"config.json": b"{}", "vocab.json": b'{"a": 0}', "model.safetensors": bytes(100)}


def run(tally, options):
    """Runs the part; the hub answers on loopback."""
    served, work = options.work / "served", options.work / "work"
    served.mkdir(parents=True, exist_ok=True)
    for name, content in _SMALL.items():
        (served / name).write_bytes(content)
    hub = Hub(_NAME, served)
    if options.only == "unchecked":
        kformer_hub._check_answer = lambda *arguments: None
        kformer_hub._bounded_answers = lambda most: contextlib.nullcontext()
    file_download.time.sleep = lambda seconds: None
    with serving(hub) as address:
        constants.ENDPOINT = address
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        constants.HUGGINGFACE_CO_URL_TEMPLATE = template
        for _, rng in tally.trials():
            shutil.rmtree(work, ignore_errors=True)
            constants.HF_HUB_CACHE = str(work / "deep" / "in" / "cache")
            pathlib.Path(constants.HF_HUB_CACHE).mkdir(parents=True)
            _trial(tally, rng, hub, work)


def _trial(tally, rng, hub, work):
    hub.about, hub.headers, hub.lies, hub.endless, hub.sent = None, {}, False, None, 0
    hub.honest = int(rng.integers(4))
    kind = pick(rng, ["a value", "text", "headers", "headers", "bytes", "no end"])
    target = work / "outside"
    if kind == "a value":
        names = [{"rfilename": name} for name in (*_SMALL, "../x.json", str(target))]
        about = {"id": _NAME, "sha": COMMIT, "siblings": names}
        hub.about = changed_json(json.dumps(about), rng, target, target)[0].encode(errors="replace")
    elif kind == "text":
        texts = [b"", b"<html>", b"[]", b"null", b"1", b'"a"', b"{}", b"[" * 10**5, b"\xff\xfe{}"]
        hub.about = pick(rng, texts)
    elif kind == "headers":
        up = "../" * int(rng.integers(1, 9))
        values = [
            str(target),
            up + "outside",
            up,
            ".",
            "..",
            "main",
            "a" * 300,
            COMMIT.upper(),
            "~/x",
        ]
        values += [COMMIT + "/x", "\\..\\x", f'W/"{target}"', "%2e%2e%2fx", "0" * 64, "0" * 41, '"']
        names = ["ETag", "X-Linked-ETag", "X-Repo-Commit", "X-Linked-Size", "X-Xet-Hash"]
        for _ in range(int(rng.integers(1, 4))):
            hub.headers[pick(rng, names)] = pick(rng, values)
    elif kind == "no end":
        hub.endless = pick(rng, ["/api/", "config.json", "model.safetensors"])
        hub.status = pick(rng, [200, 302, 429, 500])
    else:
        hub.lies = True
    fault = None
    try:
        kformer_hub.fetch(_NAME)
    except (OSError, ValueError) as error:
        text = str(error)
        if "\n" in text or not text.isprintable() or len(text) > 1000:
            fault = f"no sentence: {text[:500]!r}"
    except BaseException as error:
        fault = f"{type(error).__name__}: {error}"
    inside = str(pathlib.Path(constants.HF_HUB_CACHE).relative_to(work))
    outside = [path for path in made_outside(work) if not f"{inside}/".startswith(f"{path}/")]
    outside = [path for path in outside if not path.startswith(f"{inside}/")]
    if outside:
        fault = f"outside of the cache: {outside[:3]}; {hub.about or hub.headers}"
    if hub.sent > _MOST_BYTES:
        fault = f"{hub.sent:,} bytes were taken"
    tally.add(kind, fault)
