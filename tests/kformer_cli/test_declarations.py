"""The options that are declared: without Keras, and with the defaults that Python has."""

import ast
import dataclasses
import inspect
import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
import typer

import kformer
from kformer.models import PRESETS
from kformer.saving.checkpoints import save_checkpoint
from kformer.text.sentencepiece_training import MODEL_TYPES
from kformer.training import Checkpoint, MaskedCrossentropy
from kformer_cli.app import app
from kformer_options import names, training
from kformer_options.field import Path, check_values, documented, option, options_of
from kformer_options.search import SearchOptions, read_options
from kformer_options.training import TRAINING

ROOT = pathlib.Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.any_backend


def default(function, name):
    return inspect.signature(function).parameters[name].default


def test_the_standard_library_is_enough():
    """But for a configuration of a server, which PyYAML reads."""
    own = {*sys.stdlib_module_names, "kformer_options"}
    for path in (ROOT / "kformer_options").glob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        modules |= {
            alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
        }
        packages = {module.partition(".")[0] for module in modules}
        assert packages <= (own | {"yaml"} if path.name == "configuration.py" else own), path


def test_messages_name_options_of_the_command_line():
    flags = {
        flag
        for command in typer.main.get_command(app).commands.values()
        for parameter in command.params
        for flag in parameter.opts
    }
    assert set(names.FLAGS.values()) <= flags
    message = "beam_size must be a whole number of at least 1, but 0 was given."
    with pytest.raises(ValueError, match=f"^{message}"):
        SearchOptions(beam_size=0)
    with names.command_line_names():
        with pytest.raises(ValueError, match="^--beam-size must be"):
            SearchOptions(beam_size=0)
        with pytest.raises(ValueError, match=f"^The search options in x.json .*: {message}"):
            read_options({"beam_size": 0}, "x.json")


def test_choices_are_those_of_the_package():
    assert tuple(PRESETS) == training.PRESETS
    assert set(training.TOKENIZER_TYPES) == set(MODEL_TYPES)


def test_python_and_the_command_line_have_the_same_defaults():
    for declared, function, name in (
        ("tokenizer_type", kformer.Tokenizer.train, "model_type"),
        ("seed", kformer.Tokenizer.train, "seed"),
        ("seed", kformer.Transformer, "seed"),
        ("seed", kformer.data.ParallelDataset, "seed"),
        ("packed", kformer.data.ParallelDataset, "packed"),
        ("max_shapes", kformer.data.ParallelDataset, "max_shapes"),
        ("checkpoint_every", Checkpoint, "every"),
        ("keep", Checkpoint, "keep"),
        ("keep", save_checkpoint, "keep"),
        ("teacher_weight", MaskedCrossentropy, "teacher_weight"),
        ("lora_alpha", kformer.training.enable_lora, "alpha"),
        ("label_smoothing", kformer.training.paper_recipe, "label_smoothing"),
        ("select", kformer.training.BestModel, "measure"),
    ):
        assert TRAINING[declared].default == default(function, name), (declared, function)


def test_every_option_can_be_explained_and_checked():
    flags = [declared.flag for declared in TRAINING.values()]
    assert len(set(flags)) == len(flags)
    for name, declared in TRAINING.items():
        assert declared.name == name and declared.group and declared.help.endswith(".")
        declared.check(None)
        declared.check(declared.default)
        with pytest.raises(ValueError, match=f"^--{declared.flag} must be .*, but .* was given"):
            declared.check(object(), f"--{declared.flag}")


@documented
@dataclasses.dataclass(frozen=True)
class Box:
    """A box.

    Args:
        {options}
    """

    size: int = option("A size.", 3, at_least=1, at_most=8, group="Sizes")
    path: Path | None = option("A file.", settled="standard input")
    rate: float | None = option("A rate.", unset=0.5, above=0, below=1)
    kind: bool | str = option("A kind.", False, choices=(True, False, "never"))
    ids: Sequence[int] = option("Ids.", (), check=lambda name, ids: tuple(map(int, ids)))

    def __post_init__(self):
        check_values(self)


def test_an_option_is_a_field():
    assert Box() == Box(3, None, None, False, ())
    box = Box(np.int64(8), pathlib.Path("a"), np.float32(0.25), "never", [np.int32(2)])
    assert dataclasses.astuple(box) == (8, "a", 0.25, "never", (2,))
    assert {type(value) for value in (box.size, box.path, box.rate)} == {int, str, float}
    size, path, rate = list(options_of(Box).values())[:3]
    assert size.help == "A size. Default: 3." and size.expected == "a whole number from 1 to 8"
    assert path.help == "A file. Default: standard input." and path.group == "Sizes"
    assert rate.help == "A rate. Default: 0.5." and rate.default == 0.5 and rate.flag == "rate"
    for text in ("size: int, default 3. A size.", "path: path. A file. Default: standard input."):
        assert f"        {text}\n" in Box.__doc__


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"size": value}, "size must be a whole number from 1 to 8") for value in (0, 9, 2.5)),
        *(({"size": value}, "size must be a whole number from 1 to 8") for value in (True, "3")),
        ({"size": None}, "size must be a whole number from 1 to 8, but None was given"),
        ({"path": 3}, "path must be a path, but 3"),
        ({"rate": 1}, "rate must be above 0 and below 1, but 1"),
        ({"rate": float("nan")}, "rate must be a finite number, but nan"),
        ({"kind": 1}, "kind must be one of True, False, never, but 1"),
        ({"kind": "ever"}, "kind must be one of True, False, never, but 'ever'"),
    ],
)
def test_each_value_of_a_field_is_checked(options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        Box(**options)


def test_help_shows_each_option_in_its_group_at_80_columns():
    process = subprocess.run(
        [sys.executable, "-m", "kformer_cli", "train", "--help-all"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80", "TERMINAL_WIDTH": "80"},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    for declared in TRAINING.values():
        assert (
            f" --{declared.flag} " in process.stdout and f"─ {declared.group} ─" in process.stdout
        )
    assert "…" not in process.stdout
