"""Guided alignment: its loss, its training step, and the command."""

import json
import pathlib
import re

import keras
import numpy as np
import pytest
from keras import ops

import kformer
from kformer.models.guided_alignment import ALIGNMENT_HEAD, alignment_layer
from kformer.saving import load_run
from kformer.saving.run_directory import read_config
from kformer.training import MaskedCrossentropy, paper_recipe
from kformer_cli.main import main
from tests.training.gradients import value_and_gradient


def batch(rng, rows=4, source=6, target=5, size=30):
    ids = {
        "source_ids": rng.integers(4, size, (rows, source)).astype("int32"),
        "target_ids": rng.integers(4, size, (rows, target)).astype("int32"),
    }
    ids["source_ids"][1, 3:] = 0
    alignment = rng.random((rows, target, source)) * (rng.random((rows, target, source)) < 0.4)
    alignment[1, :, 3:] = 0
    alignment /= np.maximum(alignment.sum(-1, keepdims=True), 1e-9)
    labels = rng.integers(4, size, (rows, target)).astype("int32")
    return {**ids, "alignment": alignment.astype("float32")}, labels


def test_loss_and_gradient_are_those_of_torch(rng):
    torch = pytest.importorskip("torch")
    inputs, _ = batch(rng)
    scores = rng.normal(size=inputs["alignment"].shape).astype("float32")
    logits = torch.tensor(scores, dtype=torch.float64, requires_grad=True)
    target = torch.tensor(inputs["alignment"], dtype=torch.float64)
    peer = (
        torch.nn.functional.cross_entropy(
            logits.reshape(-1, scores.shape[-1]),
            target.reshape(-1, scores.shape[-1]),
            reduction="sum",
        )
        / (target.sum(-1) > 0).sum()
    )
    peer.backward()
    loss = MaskedCrossentropy()
    value, gradient = value_and_gradient(
        lambda x: loss.of_alignment(ops.softmax(x, axis=-1), inputs["alignment"]), scores
    )
    np.testing.assert_allclose(value, peer.detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(gradient, logits.grad.numpy(), rtol=1e-4, atol=1e-6)
    assert float(loss.of_alignment(scores, np.zeros_like(scores))) == 0


def test_the_guided_layer_is_the_last_or_of_deep_decoders_the_last_but_one():
    sizes = {"hidden_dim": 8, "intermediate_dim": 8, "num_heads": 2, "num_encoder_layers": 1}
    for layers, expected in ((1, 0), (3, 2), (4, 2), (6, 4)):
        model = kformer.Transformer(30, num_decoder_layers=layers, **sizes)
        assert alignment_layer(model) == expected


@pytest.mark.parametrize(
    "weight, consistency",
    [pytest.param(2.0, 0.0, marks=pytest.mark.any_backend(quickest="torch")), (0.5, 1.0)],
)
def test_a_step_adds_the_attention_of_one_head(rng, weight, consistency):
    model = kformer.Transformer(
        30, hidden_dim=16, intermediate_dim=16, num_heads=2, num_decoder_layers=2,
        num_encoder_layers=1, dropout=0.0,
    )  # fmt: skip
    inputs, labels = batch(rng)
    scores = model.inspect(inputs)["cross_attention_scores"]
    found = ops.convert_to_numpy(scores[1])[:, ALIGNMENT_HEAD].astype("float64")
    alignment = inputs["alignment"].astype("float64")
    expected = -(alignment * np.log(np.maximum(found, 1e-9))).sum() / alignment.sum()
    # Without dropout both passes of R-Drop are equal, so that their divergence is 0.
    plain, nll = (float(MaskedCrossentropy(share)(labels, model(inputs))) for share in (0.1, 0))
    recipe = paper_recipe(model, label_smoothing=0.1, consistency=consistency)
    recipe["loss"].alignment_weight = weight
    model.compile(**recipe)
    values = model.train_on_batch(inputs, labels, return_dict=True)
    assert float(values["loss"]) == pytest.approx(plain + weight * expected, rel=1e-4)
    assert float(values["nll"]) == pytest.approx(nll, rel=1e-4), "metrics know nothing of it"


@pytest.mark.any_backend(quickest="torch")
def test_evaluation_knows_no_alignment_and_others_are_refused(rng):
    inputs, labels = batch(rng)
    model = kformer.Transformer(
        30, hidden_dim=16, intermediate_dim=16, num_heads=2, num_decoder_layers=1,
        num_encoder_layers=1, attention_kind="local", attention_window=2,
    )  # fmt: skip
    model.compile(**paper_recipe(model))
    plain = {name: inputs[name] for name in ("source_ids", "target_ids")}
    found = [float(model.test_on_batch(x, labels)[0]) for x in (inputs, plain)]
    assert found[0] == found[1]
    with pytest.raises(ValueError, match="attention_kind='local'"):
        model.train_on_batch(inputs, labels)
    model = kformer.Transformer(
        30, hidden_dim=16, intermediate_dim=16, num_heads=2, num_decoder_layers=1,
        num_encoder_layers=1,
    )  # fmt: skip
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="needs kformer.training.MaskedCrossentropy"):
        model.train_on_batch(inputs, labels)


@pytest.fixture
def corpus(tmp_path, monkeypatch, rng):
    """Sentences of words and their translations in reverse order."""
    monkeypatch.chdir(tmp_path)
    sources, targets, gold = [], [], []
    for _ in range(400):
        words = rng.zipf(1.3, rng.integers(3, 9)) % 40
        sources.append(" ".join(f"s{word}" for word in words))
        targets.append(" ".join(f"t{word}" for word in words[::-1]))
        size = len(words)
        gold.append([(i, size - 1 - i) for i in range(size)])
    for name, lines in (("s", sources), ("t", targets)):
        pathlib.Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    lines = (" ".join(f"{i}-{j}" for i, j in each) for each in gold)
    pathlib.Path("gold").write_text("".join(f"{line}\n" for line in lines))
    return sources, targets, gold


TRAIN = ["train", "--train-source", "s", "--train-target", "t", "--vocabulary-size", "274"]
TRAIN += ["--model-option", "num_encoder_layers=1", "--model-option", "num_decoder_layers=1"]
TRAIN += ["--model-option", "hidden_dim=32", "--model-option", "num_heads=2", "--batch-tokens"]
TRAIN += ["512", "--dropout", "0.1", "--checkpoint-every", "5"]


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_the_head_learns_to_find_the_word_that_was_read(rng):
    model = kformer.Transformer(
        30, hidden_dim=32, intermediate_dim=32, num_heads=2, num_decoder_layers=1,
        num_encoder_layers=1, dropout=0.0, seed=0,
    )  # fmt: skip
    model.compile(**paper_recipe(model, learning_rate=0.01))

    def example(rows=32):
        # The same words on both sides, in another order.
        source = np.argsort(rng.random((rows, 26)), axis=1)[:, :6].astype("int32") + 4
        target = rng.permuted(source, axis=1)
        alignment = (target[:, :, None] == source[:, None, :]).astype("float32")
        return {"source_ids": source, "target_ids": target, "alignment": alignment}, target

    def share(inputs):
        scores = ops.convert_to_numpy(model.inspect(inputs)["cross_attention_scores"][0])
        found = scores[:, ALIGNMENT_HEAD].argmax(-1)
        return (found == inputs["alignment"].argmax(-1)).mean()

    model.loss.alignment_weight = 1.0
    before = share(example()[0])
    for _ in range(60):
        model.train_on_batch(*example())
    assert share(example()[0]) > 0.95 > 0.5 > before


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_a_training_goes_on(corpus):
    command = [*TRAIN, "--guided-alignment", "gold", "--ema", "0"]
    # A training in two parts is the training in one, without the file that it began with.
    whole = [*command, "--cooldown", "0", "--epochs", "99", "--warmup-steps", "4"]
    assert main([*whole, "--output", "one", "--steps", "12"]) == 0
    assert main([*whole, "--output", "two", "--steps", "5"]) == 0
    pathlib.Path("gold").unlink()
    assert main(["train", "--output", "two", "--resume", "--steps", "12"]) == 0
    losses = [pathlib.Path(run, "history.csv").read_text().splitlines() for run in ("one", "two")]
    columns = losses[0][0].split(",")
    column = next(i for i, name in enumerate(columns) if "loss" in name)
    one, two = ([line.split(",")[column] for line in lines] for lines in losses)
    assert one == two and len(one) > 12
    assert read_config("two")["alignment"] == {"layer": 0, "head": 0, "after": True}
    weights = [
        [ops.convert_to_numpy(w) for w in load_run(run)[0].weights] for run in ("one", "two")
    ]
    assert all(np.array_equal(a, b) for a, b in zip(*weights, strict=True))


@pytest.mark.any_backend(quickest="torch")
def test_automatic_alignments_and_mistakes(corpus, capfd):
    command = [*TRAIN, "--steps", "2", "--output", "run"]
    assert main([*command, "--guided-alignment", "auto", "--packed"]) == 0
    (path,) = pathlib.Path("run", "data").glob("alignments-*.txt")
    lines = path.read_text().splitlines()
    assert len(lines) == 400 and "0-" in lines[0]
    said = re.compile(r"alignment: (\d+)% of the target tokens have a source token")
    share = said.search(capfd.readouterr().err)[1]
    # How often an epoch has a pair changes nothing.
    files = {"source": "s", "target": "t", "languages": "en-zh"}
    description = {"corpora": {"all": {**files, "weight": 0.1}}, "clean": "none"}
    pathlib.Path("corpora.yaml").write_text(json.dumps(description))
    weighted = ["train", "--corpora", "corpora.yaml", *TRAIN[5:]]
    weighted += ["--steps", "2", "--output", "weighted", "--guided-alignment", "auto"]
    assert main(weighted) == 0
    assert said.search(capfd.readouterr().err)[1] == share
    pathlib.Path("wrong").write_text("0-0\n")
    for options, message in (
        (["absent"], "absent"),
        (["wrong"], "differ in length"),
        (["gold", "--subword-sampling", "0.1"], "--subword-sampling, or --guided-alignment"),
        (["gold", "--model-option", "attention_kind=linear"], "attention_kind='linear'"),
    ):
        assert main([*command[:-1], "other", "--guided-alignment", *options])
        assert message in " ".join(capfd.readouterr().err.split())
        assert not pathlib.Path("other").exists()
    assert (
        json.loads(pathlib.Path("run", "config.json").read_text())["training"]["guided_alignment"]
        == "auto"
    )
