"""Training that is interrupted and resumed has the loss sequence of the uninterrupted one, bit for
bit.
"""

import pathlib
import shutil
import signal
import subprocess
import sys

import keras
import pytest

from kformer import saving, training
from kformer.data import ParallelDataset
from kformer.saving.checkpoints import fingerprint
from kformer.training.callbacks.step_counter import StepCounter
from kformer.training.fitting import plan_fits
from tests.training.toy import ToyData, compiled_toy, train

ROOT = pathlib.Path(__file__).parent.parent.parent


class Letters:
    """A tokenizer of single letters, as far as the data needs one."""

    pad_id, unknown_id, start_id, end_id = 0, 1, 2, 3
    vocabulary_size = target_vocabulary_size = 23

    def tokenize(self, texts, side="source", special_tokens=False, **options):
        return [[4 + ord(letter) - ord("a") for letter in text] + [self.end_id] for text in texts]


def history_of(run_dir):
    """The history without its times."""
    lines = (pathlib.Path(run_dir) / "history.csv").read_text().splitlines()
    return [line.split(",")[:5] + line.split(",")[6:] for line in lines]


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_after_kill_9_in_mid_epoch_another_process_goes_on_bit_for_bit(tmp_path):
    train(tmp_path / "whole")
    command = [sys.executable, "-m", "tests.training.toy", str(tmp_path / "run"), "--kill-at", "13"]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    # At step 13, ten steps are safe: the first checkpoint's five and the second's.
    assert [line[0] for line in history_of(tmp_path / "run")[1:]] == [str(n) for n in range(1, 11)]
    train(tmp_path / "run", resume=True)
    assert history_of(tmp_path / "run") == history_of(tmp_path / "whole")
    assert len(history_of(tmp_path / "whole")) == 22


def back_to(step, whole, run_dir):
    """A copy of a run directory as it was when the checkpoint of this step was the newest."""
    shutil.copytree(
        whole / "checkpoints" / f"step-{step}", run_dir / "checkpoints" / f"step-{step}"
    )
    shutil.copy(whole / "history.csv", run_dir)


@pytest.mark.heavy
def test_loss_scale_and_averages_are_restored_in_mid_epoch(tmp_path):
    """And `fit`, which puts averages in the place of the weights at its end, does not hand them to
    what follows.
    """
    model = train(tmp_path / "whole", every=4, keep=9, policy="mixed_float16", ema_momentum=0.9)
    back_to(4, tmp_path / "whole", tmp_path / "run")
    resumed = train(tmp_path / "run", resume=True, every=4)
    assert history_of(tmp_path / "run") == history_of(tmp_path / "whole")
    assert fingerprint(resumed) == fingerprint(model)


@pytest.mark.any_backend(quickest="torch")
def test_steps_end_a_training_in_mid_epoch_and_it_goes_on_from_there(tmp_path):
    train(tmp_path / "whole", epochs=2)
    model, run_dir = compiled_toy(), tmp_path / "run"

    def fit(model, state, **limits):
        history = training.StepHistory(run_dir, resume_from=state)
        checkpoint = training.Checkpoint(run_dir, resume_from=state, history=history)
        return training.fit_from(
            model, ToyData(), state, callbacks=[history, checkpoint], verbose=0, **limits
        )

    assert len(fit(model, None, steps=10, epochs=5)["loss"]) == 2
    assert saving.load_checkpoint(run_dir)[1] == saving.TrainingState(10, 1, 3)
    assert len(fit(*saving.load_checkpoint(run_dir), steps=99, epochs=2)["loss"]) == 1
    losses = [line[:4] for line in history_of(run_dir)]
    assert losses == [line[:4] for line in history_of(tmp_path / "whole")]
    assert saving.load_checkpoint(run_dir)[1] == saving.TrainingState(14, 2, 0)
    assert fit(model, saving.TrainingState(14, 2), epochs=2) == {}


@pytest.mark.any_backend(quickest="torch")
def test_the_end_of_a_training_is_validated(tmp_path):
    """Whatever the epochs between two validations; also where it goes on with another length."""
    model, last_epochs = compiled_toy(), []

    class Seen(StepCounter):
        def on_epoch_end(self, epoch, logs=None):
            seen.extend([epoch + 1] if "val_loss" in logs else [])
            last_epochs.append(self.last_epoch)

    state = None
    for limits, validated in (
        ({"steps": 10}, [2]),
        ({"epochs": 5}, [3, 5]),
        ({"epochs": 6}, [6]),
    ):
        seen, counter = [], Seen(resume_from=state)
        arguments = {"validation_data": ToyData()[0], "validation_freq": 3, "verbose": 0}
        training.fit_from(model, ToyData(), state, callbacks=[counter], **limits, **arguments)
        assert seen == validated
        state = saving.TrainingState(counter.step, *counter.next_batch())
    assert last_epochs == [2, 2, 5, 5, 5, 5, 6]


@pytest.mark.any_backend(quickest="torch")
def test_the_end_of_a_training_is_validated_in_each_direction(monkeypatch):
    model, measured = compiled_toy(), []
    monkeypatch.setattr(model, "evaluate", lambda data, **settings: {"nll": data})
    both = training.DirectionValidation({"en-de": 1.0, "de-en": 2.0}, every=3)
    seen = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: measured.append(logs.get("val_nll"))
    )
    training.fit_from(model, ToyData(), steps=24, callbacks=[both, seen], verbose=0)
    assert measured == [None, None, 1.5, 1.5]


def test_a_transformer_resumes_bit_for_bit(tmp_path, tiny_transformer):
    """With the package's own model, data and dropout."""
    texts = ["abcdefghijkl"[i % 7 :][: 1 + i % 5] for i in range(48)]
    data = ParallelDataset(texts, texts, Letters(), batch_tokens=64, max_shapes=1)

    def fit(run_dir, model, state=None):
        history = training.StepHistory(run_dir, resume_from=state)
        checkpoint = training.Checkpoint(
            run_dir, every=3, keep=9, resume_from=state, history=history
        )
        callbacks = [history, checkpoint]
        training.fit_from(model, data, state, steps=len(data) + 3, callbacks=callbacks, verbose=0)
        return fingerprint(model)

    model = tiny_transformer(
        vocabulary_size=23, dropout=0.2, num_encoder_layers=1, num_decoder_layers=1
    )
    model.compile(**training.paper_recipe(model, warmup_steps=10, clip_norm=1.0))
    whole = fit(tmp_path / "whole", model)
    back_to(3, tmp_path / "whole", tmp_path / "run")
    assert fit(tmp_path / "run", *saving.load_checkpoint(tmp_path / "run")) == whole
    assert history_of(tmp_path / "run") == history_of(tmp_path / "whole")
    assert len(history_of(tmp_path / "whole")) == len(data) + 4


@pytest.mark.any_backend
def test_calls_of_fit_cover_each_step_once():
    assert plan_fits(0, 21, 7) == [(0, 3, 7)]
    assert plan_fits(25, 58, 10) == [(2, 3, 5), (3, 5, 10), (5, 6, 8)]
    assert plan_fits(3, 5, 7) == [(0, 1, 2)]
    assert plan_fits(14, 14, 7) == plan_fits(15, 14, 7) == []
    for start in range(12):
        for end in range(start, 20):
            calls = plan_fits(start, end, 5)
            assert sum((last - first) * length for first, last, length in calls) == end - start
            assert len(calls) <= 3


@pytest.mark.any_backend
def test_other_data_than_before_is_refused():
    with pytest.raises(
        ValueError,
        match="step 9, after 1 epoch and 2 steps, but .* 5 steps: resume with the data",
    ):
        training.fit_from(None, ToyData(5), saving.TrainingState(9, 1, 2), epochs=3)
    with pytest.raises(ValueError, match="give epochs, steps or both"):
        training.fit_from(None, ToyData(5))


@pytest.mark.any_backend
def test_several_steps_at_once_are_counted_as_they_are():
    counter = StepCounter()
    counter.set_params({"steps": 5})
    counter.on_epoch_begin(0)
    for last in (1, 3, 5):  # As Keras reports calls of two steps, of which the last has one.
        counter.on_train_batch_end(last)
    assert (counter.step, counter.step_in_epoch, counter.is_last_batch()) == (5, 5, True)
    model = compiled_toy()
    model.steps_per_execution = 2
    with pytest.raises(ValueError, match="steps_per_execution=2 does not divide the 7 steps"):
        training.fit_from(model, ToyData(7), epochs=1, verbose=0)
