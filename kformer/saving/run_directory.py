"""The run directory: a trained model with all that is needed to use it, on any backend.

RUN/
    config.json     format_version, how the model was made and trained, and a checksum
    paths.json      the files of the training, for resuming it  (not part of a copy or an export)
    model.keras     the model: configuration and weights
    tokenizer/      tokenizer.json and the SentencePiece models
    history.csv     one row per training step                   (StepHistory)
    checkpoints/    from which a training can be resumed        (Checkpoint)
"""

import contextlib
import os
import pathlib
import shutil

from kformer.models.lora import merge_lora
from kformer.saving.model_files import load_model, save_model
from kformer.text import Tokenizer
from kformer.text.folder import move_folder
from kformer.utils import files
from kformer.utils.checksums import check_unedited, with_checksum
from kformer_options.model_folders import check_run
from kformer_options.training import TRAINING

FORMAT_VERSION = 1
PATHS_FILE = "paths.json"
# The options of a training that are paths, or lists of paths.
PATH_OPTIONS = tuple(
    name for name, option in TRAINING.items() if option.type in (os.PathLike, list)
)
# New parts of a run directory, all written, that wait to be moved.
_NEW_PARTS = ".replacing"
_OWN_KEYS = {"format_version", "checksum"}
# How often a run is read that is replaced meanwhile.
_MOST_READS = 3


def save_run(path, model, tokenizer, config=None):
    """Writes model, tokenizer and config to a run directory. Its other files stay.

    A reader finds the old run or the new one, never a mixture, also after the process was killed:
    the new parts are written to `RUN/.replacing/`, synced, and then moved one by one, and a reader
    takes a part from there as long as it exists, and reads all again if a part was replaced
    meanwhile. The optimizer's state is not saved: a training is resumed from `checkpoints/`.

    Args:
        path: path of the run directory. It is made if it is missing.
        model: a built Keras model. LoRA adapters are merged into its weights.
        tokenizer: a `kformer.Tokenizer`.
        config: dict of JSON values, default `None` (empty), such as the options of the training.
            It must not have the keys `format_version` and `checksum`.

    Returns:
        The path, as a `pathlib.Path`.

    Raises:
        ValueError: the config is not a JSON object, or has one of these keys.
        NotADirectoryError: `path` is a file.
        kformer.utils.files.LockedError: another process writes to the run directory.

    Example:
        ```python
        model, tokenizer, config = kformer.saving.load_run("runs/en-de")
        kformer.saving.save_run("runs/copy", model, tokenizer, {"preset": "tiny", "seed": 0})
        ```
    """
    config = dict(config or {})
    if reserved := config.keys() & _OWN_KEYS:
        raise ValueError(
            f"The config must not have the key {min(reserved)!r}: save_run itself writes it."
        )
    path = pathlib.Path(path)
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"{path} is a file, so no run directory can be made there.")
    with files.locked(path):
        finish_saving(path)
        with files.new_folder(path / _NEW_PARTS) as folder:
            tokenizer.save(folder / "tokenizer")
            save_model(merge_lora(model), folder / "model.keras", with_optimizer=False)
            write_config(folder, config)
        finish_saving(path)
    return path


def copy_run(run, path, config):
    """Replaces model, tokenizer, history and config of a run directory by those of another.

    Args:
        run: `pathlib.Path` of the other run directory.
        path: `pathlib.Path` of the run directory, which no other process writes to.
        config: dict of JSON values, as in `save_run`.
    """
    finish_saving(path)
    with files.new_folder(path / _NEW_PARTS) as folder:
        shutil.copytree(run / "tokenizer", folder / "tokenizer")
        shutil.copyfile(run / "model.keras", folder / "model.keras")
        write_config(folder, config)
    finish_saving(path)
    with files.replacing(path / "history.csv") as aside:
        shutil.copyfile(run / "history.csv", aside)


def finish_saving(path):
    """Moves the parts that `save_run` wrote to where they belong, also after it was killed.

    Args:
        path: `pathlib.Path` of a run directory, which no other process writes to.
    """
    folder = path / _NEW_PARTS
    if not folder.is_dir():
        return
    if (folder / "tokenizer").is_dir():
        move_folder(folder / "tokenizer", path / "tokenizer")
    for name in ("model.keras", "config.json"):
        if (folder / name).is_file():
            os.replace(folder / name, path / name)
    files.sync_to_disk(path)
    files.remove_tree(folder)


def _part(path, name):
    """Returns the path of a file of a run directory, which may wait to be moved (`save_run`)."""
    waiting = files.inside(path, _NEW_PARTS) / name
    return files.inside(path, _NEW_PARTS, name) if waiting.exists() else files.inside(path, name)


def without_paths(config):
    """Returns a run's config with names of files in place of their paths.

    Runs and exports are given to others, who need not know the folders of a machine.

    Args:
        config: dict of JSON values.

    Returns:
        A dict. `config` itself stays as it is.
    """
    config = dict(config)
    if isinstance(training := config.get("training"), dict):
        names = {name: file_name(training[name]) for name in PATH_OPTIONS if name in training}
        config["training"] = {**training, **names}
    if isinstance(imported := config.get("imported"), dict):
        name = imported.get("name")
        is_path = isinstance(name, str) and (
            pathlib.PurePath(name).is_absolute() or pathlib.PureWindowsPath(name).drive
        )
        config["imported"] = {**imported, **({"name": file_name(name)} if is_path else {})}
    return config


def file_name(path):
    """Returns the last component of a path, or of each path in a list; other values unchanged."""
    if isinstance(path, list | tuple):
        return [file_name(each) for each in path]
    if not isinstance(path, str):
        return path
    kind = pathlib.PureWindowsPath if pathlib.PureWindowsPath(path).drive else pathlib.PurePath
    return kind(path).name


def write_config(path, config):
    """Writes `config.json` of a run directory, atomically.

    Args:
        path: `pathlib.Path` of the run directory.
        config: dict of JSON values. Names of files are written in place of their paths.
    """
    config = {"format_version": FORMAT_VERSION, **without_paths(config)}
    files.write_json(path / "config.json", with_checksum(config))


def update_config(path, entries):
    """Replaces some entries of the config of a run directory; the others stay.

    Args:
        path: path of the run directory.
        entries: dict of JSON values.

    Raises:
        FileNotFoundError, ValueError: as `load_run`.
        kformer.utils.files.LockedError: another process writes to the run directory.
    """
    path = pathlib.Path(path)
    with files.locked(path):
        finish_saving(path)
        write_config(path, {**read_config(path), **entries})


def load_run(path):
    """Loads a run directory that was written on any backend. Nothing in it can run code.

    Args:
        path: path of the run directory.

    Returns:
        `(model, tokenizer, config)`. The model is not compiled, and the config is a dict.

    Raises:
        FileNotFoundError: there is no such folder, or parts of a run directory are missing; the
            message names them.
        ValueError: a part is damaged, its format is newer than this code, or a link leads out of
            the folder.
        RuntimeError: the run is replaced again and again while it is read.
    """
    path = pathlib.Path(path)
    for number in range(_MOST_READS):
        run, before = None, _descriptions(path)
        try:
            run = _load_parts(path)
        except (FileNotFoundError, ValueError):  # Moved while it was read, missing or damaged.
            if number == _MOST_READS - 1:
                raise
        if run is not None and _descriptions(path) == before:
            return run
    raise RuntimeError(
        f"{path} was replaced {_MOST_READS} times while it was read: load it again when nothing "
        "writes to it."
    )


def _descriptions(path):
    """Returns the bytes of a run's config and of its tokenizer's, by the names of the files.

    They differ if another run took its place.
    """
    contents = {}
    for name in ("config.json", "tokenizer/tokenizer.json"):
        with contextlib.suppress(OSError, ValueError):  # _load_parts says what is wrong.
            contents[name] = _part(path, name).read_bytes()
    return contents


def _load_parts(path):
    config = read_config(path)
    names = ("model.keras", "tokenizer/tokenizer.json")
    if missing := " and ".join(name for name in names if not _part(path, name).is_file()):
        raise FileNotFoundError(f"{path} is not a whole run directory: it lacks {missing}.")
    return load_model(_part(path, "model.keras"), compiled=False), load_tokenizer(path), config


def load_tokenizer(path):
    """Loads the tokenizer of a run directory, without its model.

    Args:
        path: path of the run directory.

    Returns:
        `Tokenizer`.

    Raises:
        FileNotFoundError, ValueError: as `load_run`.
    """
    path = pathlib.Path(path)
    tokenizer = _part(path, "tokenizer")
    for file in sorted(tokenizer.rglob("*")):
        files.inside(path, file.relative_to(path))
    return Tokenizer.load(tokenizer)


def read_config(path):
    """Reads the config of a run directory, without its model.

    Args:
        path: path of the run directory.

    Returns:
        A dict, as it was given to `save_run`.

    Raises:
        FileNotFoundError, ValueError: as `load_run`.
    """
    path = pathlib.Path(path)
    check_run(path)
    file = _part(path, "config.json")
    config = files.read_json(file)
    files.check_format_version(config, FORMAT_VERSION, file, "run directory")
    check_unedited(config, file, "restore it")
    return {name: value for name, value in config.items() if name not in _OWN_KEYS}
