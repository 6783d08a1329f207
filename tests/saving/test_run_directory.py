"""The run directory: what is saved comes back, and what is wrong with one is said."""

import io
import json
import os
import sys
import zipfile

import h5py
import keras
import numpy as np
import pytest

from kformer import Tokenizer
from kformer.saving import load_run, model_files, read_config, run_directory, save_run
from kformer.training import paper_recipe
from kformer.utils import files
from tests.training.toy import ToyData, compiled_toy


@pytest.fixture(scope="module")
def tokenizer():
    texts = [
        "A man rides a horse.",
        "Two dogs are playing in the snow.",
        "ein Mann reitet",
        "zwei Hunde",
    ] * 20
    return Tokenizer.train(
        texts=texts, vocabulary_size=32, byte_fallback=False, model_type="unigram"
    )


@pytest.fixture
def run(tmp_path, tokenizer, tiny_transformer):
    model = tiny_transformer()
    save_run(tmp_path / "run", model, tokenizer, {"preset": "tiny", "text": "é"})
    return tmp_path / "run"


def test_model_tokenizer_and_config_come_back(tmp_path, tokenizer, tiny_transformer, random_batch):
    model, batch = tiny_transformer(), random_batch()
    model.compile(**paper_recipe(model))
    model.optimizer.build(model.trainable_variables)
    config = {"preset": "tiny", "seed": 3, "files": ["ä.en"], "rate": 0.1}
    path = save_run(tmp_path / "runs" / "en-de", model, tokenizer, config)
    assert sorted(os.listdir(path)) == ["config.json", "model.keras", "tokenizer"]
    loaded, loaded_tokenizer, loaded_config = load_run(path)
    assert loaded_config == config == read_config(path)
    assert json.loads((path / "config.json").read_text(encoding="utf-8"))["format_version"] == 1
    text = "Two dogs in the snow."
    assert loaded_tokenizer.tokenize(text) == tokenizer.tokenize(text)
    logits = [keras.ops.convert_to_numpy(m(batch, training=False)) for m in (model, loaded)]
    np.testing.assert_array_equal(*logits)


def test_the_optimizer_stays_out_of_the_file_and_in_the_model(tmp_path, tokenizer):
    model, batch = compiled_toy(), ToyData()[0]
    model.train_on_batch(*batch)
    optimizer = model.optimizer
    path = save_run(tmp_path, model, tokenizer)
    assert model.optimizer is optimizer and model.compiled
    model.train_on_batch(*batch)
    assert int(optimizer.iterations) == 2
    assert not load_run(path)[0].compiled
    with zipfile.ZipFile(path / "model.keras") as archive:
        assert not json.loads(archive.read("config.json")).get("compile_config")
        with h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as weights:
            assert "embedding" in weights and "optimizer" not in weights


@pytest.mark.any_backend
def test_saving_again_replaces_the_run_and_leaves_the_rest(
    run, tokenizer, tiny_transformer, monkeypatch
):
    (run / "history.csv").write_text("step\n")
    before = (run / "model.keras").read_bytes()
    model = tiny_transformer()

    def save(path):
        path.write_bytes(b"begun")
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(model, "save", save)
        with pytest.raises(OSError, match="no space left"):
            save_run(run, model, tokenizer, {"preset": "other"})
    assert (run / "model.keras").read_bytes() == before and read_config(run)["preset"] == "tiny"
    save_run(run, model, tokenizer, {"preset": "other"})
    assert sorted(os.listdir(run)) == ["config.json", "history.csv", "model.keras", "tokenizer"]
    assert read_config(run) == {"preset": "other"}


class SavedModel:
    """A model that saves these bytes."""

    optimizer, weights = None, ()

    def __init__(self, content):
        self.content = content

    def save(self, path):
        path.write_bytes(self.content)


def killed_at(operation, folder, function):
    """Runs a function in a child that is killed at its n-th operation on files in a folder.

    Returns:
        Whether the child got that far.
    """
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    count = 0

    def hook(event, arguments):
        nonlocal count
        names = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree"}
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & 3
        if (event in names or writes) and str(folder) in str(arguments[0]):
            if count == operation:
                os._exit(9)
            count += 1

    try:
        sys.addaudithook(hook)
        function()
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.heavy
@pytest.mark.any_backend
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_run_is_replaced_as_a_whole_or_not_at_all(run, tokenizer, monkeypatch):
    """Killed at any operation on files, there is the old run or the new one."""
    other = Tokenizer.train(
        texts=["ein Mann", "zwei Hunde"] * 9, vocabulary_size=20, byte_fallback=False
    )
    (run / "history.csv").write_text("step\n")
    monkeypatch.setattr(run_directory, "load_model", lambda path, compiled: path.read_bytes())
    monkeypatch.setattr(files, "sync_to_disk", lambda path: None)  # for speed
    parts = {
        "old": (SavedModel((run / "model.keras").read_bytes()), tokenizer, read_config(run)),
        "new": (SavedModel(b"new"), other, {"preset": "other"}),
    }

    def which():
        content, found, config = load_run(run)
        name = "new" if content == b"new" else "old"
        assert content == parts[name][0].content
        assert found.writes_like(parts[name][1]) and config == parts[name][2]
        return name

    seen, operation = [], 0
    while killed_at(operation, run, lambda: save_run(run, *parts["new"])):
        seen.append(which())
        save_run(run, *parts["old"])
        assert which() == "old"
        operation += 1
    assert which() == "new" and seen == sorted(seen, reverse=True) and set(seen) == {"old", "new"}
    # A folder aside that was killed before it had a lock is removed once it is old.
    names = sorted(name for name in os.listdir(run) if not name.startswith(".partial-"))
    assert names == ["config.json", "history.csv", "model.keras", "tokenizer"]


@pytest.mark.heavy
@pytest.mark.any_backend
def test_a_run_that_is_replaced_while_it_is_read(run, tokenizer, tiny_transformer, monkeypatch):
    """A model of one run with the tokenizer of another would translate nonsense."""
    other = Tokenizer.train(
        texts=["drei Katzen"] * 20, vocabulary_size=15, byte_fallback=False, model_type="unigram"
    )
    load, times = run_directory.load_model, []

    def replaced(path, **settings):
        model = load(path, **settings)
        if len(times) < most:
            times.append(save_run(run, tiny_transformer(), other, {"number": len(times)}))
        return model

    monkeypatch.setattr(run_directory, "load_model", replaced)
    most = 1
    _, found, config = load_run(run)
    assert config == {"number": 0} and found.vocabulary_size == other.vocabulary_size
    most = 9
    with pytest.raises(RuntimeError, match="was replaced 3 times while it was read: load it again"):
        load_run(run)


@pytest.mark.any_backend
def test_a_part_that_is_moved_while_it_is_read(run, monkeypatch):
    part, times = run_directory._part, []

    def moved(path, name):
        if not times and name == "model.keras":
            times.append(name)
            return path / ".replacing" / name
        return part(path, name)

    monkeypatch.setattr(run_directory, "_part", moved)
    load_run(run)
    assert times == ["model.keras"]


@pytest.mark.any_backend
def test_a_model_that_is_moved_once_it_was_found(run, monkeypatch):
    load, times = run_directory.load_model, []

    def moved(path, **settings):
        times.append(path)
        return load(run / "moved" if len(times) == 1 else path, **settings)

    monkeypatch.setattr(run_directory, "load_model", moved)
    load_run(run)
    assert len(times) == 2


@pytest.mark.any_backend
def test_missing_pieces_are_named(run, tmp_path):
    with pytest.raises(FileNotFoundError, match="no run directory .*nowhere"):
        load_run(tmp_path / "nowhere")
    (run / "model.keras").unlink()
    with pytest.raises(FileNotFoundError, match="it lacks model.keras"):
        load_run(run)
    (run / "tokenizer" / "tokenizer.json").unlink()
    with pytest.raises(
        FileNotFoundError, match="it lacks model.keras and tokenizer/tokenizer.json"
    ):
        load_run(run)
    (run / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match="is not a run directory: it lacks config.json"):
        load_run(run)


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '{"format_version": 2}',
            "format version 2, .* up to 1 of a run directory: install a newer kformer",
        ),
        ('{"format_version": "1"}', "format_version is '1'"),
        ("{}", "format_version is None"),
        ("[1]", "holds list where a JSON object should be"),
        ("{", "not valid JSON"),
    ],
)
def test_a_config_that_cannot_be_read_is_refused_in_a_sentence(run, content, message):
    (run / "config.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        load_run(run)


@pytest.mark.any_backend
def test_a_flipped_bit_in_the_config_is_refused_or_changes_nothing(run):
    path, config = run / "config.json", read_config(run)
    content = path.read_bytes()
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            # A flip in the key of the checksum adds a key of no meaning.
            assert read_config(run).items() >= config.items()
        except ValueError as error:
            assert str(path) in str(error) and "\n" not in str(error)
    path.write_text('{"format_version": 1, "preset": "tiny"}')  # edited by hand
    assert read_config(run) == {"preset": "tiny"}


@pytest.mark.any_backend
def test_a_damaged_model_is_refused_in_a_sentence(run):
    (run / "model.keras").write_bytes((run / "model.keras").read_bytes()[:-100])
    with pytest.raises(ValueError, match="model.keras is damaged: it is not a whole archive"):
        load_run(run)


@pytest.mark.any_backend
@pytest.mark.parametrize(
    "name", ["config.json", "model.keras", "tokenizer", "tokenizer/tokenizer.json"]
)
def test_links_out_of_the_folder_are_not_followed(run, tmp_path, name):
    outside = tmp_path / "outside"
    (run / name).rename(outside)
    (run / name).symlink_to(outside)
    with pytest.raises(ValueError, match="link that leads out of"):
        load_run(run)


@pytest.mark.any_backend
def test_a_config_that_json_has_no_form_for_is_refused(tmp_path, tokenizer, tiny_transformer):
    model = tiny_transformer()
    for key in ("format_version", "checksum"):
        with pytest.raises(ValueError, match=key):
            save_run(tmp_path, model, tokenizer, {key: 1})
    with pytest.raises(ValueError, match="config.json takes JSON values alone"):
        save_run(tmp_path, model, tokenizer, {"rate": float("nan")})
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="file is a file"):
        save_run(tmp_path / "file", model, tokenizer)


def test_a_large_model_is_written_by_way_of_files(tmp_path, tiny_transformer, monkeypatch):
    model, contents = tiny_transformer(), []
    for name, least in (("plain", 2**40), ("large", 0)):
        monkeypatch.setattr(model_files, "_LARGE_MODEL", least)
        model_files.save_model(model, tmp_path / f"{name}.keras", with_optimizer=False)
        with zipfile.ZipFile(tmp_path / f"{name}.keras") as archive:
            contents.append((sorted(archive.namelist()), archive.read("config.json")))
        loaded = model_files.load_model(tmp_path / f"{name}.keras", compiled=False)
        for one, other in zip(loaded.weights, model.weights, strict=True):
            np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (one, other)))
    assert contents[0] == contents[1]
    assert sorted(os.listdir(tmp_path)) == ["large.keras", "plain.keras"]


@pytest.mark.any_backend
def test_a_run_has_one_writer(tmp_path, tokenizer, tiny_transformer):
    model, path = tiny_transformer(), tmp_path / "run"
    with files.locked(path):
        with pytest.raises(files.LockedError, match=f"Process {os.getpid()} is writing to "):
            save_run(path, model, tokenizer)
        assert os.listdir(path) == [files.LOCK_FILE], "the second writer changes nothing"
    # What a dead process leaves is not a lock.
    path.mkdir()
    (path / files.LOCK_FILE).write_text("4194303 here\n")
    save_run(path, model, tokenizer)
    assert sorted(os.listdir(path)) == ["config.json", "model.keras", "tokenizer"]
