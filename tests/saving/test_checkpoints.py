"""What a checkpoint restores, and what happens to one that is half-written, damaged, too new or not
to be trusted.
"""

import json
import os
import zipfile

import keras
import numpy as np
import pytest

from kformer.saving import TrainingState, latest_checkpoint, load_checkpoint, save_checkpoint
from kformer.training import average_checkpoints
from kformer.utils.checksums import without_checksum
from tests.training.toy import ToyData, compiled_toy
from tests.utils.disk_calls import DiskCalls


def variables(model):
    return [keras.ops.convert_to_numpy(v) for v in [*model.weights, *model.optimizer.variables]]


def losses(model, first, count):
    data = ToyData().from_step(first)
    return [
        float(model.train_on_batch(*data[i], return_dict=True)["batch_loss"]) for i in range(count)
    ]


@pytest.fixture(scope="module")
def trained():
    """A model after four steps; tests only save it."""
    model = compiled_toy()
    losses(model, 0, 4)
    return model


@pytest.mark.parametrize(
    ("policy", "recipe"),
    [
        ("float32", {"clip_norm": 1.0, "learning_rate": 0.01}),
        ("mixed_float16", {"ema_momentum": 0.9}),
    ],
)
def test_everything_comes_back_and_training_goes_on_bit_for_bit(tmp_path, policy, recipe):
    """Weights, dropout counters, Adam's slots, iterations, averages, loss scale: the next losses
    are the same bits.
    """
    model = compiled_toy(policy, **recipe)
    losses(model, 0, 6)
    state = TrainingState(6, 1, 2, {"seed": 3, "files": ["a", "b"]})
    path = save_checkpoint(tmp_path / "run", model, state)
    assert path == tmp_path / "run" / "checkpoints" / "step-6"
    keras.config.set_dtype_policy("float32")
    copy, copied_state = load_checkpoint(tmp_path / "run")
    assert copied_state == state
    for saved, loaded in zip(variables(model), variables(copy), strict=True):
        assert saved.dtype == loaded.dtype
        np.testing.assert_array_equal(saved, loaded)
    assert int(copy.optimizer.iterations) == 6 and int(copy.dropout.step) == 6
    if policy == "mixed_float16":
        assert type(copy.optimizer).__name__ == "LossScaleOptimizer"
        assert copy.optimizer.inner_optimizer.use_ema
    expected = losses(model, 6, 5)
    assert losses(copy, 6, 5) == expected
    for saved, loaded in zip(variables(model), variables(copy), strict=True):
        np.testing.assert_array_equal(saved, loaded)


def test_keras_dropout_goes_on_too(tmp_path, backend):
    """The state of a Keras seed generator is no part of a .keras file; a checkpoint has it."""
    model = compiled_toy(keras_dropout=True)
    losses(model, 0, 3)
    save_checkpoint(tmp_path, model, TrainingState(3))
    copy = load_checkpoint(tmp_path)[0]
    seeds = [keras.ops.convert_to_numpy(m.dropout.seed_generator.state) for m in (model, copy)]
    np.testing.assert_array_equal(*seeds)
    if backend != "torch":  # Its dropout uses a random generator of the whole process.
        assert losses(copy, 3, 3) == losses(model, 3, 3)


def test_old_checkpoints_go_when_the_new_one_stands(tmp_path, trained):
    for step in (5, 10, 15, 20):
        save_checkpoint(tmp_path, trained, TrainingState(step), keep=2)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["step-15", "step-20"]
    # Training went on from step 15 once more: what came after it the first time must not be taken
    # up again.
    save_checkpoint(tmp_path, trained, TrainingState(17), keep=2)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["step-15", "step-17"]
    save_checkpoint(tmp_path, trained, TrainingState(17, 1), keep=2)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["step-15", "step-17"]
    assert load_checkpoint(tmp_path)[1] == TrainingState(17, 1)
    assert load_checkpoint(tmp_path / "checkpoints" / "step-15")[1] == TrainingState(15)


@pytest.mark.any_backend
def test_a_checkpoint_is_synced_before_the_rename_that_vouches_for_it(tmp_path, monkeypatch):
    calls = DiskCalls(monkeypatch)
    path = save_checkpoint(tmp_path, compiled_toy(), TrainingState(5))
    assert [name for call, name in calls.calls if call == "rename"][-1] == path
    assert calls.calls[-1] == ("fsync", path.parent.stat().st_ino)


@pytest.fixture
def two(tmp_path, trained):
    """A run directory with checkpoints at steps 5 and 10."""
    for step in (5, 10):
        save_checkpoint(tmp_path, trained, TrainingState(step))
    return tmp_path


def _cut(path):
    (path / "model.keras").write_bytes((path / "model.keras").read_bytes()[:-1000])


def _flip(path):
    content = bytearray((path / "model.keras").read_bytes())
    with zipfile.ZipFile(path / "model.keras") as archive:
        member = archive.getinfo("model.weights.h5")
    content[member.header_offset + member.file_size // 2] ^= 1
    (path / "model.keras").write_bytes(content)


def _flip_outside_of_members(path):
    """In the archive's directory, which has no checksum of its own: a date."""
    content = bytearray((path / "model.keras").read_bytes())
    content[content.rindex(b"PK\x01\x02") + 12] ^= 1
    (path / "model.keras").write_bytes(content)


def _flip_state(path):
    text = (path / "state.json").read_text()
    (path / "state.json").write_text(text.replace('"epoch": 0', '"epoch": 1'))


def _of_another_step(path):
    edit_state(path, step=7)


def edit_state(path, **changes):
    state = without_checksum(json.loads((path / "state.json").read_text()))
    (path / "state.json").write_text(json.dumps({**state, **changes}))


def _no_json(path):
    (path / "state.json").write_text("{")


def _no_step(path):
    edit_state(path, step=-1)


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_cut, "model.keras is damaged"),
        (_flip, "model.keras is damaged: its checksum is wrong"),
        (_flip_outside_of_members, "model.keras is damaged: its checksum is wrong"),
        (_flip_state, "state.json is damaged: its checksum is wrong"),
        (_of_another_step, "it is of step 7, not of step-10"),
        (_no_json, "not valid JSON"),
        (_no_step, "step of a training state must be"),
        (lambda path: (path / "state.json").unlink(), "state.json is missing"),
        (lambda path: (path / "model.keras").unlink(), "model.keras is missing"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over(two, damage, said):
    damage(two / "checkpoints" / "step-10")
    with pytest.raises((ValueError, FileNotFoundError)):
        load_checkpoint(two / "checkpoints" / "step-10")
    with pytest.warns(UserWarning, match=f"step-10 is passed over: .*{said}"):
        assert latest_checkpoint(two).name == "step-5"
    damage(two / "checkpoints" / "step-5")
    with pytest.warns(UserWarning), pytest.raises(FileNotFoundError, match="no whole checkpoint"):
        load_checkpoint(two)


@pytest.mark.any_backend
def test_half_written_checkpoints_do_not_count(two, trained, monkeypatch):
    class KilledError(Exception):
        pass

    def save(path):
        path.write_bytes(b"begun")
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(trained, "save", save)
        with pytest.raises(KilledError):
            save_checkpoint(two, trained, TrainingState(15))
    assert latest_checkpoint(two).name == "step-10"
    assert sorted(os.listdir(two / "checkpoints")) == ["step-10", "step-5"]
    # What killed writers and killed removals left.
    killed = two / "checkpoints" / ".partial-1" / "new"
    for remains in (killed, two / "checkpoints" / ".step-5-removed"):
        remains.mkdir(parents=True)
        (remains / "model.keras").write_bytes(b"begun")
    (killed.parent / ".lock").write_text("1")
    assert latest_checkpoint(two).name == "step-10"
    save_checkpoint(two, trained, TrainingState(20), keep=3)
    assert sorted(os.listdir(two / "checkpoints")) == ["step-10", "step-20", "step-5"]


@pytest.mark.any_backend
def test_a_newer_format_is_refused_in_a_sentence(two):
    edit_state(two / "checkpoints" / "step-10", format_version=2)
    for call in (latest_checkpoint, load_checkpoint):
        with pytest.raises(
            ValueError, match="format version 2, .* up to 1 .* install a newer kformer"
        ):
            call(two)


def test_a_checkpoint_that_is_merely_similar_is_refused(two):
    edit_state(two / "checkpoints" / "step-10", fingerprint="0" * 32)
    with pytest.raises(ValueError, match="differ from what was saved"):
        load_checkpoint(two)


@pytest.mark.any_backend
def test_links_out_of_the_folder_are_not_followed(two, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    inner = two / "checkpoints" / "step-10" / "model.keras"
    inner.rename(outside / "model.keras")
    inner.symlink_to(outside / "model.keras")
    with pytest.warns(UserWarning, match="link that leads out of"):
        assert latest_checkpoint(two).name == "step-5"
    (two / "checkpoints").rename(outside / "checkpoints")
    (two / "checkpoints").symlink_to(outside / "checkpoints")
    with pytest.raises(ValueError, match="link that leads out of"):
        latest_checkpoint(two)


@pytest.mark.any_backend
def test_code_in_a_model_is_not_run(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Lambda(lambda x: x + 1)])
    model.compile("adam", loss="mse")
    save_checkpoint(tmp_path, model, TrainingState(1))
    with pytest.raises(ValueError, match="cannot be loaded .*Lambda.*arbitrary code"):
        load_checkpoint(tmp_path)


@pytest.mark.any_backend
def test_what_is_wrong_is_said(tmp_path, trained):
    assert latest_checkpoint(tmp_path / "nowhere") is None
    with pytest.raises(FileNotFoundError, match="nowhere has no whole checkpoint"):
        load_checkpoint(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="keep must be a whole number of at least 1"):
        save_checkpoint(tmp_path, trained, TrainingState(1), keep=0)
    with pytest.raises(ValueError, match="compile the model"):
        save_checkpoint(tmp_path, keras.Sequential([keras.Input((2,))]), TrainingState(1))
    with pytest.raises(ValueError, match="takes JSON values alone"):
        save_checkpoint(tmp_path, trained, TrainingState(1, data={"seed": {1}}))
    assert latest_checkpoint(tmp_path) is None
    with pytest.raises(ValueError, match="epoch of a training state .* but 1.5"):
        TrainingState(1, 1.5)


def test_the_mean_of_the_last_checkpoints(tmp_path):
    model, kept = compiled_toy(), []
    for step in (3, 6, 9):
        losses(model, step, 3)
        save_checkpoint(tmp_path, model, TrainingState(step), keep=3)
        kept.append([keras.ops.convert_to_numpy(v).copy() for v in model.trainable_variables])
    for last, chosen in ((1, kept[2:]), (2, kept[1:]), (3, kept)):
        averaged, steps = average_checkpoints(tmp_path, last)
        assert steps == [3, 6, 9][-last:]
        for found, *parts in zip(averaged.trainable_variables, *chosen, strict=True):
            np.testing.assert_allclose(
                keras.ops.convert_to_numpy(found), np.mean(parts, axis=0), rtol=1e-6, atol=1e-8
            )
    with pytest.warns(UserWarning, match="has 3 checkpoints, not 10"):
        assert average_checkpoints(tmp_path)[1] == [3, 6, 9]
    (tmp_path / "checkpoints" / "step-9" / "model.keras").write_bytes(b"cut")
    with pytest.warns(UserWarning, match="step-9 is passed over"):
        assert average_checkpoints(tmp_path, 2)[1] == [3, 6]
    with pytest.raises(FileNotFoundError, match="no whole checkpoint to average"):
        average_checkpoints(tmp_path / "nothing")
    with pytest.raises(ValueError, match="last must be a whole number of at least 1, but 0"):
        average_checkpoints(tmp_path, 0)
