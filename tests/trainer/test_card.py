"""The model card of a run."""

import argparse
import dataclasses
import json
import pathlib
import re
import shlex
import shutil

import huggingface_hub
import pytest

import kformer
from kformer.trainer import TrainOptions, model_card
from kformer_cli.main import main

FROZEN = pathlib.Path(__file__).parents[1] / "frozen_run"

pytestmark = pytest.mark.any_backend


@pytest.fixture
def run(tmp_path):
    """A run with the config of a training, its history, and the files that it was trained on."""
    run = tmp_path / "en-zh"
    shutil.copytree(FROZEN, run)
    sides = {}
    for name in ("train_source", "train_target"):
        sides[name] = str(tmp_path / name)
        (tmp_path / name).write_text("noon\n", encoding="utf-8")
    options = TrainOptions(
        **sides, model_options={"gated": True, "activation": "silu"}, packed=False, epochs=3
    )
    config = {"training": dataclasses.asdict(options)}
    kformer.saving.run_directory.write_config(run, config)
    lines = ["step,epoch,loss,learning_rate,target_tokens,seconds,val_nll,val_bleu"]
    lines += ["1,1,9.5,0.1,100,60,,", "2,1,8.5,0.1,150,60,2.5,31.25", "3,2,8,0.1,50,60,2.25,30"]
    (run / "history.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return run


def test_the_card_has_data_scores_and_a_command_that_trains_the_same(run, tmp_path, monkeypatch):
    score = {"bleu": 41.066, "chrf": 65.5, "bleu_signature": "tok:13a", "chrf_signature": "nc:6"}
    (tmp_path / "score.json").write_text(json.dumps(score))
    languages = ["--language", "en", "--language", "no"]
    options = ["--scores", str(tmp_path / "score.json"), *languages, "--license", "cc-by-4.0"]
    assert main(["card", str(run), *options]) == 0
    card = huggingface_hub.ModelCard.load(run / "README.md")
    assert card.data.language == ["en", "no"] and card.data.license == "cc-by-4.0"
    assert card.data.pipeline_tag == "translation"
    assert "- 3 steps, 300 target tokens, 3 minutes" in card.text
    assert "negative log-likelihood on the validation set: 2.25" in card.text
    assert "BLEU (greedy) on the validation set: 31.25" in card.text
    assert "|BLEU|chrF|signatures|\n|---|---|---|\n|41.07|65.50|`tok:13a`, `nc:6`|" in card.text
    assert str(tmp_path) not in card.text  # Names of files, not of a machine's folders.

    monkeypatch.chdir(tmp_path)
    asked = {}

    def train_run(output, **options):
        asked.update(options)
        return argparse.Namespace(path=output)

    monkeypatch.setattr(kformer.trainer, "train_run", train_run)
    (command,) = re.findall(r"```sh\n(.*?)```", card.text, re.DOTALL)
    assert main(shlex.split(command.replace("\\\n", " "))[1:]) == 0
    training = kformer.saving.read_config(run)["training"]
    assert {name: asked[name] for name in training} == training


def test_the_card_of_an_imported_model_has_its_origin(run):
    about = {"imported": {"name": "Helsinki-NLP/opus-mt-en-de", "revision": "c0ffee"}}
    kformer.saving.run_directory.write_config(run, about)
    card = model_card(run)
    assert "are those of Helsinki-NLP/opus-mt-en-de, revision c0ffee" in card
    assert "kformer train" not in card and "language" not in card.split("---")[1]


def test_the_card_of_several_directions(run, tmp_path):
    training = kformer.saving.read_config(run)["training"]
    training |= {"train_source": None, "train_target": None, "corpora": "corpora.yaml"}
    config = {"training": training, "directions": ["en-zh", "zh-en"]}
    kformer.saving.run_directory.write_config(run, config)
    score = {"bleu": 41.066, "chrf": 65.5, "bleu_signature": "tok:13a", "chrf_signature": "nc:6"}
    scores = {"directions": {"en-zh": score, "zh-en": score}, "mean": {"bleu": 1, "chrf": 2}}
    (tmp_path / "score.json").write_text(json.dumps(scores))
    assert main(["card", str(run), "--scores", str(tmp_path / "score.json")]) == 0
    card = (run / "README.md").read_text("utf-8")
    assert "## Data\n\n- corpora: `corpora.yaml`\n- directions: en-zh, zh-en\n" in card
    assert "|direction|BLEU|chrF|signatures|\n|---|---|---|---|\n|en-zh|41.07|65.50|" in card
    assert "--corpora corpora.yaml" in card


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (
            "forward-1",
            "a single training, which translated the validation set better",
        ),
        ("student", "a student of teachers that were trained on the same text"),
        ("last-2", "a student of teachers that were trained on the same text, then trained on"),
        ("average", "the mean of several last trainings"),
    ],
)
def test_the_card_of_an_effort_says_what_the_run_has(run, part, words):
    assert "effort" not in model_card(run).replace("--effort", "")
    config = kformer.saving.read_config(run)
    own = {"effort": 2, "monolingual_target": "news.de"}
    config |= {"training": {**config["training"], **own}, "part": part}
    kformer.saving.run_directory.write_config(run, config)
    card = model_card(run)
    assert f"- effort 2: {words}" in card and "- monolingual target: `news.de`" in card
    assert "--effort 2" in card
