"""A whole training by `train_run`: what it writes, keeps and resumes."""

import csv
import json
import os
import shutil
import types

import numpy as np
import pytest

import kformer
from kformer.saving import load_run, read_config
from kformer.saving.run_directory import update_config
from kformer.trainer import TrainOptions, train_run
from kformer.training import paper_recipe
from kformer.training.new_model import make_model
from kformer.utils import files
from kformer.utils.checksums import without_checksum
from tests.peers import to_numpy

QUIET = {"report": lambda sentence: None, "show_progress": False}


def write_pairs(folder):
    """Files of a small corpus, as options of `train_run`."""
    options = {}
    for split, count in (("train", 160), ("valid", 20)):
        pairs = kformer.examples.generate_pairs(count, split=split, categories="time")
        for side in ("source", "target"):
            path = folder / f"{split}.{side}"
            path.write_text("".join(getattr(pair, side) + "\n" for pair in pairs), encoding="utf-8")
            options[f"{split}_{side}"] = str(path)
    return options


def write_small_run(folder, texts, seed=0):
    tokenizer = kformer.Tokenizer.train(texts, vocabulary_size=380, model_type="unigram")
    sizes = {
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "hidden_dim": 16,
        "intermediate_dim": 16,
        "num_heads": 2,
    }
    model = kformer.Transformer(
        tokenizer.vocabulary_size, **sizes, dropout=0.2, max_length=48, seed=seed
    )
    return str(kformer.Translator(model, tokenizer).save(folder))


def losses_of(path):
    with open(path / "history.csv", encoding="utf-8", newline="") as file:
        return [row["loss"] for row in csv.DictReader(file)]


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_a_packed_training_goes_on_through_the_same_losses(tmp_path):
    options = write_pairs(tmp_path)
    start = write_small_run(tmp_path / "small", [options["train_source"], options["train_target"]])
    said = []
    options |= {
        "start_from": start,
        "batch_tokens": 512,
        "packed": True,
        "learning_rate": 0.02,
        "warmup_steps": 4,
    }
    files = {name: path for name, path in options.items() if not name.startswith("valid")}
    settings = {**files, "report": said.append, "show_progress": False}
    whole = train_run(tmp_path / "whole", epochs=2, **settings)
    assert any("% full, packed into one shape BxSxT" in sentence for sentence in said)
    model, _, config = load_run(tmp_path / "whole")
    assert config["training"]["packed"] is True and config["training"]["max_shapes"] is None
    assert model.get_config() == load_run(start)[0].get_config()
    steps = whole.steps // 2 + 1
    assert train_run(tmp_path / "parts", steps=steps, **settings).steps == steps
    rest = train_run(
        tmp_path / "parts", resume=True, epochs=2, report=said.append, show_progress=False
    )
    assert rest.steps == whole.steps == len(losses_of(tmp_path / "whole"))
    assert losses_of(tmp_path / "parts") == losses_of(tmp_path / "whole")
    with pytest.raises(
        ValueError, match="began with packed=True and can only go on like that, not with False"
    ):
        train_run(tmp_path / "parts", resume=True, packed=False)


@pytest.mark.heavy
@pytest.mark.parametrize("packed", [False, True])
def test_a_training_with_every_noise_goes_on_through_the_same_losses(tmp_path, packed, backend):
    if backend == "tensorflow" or (backend == "jax" and not packed):
        pytest.skip("each training costs a compilation; JAX has the harder case, packed batches")
    options = {
        name: path for name, path in write_pairs(tmp_path).items() if not name.startswith("valid")
    }
    start = write_small_run(tmp_path / "small", [options["train_source"], options["train_target"]])
    options |= {
        "start_from": start,
        "batch_tokens": 512,
        "packed": packed,
        "learning_rate": 0.02,
        "warmup_steps": 4,
        "steps": 9,
    }
    options |= {
        "subword_sampling": 0.1,
        "word_dropout": 0.1,
        "consistency": 3.0,
        "accumulate": 2,
        "ema": 0.8,
        "show_progress": False,
    }
    options |= {} if packed else {"max_shapes": 2}
    said = []
    train_run(tmp_path / "whole", **options, report=said.append)
    assert any(
        "more, since the segmentation is resampled in every epoch" in sentence for sentence in said
    )
    train_run(tmp_path / "parts", **{**options, "steps": 5}, report=said.append)
    train_run(tmp_path / "parts", resume=True, steps=9, report=said.append, show_progress=False)
    assert len(losses_of(tmp_path / "whole")) == 9 and losses_of(tmp_path / "parts") == losses_of(
        tmp_path / "whole"
    )
    if backend == "torch":  # What pulls two passes together counts.
        plain = train_run(tmp_path / "plain", **{**options, "consistency": 0.0}, report=said.append)
        assert losses_of(plain.path) != losses_of(tmp_path / "whole")


@pytest.mark.any_backend(quickest="torch")
def test_the_length_of_a_training_with_a_cooldown_is_settled(tmp_path):
    options = {
        name: path for name, path in write_pairs(tmp_path).items() if not name.startswith("valid")
    }
    start = write_small_run(tmp_path / "small", [options["train_source"], options["train_target"]])
    settings = {
        "start_from": start,
        "batch_tokens": 512,
        "max_shapes": 1,
        "learning_rate": 0.02,
        "warmup_steps": 2,
        "cooldown": 0.5,
    }
    said = []
    path = train_run(
        tmp_path / "run", **options, **settings, steps=8, report=said.append, show_progress=False
    ).path
    with open(path / "history.csv", encoding="utf-8", newline="") as file:
        rates = [float(row["learning_rate"]) for row in csv.DictReader(file)]
    assert (
        max(rates) == rates[1]
        and rates[7] < 0.15 * rates[3]
        and any("and to 0 over the last 4" in sentence for sentence in said)
    )
    with pytest.raises(ValueError, match="began with steps=8, .* which steps=12 would move"):
        train_run(path, resume=True, steps=12, report=said.append, show_progress=False)
    # What is said of a finished training is what can be done with it.
    train_run(path, resume=True, report=said.append, show_progress=False)
    (sentence,) = [sentence for sentence in said if "reached its end" in sentence]
    assert sentence.endswith(f"train the model further in another folder, with start_from={path}.")


@pytest.mark.any_backend(quickest="torch")
def test_a_training_that_diverges_ends_with_a_sentence(tmp_path):
    texts = write_pairs(tmp_path)
    start = write_small_run(tmp_path / "small", [texts["train_source"], texts["train_target"]])
    options = {**texts, "start_from": start, "batch_tokens": 512, "max_shapes": 1, "steps": 8}
    for wrong, words in (
        ({"learning_rate": 1e30}, r"with a learning_rate below 1e\+30\.$"),
        ({"lora_rank": 2, "lora_alpha": 1e38}, r"or a lora_alpha below 1e\+38\.$"),
    ):
        run = tmp_path / next(iter(wrong))
        with pytest.raises(ValueError, match=f"^The training diverged: at step .*{words}"):
            train_run(run, **options, **wrong, **QUIET)
        assert not np.isfinite(float(losses_of(run)[-1])) and not (run / "model.keras").exists()


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_a_training_further_may_have_another_dropout(tmp_path):
    options = {
        name: path for name, path in write_pairs(tmp_path).items() if not name.startswith("valid")
    }
    start = write_small_run(
        tmp_path / "small", [options["train_source"], options["train_target"]], seed=5
    )
    options |= {
        "start_from": start,
        "batch_tokens": 512,
        "max_shapes": 1,
        "learning_rate": 1e-9,
        "report": len,
        "show_progress": False,
    }
    train_run(tmp_path / "other", **options, dropout=0.0, steps=2)
    train_run(tmp_path / "other", resume=True, steps=3, report=len, show_progress=False)
    train_run(tmp_path / "same", **options, steps=3)
    (model, _, config), (same, *_) = (load_run(tmp_path / name) for name in ("other", "same"))
    assert config["training"]["dropout"] == 0.0
    assert (
        model.get_config() == {**same.get_config(), "dropout": 0.0}
        and same.get_config()["dropout"] == 0.2
    )
    # Another seed draws another noise; without one the model's stays.
    train_run(tmp_path / "seeded", **options, seed=8, steps=1)
    assert load_run(tmp_path / "seeded")[0].get_config() == {**same.get_config(), "seed": 8}
    # Killed before its first checkpoint it begins anew with that noise, and not with another
    # seed's.
    (tmp_path / "killed").mkdir()
    for name in ("config.json", "paths.json"):
        shutil.copy(tmp_path / "same" / name, tmp_path / "killed")
    train_run(tmp_path / "killed", resume=True, report=len, show_progress=False)
    assert (
        losses_of(tmp_path / "killed")
        == losses_of(tmp_path / "same")
        != losses_of(tmp_path / "seeded")
    )
    assert same.get_config()["seed"] == 5, "another seed than a new training has"
    # The weights hardly move: only dropout makes the loss another one.
    losses, others = (np.array(losses_of(tmp_path / name), float) for name in ("other", "same"))
    assert np.abs(losses - others).min() > 1e-3
    for weight, start_weight in zip(
        model.trainable_weights, load_run(start)[0].trainable_weights, strict=True
    ):
        np.testing.assert_allclose(to_numpy(weight), to_numpy(start_weight), atol=1e-6)


@pytest.mark.any_backend(quickest="torch")
def test_a_training_further_may_be_in_mixed_precision(tmp_path):
    options = {
        name: path for name, path in write_pairs(tmp_path).items() if not name.startswith("valid")
    }
    start = write_small_run(tmp_path / "small", [options["train_source"], options["train_target"]])
    options |= {
        "start_from": start,
        "batch_tokens": 512,
        "max_shapes": 1,
        "learning_rate": 1e-9,
        "steps": 2,
        "dropout": 0.0,
    }
    for name, precision in (("mixed", "mixed_bfloat16"), ("plain", None)):
        train_run(tmp_path / name, **options, precision=precision, report=len, show_progress=False)
    model, plain = (load_run(tmp_path / name)[0] for name in ("mixed", "plain"))
    assert model.policy_name == "mixed_bfloat16" and plain.policy_name == "float32"
    assert {weight.dtype for weight in model.trainable_weights} == {"float32"}
    losses, exact = (np.array(losses_of(tmp_path / name), float) for name in ("mixed", "plain"))
    assert (losses != exact).all() and losses == pytest.approx(exact, rel=0.01)


def test_weights_of_16_bits_are_trained_in_32():
    # A usual update is smaller than half the distance of two bfloat16 numbers, and would be lost.
    sizes = dict.fromkeys(("num_encoder_layers", "num_decoder_layers", "num_heads"), 1)
    sizes |= {"hidden_dim": 8, "intermediate_dim": 8}
    half = kformer.Transformer(20, **sizes, dtype="bfloat16")
    tokenizer = types.SimpleNamespace(vocabulary_size=20, target_vocabulary_size=20)
    for more, policy in (
        ({}, "mixed_bfloat16"),
        ({"dropout": 0.3, "seed": 1}, "mixed_bfloat16"),
        ({"precision": "float32"}, "float32"),
        ({"lora_rank": 2, "lora_alpha": 16.0}, "bfloat16"),  # Its adapters are float32.
    ):
        model = make_model(TrainOptions("a", "b", start_from="run", **more), tokenizer, half)
        assert model.policy_name == policy
        assert {weight.dtype for weight in model.trainable_weights} == {"float32"}


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_the_average_of_the_weights_is_validated_and_kept_and_resumed(tmp_path):
    options = write_pairs(tmp_path)
    start = write_small_run(tmp_path / "small", [options["train_source"], options["train_target"]])
    options |= {
        "start_from": start,
        "batch_tokens": 512,
        "max_shapes": 1,
        "learning_rate": 0.02,
        "warmup_steps": 4,
        "ema": 0.8,
    }
    said = []
    settings = {**options, "report": said.append, "show_progress": False}
    whole = train_run(tmp_path / "whole", epochs=2, **settings)
    model, tokenizer, config = load_run(tmp_path / "whole")
    assert config["training"]["ema"] == 0.8 and config["training"]["epochs"] == 2
    assert any("learning rate: up to 0.02 at step 4" in sentence for sentence in said)

    # What was kept is what was validated: the weights of the optimizer's course would give another
    # value.
    valid = kformer.data.ParallelDataset(
        options["valid_source"], options["valid_target"], tokenizer, max_shapes=1, shuffle=False
    )
    model.compile(**paper_recipe(model))
    assert model.evaluate(valid, verbose=0, return_dict=True)["nll"] == pytest.approx(
        whole.best["nll"], rel=1e-5
    )
    assert whole.best["epoch"] == 2 and whole.history["val_nll"][-1] == pytest.approx(
        whole.best["nll"]
    )

    # Stopped in mid-epoch and gone on with, validations, averages and all.
    steps = whole.steps // 2 + 1
    part = train_run(tmp_path / "parts", steps=steps, **settings)
    assert part.steps == steps
    shutil.rmtree(start)  # A checkpoint has all that is needed of it.
    rest = train_run(
        tmp_path / "parts", resume=True, epochs=2, report=said.append, show_progress=False
    )
    assert rest.steps == whole.steps
    assert losses_of(tmp_path / "parts") == losses_of(tmp_path / "whole")
    assert rest.best == whole.best

    # With no steps left what is known of the model stays, and a lost model comes back averaged.
    update_config(tmp_path / "whole", {"confidence": {"a": 1}})
    arguments = {"resume": True, "report": said.append, "show_progress": False}
    train_run(tmp_path / "whole", **arguments)
    assert read_config(tmp_path / "whole")["confidence"] == {"a": 1}
    before = weights_of(tmp_path / "whole")
    (tmp_path / "whole" / "model.keras").unlink()
    train_run(tmp_path / "whole", **arguments)
    for one, other in zip(weights_of(tmp_path / "whole"), before, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert said[-2] == "model.keras was missing: it is now that of the latest checkpoint"
    train_run(tmp_path / "whole", **{**arguments, "steps": None, "epochs": 3})
    assert "confidence" not in read_config(tmp_path / "whole")


def weights_of(run):
    return [to_numpy(variable) for variable in load_run(run)[0].trainable_variables]


@pytest.mark.any_backend
def test_a_run_directory_has_one_training_at_a_time(tmp_path):
    """The one that comes second changes nothing, whether it resumes or begins."""
    path = tmp_path / "run"
    for resume in (True, False):
        with files.locked(path):
            with pytest.raises(files.LockedError, match=f"Process {os.getpid()} is writing to "):
                train_run(path, resume=resume, train_source="a", train_target="b")
            assert os.listdir(path) == [files.LOCK_FILE]
    assert not path.exists()


@pytest.mark.any_backend(quickest="torch")
def test_a_new_model_may_be_of_another_kind(tmp_path):
    options = {
        name: path for name, path in write_pairs(tmp_path).items() if not name.startswith("valid")
    }
    kind = {
        "position_encoding": "alibi",
        "gated": True,
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "hidden_dim": 16,
    }
    said = []
    options |= {
        "vocabulary_size": 380,
        "batch_tokens": 512,
        "max_shapes": 1,
        "report": said.append,
        "show_progress": False,
    }
    train_run(tmp_path / "run", **options, model_options={**kind, "intermediate_dim": 24}, steps=1)
    model, _, config = load_run(tmp_path / "run")
    assert {
        **model.get_config(),
        **kind,
        "intermediate_dim": 24,
        "num_heads": 4,
    } == model.get_config()
    assert config["training"]["model_options"] == {**kind, "intermediate_dim": 24}
    assert any("position_encoding alibi, gated True" in sentence for sentence in said)
    assert not any(sentence.startswith("positions:") for sentence in said)
    with pytest.raises(
        ValueError,
        match="began with model_options={'position_encoding': 'alibi'.* not with {'gated': True}",
    ):
        train_run(tmp_path / "run", resume=True, model_options={"gated": True})


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_a_new_model_has_rotary_positions(tmp_path):
    said, (source, target) = (
        [],
        [write_pairs(tmp_path)[f"train_{side}"] for side in ("source", "target")],
    )
    options = {
        "train_source": source,
        "train_target": target,
        "vocabulary_size": 380,
        "report": said.append,
        "show_progress": False,
    }
    small = {"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 16}
    train_run(tmp_path / "run", **options, model_options=small, steps=1)
    model, _, config = load_run(tmp_path / "run")
    assert model.get_config()["position_encoding"] == "rope"
    assert config["training"]["model_options"] == small and config["training"]["norm"] == "pre"
    assert sum(sentence.startswith("positions: rotary") for sentence in said) == 1
    # The same command once more, and with what it chose.
    for model_options in (small, {"position_encoding": "rope", **small}):
        assert (
            train_run(
                tmp_path / "run", resume=True, **options, model_options=model_options, steps=1
            ).steps
            == 1
        )
    with pytest.raises(ValueError, match="began with model_options="):
        train_run(
            tmp_path / "run",
            resume=True,
            model_options={**small, "position_encoding": "sinusoidal"},
        )
    # Trained further it stays what it is, of which the config says nothing.
    train_run(
        tmp_path / "further",
        **{**options, "vocabulary_size": None},
        start_from=tmp_path / "run",
        steps=1,
    )
    assert load_run(tmp_path / "further")[2]["training"]["model_options"] is None


@pytest.mark.any_backend
def test_a_mistake_leaves_nothing_behind(tmp_path):
    options = write_pairs(tmp_path)
    with pytest.raises(ValueError, match="vocabulary_size=100000 is too large"):
        train_run(tmp_path / "run", **options, vocabulary_size=100_000)
    assert not (tmp_path / "run").exists()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")
    with pytest.raises(ValueError, match="vocabulary_size=100000 is too large"):
        train_run(tmp_path / "link", **options, vocabulary_size=100_000)
    assert os.listdir(tmp_path / "link") == []
    # What the teachers were asked would go with the rest.
    teacher = write_small_run(tmp_path / "teacher", list(options.values())[:2])
    wrong = {"teachers": [teacher], "made_for": "ctranslate2"}
    wrong["model_options"] = {"attention_kind": "linear", "num_encoder_layers": 1}
    said = []
    with pytest.raises(
        ValueError, match="attention_kind='linear', which ctranslate2 does not know"
    ):
        train_run(tmp_path / "run", **options, **wrong, report=said.append)
    assert not any(sentence.startswith("teachers:") for sentence in said)
    # What can be known is known before the tokenizer is trained.
    for wrong, message in (
        (
            {"model_options": {"head_dim": 15}},
            "the head size must be even, but it is 15: change it, or pos",
        ),
        (
            {"subword_sampling": 1.0},
            "subword_sampling must be below 1 with a tokenizer of type bpe",
        ),
        ({"max_length": 1}, "max_length must be a whole number of at least 2"),
        (
            {"packed": True, "model_options": {"attention_kind": "linear"}},
            "attention_kind='linear' cannot keep apart the sequences of",
        ),
        (
            {"valid_source": None, "valid_target": None, "valid_every": 2},
            "valid_every needs a validation set",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            train_run(tmp_path / "run", **{**options, **wrong}, report=pytest.fail)
    # An average of checkpoints, or what a translator has saved, is not a training to go on with.
    saved = write_small_run(tmp_path / "saved", [options["train_source"], options["train_target"]])
    config = json.loads((tmp_path / "saved" / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "saved" / "config.json").write_text(
        json.dumps({**without_checksum(config), "training": {}}), encoding="utf-8"
    )
    for resume in (False, True):
        with pytest.raises(
            ValueError,
            match="was not trained there by this command: choose another folder, with start_from",
        ):
            train_run(saved, **options, resume=resume)
    with pytest.raises(TypeError, match="Unknown training option batch_size"):
        train_run(tmp_path / "run", **options, batch_size=3)


def edit_training(run, **changes):
    """Changes options in the config of a run."""
    config = without_checksum(json.loads((run / "config.json").read_text(encoding="utf-8")))
    config["training"].update(changes)
    (run / "config.json").write_text(json.dumps(config), encoding="utf-8")


def small_training(folder, checkpoint_every):
    """Options of a short training without validation, which starts from a small run."""
    texts = {name: path for name, path in write_pairs(folder).items() if "valid" not in name}
    start = write_small_run(folder / "small", list(texts.values()))
    options = {"batch_tokens": 512, "checkpoint_every": checkpoint_every, "warmup_steps": 4}
    return {**texts, **options, "start_from": start}


@pytest.mark.heavy
@pytest.mark.any_backend
def test_a_damaged_run_is_not_resumed_in_silence(tmp_path):
    run, options = tmp_path / "run", small_training(tmp_path, checkpoint_every=2)
    train_run(run, steps=4, **options, **QUIET)
    losses = losses_of(run)

    def refused(message, **given):
        with pytest.raises(ValueError, match=message):
            train_run(run, resume=True, **given, **QUIET)

    # With no steps left the model is looked at, too.
    model = (run / "model.keras").read_bytes()
    (run / "model.keras").write_bytes(model[:-100])
    refused("model.keras is damaged: .*remove it and resume again")
    (run / "model.keras").unlink()
    assert train_run(run, resume=True, **QUIET).steps == 4
    load_run(run)
    # The seed and the batch size of the checkpoint are those of the config.
    config = (run / "config.json").read_bytes()
    for name, value in (("seed", 5), ("batch_tokens", 256)):
        edit_training(run, **{name: value})
        refused(f"began with {name}=.*config.json now leads to {value}", steps=6)
    (run / "config.json").write_bytes(config.replace(b"512", b"513"))
    refused("config.json is damaged or was edited")
    (run / "config.json").write_bytes(config)
    # A damaged checkpoint: the one before it, and the same losses.
    state = run / "checkpoints" / "step-4" / "state.json"
    state.write_bytes(state.read_bytes().replace(b'"step": 4', b'"step": 5'))
    with pytest.warns(UserWarning, match="step-4 is passed over: .*state.json is damaged"):
        assert train_run(run, resume=True, **QUIET).steps == 4
    assert losses_of(run) == losses
    for path in (run / "checkpoints").iterdir():
        (path / "state.json").write_text("{")
    with pytest.warns(UserWarning, match="is passed over"):
        refused("No checkpoint in .* is whole, so the training cannot go on: restore one")
    # Without checkpoints, as after the training's end, a new beginning would replace the model.
    shutil.rmtree(run / "checkpoints")
    refused("No checkpoint in .* is whole, so the training cannot go on")
    assert losses_of(run) == losses


@pytest.mark.any_backend
def test_a_training_killed_at_the_end_of_its_last_save_leaves_nothing_behind(tmp_path):
    """Nothing more is saved when it resumes, so nothing else would remove the old checkpoint."""
    run, options = tmp_path / "run", small_training(tmp_path, checkpoint_every=1)
    checkpoints = run / "checkpoints"
    train_run(run, steps=3, **options, **QUIET)
    assert sorted(os.listdir(checkpoints)) == ["step-2", "step-3"]
    for name in ("step-1", ".step-0-removed"):
        shutil.copytree(checkpoints / "step-2", checkpoints / name)
    for folder in (checkpoints, run, run / "data"):
        aside = folder / ".partial-abc"
        aside.mkdir()
        (aside / files.LOCK_FILE).write_text("1 host")
    train_run(run, resume=True, **QUIET)
    assert sorted(os.listdir(checkpoints)) == ["step-2", "step-3"]
    assert not list(run.rglob(".partial-*"))
