"""A published model is imported, and trained further by several devices that share it."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

from tests.text_samples import corpus

PROGRAM = pathlib.Path(__file__).with_name("imported_split.py")


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="Keras splits models on JAX alone")
@pytest.mark.slow
def test_an_imported_model_is_trained_split(tmp_path):
    pytest.importorskip("transformers")
    from tests.interop.published import SMALL, published_model
    from tests.interop.tokenizer_folders import marian, trained_models

    published = tmp_path / "published"
    published.mkdir()
    config = marian(published, trained_models(), tags=[])
    names = ("pad_token_id", "eos_token_id", "decoder_start_token_id")
    sizes = {**SMALL, "vocab_size": config["vocab_size"], "layers": 1}
    special = {name: config[name] for name in names}
    published_model("marian", sizes=sizes, **special).save_pretrained(published)
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in corpus(60, seed=5)))
    subprocess.run(
        [sys.executable, str(PROGRAM), str(published), str(tmp_path)],
        env={**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": str(PROGRAM.parents[2])},
        check=True,
        timeout=400,
    )
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert len(found["one"]) == 6 and found["one"][-1] < found["one"][0]
    np.testing.assert_allclose(found["split"], found["one"], rtol=1e-5)
    assert found["share"] < 0.4
