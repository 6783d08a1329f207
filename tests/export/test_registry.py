"""The table of export formats against what the formats' functions take."""

import importlib
import inspect
import subprocess
import sys

import pytest

import kformer
from kformer.decoding.fast import ops_stored
from kformer.export import FORMATS
from kformer_options.export_formats import check_installed, dtypes_help, formats_help

pytestmark = pytest.mark.any_backend


@pytest.mark.parametrize("entry", FORMATS.values(), ids=FORMATS)
def test_an_entry_describes_its_function(entry):
    parameters = inspect.signature(
        getattr(importlib.import_module(entry.module), entry.function)
    ).parameters
    assert list(parameters)[:2] == ["translator", "path"]
    assert parameters["dtype"].default == entry.default_dtype
    takes_search = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    assert takes_search == entry.has_search
    # The command itself writes the files for TensorFlow Serving; the bound is of the search.
    assert set(entry.options) <= {*parameters, "serving_config", "max_text_bytes"}
    assert entry.name in formats_help() and f"{entry.name}: " in dtypes_help()


def test_saved_models_store_these_dtypes():
    assert FORMATS["saved_model"].dtypes == ops_stored.DTYPES


def test_the_table_needs_the_standard_library_alone():
    code = "import sys, kformer_options.export_formats\n"
    code += "assert not {'keras', 'kformer'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_format_and_a_missing_package(monkeypatch):
    with pytest.raises(ValueError, match="format must be one of saved_model, ctranslate2"):
        kformer.export.export(None, "x", format="tflite")
    monkeypatch.setitem(sys.modules, "safetensors", None)  # as if it were not installed
    with pytest.raises(ImportError, match=r'pip install "kformer\[interop\]"'):
        check_installed("hf")
