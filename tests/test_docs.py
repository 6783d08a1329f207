"""The pages of docs/: their Python runs, their commands parse, their links lead somewhere; and the
site that `python -m docs` built has every public name and asks no other host.
"""

import html
import json
import pathlib
import re
import shlex
import shutil
import sys
import types
import urllib.parse

import nbformat
import pytest
import typer

import kformer
from kformer_cli.app import app
from kformer_cli.main import describe
from tests.prepared import add_what_is_mentioned, prepare

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SITE = DOCS / "_build" / "html"
GENERATED = {DOCS / "api", DOCS / "_build"}
PAGES = sorted(
    path for path in DOCS.rglob("*.md") if not GENERATED & set(path.parents)
)  # Without those that the build writes.
OTHERS = [ROOT / name for name in ("README.md", "README.zh.md", "CONTRIBUTING.md", "CHANGELOG.md")]
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))
ADDRESS = "https://example.org/kformer"
MODEL_PAGES = ("transformer", "language_model", "encoder", "forecaster")


def text_of(path):
    """The Markdown of a page or of a notebook."""
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8")
    cells = nbformat.read(path, as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def blocks(path, language):
    return re.findall(rf"```{language}\n(.*?)```", text_of(path), re.DOTALL)


def name_of(path):
    return path.relative_to(ROOT).as_posix()


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """A folder with a trained run, its SavedModel, and text."""
    return prepare(tmp_path_factory.mktemp("docs"))


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: name_of(page)
)
def test_the_python_of_a_page_runs(page, prepared, tmp_path, monkeypatch):
    code = "\n".join(blocks(page, "python"))
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    add_what_is_mentioned(code, tmp_path)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(code, str(page), "exec"), names)
    if page.stem in MODEL_PAGES and page.parent == DOCS:
        assert list(tmp_path.glob("*.keras"))
        assert (names["path"] / "saved_model.pb").is_file()


def commands():
    """Every line of a block of shell that runs `kformer`, with the page that has it."""
    for path in (*PAGES, *OTHERS):
        for block in blocks(path, "bash"):
            for line in block.replace("\\\n", " ").splitlines():
                if "kformer " not in line:
                    continue
                words = shlex.split(line.split(" <")[0].split(" && ")[-1], comments=True)
                while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    words.pop(0)
                if words[:1] == ["kformer"] and "--version" not in words:
                    yield pytest.param(words[1:], id=f"{name_of(path)}: {' '.join(words)[:60]}")


@pytest.mark.any_backend
@pytest.mark.parametrize("words", list(commands()))
def test_a_command_of_a_page_parses(words):
    import typer

    from kformer_cli.app import app

    command, arguments = typer.main.get_command(app), list(words)
    try:
        while hasattr(command, "commands"):
            command = command.commands[arguments.pop(0)]
        command.make_context("kformer", arguments)
    except Exception as error:
        pytest.fail(describe(error)[0])


def slug(heading):
    """The anchor of a heading, as GitHub makes it."""
    text = re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(path):
    text = re.sub(r"```.*?```", "", text_of(path), flags=re.DOTALL)
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def links(path):
    """The targets of the links and pictures of a page that are not of another host."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", text_of(path), flags=re.DOTALL)
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    return [urllib.parse.unquote(link) for link in found if not re.match(r"\w+:", link)]


@pytest.mark.any_backend
@pytest.mark.parametrize("path", [*OTHERS, *PAGES, *NOTEBOOKS], ids=name_of)
def test_links_lead_somewhere(path):
    for link in links(path):
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.any_backend
def test_a_wrong_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A `b` (c)\n[x](y.md#z), `[code](no)`, ![p](https://host/p.png)\n", "utf-8")
    assert links(page) == ["y.md#z"]
    assert anchors(page) == {"a-b-c"}


@pytest.mark.any_backend
def test_each_notebook_is_in_the_tutorials():
    tutorials = text_of(DOCS / "tutorials.md") + text_of(DOCS / "zh" / "tutorials.md")
    for notebook in NOTEBOOKS:
        assert f"notebooks/{notebook.relative_to(ROOT / 'notebooks').as_posix()}" in tutorials


def built(name):
    if not (SITE / name).exists():
        pytest.skip("the site is not built: pip install '.[docs]' && python -m docs")
    return SITE / name


@pytest.mark.any_backend
def test_the_page_of_the_command_line_lists_every_command():
    listed = re.findall(r"^\| `kformer (\w+)` \|", text_of(DOCS / "command-line.md"), re.MULTILINE)
    assert sorted(listed) == sorted(typer.main.get_command(app).commands)


@pytest.mark.any_backend
def test_the_site_has_every_public_name():
    inventory = pytest.importorskip("sphinx.util.inventory").InventoryFile
    with open(built("objects.inv"), "rb") as file:
        objects = inventory.load(file, "", lambda base, uri: uri)
    listed = {name for kind, names in objects.items() if kind.startswith("py:") for name in names}
    public = {f"kformer.{name}" for name in kformer.__all__}
    for name in kformer.__all__:
        package = getattr(kformer, name)
        if isinstance(package, types.ModuleType):
            public.remove(f"kformer.{name}")
            public |= {f"kformer.{name}.{part}" for part in package.__all__}
    assert public - listed == set()
    assert len(public) > 100


@pytest.mark.any_backend
def test_the_site_asks_no_other_host():
    built("docs/index.html")
    loads = re.compile(
        r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(?:https?:)?//[^\"]*"
        r"|<link\b(?![^>]*rel=\"(?:canonical|license)\")[^>]*\bhref=\"(?:https?:)?//[^\"]*"
        r"|@import[^;]*//|url\([\"']?(?:https?:)?//[^)]*"
    )
    pages = [*SITE.rglob("*.html"), *SITE.rglob("*.css")]
    found = {
        (page.name, match[0][:100])
        for page in pages
        for match in loads.finditer(page.read_text(encoding="utf-8"))
    }
    assert found == set()


@pytest.mark.any_backend
def test_no_link_of_the_site_is_dead():
    built("docs/index.html")
    texts = {page.resolve(): page.read_text(encoding="utf-8") for page in SITE.rglob("*.html")}
    texts.pop(SITE.resolve() / "404.html")  # Its links begin at the site's address.
    names = {page: set(re.findall(r' (?:id|name)="([^"]*)"', text)) for page, text in texts.items()}
    dead = []
    for page, text in texts.items():
        for link in set(re.findall(r'<[^>]* (?:href|src)="(?!\w+:|//)([^"]*)"', text)):
            address = urllib.parse.urlsplit(html.unescape(link))
            file = (page.parent / urllib.parse.unquote(address.path)).resolve()
            target = file if address.path else page
            anchor = urllib.parse.unquote(address.fragment)
            is_there = anchor in names[target] if anchor and target in names else target.exists()
            if not is_there:
                dead.append((page.name, link))
    assert dead == []


@pytest.mark.any_backend
@pytest.mark.parametrize(("page", "link"), [("browser", "../live"), ("zh/browser", "../../live")])
def test_the_guide_links_to_the_live_example_if_there_is_one(page, link):
    text = built(f"docs/{page}.html").read_text(encoding="utf-8")
    assert (f'href="{link}/index.html"' in text) == (SITE / "live").exists()
    assert "live example:" not in text


@pytest.mark.any_backend
def test_a_page_of_the_site_is_in_one_language():
    english, chinese = (
        built(f"docs/{name}.html").read_text(encoding="utf-8") for name in ("start", "zh/start")
    )
    assert '<html class="no-js" lang="en"' in english
    assert '<html class="no-js" lang="zh-CN"' in chinese
    assert re.search(r'hreflang="zh" href="zh/start.html"', english)
    assert re.search(r'hreflang="en" href="../start.html"', chinese)
    for name in ("search", "genindex"):
        text = (SITE / f"{name}.html").read_text(encoding="utf-8")
        assert 'hreflang="zh" href="docs/zh/index.html"' in text
    for text, other in ((english, "教程"), (chinese, "Tutorials")):
        assert other not in re.search(r'<div class="sidebar-tree">.*?</aside>', text, re.S)[0]


@pytest.mark.any_backend
def test_a_site_with_an_address_links_its_languages(tmp_path, monkeypatch):
    """A site of a few pages, by the settings of the whole one."""
    application = pytest.importorskip("sphinx.application").Sphinx
    for name in ("index", "start", "faq", "zh/index", "zh/start"):
        page = tmp_path / "docs" / f"{name}.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        tree = "\n```{toctree}\n:glob:\n*\n```\n" if page.stem == "index" else ""
        page.write_text(f"# {name}\n{tree}", encoding="utf-8")
    lines = [f"Documentation, {ADDRESS}", f"Repository, {ADDRESS}/source"]
    about = types.SimpleNamespace(get_all=lambda name: lines)
    monkeypatch.setattr("importlib.metadata.metadata", lambda name: about)
    monkeypatch.setattr(sys, "path", [*sys.path])
    site = tmp_path / "site"
    app = application(
        tmp_path,
        DOCS,
        site,
        tmp_path / "trees",
        "html",
        status=None,
        warning=None,
    )
    app.build()

    both = {f"{ADDRESS}/docs/start.html", f"{ADDRESS}/docs/zh/start.html"}
    for name in ("start", "zh/start"):
        text = (site / f"docs/{name}.html").read_text(encoding="utf-8")
        assert f'<link rel="canonical" href="{ADDRESS}/docs/{name}.html"' in text
        for language, page in (("en", "start"), ("zh", "zh/start")):
            assert f'hreflang="{language}" href="{ADDRESS}/docs/{page}.html"' in text
    assert "alternate" not in (site / "docs/faq.html").read_text(encoding="utf-8")
    assert f'<base href="{ADDRESS}/">' in (site / "404.html").read_text(encoding="utf-8")
    listed = re.findall("<loc>(.*)</loc>", (site / "sitemap.xml").read_text(encoding="utf-8"))
    assert both < set(listed) and len(listed) == 5


@pytest.mark.any_backend
@pytest.mark.parametrize("word", ["安装", "语料", "束搜", "搜索", "beam"])
def test_the_search_of_the_site_knows_a_word(word):
    index = built("searchindex.js").read_text(encoding="utf-8")
    terms = json.loads(index[len("Search.setIndex(") : -1])["terms"]
    assert word in terms


@pytest.mark.any_backend
def test_docstrings_become_restructuredtext(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    from docstrings import to_rst

    monkeypatch.delitem(sys.modules, "docstrings")
    markdown = [
        "Text with `code`s and *args.",
        "",
        "    a  b",
        "Args:",
        "    one, **two: int. What",
        "        goes on.",
        "",
        "Example:",
        "```python",
        "x = 1",
        "```",
        "| a | b |",
        "|---|---|",
        "| 1 | 2 |",
    ]
    text = "\n".join(line for line in to_rst(markdown) if line)
    assert text == "\n".join(
        [
            r"Text with ``code``\ s and \*args.",
            "::",
            "   a  b",
            ".. rubric:: Args",
            "``one, **two``",
            "   int. What",
            "   goes on.",
            ".. rubric:: Example",
            ".. code-block:: python",
            "   x = 1",
            ".. list-table::",
            "   :header-rows: 1",
            "   * - a",
            "     - b",
            "   * - 1",
            "     - 2",
        ]
    )
