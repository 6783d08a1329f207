"""What `recommend` chooses, beside what `kformer train` chooses for the same files."""

import csv
import json

import numpy as np
import pytest

import kformer
from kformer.export import huggingface
from kformer.trainer import train_run, training

STEPS = 2


def losses_of(run):
    """The loss of each step, as `history.csv` has it."""
    with open(run / "history.csv", encoding="utf-8") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A function that writes so many training pairs, and 20 for validation; returns the paths."""
    folder = tmp_path_factory.mktemp("texts")

    def write(count):
        paths = []
        for name, split, number in (("train", "train", count), ("valid", "valid", 20)):
            pairs = list(kformer.examples.generate_pairs(number, split=split))
            for side in ("source", "target"):
                paths.append(folder / f"{name}{count}.{side}")
                lines = "".join(f"{getattr(pair, side)}\n" for pair in pairs)
                paths[-1].write_text(lines, encoding="utf-8")
        return [str(path) for path in paths]

    return write


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
@pytest.mark.parametrize("count", [600, 2_000, pytest.param(29_000, marks=pytest.mark.slow)])
def test_python_and_the_command_choose_the_same(count, texts, tmp_path, monkeypatch):
    """The same settings, and the same losses from the same weights on the same batches."""
    paths = texts(count)
    names = ("train_source", "train_target", "valid_source", "valid_target")
    fit_from = training.fit_from
    monkeypatch.setattr(
        training, "fit_from", lambda *args, **kw: fit_from(*args, **kw | {"steps": STEPS})
    )
    said = []
    options = dict(zip(names, paths, strict=True))
    train_run(tmp_path, report=said.append, show_progress=False, **options)
    tokenizer = kformer.Tokenizer.train([paths[0], paths[1]])
    train = kformer.data.ParallelDataset(*paths[:2], tokenizer)
    valid = kformer.data.ParallelDataset(*paths[2:], tokenizer, shuffle=False)
    recipe = kformer.training.recommend(train, valid)
    chosen = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))["training"]
    assert {name: chosen[name] for name in recipe.settings} == recipe.settings
    course = "learning_rate warmup_steps dropout epochs ema cooldown patience batch_tokens"
    assert set(course.split()) <= recipe.settings.keys()
    others = {name for name, value in chosen.items() if value is not None} - recipe.settings.keys()
    # What only a run directory, a new tokenizer or the selection by BLEU needs.
    left = {"tokenizer_type", "select", "choose_search", "checkpoint_every", "keep"}
    assert others <= {*names, *left}
    assert set(str(recipe).splitlines()) <= set(said)

    model = kformer.Transformer.from_preset(**recipe.model)
    recipe.compile(model)
    assert recipe.fit["epochs"] == chosen["epochs"] and recipe.fit["validation_data"] is valid
    history = kformer.training.StepHistory(tmp_path / "python")
    model.fit(train, epochs=1, steps_per_epoch=STEPS, callbacks=[history], verbose=0)
    np.testing.assert_allclose(losses_of(tmp_path / "python"), losses_of(tmp_path), rtol=1e-5)


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_fit_ends_after_the_steps_with_the_weights_that_were_best(texts):
    """The model that `fit` leaves has the best validation of the average of its weights."""
    paths = texts(600)
    tokenizer = kformer.Tokenizer.train([paths[0], paths[1]])
    train = kformer.data.ParallelDataset(*paths[:2], tokenizer)
    valid = kformer.data.ParallelDataset(*paths[2:], tokenizer, shuffle=False)
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 16, "num_heads": 2}
    steps = len(train) * 2 + 1
    options = {"steps": steps, "ema": 0.9, "learning_rate": 0.05, "warmup_steps": 1}
    options["valid_every"] = 2  # The last epoch is validated, too.
    recipe = kformer.training.recommend(train, valid, model_options=sizes, **options)
    model = kformer.Transformer.from_preset(**recipe.model)
    recipe.compile(model)
    history = model.fit(train, **recipe.fit, verbose=0).history
    assert int(model.optimizer.iterations) == steps and len(history["val_nll"]) == 2
    found = model.evaluate(valid, verbose=0, return_dict=True)["nll"]
    assert found == pytest.approx(min(history["val_nll"]), rel=1e-5)


@pytest.mark.any_backend(quickest="torch")
def test_what_is_given_is_kept_and_what_cannot_be_given_is_named(texts, tiny_transformer):
    paths = texts(600)
    tokenizer = kformer.Tokenizer.train([paths[0], paths[1]])
    train = kformer.data.ParallelDataset(*paths[:2], tokenizer, batch_tokens=256, word_dropout=0.1)
    recipe = kformer.training.recommend(train, preset="small", epochs=3, dropout=0.2)
    settings = {"preset": "small", "epochs": 3, "dropout": 0.2, "batch_tokens": 256}
    assert {**recipe.settings, **settings, "word_dropout": 0.1} == recipe.settings
    assert "dropout" not in recipe.reasons and "validation_data" not in recipe.fit
    assert str(recipe).startswith("warning: 600 pairs are too few for a new model")
    further = kformer.training.recommend(train, model=tiny_transformer())
    assert further.model == {} and further.settings["ema"] == 0.0
    assert "a tenth of a new model's rate" in str(further)
    for options, words in (
        ({"batch_tokens": 9}, "belongs to the data: give it to kformer.data.ParallelDataset"),
        ({"log_dir": "x"}, "is an option of kformer.trainer.train_run alone"),
        ({"epoch": 9}, "is not an option of a recipe: choose among preset"),
        ({"dropout": 0.1, "model": tiny_transformer()}, "belongs to a new model"),
    ):
        with pytest.raises(TypeError, match=words):
            kformer.training.recommend(train, **options)


@pytest.mark.any_backend(quickest="torch")
def test_a_model_for_transformers_has_its_positions(texts):
    paths = texts(600)
    for files, norm in (([paths[:2]], None), (paths[:2], "post")):
        tokenizer = kformer.Tokenizer.train(*files)
        train = kformer.data.ParallelDataset(*paths[:2], tokenizer)
        recipe = kformer.training.recommend(train, made_for="transformers")
        assert recipe.model["position_encoding"] == "sinusoidal"
        assert recipe.settings["norm"] == (norm or "pre")
        huggingface.check_model(kformer.Transformer.from_preset(**recipe.model))
