"""What kformer takes of Keras that Keras does not offer: a short list, each with its reason."""

import ast
import inspect
import pathlib
import sys
import textwrap
from inspect import isclass

import keras
import pytest

import kformer  # noqa: F401

pytestmark = pytest.mark.any_backend

ROOT = pathlib.Path(__file__).resolve().parent.parent / "kformer"

# Seen in Keras 3.15.
PRIVATES = {
    "_aggregate_additional_loss": "a regularizer's loss as Keras adds it on several replicas",
    "_allow_non_tensor_positional_args": "ids may be a list, and a cache a named tuple",
    "_available": "saving on another backend would import TensorFlow (450 MiB) for its types",
    "_compile_loss": "whether the loss has weights decides whether a step needs logits",
    "_compile_metrics": "a step without logits builds and reads the metrics by itself",
    "_convert_input_args": "ids are not cast to the dtype of a layer's floats",
    "_direction": "callbacks that compare a metric know whether a higher one is better",
    "_distribute_strategy": "a model's strategy, or `None`; `distribute_strategy` makes one",
    "_flatten_layers": "layers within layers, which `layers` leaves out",
    "_jax_state": "the arrays of a JAX step: reading through the model costs a copy (1 ms a step)",
    "_learning_rate": "the schedule itself: `learning_rate` is its value at this step",
    "_model": "a callback's model without the copy of JAX's arrays into its variables",
    "_model_variables_moving_average": "the moving averages, for a swap on each backend",
    "_tracker": "adapters are added to a layer that is built already",
    "_trainable_variables": "frozen layers give up their variables without those of their layers",
    "_user_loss_weights": "see `_compile_loss`",
    "_user_metrics": "see `_compile_metrics`",
    "_user_weighted_metrics": "see `_compile_metrics`",
}
# Modules and classes of `keras.src`, by name.
MODULES = {
    "keras.src.backend.torch.optimizers.": "the class under which Keras saves PyTorch's optimizers",
    "keras.src.utils.module_utils": "see `_available`",
}
# Private names of named tuples, of the operating system and of Jupyter.
OTHERS = {"_asdict", "_exit", "_fields", "_replace", "_repr_png_"}


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def trees():
    return [ast.parse(path.read_text(encoding="utf-8")) for path in ROOT.rglob("*.py")]


def nodes():
    return (node for tree in trees() for node in ast.walk(tree))


def stored(tree):
    """Private names that the code gives to attributes of `self`, variables, functions, classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield from [node.attr] * (ast.unparse(node.value) == "self")


def used(tree):
    """Names of attributes that the code reads or sets."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
            yield ast.unparse(node.args[1]).strip("'")


def shared_names():
    """Names in kformer's subclasses of Keras's classes that these have, too."""
    bases = {
        keras.Model: keras.Model(),
        keras.layers.Layer: keras.layers.Layer(),
        keras.metrics.Metric: keras.metrics.MeanSquaredError(),
        keras.losses.Loss: keras.losses.Loss(),
        keras.callbacks.Callback: keras.callbacks.Callback(),
        keras.utils.PyDataset: keras.utils.PyDataset(),
    }
    modules = [each for name, each in sys.modules.items() if name.startswith("kformer.")]
    for cls in {each for module in modules for each in vars(module).values() if isclass(each)}:
        names = [dir(example) for base, example in bases.items() if issubclass(cls, base)]
        if names and cls.__module__.startswith("kformer."):
            tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
            yield from {*stored(tree), *used(tree)}.intersection(set().union(*names))


def privates_of_keras():
    """Private names that kformer uses and does not define, or that it shares with Keras."""
    names = {name for tree in trees() for name in used(tree)}
    defined = {name for tree in trees() for name in stored(tree)}
    return {name for name in (names - defined).union(shared_names()) if is_private(name)}


@pytest.mark.heavy
def test_privates_of_keras_are_on_the_list():
    assert privates_of_keras() - OTHERS == PRIVATES.keys()


def test_modules_of_keras_are_on_the_list():
    texts = {node.value for node in nodes() if isinstance(node, ast.Constant)}
    found = {text for text in texts if isinstance(text, str) and text.startswith("keras.src")}
    imports = {
        alias.name if isinstance(node, ast.Import) else node.module
        for node in nodes()
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert found == MODULES.keys()
    assert not {name for name in imports if name and name.startswith("keras.src")}


@pytest.mark.heavy
def test_no_stack_frame_is_read_and_no_class_of_keras_changed():
    for node in nodes():
        if isinstance(node, ast.Attribute):
            assert node.attr not in ("_getframe", "currentframe", "f_locals")
            if isinstance(node.ctx, ast.Store):
                assert not ast.unparse(node.value).startswith("keras.")
