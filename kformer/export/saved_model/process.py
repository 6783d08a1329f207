"""The process with the TensorFlow backend in which a SavedModel is made, seen from the other
backends. `__main__.py` is what runs in it.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
from importlib.util import find_spec

from kformer_options.child_process import environment

# The exit code after an error of a file; the last line has its number, reason and file, as JSON.
FILE_ERROR = 74


def export_in_tensorflow(kind, save, path, options, packages=("tensorflow", "tensorflow_text")):
    """Makes a SavedModel in a process with the TensorFlow backend.

    Args:
        kind: str, "translator" or "model". What is exported.
        save: function of a folder. Writes there what the process loads.
        path: path. The model's folder.
        options: dict of JSON values. The export's arguments; "imports" are modules that the process
            imports first.
        packages: tuple of str, default TensorFlow and tensorflow_text. What the process needs.

    Raises:
        ImportError: a package is not installed.
        OSError: a file cannot be written.
        RuntimeError: the process failed. The message has the last line that it wrote.
    """
    for package in packages:
        if find_spec(package) is None:
            name = package.replace("_", "-")
            raise ImportError(
                f"Exporting a SavedModel needs {name}, which is not installed here: run `pip "
                f"install {name}`."
            )
    with tempfile.TemporaryDirectory() as folder:
        save(folder)
        output = str(pathlib.Path(path).absolute())
        process = subprocess.run(
            [sys.executable, "-m", "kformer.export.saved_model", kind, folder, output],
            input=json.dumps(options),  # A shortlist is too long for an argument.
            env=environment(KERAS_BACKEND="tensorflow"),
            capture_output=True,
            text=True,
        )
    if process.returncode:
        lines = process.stderr.strip().splitlines()
        if process.returncode == FILE_ERROR:
            raise OSError(*json.loads(lines[-1]))
        reason = f": {lines[-1]}" if lines else f" with exit code {process.returncode}."
        raise RuntimeError(
            f"The TensorFlow process that makes the SavedModel failed{reason} If the model has "
            "layers of your own, name the module that registers them (imports=[...], or --import "
            "MODULE)."
        )
