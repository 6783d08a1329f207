"""What the site needs beyond Sphinx: docstrings in Markdown, pages of the reference, formulas in
MathML, links from code to the reference, pages in two languages, and search in both.
"""

import inspect
import pathlib
import re
import types

from docstrings import to_rst
from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx import addnodes
from sphinx.environment.adapters.toctree import TocTree
from sphinx.search.en import SearchEnglish
from sphinx.transforms.post_transforms import SphinxPostTransform

import kformer

_API = pathlib.Path(__file__).parent / "api"
_FIRST_PAGES = {"en": "docs/index", "zh": "docs/zh/index"}
_CHINESE = {
    "Next": "下一页",
    "Previous": "上一页",
    "On this page": "本页内容",
    "Search": "搜索",
    "Back to top": "回到顶部",
    "Skip to content": "跳到正文",
}


def setup(app):
    """Registers the parts with Sphinx."""
    app.connect("builder-inited", write_api_pages)
    app.connect("autodoc-process-docstring", translate_docstring)
    app.connect("autodoc-process-signature", read_signature)
    app.connect("source-read", add_commands)
    app.connect("source-read", add_live_example)
    app.connect("source-read", join_chinese_lines)
    app.connect("html-page-context", set_language, priority=400)  # The theme reads what it sets.
    app.connect("html-page-context", mend_links_of_source)
    app.connect("build-finished", write_sitemap)
    app.add_search_language(Search)
    app.add_post_transform(LinkNames)
    app.add_html_math_renderer("mathml", (visit_math, depart_math), (visit_block, depart_math))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def translate_docstring(app, what, name, obj, options, lines):
    """Makes reStructuredText of a docstring's Markdown."""
    is_field = lines and lines[0].startswith("Alias for field number")
    lines[:] = [] if is_field else to_rst(lines)


def read_signature(app, what, name, obj, options, signature, returns):
    """Takes a class's signature from its constructor; Keras's layers hide it by their `__new__`."""
    if what != "class" or "__init__" not in vars(obj):
        return None
    found = vars(obj).get("__signature__") or inspect.signature(obj.__init__)
    values = [value for value in found.parameters.values() if value.name != "self"]
    return str(found.replace(parameters=values)), returns


def join_chinese_lines(app, docname, source):
    """Joins lines between Chinese characters, and before a link: a browser shows a space there."""
    if "/zh/" in docname and not docname.startswith("notebooks"):
        wide = r"(?<=[^\x00-\x7f])\n(?=[^\x00-\x7f])|(?<=[、。，；：])\n(?=\[)"
        source[0] = re.sub(wide, "", source[0])


def public_names(package):
    """The names of a package's `__all__` that are not packages with a page of their own."""
    if package == "kformer":
        return [name for name in kformer.__all__ if not _is_module(getattr(kformer, name))]
    return list(getattr(kformer, package).__all__)


def _is_module(value):
    return isinstance(value, types.ModuleType)


def _first_sentence(value):
    return " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())


def write_api_pages(app):
    """Writes a page for kformer and for each of its public packages."""
    _API.mkdir(exist_ok=True)
    packages = [
        "kformer",
        *(name for name in kformer.__all__ if _is_module(getattr(kformer, name))),
    ]
    top = {id(getattr(kformer, name)): name for name in public_names("kformer")}
    for package in packages:
        module = kformer if package == "kformer" else getattr(kformer, package)
        parts = [f"# {module.__name__}", _first_sentence(module), "```{eval-rst}"]
        for name in public_names(package):
            full, value = f"{module.__name__}.{name}", getattr(module, name)
            alias = None if package == "kformer" else top.get(id(value))
            parts += [_directive(full, value, alias), ""]
        text = "\n\n".join(parts) + "\n```\n"
        path = _API / f"{module.__name__}.md"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _directive(full, value, alias):
    if alias:
        return f".. py:class:: {full}\n\n   The same as :py:obj:`kformer.{alias}`."
    if _is_module(value):
        return f".. automodule:: {value.__name__}\n   :members:"
    if inspect.isclass(value):
        return f".. autoclass:: {full}\n   :members:"
    if callable(value):
        return f".. autofunction:: {full}"
    keys = ", ".join(f"``{key}``" for key in value)
    return f".. py:data:: {full}\n   :type: {type(value).__name__}\n\n   {keys}"


def add_commands(app, docname, source):
    """Writes the commands with all their options in place of a comment."""
    mark = "<!-- commands -->"
    if mark in source[0]:
        source[0] = source[0].replace(mark, "\n".join(_command_lines("kformer", _commands())))


def add_live_example(app, docname, source):
    """Shows what a comment says of the live example, if the site has one."""
    shown = r"\1" if (pathlib.Path(app.outdir) / "live").exists() else ""
    source[0] = re.sub(r"<!-- live example: (.*?) -->", shown, source[0], flags=re.DOTALL)


def _commands():
    import typer

    from kformer_cli.app import app

    return typer.main.get_command(app)


def _command_lines(name, command):
    """The page's lines about a command, or about each command of a group."""
    if hasattr(command, "commands"):
        for part, inner in command.commands.items():
            yield from _command_lines(f"{name} {part}", inner)
        return
    yield from (f"## {name}", "", _escaped(command.help or ""), "")
    panels = {}
    for option in command.params:
        if option.name != "help":
            panels.setdefault(getattr(option, "rich_help_panel", None), []).append(option)
    for panel, options in panels.items():
        yield from ("", f"**{panel}**" if panel else "", "", "| | |", "|---|---|")
        for option in options:
            names = ", ".join(f"`{text}`" for text in (*option.opts, *option.secondary_opts))
            if option.param_type_name == "argument":
                names = f"`{option.metavar or option.name.upper()}`"
            elif option.metavar:
                names += f" {_escaped(option.metavar)}"
            needed = " *Required.*" if option.required else ""
            yield f"| {names} | {_escaped(' '.join((option.help or '').split()))}{needed} |"


def _escaped(text):
    """Help as Markdown: without Rich's markup, and without characters that a table reads."""
    return re.sub(r"\[/?bold\]", "", text).replace("|", r"\|").replace("<", r"\<")


class LinkNames(SphinxPostTransform):
    """Makes links of code that is a public name, such as `kformer.Translator`."""

    default_priority = 5

    def run(self, **kwargs):
        objects = self.env.get_domain("py").objects
        for literal in list(self.document.findall(nodes.literal)):
            name = re.sub(r"\(.*\)$", "", literal.astext(), flags=re.DOTALL)
            if "." not in name or name not in objects or _is_linked(literal):
                continue
            target = objects[name]
            uri = self.app.builder.get_relative_uri(self.env.docname, target.docname)
            link = nodes.reference("", "", internal=True, refuri=f"{uri}#{target.node_id}")
            literal.replace_self(link)
            link += literal


def _is_linked(node):
    while node.parent is not None:
        node = node.parent
        if isinstance(node, nodes.reference | nodes.title):
            return True
    return False


def language_of(page):
    """The language of a page, by its path."""
    return "zh" if "/zh/" in page else "en"


def translation_of(page, pages):
    """The same page in the other language, or `None`."""
    folder, _, name = page.rpartition("/")
    other = folder.removesuffix("/zh") if language_of(page) == "zh" else f"{folder}/zh"
    return f"{other}/{name}" if f"{other}/{name}" in pages else None


def set_language(app, pagename, templatename, context, doctree):
    """Gives a page its language, the pages of its language beside it, and a link to the other."""
    language = language_of(pagename)
    other = {"en": "zh", "zh": "en"}[language]
    translation = translation_of(pagename, app.env.found_docs)
    context["first_page"] = context["master_doc"] = _FIRST_PAGES[language]
    context["html_baseurl"] = app.config.html_baseurl  # Sphinx's templates have no settings.
    context["switch"] = (other, translation or _FIRST_PAGES[other])
    context["translations"] = {language: pagename, other: translation} if translation else {}
    context["toctree"] = lambda **options: sidebar(app, pagename, options)
    if pagename in _FIRST_PAGES.values():
        context["prev"] = None
    if context.get("next") and context["next"]["link"].endswith("/zh/index.html"):
        context["next"] = None
    if language == "zh":
        context["language"] = "zh-CN"
        context["_"] = context["gettext"] = lambda text: _CHINESE.get(text.strip(), text)


def sidebar(app, pagename, options):
    """The pages of the language of a page, as HTML."""
    first = app.env.get_doctree(_FIRST_PAGES[language_of(pagename)])
    trees = [
        TocTree(app.env).resolve(pagename, app.builder, tree, **options)
        for tree in first.findall(addnodes.toctree)
        if tree["includefiles"] != [_FIRST_PAGES["zh"]]
    ]
    return "".join(app.builder.render_partial(tree)["fragment"] for tree in trees)


def mend_links_of_source(app, pagename, templatename, context, doctree):
    """Mends the links of a page of source: Sphinx looks for all its names in one package."""
    if not pagename.startswith("_modules/kformer/"):
        return
    objects = app.env.get_domain("py").objects
    module = pagename.removeprefix("_modules/").replace("/", ".")

    def mended(link):
        start, package, name = link.groups()
        names = [
            name,
            f"{package}.{name.removeprefix('kformer.')}",
            f"{module}.{name.split('.')[-1]}",
        ]
        return f'{start}{next(name for name in names if name in objects)}"'

    pattern = r'(class="viewcode-back" href="[^"#]*/(kformer[\w.]*)\.html#)([\w.]+)"'
    context["body"] = re.sub(pattern, mended, context["body"])


def write_sitemap(app, exception):
    """Lists the pages for search engines, if the site has an address."""
    if app.config.html_baseurl and not exception:
        pages = [f"{app.config.html_baseurl}{page}.html" for page in sorted(app.env.found_docs)]
        path = pathlib.Path(app.outdir, "sitemap.xml")
        urls = "".join(f"<url><loc>{page}</loc></url>\n" for page in pages)
        text = f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{urls}</urlset>\n'
        path.write_text(text, encoding="utf-8")


class Search(SearchEnglish):
    """English words, and all pairs of neighbours in Chinese text, which has no spaces."""

    lang = "chinese-and-english"
    js_splitter_code = r"""
var splitQuery = (query) =>
  [...query.matchAll(/[\u4e00-\u9fff]+|[\p{Letter}\p{Number}_]+/gu)].flatMap(([word]) =>
    /[\u4e00-\u9fff]./u.test(word)
      ? [...word].slice(1).map((sign, index) => word[index] + sign)
      : [word]);
"""

    def split(self, text):
        words = re.findall(r"[\u4e00-\u9fff]+|[^\W\u4e00-\u9fff]+", text)
        return [part for word in words for part in _pairs(word)]


def _pairs(word):
    if not "\u4e00" <= word[0] <= "\u9fff":
        return [word]
    return [*word, *(word[index : index + 2] for index in range(len(word) - 1))]


def visit_math(self, node):
    """Writes a formula within a line."""
    self.body.append(latex2mathml.tex2mathml(node.astext()))
    raise nodes.SkipNode


def visit_block(self, node):
    """Writes a formula in a line of its own."""
    self.body.append(f"<div>{latex2mathml.tex2mathml(node.astext(), as_block=True)}</div>")
    raise nodes.SkipNode


def depart_math(self, node):
    """Does nothing: `visit_math` and `visit_block` write all."""
