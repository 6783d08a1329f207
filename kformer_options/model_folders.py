"""What the folder of a model must be: a run directory or a SavedModel.

This module imports only the standard library, as `kformer_options.text_files` does.
"""

import os
import pathlib
import re

from kformer_options.installed import check_extra
from kformer_options.names import in_python, named

# The folder of a run directory that has the parts of a training with an effort of 2 or 3.
PARTS = "parts"
# The file with the weights, of the models that an engine of the server takes.
MODEL_FILES = {"torch": "model.keras", "ctranslate2": "model.bin"}
# Owner and name, as a model hub writes them: "Helsinki-NLP/opus-mt-en-de".
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


def is_hub_name(path):
    """Whether this names a model of a hub, and no folder that is there."""
    return _HUB_NAME.fullmatch(str(path)) is not None and not pathlib.Path(path).exists()


def check_hub(name):
    """Checks that a model of a hub can be downloaded.

    Args:
        name: str. Its name at the hub.

    Raises:
        ImportError: huggingface_hub is not installed.
    """
    check_extra(f"Downloading {name}", "interop", ("huggingface_hub",))


def check_new_run(path):
    """Checks that a folder has no training, as far as can be seen without reading it.

    Args:
        path: path of the folder, which need not exist.

    Raises:
        ValueError: there is a training, with its history.
    """
    if all((pathlib.Path(path) / name).is_file() for name in ("config.json", "history.csv")):
        raise training_exists(path)


def training_exists(path):
    """The `ValueError` for a folder that has a training."""
    resume = in_python("resume=True") or "--resume"
    overwrite = in_python("overwrite=True") or "--overwrite"
    return ValueError(
        f"{path} holds a training already: go on with it by {resume}, replace it by {overwrite}, "
        "or choose another folder."
    )


def check_begun(path):
    """Checks that a folder has a training to go on with.

    Args:
        path: path of the folder.

    Raises:
        FileNotFoundError: it has none.
    """
    if not any((pathlib.Path(path) / name).exists() for name in ("config.json", PARTS)):
        raise FileNotFoundError(
            f"There is no training in {path} to go on with: give the folder of one, or the text of "
            f"a new one by {named('train_source')} and {named('train_target')}."
        )


def check_new_folder(path):
    """Checks that nothing is where a folder is to be made.

    Args:
        path: path of the folder.

    Raises:
        FileExistsError: something is, a link to nothing included.
    """
    if os.path.lexists(path):
        raise FileExistsError(
            f"There is something at {path} already: give another folder, or remove it first."
        )


def check_published(path):
    """Checks that a folder is that of a downloaded model, as far as can be seen without reading it.

    Args:
        path: path of the folder.

    Raises:
        FileNotFoundError: there is no such folder, or it lacks `config.json`.
    """
    path = pathlib.Path(path)
    if not path.is_dir():
        raise missing_model(path)
    if not (path / "config.json").is_file():
        raise FileNotFoundError(
            f"{path} has no config.json, so it is not a folder of a published model."
        )


def missing_model(path):
    """Returns the `FileNotFoundError` for a model to import that is not there."""
    return FileNotFoundError(
        f"There is nothing at {path}: give the file or folder of a downloaded model, or its name "
        "at the hub, such as Helsinki-NLP/opus-mt-en-de."
    )


def check_run(path):
    """Checks that a folder is a run directory, as far as can be seen without reading it.

    Args:
        path: path of the folder.

    Returns:
        `pathlib.Path`.

    Raises:
        FileNotFoundError: there is no such folder, or it lacks `config.json`.
    """
    path = pathlib.Path(path)
    if not path.is_dir():
        raise FileNotFoundError(f"There is no run directory {path}.")
    if not any((path / part / "config.json").is_file() for part in ("", ".replacing")):
        raise FileNotFoundError(f"{path} is not a run directory: it lacks config.json.")
    return path


def check_teachers(path):
    """Checks that a run directory has teachers that are trained, and what they translated.

    Args:
        path: path of the run directory.

    Returns:
        `pathlib.Path` of its parts.

    Raises:
        FileNotFoundError: as `check_run`.
        ValueError: it has none.
    """
    parts = check_run(path) / PARTS
    done = parts / "done.json"
    if not done.is_file() or '"text"' not in done.read_text(encoding="utf-8", errors="replace"):
        raise ValueError(
            f"{path} has no teachers to take: give a training with an effort of 2 or 3 that has "
            "come to its student, and still has its folder parts."
        )
    return parts


def check_trained(path):
    """Checks that a run directory has a model.

    Args:
        path: path of the run directory.

    Raises:
        FileNotFoundError: as `check_run`, or the training has not written a model yet.
    """
    path = check_run(path)
    if not (path / "model.keras").exists() and (path / "tokenizer").is_dir():
        if (path / "model.bin").exists():
            raise FileNotFoundError(
                f"{path} is a folder of CTranslate2's: make a run of it by `kformer import`."
            )
        raise FileNotFoundError(
            f"{path} has no model.keras yet: the training writes it at the end of its first epoch."
        )


def name_and_path(model):
    """Reads `PATH` or `NAME=PATH`: a pair of str, the first of which is empty without a name."""
    name, equals, path = model.partition("=")
    return (name, path) if equals and "/" not in name else ("", model)


def is_run(path):
    """Whether a model is a run directory, and not a SavedModel.

    Args:
        path: path of a run directory; or `NAME/` or `NAME/VERSION/` of a SavedModel.

    Raises:
        FileNotFoundError: it is neither.
    """
    path = pathlib.Path(path)
    if not path.exists():
        raise FileNotFoundError(f"There is no run directory or SavedModel {path}.")
    if (path / "config.json").is_file():
        return True
    if any((folder / "saved_model.pb").is_file() for folder in [path, *path.glob("*")]):
        return False
    raise FileNotFoundError(
        f"{path} is neither a run directory (it lacks config.json) nor a SavedModel (it lacks "
        "saved_model.pb)."
    )


def check_served(engine, path):
    """Checks that there is what an engine of the server takes.

    Args:
        engine: str. A name in `kformer_options.serving.ENGINES`.
        path: path of the model.

    Raises:
        FileNotFoundError: there is not.
    """
    if engine not in MODEL_FILES:
        is_run(path)
        return
    path, file = pathlib.Path(path), MODEL_FILES[engine]
    files = {file, MODEL_FILES["torch"]}
    if not any((folder / name).is_file() for folder in [path, *path.glob("*")] for name in files):
        raise FileNotFoundError(
            f"{path} is nothing for {named('engine')} {engine}: it has no model.keras, as a run has"
            + (f", and no {file}." if file != MODEL_FILES["torch"] else ".")
        )


def languages_of_name(name):
    """Returns the languages that the name of a model tells: a pair of str, or `None`.

    Args:
        name: str. Such as "en-de" or "pt_BR-en".
    """
    code = r"([a-z]{2,3}(?:[_@][A-Za-z0-9]{2,8})*)"
    match = re.fullmatch(f"{code}-{code}", name)
    return match and match.groups()
