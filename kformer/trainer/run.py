"""`train_run`: a whole training, from two text files to a run directory."""

import contextlib
import os
import pathlib
import sys
from collections.abc import Callable, Sequence

from kformer.data import Corpora
from kformer.trainer.data import count_pairs
from kformer.trainer.effort import train_effort
from kformer.trainer.lines import validation_sets
from kformer.trainer.resume import PLAN_FILE, remove_training
from kformer.trainer.training import SILENT, Reports, TrainResult, train_one
from kformer.training.callbacks.progress import TrainingProgress
from kformer.training.devices import distribution
from kformer.training.hosts import join_hosts
from kformer.training.options import TrainOptions, check_options
from kformer.utils.checks import check_whole
from kformer.utils.types import Path
from kformer_options.host_addresses import place_of_host
from kformer_options.model_folders import PARTS, check_begun
from kformer_options.names import named
from kformer_options.text_files import is_path
from kformer_options.training import TRAINING


def train_run(
    output: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    devices: int | str | None = None,
    model_parallel: int | None = None,
    hosts: Sequence[str] | str | None = None,
    host_index: int | None = None,
    jobs: int = 1,
    report: Callable[[str], object] | None = None,
    show_progress: bool = True,
    **options,
) -> TrainResult:
    """Trains a translation model from text files into a run directory, or resumes a training.

    It trains a tokenizer, prepares the text (in `output/data/`) and trains the model with
    `model.fit`. At the end of each epoch it replaces `model.keras`: with a validation set by the
    best model so far (by `select`), else by the latest. So `Translator.load(output)` can load the
    run while it is still in training.

    A training that was killed can be resumed from its latest checkpoint, with exactly the same
    losses. Ctrl-C and SIGTERM end it after the current step, with a checkpoint.

    Args:
        output: path. The run directory.
        resume: bool, default False. Whether to resume the training in `output`. If there is none
            yet, a new one begins, from the text that is given.
        overwrite: bool, default False. Whether an earlier training in `output` is removed, once the
            options and the text of the new one are known to be usable.
        devices: int, "all" or `None`, default `None`. The devices that share each batch, as of
            `kformer.training.distribution`; `None` for one, or for all with `model_parallel`. A
            resumed training may have others.
        model_parallel: int or `None`, default `None`. The devices that share a model, as there;
            `None` for one.
        hosts: list of str, str or `None`, default `None`. The addresses of all hosts that train
            together, each `HOST` or `HOST:PORT`, this one included; the others meet at the first.
            All call this function with the same arguments but `host_index`, in new processes, on
            JAX. "auto" reads the variables of Slurm, of `torchrun`-like launchers or
            `KFORMER_HOSTS`. `None` trains on this host alone. All devices of each host train. The
            first host writes `output`, which all must see.
        host_index: int or `None`, default `None`. The number of this host among `hosts`, from 0;
            `None` with "auto".
        jobs: int, default 1. The trainings of an effort of 2 or 3 that run at once, each in a
            process of its own with an equal share of the cores, and on the same GPU if there is
            one.
        report: function or `None`, default `None`. Takes each sentence about the set-up; `None`
            prints them on standard error.
        show_progress: bool, default True. Whether to show steps, rate and time left on standard
            error.
        **options: attributes of `TrainOptions`.

    Returns:
        `TrainResult`.

    Raises:
        FileNotFoundError: a file is missing, or the training to resume.
        TypeError: there is no such option.
        ValueError: an option, a file or the run directory cannot be used, or a host has another
            than the first. The message has the reason and a remedy.
        TrainingInterrupted: Ctrl-C or SIGTERM ended the training. It is a `KeyboardInterrupt`.

    Example:
        ```python
        result = kformer.trainer.train_run(
            "runs/small",
            train_source="train.en",
            train_target="train.de",
            valid_source="val.en",
            valid_target="val.de",
            model_options={"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 32},
            steps=2,
        )
        print(result.steps)  # 2
        ```
    """
    path = pathlib.Path(output)
    options = {name: value for name, value in options.items() if value is not None}
    if unknown := set(options) - set(TRAINING):
        raise TypeError(
            f"Unknown training option {', '.join(sorted(unknown))}; kformer.trainer.TrainOptions "
            "lists them."
        )
    if resume and overwrite:
        raise ValueError(
            f"{named('resume')} goes on with a training, and {named('overwrite')} replaces it: "
            "give one of them."
        )
    if resume and not {"train_source", "corpora"} & options.keys():
        check_begun(path)
    is_effort = (options.get("effort") or 1) != 1
    is_effort = is_effort or not overwrite and (path / PARTS / PLAN_FILE).exists()
    place = _place(hosts, host_index, devices, model_parallel, jobs, is_effort)
    all_hosts = join_hosts(place)
    report = report or (lambda sentence: print(sentence, file=sys.stderr, flush=True))
    reports = Reports(report, report, TrainingProgress if show_progress else None)
    if not all_hosts.is_first:
        reports = SILENT
    scope = contextlib.nullcontext()
    if hosts:
        devices = "all"
    if devices not in (None, 1) or model_parallel not in (None, 1):
        scope = distribution(devices or "all", model_parallel or 1).scope()
    with all_hosts.together(), scope:
        if overwrite:
            settled = TrainOptions(**options)
            check_options(settled, has_validation=bool(validation_sets(settled)))
            count_pairs(settled)
            _check_inputs(path, options)
            all_hosts.first(lambda: remove_training(path))
        if is_effort:
            return train_effort(path, options, resume, reports, jobs)
        return train_one(path, options, resume, reports, all_hosts)


def _check_inputs(path, options):
    """Refuses what a training reads in a folder that it is to empty first."""
    paths = [
        (name, each)
        for name, value in options.items()
        if name != "log_dir" and TRAINING[name].type in (os.PathLike, list)
        for each in filter(is_path, value if isinstance(value, list | tuple) else [value])
    ]
    if "corpora" in options:
        paths += [("corpora", each) for each in Corpora.load(options["corpora"]).files]
    for name, each in paths:
        if pathlib.Path(each).resolve().is_relative_to(path.resolve()):
            raise ValueError(
                f"{named('overwrite')} would remove {each}, which {named(name)} reads: give "
                "another folder for the new training."
            )


def _place(hosts, host_index, devices, model_parallel, jobs, is_effort):
    """The `HostPlace` of this host, or `None`, once hosts, devices and jobs go together."""
    if check_whole("jobs", jobs) > 1:
        if not is_effort:
            raise ValueError(
                f"{named('jobs')}={jobs} is for the parts of {named('effort')} 2 or 3: give that, "
                f"or leave {named('jobs')} out."
            )
        shared = {"devices": devices, "model_parallel": model_parallel, "hosts": hosts}
        for name, value in shared.items():
            if value not in (None, 1):
                raise ValueError(
                    f"{named('jobs')} trains several models at once, and {named(name)} one model "
                    "on several devices: leave one of them out."
                )
    if hosts and devices not in (None, "all"):
        raise ValueError(f"All devices of each host train: leave {named('devices')} out.")
    if hosts and model_parallel not in (None, 1):
        raise ValueError(
            "A model that devices share is trained on one host: leave out "
            f"{named('model_parallel')} or {named('hosts')}."
        )
    place = place_of_host(hosts, host_index)
    if is_effort and place is not None and place.count > 1:
        raise ValueError(f"An effort of 2 or 3 trains on one host: leave {named('hosts')} out.")
    return place
