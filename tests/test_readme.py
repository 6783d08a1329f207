"""The Python of the README and of the pages in docs runs unchanged."""

import pathlib
import re

import keras
import pytest

import kformer

PAGES = sorted((pathlib.Path(__file__).parent.parent / "docs").glob("*.md"))
MODEL_PAGES = [page for page in PAGES if "```python" in page.read_text(encoding="utf-8")]
README = pathlib.Path(__file__).parent.parent / "README.md"


@pytest.mark.any_backend
def test_the_twenty_lines_run(tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = [block for block in blocks if "model.fit" in block]
    # The same lines with smaller numbers.
    less = {
        "vocabulary_size=8000)": "vocabulary_size=380)",
        "epochs=epochs": "epochs=1",
        "batch_tokens=2048": "batch_tokens=512",
    }
    for old, new in less.items():
        assert old in code
        code = code.replace(old, new)
    code = code.replace(
        '"tiny",',
        '"tiny", num_encoder_layers=1, num_decoder_layers=1, hidden_dim=16, '
        "intermediate_dim=16, max_length=32,",
    )
    for split, count in (("train", 200), ("val", 20)):
        pairs = kformer.examples.generate_pairs(
            count, split=split.replace("val", "valid"), categories="time"
        )
        (tmp_path / f"{split}.en").write_text(
            "".join(pair.source + "\n" for pair in pairs), encoding="utf-8"
        )
        (tmp_path / f"{split}.de").write_text(
            "".join(pair.target + "\n" for pair in pairs), encoding="utf-8"
        )
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(code, str(README), "exec"), names)
    assert capsys.readouterr().out.splitlines()[-1].startswith("[")
    ids = keras.ops.ones((2, 3), "int32")
    assert tuple(names["model"]({"source_ids": ids, "target_ids": ids}).shape) == (
        2,
        3,
        names["tokenizer"].vocabulary_size,
    )
    assert (
        kformer.Translator.load("runs/en-de").tokenizer.vocabulary_size
        == names["tokenizer"].vocabulary_size
    )
    assert (tmp_path / "saved_models/en-de/1/saved_model.pb").is_file()


@pytest.mark.any_backend
@pytest.mark.parametrize("page", MODEL_PAGES, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    code = "\n".join(
        re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    )
    assert "model.save" in code or "classifier.save" in code
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(code, str(page), "exec"), names)
    assert list(tmp_path.glob("*.keras"))
    assert (names["path"] / "saved_model.pb").is_file()


@pytest.mark.any_backend
def test_each_page_and_notebook_is_named_in_the_readme():
    text = README.read_text(encoding="utf-8")
    assert len(MODEL_PAGES) >= 4
    for page in PAGES:
        assert f"(docs/{page.name})" in text
    for notebook in (README.parent / "notebooks").glob("*.ipynb"):
        assert f"`{notebook.stem}`" in text
