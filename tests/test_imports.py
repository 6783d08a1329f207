"""The order of the rooms: imports run one way, and no room needs a backend's library at import."""

import ast
import os
import pathlib
import subprocess
import sys

import pytest

from tests.hiding import hiding

PACKAGE = pathlib.Path(__file__).resolve().parent.parent / "kformer"
# A room may import from those before it.
ORDER = [
    "layers",
    "models",
    "decoding",
    "text",
    "data",
    "training",
    "translator",
    "evaluation",
    "distillation",
    "export",
    "interop",
    "plots",
    "quickstart",
    "streaming",
    "cli",
]

pytestmark = pytest.mark.any_backend


def _modules():
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def _room(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imports(tree):
    """(imported module, whether it stands at the top of the file) for every import; a relative one
    has an empty name.
    """
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in top
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                names = [""]
            else:
                names = (
                    [f"{node.module}.{alias.name}" for alias in node.names]
                    if node.module == "kformer"
                    else [node.module]
                )
            for name in names:
                yield name, id(node) in top


def test_every_room_has_its_place():
    assert {_room(path) for path in _modules()} == set(ORDER)


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_one_way(path):
    room = ORDER.index(_room(path))
    for name, is_at_top in _imports(ast.parse(path.read_text(encoding="utf-8"))):
        parts = name.split(".")
        # `kformer_cli.main` runs the room of the commands without the package around it.
        assert name or _room(path) == "cli", (
            f"{path.name} must name the package in full where it imports"
        )
        assert not (is_at_top and parts[0] == "kformer" and _room(path) == "cli"), (
            f"{path.name} imports {name} before a command needs it"
        )
        if parts[0] == "kformer" and len(parts) > 1:
            # `Translator.export` calls the export room when it is asked to; at import time nothing
            # looks forward.
            assert ORDER.index(parts[1]) <= room or not is_at_top, (
                f"{path.name} imports {name}, which stands after it"
            )
        assert not (is_at_top and parts[0] in ("tensorflow", "tensorflow_text", "torch", "jax")), (
            f"{path.name} needs {name} to be imported"
        )
        if parts[0] in ("tensorflow", "torch", "jax"):
            allowed = _room(path) == "export" or path.name in (
                "drivers.py",
                "kernels.py",
                "machine.py",
                "checkpoint.py",
            )
            assert allowed, f"{path.name} must do with keras.ops, but imports {name}"


def test_backends_without_tensorflow():
    """`import kformer` on JAX and PyTorch works where TensorFlow is not installed."""
    code = (
        hiding("tensorflow", "tensorflow_text")
        + """
import kformer, kformer.export
kformer.Transformer(50, num_encoder_layers=1, num_decoder_layers=1, hidden_dim=8, intermediate_dim=8, num_heads=2)
assert "tensorflow" not in sys.modules
"""
    )
    for backend in ("jax", "torch"):
        run = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "KERAS_BACKEND": backend},
            cwd=PACKAGE.parent,
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0, run.stderr
