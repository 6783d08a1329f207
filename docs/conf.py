"""Settings of the documentation site. `python -m docs` builds it.

The source folder is the whole repository, so that a link between two pages, notebooks or files is
the same on the site and where the repository is read.
"""

import importlib.metadata
import os
import pathlib
import sys
import warnings

# The reference is read from the docstrings of the imported package; any backend will do.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parent.parent)]
warnings.filterwarnings("ignore", category=DeprecationWarning)

import kformer  # noqa: E402

project = "kformer"
author = "the authors of kformer"
copyright = "the authors of kformer, Apache 2.0"
version = release = kformer.__version__
language = "en"
smartquotes = False  # They would make a dash of the `--` of an option.

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "site_extension",
]

root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "notebooks/**",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
]
exclude_patterns = [
    ".*",
    "**/.*",
    "docs/_build",
    "build",
    "runs",
    "tests",
    "kformer",
    "**/README.md",
    "notebooks/source",
]

# Docstrings are in Markdown, which `site_extension` translates.
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
python_maximum_signature_line_length = 80
add_module_names = False
toc_object_entries_show_parents = "hide"

# Notebooks are shown with the outputs that they are committed with.
nb_execution_mode = "off"
nb_merge_streams = True
nb_output_stderr = "remove"
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 4
suppress_warnings = ["mystnb.unknown_mime_type"]

html_theme = "furo"
# Links between languages and the site's map need its address, which the package names.
addresses = importlib.metadata.metadata(project).get_all("Project-URL") or []
html_baseurl = dict(line.split(", ") for line in addresses).get("Documentation", "")
html_baseurl = html_baseurl and html_baseurl.rstrip("/") + "/"
html_title = f"kformer {release}"
html_static_path = ["_static"]
html_search_language = "chinese-and-english"
templates_path = ["_templates"]
html_additional_pages = {"index": "index.html", "404": "404.html"}
html_css_files = ["kformer.css"]
html_show_sphinx = False
html_copy_source = False
html_math_renderer = "mathml"
html_theme_options = {"navigation_with_keys": True}
