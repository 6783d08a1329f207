"""Trainings on described corpora: cleaned, weighted, with their validation sets, and resumed."""

import gzip

import pytest

from kformer.saving import latest_checkpoint
from kformer.trainer import TrainOptions, train_run
from kformer.training.options import check_options
from tests.trainer.test_run import QUIET, losses_of, write_pairs

SMALL = {
    "model_options": {"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 16},
    **{"batch_tokens": 512, "max_shapes": 1, "choose_search": False, "checkpoint_every": 1},
}
DESCRIPTION = """\
corpora:
  all: {source: train.source, target: train.target, languages: en-zh, clean: [empty, duplicates]}
  more: {files: more.tsv.gz, languages: en-zh, weight: 0.5, clean: none}
validation:
  en-zh: {source: valid.source, target: valid.target}
"""


@pytest.fixture
def folder(tmp_path):
    """Corpora of 160 pairs with an empty one after them, and of 20, and a validation set."""
    write_pairs(tmp_path)
    sides = [tmp_path / "train.source", tmp_path / "train.target"]
    texts = [path.read_text(encoding="utf-8") for path in sides]
    pairs = list(zip(*(text.splitlines() for text in texts), strict=True))[20:40]
    with gzip.open(tmp_path / "more.tsv.gz", "wt", encoding="utf-8") as file:
        file.write("".join(f"{source}\t{target}\n" for source, target in pairs))
    for path, text in zip(sides, texts, strict=True):
        path.write_text(f"{text}\n", encoding="utf-8")
    (tmp_path / "corpora.yaml").write_text(DESCRIPTION, encoding="utf-8")
    return tmp_path


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_a_training_reads_described_corpora_and_goes_on_without_them(folder):
    said = []
    options = {**SMALL, "corpora": str(folder / "corpora.yaml"), "guided_alignment": "auto"}
    quiet = {**QUIET, "report": said.append}
    train_run(folder / "whole", **options, steps=6, **quiet)
    assert "corpora: all: 159 of 161 pairs left (1 by empty, 1 by duplicates)" in said
    assert "corpora: 159 + 10 pairs in every epoch" in said
    assert any(sentence.startswith("alignment: ") for sentence in said)
    assert "val_nll" in (folder / "whole" / "history.csv").read_text()
    train_run(folder / "parts", **options, steps=3, cooldown=0.0, **QUIET)
    again = {**options, "cooldown": 0.0}
    train_run(folder / "again", **again, steps=6, **QUIET)
    for name in ("train.source", "train.target", "more.tsv.gz"):  # They are in the run by now.
        (folder / name).unlink()
    train_run(folder / "parts", resume=True, steps=6, **QUIET)
    assert losses_of(folder / "parts") == losses_of(folder / "again")
    assert latest_checkpoint(folder / "parts").name == "step-6"


def test_mistakes_are_said_before_anything_is_read(folder):
    path = folder / "corpora.yaml"

    def refused(sentence, text=DESCRIPTION, **options):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=sentence):
            train_run(folder / "run", corpora=str(path), **SMALL, **options, **QUIET)
        assert not (folder / "run" / "config.json").exists()

    refused(
        "has several directions .en-zh, zh-en.",
        DESCRIPTION.replace("weight: 0.5", "both_directions: true"),
    )
    refused(
        "has a validation set for zh-en, but corpora for en-zh",
        DESCRIPTION.replace("  en-zh: {source: valid", "  zh-en: {source: valid"),
    )
    refused("select needs a validation set", DESCRIPTION.partition("validation")[0], select="bleu")
    refused("names all files: leave out corpora=.*, or train_source", train_source="a")
    refused("reads two files, such as kformer clean writes: leave out corpora", effort=2)
    refused("belongs to one text, and corpora has several: take auto", guided_alignment="a.txt")
    check_options(TrainOptions(corpora="x", select="bleu"))  # Its sets are not read yet.
