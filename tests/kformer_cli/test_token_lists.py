"""`kformer shortlist` of a run, with its own training text and with others."""

import json
import pathlib
import shutil

import pytest
import yaml

import kformer
from kformer.trainer import train_run
from kformer_cli.main import main

pytestmark = pytest.mark.any_backend(quickest="torch")
SIZES = {
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "hidden_dim": 16,
    "intermediate_dim": 32,
    "num_heads": 2,
}
SHORT = {"steps": 2, "vocabulary_size": 380, "batch_tokens": 256, "choose_search": False}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Six files of text, by the names of their options."""
    monkeypatch.chdir(tmp_path)
    texts = {}
    for split, names, count in (("train", ("train", "more"), 60), ("valid", ("valid",), 8)):
        pairs = kformer.examples.generate_pairs(count * len(names), split=split, categories="time")
        for number, name in enumerate(names):
            for side in ("source", "target"):
                path = tmp_path / f"{name}.{side}"
                lines = [getattr(pair, side) for pair in pairs[number * count :][:count]]
                path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
                texts[f"{name}_{side}"] = str(path)
    return texts


def train(output, **options):
    train_run(output, model_options=SIZES, **SHORT, **options, report=None, show_progress=False)


def shortlist(capsys, *arguments):
    """The report of the command, and the lists that it wrote."""
    assert main(["shortlist", "run", *arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    with open(report["file"], encoding="utf-8") as file:
        return report, json.load(file)


@pytest.mark.parametrize("more", [{}, {"effort": 2}])
def test_lists_of_the_texts_that_the_run_was_trained_on(files, capsys, more):
    text = {name: path for name, path in files.items() if "more" not in name}
    train("run", **text, **more)
    default = shortlist(capsys)
    assert default[0]["trials"], "on its validation set"
    options = [f"--{name.removeprefix('train_').replace('_', '-')}={text[name]}" for name in text]
    assert shortlist(capsys, *options) == default
    given = [option for option in options if "valid" not in option]
    assert shortlist(capsys, *given)[0]["trials"] == [], "other texts have no validation set"
    shutil.move(text["train_source"], "away")
    assert main(["shortlist", "run"]) == 1
    assert "train.source' does not exist; give the path" in capsys.readouterr().err


def test_lists_of_a_description_of_corpora(files, capsys):
    def describe(**more):
        corpora = {
            name: {"languages": "en-zh"}
            | {side: files[f"{name}_{side}"] for side in ("source", "target")}
            for name in ("train", "more")
        }
        corpora["more"].update(more)
        valid = {side: files[f"valid_{side}"] for side in ("source", "target")}
        with open("corpora.yaml", "w") as file:
            description = {"clean": "none", "corpora": corpora, "validation": {"en-zh": valid}}
            yaml.safe_dump(description, file)

    describe()
    train("run", corpora="corpora.yaml")
    default = shortlist(capsys)
    for side in ("source", "target"):
        parts = [pathlib.Path(files[f"{name}_{side}"]) for name in ("train", "more")]
        pathlib.Path(f"both.{side}").write_bytes(b"".join(part.read_bytes() for part in parts))
    given = ["--source=both.source", "--target=both.target"]
    given += [f"--valid-{side}={files[f'valid_{side}']}" for side in ("source", "target")]
    assert shortlist(capsys, *given) == default
    shutil.rmtree("run/data")
    assert main(["shortlist", "run"]) == 1
    assert "run has no training text of its own: give a text by --source" in (
        capsys.readouterr().err
    )
    describe(both_directions=True)
    train("both", corpora="corpora.yaml")
    assert main(["shortlist", "both"]) == 1
    assert "both has texts of en-zh, zh-en: give a text by --source and --target, in which" in (
        capsys.readouterr().err
    )


def test_one_side_alone(files, capsys):
    train("run", train_source=files["train_source"], train_target=files["train_target"])
    assert main(["shortlist", "run", "--source", files["more_source"]]) == 2
    assert "A text has two sides: give --source and --target." in capsys.readouterr().err
    assert shortlist(capsys)[0]["trials"] == [], "the run has no validation set"
