"""What is no model that can be imported: one sentence says what it is, and which way there is."""

import json
import shutil
import zipfile

import pytest

from kformer.interop import load_checkpoint
from tests.interop.toolkits.fixtures import DATA

pytestmark = pytest.mark.any_backend
PICKLE = b"\x80\x02}q\x00."


def folder(**files):
    """A function that makes a folder of files; two underlines in a name stand for a dot."""

    def make(path):
        path.mkdir()
        for name, content in files.items():
            (path / name.replace("__", ".")).write_bytes(content)
        return path

    return make


def file(name, content):
    def make(path):
        path.mkdir()
        (path / name).write_bytes(content)
        return path / name

    return make


def keras_file(path):
    with zipfile.ZipFile(path.with_suffix(".keras"), "w") as archive:
        archive.writestr("config.json", "{}")
    return path.with_suffix(".keras")


RUN = json.dumps({"format_version": 1}).encode()
REFUSED = {
    "nothing": (lambda path: path, "There is nothing at"),
    "empty folder": (folder(), "has no config.json"),
    "run": (folder(config__json=RUN), "a run of kformer already.*--start-from"),
    "SavedModel": (folder(saved_model__pb=b"x"), "SavedModel.*checkpoint"),
    "Sockeye": (folder(params__best=b"x", config=b"x", version=b"3"), "Sockeye model.*can teach"),
    "Joey NMT": (folder(config__yaml=b"x", best__ckpt=PICKLE), "Joey NMT model.*can teach"),
    "tensor2tensor": (
        folder(**{"model__ckpt-5__index": b"x", "flags__txt": b"x"}),
        "checkpoint of tensor2tensor.*can teach",
    ),
    "Keras": (keras_file, "Keras file.*load_model"),
    "HDF5": (file("model.h5", b"\x89HDF\r\n\x1a\n"), "Keras file"),
    "Keras folder": (folder(model__h5=b"x"), "folder of Keras files"),
    "PyTorch": (file("model.pt", PICKLE), "PyTorch file"),
    "PyTorch folder": (folder(model__pth=PICKLE), "PyTorch files"),
    "Nematus": (file("model.npz", b"PK\3\4"), "special:model.yml"),
    "weights alone": (file("model.safetensors", b"x"), "weights alone.*config.json"),
    "ONNX": (file("model.onnx", b"x"), "ONNX"),
    "GGUF": (file("model.gguf", b"GGUF\3"), "GGUF"),
    "LiteRT": (file("model.tflite", b"\x1c\0\0\0TFL3"), "LiteRT"),
    "tar": (file("opus.tar.gz", b"\x1f\x8b\x08\0"), "unpack it"),
    "text": (file("notes.txt", b"hello"), "no model that kformer knows"),
    "empty file": (file("model.bin", b""), "no model that kformer knows"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_is_is_said(name, tmp_path):
    make, message = REFUSED[name]
    with pytest.raises((ValueError, FileNotFoundError), match=f"(?s){message}") as caught:
        load_checkpoint(make(tmp_path / "old"))
    text = str(caught.value)
    assert "\n" not in text and text.startswith(("There is nothing at", str(tmp_path)))


ARCHIVES = {
    "no archive": (None, "damaged archive"),
    "up": ([("../x", b"")], "leads out of the archive"),
    "absolute": ([("/tmp/x", b"")], "leads out of the archive"),
    "drive": ([("C:\\x", b"")], "leads out of the archive"),
    "twice": ([("x", b"1"), ("x", b"2")], "damaged archive"),
    "bomb": ([("x", bytes(17 << 20))], "would unpack to"),
    "many": ([(f"{number}", b"") for number in range(1001)], "would unpack to 1,001 files"),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_stays_inside_itself_and_small(name, tmp_path):
    members, message = ARCHIVES[name]
    path = tmp_path / "model.zip"
    if members is None:
        path.write_bytes(b"PK\3\4 and nothing")
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, content in members:
                archive.writestr(member, content)
    with pytest.raises(ValueError, match=message) as caught:
        load_checkpoint(path)
    assert str(path) in str(caught.value) and "kformer-import-" not in str(caught.value)


TOOLKITS = ("marian-opusmt", "fairseq-sinusoidal", "opennmt-tf-transformer")
TOOLKITS += ("opennmt-py-sinusoidal", "opennmt-py-2", "eole-sinusoidal", "ctranslate2")


@pytest.mark.heavy
@pytest.mark.parametrize("name", TOOLKITS)
def test_texts_that_something_else_cut_are_given_as_tokens(name, tmp_path):
    path = tmp_path / name
    if name == "ctranslate2":
        pytest.importorskip("ctranslate2")
        load_checkpoint(DATA / TOOLKITS[0]).export(path, "ctranslate2")
        shutil.rmtree(path / "tokenizer")
        (path / "kformer.json").unlink()
    else:
        shutil.copytree(DATA / name, path)
    for model in (*path.glob("*.model"), *path.glob("*.spm")):
        model.unlink()
    with pytest.raises(FileNotFoundError, match="no SentencePiece model .* or pretokenized"):
        load_checkpoint(path)
    (path / "bpe.codes").write_text("#version: 0.2\n")
    with pytest.raises(ValueError, match="codes of subword-nmt .bpe.codes.* with pretokenized"):
        load_checkpoint(path)
    tokenizer = load_checkpoint(path, pretokenized=True).tokenizer
    assert len(tokenizer.tokenize("a b  c")) == 3
    codes = str(path / "bpe.codes")
    peer = pytest.importorskip("pyonmttok").Tokenizer(
        "space", bpe_model_path=codes, joiner="@@", joiner_annotate=True
    )
    words = " ".join(peer.tokenize("a big dog")[0])
    ids = load_checkpoint(path, source_model=codes).tokenizer.tokenize("a big dog")
    assert ids == tokenizer.tokenize(words) and len(ids) > 3


def test_options_of_other_toolkits_are_not_for_a_folder_of_hugging_face(tmp_path):
    path = folder(config__json=b'{"model_type": "marian"}')(tmp_path / "hf")
    with pytest.raises(ValueError, match="leave out pretokenized"):
        load_checkpoint(path, pretokenized=True)
    with pytest.raises(ValueError, match="num_heads must be a whole number of at least 1"):
        load_checkpoint(DATA / "marian-opusmt", num_heads=0)
