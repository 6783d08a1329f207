"""Reads from a run directory what a resumed training needs: its options and its validations."""

import csv
import itertools
import pathlib
import shutil

import numpy as np

from kformer.saving import run_directory
from kformer.saving.run_directory import PATH_OPTIONS, PATHS_FILE, file_name, read_config
from kformer.trainer.lines import has_lines, lines_of, validation_sets
from kformer.training.callbacks.history import number_in, read_rows
from kformer.training.new_model import preset_config
from kformer.training.options import TrainOptions
from kformer.translating.translator import DIRECTIONS, SEARCH_BY_LANGUAGE
from kformer.utils import files
from kformer.utils.checksums import check_unedited, with_checksum, without_checksum
from kformer_options.model_folders import PARTS, training_exists
from kformer_options.names import named
from kformer_options.training import CHANGEABLE, TEXTS, TRAINING

# The options of a training of several parts.
PLAN_FILE = "plan.json"
_LIMITS = ("epochs", "steps")
_TEXTS = {*itertools.chain(*TEXTS), "monolingual_source", "monolingual_target"}


def stored_config(path, resume):
    """Reads the config of the training to resume.

    Args:
        path: `pathlib.Path` of the run directory.
        resume: bool. Whether a training there may be resumed.

    Returns:
        dict, or `None` if the folder is empty or missing, so that a new training begins.

    Raises:
        ValueError: the folder has other files in it, or a link that leads out of it, or a training
            while `resume` is false; or the training cannot go on.
    """
    config = _config_of_training(path)
    if config is not None and not resume:
        raise training_exists(path)
    if config is not None and "part" in config and not (path / PARTS / PLAN_FILE).exists():
        raise ValueError(
            f"The training in {path} has no folder {PARTS} any more, so it cannot go on: use its "
            "model as it is, or train in another folder."
        )
    return config


def _config_of_training(path):
    """The config of the training in a run directory, with the paths; `None` if there is nothing."""
    if (path / "config.json").exists():
        config = read_config(path)
        for entry in path.iterdir():
            files.inside(path, entry.name)  # A training would write through a link.
        # An average of checkpoints and a saved translator have the options of their training, but
        # no history.
        if not isinstance(config.get("training", {}), dict):
            file = path / "config.json"
            raise ValueError(f"{file} is damaged: its training is not a JSON object.")
        has_model = (path / "model.keras").exists()
        if "training" not in config or (has_model and not (path / "history.csv").exists()):
            raise ValueError(
                f"{path} holds a model that was not trained there by this command: choose another "
                f"folder, with {named('start_from')}={path}."
            )
        file, paths = files.inside(path, PATHS_FILE), {}
        if file.exists():  # A copy of a run has none.
            remedy = "remove it and give the files of the training again"
            paths = _read_options(file, PATH_OPTIONS, remedy)
        return {**config, "training": {**config["training"], **paths}}
    names = [name for name in files.entries(path) if name != PATHS_FILE]
    if names:
        raise ValueError(
            f"{path} is not empty and holds no training (it has {', '.join(names[:3])}): choose "
            "another folder."
        )
    return None


def validation_of(path):
    """Returns the validation sets of the training in a run directory.

    Args:
        path: `pathlib.Path` of the run directory.

    Returns:
        List of `Text`, one for each direction; empty if it has none, or is no training.
    """
    options, folder = _training_of(path)
    return [] if options is None else validation_sets(options, folder)


def training_texts_of(path):
    """Returns the texts of the training in a run directory.

    Args:
        path: `pathlib.Path` of the run directory.

    Returns:
        List of `Text`; empty if it is no training, or cleaned lines were removed from the run.
    """
    options, folder = _training_of(path)
    if options is None or not has_lines(folder, options):
        return []
    return lines_of(folder, options, None).texts


def _training_of(path):
    """The `TrainOptions` of the training in a run directory, and the folder with its data.

    Both are `None` if it is no training.
    """
    parts = path / PARTS
    has_parts = (parts / PLAN_FILE).exists()
    if not has_parts and "training" not in read_config(path):
        return None, None
    options = read_plan(parts) if has_parts else _config_of_training(path)["training"]
    options = {name: value for name, value in options.items() if name in TRAINING}
    return TrainOptions(**options), parts if has_parts else path


def remove_training(path):
    """Removes the training in a run directory, if there is one.

    Args:
        path: `pathlib.Path` of the run directory.

    Raises:
        LockedError: it still runs.
        ValueError: the folder has something else in it.
    """
    with files.locked(path):
        if not (path / PARTS / PLAN_FILE).exists():
            _config_of_training(path)
        empty(path)


def empty(path):
    """Removes what is in a run directory but its lock; the folder may be a link, and stays."""
    # While there is a config, it can be told what the rest is, so that a killed removal goes on.
    for entry in sorted(path.iterdir(), key=lambda entry: entry.name == "config.json"):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name != files.LOCK_FILE:
            entry.unlink()


def inherited(config):
    """Returns what a run keeps of the run that it starts from: search options, origin, directions.

    Args:
        config: dict. The config of the other run, or of the run itself where it goes on.

    Returns:
        dict.
    """
    names = ("search", SEARCH_BY_LANGUAGE, "search_reason", "imported", DIRECTIONS)
    return {name: config[name] for name in names if name in config}


def write_config(path, options, entries):
    """Writes the options of a training to `config.json` of its run directory.

    It has only the names of files, not their paths. Resuming needs the paths, so they are written
    first, to another file.

    Args:
        path: `pathlib.Path` of the run directory.
        options: `TrainOptions`.
        entries: dict, from `inherited`. Written too.
    """
    training = {name: getattr(options, name) for name in TRAINING}
    write_paths(path, training)
    run_directory.write_config(path, {**entries, "training": training})


def write_paths(path, options):
    """Writes the paths of the files that a training reads, which it needs to go on.

    Args:
        path: `pathlib.Path` of the run directory.
        options: dict of str to value. The options of the training; `None` means unset.
    """
    paths = {name: TRAINING[name].check(options.get(name)) for name in PATH_OPTIONS}
    paths = {name: value for name, value in paths.items() if value is not None}
    files.write_json(path / PATHS_FILE, with_checksum(paths))


def _read_options(file, names, remedy):
    """Reads options of a training from a file with a checksum."""
    options = files.read_json(file)
    check_unedited(options, file, remedy)
    options = without_checksum(options)
    for name, value in options.items():
        if name not in names:
            kind = "path" if names is PATH_OPTIONS else "option"
            raise ValueError(f"{file} is damaged: its {name!r} is not a {kind} of a training.")
        TRAINING[name].check(value, f"{name} of {file}")
    return options


def write_plan(folder, options):
    """Writes the options that a training of several parts began with.

    Args:
        folder: `pathlib.Path` of the parts, which is made.
        options: `TrainOptions`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plan = {name: value for name, value in vars(options).items() if value is not None}
    files.write_json(folder / PLAN_FILE, with_checksum(plan))


def read_plan(folder):
    """Reads what `write_plan` wrote.

    Args:
        folder: `pathlib.Path` of the parts.

    Returns:
        dict of the options that are set.

    Raises:
        ValueError: the file is damaged.
    """
    remedy = "begin the training again in another folder"
    return _read_options(folder / PLAN_FILE, TRAINING, remedy)


def resume_options(stored, options, path):
    """Returns the options of a training that is resumed, or begins.

    Args:
        stored: dict of str to value, or `None`. The options that it began with; `None` for a new
            training.
        options: dict of str to value. The options that are set now.
        path: `pathlib.Path` of its run directory, for error messages.

    Returns:
        `TrainOptions`.

    Raises:
        ValueError: an option would change what the training computes, or has a bad value; or a
            stored one has.
    """
    if stored is None:
        return TrainOptions(**options)
    resumed = {name: value for name, value in stored.items() if name in TRAINING}
    for name, value in resumed.items():
        TRAINING[name].check(value, f"{name} of {pathlib.Path(path) / 'config.json'}")
    for name, value in options.items():
        former, value = resumed.get(name), TRAINING[name].check(value)
        if name == "model_options" and not resumed.get("start_from"):
            is_same = _with_positions(value, resumed) == _with_positions(former, resumed)
        elif name in _TEXTS or name in PATH_OPTIONS and former == file_name(former):
            # A text may have moved: what is in it is compared later. And a run that was copied
            # without its file of paths has only the names.
            is_same = file_name(value) == file_name(former)
            resumed[name] = value if is_same else former
        else:
            is_same = value == former
        if name in CHANGEABLE:
            resumed[name] = value
        elif not is_same:
            raise ValueError(
                f"The training in {path} began {_with(name, former)} and can only go on like that, "
                f"not with {value}: leave the option out, or begin a new training in another "
                "folder."
            )
    moved = [name for name in _LIMITS if options.get(name, stored.get(name)) != stored.get(name)]
    if moved and stored.get("cooldown"):
        name = moved[0]
        raise ValueError(
            f"The training in {path} began {_with(name, stored.get(name))}, and its learning rate "
            f"falls to 0 at its end, which {named(name)}={options[name]} would move: leave the "
            f"option out, or train the finished model further with {named('start_from')}. (A "
            f"training with {named('cooldown')} 0 can be made longer.)"
        )
    if moved:
        resumed.update({name: options.get(name) for name in _LIMITS})
    return TrainOptions(**resumed)


def _with(name, value):
    return f"without {named(name)}" if value is None else f"with {named(name)}={value}"


def _with_positions(model_options, options):
    """The model options with the positions of a new model."""
    positions = preset_config(options.get("preset"))["position_encoding"]
    if options.get("made_for") == "transformers":
        positions = "sinusoidal"
    return {"position_encoding": positions, **(model_options or {})}


def last_step(path):
    """Returns the last step in the history of a run directory, 0 without one."""
    _, rows = read_rows(path / "history.csv")
    return int(rows[-1]["step"]) if rows else 0


def past_validations(path, measure, state):
    """Reads the validations up to the step at which the training is resumed.

    Args:
        path: `pathlib.Path` of the run directory.
        measure: str. "nll" or "bleu".
        state: `TrainingState`, or `None` for a training from the beginning.

    Returns:
        List of dict, each with the `epoch` and the value of `measure`.

    Raises:
        ValueError: `history.csv` is damaged.
    """
    if state is None or not (path / "history.csv").exists():
        return []
    path, name = path / "history.csv", f"val_{measure}"
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        # Rows without a likelihood are not validations: `quality_every` adds them within an epoch.
        rows = [row for row in csv.DictReader(file) if row.get(name) and row.get("val_nll")]
    return [
        {
            "epoch": number_in(path, row, "epoch", int),
            # As `BestModel` has it, which compares it with the next ones.
            measure: float(np.float32(number_in(path, row, name, float))),
        }
        for row in rows
        if number_in(path, row, "step", int) <= state.step
    ]
