"""The distributions: the sdist is complete, and the wheel works without the repository."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

import kformer
from docs import release

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
ADDRESS = "https://example.org/kformer"
SOME_TESTS = ("tests/test_public_names.py", "tests/utils/test_checks.py")

pytestmark = pytest.mark.any_backend


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """A folder with the sdist, and the wheel that is built from it, as a release has them."""
    folder = tmp_path_factory.mktemp("distributions")
    shutil.copytree(ROOT, folder / "source", ignore=_LEFT_OUT)
    project = folder / "source" / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    urls = "".join(f'{name} = "{ADDRESS}"\n' for name in release.URLS)
    project.write_text(text.replace("[project.urls]\n", f"[project.urls]\n{urls}"), "utf-8")
    assert release.mistakes(folder / "source") == []
    release.make(folder / "source", folder / "dist", "--no-isolation")
    return folder


def test_a_release_is_refused_with_all_reasons(tmp_path):
    shutil.copytree(ROOT / "kformer", tmp_path / "kformer", ignore=shutil.ignore_patterns("*"))
    for name in ("pyproject.toml", "kformer/__init__.py", "CITATION.cff", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    project = tmp_path / "pyproject.toml"
    version, text = kformer.__version__, project.read_text(encoding="utf-8")
    without = text.replace("Repository =", "Other =").replace("Documentation =", "Another =")
    project.write_text(without.replace(f'"{version}"', '"7.0.dev1"'), encoding="utf-8")
    reasons = release.mistakes(tmp_path)
    assert len(reasons) == 5 and "lacks Repository and Documentation" in reasons[-1]


def test_the_readme_of_an_index_leads_to_the_index_and_to_the_tag():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    absolute = release.for_index(text, f"{ADDRESS}/", "1.0.0")
    links = re.findall(r"\]\(([^)\s]+)\)", absolute)
    assert len(links) > 40 and all(link.startswith("https://") for link in links)
    assert 'pip install "kformer[tensorflow]" && kformer quickstart' in absolute
    assert set(re.findall(r'"\.\[\w+', absolute)) == {'".[test', '".[docs'}
    for link in links:
        path = link.removeprefix(f"{ADDRESS}/").partition("/v1.0.0/")[2]
        assert "example" not in link or (ROOT / path.partition("#")[0]).exists()


@pytest.mark.slow
def test_the_sdist_has_everything_that_its_tests_need(distributions, tmp_path):
    (path,) = distributions.glob("dist/*.tar.gz")
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
    wanted |= {file.relative_to(ROOT) for file in ROOT.glob("saved_models/frozen*/1/*.pb")}
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
    (path,) = distributions.glob("dist/*.whl")
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
        f"Project-URL: Documentation, {ADDRESS}",
        f"({ADDRESS}/blob/v{kformer.__version__}/docs/start.md)",
        f"({ADDRESS}/raw/v{kformer.__version__}/docs/images/attention.png)",
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
