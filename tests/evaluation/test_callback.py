"""BLEU and chrF of a model in training."""

import csv
import pathlib
import types

import keras
import numpy as np
import pytest
from keras import ops
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

import kformer
from kformer.evaluation import TranslationQuality, evaluate
from kformer.evaluation.scores import suitable_tokenizer
from kformer.saving import load_run
from kformer.trainer import train_run
from kformer.training import BestModel, paper_recipe
from kformer.training.averages import averaged_weights

FROZEN = pathlib.Path(__file__).parents[1] / "frozen_run"


@pytest.fixture(scope="module")
def pairs():
    return kformer.examples.generate_pairs(40, seed=5, split="train", categories=("time",))


@pytest.mark.any_backend(quickest="torch")
def test_measures_while_the_model_is_trained(pairs, tmp_path):
    model, tokenizer, _ = load_run(FROZEN)
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    before = evaluate(
        kformer.Translator(model, tokenizer), sources[:8], targets[:8], tokenize="zh", beam_size=2
    )
    assert before.bleu > 20
    model.compile(**paper_recipe(model, learning_rate=1e-9, ema_momentum=0.5))
    data = kformer.data.ParallelDataset(sources, targets, tokenizer, batch_tokens=100, max_shapes=1)
    steps, per_epoch = (
        TranslationQuality(
            tokenizer, sources[:8], targets[:8], every=2, beam_size=2, log_dir=tmp_path
        ),
        data.steps_per_epoch,
    )
    epochs = TranslationQuality(tokenizer, sources[:8], targets[:8], epochs=5)
    history = model.fit(data, epochs=2, callbacks=[epochs, steps], verbose=0).history
    # The weights do not change, so neither do the scores.
    assert [step for step, _ in steps.results] == [n for n in range(2, 2 * per_epoch + 1, 2)]
    assert all(
        result.bleu == before.bleu and result.chrf == before.chrf for _, result in steps.results
    )
    assert history["val_bleu"] == [before.bleu] * 2 and history["val_chrf"] == [before.chrf] * 2
    # Once, as the last epoch is measured, too.
    assert [step for step, _ in epochs.results] == [2 * per_epoch]
    events = EventAccumulator(str(tmp_path)).Reload()
    for name, value in (("bleu", before.bleu), ("chrf", before.chrf)):
        shown = events.Tensors(name)
        assert [event.step for event in shown] == [step for step, _ in steps.results]
        np.testing.assert_allclose(
            [make_ndarray(event.tensor_proto) for event in shown], value, rtol=1e-6
        )


@pytest.mark.any_backend
def test_an_epoch_without_a_measurement_has_no_value(monkeypatch):
    """Not that of the epoch before, whose last step was measured."""
    tokenizer = kformer.Tokenizer.load(FROZEN / "tokenizer")
    quality = TranslationQuality(tokenizer, ["a"], ["b"], every=4)
    result = types.SimpleNamespace(bleu=7.0, chrf=8.0)
    monkeypatch.setattr(quality, "measure", lambda: quality.results.append((quality.step, result)))
    quality.set_params({"steps": 2})
    found = []
    for epoch in range(3):
        quality.on_epoch_begin(epoch)
        for batch in range(2):
            quality.on_train_batch_end(batch, {})
        quality.on_epoch_end(epoch, logs := {})
        found.append(logs)
    assert found == [{}, {"val_bleu": 7.0, "val_chrf": 8.0}, {}]


def test_the_average_of_the_weights_translates():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5), "mse")
    for build in (lambda variables: None, model.optimizer.build):  # Before the first step.
        build(model.trainable_variables)
        with averaged_weights(model):
            assert ops.convert_to_numpy(model.trainable_variables[0]).all()
    model.train_on_batch(np.ones((4, 2)), np.ones((4, 1)))
    values = [ops.convert_to_numpy(variable).copy() for variable in model.trainable_variables]
    averages = [
        ops.convert_to_numpy(average).copy()
        for average in model.optimizer._model_variables_moving_average
    ]
    with pytest.raises(KeyError), averaged_weights(model):
        for variable, average in zip(model.trainable_variables, averages, strict=True):
            np.testing.assert_array_equal(ops.convert_to_numpy(variable), average)
        raise KeyError
    for variable, value in zip(model.trainable_variables, values, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(variable), value)


@pytest.mark.any_backend(quickest="torch")
def test_the_best_average_is_kept_by_fit(pairs, tmp_path):
    model, tokenizer, _ = load_run(FROZEN)
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    train = kformer.data.ParallelDataset(
        sources[:32], targets[:32], tokenizer, batch_tokens=100, max_shapes=1
    )
    valid = kformer.data.ParallelDataset(
        sources[32:], targets[32:], tokenizer, max_shapes=1, shuffle=False
    )
    # At this rate the model forgets: its first epoch is the best.
    model.compile(**paper_recipe(model, learning_rate=0.01, ema_momentum=0.5))
    best = BestModel(tmp_path / "best", patience=2)
    history = model.fit(
        train, validation_data=valid, epochs=9, callbacks=[best], verbose=0
    ).history["val_nll"]
    assert (
        best.best["nll"] == pytest.approx(min(history))
        and best.best["epoch"] == np.argmin(history) + 1 == len(history) - 2
    )
    kept = keras.models.load_model(tmp_path / "best" / "model.keras")
    kept.compile(**paper_recipe(kept))
    assert kept.evaluate(valid, verbose=0, return_dict=True)["nll"] == pytest.approx(
        min(history), rel=1e-5
    )


@pytest.mark.any_backend
def test_wrong_settings(pairs):
    tokenizer = kformer.Tokenizer.load(FROZEN / "tokenizer")
    with pytest.raises(ValueError, match="1 line in the sources, but 2 in the references"):
        TranslationQuality(tokenizer, ["a"], ["b", "c"])
    with pytest.raises(ValueError, match="the validation set has no sentences"):
        TranslationQuality(tokenizer, [], [])
    with pytest.raises(ValueError, match="every must be a whole number of at least 1, but 0"):
        TranslationQuality(tokenizer, ["a"], ["b"], every=0)
    with pytest.raises(ValueError, match="Whether a higher f1 is better is not known"):
        BestModel("run", "f1")
    with pytest.raises(ValueError, match="patience must be a whole number of at least 1, but 0"):
        BestModel("run", patience=0)


@pytest.mark.any_backend
def test_words_by_script():
    assert suitable_tokenizer(["A man rides a horse.", "Ein Mann, 3 Pferde."]) == "13a"
    assert suitable_tokenizer(["一个男人骑着马。", "iPhone 很好"]) == "zh"
    assert (
        suitable_tokenizer(["馬に乗っている男の人。"]) == "char" == suitable_tokenizer(["ผู้ชายขี่ม้า"])
    )


@pytest.mark.any_backend
def test_nan_never_counts_as_an_improvement(tmp_path):
    validations = [
        {"epoch": 1 + index, "nll": value}
        for index, value in enumerate([float("nan"), 3.0, float("nan"), 4.0])
    ]
    best = BestModel(tmp_path, patience=2, validations=validations)
    assert best.best == {"epoch": 2, "nll": 3.0} and best.has_waited
    assert (
        BestModel(
            tmp_path,
            "bleu",
            validations=[{"epoch": 1, "bleu": 2.0}, {"epoch": 2, "bleu": float("nan")}],
        ).value
        == 2.0
    )


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_the_best_bleu_is_kept_and_patience_ends(pairs, tmp_path):
    files = {}
    for split, chosen in (("train", pairs), ("valid", pairs[:6])):
        for side in ("source", "target"):
            files[f"{split}_{side}"] = str(tmp_path / f"{split}.{side}")
            text = "".join(f"{getattr(pair, side)}\n" for pair in chosen)
            pathlib.Path(files[f"{split}_{side}"]).write_text(text, encoding="utf-8")
    reported = []
    settings = {
        "start_from": str(FROZEN),
        "batch_tokens": 200,
        "max_shapes": 1,
        "learning_rate": 1e-9,
        "seed": 3,
    }
    settings |= {
        "select": "bleu",
        "patience": 2,
        "epochs": 9,
        "ema": 0.5,
        "report": reported.append,
        "show_progress": False,
    }
    settings |= {"quality_every": 2, "log_dir": tmp_path / "log", "checkpoint_every": 1}
    result = train_run(tmp_path / "run", **files, **settings)
    # The model does not change: the first validation is the best, and two more are no better.
    with open(tmp_path / "run" / "history.csv", encoding="utf-8", newline="") as file:
        measured = [row for row in csv.DictReader(file) if row["val_bleu"]]
    rows = [row for row in measured if row["val_nll"]]
    assert [int(row["epoch"]) for row in rows] == [1, 2, 3]
    # Measurements within epochs are in the rows of their steps; they do not judge an epoch.
    per_epoch = result.steps // 3
    assert per_epoch > 2
    expected = [
        step for step in range(1, result.steps + 1) if step % 2 == 0 or step % per_epoch == 0
    ]
    assert [int(row["step"]) for row in measured] == expected
    assert len({row["val_bleu"] for row in measured}) == 1 and all(
        row["val_chrf"] for row in measured
    )
    assert [
        event.step for event in EventAccumulator(str(tmp_path / "log")).Reload().Tensors("bleu")
    ] == expected
    assert result.best == pytest.approx({"epoch": 1, "bleu": float(rows[0]["val_bleu"])})
    assert any("2 validations in a row were no better" in sentence for sentence in reported)
    again = train_run(tmp_path / "run", resume=True, report=reported.append, show_progress=False)
    assert again.steps == result.steps and again.best == pytest.approx(result.best)
    # With more patience it goes on.
    more = train_run(
        tmp_path / "run", resume=True, patience=4, report=reported.append, show_progress=False
    )
    assert more.steps == result.steps // 3 * 5
