"""No path of the machine that trained a model goes along with the run or its exports."""

import json
import os
import shutil
import zipfile

import pytest

import kformer
from kformer.saving import read_config
from kformer.trainer import train_run
from kformer.utils.checksums import without_checksum
from tests.trainer.test_run import losses_of, write_pairs, write_small_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run directory, trained from absolute paths, and the folder of its text."""
    folder = tmp_path_factory.mktemp("private")
    pairs = write_pairs(folder)
    texts = [pairs["train_source"], pairs["train_target"]]
    options = {**pairs, "start_from": write_small_run(folder / "small", texts)}
    options |= {"batch_tokens": 512, "max_shapes": 1, "epochs": 1, "teachers": None}
    path = tmp_path_factory.mktemp("public") / "run"
    train_run(path, **options, report=lambda text: None, show_progress=False)
    return path, folder


def files_that_name(words, folder):
    """The files in a folder, and the members of archives, that contain some bytes."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            parts = {str(path.relative_to(folder)): path.read_bytes()}
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    parts |= {f"{path.name}/{n}": archive.read(n) for n in archive.namelist()}
            found += [name for name, content in parts.items() if words in content]
    return found


def paths_of(run):
    return without_checksum(json.loads((run / "paths.json").read_text()))


def go_on(path, **options):
    options = {"report": lambda text: None, "show_progress": False, **options}
    return train_run(path, resume=True, epochs=2, **options)


@pytest.mark.any_backend(quickest="torch")
def test_a_run_keeps_names(trained):
    path, folder = trained
    assert files_that_name(str(folder).encode(), path) == ["paths.json"]
    training = read_config(path)["training"]
    assert (training["train_source"], training["start_from"]) == ("train.source", "small")
    copy = kformer.Translator.load(path).save(path.with_name("copy"))
    assert not files_that_name(str(folder).encode(), copy) and not (copy / "paths.json").exists()


@pytest.mark.heavy
@pytest.mark.any_backend
@pytest.mark.parametrize("format", ["saved_model", "onnx", "ctranslate2", "hf"])
def test_exports_keep_names(trained, tmp_path, format):
    pytest.importorskip({"hf": "safetensors", "saved_model": "tensorflow"}.get(format, format))
    path, folder = trained
    translator = kformer.Translator.load(path)
    # As a run of an older version has it.
    absolute = str(folder / "train.source")
    translator.config["training"] |= {"train_source": absolute, "teachers": [absolute]}
    translator.config["imported"] = {"name": str(folder / "opus-mt"), "model_type": "marian"}
    kformer.export.export(translator, tmp_path / "out", format)
    assert not files_that_name(str(folder).encode(), tmp_path / "out")
    assert translator.config["training"]["train_source"] == absolute, "the translator stays"


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_resuming_finds_the_files(trained, tmp_path, monkeypatch):
    path, folder = trained
    whole = shutil.copytree(path, tmp_path / "whole")
    assert go_on(whole).steps > len(losses_of(path))
    # A run of an older version has the paths in its config.
    old = shutil.copytree(path, tmp_path / "old")
    config = json.loads((old / "config.json").read_text())
    del config["checksum"]
    config["training"] |= paths_of(old)
    (old / "config.json").write_text(json.dumps(config))
    (old / "paths.json").unlink()
    assert go_on(old) and losses_of(old) == losses_of(whole)
    assert files_that_name(str(folder).encode(), old) == ["paths.json"]
    # A run that came from another machine has to be given its files, of the same names.
    moved = shutil.copytree(path, tmp_path / "moved")
    paths = paths_of(moved)
    (moved / "paths.json").unlink()
    monkeypatch.chdir(tmp_path)
    with pytest.raises((FileNotFoundError, ValueError), match="valid.source"):
        go_on(moved)
    with pytest.raises(ValueError, match="began with train_source=train.source and can only"):
        go_on(moved, **{**paths, "train_source": paths["train_target"]})
    assert go_on(moved, **paths) and losses_of(moved) == losses_of(whole)


@pytest.mark.any_backend
def test_a_training_killed_between_its_two_files_begins(trained, tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    (path / "paths.json").write_text("{}")
    options = paths_of(trained[0])
    quiet = {"report": lambda text: None, "show_progress": False, "steps": 1}
    assert train_run(path, **options, **quiet, batch_tokens=512, max_shapes=1).steps == 1


@pytest.mark.any_backend
@pytest.mark.parametrize("content", ["[]", '{"seed": 3}', '{"train_source": 7}', "{"])
def test_a_damaged_file_of_paths_is_named(trained, tmp_path, content):
    path = shutil.copytree(trained[0], tmp_path / "run")
    (path / "paths.json").write_text(content)
    before = {name: os.stat(path / name).st_mtime_ns for name in os.listdir(path)}
    with pytest.raises(ValueError, match="paths.json"):
        go_on(path)
    # A flipped bit in a name.
    flipped = (trained[0] / "paths.json").read_text().replace("valid.source", "vAlid.source")
    (path / "paths.json").write_text(flipped)
    before["paths.json"] = os.stat(path / "paths.json").st_mtime_ns
    with pytest.raises(ValueError, match="paths.json is damaged or was edited.* remove it and giv"):
        go_on(path)
    assert {name: os.stat(path / name).st_mtime_ns for name in os.listdir(path)} == before
