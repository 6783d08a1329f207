"""`python -m docs.release PYTHON ...`: makes wheel and sdist of the commit that is checked out,
with a README for a package index, tries the wheel in environments of these interpreters, and says
what would be uploaded. docs/release.md has the rest.
"""

import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
URLS = ("Repository", "Documentation")


def mistakes(root):
    """Returns what keeps a source tree from being released: a list of sentences.

    Args:
        root: `pathlib.Path`.
    """

    def text(name):
        return (root / name).read_text(encoding="utf-8")

    project = tomllib.loads(text("pyproject.toml"))["project"]
    version, urls = project["version"], project.get("urls", {})
    found = []
    if "dev" in version:
        found.append(f"The version is {version}: a release has no .dev.")
    for name, line in (
        ("kformer/__init__.py", f'^__version__ = "{re.escape(version)}"$'),
        ("CITATION.cff", f"^version: {re.escape(version)}$"),
        ("CHANGELOG.md", rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$"),
    ):
        if not re.search(line, text(name), re.MULTILINE):
            found.append(f"{name} lacks the version {version} of pyproject.toml.")
    missing = [name for name in URLS if not urls.get(name)]
    if missing:
        found.append(f"[project.urls] in pyproject.toml lacks {' and '.join(missing)}.")
    return found


def for_index(text, repository, version):
    """Returns a README for a package index: it installs the package of the index, and its links and
    pictures lead to the tag of the version.

    Args:
        text: str. The README of the repository.
        repository: str. Its address.
        version: str.
    """

    def absolute(match):
        kind = "raw" if match[1] else "blob"
        return f"{match[1]}[{match[2]}]({repository.rstrip('/')}/{kind}/v{version}/{match[3]})"

    text = text.replace("In a copy of this repository, install", "Install")
    text = re.sub(r'(?<!-e )"\.\[(?!docs)', '"kformer[', text)
    return re.sub(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)", absolute, text)


def make(root, output, *options):
    """Builds and checks the files of a release.

    Args:
        root: `pathlib.Path`. A source tree, whose README is changed.
        output: `pathlib.Path`. The folder for the files.
        *options: str. Further options of `python -m build`.

    Returns:
        List of `pathlib.Path`.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    readme = root / "README.md"
    links = project["urls"]["Repository"], project["version"]
    text = for_index(readme.read_text(encoding="utf-8"), *links)
    readme.write_text(text, encoding="utf-8")
    shutil.rmtree(output, ignore_errors=True)
    _run("-m", "build", *options, "--outdir", output, root)
    files = sorted(output.iterdir())
    _run("-m", "twine", "check", "--strict", *files)
    return files


def check_installed(wheel, python):
    """Installs a wheel with JAX, which has builds for every Python, and translates with it.

    Args:
        wheel: `pathlib.Path`.
        python: str. An interpreter.

    Raises:
        subprocess.CalledProcessError: a command fails.
        ValueError: the frozen run translates otherwise.
    """
    run = ROOT / "tests" / "frozen_run"
    expected = json.loads((run / "expected.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", "venv"], cwd=folder, check=True)
        scripts = pathlib.Path(folder, "venv", "Scripts" if os.name == "nt" else "bin")
        install = [
            scripts / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-compile",
            f"{wheel}[jax]",
        ]
        subprocess.run(install, cwd=folder, check=True)
        translated = subprocess.run(
            [scripts / "kformer", "translate", run, "--backend", "jax"],
            input="".join(f"{text}\n" for text in expected["texts"]),
            cwd=folder,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            stdout=subprocess.PIPE,
            encoding="utf-8",
            check=True,
        )
    if translated.stdout.splitlines() != expected["beam_4"]:
        raise ValueError(f"On {python} the frozen run translates otherwise: {translated.stdout}")


def _run(*arguments):
    subprocess.run([sys.executable, *map(str, arguments)], check=True)


def _git(*arguments):
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True).stdout


def main():
    found = mistakes(ROOT)
    if _git("status", "--porcelain"):
        found.append("There are changes that are not committed.")
    if found:
        sys.exit("\n".join(["No release:", *(f"- {sentence}" for sentence in found)]))
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(_git("archive", "HEAD"))) as archive:
            archive.extractall(folder, filter="data")
        files = make(pathlib.Path(folder), ROOT / "dist")
    for python in sys.argv[1:]:
        check_installed(next(file for file in files if file.suffix == ".whl"), python)
        print(f"The wheel works on {python}.")
    for file in files:
        content = file.read_bytes()
        print(f"{file.name}: {len(content):,} bytes, SHA-256 {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    main()
