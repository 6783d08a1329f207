"""One training of one model: prepare, fit, choose the search."""

import contextlib
import pathlib
import tempfile
from collections.abc import Callable
from typing import NamedTuple

import keras

from kformer.data.endless_batches import FirstEpoch, RowsOfHost
from kformer.saving.model_files import zip_fault
from kformer.saving.run_directory import finish_saving, read_config
from kformer.trainer.callbacks import UnsavedModel, training_callbacks
from kformer.trainer.interruption import Interruption
from kformer.trainer.preparation import prepare
from kformer.trainer.resume import past_validations, write_config
from kformer.trainer.search import REASON, settle_search
from kformer.training.averages import averaged_weights
from kformer.training.callbacks.best_model import BestModel
from kformer.training.callbacks.progress import TrainingProgress
from kformer.training.fitting import fit_from
from kformer.training.hosts import Hosts, check_shared
from kformer.utils import files
from kformer_options.names import named
from kformer_options.training import default_of


class TrainResult(NamedTuple):
    """The result of `train_run`.

    Attributes:
        path: `pathlib.Path`. The run directory.
        steps: int. The steps of the training so far.
        history: dict of str to list. The metrics at the end of each epoch trained in this call.
        best: dict or `None`. The `epoch` of the saved model, and the `nll`, `mixed_nll` or `bleu`
            by which it was chosen; `None` without a validation set.
    """

    path: pathlib.Path
    steps: int
    history: dict[str, list[float]]
    best: dict[str, float] | None


class Reports(NamedTuple):
    """What takes the sentences and the progress of a training.

    Attributes:
        setting: function of a sentence about what the training is: a choice and its reason.
        outcome: function of a sentence about what became of it.
        progress: function that makes the `TrainingProgress`, from its arguments; `None` shows none.
    """

    setting: Callable[[str], object]
    outcome: Callable[[str], object]
    progress: Callable[..., TrainingProgress] | None


SILENT = Reports(lambda sentence: None, lambda sentence: None, None)


@contextlib.contextmanager
def locked_run(path):
    """Locks a run directory, and removes what killed processes left there.

    Args:
        path: `pathlib.Path` of the run directory.
    """
    with files.locked(path):
        finish_saving(path)
        for folder in (path, path / "data"):
            files.remove_remains(folder)
        yield


def train_one(path, options, resume, reports, hosts=None):
    """Trains one model in a run directory, or resumes the training there.

    Args:
        path: `pathlib.Path` of the run directory.
        options: dict of the options that are set.
        resume: bool. Whether a training there may be resumed.
        reports: `Reports`.
        hosts: `Hosts` or `None`, default `None`. The first writes, the others read; `None` for one
            host.

    Returns:
        `TrainResult`.
    """
    hosts = hosts or Hosts()
    with contextlib.ExitStack() as stack:
        hosts.first(lambda: stack.enter_context(locked_run(path)))
        check_shared(path, hosts)
        prepared = prepare(path, options, resume, reports, hosts)
        folder_of_host = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        history, metrics, best = _fit(path, prepared, folder_of_host, reports, hosts)
        hosts.part()
        state = prepared.state
        is_trained = state is None or history.step > state.step
        if hosts.is_first and (is_trained or REASON not in read_config(path)):
            validation = list(zip(prepared.validation, prepared.valid, strict=True))
            sets = prepared.train, validation, prepared.lengths
            settle_search(path, prepared.options, *sets, history.step, reports.outcome)
        return TrainResult(path, history.step, metrics, best)


def _fit(path, prepared, folder_of_host, reports, hosts):
    """Trains to the end. Returns the `StepHistory`, the metrics by epoch, and the best epoch."""
    options, state, total_steps = prepared.options, prepared.state, prepared.total_steps
    measure = options.select or default_of("select")
    measure = measure if prepared.general is None else "mixed_nll"
    validations = past_validations(path, measure, state)
    kind = BestModel if hosts.is_first else UnsavedModel
    best = kind(path, measure, options.patience or None, validations)
    is_over = state is not None and state.step >= total_steps
    if is_over:
        # The learning rate of a cooldown has come to 0, so no more steps can follow.
        remedy = "give more epochs or steps to go on"
        if options.cooldown:
            remedy = f"train the model further in another folder, with {named('start_from')}={path}"
        end = f"its end, step {total_steps:,}, already"
        reports.setting(f"The training has reached {end}: {remedy}.")
    steps = options.steps
    if best.has_waited:
        steps = total_steps = state.step
    elif not is_over:
        hosts.first(lambda: write_config(path, options, prepared.inherited))
        if keras.backend.backend() != "torch":
            reports.setting(
                "training: each shape of batch is compiled at its first step, which takes a minute "
                "or more in all; the time left is shown after it"
            )
    batches, valid, general = prepared.train, prepared.valid, prepared.general
    if hosts.count > 1:
        place = hosts.index, hosts.count
        batches = RowsOfHost(batches, *place)
        valid = [FirstEpoch(dataset, *place) for dataset in valid]
        general = general and FirstEpoch(general, *place)
    sets = valid, general
    history, callbacks = training_callbacks(path, prepared, best, hosts, folder_of_host, *sets)
    checkpoint = callbacks[-1]
    with contextlib.ExitStack() as stack:
        if reports.progress is not None:
            progress = reports.progress(total_steps, state, history.count_tokens)
            callbacks.append(stack.enter_context(progress))
        interruption = Interruption(checkpoint, reports.outcome, hosts)
        callbacks.append(stack.enter_context(interruption))
        end = {"epochs": options.epochs, "steps": steps}
        # Of several directions a callback measures each.
        validation = valid[0] if len(valid) == 1 else None
        validating = {"validation_data": validation, "validation_freq": options.valid_every}
        settings = {"callbacks": callbacks, "verbose": 0, **end, **validating}
        metrics = fit_from(prepared.model, batches, state, **settings)
    if best.has_waited:
        waited = f"{options.patience} validations in a row were no better"
        reports.outcome(f"stopped at step {history.step:,}: {waited}")
    if hosts.first(lambda: _restored(best, prepared.model)):
        reports.setting("model.keras was missing: it is now that of the latest checkpoint")
    elif best.best is not None:
        value = f"a validation {measure} of {best.value:.4f}"
        reports.outcome(f"best: epoch {best.best['epoch']}, with {value}, is in model.keras")
    return history, metrics, best.best


def _restored(best, model):
    """Sees to it that the run has a whole model. Returns whether it was lost."""
    if not best.path.exists():
        with averaged_weights(model):
            best.save(model)
        return True
    if fault := zip_fault(best.path):
        raise ValueError(
            f"{best.path} is damaged: {fault}. Restore it, or remove it and resume again, which "
            "writes the model of the latest checkpoint."
        )
    return False
