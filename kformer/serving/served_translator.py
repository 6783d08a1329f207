"""A run, or a folder for CTranslate2, in memory, with the signatures of a SavedModel.

No TensorFlow is needed.
"""

import dataclasses
import json

import keras
import numpy as np

from kformer.export.ctranslate2_reader import CTranslate2Translator
from kformer.export.saved_model.export import metadata_of
from kformer.export.saved_model.names import DEFAULT_SIGNATURE, TARGET_LANGUAGE
from kformer.export.target_languages import target_choices
from kformer.serving.interface import COVERAGE, SignatureInfo, TensorInfo
from kformer.serving.served_model import Served
from kformer.translating.streaming import load_run_translator
from kformer_options.names import named

_BEST = {"score": ("float32",), "translation": ("string",), "truncated": ("bool",)}


def served_run(folder, dtype=None):
    """Loads a run.

    Args:
        folder: `pathlib.Path`. The run directory.
        dtype: str, default `None`. As for `kformer.Translator`.

    Returns:
        `ServedTranslator`.

    Raises:
        RuntimeError: Keras has another backend than PyTorch.
        ValueError, FileNotFoundError: as `kformer.Translator.load`.
    """
    if keras.backend.backend() != "torch":
        raise RuntimeError(
            f"The backend of Keras is {keras.backend.backend()} here: give {named('engine')} torch "
            "on the command line, or set the environment variable KERAS_BACKEND=torch."
        )
    translator = load_run_translator(folder, dtype=dtype)
    search = dataclasses.replace(translator.options, n_best=translator.options.beam_size)
    choices = target_choices(translator, search, {})
    dtype = dtype or translator.model.policy_name
    return ServedTranslator(translator, metadata_of(translator, search, choices, dtype))


def served_folder(folder, threads=None, replicas=1):
    """Loads a folder for CTranslate2.

    Args:
        folder: `pathlib.Path`.
        threads: int, default `None`, for one for each CPU core. Threads of a batch.
        replicas: int, default 1. Batches that are computed at the same time.

    Returns:
        `ServedTranslator`.

    Raises:
        ValueError, FileNotFoundError: as `CTranslate2Translator`.
    """
    translator = CTranslate2Translator(folder, threads, replicas)
    search, engine = translator.metadata["search"], translator.metadata["translate_batch"]
    metadata = {
        **translator.metadata,
        "search": {**search, "n_best": search["beam_size"]},
        "max_source_length": engine["max_input_length"],
        "languages": translator.languages,
        "source_language": translator.tokenizer.source_language,
    }
    return ServedTranslator(translator, metadata)


class ServedTranslator(Served):
    """A translator with the signatures of a SavedModel: `serving_default`, `n_best` and, of a run,
    `attention`, and `coverage`: as `n_best`, with what the best translation left out or added, as
    JSON.

    Args:
        translator: `kformer.Translator` or `CTranslate2Translator`.
        metadata: dict, as a SavedModel's.
    """

    def __init__(self, translator, metadata):
        self._translator, self._n_best = translator, metadata["search"]["n_best"]
        lists = {"scores": ("float32", self._n_best), "translations": ("string", self._n_best)}
        signatures = {DEFAULT_SIGNATURE: _BEST, "n_best": {**_BEST, **lists}}
        if hasattr(translator, "attention"):
            signatures["attention"] = {
                "attention": ("float32", -1, -1, -1, -1),
                "source_tokens": ("string", -1),
                "target_tokens": ("string", -1),
                "translation": ("string",),
            }
            signatures[COVERAGE] = {**signatures["n_best"], COVERAGE: ("string",)}
        inputs = (TARGET_LANGUAGE, "text") if metadata.get("languages") else ("text",)
        infos = {}
        for name, outputs in signatures.items():
            # Attention is read text by text.
            sizes = (1,) if name == "attention" else (-1,)
            infos[name] = SignatureInfo(
                tuple(TensorInfo(key, "string", sizes) for key in inputs),
                tuple(
                    TensorInfo(key, kind, (-1, *shape)) for key, (kind, *shape) in outputs.items()
                ),
            )
        super().__init__(infos, metadata)

    def call(self, signature, texts, languages=None):
        codes = None if languages is None else [code.decode() or None for code in languages]
        has_lists = signature in ("n_best", COVERAGE)
        n_best = self._n_best if has_lists else 1
        options = {"n_best": n_best, "target_language": codes, "batch_size": len(texts)}
        results = self._translator.translate(texts, **options)
        outputs = {"translation": _strings([result.text for result in results])}
        if signature == "attention":
            return {**outputs, **self._attention(results[0].source, codes and codes[0])}
        outputs["score"] = np.array([result.score for result in results], "float32")
        outputs["truncated"] = np.array([result.truncated for result in results])
        if has_lists:
            rows = [result.hypotheses for result in results]
            outputs["translations"] = _strings([[one.text for one in row] for row in rows])
            outputs["scores"] = np.array([[one.score for one in row] for row in rows], "float32")
        if signature == COVERAGE:
            sources = [result.source for result in results]
            words = self._translator.annotated(
                sources, results, coverage=True, target_language=codes
            )
            found = [json.dumps(each.coverage.as_dict(), ensure_ascii=False) for each in words]
            outputs[COVERAGE] = _strings(found)
        return outputs

    def _attention(self, text, code):
        source_tokens, target_tokens, weights = self._translator.attention(
            text, target_language=code
        )
        tokens = {"source_tokens": source_tokens, "target_tokens": target_tokens}
        columns = {name: _strings([values]) for name, values in tokens.items()}
        return {**columns, "attention": weights[np.newaxis]}


def _strings(values):
    """Lists of str as an array of bytes."""
    return np.vectorize(str.encode, otypes=[object])(values)
