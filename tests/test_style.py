"""Lines, functions and files of bearable length."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST_COLUMNS, MOST_LINES, MOST_FUNCTION_LINES = 100, 430, 60
# Functions that may be longer, each with the reason: "path::qualified name".
LONG_FUNCTIONS = {}
# Files that may be longer, each with the reason.
LONG_FILES = {}

pytestmark = pytest.mark.any_backend


def sources(*folders):
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def function_lengths(path):
    """(qualified name, number of lines without those of its docstring) of each function."""

    def visit(node, name):
        for child in ast.iter_child_nodes(node):
            full = f"{name}.{child.name}".lstrip(".") if hasattr(child, "name") else name
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = child.end_lineno - child.lineno + 1
                if ast.get_docstring(child, clean=False) is not None:
                    lines -= child.body[0].end_lineno - child.body[0].lineno + 1
                yield full, lines
            yield from visit(child, full)

    return visit(ast.parse(path.read_text(encoding="utf-8")), "")


def test_lines_end_at_100_columns():
    long = {
        name_of(path)
        for path in sources("kformer", "kformer_cli", "tests", "benchmarks")
        if any(len(line) > MOST_COLUMNS for line in path.read_text(encoding="utf-8").splitlines())
    }
    assert not long, f"lines of more than {MOST_COLUMNS} columns"


def test_functions_end_after_60_lines():
    long = {
        f"{name_of(path)}::{name}": lines
        for path in sources("kformer", "kformer_cli", "tests")
        for name, lines in function_lengths(path)
        if lines > MOST_FUNCTION_LINES
    }
    unnamed = long.keys() - LONG_FUNCTIONS.keys()
    assert not unnamed, {name: long[name] for name in unnamed}
    assert LONG_FUNCTIONS.keys() <= long.keys(), "an exception that is needed no more"


def test_files_end_after_some_400_lines():
    long = {
        name_of(path): count
        for path in sources("kformer", "kformer_cli")
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > MOST_LINES
    }
    assert long.keys() <= LONG_FILES.keys(), long
    assert LONG_FILES.keys() <= long.keys(), "an exception that is needed no more"
