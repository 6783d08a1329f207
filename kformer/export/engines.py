"""The engines that translate with the model of a run: what each needs, and how it is opened."""

import pathlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from kformer.training.machine import count_cores


class Engine(NamedTuple):
    """An engine that translates with the model of a run.

    Attributes:
        dtype: str. How it multiplies matrices.
        open: function of a `Translator` in this dtype where the engine is kformer itself, a folder
            to write in, a beam size and `dtype`. It returns a function from a list of texts to the
            list of their translations.
        extra: str. The extra of kformer that has its packages.
        packages: tuple of str.
        backend: str. The backend of Keras that it takes.
        command: str. How a user gets it, of `{run}`.
    """

    dtype: str
    open: Callable
    extra: str
    packages: tuple
    backend: str
    command: str


def open_saved_model(translator, folder, beam_size, dtype):
    """Exports a SavedModel, and returns its function from texts to translations."""
    from kformer.export.saved_model import SavedModelTranslator

    path = pathlib.Path(folder) / str(beam_size)
    options = {"dtype": dtype, "n_best": 1, "signatures": ["serving_default"]}
    translator.export(path, beam_size=beam_size, **options)
    saved = SavedModelTranslator(path)
    return lambda texts: saved(texts, batch_size=len(texts))


def open_run(translator, folder, beam_size, dtype):
    """Returns a translator's function from texts to translations."""
    return lambda texts: translator(texts, beam_size=beam_size, batch_size=len(texts))


def open_ctranslate2(translator, folder, beam_size, dtype):
    """Exports for CTranslate2, and returns its function from texts to translations."""
    from kformer.export.ctranslate2_reader import CTranslate2Translator

    path = pathlib.Path(folder) / "model"
    if not path.exists():
        translator.export(path, format="ctranslate2", dtype=dtype)
    exported = CTranslate2Translator(path)
    return lambda texts: exported(texts, beam_size=beam_size)


def open_onnx(translator, folder, beam_size, dtype):
    """Exports ONNX graphs, and returns a function from texts to translations by ONNX Runtime.

    Raises:
        ValueError: there is a beam, which the graphs leave to their user.
    """
    from kformer.export.onnx.runtime import OnnxModel

    if beam_size > 1:
        raise ValueError("greedy alone: ONNX graphs have no search")
    path = translator.export(pathlib.Path(folder) / "model", format="onnx", dtype=dtype)
    model, tokenizer = OnnxModel(path, count_cores()), translator.tokenizer

    def translate(texts):
        rows = tokenizer.tokenize(texts, special_tokens=True)
        rows = [row[: translator.model.max_length] for row in rows]
        lengths = np.array([len(row) for row in rows])
        source_ids = np.full((len(rows), lengths.max()), translator.model.pad_id)
        for source, row in zip(source_ids, rows, strict=True):
            source[: len(row)] = row
        limit = translator.options.limits(lengths).max()
        return tokenizer.detokenize(model.greedy(source_ids, limit + 1))

    return translate


def _engines():
    """The engines by name."""
    tensorflow, export = ("tensorflow", "tensorflow_text"), "kformer export {run} --output"
    kinds = {
        "saved_model": (
            ("float32", "bfloat16", "int8"),
            *(open_saved_model, "tensorflow", tensorflow, "tensorflow"),
            f"{export} saved_models/NAME",
        ),
        "torch": (
            ("float32", "int8"),
            *(open_run, "torch", ("torch",), "torch"),
            "kformer translate {run} --backend torch",
        ),
        "ctranslate2": (
            ("float32", "int8"),
            *(open_ctranslate2, "ctranslate2", ("ctranslate2",), None),
            f"{export} ct2/NAME --format ctranslate2",
        ),
        "onnx": (
            ("float32",),
            *(open_onnx, "onnx", ("onnx", "onnxruntime"), None),
            f"{export} onnx/NAME --format onnx",
        ),
    }
    for kind, (dtypes, *settings, command) in kinds.items():
        for dtype in dtypes:
            is_usual = dtype == "float32"
            name = kind if is_usual else f"{kind}-{dtype}"
            command_of_dtype = command if is_usual else f"{command} --dtype {dtype}"
            yield name, Engine(dtype, *settings, command_of_dtype)


ENGINES = dict(_engines())
