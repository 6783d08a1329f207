"""A full disk and a killed process: one sentence with the file, and nothing left behind."""

import errno
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

import kformer
from kformer.interop import import_checkpoint
from kformer_cli.main import describe

resource = pytest.importorskip("resource")
RUN = pathlib.Path(__file__).parent.parent / "frozen_run"
PACKAGES = {"hf": "safetensors", "saved_model": "tensorflow_text"}


@pytest.fixture(scope="module")
def frozen():
    return kformer.Translator.load(RUN)


@pytest.fixture
def limit_files():
    """A function that limits the size of every file to write, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def check_sentence(error, path):
    assert isinstance(error, OSError) and error.filename == str(path), error
    sentence, code = describe(error)
    assert code == 1 and str(path) in sentence and "write elsewhere" in sentence
    assert "module" not in sentence and "Errno" not in sentence and "\n" not in sentence


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
@pytest.mark.parametrize(
    ("format", "size"),
    [("saved_model", 500_000), ("onnx", 20_000), ("ctranslate2", 20_000), ("hf", 20_000)],
)
def test_an_export_to_a_full_disk_names_the_file(
    frozen, tmp_path, limit_files, format, size, backend
):
    pytest.importorskip(PACKAGES.get(format, format))
    if format != "saved_model" and backend != "torch":
        pytest.skip("the same on every backend")
    path = tmp_path / "out"
    limit_files(size)
    with pytest.raises(OSError) as caught:
        frozen.export(path, format)
    check_sentence(caught.value, path / "1" if format == "saved_model" else path)
    assert not path.exists() or not os.listdir(path)


@pytest.mark.any_backend
def test_an_import_to_a_full_disk_names_the_file(frozen, tmp_path, limit_files):
    pytest.importorskip("safetensors")
    kformer.export.export(frozen, tmp_path / "hf", "hf")
    limit_files(100_000)
    with pytest.raises(OSError) as caught:
        import_checkpoint(tmp_path / "hf", tmp_path / "run")
    assert pathlib.Path(caught.value.filename).is_relative_to(tmp_path)
    check_sentence(caught.value, caught.value.filename)
    assert os.listdir(tmp_path) == ["hf"]


@pytest.mark.any_backend
def test_other_errors_stay(frozen, tmp_path, monkeypatch):
    def fail(folder):
        raise PermissionError(errno.EACCES, "Permission denied", "vocabulary")

    monkeypatch.setattr(frozen.tokenizer, "save", fail)
    pytest.importorskip("onnx")
    with pytest.raises(PermissionError) as caught:
        frozen.export(tmp_path / "out", "onnx")
    assert caught.value.filename == "vocabulary"


# Writes a part of an export or import, tells so, and waits.
WRITER = """
import sys, time
import kformer
from kformer.text import Tokenizer
def stop(self, folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "part").write_text("a part")
    print("writing", flush=True)
    time.sleep(600)
Tokenizer.save = stop
what, given, output = sys.argv[1:]
if what == "import":
    kformer.interop.import_checkpoint(given, output)
else:
    kformer.Translator.load(given).export(output, what)
"""


def start_writer(what, given, output):
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, what, given, output], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "writing\n"
    return process


@pytest.mark.slow
@pytest.mark.any_backend
def test_what_a_killed_export_or_import_left_is_removed_by_the_next(frozen, tmp_path):
    pytest.importorskip("onnx")
    pytest.importorskip("safetensors")
    kformer.export.export(frozen, tmp_path / "hf", "hf")
    jobs = {"onnx": RUN, "import": tmp_path / "hf"}
    writers = [
        start_writer(what, str(given), str(tmp_path / "out" / f"{what}-{number}"))
        for what, given in jobs.items()
        for number in range(2)
    ]
    try:
        folders = set(os.listdir(tmp_path / "out"))
        assert len(folders) == 4 and all(name.startswith(".partial-") for name in folders)
        for writer in writers[::2]:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        frozen.export(tmp_path / "out" / "whole", "onnx")
        left = set(os.listdir(tmp_path / "out"))
        assert "whole" in left and len(left & folders) == 2, "those of the living writers"
        for writer in writers[1::2]:
            writer.kill()
            writer.wait()
        import_checkpoint(tmp_path / "hf", tmp_path / "out" / "run")
        deadline = time.monotonic() + 10
        while len(os.listdir(tmp_path / "out")) > 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert sorted(os.listdir(tmp_path / "out")) == ["run", "whole"]
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
