"""The options that are declared: without Keras, and with the defaults that Python has."""

import ast
import dataclasses
import inspect
import os
import pathlib
import subprocess
import sys

import pytest
import typer

import kformer
from kformer.decoding.options import SearchOptions, read_options
from kformer.models import PRESETS
from kformer.saving.checkpoints import save_checkpoint
from kformer.text.sentencepiece_training import MODEL_TYPES
from kformer.training import Checkpoint, MaskedCrossentropy
from kformer_cli import (
    declarations,
    declared_option,
    effort_options,
    fine_tuning_options,
    option_names,
    serving_options,
)
from kformer_cli.app import app
from kformer_options.field import Option
from kformer_options.training import TRAINING

ROOT = pathlib.Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.any_backend


def default(function, name):
    return inspect.signature(function).parameters[name].default


@pytest.mark.parametrize(
    "module",
    [declarations, declared_option, effort_options, fine_tuning_options, option_names]
    + [serving_options],
)
def test_the_standard_library_is_enough(module):
    tree = ast.parse(pathlib.Path(module.__file__).read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    names = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules = (declared_option, declarations, effort_options, fine_tuning_options)
    own = {module.__name__ for module in (*modules, serving_options)}
    assert names <= {*sys.stdlib_module_names} | own


def test_messages_name_options_of_the_command_line():
    flags = {
        flag
        for command in typer.main.get_command(app).commands.values()
        for parameter in command.params
        for flag in parameter.opts
    }
    assert set(option_names.FLAGS.values()) <= flags
    message = "beam_size must be a whole number of at least 1, but 0 was given."
    with pytest.raises(ValueError, match=f"^{message}"):
        SearchOptions(beam_size=0)
    with option_names.command_line_names():
        with pytest.raises(ValueError, match="^--beam-size must be"):
            SearchOptions(beam_size=0)
        with pytest.raises(ValueError, match=f"^The search options in x.json .*: {message}"):
            read_options({"beam_size": 0}, "x.json")


def test_choices_are_those_of_the_package():
    assert tuple(PRESETS) == declarations.PRESETS
    assert set(declarations.TOKENIZER_TYPES) == set(MODEL_TYPES)


def test_python_and_the_command_line_have_the_same_defaults():
    for option, function, name in (
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
        ("general_share", kformer.data.MixedCorpus, "share"),
        ("label_smoothing", kformer.training.paper_recipe, "label_smoothing"),
        ("select", kformer.training.BestModel, "measure"),
    ):
        assert TRAINING[option].default == default(function, name), (option, function)


def test_every_option_can_be_explained_and_checked():
    flags = [option.flag for option in TRAINING.values()]
    assert len(set(flags)) == len(flags)
    for name, option in TRAINING.items():
        assert option.name == name and option.group and option.help.endswith(".")
        option.check(None)
        option.check(option.default)
        with pytest.raises(ValueError, match=f"^--{option.flag} must be .*, but .* was given"):
            option.check(object(), f"--{option.flag}")
    size = Option("size", int, "A size.", 3, least=1, most=8)
    assert size.help == "A size. Default: 3." and size.expected == "a whole number from 1 to 8"
    for value in (0, 9, 2.5, True, "3"):
        with pytest.raises(ValueError, match="size must be a whole number from 1 to 8, but"):
            size.check(value)
    assert dataclasses.replace(size, unset="by the text").help == "A size. Default: by the text."


def test_help_shows_each_option_in_its_group_at_80_columns():
    process = subprocess.run(
        [sys.executable, "-m", "kformer_cli", "train", "--help-all"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80", "TERMINAL_WIDTH": "80"},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    for option in TRAINING.values():
        assert f" --{option.flag} " in process.stdout and f"─ {option.group} ─" in process.stdout
    assert "…" not in process.stdout
