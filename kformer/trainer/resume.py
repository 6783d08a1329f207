"""What a training that goes on takes from its run directory: its options and its validations."""

import csv

from kformer.saving import run_directory
from kformer.saving.run_directory import (
    PATH_OPTIONS,
    PATHS_FILE,
    file_name,
    read_config,
)
from kformer.trainer.model import preset_config
from kformer.trainer.options import TrainOptions, plain
from kformer.training.callbacks.history import number_in
from kformer.utils import files
from kformer_cli.declarations import CHANGEABLE, TRAINING, default_of, named


def stored_config(path, resume):
    """The config of the training to go on with, or `None` for a new one in an empty folder.

    Args:
        path: `pathlib.Path` of the run directory.
        resume: bool, whether a training may go on there.

    Raises:
        NotADirectoryError: `path` is a file.
        ValueError: the folder holds something else, a link that leads out of it, or a training
            and `resume` is false.
    """
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"{path} is a file, so no run directory can be made there.")
    if (path / "config.json").exists():
        config = read_config(path)
        for entry in path.iterdir():
            files.inside(path, entry.name)  # A training writes into what it finds there.
        # An average of checkpoints, or what a translator has saved, keeps the options of its
        # training, but has no history.
        has_model = (path / "model.keras").exists()
        if "training" not in config or (has_model and not (path / "history.csv").exists()):
            raise ValueError(
                f"{path} holds a model that was not trained there by this command: choose another "
                f"folder, with {named('start_from')}={path}."
            )
        if not resume:
            raise ValueError(
                f"{path} holds a training already: go on with it by resume (--resume), or choose "
                "another folder."
            )
        return {**config, "training": {**config["training"], **_stored_paths(path)}}
    others = sorted({entry.name for entry in path.glob("*")} - {files.LOCK_FILE, PATHS_FILE})
    if others:
        raise ValueError(
            f"{path} is not empty and holds no training (it has {', '.join(others[:3])}): choose "
            "another folder."
        )
    return None


def inherited(config):
    """What a run keeps of the run that it starts from: its search options and its origin."""
    return {name: config[name] for name in ("search", "imported") if name in config}


def write_config(path, options, kept):
    """Writes the options, and what is inherited, to `config.json` of the run directory.

    There it has the names of the files; their paths, which resuming needs, are in a file of their
    own that comes first.
    """
    training = {name: getattr(options, name) for name in TRAINING}
    paths = {name: training[name] for name in PATH_OPTIONS if training[name] is not None}
    files.write_json(path / PATHS_FILE, paths)
    run_directory.write_config(path, {**kept, "training": training})


def _stored_paths(path):
    """The paths that a training began with: none in the config of a version before there was a
    file for them.
    """
    file = files.inside(path, PATHS_FILE)
    if not file.exists():
        return {}
    paths = files.read_json(file)
    for name, value in paths.items():
        if name not in PATH_OPTIONS:
            raise ValueError(f"{file} is damaged: it has {name!r}, which is no path of a training.")
        TRAINING[name].check(value, f"{name} of {file}")
    return paths


def resume_options(stored, given, path):
    """The options of a training that goes on.

    Args:
        stored: dict of the options that it began with.
        given: dict of the options that are given now.
        path: its run directory, for the error message.

    Returns:
        `TrainOptions`.

    Raises:
        ValueError: an option is given that would change what the training computes.
    """
    options = {name: value for name, value in stored.items() if name in TRAINING}
    for name, value in given.items():
        began, value = options.get(name), plain(value)
        TRAINING[name].check(value, named(name))
        if name == "model_options" and not options.get("start_from"):
            is_same = _with_positions(value, options) == _with_positions(began, options)
        elif name in PATH_OPTIONS and began == file_name(began):
            # The run came without its file of paths, and knows the names alone.
            is_same = file_name(value) == began
            options[name] = value if is_same else began
        else:
            is_same = value == began
        if name not in CHANGEABLE and not is_same:
            raise ValueError(
                f"The training in {path} began with {named(name)}={began} and can only go on with "
                f"that, not with {value}: leave the option out, or begin a new training in another "
                "folder."
            )
    if stored.get("cooldown"):
        _check_end(stored, given, path)
    elif "epochs" in given or "steps" in given:
        options.update(epochs=None, steps=None)
    changes = {name: value for name, value in given.items() if name in CHANGEABLE}
    return TrainOptions(**{**options, **changes})


def _with_positions(model_options, options):
    """Model options with the preset's positions, which some configs name and others do not."""
    preset = preset_config(options.get("preset") or default_of("preset"))
    return {"position_encoding": preset["position_encoding"], **(model_options or {})}


def _check_end(stored, given, path):
    """With a cooldown the learning rate depends on the end, which must be where it was."""
    for name in ("epochs", "steps"):
        began = stored.get(name)
        if given.get(name, began) != began:
            stays = f"there is no limit of {name}" if began is None else f"{name} stays {began}"
            raise ValueError(
                f"The learning rate of the training in {path} falls to 0 at its end, so {stays}: "
                "leave the option out, or train the finished model further by "
                f"{named('start_from')}. (With {named('cooldown')} 0 the length can be changed.)"
            )


def past_validations(path, measure, state):
    """The validations up to the step that the training goes on from.

    Args:
        path: `pathlib.Path` of the run directory.
        measure: "nll" or "bleu".
        state: `TrainingState`, or `None` for a training that begins.

    Returns:
        List of dicts with the `epoch` and the value of `measure`.

    Raises:
        ValueError: `history.csv` is damaged.
    """
    if state is None or not (path / "history.csv").exists():
        return []
    path, name = path / "history.csv", f"val_{measure}"
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get(name)]
    # Every validation has a likelihood; the rows within an epoch that `quality_every` adds do not.
    rows = [
        row
        for row in rows
        if row.get("val_nll") and number_in(path, row, "step", int) <= state.step
    ]
    return [
        {
            "epoch": number_in(path, row, "epoch", int),
            measure: number_in(path, row, name, float),
        }
        for row in rows
    ]
