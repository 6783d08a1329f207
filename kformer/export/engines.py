"""The engines that translate with the model of a run: what each needs, and how it is opened."""

import functools
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from kformer.text.text_bound import source_rows
from kformer.training.machine import count_cores
from kformer.utils.rows import pad_rows


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


def open_saved_model(translator, folder, beam_size, dtype, single=False):
    """Exports a SavedModel, and returns its function from texts to translations: with `single`, a
    text alone by the signature of this name.
    """
    from kformer.export.saved_model import SavedModelTranslator

    path = pathlib.Path(folder) / str(beam_size)
    options = {"dtype": dtype, "n_best": 1, "signatures": ["serving_default"], "single": single}
    translator.export(path, beam_size=beam_size, **options)
    saved = SavedModelTranslator(path, warm_up=int(single))
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
    """Exports ONNX graphs, and returns a function from texts to translations by ONNX Runtime."""
    import onnxruntime

    path = pathlib.Path(folder) / f"onnx-{beam_size}"
    translator.export(path, format="onnx", dtype=dtype, beam_size=beam_size)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = count_cores()
    session = onnxruntime.InferenceSession(
        path / "search.onnx", options, providers=["CPUExecutionProvider"]
    )
    model, tokenizer, search = translator.model, translator.tokenizer, translator.options
    settings = {
        "prefix": np.array(search.prefix_ids, "int64"),
        "length_penalty": np.array(search.length_penalty, "float32"),
        "n_best": np.array(1),
    }

    def translate(texts):
        rows, _ = source_rows(tokenizer, texts, model.max_length, search.max_text_bytes)
        filled = [row for row in rows if row]
        found = iter(search_rows(filled) if filled else [])
        return [next(found) if row else "" for row in rows]

    def search_rows(rows):
        inputs = {
            "source_ids": pad_rows(rows, model.pad_id).astype("int64"),
            "limits": search.limits(np.array([len(row) for row in rows])).astype("int64"),
        }
        ids, _ = session.run(None, inputs | settings)
        return tokenizer.detokenize(ids[:, 0].tolist())

    return translate


def _engines():
    """The engines by name."""
    tensorflow = "tensorflow", ("tensorflow", "tensorflow_text"), "tensorflow"
    export = "kformer export {run} --output"
    kinds = {
        "saved_model": (
            ("float32", "bfloat16", "int8"),
            *(open_saved_model, *tensorflow),
            f"{export} saved_models/NAME",
        ),
        "saved_model-single": (
            ("float32",),
            *(functools.partial(open_saved_model, single=True), *tensorflow),
            f"{export} saved_models/NAME --single",
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
