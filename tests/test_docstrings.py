"""The examples in docstrings run as they stand there."""

import ast
import pathlib
import re
import shutil
import textwrap

import keras
import numpy as np
import pytest

import kformer

ROOT = pathlib.Path(__file__).resolve().parent.parent
FROZEN = ROOT / "tests" / "frozen_run"

pytestmark = pytest.mark.any_backend(quickest="torch")


def docstrings():
    """(name, path, first line, text) of every docstring in the package."""
    for path in sorted((ROOT / "kformer").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)

        def visit(node, name, path=path):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                if ast.get_docstring(node):
                    constant = node.body[0].value
                    yield name, path, constant.lineno, constant.value
                for child in node.body:
                    yield from visit(child, f"{name}.{getattr(child, 'name', '')}")

        yield from visit(ast.parse(path.read_text(encoding="utf-8")), module)


def examples():
    """(path, line before the code, code) of every fenced block, with its name as the test's id."""
    for name, path, line, text in docstrings():
        for number, block in enumerate(re.finditer(r"```python\n(.*?)```", text, re.DOTALL), 1):
            before = line + text[: block.start(1)].count("\n") - 1
            label = name if number == 1 else f"{name}-{number}"
            yield pytest.param(path, before, textwrap.dedent(block[1]), id=label)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """A folder with a trained run, its SavedModel, and text."""
    folder = tmp_path_factory.mktemp("docstrings")
    for name, split, count in (("train", "train", 300), ("val", "valid", 20), ("test", "test", 20)):
        pairs = kformer.examples.generate_pairs(count, split=split, categories=("time",))
        for language, side in (("en", "source"), ("de", "target")):
            text = "".join(f"{getattr(pair, side)}\n" for pair in pairs)
            (folder / f"{name}.{language}").write_text(text, encoding="utf-8")
    shutil.copytree(FROZEN, folder / "runs" / "en-de")
    shutil.copytree(ROOT / "saved_models" / "frozen", folder / "saved_models" / "en-de")
    return folder


def _add_checkpoint(folder):
    """Trains `runs/en-de` further by one step, for a checkpoint."""
    model, tokenizer, _ = kformer.saving.load_run(folder / "runs/en-de")
    train = kformer.data.ParallelDataset(
        str(folder / "train.en"), str(folder / "train.de"), tokenizer, batch_tokens=512, seed=0
    )
    model.compile(**kformer.training.paper_recipe(model))
    checkpoint = kformer.training.Checkpoint(folder / "runs/en-de")
    model.fit(train, epochs=1, steps_per_epoch=1, callbacks=[checkpoint], verbose=0)


def _add_more_runs(folder):
    for name in ("1", "2", "3"):
        shutil.copytree(FROZEN, folder / "runs" / name)


def _add_published(folder):
    """A folder as the library `transformers` writes it."""
    kformer.export.export_huggingface(kformer.Translator.load(FROZEN), folder / "opus-mt-en-de")


def _add_word_vectors(folder):
    lines = (f"{word} {' '.join(['0.5'] * 100)}\n" for word in ("the", "dog", "half", "past"))
    (folder / "glove.6B.100d.txt").write_text("".join(lines), encoding="utf-8")


# What takes longer is prepared for the examples that mention it.
ON_MENTION = {
    r"load_checkpoint\(\"runs|fit_from|average_checkpoints": _add_checkpoint,
    r"runs/1": _add_more_runs,
    r"\"opus-mt-en-de\"": _add_published,
    r"glove": _add_word_vectors,
}


@pytest.mark.parametrize(("path", "before", "code"), list(examples()))
def test_example_runs(path, before, code, prepared, tmp_path, monkeypatch):
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    for mention, add in ON_MENTION.items():
        if re.search(mention, code):
            add(tmp_path)
    monkeypatch.chdir(tmp_path)
    names = {"np": np, "keras": keras, "ops": keras.ops, "kformer": kformer}
    exec(compile("\n" * before + code, str(path), "exec"), names)


def test_examples_are_fenced():
    found = {
        str(path.relative_to(ROOT / "kformer"))
        for _, path, _, text in docstrings()
        if ">>>" in text
    }
    assert not found, "write these examples as fenced blocks"
