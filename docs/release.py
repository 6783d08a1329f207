"""`python -m docs.release`: makes wheel and sdist of the commit that is checked out, with a README
whose links are absolute, and says what would be uploaded. docs/release.md has the rest.
"""

import hashlib
import io
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


def with_absolute_links(text, repository, version):
    """Returns Markdown whose links and pictures lead to the tag of a version.

    Args:
        text: str.
        repository: str. Its address.
        version: str.
    """

    def absolute(match):
        kind = "raw" if match[1] else "blob"
        return f"{match[1]}[{match[2]}]({repository.rstrip('/')}/{kind}/v{version}/{match[3]})"

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
    text = with_absolute_links(readme.read_text(encoding="utf-8"), *links)
    readme.write_text(text, encoding="utf-8")
    shutil.rmtree(output, ignore_errors=True)
    _run("-m", "build", *options, "--outdir", output, root)
    files = sorted(output.iterdir())
    _run("-m", "twine", "check", "--strict", *files)
    return files


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
    for file in files:
        content = file.read_bytes()
        print(f"{file.name}: {len(content):,} bytes, SHA-256 {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    main()
