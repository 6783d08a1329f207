"""What `recommend` chooses, beside what `kformer train` chooses for the same files."""

import csv
import json

import keras
import numpy as np
import pytest

import kformer
from kformer.trainer import run, train_run

STEPS = 2


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


@pytest.mark.any_backend(quickest="torch")
@pytest.mark.parametrize("count", [600, 2_000, 29_000])
def test_python_and_the_command_choose_the_same(count, texts, tmp_path, monkeypatch):
    """The same settings, and the same losses from the same weights on the same batches."""
    paths = texts(count)
    names = ("train_source", "train_target", "valid_source", "valid_target")
    fit_from = run.fit_from
    monkeypatch.setattr(run, "fit_from", lambda *args, **kw: fit_from(*args, **kw | {"steps": 2}))
    said = []
    options = dict(zip(names, paths, strict=True))
    train_run(tmp_path, report=said.append, show_progress=False, **options)
    with open(tmp_path / "history.csv", encoding="utf-8") as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file) if row["loss"]]

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
    assert others == {*names, "tokenizer_type", "select", "checkpoint_every", "keep"}
    assert set(str(recipe).splitlines()) <= set(said)

    model = kformer.Transformer.from_preset(**recipe.model)
    recipe.compile(model)
    seen = []
    watch = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(logs["loss"])
    )
    fit = recipe.fit
    assert fit["epochs"] == chosen["epochs"] and fit["validation_data"] is valid
    model.fit(train, epochs=1, steps_per_epoch=STEPS, callbacks=[watch], verbose=0)
    # Keras's loss is the mean of the batches so far.
    seen = np.diff(np.multiply(seen, np.arange(1, STEPS + 1)), prepend=0)
    np.testing.assert_allclose(seen, losses, rtol=1e-4)
