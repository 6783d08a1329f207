"""Trainings on described corpora: cleaned, weighted, with their validation sets, and resumed."""

import csv
import gzip
import os
import shutil
import threading

import numpy as np
import pytest

from kformer import Tokenizer, Transformer, Translator
from kformer.data import PreparedCorpus
from kformer.saving import latest_checkpoint, save_run
from kformer.saving.run_directory import read_config
from kformer.trainer import TrainOptions, search, train_run
from kformer.training.options import check_options
from tests.peers import to_numpy
from tests.trainer.test_run import QUIET, losses_of, write_pairs

SIDES = ("source", "target")
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


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
@pytest.mark.parametrize("has_teachers", [True, False])
def test_teachers_alignments_and_general_text_see_two_corpora_as_one(folder, has_teachers):
    """Lines of soft targets and alignments are those of their pairs, whatever file these are in."""
    tokenizer = Tokenizer.train(list(folder.glob("train.*")), vocabulary_size=380)
    model = Transformer(tokenizer.vocabulary_size, **SMALL["model_options"], num_heads=2)
    save_run(folder / "teacher", model, tokenizer)
    entries = []
    for side in ("source", "target"):
        lines = (folder / f"train.{side}").read_text(encoding="utf-8").splitlines(True)[:160]
        for name, part in (("all", lines), ("one", lines[:50]), ("two", lines[50:])):
            (folder / f"{name}.{side}").write_text("".join(part), encoding="utf-8")
    for name in ("one", "two"):
        entries.append(f"  {name}: {{source: {name}.source, target: {name}.target}}\n")
    text = "".join(["corpora:\n", *entries, "clean: none\n"])
    text = text.replace("}", ", languages: en-zh}")
    (folder / "two.yaml").write_text(text, encoding="utf-8")
    options = {**SMALL, "model_options": None, "start_from": folder / "teacher", "steps": 4}
    if has_teachers:
        options |= {"teachers": [folder / "teacher"], "guided_alignment": "auto"}
    else:
        options |= {f"general_{side}": folder / f"valid.{side}" for side in ("source", "target")}
    one_text = {f"train_{side}": folder / f"all.{side}" for side in ("source", "target")}
    train_run(folder / "one", **options, **one_text, **QUIET)
    train_run(folder / "two", **options, corpora=folder / "two.yaml", **QUIET)
    assert losses_of(folder / "two") == losses_of(folder / "one")


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_text_may_be_several_files_compressed_or_pipes_and_is_cleaned_if_asked(folder):
    said, paths = [], {}
    for side in ("source", "target"):
        text = (folder / f"train.{side}").read_text(encoding="utf-8")
        with gzip.open(folder / f"{side}.gz", "wt", encoding="utf-8") as file:
            file.write(text)
        paths[f"train_{side}"] = [str(folder / f"{side}.gz"), str(folder / f"train.{side}")]
    quiet = {**QUIET, "report": said.append}
    train_run(folder / "run", **paths, **SMALL, steps=2, cooldown=0.0, **quiet)
    assert "corpora: train: 322 of 322 pairs" in said
    for side in ("source", "target"):
        (folder / f"{side}.gz").unlink()
    train_run(folder / "run", resume=True, steps=4, **QUIET)
    plain = {name: texts[1] for name, texts in paths.items()}
    train_run(folder / "plain", **plain, **SMALL, steps=2, **QUIET)
    assert not (folder / "plain" / "data" / "corpora").exists()
    pipes = {}
    for side in ("source", "target"):
        pipes[f"train_{side}"] = str(folder / f"{side}.pipe")
        os.mkfifo(pipes[f"train_{side}"])
        write, text = (folder / f"{side}.pipe").write_bytes, folder / f"train.{side}"
        threading.Thread(target=write, args=[text.read_bytes()], daemon=True).start()
    train_run(folder / "pipes", **pipes, **SMALL, steps=2, **QUIET)
    assert losses_of(folder / "pipes") == losses_of(folder / "plain")
    said.clear()
    english = ["the house is near the old river", "we walk to the town every day now"] * 20
    german = ["das Haus ist nahe dem alten Fluss", "wir gehen jetzt jeden Tag in die Stadt"] * 20
    for side, lines in (("source", english), ("target", german)):
        lines = [f"{line} {number}" for number, line in enumerate(lines)]
        (folder / side).write_text("\n".join([*lines, lines[0]]) + "\n", encoding="utf-8")
    texts = {f"train_{side}": str(folder / side) for side in ("source", "target")}
    train_run(folder / "clean", **texts, clean="usual", **SMALL, steps=1, **quiet)
    assert any("2 of 41 pairs left" in line for line in said), said


SEVERAL = """\
corpora:
  both: {source: train.source, target: train.target, languages: en-zh, both_directions: true}
  copies: {source: train.source, target: train.source, languages: en-de, weight: 0.5}
validation:
  en-zh: {source: valid.source, target: valid.target}
  zh-en: {source: valid.target, target: valid.source}
clean: none
"""


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_a_model_of_several_directions(folder, monkeypatch):
    monkeypatch.setattr(search, "LEAST_SENTENCES", 4)
    monkeypatch.setattr(search, "_SHARE", 1e6)
    (folder / "corpora.yaml").write_text(SEVERAL, encoding="utf-8")
    said = []
    options = {**SMALL, "corpora": str(folder / "corpora.yaml"), "choose_search": None}
    options |= {"guided_alignment": "auto", "select": "bleu", "quality_every": 2}
    options |= {"cooldown": 0.0, "warmup_steps": 2}
    quiet = {**QUIET, "report": said.append}
    train_run(folder / "whole", **options, epochs=2, **quiet)
    assert any("one vocabulary for all languages, zh, en, de to translate" in line for line in said)
    assert "corpora: 160 + 160 + 80 pairs in every epoch" in said
    choices = [line for line in said if ": search: " in line]
    assert [line.partition(":")[0] for line in choices] == ["zh", "en", "de"]
    assert "there is no validation set" in choices[2] and "validation sentences" in choices[0]
    config = read_config(folder / "whole")
    assert config["directions"] == ["en-zh", "zh-en", "en-de"]
    chosen = config["search_by_language"]
    assert list(chosen) == ["zh", "en", "de"]
    assert chosen["zh"].items() <= config["search"].items()
    with open(folder / "whole" / "history.csv", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["val_nll"]]
    assert len(rows) == 2
    for row in rows:
        both = [float(row[f"val_{name}_nll"]) for name in ("en-zh", "zh-en")]
        assert float(row["val_nll"]) == pytest.approx(sum(both) / 2, rel=1e-6)
        assert row["val_bleu"]

    translator = Translator.load(folder / "whole")
    assert translator.tokenizer.languages.keys() == {"zh", "en", "de"}
    assert translator.tokenizer.target_language == "zh"
    # Each direction has been measured with its own language.
    lines = [(folder / f"valid.{side}").read_text("utf-8").splitlines() for side in SIDES]
    english = translator.for_languages(target="en")
    scores = [sum(english.score(lines[1], lines[0])), sum(translator.score(*lines))]
    tokens = [
        sum(map(len, translator.tokenizer.tokenize(side, "target", special_tokens=True)))
        for side in lines
    ]
    best = min(rows, key=lambda row: -float(row["val_bleu"]))
    for name, score, count in zip(("zh-en", "en-zh"), scores, tokens, strict=True):
        assert float(best[f"val_{name}_nll"]) == pytest.approx(-score / count, rel=1e-4)

    train_run(folder / "parts", **options, epochs=1, **QUIET)
    for name in ("train.source", "train.target"):
        (folder / name).unlink()
    train_run(folder / "parts", resume=True, epochs=2, **QUIET)
    assert losses_of(folder / "parts") == losses_of(folder / "whole")

    # One direction is trained further: its general text is of that direction, and the searches of
    # the other languages stay.
    short = {name: value for name, value in SMALL.items() if name != "model_options"}
    short |= {"start_from": folder / "whole", "steps": 1, "choose_search": None}
    valid = {side: str(folder / f"valid.{side}") for side in SIDES}
    corpus = f"{{source: {valid['target']}, target: {valid['source']}, languages: zh-en}}"
    text = f"corpora:\n  one: {corpus}\nclean: none\nvalidation:\n  zh-en: "
    text += corpus.replace(", languages: zh-en", "") + "\n  zh-ne: {source: a, target: a}\n"
    (folder / "a").write_text("a\n")
    (folder / "one.yaml").write_text(text, encoding="utf-8")
    general = {"general_source": valid["target"], "general_target": valid["source"]}
    said.clear()
    train_run(folder / "one", **short, corpora=folder / "one.yaml", **general, **quiet)
    assert "validation: no corpus has zh-ne, which is not measured" in said
    ids = translator.tokenizer.languages["en"]
    for path in (folder / "one" / "data").glob("pairs-*"):
        corpus = PreparedCorpus.load(path)
        assert {corpus.ids("source", pair)[0] for pair in range(len(corpus))} == {ids}
    searches = read_config(folder / "one")["search_by_language"]
    assert {code: searches[code] for code in ("zh", "de")} == {c: chosen[c] for c in ("zh", "de")}
    sides = {f"train_{side}": valid[side] for side in SIDES}
    with pytest.raises(ValueError, match="is for the languages zh, en, de, and nobody knows which"):
        train_run(folder / "none", **short, **sides, **QUIET)
    plain = Tokenizer.train(list(valid.values()))
    plain.save(folder / "plain")
    (folder / "train.source").write_text("a b\n")
    (folder / "train.target").write_text("a b\n")
    options = {**SMALL, "corpora": folder / "corpora.yaml", "tokenizer": folder / "plain"}
    with pytest.raises(ValueError, match="no tokens for the languages zh, en, de: leave tokenizer"):
        train_run(folder / "none", **options, **QUIET)


@pytest.mark.any_backend(quickest="torch")
def test_a_direction_of_which_no_pair_is_left_is_refused(folder):
    text = SEVERAL.replace("weight: 0.5", "clean: [identical]")
    (folder / "corpora.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="No pair of en-de is left: check the files, languages"):
        train_run(folder / "run", corpora=str(folder / "corpora.yaml"), **SMALL, **QUIET)
    assert not (folder / "run" / "config.json").exists()


@pytest.fixture
def english_run(folder):
    """A run of a model from English to Chinese, whose tokenizer knows no Russian."""
    tokenizer = Tokenizer.train(list(folder.glob("train.*")), vocabulary_size=380)
    model = Transformer(tokenizer.vocabulary_size, **SMALL["model_options"], num_heads=2)
    save_run(folder / "start", model, tokenizer)
    lines = (folder / "train.source").read_text(encoding="utf-8").splitlines()
    table = str.maketrans("abcdefghijklmnopqrstuvwxyz", "абцдефгхийклмнопярстувщхуз")
    text = "".join(f"{line.lower().translate(table)}\n" for line in lines)
    (folder / "train.ru").write_text(text, encoding="utf-8")
    return folder / "start"


def describe(folder, *corpora):
    """Options of a training that goes on with `english_run` and corpora like `train.source ru-zh`
    (the other side is `train.target`).
    """
    lines = [f"  corpus{i}: {{{corpus}}}\n" for i, corpus in enumerate(corpora)]
    text = f"corpora:\n{''.join(lines)}clean: none\n"
    (folder / "corpora.yaml").write_text(text, encoding="utf-8")
    options = {**SMALL, "model_options": None, "corpora": str(folder / "corpora.yaml")}
    return {**options, "start_from": folder / "start", "cooldown": 0.0}


OLD = "source: train.source, target: train.target, languages: en-zh"


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_a_language_is_added_to_a_trained_model(folder, english_run):
    new = "source: train.source, target: train.ru, languages: en-ru, both_directions: true"
    options, said = describe(folder, OLD, new), []
    train_run(folder / "whole", **options, learning_rate=1e-9, steps=2, **QUIET)
    old, new = Translator.load(english_run), Translator.load(folder / "whole")
    size, total = old.tokenizer.vocabulary_size, new.tokenizer.vocabulary_size
    assert new.tokenizer.languages == {"zh": size, "ru": size + 1, "en": size + 2}
    assert new.model.vocabulary_size == total > size + 30
    assert new.tokenizer.vocabulary().pieces[:size] == old.tokenizer.vocabulary().pieces
    for name in ("train.source", "train.target"):
        lines = (folder / name).read_text(encoding="utf-8").splitlines()
        assert new.tokenizer.tokenize(lines) == old.tokenizer.tokenize(lines)
    weights = {weight.path: to_numpy(weight.value) for weight in old.model.weights}
    for weight in new.model.trainable_weights:
        value = to_numpy(weight.value)
        value = value[:size] if "embeddings" in weight.path else value
        np.testing.assert_allclose(value, weights[weight.path], atol=1e-6)
    assert read_config(folder / "whole")["directions"] == ["en-zh", "en-ru", "ru-en"]

    train_run(folder / "parts", **options, steps=1, **{**QUIET, "report": said.append})
    sentence = f"tokenizer: zh, ru, en added, {total:,} pieces instead of {size:,}, whose ids stay"
    assert f"{sentence}; the model has translated into zh so far" in said
    said.clear()
    train_run(folder / "parts", resume=True, steps=2, **{**QUIET, "report": said.append})
    train_run(folder / "again", **options, steps=2, **QUIET)
    assert losses_of(folder / "parts") == losses_of(folder / "again")
    # Killed before its first checkpoint, it goes on with the tokenizer that it has made.
    shutil.rmtree(folder / "parts" / "checkpoints")
    (folder / "parts" / "history.csv").unlink()
    (folder / "parts" / "model.keras").unlink()
    train_run(folder / "parts", resume=True, **{**QUIET, "report": said.append})
    assert losses_of(folder / "parts") == losses_of(folder / "again")
    assert not any("tokenizer:" in line for line in said)

    # What the model has already is not added again.
    new = "source: train.target, target: train.source, languages: zh-en"
    options = {**describe(folder, new), "start_from": folder / "whole", "steps": 1}
    train_run(folder / "further", **options, **QUIET)
    assert Tokenizer.load(folder / "further" / "tokenizer").writes_like(
        Tokenizer.load(folder / "whole" / "tokenizer")
    )


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
@pytest.mark.parametrize(("name", "language"), [("ru", "ru"), ("source", "de")])
def test_a_source_language_is_added_if_its_script_is_new(folder, english_run, name, language):
    new = f"source: train.{name}, target: train.target, languages: {language}-zh"
    options, said = {**describe(folder, OLD, new), "steps": 1}, []
    train_run(folder / "run", **options, **{**QUIET, "report": said.append})
    assert Tokenizer.load(folder / "run" / "tokenizer").languages == {}
    assert any(f"tokenizer: {language} added" in line for line in said) == (language == "ru")
    if language == "ru":
        with pytest.raises(ValueError, match="no tokens for ru yet, .*: leave lora_rank"):
            train_run(folder / "lora", **options, lora_rank=2, **QUIET)
        assert not (folder / "lora" / "config.json").exists()


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_a_published_model_takes_no_further_language(folder, english_run):
    old = Translator.load(english_run)
    published = Tokenizer.from_sentencepiece(old.tokenizer.sentencepiece_model())
    save_run(folder / "start", old.model, published)
    new = "source: train.source, target: train.ru, languages: en-ru"
    with pytest.raises(ValueError, match="of a published model takes no further languages"):
        train_run(folder / "run", **describe(folder, OLD, new), **QUIET)
    train_run(folder / "run", **describe(folder, new), steps=1, **QUIET)  # It stays of one.


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_small_directions_are_seen_more_often_at_a_temperature(folder):
    text = SEVERAL.replace(", weight: 0.5", "").replace(
        "target: train.source", "target: valid.source"
    )
    text = text.replace("copies: {source: train.source", "copies: {source: valid.source")
    (folder / "corpora.yaml").write_text(f"{text}temperature: 2\n", encoding="utf-8")
    said = []
    options = {**SMALL, "corpora": str(folder / "corpora.yaml")}
    train_run(folder / "run", **options, steps=1, **{**QUIET, "report": said.append})
    # The shares are those of the roots of the numbers of lines.
    count = len((folder / "valid.source").read_text("utf-8").splitlines())
    number = round(count * (161 / count) ** 0.5)
    assert f"corpora: 160 + 160 + {number} pairs in every epoch" in said


def test_mistakes_are_said_before_anything_is_read(folder):
    path = folder / "corpora.yaml"

    def refused(sentence, text=DESCRIPTION, **options):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=sentence):
            train_run(folder / "run", corpora=str(path), **SMALL, **options, **QUIET)
        assert not (folder / "run" / "config.json").exists()

    several = DESCRIPTION.replace("weight: 0.5", "both_directions: true")
    valid = {f"valid_{side}": folder / f"valid.{side}" for side in ("source", "target")}
    names = "has several directions .en-zh, zh-en."
    refused(f"valid_source is one validation set, but .*{names}: name a set", several, **valid)
    refused(f"{names}, which share one vocabulary", several, separate_vocabularies=True)
    refused(
        "has a validation set for zh-en, but corpora for en-zh",
        DESCRIPTION.replace("  en-zh: {source: valid", "  zh-en: {source: valid"),
    )
    refused("select needs a validation set", DESCRIPTION.partition("validation")[0], select="bleu")
    refused("names all files: leave out corpora=.*, or train_source", train_source="a")
    general = {f"general_{side}": folder / f"valid.{side}" for side in ("source", "target")}
    refused("general text is a corpus of its own there", several, **general, start_from="a")
    refused("monolingual_target", several, effort=2, monolingual_target=folder / "valid.source")
    refused("two files: leave out corpora=.*, or teachers_from", effort=2, teachers_from=folder)
    refused("how corpora are cleaned: leave out corpora=.*, or clean", clean="usual")
    texts = {f"train_{side}": [str(folder / f"train.{side}")] * 2 for side in ("source", "target")}
    with pytest.raises(ValueError, match="read two files as they are: write the text to such"):
        train_run(folder / "run", **texts, effort=2, teachers_from="a", **QUIET)
    texts = {f"train_{side}": str(folder / "train.source") for side in ("source", "target")}
    with pytest.raises(ValueError, match="clean usual must know two languages, but both sides"):
        train_run(folder / "run", **texts, clean="usual", **QUIET)
    refused("belongs to one text, and corpora has several: take auto", guided_alignment="a.txt")
    check_options(TrainOptions(corpora="x", select="bleu"))  # Its sets are not read yet.
