"""Keras model files (`.keras`): written atomically, checked before they are read."""

import contextlib
import importlib
import math
import pathlib
import sys
import tempfile
import warnings
import zipfile

import keras

from kformer.saving.limits import check_archive, check_weights
from kformer.utils.backend import on_this_host
from kformer.utils.files import replacing
from kformer_options.names import command_line_names

# Models of fewer bytes are written as Keras writes them.
_LARGE_MODEL = 100 * 2**20
_ZIP_ERRORS = (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError)


def save_model(model, path, *, with_optimizer):
    """Saves a `.keras` file, atomically.

    Args:
        model: a built Keras model.
        path: path of the file. It ends in `.keras`.
        with_optimizer: bool. Whether to save the compile arguments and the optimizer's state. Under
            Adam they are two thirds of the file, and only a resumed training needs them.
    """
    with replacing(path) as aside, _tensorflow_not_imported(), on_this_host():
        optimizer = getattr(model, "optimizer", None)
        if optimizer is None:
            _write_untrained(model, aside)
        elif with_optimizer:
            model.save(aside)
        else:
            compiled = model.compiled
            model.optimizer, model.compiled = None, False
            try:
                model.save(aside)
            finally:
                model.optimizer, model.compiled = optimizer, compiled


@contextlib.contextmanager
def _tensorflow_not_imported():
    """Keeps Keras, on another backend, from importing TensorFlow to look for its types in a model.

    The import takes seconds and 450 MiB. Keras has no public switch for it; if a later Keras lacks
    this one, TensorFlow is imported.
    """
    module = getattr(importlib.import_module("keras.src.utils.module_utils"), "tensorflow", None)
    is_undecided = getattr(module, "_available", True) is None
    if keras.backend.backend() == "tensorflow" or "tensorflow" in sys.modules or not is_undecided:
        yield
        return
    module._available = False
    try:
        yield
    finally:
        module._available = None


def _write_untrained(model, path):
    """Writes a model that is not in training, such as an imported one, in little memory: Keras
    collects the weights in memory, twice, before it writes them. Files aside take longer, so what
    a training saves goes Keras's way.
    """
    if sum(math.prod(weight.shape) for weight in model.weights) * 4 < _LARGE_MODEL:
        model.save(path)
        return
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".partial-") as folder:
        model.save(folder, zipped=False)
        with zipfile.ZipFile(path, "w") as archive:
            for file in sorted(pathlib.Path(folder).rglob("*")):
                if file.is_file():
                    archive.write(file, file.relative_to(folder))


def load_model(path, *, compiled):
    """Loads a `.keras` file with Keras's `safe_mode`, so that nothing in it can run code.

    Args:
        path: path of the file.
        compiled: bool. Whether to restore the compile arguments and the optimizer's state.

    Returns:
        The Keras model.

    Raises:
        ValueError: the file is damaged, needs code that is not imported, or needs unsafe loading.
    """
    path = pathlib.Path(path)
    with contextlib.suppress(*_ZIP_ERRORS):  # `zip_fault` describes them.
        config, sizes = check_archive(path)
    if fault := zip_fault(path):
        raise ValueError(f"{path} is damaged: {fault}.")
    try:
        with warnings.catch_warnings(), command_line_names(False):
            check_weights(config, sizes, path)
            # Keras only warns when it skips the optimizer's state, and the training would differ.
            warnings.filterwarnings("error", message="Skipping variable loading")
            return keras.saving.load_model(path, compile=compiled, safe_mode=True)
    except Exception as error:
        # Keras raises many kinds of exceptions here, most with a page of configuration.
        reason = " ".join(str(error).split())
        reason = reason if len(reason) <= 300 else reason[:300] + "..."
        raise ValueError(
            f"{path} cannot be loaded (for layers of your own, import the module that registers "
            f"them first): {reason}"
        ) from error


def zip_fault(path):
    """Describes what is wrong with a zip archive.

    Args:
        path: path of the archive.

    Returns:
        A str, or `None` if the checksums of all members are right.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            member = archive.testzip()
    except (*_ZIP_ERRORS, ValueError) as error:
        return f"it is not a whole archive ({error})"
    return f"the checksum of {member} is wrong" if member else None
