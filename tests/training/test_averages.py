"""Averages of the weights of several runs."""

import pathlib
import shutil

import numpy as np
import pytest
from keras import ops

import kformer
from kformer.saving import load_run, save_run
from kformer.training import average_runs
from kformer_cli.main import main

pytestmark = pytest.mark.any_backend(quickest="torch")
RUN = pathlib.Path(__file__).parents[1] / "frozen_run"


def weights(model):
    return [ops.convert_to_numpy(weight) for weight in model.trainable_variables]


@pytest.fixture
def runs(tmp_path, rng):
    """Three runs whose weights are those of one run with noise, and these weights."""
    found, paths = [], []
    for name in "abc":
        model, tokenizer, config = load_run(RUN)
        values = [value + rng.normal(size=value.shape) * 0.01 for value in weights(model)]
        for weight, value in zip(model.trainable_variables, values, strict=True):
            weight.assign(value.astype("float32"))
        config = {**config, "confidence": {"temperature": 1.2}}
        paths.append(str(save_run(tmp_path / name, model, tokenizer, config)))
        found.append(weights(model))
    return paths, found


@pytest.mark.heavy
def test_the_mean_of_runs(runs, tmp_path, capfd):
    paths, found = runs
    output = tmp_path / "soup"
    assert main(["average", *paths, "--output", str(output)]) == 0
    model, tokenizer, config = load_run(output)
    for value, *parts in zip(weights(model), *found, strict=True):
        np.testing.assert_allclose(value, np.mean(parts, axis=0), atol=1e-7)
    assert config["averaged_runs"] == ["a", "b", "c"] and "confidence" not in config
    assert tokenizer.writes_like(load_run(RUN)[1])
    assert kformer.Translator.load(output)(["half past four"])
    # It may be made again, in the same place.
    assert main(["average", *paths[:2], "--output", str(output)]) == 0
    assert load_run(output)[2]["averaged_runs"] == ["a", "b"]


@pytest.mark.heavy
def test_the_mean_has_the_weights_of_frozen_layers(tmp_path):
    """Each run may have frozen other layers; the lists of trainable weights do not correspond."""
    paths, found = [], []
    for index in range(2):
        model, tokenizer, _ = load_run(RUN)
        for weight in model.trainable_variables:
            weight.assign(weight + 0.1 * (index + 1))
        found.append([ops.convert_to_numpy(weight) for weight in model.weights])
        stack = (model.network.encoder_layers, model.network.decoder_layers)[index]
        stack[0].trainable = False
        paths.append(save_run(tmp_path / str(index), model, tokenizer))
    model, *_ = average_runs(paths)
    for weight, *parts in zip(model.weights, *found, strict=True):
        np.testing.assert_allclose(ops.convert_to_numpy(weight), np.mean(parts, axis=0), atol=1e-6)


@pytest.mark.heavy
def test_runs_without_a_mean_are_refused(runs, tmp_path, capfd):
    paths, _ = runs
    model, tokenizer, _ = load_run(RUN)
    wide = kformer.Transformer(tokenizer.vocabulary_size, **{**SIZES, "hidden_dim": 32})
    save_run(tmp_path / "wide", wide, tokenizer)
    shapes = model.get_config() | {"activation": "gelu"}
    save_run(tmp_path / "gelu", type(model).from_config(shapes), tokenizer)
    other = kformer.Tokenizer.train(texts=["a b c d e"] * 5, vocabulary_size=266)
    save_run(tmp_path / "other", model, other)
    for extra, message in (
        (["wide"], "has another model than"),
        (["gelu"], "has another model than"),
        (["other"], "has another tokenizer than"),
        (["absent"], "absent"),
        (["b", "--last", "2"], "checkpoints of one run"),
    ):
        command = ["average", paths[0], str(tmp_path / extra[0]), *extra[1:]]
        assert main([*command, "--output", str(tmp_path / "soup")])
        assert message in " ".join(capfd.readouterr().err.split())
        assert not (tmp_path / "soup").exists()
    with pytest.raises(ValueError, match="needs two at least"):
        average_runs(paths[:1])
    shutil.copytree(RUN, tmp_path / "mine")
    assert main(["average", *paths, "--output", str(tmp_path / "mine")])
    assert "did not make" in " ".join(capfd.readouterr().err.split())


SIZES = {"intermediate_dim": 16, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}
