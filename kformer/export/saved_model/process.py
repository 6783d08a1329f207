"""Where a SavedModel is made: here under the TensorFlow backend, in a process with it under others.

`__main__.py` is what runs in that process.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import keras

from kformer.export.saved_model.folder import version_folder, write_defaults, write_metadata
from kformer.export.saved_model.names import TARGET_LANGUAGE
from kformer.utils.files import new_folder
from kformer_options.child_process import environment
from kformer_options.installed import check_extra

# The exit code after an error of a file; the last line has its number, reason and file, as JSON.
FILE_ERROR = 74


def write_version(path, version, build, *, kind, save, options, imports=(), has_texts=True):
    """Writes a version of a SavedModel.

    Args:
        path: path. The model's folder.
        version: int or `None`, for the next free number.
        build: function without arguments. Returns, under the TensorFlow backend, the `tf.Module`
            to save, its signatures, and the dict of its metadata.
        kind: str, "translator" or "model". What is exported, for the process.
        save: function of a folder. Writes there what the process loads.
        options: dict of JSON values. The export's other arguments, for the process.
        imports: iterable of str, default empty. Modules that the process imports first.
        has_texts: bool, default `True`. Whether the graph has a tokenizer.

    Returns:
        `pathlib.Path` of the version's folder.

    Raises:
        ValueError: the version exists, or is not a whole number; or the search samples.
        ImportError: TensorFlow or tensorflow_text is not installed.
        OSError, RuntimeError: as `run_process`.
    """
    if options.get("sampling"):
        raise ValueError(
            "A SavedModel writes the same text each time, so sampling cannot be exported; use a "
            "beam."
        )
    target = version_folder(path, version)
    check_extra("Exporting a SavedModel", "tensorflow", None if has_texts else ("tensorflow",))
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        # A server that watches the model's folder must never see half a version.
        with new_folder(target) as folder:
            module, signatures, metadata = build()
            tf.saved_model.save(module, str(folder), signatures=signatures)
            if metadata.get("languages"):
                write_defaults(folder, {TARGET_LANGUAGE: tf.make_tensor_proto([""])})
            write_metadata(folder, metadata)
        return target
    options = {**options, "version": int(target.name), "imports": list(imports)}
    with tempfile.TemporaryDirectory() as folder:
        save(folder)
        try:
            run_process(kind, folder, path, options)
        except RuntimeError as error:
            raise RuntimeError(
                f"The TensorFlow process that makes the SavedModel failed: {error} If the model "
                "has layers of your own, name the module that registers them (imports=[...], or "
                "--import MODULE)."
            ) from None
    return target


def run_process(kind, folder, path, options):
    """Makes a SavedModel in a process with the TensorFlow backend.

    Args:
        kind: str: "translator", "model", or "run" for a run directory.
        folder: path. What the process loads.
        path: path. The model's folder.
        options: dict of JSON values. The export's arguments, and "imports".

    Raises:
        OSError: a file cannot be written.
        RuntimeError: the process failed. The message is the last line that it wrote.
    """
    output = str(pathlib.Path(path).absolute())
    process = subprocess.run(
        [sys.executable, "-m", "kformer.export.saved_model", kind, str(folder), output],
        input=json.dumps(options),  # A shortlist is too long for an argument.
        env=environment(KERAS_BACKEND="tensorflow"),
        capture_output=True,
        text=True,
    )
    lines = process.stderr.strip().splitlines() or [f"exit code {process.returncode}."]
    if process.returncode == FILE_ERROR:
        raise OSError(*json.loads(lines[-1]))
    if process.returncode:
        raise RuntimeError(lines[-1])
