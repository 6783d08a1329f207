"""Trainings that begin with a trained model: adapters, and general text beside the new one."""

import csv
import pathlib

import numpy as np
import pytest

import kformer
from kformer.saving import latest_checkpoint, load_checkpoint, load_run
from kformer.trainer import TrainOptions, train_run
from kformer.training import BestModel
from kformer.training.options import check_options
from tests.peers import to_numpy
from tests.trainer.test_run import QUIET, losses_of, write_pairs, write_small_run

COURSE = {"batch_tokens": 512, "max_shapes": 1, "learning_rate": 0.02, "warmup_steps": 4}


def write_general(folder):
    """General text and its validation set, as options of `train_run`."""
    options = {}
    for name, split, count in (("general", "train", 90), ("general_valid", "valid", 12)):
        pairs = kformer.examples.generate_pairs(count, split=split, categories="date")
        for side in ("source", "target"):
            path = folder / f"{name}.{side}"
            path.write_text("".join(getattr(pair, side) + "\n" for pair in pairs), encoding="utf-8")
            options[f"{name}_{side}"] = str(path)
    return options


@pytest.fixture
def files(tmp_path):
    """Options for a text of its own, and a run to start from."""
    options = write_pairs(tmp_path)
    texts = [options["train_source"], options["train_target"]]
    return {**options, "start_from": write_small_run(tmp_path / "small", texts)}


def rows_of(path):
    with open(path / "history.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
@pytest.mark.parametrize("more", [{}, {"ema": 0.8, "accumulate": 2}], ids=["plain", "averaged"])
def test_adapters_and_general_text_go_on_through_the_same_losses(tmp_path, files, more, backend):
    if backend != "torch" and not more:
        pytest.skip(
            "each training costs a compilation there, and averaged ones are the harder case"
        )
    said, settings = [], {**files, **write_general(tmp_path), **COURSE, **more, "lora_rank": 4}
    settings |= {"general_share": 0.25, "report": said.append, "show_progress": False}
    whole = train_run(tmp_path / "whole", epochs=2, **settings)
    assert any(sentence.startswith("lora: 1,728 of ") for sentence in said)
    assert "general: 53 pairs, a new sample of 90 in every epoch" in said
    model, _, config = load_run(tmp_path / "whole")
    assert model.lora is None and config["training"]["lora_alpha"] == 16.0
    # The model that was saved is the one that was validated, by both sets.
    validated = [row for row in rows_of(whole.path) if row["val_nll"]]
    for row in validated:
        own, general, both = (float(row[f"val_{name}nll"]) for name in ("", "general_", "mixed_"))
        assert both == pytest.approx(0.75 * own + 0.25 * general, rel=1e-5)
    lowest = min(float(row["val_mixed_nll"]) for row in validated)
    assert whole.best["mixed_nll"] == pytest.approx(lowest, rel=1e-6)
    valid = kformer.data.ParallelDataset(
        settings["general_valid_source"],
        settings["general_valid_target"],
        kformer.Translator.load(whole.path).tokenizer,
        max_shapes=1,
        shuffle=False,
    )
    model.compile(**kformer.training.paper_recipe(model))
    found = model.evaluate(valid, verbose=0, return_dict=True)["nll"]
    row = validated[int(whole.best["epoch"]) - 1]
    assert found == pytest.approx(float(row["val_general_nll"]), rel=1e-4)

    # Stopped in mid-epoch and gone on with. What is frozen is as it was.
    steps = whole.steps // 2 + 1
    assert train_run(tmp_path / "parts", steps=steps, **settings).steps == steps
    adapted, _ = load_checkpoint(latest_checkpoint(tmp_path / "parts"))
    start = {weight.path: weight for weight in load_run(files["start_from"])[0].weights}
    assert adapted.lora == (4, 16.0)
    for weight in adapted.weights:
        if weight.path in start and not weight.path.endswith("/step"):
            np.testing.assert_array_equal(to_numpy(weight), to_numpy(start[weight.path]))
    rest = train_run(tmp_path / "parts", resume=True, epochs=2, **QUIET)
    assert losses_of(rest.path) == losses_of(whole.path)
    assert rest.best == whole.best


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_general_text_alone_is_resumed_and_known_again(tmp_path, files):
    general = write_general(tmp_path)
    text = {name: path for name, path in general.items() if "valid" not in name}
    settings = {**files, **text, **COURSE, "packed": True, "max_shapes": None, "seed": 3}
    whole = train_run(tmp_path / "whole", epochs=2, **settings, **QUIET)
    assert "nll" in whole.best and "val_general_nll" not in rows_of(whole.path)[-1]
    train_run(tmp_path / "parts", steps=whole.steps // 2 + 1, **settings, **QUIET)
    rest = train_run(tmp_path / "parts", resume=True, epochs=2, **QUIET)
    assert losses_of(rest.path) == losses_of(whole.path)
    alone = {name: value for name, value in settings.items() if name not in text}
    plain = train_run(tmp_path / "plain", epochs=1, **alone, **QUIET)
    assert losses_of(plain.path) != losses_of(whole.path)[: plain.steps]
    valid = pathlib.Path(files["valid_source"])
    former = valid.read_text(encoding="utf-8")
    valid.write_text(former.replace("a", "e"), encoding="utf-8")
    with pytest.raises(
        ValueError, match="The validation set in the files of .* is not the validation set"
    ):
        train_run(tmp_path / "parts", resume=True, epochs=3, **QUIET)
    valid.write_text(former, encoding="utf-8")
    with open(general["general_source"], "a", encoding="utf-8") as file:
        file.write("one more\n")
    with open(general["general_target"], "a", encoding="utf-8") as file:
        file.write("一\n")
    with pytest.raises(ValueError, match="is not the text that its training began with"):
        train_run(tmp_path / "parts", resume=True, epochs=3, **QUIET)


def test_the_best_by_both_is_neither_of_the_two():
    history = [(3.0, 2.0), (2.0, 2.6), (1.9, 4.0), (1.8, 4.5)]
    best = BestModel(None, "mixed_nll", patience=2)
    for epoch, (own, general) in enumerate(history, start=1):
        best._is_better({"epoch": epoch, "mixed_nll": 0.5 * own + 0.5 * general})
    assert best.best["epoch"] == 2 and best.has_waited


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_the_rate_of_adapters_is_that_of_a_new_model(tmp_path, files):
    said = []
    settings = {"steps": 2, "batch_tokens": 512, "report": said.append, "show_progress": False}
    for name, rank in (("full", None), ("lora", 2)):
        train_run(tmp_path / name, **files, lora_rank=rank, **settings)
    rates = [load_run(tmp_path / name)[2]["training"]["learning_rate"] for name in ("full", "lora")]
    assert rates == pytest.approx([0.1 * 0.64 / 16, 0.64 / 16])
    assert any("a new model's rate, as the adapters are new" in sentence for sentence in said)


@pytest.mark.any_backend(quickest="torch")
@pytest.mark.parametrize(
    "options, message",
    [
        ({"lora_rank": 8, "start_from": None}, "lora_rank is about training a model further"),
        ({"general_source": "g", "start_from": None}, "general_source is about training a model"),
        ({"lora_rank": 0}, "lora_rank must be a whole number of at least 1, but 0"),
        ({"lora_alpha": 8.0}, "lora_alpha is the strength of adapters: give lora_rank"),
        ({"general_source": "g"}, "needs both sides: give general_source and general_target"),
        ({"general_valid_target": "g"}, "give general_valid_source and general_valid_target"),
        ({"general_share": 0.3}, "general_share is the share of general text"),
        ({"general_share": 1.0}, "general_share must be above 0 and below 1, but 1.0 was given"),
        (
            {"general_valid_source": "g", "general_valid_target": "g", "select": "bleu"},
            "compared by their likelihoods: leave out select=bleu",
        ),
        (
            {"general_valid_source": "g", "general_valid_target": "g", "valid_source": None}
            | {"valid_target": None},
            "measured beside the validation set: give valid_source",
        ),
        (
            {"general_source": "g", "general_target": "g", "teachers": ["run"]},
            "teachers belongs to one text",
        ),
    ],
)
def test_options_that_do_not_fit(options, message):
    given = {name: name for name in ("train_source", "train_target", "valid_source")}
    given |= {"valid_target": "valid_target", "start_from": "run"}
    with pytest.raises(ValueError, match=message):
        check_options(TrainOptions(**{**given, **options}))
