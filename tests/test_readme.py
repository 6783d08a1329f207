"""The README in English and in Chinese: its Python and its commands run unchanged."""

import pathlib
import re
import shlex

import keras
import pytest

import kformer
from kformer_cli.main import main

ROOT = pathlib.Path(__file__).resolve().parent.parent
READMES = {ROOT / "README.md": "de", ROOT / "README.zh.md": "zh"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A function that writes the files that a README names, and makes their folder the current."""

    def write(language):
        for split, count in (("train", 200), ("val", 20), ("test", 20)):
            pairs = kformer.examples.generate_pairs(
                count, split=split.replace("val", "valid"), categories="time"
            )
            for suffix, side in (("en", "source"), (language, "target")):
                text = "".join(f"{getattr(pair, side)}\n" for pair in pairs)
                (tmp_path / f"{split}.{suffix}").write_text(text, encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        return tmp_path

    return write


def block(readme, language, mention):
    found = re.findall(rf"```{language}\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = [code for code in found if mention in code]
    return code


def with_less(text, less):
    """The same lines with smaller numbers."""
    for old, new in less.items():
        assert old in text
        text = text.replace(old, new)
    return text


SIZES = {
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "hidden_dim": 16,
    "intermediate_dim": 16,
}


@pytest.mark.heavy
@pytest.mark.any_backend
@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.name)
def test_the_python_runs(readme, folder, capsys):
    code = block(readme, "python", "model.fit")
    assert len(code.splitlines()) <= 14
    files = folder(READMES[readme])
    code = with_less(
        code, {"recommend(train, valid)": "recommend(train, valid, steps=2, model_options=SIZES)"}
    )
    names = {"SIZES": SIZES}
    exec(compile(code, str(readme), "exec"), names)
    assert "learning rate: up to" in capsys.readouterr().out
    ids = keras.ops.ones((2, 3), "int32")
    logits = names["model"]({"source_ids": ids, "target_ids": ids})
    size = names["tokenizer"].target_vocabulary_size
    assert tuple(logits.shape) == (2, 3, size)
    run = f"en-{READMES[readme]}"
    assert kformer.Translator.load(f"runs/{run}").tokenizer.target_vocabulary_size == size
    assert (files / f"saved_models/{run}/1/saved_model.pb").is_file()


@pytest.mark.any_backend(quickest="torch")
def test_the_commands_run(folder):
    """The first three; the picture and the export have tests of their own."""
    files = folder("de")
    lines = block(ROOT / "README.md", "bash", "kformer train").splitlines()
    assert len(lines) == 5
    less = ["--steps", "2"]
    for name, value in SIZES.items():
        less += ["--model-option", f"{name}={value}"]
    for line, further in zip(lines[:3], (less, ["--beam-size", "1"], []), strict=True):
        program, *arguments = shlex.split(line)
        assert program == "kformer"
        assert main([*arguments, *further]) == 0
    assert len((files / "test.out").read_text(encoding="utf-8").splitlines()) == 20


@pytest.mark.any_backend
def test_the_readmes_are_short():
    for readme in READMES:
        assert len(readme.read_text(encoding="utf-8").splitlines()) <= 120
