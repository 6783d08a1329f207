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
from tests.prepared import add_what_is_mentioned, prepare

ROOT = pathlib.Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.any_backend(quickest="torch")


def docstrings():
    """(name, path, first line, text) of every docstring in the packages."""
    packages = (ROOT / "kformer", ROOT / "kformer_options")
    for path in sorted(path for package in packages for path in package.rglob("*.py")):
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
            marks = [pytest.mark.slow] if "workers=" in block[1] else []  # It starts Ray.
            yield pytest.param(path, before, textwrap.dedent(block[1]), id=label, marks=marks)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """A folder with a trained run, its SavedModel, and text."""
    return prepare(tmp_path_factory.mktemp("docstrings"))


@pytest.mark.heavy
@pytest.mark.parametrize(("path", "before", "code"), list(examples()))
def test_example_runs(path, before, code, prepared, tmp_path, monkeypatch):
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    add_what_is_mentioned(code, tmp_path)
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
