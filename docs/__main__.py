"""`python -m docs`: builds the documentation site in docs/_build/html; a warning is an error."""

import importlib.util
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SITE = ROOT / "docs" / "_build" / "html"

if __name__ == "__main__":
    if importlib.util.find_spec("sphinx") is None:
        sys.exit('The site needs Sphinx: run `pip install -e ".[docs]"`.')
    from sphinx.cmd.build import main

    arguments = sys.argv[1:] or ["--builder", "html", "--jobs", "auto", "--quiet", "--fresh-env"]
    failed = main(
        [*arguments, "--fail-on-warning", "--keep-going", "-c", str(ROOT / "docs")]
        + [str(ROOT), str(SITE)]
    )
    if not failed:
        print(f"The site is at {SITE / 'docs' / 'index.html'}")
    sys.exit(failed)
