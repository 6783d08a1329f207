"""Files that are whole or not there: written aside, flushed to the disk, renamed last."""

import contextlib
import json
import os
import pathlib
import shutil
import tempfile
import warnings
import zipfile

import keras


def sync_to_disk(path):
    """Waits until a file's bytes, or a folder's entries, are on the disk and not only in memory."""
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0)
    with contextlib.suppress(PermissionError):  # Windows cannot open a folder.
        descriptor = os.open(path, flags)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def replacing(path):
    """Gives a path to write to, beside `path` and with its ending; afterwards what stands there
    takes `path`'s place.

    A reader sees the old file or the new one, never a part, and after an exception the old one is
    still there.

    Args:
        path: the file to make or replace; its folder exists.

    Example:
        >>> with replacing("run/config.json") as aside:
        ...     aside.write_text("{}")
    """
    path = pathlib.Path(path)
    # One fixed name: what a killed process left there is overwritten the next time, and never piles
    # up.
    aside = path.with_name(f".{path.stem}.partial{path.suffix}")
    try:
        yield aside
        sync_to_disk(aside)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    sync_to_disk(path.parent)


@contextlib.contextmanager
def new_folder(path):
    """Gives an empty folder to write in; afterwards it stands at `path`, where nothing stood
    before.

    There is a whole folder of this name or none: after an exception nothing is left.

    Args:
        path: the folder to make; those above it are made too.

    Example:
        >>> with new_folder("exports/en-de") as folder:
        ...     (folder / "config.json").write_text("{}")
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".partial-") as aside:
        folder = (
            pathlib.Path(aside) / "new"
        )  # The one around it is for this user alone, as temporary folders are.
        folder.mkdir()
        yield folder
        for part in (*folder.rglob("*"), folder):
            sync_to_disk(part)
        os.rename(folder, path)
    sync_to_disk(path.parent)


def write_json(path, value):
    """Writes a value as indented JSON, atomically.

    Raises:
        ValueError: the value holds something that JSON has no form for; an existing file is left as
            it is.
    """
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ValueError(f"{pathlib.Path(path).name} takes JSON values alone: {error}.") from error
    with replacing(path) as aside:
        aside.write_text(text, encoding="utf-8")


def read_json(path):
    """Reads a JSON object.

    Raises:
        ValueError: the file is no JSON object.
    """
    try:
        value = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are both ValueErrors.
        raise ValueError(f"{path} is damaged: it is not valid JSON ({error}).") from error
    if not isinstance(value, dict):
        raise ValueError(
            f"{path} is damaged: it should hold a JSON object, but holds {type(value).__name__}."
        )
    return value


def inside(folder, *parts):
    """The path of something in a folder, after making sure that no symbolic link leads out of the
    folder.

    Raises:
        ValueError: the path, with links followed, lies outside the folder.
    """
    folder = pathlib.Path(folder)
    path = folder.joinpath(*parts)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{path} is a link to a place outside of {folder}, and is not followed.")
    return path


class NewerFormatError(ValueError):
    """What was to be read was written by a newer version of this package."""


def check_format_version(value, newest, path, kind):
    """Refuses a format that is newer than this code, and what is no format version at all."""
    version = value.get("format_version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise ValueError(f"{path} is not the file of a {kind}: its format_version is {version!r}.")
    if version > newest:
        raise NewerFormatError(
            f"{path} has format version {version}, and this kformer reads format versions up to {newest} of a {kind}: "
            "install a newer kformer."
        )


def save_model(model, path, *, with_optimizer):
    """Saves a `.keras` file, atomically.

    Args:
        model: a built Keras model.
        path: the file, which ends in `.keras`.
        with_optimizer: whether compile arguments and optimizer state go along: they are two thirds
            of the size under Adam, and only the continuation of the training needs them.
    """
    with replacing(path) as aside:
        if with_optimizer or getattr(model, "optimizer", None) is None:
            model.save(aside)
            return
        optimizer, compiled = model.optimizer, model.compiled
        model.optimizer, model.compiled = None, False
        try:
            model.save(aside)
        finally:
            model.optimizer, model.compiled = optimizer, compiled


def load_model(path, *, compiled):
    """Loads a `.keras` file with Keras's `safe_mode`, so that nothing in it can run code.

    Args:
        path: the file.
        compiled: whether the model comes back compiled, with its optimizer's state.

    Raises:
        ValueError: the file is damaged, was made by code that is not imported, or asks for unsafe
            loading.
    """
    path = pathlib.Path(path)
    fault = zip_fault(path)
    if fault:
        raise ValueError(f"{path} is damaged: {fault}.")
    try:
        with warnings.catch_warnings():
            # Keras only warns when it leaves out the optimizer's state; going on without it would
            # not be the same training.
            warnings.filterwarnings("error", message="Skipping variable loading")
            return keras.saving.load_model(path, compile=compiled, safe_mode=True)
    except (
        Exception
    ) as error:  # Keras raises many kinds here, most with a page of configuration in the message.
        reason = " ".join(str(error).split())
        reason = reason if len(reason) <= 300 else reason[:300] + "..."
        raise ValueError(
            f"{path} cannot be loaded (for layers of your own, import the module that registers them first): {reason}"
        ) from error


def zip_fault(path):
    """What is wrong with a zip archive, in words, or `None` if every byte of its members has the
    right checksum.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            member = archive.testzip()
    except (
        zipfile.BadZipFile,
        OSError,
        EOFError,
        NotImplementedError,
        RuntimeError,
        ValueError,
    ) as error:
        return f"it is not a whole archive ({error})"
    return f"the checksum of {member} is wrong" if member else None


def remove_tree(path):
    """Removes a folder, in such a way that a half-removed one is never taken for a whole one."""
    path = pathlib.Path(path)
    doomed = path.with_name(f".{path.name}-removed")
    shutil.rmtree(doomed, ignore_errors=True)
    os.rename(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)
