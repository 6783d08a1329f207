"""Public names."""

import pathlib
import tomllib
from inspect import ismodule

import pytest

import kformer
from tests import public_api

ROOT = pathlib.Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.any_backend


@pytest.mark.parametrize(
    "package", [each for each in map(kformer.__dict__.get, kformer.__all__) if ismodule(each)]
)
def test_public_names_exist(package):
    """`import kformer` alone makes every package and every name of its `__all__` available."""
    assert all(hasattr(package, name) for name in package.__all__)


def test_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == kformer.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {kformer.__version__}\n" in citation


def test_the_interface_is_the_one_that_is_promised():
    """`python -m tests.public_api` writes what changed on purpose (docs/stability.md)."""
    promised = public_api.FILE.read_text(encoding="utf-8").splitlines()
    remedy = "where that is meant, run `python -m tests.public_api` and commit its file"
    assert public_api.text().splitlines() == promised, remedy
