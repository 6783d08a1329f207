"""The distributions: the sdist is complete, and the wheel works without the repository."""

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Of the repository, what no distribution has.
_LEFT_OUT = shutil.ignore_patterns(
    ".git",
    ".venv",
    "venv",
    "runs",
    "dist",
    "build",
    "_build",
    "*.egg-info",
    "__pycache__",
    ".*_cache",
)
SOME_TESTS = ("tests/test_public_names.py", "tests/utils/test_checks.py")

pytestmark = pytest.mark.any_backend


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """A folder with the sdist, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("distributions")
    shutil.copytree(ROOT, folder / "source", ignore=_LEFT_OUT)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder)]
    run = subprocess.run([*command, str(folder / "source")], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    return folder


@pytest.mark.heavy
def test_the_sdist_has_everything_that_its_tests_need(distributions, tmp_path):
    (path,) = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    wanted = {
        file.relative_to(distributions / "source")
        for name in (
            "kformer",
            "kformer_cli",
            "kformer_options",
            "tests",
            "benchmarks",
            "docs",
            "notebooks",
        )
        for file in (distributions / "source" / name).rglob("*")
        if file.is_file()
    }
    wanted |= {pathlib.Path(name) for name in ("CHANGELOG.md", "LICENSE", "README.md", ".ci/run")}
    wanted |= {file.relative_to(ROOT) for file in (ROOT / "saved_models/frozen").rglob("*.pb")}
    missing = [str(name) for name in sorted(wanted) if not (source / name).is_file()]
    assert not missing
    # The variables of `python -m tests` choose among tests.
    environment = {name: value for name, value in os.environ.items() if "KFORMER" not in name}
    # Some of its own tests, by which code that is not the repository's is found.
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *SOME_TESTS],
        cwd=source,
        env={**environment, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-3000:]


@pytest.mark.heavy
def test_the_wheel_translates_without_the_repository(distributions, tmp_path):
    (path,) = distributions.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
        (about,) = [name for name in names if name.endswith("METADATA")]
        metadata = archive.read(about).decode()
    assert {"kformer/py.typed", "kformer_cli/py.typed", "kformer_options/py.typed"} <= set(names)
    assert "kformer/documents/abbreviations.ini" in names
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "docs"))]
    for line in (
        "Requires-Python: >=3.11",
        "License-Expression: Apache-2.0",
        "Classifier: Typing :: Typed",
        'Requires-Dist: torch>=2.6; extra == "torch"',
    ):
        assert line in metadata
    shutil.copytree(ROOT / "tests" / "frozen_run", tmp_path / "run")
    code = "import kformer, sys; print(kformer.__file__); from kformer_cli.main import main; "
    code += "sys.exit(main(['translate', 'run', '--beam-size', '1']))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        input="noon\n",
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site"), "KERAS_BACKEND": "torch"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [str(tmp_path / "site/kformer/__init__.py"), "中午十二点"]
