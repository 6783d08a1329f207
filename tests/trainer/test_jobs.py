"""Several trainings at once: `train_run` with an effort and jobs."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from kformer.saving import latest_checkpoint, read_config
from kformer.trainer import jobs, train_run
from kformer.trainer.effort_parts import PartMaker
from kformer.trainer.jobs import Jobs
from kformer.trainer.training import Reports
from kformer.training.callbacks.progress import TrainingProgress
from kformer.training.machine import configuration, configure_machine
from kformer.utils import files
from kformer_options.commands import COMMANDS
from kformer_options.names import command_line_names
from tests.trainer.test_effort import SIZES, few_steps, train  # noqa: F401
from tests.trainer.test_run import losses_of, write_pairs


class Part:
    """A part that trains a run by `Jobs`, as those of an effort do."""

    def __init__(self, work, path, **options):
        self._work, self.path, self._options = work, path, options
        self.said, self.result = [], None

    def make(self):
        reports = Reports(self.said.append, self.said.append, TrainingProgress)
        self.result = self._work.train(self.path, self._options, False, reports)


@pytest.mark.slow
@pytest.mark.any_backend(quickest="torch")
def test_teachers_trained_at_once_are_those_trained_in_turn(tmp_path, monkeypatch):
    texts, said = write_pairs(tmp_path), []

    def interrupted(self, *arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(PartMaker, "text", interrupted)
    for run, settings in (("once", {"jobs": 2}), ("turn", {})):
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / run, texts, said, effort=2, **settings)
    assert read_config(tmp_path / "once")["part"] == "forward-1"
    done = files.read_json(tmp_path / "once" / "parts" / "done.json")
    assert sorted(done) == ["backward-1", "forward-1", "speed"]
    (both,) = [sentence for sentence in said if "2 at once" in sentence]
    assert both.startswith("effort: 2 of 7 parts (forward-1, backward-1), 2 at once; ")
    assert [sentence for sentence in said if sentence.startswith("forward-1: model:")]
    assert not [sentence for sentence in said if sentence.startswith("backward-1: model:")]
    for name in ("forward-1", "backward-1"):
        once, turn = (losses_of(tmp_path / run / "parts" / name) for run in ("once", "turn"))
        np.testing.assert_allclose([float(loss) for loss in once], [float(x) for x in turn], 1e-5)


@pytest.mark.slow
@pytest.mark.any_backend(quickest="torch")
def test_a_training_that_fails_ends_the_others_with_a_checkpoint(tmp_path):
    texts, work = write_pairs(tmp_path), Jobs(2)
    small = {"model_options": SIZES, "vocabulary_size": 380, **texts}
    long = Part(work, tmp_path / "long", epochs=100_000, **small)

    class Wrong(Part):
        def make(self):
            while not any(sentence.startswith("epoch ") for sentence in long.said):
                time.sleep(0.1)
            super().make()

    wrong = Wrong(work, tmp_path / "wrong", **{**small, "vocabulary_size": 200_000})
    never = Part(work, tmp_path / "never", **small)
    with pytest.raises(ValueError, match="^vocabulary_size=200000 is too large"):
        list(work.make([long, wrong, never]))
    assert not never.path.exists()
    assert latest_checkpoint(long.path) is not None
    assert [sentence for sentence in long.said if sentence.startswith("SIGTERM: saving a check")]


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_what_a_process_returns_and_the_settings_that_it_has(tmp_path, monkeypatch):
    texts, work, begun = write_pairs(tmp_path), Jobs(2), []
    former, start = configuration(), jobs._start

    def recorded(work, threads, log):
        begun.append((work["machine"], threads))
        return start(work, threads, log)

    monkeypatch.setattr(jobs, "_start", recorded)
    monkeypatch.setattr(jobs, "count_cores", lambda: 2)
    configure_machine(matmul_precision="highest")
    chosen = configuration()
    try:
        part = Part(
            work, tmp_path / "run", model_options=SIZES, vocabulary_size=380, steps=2, **texts
        )
        ((made, seconds),) = work.make([part])
    finally:
        configure_machine(**former)
    assert made is part and seconds > 0
    assert begun == [(chosen, 2)] and chosen["matmul_precision"] == "highest"
    assert part.result.path == part.path and part.result.steps == 2
    assert part.result.best["nll"] == part.result.history["val_nll"][-1]


@pytest.mark.any_backend
def test_threads_are_shared_by_the_parts_that_are_left(monkeypatch):
    monkeypatch.setattr(jobs, "count_cores", lambda: 8)
    work, threads = Jobs(3), []

    class Waiting:
        def make(self):
            threads.append(work._threads.count)

    list(work.make([Waiting() for _ in range(4)]))
    assert sorted(threads) == [2, 2, 4, 8]  # Threads may overtake each other.


@pytest.mark.slow
@pytest.mark.any_backend(quickest="torch")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_all_processes_with_checkpoints(tmp_path, number):
    texts, run = write_pairs(tmp_path), tmp_path / "run"
    options = [f"--{name.replace('_', '-')}={path}" for name, path in texts.items()]
    options += [f"--model-option={name}={size}" for name, size in SIZES.items()]
    command = [sys.executable, "-m", "kformer_cli", "train", "--output", str(run), "--effort=2"]
    command += [*options, "--vocabulary-size=380", "--epochs=100000", "--jobs=2", "--threads=2"]
    parts = [run / "parts" / name for name in ("forward-1", "backward-1")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            begun = set()
            for line in process.stderr:
                begun |= {part for part in parts if line.startswith(f"{part.name}: epoch ")}
                if len(begun) == 2:
                    break
            process.send_signal(number)
            said = process.stderr.read()
        finally:
            process.kill()
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number
        assert said.splitlines()[-1] == (
            f"interrupted; `kformer train --output {run} --resume` goes on with the part "
            "that it was at."
        )
    end = time.monotonic() + 60
    for part in parts:
        while _is_locked(part) and time.monotonic() < end:
            time.sleep(0.2)
        assert not _is_locked(part)
        assert latest_checkpoint(part) is not None


def _is_locked(folder):
    try:
        with files.locked(folder):
            return False
    except files.LockedError:
        return True


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_on_the_command_line_a_process_names_options_as_the_command_does(tmp_path):
    texts = write_pairs(tmp_path)
    with command_line_names():
        work = Jobs(2)
        wrong = Part(work, tmp_path / "wrong", vocabulary_size=200_000, **texts)
        with pytest.raises(ValueError, match="^--vocabulary-size=200000 is too large"):
            list(work.make([wrong]))
        flag = f"--{COMMANDS['jobs'].flag}"
        with pytest.raises(ValueError, match=f"^{flag}=2 is for .* or leave {flag} out"):
            train_run(tmp_path / "run", jobs=2, **texts)


@pytest.mark.any_backend
def test_jobs_that_cannot_be(tmp_path):
    run, texts = tmp_path / "run", {"train_source": "a", "train_target": "b"}
    for options, words in (
        ({"jobs": 2}, "^jobs=2 is for the parts of effort 2 or 3"),
        ({"jobs": 0, "effort": 2}, "^jobs must be a whole number of at least 1, but 0 was given"),
        ({"jobs": 2, "effort": 2, "devices": 2}, "and devices one model on several devices"),
        ({"jobs": 2, "effort": 2, "hosts": ["a", "b"]}, "and hosts one model on several"),
    ):
        with pytest.raises(ValueError, match=words):
            train_run(run, **texts, **options)
    assert not run.exists()


@pytest.mark.any_backend
def test_jobs_leave_each_other_room_on_a_gpu(monkeypatch):
    preallocate, grow = "XLA_PYTHON_CLIENT_PREALLOCATE", "TF_FORCE_GPU_ALLOW_GROWTH"
    for name in (preallocate, grow):
        monkeypatch.setenv(name, "")  # So that it is taken back in the end.
        monkeypatch.delenv(name)
    Jobs(1)
    assert preallocate not in os.environ
    monkeypatch.setenv(grow, "false")  # The user's own wish stays.
    Jobs(2)
    assert (os.environ[preallocate], os.environ[grow]) == ("false", "false")
