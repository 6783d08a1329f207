"""A training that goes on: its options."""

import dataclasses
import json
import os
import pathlib

import numpy as np
import pytest

from kformer.saving import TrainingState
from kformer.trainer import train_run
from kformer.trainer.resume import (
    past_validations,
    resume_options,
    stored_config,
    write_config,
)
from kformer.training.options import TrainOptions
from kformer.utils import files
from kformer_options.training import TRAINING


@pytest.mark.any_backend
def test_only_the_end_may_change_when_a_training_goes_on():
    stored = {**dataclasses.asdict(TrainOptions("a", "b", epochs=5, seed=3)), "from_the_future": 1}
    assert resume_options(stored, {"seed": 3, "keep": 9}, "run") == TrainOptions(
        "a", "b", epochs=5, seed=3, keep=9
    )
    assert resume_options(stored, {"steps": 7}, "run") == TrainOptions("a", "b", steps=7, seed=3)
    # With a cooldown it is settled, whichever of its limits is given once more.
    settled = {**stored, "cooldown": 0.25, "steps": 30}
    for given in ({"epochs": 5}, {"steps": 30}, {"epochs": 5, "steps": 30}):
        assert resume_options(settled, given, "run") == TrainOptions(
            "a", "b", epochs=5, steps=30, seed=3, cooldown=0.25
        )
    with pytest.raises(
        ValueError,
        match="began without epochs, .* which epochs=5 would move: leave the option out",
    ):
        resume_options({**settled, "epochs": None}, {"epochs": 5}, "run")
    with pytest.raises(
        ValueError, match="began with seed=3 and can only go on like that, not with 4"
    ):
        resume_options(stored, {"seed": 4}, "run")
    with pytest.raises(ValueError, match="began without effort and can only go on like that"):
        resume_options(stored, {"effort": 2}, "run")
    # What is given once more, as it was, changes nothing.
    both = {**stored, "steps": 30}
    assert resume_options(both, {"epochs": 5}, "run") == TrainOptions(
        "a", "b", epochs=5, steps=30, seed=3
    )


@pytest.mark.any_backend
def test_texts_may_have_moved():
    stored = {"train_source": "old/train.en", "train_target": "b", "teachers": ["old/run"]}
    found = resume_options(stored, {"train_source": "new/train.en"}, "run")
    assert found.train_source == "new/train.en"
    for given in ({"train_source": "old/test.en"}, {"teachers": ["new/run"]}):
        with pytest.raises(ValueError, match="can only go on like that"):
            resume_options(stored, given, "run")


@pytest.mark.any_backend
def test_numbers_of_numpy_can_be_stored():
    options = TrainOptions("a", "b", seed=np.int64(3), dropout=np.float32(0.5))
    assert type(options.seed) is int and type(options.dropout) is float
    assert type(TrainingState(np.int64(3)).step) is int


@pytest.mark.any_backend
@pytest.mark.parametrize("name", TRAINING)
def test_a_stored_option_of_a_wrong_type_is_named_with_its_file(name):
    wrong = "3" if TRAINING[name].type in (int, float) else 3
    stored = {"train_source": "a", "train_target": "b", name: wrong}
    with pytest.raises(ValueError, match=f"^{name} of run/config.json must be .* but {wrong!r}"):
        resume_options(stored, {}, "run")


@pytest.mark.any_backend
@pytest.mark.parametrize("value", [None, [], "x", 3])
def test_a_training_that_is_no_object_is_one_sentence(tmp_path, value):
    files.write_json(tmp_path / "config.json", {"format_version": 1, "training": value})
    with pytest.raises(ValueError, match="config.json is damaged: its training is not a JSON"):
        stored_config(tmp_path, resume=True)


@pytest.mark.any_backend
def test_a_past_validation_is_the_number_that_it_was(tmp_path):
    """Else an equal one behind it would count as better."""
    value = float(np.float32(6.1185904))
    (tmp_path / "history.csv").write_text("step,epoch,loss,val_nll\n1,1,6.1185904,6.1185904\n")
    (found,) = past_validations(tmp_path, "nll", TrainingState(step=5))
    assert found == {"epoch": 1, "nll": value}


@pytest.mark.any_backend
def test_the_same_model_options_are_known_in_a_config_that_names_the_positions():
    """Before presets recommended positions, the config of a new model had them."""
    files = dataclasses.asdict(TrainOptions("a", "b"))
    for given, stored in (
        ({}, {"position_encoding": "rope"}),
        ({"gated": True}, {"position_encoding": "rope", "gated": True}),
        ({"position_encoding": "alibi"}, {"position_encoding": "alibi"}),
        ({}, None),
    ):
        options = resume_options({**files, "model_options": stored}, {"model_options": given}, "r")
        assert options.model_options == stored
    # A model for transformers has sinusoidal ones.
    made_for = {**files, "made_for": "transformers"}
    stored = {"gated": True, "position_encoding": "sinusoidal"}
    options = resume_options(
        {**made_for, "model_options": stored}, {"model_options": {"gated": True}}, "r"
    )
    assert options.model_options == stored
    with pytest.raises(ValueError, match="began with model_options={'position_encoding': 'rope'}"):
        stored = {**files, "model_options": {"position_encoding": "rope"}}
        resume_options(stored, {"model_options": {"position_encoding": "alibi"}}, "run")


@pytest.mark.any_backend
@pytest.mark.parametrize("last", ["paths.json", "config.json"])
def test_a_training_that_was_killed_in_its_first_writes_begins_anew(tmp_path, monkeypatch, last):
    run, replace = tmp_path / "run", os.replace

    def killed(source, target):
        if target.name == last:
            # As after SIGKILL: what stands aside is not removed.
            monkeypatch.setattr(pathlib.Path, "unlink", lambda *_, **__: None)
            raise KeyboardInterrupt
        replace(source, target)

    run.mkdir()
    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_config(run, TrainOptions("a", "b"), {})
    assert f".{last.removesuffix('.json')}.partial.json" in os.listdir(run)
    assert stored_config(run, resume=True) is None
    (run / "notes.txt").touch()
    with pytest.raises(ValueError, match="holds no training .it has notes.txt.: choose another"):
        stored_config(run, resume=True)


@pytest.mark.any_backend
@pytest.mark.parametrize("name", ["data", "tokenizer", "checkpoints", "history.csv"])
def test_a_training_goes_on_in_no_folder_with_a_link_that_leads_out(tmp_path, name):
    run, outside = tmp_path / "run", tmp_path / "outside"
    outside.mkdir()
    (run / "inside").mkdir(parents=True)
    files.write_json(run / "config.json", {"format_version": 1, "training": {}})
    (run / "link").symlink_to(run / "inside")
    (run / "history.csv").write_text("")
    assert stored_config(run, resume=True) == {"training": {}}
    (run / "history.csv").unlink(missing_ok=True)
    (run / name).symlink_to(outside)
    with pytest.raises(ValueError, match=f"{name} is a link that leads out of .*run, and is not"):
        stored_config(run, resume=True)


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("step,epoch,val_nll\n5,1,3.06<\n", "'3.06<' as its val_nll"),
        ("step,epoch,val_nll\n5,x,3.06\n", "'x' as its epoch"),
        ("step,epoch,val_nll\n5;,1,3.06\n", "'5;' as its step"),
        ("sdep,epoch,val_nll\n5,1,3.06\n", "None as its step"),
        (b"step,epoch,val_nll\n5,1,3.\xff6\n", "'3.\ufffd6' as its val_nll"),
    ],
)
def test_a_damaged_validation_in_the_history_is_named(tmp_path, text, said):
    (tmp_path / "history.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=f"history.csv is damaged: a row has {said}"):
        past_validations(tmp_path, "nll", TrainingState(step=5))


@pytest.mark.any_backend
def test_a_training_is_replaced_once_the_new_one_is_known_to_be_usable(tmp_path, monkeypatch):
    run, text = tmp_path / "run", tmp_path / "text"
    text.write_text("noon\n", encoding="utf-8")
    pair = {"train_source": str(text), "train_target": str(text)}
    for name in ("checkpoints/step-1/model.keras", "history.csv", "model.keras"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).touch()
    write_config(run, TrainOptions(**pair), {})
    before = sorted(os.listdir(run))
    seen = []
    monkeypatch.setattr(
        "kformer.trainer.run.train_one", lambda path, *rest: seen.append(os.listdir(path))
    )
    for wrong in ({"train_source": "absent"}, {"epochs": -1}, {"train_target": None}):
        with pytest.raises((ValueError, FileNotFoundError)):
            train_run(run, overwrite=True, **{**pair, **wrong})
    with pytest.raises(ValueError, match="overwrite replaces it: give one of them"):
        train_run(run, overwrite=True, resume=True, **pair)
    (tmp_path / "link").symlink_to(run)
    for read in ({"start_from": run}, {"teachers": [text, tmp_path / "link"]}):
        with pytest.raises(
            ValueError, match=f"overwrite would remove .*, which {[*read][0]} reads"
        ):
            train_run(run, overwrite=True, **pair, **read)
    (run / "lines").write_text("noon\n", encoding="utf-8")
    description, entry = tmp_path / "corpora.yaml", {"source": "text", "target": "run/lines"}
    description.write_text(json.dumps({"corpora": {"all": {**entry, "languages": "en-de"}}}))
    with pytest.raises(ValueError, match="overwrite would remove .*lines, which corpora reads"):
        train_run(run, overwrite=True, corpora=description)
    (run / "lines").unlink()
    assert sorted(os.listdir(run)) == before and not seen
    train_run(run, overwrite=True, **pair)
    assert seen == [[]]
    (run / "notes").touch()
    with pytest.raises(ValueError, match="not empty and holds no training"):
        train_run(run, overwrite=True, **pair)
    assert (run / "notes").exists() and len(seen) == 1


@pytest.mark.any_backend
def test_there_must_be_a_training_to_go_on_with(tmp_path):
    with pytest.raises(FileNotFoundError, match="no training in .* by train_source and train_tar"):
        train_run(tmp_path / "absent", resume=True)
    assert not (tmp_path / "absent").exists()
