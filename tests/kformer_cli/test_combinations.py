"""Two options together, one of which would have no effect."""

import importlib
import types

import pytest

from kformer_cli.checks import check_search
from kformer_cli.main import main
from kformer_options import combinations
from kformer_options.training import TRAINING

pytestmark = pytest.mark.any_backend(quickest="torch")
RUN = "tests/frozen_run"
DISTILL = f"distill {RUN} --source {{0}}/a.en --output-source {{0}}/a --output-target {{0}}/b"
TRAIN = "train --train-source {0}/a.en --train-target {0}/a.en --output {0}/new"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.en").write_text("noon\nhalf past four\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    "words, expected",
    [
        (f"translate {RUN} --beam-size 1 --length-penalty 1", "--length-penalty is about the hyp"),
        (f"translate {RUN} --sample --beam-size 8", "--sample draws samples: leave one of them"),
        (f"translate {RUN} --mbr 8 --beam-size 8", "--mbr draws samples: leave one of them out."),
        (f"evaluate {RUN} --source {{0}}/a.en --reference {{0}}/a.en --beam-size 1 "
         "--length-penalty 1", "with --beam-size 1 there is one alone"),
        (f"export {RUN} --output {{0}}/b --beam-size 1 --early-stopping", "--early-stopping is ab"),
        (f"export {RUN} --output {{0}}/b --n-best 2 --signatures serving_default",
         "--n-best is about the signature n_best, which --signatures leaves out"),
        (f"{DISTILL} --reference {{0}}/a.en --closest --beam-size 1", "--closest is about the hyp"),
        (f"{DISTILL} --reference {{0}}/a.en", "--reference is for --backward, --closest, --keep-"),
        (f"align {RUN} --source {{0}}/a.en --target {{0}}/a.en --iterations 3",
         "--iterations is for the statistical aligner: leave it out, or the run."),
        (f"plot attention {RUN} --source noon --target noon --beam-size 2 --output {{0}}/a.png",
         "With --target nothing is searched for: leave --beam-size out."),
        (f"plot attention {RUN} --source noon --kind encoder --output {{0}}/a.html",
         "A page has all layers and heads: leave out --kind, or write a .png."),
        (f"serve {RUN} --backend torch", "No such option: --backend"),
        (f"{TRAIN} --choose-search", "--choose-search needs a validation set"),
        (f"{TRAIN} --consistency 5 --dropout 0", "--consistency compares two passes with diff"),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_refused_before_the_imports(
    folder, capsys, monkeypatch, words, expected
):
    def imported():
        raise AssertionError("it was to answer before it imports anything")

    for name in ("training", "plotting", "formats", "distillation", "alignment", "translation"):
        module = importlib.import_module(f"kformer_cli.{name}")
        monkeypatch.setattr(module, "quiet_imports", imported)
    assert main([word.format(folder) for word in words.split()]) in (1, 2)
    assert expected in " ".join(capsys.readouterr().err.split())
    assert not (folder / "new").exists()


def test_fields_of_lines_of_text(folder, capsys):
    files = ["--input", f"{folder}/a.en", "--output", f"{folder}/b", "--workers", "1"]
    assert main(["translate", RUN, *files, "--field", "source"]) == 2
    assert "--field is for JSON lines and Parquet, but" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 1, "length_penalty": 1.0, "alternatives": 3},  # They are ranked by it.
        {"sample": True, "length_penalty": 1.0},  # Several samples are.
        {"beam_size": 2, "length_penalty": 1.0, "closest": True},
        {"beam_size": 1, "closest": False, "early_stopping": None},
    ],
)
def test_what_has_an_effect_is_taken(options):
    check_search(options)


@pytest.mark.parametrize(
    "given",
    [
        {"choose_search": False},
        {"consistency": 5.0},
        {"consistency": 5.0, "dropout": 0.0, "word_dropout": 0.1},
        {"consistency": 5.0, "dropout": 0.0, "start_from": "run"},
        {"consistency": 5.0, "dropout": 0.0, "model_options": {"stochastic_depth": 0.1}},
        {"consistency": 0.0, "dropout": 0.0},
    ],
)
def test_a_training_that_has_an_effect_is_taken(given):
    options = {**dict.fromkeys(TRAINING), "train_source": "a", "train_target": "b", **given}
    combinations.check_combinations(types.SimpleNamespace(**options))
