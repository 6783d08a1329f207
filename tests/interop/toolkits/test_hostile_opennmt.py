"""200 damaged or hostile variants of OpenNMT-tf's and OpenNMT-py's models."""

import shutil

import numpy as np
import pytest

from kformer.interop.toolkits.model import ToolkitOptions
from kformer.interop.toolkits.tf_checkpoint import _entries, read_checkpoint
from tests.interop.toolkits import tf_checkpoints
from tests.interop.toolkits.fixtures import DATA
from tests.interop.toolkits.hostile import check_variants, damage

pytestmark = [pytest.mark.any_backend, pytest.mark.heavy]
PREFIX = "model.ckpt-700"
CODES = (
    "import os; os.system('touch hacked')\nmodel = lambda: T(num_heads=4)",
    "model = lambda: T(num_heads=10**9)",
    "model = lambda: T(num_heads=-4)",
    "model = lambda: T(num_heads='4')",
    "model = lambda: T(num_heads=" + "9" * 5000 + ")",
    "model = lambda: T(num_heads=[4] * 10**9)",
    "model = lambda: T(num_heads=4, ffn_activation=[[]])",
    "model = lambda: T(num_heads=4, **open('hacked', 'w'))",
    "model = " + "-" * 100_000 + "1",
    "model = " + "f(" * 3000,
    "model = " + "a." * 50_000 + "b",
    "model\0",
    "# -*- coding: rot13 -*-\nmodel = 1",
    "\ufeff",
)


def rewritten(folder, rng):
    """Damages the entries of a checkpoint's table, whose checksums are right."""
    if rng.random() < 0.2:
        (folder / "run" / "model_description.py").write_text(rng.choice(CODES), encoding="utf-8")
        return
    path = folder / "run" / f"{PREFIX}.index"
    entries = list(_entries(path.read_bytes()))
    for _ in range(rng.choice((1, 1, 5, 40))):
        number = rng.randrange(len(entries))
        pair = [bytearray(each) for each in entries[number]]
        part = pair[rng.random() < 0.7]
        kind = rng.randrange(5)
        if kind == 0 or not part:
            part[rng.randrange(len(part) + 1) :] = rng.randbytes(rng.choice((0, 1, 9, 5000)))
        elif kind == 1:
            part[:] = b"\xff" * rng.choice((1, 9, 800, 5_000))
        else:
            part[rng.randrange(len(part))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        entries[number] = tuple(bytes(each) for each in pair)
    content = tf_checkpoints.table(entries)
    if rng.random() < 0.1:
        content = tf_checkpoints.table_of(tf_checkpoints.block(entries), handles=2000)
    path.write_bytes(content)


def renamed(folder, rng):
    """Damages the numbers, the names or the shapes of a checkpoint that is written anew."""
    arrays, _ = read_checkpoint(folder / "run" / PREFIX)
    arrays = {name: np.array(stored.read()) for name, stored in arrays.items()}
    for _ in range(rng.choice((1, 1, 3))):
        name = rng.choice(sorted(arrays))
        array = arrays.pop(name)
        change = rng.randrange(6)
        if change == 0:
            arrays[
                name.replace("layer_1", rng.choice(("layer_7", "layer_-1", "layer_9999999")))
            ] = array
        elif change == 1:
            arrays[name] = array.reshape(-1)
        elif change == 2:
            arrays[name] = array[..., : array.shape[-1] // 2] if array.shape else array
        elif change == 3:
            arrays[name] = array[None, None]
        elif change == 4:
            arrays[name] = np.zeros((0, *array.shape), "float32")
    tf_checkpoints.write_checkpoint(folder / "run" / PREFIX, arrays)


@pytest.mark.parametrize("into", [damage, rewritten, renamed])
def test_damaged_variants_of_opennmt_tf_are_refused_in_one_sentence(into, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(DATA / "opennmt-tf-v1", source)
    for path in [*source.glob("*.txt"), *source.glob("*.pieces")]:
        path.unlink()
    (source / "data.yml").write_text("params: {beam_width: 3}\ndata: {source_vocabulary: a/b}\n")
    options = ToolkitOptions(pretokenized=True)
    refused = check_variants(
        source, tmp_path, seed=2, options=options, into=into, count=200 if into is damage else 100
    )
    assert refused > 50


@pytest.mark.parametrize("name", ["opennmt-py-sinusoidal", "opennmt-py-relative"])
def test_damaged_variants_of_opennmt_py_are_refused_in_one_sentence(name, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for file in ("model.pt", "source.model", "target.model"):
        shutil.copy(DATA / name / file, source)
    assert check_variants(source, tmp_path, seed=3, count=100) > 30
