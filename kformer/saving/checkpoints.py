"""Checkpoints from which training goes on as if it had never stopped.

    RUN/checkpoints/step-500/
        model.keras     the model, how it was compiled, the optimizer's state, the counters that are
        weights (dropout) state.json      format_version, step, epoch, step_in_epoch, data,
        fingerprint, ... seeds.npz       states of Keras seed generators, where a model has any: a
        .keras file has them not

A checkpoint is written under another name, flushed to the disk and renamed last: `step-N` is whole
or not there."""

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

from kformer.saving.model_files import load_model, save_model, zip_fault
from kformer.utils import files
from kformer.utils.checks import check_whole

FORMAT_VERSION = 1
_MODEL, _STATE, _SEEDS = "model.keras", "state.json", "seeds.npz"


@dataclasses.dataclass(frozen=True)
class TrainingState:
    """Where a training stands.

    Args:
        step: int, the number of batches trained on so far.
        epoch: int, the index (from 0) of the epoch that the next batch belongs to.
        step_in_epoch: int, how many batches of that epoch are done.
        data: dict of JSON values that tell the data apart (seed, batch size, ...). It is kept as it
            is given, so that whoever resumes can see whether the data is still the same.
    """

    step: int
    epoch: int = 0
    step_in_epoch: int = 0
    data: dict = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        for name in ("step", "epoch", "step_in_epoch"):
            check_whole(f"{name} of a training state", getattr(self, name), least=0)
        if not isinstance(self.data, dict):
            raise ValueError(f"data of a training state must be a dict, but it is {self.data!r}.")


def save_checkpoint(run_dir, model, state, keep=3):
    """Writes `run_dir/checkpoints/step-N/`, N being `state.step`, and then removes those that it
    makes needless.

    Those are the older ones beyond `keep`, and those of a later step: they belong to a course of
    the training that was left when it was resumed from before them, and must not be taken up again.

    Args:
        run_dir: the run directory; it is made if it is missing.
        model: a compiled model. (Within `fit` on JAX the variables are behind: a callback gets an
            up-to-date model from `self.model`.)
        state: a `TrainingState`.
        keep: int, how many checkpoints stay, this one included.

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
        }
        files.write_json(aside / _STATE, description)
    steps = _steps(folder)
    for step in [step for step in steps if step > state.step] + [
        step for step in steps if step <= state.step
    ][keep:]:
        files.remove_tree(folder / f"step-{step}")
    for remains in folder.glob(".step-*"):  # of removals, and of writers of version 0.1
        shutil.rmtree(remains, ignore_errors=True)
    return path


def latest_checkpoint(run_dir):
    """The whole checkpoint of the highest step.

    A damaged one is passed over with a warning; what an interrupted process left half-written has
    another name, and does not count.

    Args:
        run_dir: the run directory.

    Returns:
        The checkpoint's path, or `None` where there is none.

    Raises:
        ValueError: the newest checkpoint has a newer format than this code knows, or a link leads
            out of the folder.
    """
    return next(_whole(run_dir), None)


def whole_checkpoints(run_dir):
    """The paths of all checkpoints that `latest_checkpoint` would take, from the highest step down."""
    return list(_whole(run_dir))


def _whole(run_dir):
    folder = files.inside(run_dir, "checkpoints")
    for step in _steps(folder):
        path = files.inside(run_dir, "checkpoints", f"step-{step}")
        fault = _fault(path)
        if fault is None:
            yield path
        else:
            warnings.warn(f"The checkpoint {path} is passed over: {fault}", stacklevel=3)


def load_weights(path):
    """The model of a checkpoint as it stands there, not compiled and without its optimizer."""
    return load_model(files.inside(path, _MODEL), compiled=False)


def load_checkpoint(path):
    """Restores a model, its optimizer and the state of the training.

    Every weight and every optimizer variable is compared with a fingerprint from the time of
    saving, so that a training never goes on from something that is merely similar.

    Args:
        path: a checkpoint, or a run directory, whose latest whole checkpoint is taken.

    Returns:
        `(model, state)`: the compiled model, and a `TrainingState`.

    Raises:
        FileNotFoundError: there is no checkpoint.
        ValueError: it is damaged, of a newer format, or cannot be restored exactly.

    Example:
        >>> model, state = kformer.saving.load_checkpoint("runs/en-de")
        >>> kformer.training.fit_from(model, train, state, epochs=20)
    """
    path = pathlib.Path(path)
    if not (path / _STATE).exists():
        latest = latest_checkpoint(path)
        if latest is None:
            raise FileNotFoundError(f"{path} has no whole checkpoint to go on from.")
        path = latest
    description = _read_state(path)
    model = load_model(files.inside(path, _MODEL), compiled=True)
    _restore_seeds(model, path, description.get("num_seeds", 0))
    if (
        getattr(model, "optimizer", None) is None
        or fingerprint(model) != description["fingerprint"]
    ):
        raise ValueError(
            f"{path} cannot be gone on from: the weights or the optimizer's state did not come back as they were saved."
        )
    return model, _training_state(description)


def fingerprint(model):
    """A digest of the bytes of all weights, seed states and optimizer variables, the same on every
    backend.

    Args:
        model: a built model.

    Returns:
        A string of hexadecimal digits.
    """
    digest = hashlib.blake2b(digest_size=16)
    optimizer = getattr(model, "optimizer", None)
    for variable in [
        *model.weights,
        *_seed_states(model),
        *([] if optimizer is None else optimizer.variables),
    ]:
        value = np.ascontiguousarray(keras.ops.convert_to_numpy(variable))
        if np.issubdtype(value.dtype, np.integer):
            value = value.astype(
                "int64"
            )  # TensorFlow counts iterations in 64 bits, the others in 32.
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def _seed_states(model):
    """The variables of a model that Keras keeps out of `.keras` files, its metrics' aside."""
    elsewhere = {id(variable) for variable in [*model.weights, *model.metrics_variables]}
    return [variable for variable in model.variables if id(variable) not in elsewhere]


def _restore_seeds(model, path, count):
    seeds = _seed_states(model)
    if len(seeds) != count:
        raise ValueError(
            f"{path} has the states of {count} seed generators, but the model in it has {len(seeds)}."
        )
    if not seeds:
        return
    try:
        with np.load(files.inside(path, _SEEDS), allow_pickle=False) as states:
            for i, seed in enumerate(seeds):
                seed.assign(states[str(i)])
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(f"{path / _SEEDS} is damaged: {error}.") from error


def _steps(folder):
    """The steps of the checkpoints in a folder, highest first."""
    steps = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for entry in os.scandir(folder):
            match = re.fullmatch(r"step-(0|[1-9][0-9]*)", entry.name)
            if match and entry.is_dir():
                steps.append(int(match[1]))
    return sorted(steps, reverse=True)


def _read_state(path):
    file = files.inside(path, _STATE)
    description = files.read_json(file)
    files.check_format_version(description, FORMAT_VERSION, file, "checkpoint")
    _training_state(description)
    if not isinstance(description.get("fingerprint"), str):
        raise ValueError(f"{file} is damaged: it has no fingerprint.")
    return description


def _training_state(description):
    return TrainingState(
        **{field.name: description.get(field.name) for field in dataclasses.fields(TrainingState)}
    )


def _fault(path):
    """What keeps a checkpoint from being used, as a sentence, or `None`. A newer format is no
    fault, but an error.
    """
    for name in (_STATE, _MODEL):
        if not (path / name).is_file():
            return f"{name} is missing."
    try:
        description = _read_state(path)
        archives = [_MODEL, _SEEDS] if description.get("num_seeds") else [_MODEL]
        faults = [(name, zip_fault(files.inside(path, name))) for name in archives]
    except files.NewerFormatError:
        raise
    except ValueError as error:
        return str(error)
    return next((f"{name} is damaged: {fault}." for name, fault in faults if fault), None)
