"""Models of eole, from its own files."""

import json
import shutil

import numpy as np
import pytest

from kformer.interop import load_checkpoint
from kformer.interop.toolkits import eole
from kformer.interop.toolkits.model import ToolkitOptions
from tests.interop.toolkits.fixtures import DATA, lines

NAME = "eole-sinusoidal"
pytest.importorskip("safetensors")


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(DATA / NAME, tmp_path / "copy")
    return tmp_path / "copy"


def test_a_model_translates_as_eole_does():
    translator = load_checkpoint(DATA / NAME, pretokenized=True)
    assert translator.config["imported"]["model_type"] == "eole"
    texts = lines(NAME, "source.pieces")
    assert translator(texts, beam_size=1) == lines(NAME, "greedy.pieces")
    assert translator(texts, beam_size=4) == lines(NAME, "beam4.pieces")


def edit(**changes):
    def damage(folder):
        path = folder / "config.json"
        config = json.loads(path.read_text())
        config["model"] |= changes
        path.write_text(json.dumps(config))

    return damage


def scaled(folder):
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.00.safetensors")
    tensors["decoder.transformer_layers.1.layer_scalar"] *= 2
    save_file(tensors, folder / "model.00.safetensors")


REFUSED = {
    "positions": (edit(position_encoding_type="Learned"), "position_encoding_type of .*'Learned'"),
    "another option": (edit(shared_layer_norm=True), "shared_layer_norm=True"),
    "heads": (edit(heads=5), "num_heads must divide"),
    "scaled layers": (scaled, "layers that are scaled"),
    "no model": (lambda folder: (folder / "config.json").write_text("{}"), "has no model"),
    "no tokens": (lambda folder: (folder / "vocab.json").write_text("{}"), "no list of tokens"),
}


@pytest.mark.any_backend
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_in_one_sentence(copy, name):
    damage, message = REFUSED[name]
    damage(copy)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        load_checkpoint(copy, pretokenized=True)
    assert "\n" not in str(caught.value)


@pytest.mark.any_backend
def test_damaged_files_end_in_one_sentence(copy):
    rng, options = np.random.default_rng(0), ToolkitOptions(pretokenized=True)
    names = ["model.00.safetensors", "config.json", "vocab.json"]
    contents = {name: (copy / name).read_bytes() for name in names}
    refused = 0
    for _ in range(200):
        name = str(rng.choice(names))
        damaged = bytearray(contents[name])
        if rng.random() < 0.3:
            del damaged[rng.integers(len(damaged)) :]
        else:
            for index in rng.integers(0, min(9000, len(damaged)), 6):
                damaged[index] = rng.integers(256)
        (copy / name).write_bytes(damaged)
        try:
            table = eole.read(copy, options).weights
            for tensor in table.shapes:
                table.read(tensor)
        except (ValueError, FileNotFoundError) as error:
            refused += 1
            assert "\n" not in str(error)
            assert len(str(error)) < 1000
        (copy / name).write_bytes(contents[name])
    assert refused > 50
