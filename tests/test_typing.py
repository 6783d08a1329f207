"""The type checkers see the arguments of constructors and options: right calls and wrong ones."""

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILES = ("tests/typed_models.py", "tests/typed_options.py")
pytestmark = pytest.mark.any_backend


def run(*command):
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.heavy
def test_mypy_sees_each_mistake():
    run(sys.executable, "-m", "mypy", *FILES)


@pytest.mark.heavy
def test_pyright_sees_each_mistake(tmp_path):
    config = {
        "include": [str(ROOT / name) for name in FILES],
        "extraPaths": [str(ROOT)],
        "typeCheckingMode": "basic",
        "reportUnusedExpression": False,
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    path = tmp_path / "pyrightconfig.json"
    path.write_text(json.dumps(config))
    run(sys.executable, "-m", "basedpyright", "--project", str(path), "--level", "error")
