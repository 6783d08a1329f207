"""Published models by name, from a small hub on loopback."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from huggingface_hub import constants, file_download

import kformer
from kformer.interop import hub as kformer_hub
from kformer.interop.hub import fetch
from tests.interop.hub_server import COMMIT, Hub, serving

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAME = "Helsinki-NLP/opus-mt-en-zh"
TEXTS = ["half past four in the afternoon", "noon"]

pytestmark = pytest.mark.any_backend(quickest="torch")


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The folder of a model in the hub's format, with a file that nobody needs."""
    folder = tmp_path_factory.mktemp("published") / "model"
    kformer.export.export_huggingface(kformer.Translator.load(ROOT / "tests/frozen_run"), folder)
    (folder / "tf_model.h5").write_bytes(b"weights in a format that is not read")
    return folder


@pytest.fixture
def hub(published, tmp_path, monkeypatch):
    """A hub that serves the model, and an empty cache."""
    hub = Hub(NAME, published)
    with serving(hub) as address:
        monkeypatch.setattr(constants, "ENDPOINT", address)
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(file_download.time, "sleep", lambda seconds: None)
        yield hub


def blob_of(folder, name):
    return (folder.path / name).resolve()


def test_a_model_by_name_translates_as_the_run_it_was_made_of(hub):
    translator = kformer.Translator.from_pretrained(NAME)
    own = kformer.Translator.load(ROOT / "tests/frozen_run")
    assert translator(TEXTS) == own(TEXTS)
    assert translator.config["imported"]["name"] == NAME
    assert translator.config["imported"]["revision"] == COMMIT
    assert not any("tf_model.h5" in path for _, path, _ in hub.requests)
    asked = len(hub.requests)
    fetch(NAME, COMMIT)
    assert not any(
        method == "GET" and "resolve" in path for method, path, _ in hub.requests[asked:]
    )


def test_a_download_that_breaks_off_goes_on_where_it_stopped(hub, monkeypatch):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1024)
    hub.breaks = 1
    folder = fetch(NAME)
    ranges = [given for method, path, given in hub.requests if path.endswith(".safetensors")]
    size = (folder.path / "model.safetensors").stat().st_size
    assert any(given and given.startswith("bytes=") and given != "bytes=0-" for given in ranges)
    assert size == (hub.folder / "model.safetensors").stat().st_size
    kformer_hub.verify(folder.path / "model.safetensors")


def test_a_download_that_never_ends_is_one_sentence(hub):
    hub.breaks = 1000
    with pytest.raises(OSError, match=f"The download of {NAME} broke off .* goes on where it"):
        fetch(NAME)


def test_wrong_bytes_of_the_right_length_are_refused_and_forgotten(hub):
    hub.lies = True
    with pytest.raises(ValueError, match="model.safetensors of Helsinki-NLP/opus-mt-en-zh is dama"):
        fetch(NAME)
    hub.lies = False
    assert fetch(NAME).revision == COMMIT


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_cached_files_are_verified_too(hub, monkeypatch, name):
    blob = blob_of(fetch(NAME), name)
    content = bytearray(blob.read_bytes())
    content[-2] ^= 1
    blob.write_bytes(content)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=f"{name} of .* is damaged: its content is not that of"):
        fetch(NAME)
    assert not blob.exists()


def test_offline_the_cache_is_enough_and_nothing_is_asked(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(FileNotFoundError, match="is not in the cache, and HF_HUB_OFFLINE is set"):
        fetch(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    online = fetch(NAME)
    asked = len(hub.requests)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch(NAME).path == online.path and len(hub.requests) == asked


def test_what_the_hub_does_not_have_is_named(hub):
    with pytest.raises(FileNotFoundError, match="The hub has no model nobody/nothing that you may"):
        kformer.interop.load_checkpoint("nobody/nothing")
    with pytest.raises(FileNotFoundError, match=f"The hub has no revision v9 of {NAME}"):
        fetch(NAME, "v9")
    with pytest.raises(ValueError, match="is a folder here, which has no revision to choose"):
        kformer.interop.load_checkpoint(hub.folder, revision="main")


def test_links_of_a_cache_are_followed_inside_it_alone(hub, tmp_path):
    folder = fetch(NAME)
    assert kformer.interop.load_checkpoint(folder.path)(TEXTS[1:]) == ["中午十二点"]
    secret = tmp_path / "secret"
    secret.write_text("{}")
    (folder.path / "generation_config.json").unlink()
    (folder.path / "generation_config.json").symlink_to(secret)
    with pytest.raises(ValueError, match="is a link that leads out of the folder"):
        kformer.interop.load_checkpoint(folder.path)


def paths_in(folder):
    return {path.relative_to(folder) for path in folder.rglob("*")}


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"ETag": '"../../../outside"'}, "its ETag is '../../../outside', which is no digest"),
        ({"X-Linked-ETag": "PATH"}, "its ETag is '.*outside', which is no digest"),
        ({"ETag": '"main"'}, "its ETag is 'main'"),
        ({"X-Repo-Commit": "../../../outside"}, "its commit is '../../../outside'"),
        ({"X-Repo-Commit": COMMIT.upper()}, "its commit is 'C0FFEE"),
    ],
)
@pytest.mark.parametrize("honest", [0, 1])
def test_a_lying_hub_writes_nothing(hub, tmp_path, headers, message, honest):
    """Neither at once nor after one true answer."""
    outside = str(tmp_path / "outside")
    hub.headers = {name: value.replace("PATH", outside) for name, value in headers.items()}
    hub.honest = honest
    with pytest.raises(OSError, match=f"answers about {NAME} as no model hub does .{message}"):
        fetch(NAME)
    assert paths_in(tmp_path) <= paths_in(tmp_path / "cache") | {
        pathlib.Path("cache") / path for path in [".", *paths_in(tmp_path / "cache")]
    }


@pytest.mark.parametrize("named", ["/outside/x", "../x", "main", 5, None, ["a"]])
def test_the_commit_of_a_model_is_checked_before_any_download(hub, tmp_path, named):
    about = {"id": NAME, "sha": named, "siblings": [{"rfilename": "model.safetensors"}]}
    hub.about = json.dumps(about).encode()
    with pytest.raises(
        OSError, match="its commit is .*, which is no digest.: check the address in"
    ):
        fetch(NAME)
    assert not any("resolve" in path for _, path, _ in hub.requests)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "about",
    [
        *(b"[]", b"null", b"5", b'"text"', b"{}", b"", b"<html>", b"\xff\xfe", b"[" * 100_000),
        *(b'{"id": 5, "siblings": 7}', b'{"id": "a", "siblings": {"a": "b"}}'),
        b'{"id": "a", "sha": "%s", "siblings": [{}, 5]}' % COMMIT.encode(),
        b'{"id": "a", "sha": "%s", "siblings": [{"rfilename": 5}]}' % COMMIT.encode(),
        b'{"id": "a", "siblings": [], "lastModified": "yesterday"}',
    ],
)
def test_an_odd_answer_is_one_sentence(hub, about):
    hub.about = about
    with pytest.raises(OSError, match=f"The hub answers about {NAME} as no model hub does") as info:
        fetch(NAME)
    assert "\n" not in str(info.value)


@pytest.mark.parametrize("status", [200, 302, 429, 500])
@pytest.mark.parametrize("asked", ["/api/models/", "config.json", "model.safetensors"])
def test_an_answer_without_end_is_not_read_on_and_on(hub, asked, status):
    """Neither that about a model, nor a file, nor a redirection, nor an error."""
    hub.endless, hub.status = asked, status
    with pytest.raises(
        OSError, match=f"about {NAME} as no model hub does .an answer has more than"
    ):
        fetch(NAME)
    assert hub.sent < 3 * 2**24


def test_names_that_are_no_names_of_files_are_not_asked_for(hub):
    names = ["vocab/../../x.json", "vocab\\..\\x", "vocab\0", "a" * 300 + ".json", "\ud800.json"]
    names = [{"rfilename": name} for name in (*names, "model.safetensors", "config.json")]
    about = {"id": NAME, "sha": COMMIT, "siblings": names}
    hub.about = json.dumps(about).encode()
    assert {path.name for path in fetch(NAME).path.iterdir()} == {
        "model.safetensors",
        "config.json",
    }


@pytest.mark.heavy
def test_the_command_imports_by_name(published, tmp_path):
    """In a process of its own, which reads HF_ENDPOINT and HF_HOME."""
    hub = Hub(NAME, published)
    with serving(hub) as address:
        environment = {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home")}
        command = [sys.executable, "-m", "kformer_cli", "import", NAME, "--revision", "main"]
        run = subprocess.run(
            [*command, "--output", str(tmp_path / "run")],
            env={**environment, "KERAS_BACKEND": "torch"},
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
    assert (run.returncode, run.stdout) == (0, f"{tmp_path / 'run'}\n"), run.stderr
    assert kformer.saving.read_config(tmp_path / "run")["imported"]["revision"] == COMMIT
