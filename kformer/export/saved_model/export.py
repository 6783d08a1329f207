"""The SavedModel: tokenizer, model and search in one TensorFlow graph."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import keras

from kformer.decoding.fast.ops_stored import DTYPES
from kformer.export.saved_model.tokenizer import GraphTokenizer
from kformer.utils.checks import check_choice

METADATA_FILE = "assets.extra/kformer.json"
FORMAT_VERSION = 1


def export_saved_model(
    translator, path, *, version=None, imports=(), dtype=None, single=False, **options
):
    """Writes `path/VERSION/`, which TensorFlow Serving and `tf.saved_model.load` read, with strings
    in and strings out.

    The graph has core TensorFlow and tensorflow_text ops only, and neither Keras nor this package
    is needed to load it. Signatures:

    - `serving_default`: `text: string[B]` -> `translation: string[B]`, `score: float[B]`,
      `truncated: bool[B]`;
    - `n_best`: the same and `translations: string[B, N]`, `scores: float[B, N]`, best first;
    - `attention`: `translation: string[B]`, `source_tokens: string[B, S]`, `target_tokens:
      string[B, T]` (rows filled up with empty strings) and `attention: float[B, layers, heads, T,
      S]`, the cross-attention's probabilities. It runs by the layers themselves, in the weights'
      own dtype, and is left out where `dtype` asks for another.
    - `single`, if asked for: `text: string[1]`, the rest as `serving_default`. XLA compiles it, for
      seconds, at the first text of each length (in steps of 16 tokens); one text at a time is then
      translated faster, by a small model above all. `SavedModelTranslator(path, warm_up=64)`
      compiles ahead. No other signature needs XLA.

    Batch and lengths are dynamic; how the search works is fixed here, since a server that batches
    requests needs one meaning for a row. From a JAX or PyTorch backend the graph is made in a
    second process with the TensorFlow backend.

    Args:
        translator: a `kformer.Translator`.
        path: folder of the model; its name is the model's.
        version: int, the name of the folder to write in it; `None` for the next free number.
        imports: names of modules that register layers of your own; the second process imports them
            first.
        dtype: how matrices are stored and multiplied: `None` as the model has them, or "bfloat16":
            half the size, faster on processors that multiply it (AVX-512 BF16, AMX), slower on
            others. Sums, norms and attention stay float32.
        single: whether to write the signature `single`.
        **options: fields of `kformer.decoding.SearchOptions` that differ from the translator's.
            `n_best` is the N of the signature `n_best`, `beam_size` if it is not given.

    Returns:
        The path of the version's folder.

    Raises:
        ValueError: an option that the graph cannot hold, the version exists, or the model cannot be
            had in that dtype.
        ImportError: TensorFlow or tensorflow_text is not installed.
        RuntimeError: the process that makes the graph failed; with its last words.

    Example:
        >>> translator.export("saved_models/en-de", beam_size=4)
        PosixPath('saved_models/en-de/1')
    """
    search = translator.search_options(options)
    if search.sampling:
        raise ValueError(
            "A SavedModel translates the same way each time, so sampling cannot be exported; use a beam."
        )
    if "n_best" not in options:
        search = dataclasses.replace(search, n_best=search.beam_size)
    if dtype is not None:
        check_choice("A SavedModel's dtype", dtype, DTYPES)
    target = version_folder(path, version)
    if keras.backend.backend() != "tensorflow":
        others = {
            "version": int(target.name),
            "imports": list(imports),
            "dtype": dtype,
            "single": single,
        }
        export_in_tensorflow(
            "translator", translator.save, path, {**dataclasses.asdict(search), **others}
        )
        return target
    return write_aside(target, lambda folder: _write(translator, folder, search, dtype, single))


def version_folder(path, version):
    """Where a version is to be written, in the model's folder `path`; `None` for the next free
    number.

    Raises:
        ValueError: the version exists.
    """
    path = pathlib.Path(path)
    if version is None:
        folders = [folder for folder in path.glob("*") if folder.name.isdigit() and folder.is_dir()]
        version = 1 + max((int(folder.name) for folder in folders), default=0)
    target = path / str(version)
    if target.exists():
        raise ValueError(f"{target} exists already: give another version, or remove it first.")
    return target


def write_aside(target, write):
    """Has `write` make the folder `target` under another name, and renames it: a server that
    watches must never see half a model.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".partial-") as aside:
        folder = pathlib.Path(aside) / "model"
        write(folder)
        os.replace(folder, target)
    return target


def export_in_tensorflow(kind, save, path, options, packages=("tensorflow", "tensorflow_text")):
    """Has a process with the TensorFlow backend make a SavedModel.

    Args:
        kind: what `python -m kformer.export.saved_model` is to make, "translator" or "model".
        save: function of a folder, which writes there what that function loads.
        path: folder of the model.
        options: dict of arguments, for JSON; "imports" are modules.
        packages: what that process will import.

    Raises:
        ImportError, RuntimeError: as `export_saved_model` says.
    """
    from importlib.util import find_spec

    for package in packages:
        if find_spec(package) is None:
            name = package.replace("_", "-")
            raise ImportError(
                f"Exporting a SavedModel needs {name}, which is not installed here: run `pip install {name}`."
            )
    with tempfile.TemporaryDirectory() as folder:
        save(folder)
        process = subprocess.run(
            [
                sys.executable,
                "-m",
                "kformer.export.saved_model",
                kind,
                folder,
                str(pathlib.Path(path).absolute()),
                json.dumps(options),
            ],
            # With this process's path, so that whatever can be imported here can be imported there.
            env={
                **os.environ,
                "KERAS_BACKEND": "tensorflow",
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
            capture_output=True,
            text=True,
        )
    if process.returncode:
        lines = process.stderr.strip().splitlines()
        raise RuntimeError(
            "The TensorFlow process that makes the SavedModel failed"
            + (f": {lines[-1]}" if lines else f" with exit code {process.returncode}.")
            + " If the model has layers of your own, name the module that registers them (imports=[...], or --import MODULE)."
        )


def _write(translator, folder, search, dtype, single):
    import tensorflow as tf

    from kformer.export.saved_model.translation import build_translation_module

    graph_tokenizer = GraphTokenizer(translator.tokenizer)
    module, signatures = build_translation_module(
        translator.model, graph_tokenizer, translator.tokenizer, search, dtype, single
    )
    tf.saved_model.save(module, str(folder), signatures=signatures)
    metadata = {
        "search": dataclasses.asdict(search),
        "dtype": dtype or translator.model.policy_name,
        "max_source_length": translator.model.max_length,
        "config": translator.config,
    }
    write_metadata(folder, metadata)


def write_metadata(folder, metadata):
    """Notes in a SavedModel what it was made from."""
    file = folder / METADATA_FILE
    file.parent.mkdir()
    file.write_text(
        json.dumps({"format_version": FORMAT_VERSION, **metadata}, indent=2) + "\n",
        encoding="utf-8",
    )
