"""The notebooks are built from their sources, have outputs, and their code runs."""

import functools
import importlib.util
import json
import os
import pathlib

import keras
import matplotlib
import numpy as np
import pytest
from nbformat.v4 import new_output

import kformer
from notebooks import build

# What the code has to reach, by the names that it leaves.
REACHES = {
    "corpora": lambda names: names["curves"]["cleaned"][-1] > 0.9,
    "encoder_only": lambda names: names["accuracy"] > 0.8 and names["hits"] > 0.2,
    "forecasting": lambda names: names["errors"]["forecast"] < 0.1 * names["errors"]["last number"],
    "positions": lambda names: names["found"]["RoPE"][1] > 0.9 and names["found"]["none"][1] < 0.5,
    "translation": lambda names: names["exact"] > 0.5,
}
SOURCE = """\
# %% [markdown] lang="en"
# # A title
# Two lines
# of text.

# %% [markdown] lang="zh"
# # 标题
# 两行
# 文字。

# %%
import matplotlib.pyplot as plt

print("a word")
plt.plot([0, 1])
plt.show()

# %% [markdown] lang="en"
# *Figure 1. A line.*

# %% [markdown] lang="zh"
# *图 1　一条线。*
"""


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "backend_switching" else name
        for name in build.names()  # That one starts a process for each backend.
    ],
)
def test_the_code_of_a_notebook_runs(name, is_whole, monkeypatch, capsys, tmp_path):
    """In this process, which has imported everything: a kernel for each would take minutes. Where
    time counts, an epoch has four steps, and 16 tokens are generated at most.
    """
    import matplotlib.pyplot as plt

    if not is_whole:
        whole = keras.Model.fit

        @functools.wraps(whole)
        def fit(*args, **kwargs):
            return whole(*args, **{**kwargs, "steps_per_epoch": 4})

        monkeypatch.setattr(keras.Model, "fit", fit)
        generate = kformer.TransformerDecoder.generate

        def few_tokens(*args, max_new_tokens, **kwargs):
            return generate(*args, max_new_tokens=min(max_new_tokens, 16), **kwargs)

        monkeypatch.setattr(kformer.TransformerDecoder, "generate", few_tokens)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(build.FOLDER.parent), prepend=os.pathsep)
    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
    plt.switch_backend("agg")
    names = {"__name__": "__main__"}
    with matplotlib.rc_context(), np.printoptions():
        for kind, code in build.read_source(name):
            if kind == "code":
                exec(compile(code, f"{name}.py", "exec"), names)
    if is_whole:
        assert REACHES.get(name, bool)(names)
        committed = [
            output.text
            for cell in build.code_cells(build.read_notebook(name, "en"))
            for output in cell.outputs
            if output.output_type == "stream"
        ]
        printed = capsys.readouterr().out
        assert len(printed.splitlines()) == len("".join(committed).splitlines())


@pytest.mark.any_backend
@pytest.mark.parametrize("name", build.names())
def test_a_notebook_is_up_to_date(name):
    assert build.check(name) == []


@pytest.mark.any_backend
def test_every_notebook_has_a_source_and_all_are_small():
    paths = [path for folder in build.LANGUAGES.values() for path in folder.glob("*.ipynb")]
    assert sorted(path.stem for path in paths) == sorted(2 * build.names())
    assert sum(path.stat().st_size for path in paths) < 4e6


@pytest.mark.any_backend
def test_both_readmes_name_every_notebook():
    for folder in build.LANGUAGES.values():
        text = (folder / "README.md").read_text(encoding="utf-8")
        assert all(f"({name}.ipynb)" in text for name in build.names())


@pytest.fixture
def builder(tmp_path):
    """The module, with folders of its own."""
    spec = importlib.util.spec_from_file_location("builder", build.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.FOLDER, module.LANGUAGES = tmp_path, {"en": tmp_path, "zh": tmp_path / "zh"}
    for name in ("source", "zh"):
        (tmp_path / name).mkdir()
    (tmp_path / "source" / "line.py").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "source" / "chinese.toml").write_text('[line]\n"a word" = "一个词"', "utf-8")
    return module


@pytest.mark.heavy
@pytest.mark.any_backend
def test_a_source_becomes_two_notebooks_with_outputs(builder, tmp_path, capsys):
    assert builder.main([]) == 0
    english, chinese = (
        json.loads(path.read_text(encoding="utf-8"))
        for path in (tmp_path / "line.ipynb", tmp_path / "zh" / "line.ipynb")
    )
    assert "".join(english["cells"][0]["source"]) == (
        "# A title\n\n[中文](zh/line.ipynb)\nTwo lines\nof text."
    )
    assert "".join(chinese["cells"][0]["source"]).endswith("ipynb)\n两行文字。")
    assert english["cells"][1]["outputs"][-2]["text"] == ["a word\n"]
    assert chinese["cells"][1]["outputs"][-2]["text"] == ["一个词\n"]
    assert english["metadata"]["language_info"]["name"] == "python"
    word, picture = english["cells"][1]["outputs"][-2:]
    assert word["text"] == ["a word\n"] and "image/png" in picture["data"]
    assert builder.main(["--check"]) == 0

    source = pathlib.Path(tmp_path / "source" / "line.py")
    source.write_text(SOURCE.replace("Two lines", "Three lines"), encoding="utf-8")
    assert builder.main(["--check"]) == 1 and builder.main(["--texts"]) == 0
    assert builder.main(["--check"]) == 0
    changed = json.loads((tmp_path / "line.ipynb").read_text(encoding="utf-8"))
    assert "Three lines" in "".join(changed["cells"][0]["source"])
    assert changed["cells"][1] == english["cells"][1]

    source.write_text(SOURCE.replace("a word", "another"), encoding="utf-8")
    with pytest.raises(ValueError, match="leave out --texts"):
        builder.main(["--texts"])
    capsys.readouterr()
    assert builder.main(["--check"]) == 1
    assert "line.ipynb was not built from this code" in capsys.readouterr().err


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda cell: cell.update(execution_count=None), "has not been run"),
        (lambda cell: cell.outputs[0].update(name="stderr"), "a warning"),
        (lambda cell: cell.outputs[0].update(text="in /home/someone/x"), "a path of a machine"),
        (lambda cell: cell.outputs.pop(), "there is no picture"),
    ],
)
def test_outputs_that_are_not_committed(change, fault):
    notebook = build.read_notebook("attention_by_hand", "en")
    cells = [cell for cell in build.code_cells(notebook) if build.has_picture(cell)]
    for cell in cells:
        cell.outputs[:] = [
            new_output("stream", name="stdout", text="x"),
            new_output("display_data", data={"image/png": ""}),
        ]
    assert build.faults(notebook, "en") == []
    for cell in cells:
        change(cell)
    assert fault in build.faults(notebook, "en")[0]


@pytest.mark.any_backend
def test_a_text_without_its_other_language_is_refused(builder, tmp_path):
    (tmp_path / "source" / "line.py").write_text(
        SOURCE.replace('lang="zh"', 'lang="en"', 1), encoding="utf-8"
    )
    with pytest.raises(ValueError, match="followed by its Chinese one"):
        builder.read_source("line")
