"""Checkpoints from which training goes on as if it had never stopped.

    RUN/checkpoints/step-500/
        model.keras     the model, its compile arguments, the optimizer's state, dropout counters
        state.json      format_version, step, epoch, step_in_epoch, data, fingerprint, ...,
                        checksums of the other files and of itself
        seeds.npz       states of Keras seed generators, if a model has any: .keras files lack them

A checkpoint is written aside, synced to the disk and renamed last: `step-N` is whole or not there.
"""

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import re
import shutil
import warnings

import keras
import numpy as np

from kformer.saving.model_files import load_model, save_model
from kformer.utils import files
from kformer.utils.checks import check_whole
from kformer.utils.checksums import file_checksum, is_damaged, with_checksum

FORMAT_VERSION = 1
_MODEL, _STATE, _SEEDS = "model.keras", "state.json", "seeds.npz"


@dataclasses.dataclass(frozen=True)
class TrainingState:
    """Where a training stands.

    Args:
        step: int. The number of batches trained on so far.
        epoch: int, default 0. The index of the epoch that the next batch belongs to.
        step_in_epoch: int, default 0. How many batches of that epoch are done.
        data: dict of JSON values, default empty. It describes the data (seed, batch size, ...), so
            that a resumed training can check that the data is the same.
    """

    step: int
    epoch: int = 0
    step_in_epoch: int = 0
    data: dict = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        for name in ("step", "epoch", "step_in_epoch"):
            value = check_whole(f"{name} of a training state", getattr(self, name), least=0)
            object.__setattr__(self, name, value)  # JSON takes no NumPy number.
        if not isinstance(self.data, dict):
            raise ValueError(f"data of a training state must be a dict, but it is {self.data!r}.")


def save_checkpoint(run_dir, model, state, keep=2):
    """Writes the checkpoint `run_dir/checkpoints/step-N/`, and removes older ones.

    N is `state.step`. The latest `keep` checkpoints stay. Checkpoints of later steps are removed,
    too: the training was resumed from before them, and took another course.

    Args:
        run_dir: path of the run directory. It is made if it is missing.
        model: a compiled model. (Within `fit` on JAX its variables are out of date: a callback gets
            an up-to-date model from `self.model`.)
        state: a `TrainingState`.
        keep: int, default 2. How many checkpoints stay, this one included.

    Returns:
        The path of the new checkpoint.

    Raises:
        ValueError: `keep` is below 1, or the model is not compiled.
    """
    check_whole("keep", keep)  # The new checkpoint itself.
    if getattr(model, "optimizer", None) is None:
        raise ValueError(
            "A checkpoint holds the optimizer's state: compile the model before saving one."
        )
    folder = pathlib.Path(run_dir) / "checkpoints"
    path = folder / f"step-{state.step}"
    with files.new_folder(path, replaces=True) as aside:
        save_model(model, aside / _MODEL, with_optimizer=True)
        seeds = [keras.ops.convert_to_numpy(seed) for seed in _seed_states(model)]
        if seeds:
            np.savez(aside / _SEEDS, **{str(i): seed for i, seed in enumerate(seeds)})
        description = {
            "format_version": FORMAT_VERSION,
            **dataclasses.asdict(state),
            "fingerprint": fingerprint(model),
            "num_seeds": len(seeds),
            "backend": keras.backend.backend(),
            "keras_version": keras.__version__,
            "checksums": {file.name: file_checksum(file) for file in sorted(aside.iterdir())},
        }
        files.write_json(aside / _STATE, with_checksum(description))
    for step in _steps(folder):
        if step > state.step:
            files.remove_tree(folder / f"step-{step}")
    remove_old_checkpoints(run_dir, state.step, keep)
    return path


def remove_old_checkpoints(run_dir, step, keep):
    """Removes the checkpoints before the latest `keep`, and what killed processes left.

    `save_checkpoint` does so at its end. A process that is killed before that leaves them to the
    training that resumes.

    Args:
        run_dir: path of the run directory, which no other process writes to.
        step: int. The step that the training stands at; checkpoints of later steps stay.
        keep: int. How many checkpoints up to that step stay.
    """
    folder = pathlib.Path(run_dir) / "checkpoints"
    for old in [at for at in _steps(folder) if at <= step][keep:]:
        files.remove_tree(folder / f"step-{old}")
    for remains in folder.glob(".step-*"):  # of removals that were killed
        shutil.rmtree(remains, ignore_errors=True)
    files.remove_remains(folder)


def latest_checkpoint(run_dir):
    """Finds the whole checkpoint of the highest step.

    A damaged checkpoint is skipped with a warning.

    Args:
        run_dir: path of the run directory.

    Returns:
        The path of the checkpoint, or `None`.

    Raises:
        ValueError: the newest checkpoint has a newer format than this code knows, or a link leads
            out of the folder.
    """
    return next(whole_checkpoints(run_dir), None)


def whole_checkpoints(run_dir):
    """Yields the paths of all whole checkpoints, the highest step first; warns of others."""
    folder = files.inside(run_dir, "checkpoints")
    for step in _steps(folder):
        path = files.inside(run_dir, "checkpoints", f"step-{step}")
        if fault := _fault(path):
            warnings.warn(f"The checkpoint {path} is passed over: {fault}", stacklevel=3)
        else:
            yield path


def load_weights(path):
    """Loads the model of a checkpoint, not compiled and without its optimizer."""
    return load_model(files.inside(path, _MODEL), compiled=False)


def load_checkpoint(path):
    """Restores a model, its optimizer and the state of the training.

    Every weight and optimizer variable is compared with a fingerprint from the time of saving, so
    that a resumed training continues exactly.

    Args:
        path: path of a checkpoint; or of a run directory, whose latest whole checkpoint is loaded.

    Returns:
        `(model, state)`: the compiled model, and a `TrainingState`.

    Raises:
        FileNotFoundError: there is no checkpoint.
        ValueError: it is damaged, of a newer format, or cannot be restored exactly.

    Example:
        ```python
        model, state = kformer.saving.load_checkpoint("runs/en-de")
        state.step  # 1
        ```
    """
    path = pathlib.Path(path)
    if not (path / _STATE).exists():
        run_dir, path = path, latest_checkpoint(path)
        if path is None:
            raise FileNotFoundError(f"{run_dir} has no whole checkpoint to resume from.")
    elif fault := _fault(path):
        raise ValueError(f"{path} cannot be resumed from: {fault}")
    description, state = _read_state(path)
    model = load_model(files.inside(path, _MODEL), compiled=True)
    seeds, count = _seed_states(model), description["num_seeds"]
    if len(seeds) != count:
        raise ValueError(
            f"{path} has the states of {count} seed generators, but its model has {len(seeds)}."
        )
    if seeds:
        with np.load(files.inside(path, _SEEDS), allow_pickle=False) as states:
            for i, seed in enumerate(seeds):
                seed.assign(states[str(i)])
    is_compiled = getattr(model, "optimizer", None) is not None
    if not is_compiled or fingerprint(model) != description["fingerprint"]:
        raise ValueError(
            f"{path} cannot be resumed from: its weights or its optimizer's state differ from what "
            "was saved."
        )
    return model, state


def fingerprint(model):
    """Returns a digest of all weights, seed states and optimizer variables.

    It is the same on every backend.

    Args:
        model: a built model.

    Returns:
        A str of hexadecimal digits.
    """
    digest = hashlib.blake2b(digest_size=16)
    optimizer = getattr(model, "optimizer", None)
    states = [] if optimizer is None else optimizer.variables
    for variable in (*model.weights, *_seed_states(model), *states):
        value = np.ascontiguousarray(keras.ops.convert_to_numpy(variable))
        if np.issubdtype(value.dtype, np.integer):
            # TensorFlow counts iterations in 64 bits, the others in 32.
            value = value.astype("int64")
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def _seed_states(model):
    """Returns the variables that Keras leaves out of `.keras` files, except those of metrics."""
    elsewhere = {id(variable) for variable in [*model.weights, *model.metrics_variables]}
    return [variable for variable in model.variables if id(variable) not in elsewhere]


def _steps(folder):
    """Returns the steps of the checkpoints in a folder, the highest first."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        names = [entry.name for entry in os.scandir(folder) if entry.is_dir()]
        matches = (re.fullmatch(r"step-(0|[1-9][0-9]*)", name) for name in names)
        return sorted((int(match[1]) for match in matches if match), reverse=True)
    return []


def _read_state(path):
    """Returns the content of a checkpoint's `state.json`, and its `TrainingState`."""
    file = files.inside(path, _STATE)
    description = files.read_json(file)
    if is_damaged(description):
        raise ValueError(f"{file} is damaged: its checksum is wrong.")
    files.check_format_version(description, FORMAT_VERSION, file, "checkpoint")
    names = [field.name for field in dataclasses.fields(TrainingState)]
    state = TrainingState(**{name: description.get(name) for name in names})
    if path.name != f"step-{state.step}":
        raise ValueError(f"{file} is damaged: it is of step {state.step}, not of {path.name}.")
    if not isinstance(description.get("checksums"), dict) or "fingerprint" not in description:
        raise ValueError(f"{file} is damaged: it has no checksums or no fingerprint.")
    return description, state


def _fault(path):
    """Returns a sentence about what is wrong with a checkpoint, or `None`.

    A newer format is an error instead.
    """
    for name in (_STATE, _MODEL):
        if not (path / name).is_file():
            return f"{name} is missing."
    try:
        for name, checksum in _read_state(path)[0]["checksums"].items():
            if file_checksum(files.inside(path, name)) != checksum:
                return f"{name} is damaged: its checksum is wrong."
    except files.NewerFormatError:
        raise
    except (ValueError, FileNotFoundError) as error:
        return str(error)
    return None
