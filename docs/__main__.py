"""`python -m docs`: builds the documentation site in docs/_build/html; a warning is an error."""

import importlib.util
import os
import pathlib
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SITE = ROOT / "docs" / "_build" / "html"


def write_live_example(folder):
    """Writes the frozen run as a page that translates, to which the guide links.

    Without npm, which has the runtime, it prints why there is none.

    Args:
        folder: `pathlib.Path`, which is replaced.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import kformer
    from kformer.export.web import export_web

    shutil.rmtree(folder, ignore_errors=True)
    try:
        export_web(kformer.Translator.load(ROOT / "tests" / "frozen_run"), folder)
    except (ImportError, ValueError) as error:
        print(f"The site has no live example. {error}")


if __name__ == "__main__":
    if importlib.util.find_spec("sphinx") is None:
        sys.exit('The site needs Sphinx: run `pip install -e ".[docs]"`.')
    from sphinx.cmd.build import main

    write_live_example(SITE / "live")
    arguments = sys.argv[1:] or ["--builder", "html", "--jobs", "auto", "--quiet", "--fresh-env"]
    failed = main(
        [*arguments, "--fail-on-warning", "--keep-going", "-c", str(ROOT / "docs")]
        + [str(ROOT), str(SITE)]
    )
    if not failed:
        print(f"The site is at {SITE / 'docs' / 'index.html'}")
    sys.exit(failed)
