"""Builds the notebooks, in English and in Chinese, with their outputs.

python notebooks/build.py                    runs every source in both languages
python notebooks/build.py positions          one of them
python notebooks/build.py --texts            runs nothing; writes new texts beside the old outputs
python notebooks/build.py --check            runs nothing; says which notebooks are not up to date

A source is notebooks/source/NAME.py in Jupytext's percent format: code cells, and text cells in
pairs, `# %% [markdown] lang="en"` before `# %% [markdown] lang="zh"`. Both notebooks have the same
code, but for the texts in it that source/chinese.toml translates: what is printed, and the labels
of pictures.
"""

import argparse
import base64
import copy
import hashlib
import io
import os
import pathlib
import re
import sys
import tempfile
import tomllib

import jupytext
import nbformat

FOLDER = pathlib.Path(__file__).resolve().parent
LANGUAGES = {"en": FOLDER, "zh": FOLDER / "zh"}
SWITCH = {"en": "[中文](zh/{}.ipynb)", "zh": "[English](../{}.ipynb)"}
CAPTION = {"en": "*Figure ", "zh": "*图 "}
# Committed outputs are those of one backend; every backend runs the code. With one thread sums have
# one order, whatever the machine.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "KERAS_BACKEND": "torch",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "PYTHONHASHSEED": "0",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
LANGUAGE_INFO = {
    "codemirror_mode": {"name": "ipython", "version": 3},
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "nbconvert_exporter": "python",
    "pygments_lexer": "ipython3",
}
# Pictures are as sharp on a screen with two pixels for each; their size on the page stays.
KERNEL_OPTIONS = ["--InlineBackend.figure_formats={'retina'}"]
FONTS = 'plt.rcParams["font.family"] = kformer.plots.font_families(["中文"])'
# Chinese has no spaces between words, so a line that ends within a paragraph leaves none.
_WIDE = "[\u2018-\u201d\u2026\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]"
_BREAK = re.compile(f"(?<={_WIDE})\n *(?={_WIDE})")
_NATIVE_LOG = re.compile(r"[IW]0000 00:00:|WARNING: All log messages before absl::")


def names():
    """Returns the names of all notebooks."""
    return sorted(path.stem for path in (FOLDER / "source").glob("*.py"))


def read_source(name):
    """Reads a source.

    Returns:
        List of cells: (language, text) pairs, the language of code being "code".

    Raises:
        ValueError: a text lacks its other language.
    """
    cells = [
        (cell.metadata.get("lang") if cell.cell_type == "markdown" else "code", cell.source)
        for cell in jupytext.read(FOLDER / "source" / f"{name}.py", fmt="py:percent").cells
    ]
    texts = [language for language, _ in cells if language != "code"]
    beside = [pair for pair in zip(cells, cells[1:], strict=False) if pair[0][0] == "en"]
    if texts != ["en", "zh"] * (len(texts) // 2) or any(after[0] != "zh" for _, after in beside):
        raise ValueError(f"{name}: each English text cell is followed by its Chinese one.")
    return cells


def read_notebook(name, language):
    """Reads a committed notebook."""
    return nbformat.read(LANGUAGES[language] / f"{name}.ipynb", as_version=4)


def in_chinese(code, name):
    """Translates the texts in a code cell, longest first."""
    path = FOLDER / "source" / "chinese.toml"
    tables = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    texts = tables.get("all", {}) | tables.get(name, {})
    for text in sorted(texts, key=len, reverse=True):
        code = code.replace(text, texts[text])
    return code


def empty_notebook(name, language, cells):
    """Makes a notebook of one language without outputs."""
    notebook = nbformat.v4.new_notebook()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "kformer": {"code_sha256": digest(cells), "language": language},
        "language_info": LANGUAGE_INFO,
    }
    for kind, text in cells:
        if kind == "code":
            if language == "zh":
                text = in_chinese(text, name)
                if "import kformer" in text and "plt" in text:
                    text = f"{text}\n{FONTS}  # 图里的中文"
            cell = nbformat.v4.new_code_cell(text)
        elif kind == language:
            if not notebook.cells:
                title, _, rest = text.partition("\n")
                text = f"{title}\n\n{SWITCH[language].format(name)}\n{rest}"
            cell = nbformat.v4.new_markdown_cell(_BREAK.sub("", text))
        else:
            continue
        cell.id = f"cell-{len(notebook.cells) + 1}"
        notebook.cells.append(cell)
    return notebook


def digest(cells):
    """Returns a digest of the code."""
    code = "\0".join(text for kind, text in cells if kind == "code")
    return hashlib.sha256(code.encode()).hexdigest()


def run(notebook):
    """Runs a notebook in a kernel of its own and keeps the outputs in it."""
    from nbclient import NotebookClient

    paths = [str(FOLDER.parent), os.environ.get("PYTHONPATH", "")]
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook,
            timeout=None,
            record_timing=False,
            extra_arguments=KERNEL_OPTIONS,
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
        ).execute(env={**os.environ, **ENVIRONMENT, **paths})
    for cell in code_cells(notebook):
        cell.outputs = [output for output in cell.outputs if not is_native_log(output)]
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = smaller(output.data["image/png"])


def is_native_log(output):
    """Whether an output is what TensorFlow's C++ logs about this machine: it obeys no setting."""
    lines = output.get("text", "").splitlines()
    return output.get("name") == "stderr" and all(map(_NATIVE_LOG.match, lines))


def smaller(png):
    """Reduces a picture to 128 colors, which a plot never needs more of."""
    from PIL import Image

    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    file = io.BytesIO()
    picture.quantize(128, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def code_cells(notebook):
    """Returns the code cells of a notebook."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def has_picture(cell):
    """Whether an output of a code cell is a picture."""
    return any("image/png" in output.get("data", {}) for output in cell.outputs)


def faults(notebook, language):
    """Lists what a committed notebook must not be, in words."""
    found = []
    cells = notebook.cells
    if not all(cell.execution_count for cell in code_cells(notebook)):
        found.append("a cell has not been run")
    for cell, after in zip(cells, [*cells[1:], None], strict=True):
        if cell.cell_type != "code":
            continue
        caption = after.source if after is not None and after.cell_type == "markdown" else ""
        if has_picture(cell) and not caption.startswith(CAPTION[language]):
            found.append(f"no caption below the picture of: {cell.source[:60]!r}")
        for output in cell.outputs:
            text = output.get("text", "") + output.get("data", {}).get("text/plain", "")
            if output.output_type == "error" or output.get("name") == "stderr":
                found.append(f"an error or a warning: {text[:200]!r}")
            if re.search(r"(?<![\w/.])/(tmp|home|root|work|usr|var|Users)/", text):
                found.append(f"a path of a machine: {text[:200]!r}")
    if not any(has_picture(cell) for cell in code_cells(notebook)):
        found.append("there is no picture")
    return found


def build(name, runs=True):
    """Runs a source in both languages and writes its notebooks.

    Args:
        name: str.
        runs: bool, default `True`. Whether the code is run; else the committed outputs are kept.

    Raises:
        ValueError: the outputs must not be committed, or are those of other code; nothing is
            written.
    """
    cells = read_source(name)
    notebooks = {language: empty_notebook(name, language, cells) for language in LANGUAGES}
    for language, notebook in notebooks.items():
        if runs:
            # A copy, since nbclient writes the kernel's version into the metadata.
            executed = copy.deepcopy(notebook)
            run(executed)
        else:
            executed = read_notebook(name, language)
            if executed.metadata["kformer"] != notebook.metadata["kformer"]:
                raise ValueError(f"{name}: the code is another one now: leave out --texts.")
        for cell, done in zip(code_cells(notebook), code_cells(executed), strict=True):
            cell.outputs, cell.execution_count = copy.deepcopy(done.outputs), done.execution_count
    found = [fault for language in LANGUAGES for fault in faults(notebooks[language], language)]
    if found:
        raise ValueError(f"{name}: {'; '.join(found)}")
    for language, notebook in notebooks.items():
        nbformat.write(notebook, LANGUAGES[language] / f"{name}.ipynb")


def check(name):
    """Returns in words why a notebook's files are not up to date; an empty list if they are."""
    cells = read_source(name)
    found = []
    for language, folder in LANGUAGES.items():
        path = folder / f"{name}.ipynb"
        where = path.relative_to(FOLDER)
        if not path.exists():
            found.append(f"{where} does not exist")
            continue
        notebook = read_notebook(name, language)
        expected = empty_notebook(name, language, cells)
        if notebook.metadata != expected.metadata:
            found.append(f"{where} was not built from this code")
        if [cell.source for cell in notebook.cells] != [cell.source for cell in expected.cells]:
            found.append(f"{where} has other cells than its source")
        found += [f"{where}: {fault}" for fault in faults(notebook, language)]
    return found


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--texts", action="store_true", help="keeps the outputs")
    parser.add_argument("--check", action="store_true", help="runs nothing")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(names()):
        parser.error(f"no such notebook: {', '.join(sorted(unknown))}")
    found = []
    for name in options.names or names():
        if options.check:
            found += check(name)
        else:
            print(f"{'writing' if options.texts else 'running'} {name}", flush=True)
            build(name, runs=not options.texts)
    for fault in found:
        print(f"{fault}: python notebooks/build.py", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
