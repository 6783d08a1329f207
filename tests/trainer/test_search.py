"""The search that a training chooses at its end is the run's own from then on."""

import dataclasses
import types

import numpy as np
import pytest

import kformer
from kformer.saving.run_directory import read_config
from kformer.trainer import TrainOptions, search, train_run
from tests.trainer.test_run import write_pairs, write_small_run
from tests.two_languages import new_translator


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_a_training_chooses_its_search(tmp_path, monkeypatch):
    options = write_pairs(tmp_path)
    start = write_small_run(tmp_path / "small", [options["train_source"], options["train_target"]])
    said = []
    settings = {"report": said.append, "show_progress": False, "batch_tokens": 512}

    def train(name, **more):
        said.clear()
        train_run(tmp_path / name, **{**settings, **more})
        return [sentence for sentence in said if sentence.startswith("search:")]

    (sentence,) = train("short", **options, start_from=start, steps=2)
    assert "too short" in sentence
    assert "search_reason" not in read_config(tmp_path / "short")

    # A new run has the penalty that the choice begins with, and its lengths are said.
    monkeypatch.setattr(search, "_SHARE", 0.4)
    model = {"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 16, "num_heads": 2}
    new = {"model_options": model, "vocabulary_size": 380, "steps": 2}
    (sentence,) = train("new", **options, **new)
    assert "length penalty 1, at most" in sentence and "too short" in sentence
    config = read_config(tmp_path / "new")
    assert config["search"]["length_penalty"] == 1.0 and config["search_reason"] == sentence
    assert [each for each in said if "than their references" in each]
    files = {name: path for name, path in options.items() if name.startswith("train")}
    (sentence,) = train("without", **files, **new)
    assert "length penalty 1, at most" in sentence and "no validation set" in sentence

    monkeypatch.setattr(search, "LEAST_SENTENCES", 4)
    monkeypatch.setattr(search, "_SHARE", 1.0)
    (sentence,) = train("run", **options, start_from=start, steps=2)
    config = read_config(tmp_path / "run")
    assert config["search_reason"] == sentence
    chosen = kformer.Translator.load(tmp_path / "run").options
    assert f"length penalty {chosen.length_penalty:g}" in sentence
    assert (
        f"{chosen.length_ratio:g} times the source's tokens and {chosen.length_offset}" in sentence
    )

    # Nothing left to train, and the search is chosen: it is not chosen again.
    assert train("run", resume=True, steps=2) == []
    assert read_config(tmp_path / "run")["search"] == config["search"]
    # Another end chooses from the same beginning.
    (longer,) = train("run", resume=True, steps=3)
    assert "length penalty of 0.6)" in longer
    # A training from this run begins with its search, and keeps it without a validation set.
    assert train("further", **files, start_from=tmp_path / "run", steps=1) == []
    further = read_config(tmp_path / "further")
    assert further["search"] == read_config(tmp_path / "run")["search"]
    assert "search_reason" not in further
    assert train("plain", **options, start_from=start, steps=2, choose_search=False) == []


@pytest.mark.any_backend(quickest="torch")
def test_a_language_that_keeps_its_search_has_it_after_another_one(tmp_path):
    start = new_translator()
    start.options = dataclasses.replace(start.options, length_penalty=0.7, length_offset=9)
    start.save(tmp_path)
    train, pair = types.SimpleNamespace(num_tokens=10, steps_per_epoch=1), [np.array([4, 6])] * 2
    for languages in (["fr"], ["fr"], ["fr", "de"]):  # After the first at longer trainings' ends.
        settings = lambda codes=languages: dict.fromkeys(codes, pair), 1, lambda sentence: None
        search.settle_search(tmp_path, TrainOptions(), train, [], *settings)
        translator = kformer.Translator.load(tmp_path)
        french = translator.for_languages(target="fr")
        assert french.options.length_penalty == 1.0
        german = french.for_languages(target="de")
        assert german.options == translator.options == start.options
