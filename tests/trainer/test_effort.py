"""`train_run` with an effort of 2 or 3: teachers, a student, last trainings."""

import os
import pathlib
import shutil

import numpy as np
import pytest

import kformer
from kformer.saving import load_run, read_config
from kformer.saving.run_directory import update_config
from kformer.text import Tokenizer
from kformer.trainer import TrainResult, effort, effort_parts, jobs, speed, taught_text, train_run
from kformer.trainer.effort import Parts, train_effort
from kformer.trainer.effort_parts import PartMaker
from kformer.trainer.resume import remove_training, validation_of, write_plan
from kformer.trainer.training import Reports
from kformer.training.options import TrainOptions
from kformer.translating.translation import Hypothesis, Translation
from kformer.utils import files
from kformer.utils.checksums import file_checksum
from kformer.utils.lines import read_lines
from kformer_cli.main import main
from tests.trainer.test_run import weights_of, write_pairs, write_small_run

SIZES = {
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "hidden_dim": 16,
    "intermediate_dim": 16,
    "num_heads": 2,
}
SPLITS = ("train", "valid")
SIDES = ("source", "target")
SHORT = {"model_options": SIZES, "epochs": 2, "steps": 2, "show_progress": False}


def train(path, texts, said=None, **options):
    report = (lambda sentence: None) if said is None else said.append
    return train_run(path, **{**SHORT, "vocabulary_size": 380, **texts, **options}, report=report)


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(speed, "_STEPS", 3)
    monkeypatch.setattr(speed, "_COUNTED", 1)


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_effort_2_makes_a_run_and_goes_on_where_it_was_interrupted(tmp_path, monkeypatch):
    texts, said, run = write_pairs(tmp_path), [], tmp_path / "run"

    def interrupted(self, *arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(PartMaker, "student", interrupted)
        train(run, texts, said, effort=2)
    assert read_config(run)["part"] == "forward-1"
    taught = (run / "parts" / "text" / "student.target").read_bytes()
    (forecast,) = [sentence for sentence in said if "on this machine" in sentence]
    assert "where effort 1 takes" in forecast
    result = train_run(run, resume=True, report=said.append, show_progress=False)
    assert result.path == run and result.steps == 2
    parts = [sentence for sentence in said if sentence.startswith("effort: part ")]
    assert said.index(forecast) < said.index(parts[0])
    assert [part.split(";")[0] for part in parts] == [
        "effort: part 1 of 7, teacher",
        "effort: part 2 of 7, teacher of the other direction",
        "effort: part 3 of 7, translations",
        "effort: part 4 of 7, student",
        "effort: part 4 of 7, student",
        "effort: part 5 of 7, last training on the given pairs",
        "effort: part 6 of 7, choice of the model",
        "effort: part 7 of 7, choice of the search",
    ]
    assert len([sentence for sentence in said if "measuring" in sentence]) == 1
    assert (run / "parts" / "text" / "student.target").read_bytes() == taught
    config = read_config(run)
    assert (
        config["part"] in ("last-1", "student", "forward-1") and config["training"]["effort"] == 2
    )
    assert config["training"]["train_source"] == "train.source"
    for one, other in zip(weights_of(run), weights_of(run / "parts" / config["part"]), strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(kformer.Translator.load(run)(["half past four"])) == 1
    again = train_run(run, resume=True, report=said.append, show_progress=False)
    assert again.path == run and again.steps == 2
    # As if it had been interrupted in the student's training, and was moved.
    moved = run.rename(tmp_path / "moved")
    done = files.read_json(moved / "parts" / "done.json")
    for name in ("student", "last-1", "choice", "search"):
        del done[name]
    files.write_json(moved / "parts" / "done.json", done)
    assert train_run(moved, resume=True, report=said.append, show_progress=False).path == moved
    # The time of a process that made the rest of a part says nothing about the whole part.
    done = files.read_json(moved / "parts" / "done.json")
    assert done["student"] is done["last-1"] is None and done["forward-1"] > 0 < done["text"]


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_teachers_and_student_of_several_directions(tmp_path, monkeypatch):
    write_pairs(tmp_path)
    text = """
        corpora:
          all: {source: train.source, target: train.target, languages: en-zh, both_directions: true}
          copies: {source: valid.source, target: valid.source, languages: fr-de, weight: 2}
        validation:
          en-zh: {source: valid.source, target: valid.target}
          fr-de: {source: valid.source, target: valid.source}
        clean: none
    """
    (tmp_path / "corpora.yaml").write_text(text, encoding="utf-8")
    run, parts, said = tmp_path / "run", tmp_path / "run" / "parts", []
    monkeypatch.chdir(tmp_path)
    train("run", {"corpora": "corpora.yaml"}, said, effort=2, vocabulary_size=None)
    config = read_config(run)
    assert config["directions"] == ["en-zh", "zh-en", "fr-de"]
    assert config["search_by_language"].keys() == {"zh", "en", "de"}
    backward = read_config(parts / "backward-1")
    assert backward["directions"] == ["zh-en", "en-zh", "de-fr"]
    sources = [(tmp_path / f"{name}.source").read_text("utf-8").splitlines() for name in SPLITS]
    targets = (tmp_path / "train.target").read_text("utf-8").splitlines()
    # Each direction's text is that of its teachers: two translations, and the pairs themselves.
    forward = kformer.Translator.load(parts / "forward-1").for_direction("zh", "en")
    translations = [each.text for each in forward.translate(targets, beam_size=5)]
    student = [
        read_lines(parts / "text" / f"student-2.{side}", side) for side in ("source", "target")
    ]
    written = list(zip(*student, strict=True))
    pairs = zip(targets, translations, strict=True)
    assert {(source, text.strip()) for source, text in pairs if text.strip()} <= set(written)
    assert set(zip(targets, sources[0], strict=True)) <= set(written)
    copies = read_lines(parts / "text" / "student-3.source", "source")
    assert set(sources[1]) <= set(copies)
    assert "weight: 2" in (parts / "text" / "corpora.yaml").read_text("utf-8")
    assert any("BLEU on the validation set: last-1" in sentence for sentence in said)
    # As if it had been interrupted before the student's training, and was moved.
    moved = run.rename(tmp_path / "moved")
    done = files.read_json(moved / "parts" / "done.json")
    for name in ("student", "last-1", "choice", "search"):
        del done[name]
    files.write_json(moved / "parts" / "done.json", done)
    shutil.rmtree(moved / "parts" / "student")
    assert train_run(moved, resume=True, report=said.append, show_progress=False).path == moved


class Trainings:
    """In place of `train_one`: makes runs without training, and keeps their options."""

    def __init__(self, run):
        self._run, self.options = run, {}

    def __call__(self, path, options, resume, reports):
        self.options[path.name] = options
        shutil.copytree(self._run, path)
        (path / "history.csv").write_text("step,epoch,loss\n1,1,3.0\n")
        return TrainResult(path, 1, {}, None)


@pytest.fixture
def trainings(tmp_path, monkeypatch):
    texts = write_pairs(tmp_path)
    run = write_small_run(tmp_path / "small", [texts["train_source"], texts["train_target"]])
    settings = {"learning_rate": 0.01, "max_length": 48}
    # The search of a model that a training began with has no reason of its own.
    update_config(run, {"training": settings, "search": {"beam_size": 3}})
    trainings = Trainings(run)

    class Teacher:
        def __init__(self, run):
            self.name = run.name

        def translate(self, texts, **options):
            words = [Hypothesis(f"{self.name} {text}", 0.0, 0.0, []) for text in texts]
            return [Translation([word], False) for word in words]

    def train(effort, name="run", **options):
        if "teachers_from" not in options:
            options["vocabulary_size"] = 380
        options = TrainOptions(**{**texts, "effort": effort, **options})
        parts = tmp_path / name / "parts"
        write_plan(parts, options)
        files.write_json(
            parts / "done.json",
            {
                "speed": {
                    "tokens_per_second": 100.0,
                    "epoch_tokens": 900,
                    "steps_per_epoch": 5,
                    "batch_tokens": 512,
                    "epochs": 28,
                    "checksums": {
                        name: file_checksum(path)
                        for name, path in vars(options).items()
                        if path is not None
                        and name.endswith(("_source", "_target"))
                        and name.startswith(("train", "monolingual"))
                    },
                }
            },
        )
        said = []
        reports = Reports(said.append, said.append, None)
        return train_effort(tmp_path / name, {}, True, reports), said

    def settle_search(path, options, train, validation, lengths, steps, report):
        [(_, valid)] = validation
        trainings.searched = path, options, train.num_pairs, valid.num_pairs, steps
        trainings.steps_per_epoch = train.steps_per_epoch
        report("search: chosen")

    monkeypatch.setattr(jobs, "train_one", trainings)
    monkeypatch.setattr(effort_parts, "settle_search", settle_search)
    scores = {"student": 10.0, "last-1": 11.0, "forward-1": 9.0}
    monkeypatch.setattr(PartMaker, "_bleu", lambda self, run: scores[run.name])
    monkeypatch.setattr(taught_text.Translator, "load", Teacher)
    trainings.texts, trainings.train, trainings.parts = texts, train, tmp_path / "run" / "parts"
    return trainings


@pytest.mark.any_backend
def test_the_parts_have_the_texts_and_settings_that_they_need(trainings):
    alone = trainings.parts.parent.parent / "alone"
    alone.write_text("五点\n六点\n", encoding="utf-8")
    _, said = trainings.train(2, monolingual_target=str(alone), seed=3, guided_alignment="auto")
    texts, made = trainings.texts, trainings.options
    assert list(made) == ["forward-1", "backward-1", "student", "last-1"]
    for options in made.values():
        assert not {"effort", "monolingual_target", "vocabulary_size"} & options.keys()
        assert options["batch_tokens"] == 512
    teacher, back, student, last = made.values()
    assert (teacher["seed"], teacher["epochs"], "select" in teacher) == (3, 28, False)
    assert back["epochs"] == 14
    assert teacher["train_source"] == back["train_target"] == texts["train_source"]
    assert back["valid_target"] == texts["valid_source"]
    assert teacher["tokenizer"] == back["tokenizer"] == student["tokenizer"]
    source, target = (student[f"train_{side}"] for side in ("source", "target"))
    assert (student["dropout"], student["select"]) == (0.1, "bleu")
    lines = [path.read_text(encoding="utf-8").split("\n")[:-1] for path in (source, target)]
    pairs = list(zip(*lines, strict=True))
    assert ("<bt> backward-1 五点", "五点") in pairs
    # Six fifths of the pairs that effort 1 sees, and a third of them for text of one language.
    assert student["epochs"] == round(28 * (1.2 * 160 + 2 / 3) / len(pairs))
    assert last["train_source"] == texts["train_source"] and last["seed"] == 4
    assert (last["epochs"], last["learning_rate"], last["cooldown"]) == (8, 0.6 * 0.01, 0.5)
    assert last["start_from"] == trainings.parts / "student" and "tokenizer" not in last
    assert last["guided_alignment"] == "auto" and "guided_alignment" not in student
    assert [sentence for sentence in said if "part 1 of 7" in sentence]
    path, _, *counts, steps = trainings.searched
    assert "search" not in read_config(path) and counts == [160, 20]
    # The translations of three texts and two lines, by a beam of five, and the trainings.
    epochs = (1 + 0.5 + 1.2 + 2 / 160 / 3 + 8 / 28) * 28 + (3 + 2 / 160) * 5
    assert steps == round(epochs * trainings.steps_per_epoch)


@pytest.mark.any_backend
def test_steps_that_end_each_training_count_in_the_forecast(trainings):
    _, said = trainings.train(2, steps=10)
    # Four trainings of two epochs of 900 tokens, of which 100 take a second, and translations.
    epochs = 4 * 2 + 3 * 5
    assert trainings.searched[-1] == epochs * trainings.steps_per_epoch
    (forecast,) = [sentence for sentence in said if "on this machine" in sentence]
    times = "about 3 minutes on this machine, where effort 1 takes less than a minute"
    assert forecast.startswith(f"effort: 7 parts, {times} ")
    _, said = trainings.train(2, "long", steps=1_000)
    assert any("where effort 1 takes about 30 minutes" in sentence for sentence in said)


@pytest.mark.any_backend
def test_sides_with_vocabularies_of_their_own_are_swapped(trainings):
    trainings.train(2, separate_vocabularies=True)
    forward, backward = (
        Tokenizer.load(trainings.options[f"{name}-1"]["tokenizer"])
        for name in ("forward", "backward")
    )
    assert not forward.joint
    for text in ("half past four", "四点半"):
        assert forward.tokenize([text]) == backward.tokenize([text], side="target")
        assert forward.tokenize([text], side="target") == backward.tokenize([text])


def pairs_of(texts):
    return zip(*(read_lines(texts[f"train_{side}"], side) for side in SIDES), strict=True)


def swapped(texts):
    sides = {"source": "target", "target": "source"}
    return {
        f"{split}_{side}": texts[f"{split}_{other}"]
        for split in ("train", "valid")
        for side, other in sides.items()
    }


@pytest.mark.any_backend
@pytest.mark.parametrize("is_turned", [False, True])
def test_teachers_and_their_translations_are_taken_from_another_training(
    trainings, tmp_path, is_turned
):
    trainings.train(2, separate_vocabularies=True)
    texts = swapped(trainings.texts) if is_turned else trainings.texts
    trainings.options.clear()
    run, student = tmp_path / "run", tmp_path / "student"
    result, said = trainings.train(2, "student", teachers_from=str(run), **texts)
    assert list(trainings.options) == ["student", "last-1"]
    assert "effort: part 1 of 5, translations" in [part.split(";")[0] for part in said]
    assert read_config(result.path)["part"] == "last-1"
    # The names of the teachers of the other training stand in what they translated there.
    own, other = ("backward-1", "forward-1") if is_turned else ("forward-1", "backward-1")
    pairs = set(pairs_of(trainings.options["student"]))
    for source, target in pairs_of(texts):
        assert {(source, f"{own} {source}"), (f"{other} {target}", target)} <= pairs
        # What had not been translated yet: the round trips of a direction that has been turned.
        assert (f"{other} {target}", f"forward-1 {other} {target}") in pairs
    theirs, taken = (Tokenizer.load(folder / "parts" / "tokenizer") for folder in (run, student))
    side = "target" if is_turned else "source"
    assert taken.tokenize(["half past four"]) == theirs.tokenize(["half past four"], side=side)
    # The time: the student and a last training, and the round trips, by a beam of five.
    epochs = (1.2 + 8 / 28) * 28 + 5
    assert trainings.searched[-1] == round(epochs * trainings.steps_per_epoch)


@pytest.mark.any_backend
def test_a_student_may_have_a_preset_and_options_of_its_own(trainings, tmp_path):
    options = {"preset": "base", "student": "tiny_student", "model_options": {"gated": True}}
    _, said = trainings.train(2, **options)
    teacher, back, student, last = trainings.options.values()
    for each in teacher, back:
        assert each["preset"] == "base" and not {"student", "model_options"} & each.keys()
    assert (student["preset"], student["model_options"]) == ("tiny_student", {"gated": True})
    assert "preset" not in last and last["start_from"] == trainings.parts / "student"
    # The teacher is another model, so it is no candidate.
    assert any("set: last-1 11.00, student 10.00; the run" in sentence for sentence in said)
    trainings.options.clear()
    options |= {"teachers_from": str(tmp_path / "run"), "student": "base_student"}
    trainings.train(2, "student", **options)
    assert trainings.options["student"]["preset"] == "base_student"


@pytest.mark.any_backend
def test_a_training_without_teachers_or_of_other_text_has_none_to_take(trainings, tmp_path):
    trainings.train(2)
    run, small = tmp_path / "run", tmp_path / "small"
    with pytest.raises(ValueError, match=f"^{small} has no teachers to take: give a training with"):
        trainings.train(2, "student", teachers_from=str(small))
    path = trainings.texts["train_source"]
    pathlib.Path(path).write_bytes(b"another text\n" * 160)
    other = tmp_path / "other"
    other.write_bytes(b"other\n" * 160)
    with pytest.raises(ValueError, match=f"^The teachers of {run} learned from {path} and"):
        trainings.train(2, "student", teachers_from=str(run), train_target=str(other))
    with pytest.raises(FileNotFoundError, match="There is no run directory"):
        trainings.train(2, "student", teachers_from=str(tmp_path / "none"))
    (tmp_path / "train.source").unlink()
    with pytest.raises(FileNotFoundError, match="train.source.* not there"):
        trainings.train(2, "student", teachers_from=str(run), train_source=str(other))
    for options in (TrainOptions(corpora="c.yaml"), TrainOptions(["a", "b"], ["c", "d"])):
        write_plan(run / "parts", options)
        with pytest.raises(ValueError, match="did not learn from two files as they are, so they"):
            trainings.train(2, "student", teachers_from=str(run), train_source=str(other))


@pytest.mark.any_backend
@pytest.mark.parametrize("best", ["average", "last-2", "student", "forward-1"])
def test_effort_3_takes_what_translates_best(trainings, monkeypatch, best):
    means = []

    def average(runs):
        means.extend(run.name for run in runs)
        return load_run(runs[0])

    monkeypatch.setattr(effort_parts, "average_runs", average)
    names = ("average", "last-1", "last-2", "last-3", "student", "forward-1")
    scores = dict.fromkeys(names, 20.0) | {best: 30.0}
    monkeypatch.setattr(PartMaker, "_bleu", lambda self, run: scores[run.name])
    result, said = trainings.train(3)
    assert means == ["last-1", "last-2", "last-3"]
    assert read_config(result.path)["part"] == best
    (scores,) = [sentence for sentence in said if "BLEU on the validation set" in sentence]
    assert f"{best} 30.00" in scores and scores.endswith(f"the run has {best}")
    assert said[-1] == "search: chosen"
    assert [name for name in files.read_json(trainings.parts / "done.json") if name != "speed"] == [
        *("forward-1", "forward-2", "forward-3", "backward-1", "backward-2", "text", "student"),
        *("last-1", "last-2", "last-3", "choice", "search"),
    ]
    seeds = [trainings.options[f"{name}"]["seed"] for name in ("forward-1", "forward-2", "last-3")]
    assert seeds == [0, 1, 3]


@pytest.mark.any_backend
def test_a_mistake_is_told_before_the_work_and_leaves_nothing(tmp_path):
    texts = write_pairs(tmp_path)
    with pytest.raises(ValueError, match="vocabulary_size=200000"):
        train(tmp_path / "run", texts, effort=2, vocabulary_size=200_000)
    alone = tmp_path / "alone"
    for content, message in (
        (b"", "is empty"),
        (b"\xc3\n", "not valid UTF-8"),
        (None, "not exist"),
    ):
        alone.unlink(missing_ok=True)
        if content is not None:
            alone.write_bytes(content)
        for side in ("source", "target"):
            with pytest.raises((ValueError, FileNotFoundError), match=message):
                train(tmp_path / "run", texts, effort=2, **{f"monolingual_{side}": str(alone)})
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes").touch()
    with pytest.raises(ValueError, match="is not empty and holds no training"):
        train(tmp_path / "run", texts, effort=2)


@pytest.mark.any_backend
def test_a_result_without_its_parts_is_not_trained_over(tmp_path):
    texts, run = write_pairs(tmp_path), tmp_path / "run"
    write_small_run(run, [texts["train_source"], texts["train_target"]])
    training = {"train_source": texts["train_source"], "train_target": texts["train_target"]}
    update_config(run, {"training": {**training, "effort": 2}, "part": "student"})
    (run / "history.csv").write_text("step,epoch,loss\n1,1,3.0\n")
    model = (run / "model.keras").read_bytes()
    for given in ({}, {"effort": 2}):
        with pytest.raises(ValueError, match="has no folder parts any more"):
            train_run(run, resume=True, **training, **given)
    assert (run / "model.keras").read_bytes() == model
    assert validation_of(run) == []
    remove_training(run)
    assert os.listdir(run) == []


@pytest.mark.any_backend
def test_a_start_with_taken_teachers_that_fails_leaves_nothing(trainings, tmp_path, monkeypatch):
    trainings.train(2)
    options = {**trainings.texts, "effort": 2, "teachers_from": str(tmp_path / "run")}
    with monkeypatch.context() as patch, pytest.raises(ValueError, match="no pair"):

        def fails(*arguments):
            raise ValueError("no pair")

        patch.setattr(effort, "measure_speed", fails)
        train_run(tmp_path / "back", **options, report=print, show_progress=False)
    assert not (tmp_path / "back" / "config.json").exists()
    trainings.train(2, "back", teachers_from=options["teachers_from"])
    assert read_config(tmp_path / "back")["part"] == "last-1"


@pytest.mark.any_backend
def test_another_text_is_not_gone_on_with(tmp_path, monkeypatch):
    texts, run = write_pairs(tmp_path), tmp_path / "run"
    monkeypatch.setattr(effort, "measure_speed", lambda *arguments: {"epochs": 28})
    monkeypatch.setattr(Parts, "run", lambda self: self._measured["epochs"])
    assert train(run, texts, effort=2) == 28
    assert train_run(run, resume=True, show_progress=False, report=print) == 28
    for name in ("train_source", "train_target"):
        with open(texts[name], "a", encoding="utf-8") as file:
            file.write("noon\n")
    with pytest.raises(ValueError, match="The text is not that which the training in .*run began"):
        train_run(run, resume=True, show_progress=False, report=print)


@pytest.mark.any_backend
def test_alignments_that_cannot_be_used_are_told_before_the_work(tmp_path):
    texts, path = write_pairs(tmp_path), tmp_path / "words"
    path.write_text("0-0\n")
    with pytest.raises(ValueError, match="160 lines in the text, but 1 in"):
        train(tmp_path / "run", texts, effort=2, guided_alignment=str(path))
    sizes = {**SIZES, "attention_kind": "linear"}
    with pytest.raises(ValueError, match="attention_kind='linear'"):
        train(tmp_path / "run", texts, effort=2, guided_alignment="auto", model_options=sizes)


@pytest.mark.any_backend
def test_guided_alignment_chooses_among_the_parts_that_have_it(trainings, monkeypatch):
    scores = {"student": 30.0, "last-1": 11.0, "forward-1": 9.0}
    monkeypatch.setattr(PartMaker, "_bleu", lambda self, run: scores[run.name])
    result, _ = trainings.train(2, guided_alignment="auto")
    assert read_config(result.path)["part"] == "last-1"


@pytest.mark.any_backend
def test_the_last_seed_is_followed_by_the_first(trainings):
    trainings.train(2, seed=2**31 - 1)
    assert [trainings.options[name]["seed"] for name in ("forward-1", "last-1")] == [2**31 - 1, 0]


@pytest.mark.any_backend
def test_the_command_says_that_an_interrupted_training_of_parts_can_go_on(tmp_path, monkeypatch):
    texts, said = write_pairs(tmp_path), []

    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(effort, "measure_speed", lambda *arguments: {})
    monkeypatch.setattr(Parts, "run", interrupted)
    monkeypatch.setattr("sys.stderr.write", said.append)
    files = [f"--{name.replace('_', '-')}={path}" for name, path in texts.items()]
    run = tmp_path / "run"
    assert main(["train", "--effort=2", *files, "--output", str(run)]) == 130
    command = f"`kformer train --output {run} --resume` goes on with the part that it was at."
    assert command in "".join(said)


@pytest.mark.any_backend
def test_a_training_of_parts_keeps_its_options(tmp_path, monkeypatch):
    texts = write_pairs(tmp_path)
    monkeypatch.setattr(effort, "measure_speed", lambda *arguments: {})
    monkeypatch.setattr(Parts, "run", lambda self: self._options)
    options = train(tmp_path / "run", texts, effort=2)
    assert options.effort == 2
    with pytest.raises(ValueError, match="holds a training already: go on with it by resume=True"):
        train(tmp_path / "run", texts, effort=2)
    with pytest.raises(ValueError, match="began with effort=2 and can only go on like that, not"):
        train(tmp_path / "run", texts, effort=3, resume=True)
    with pytest.raises(ValueError, match="as long as it began with: leave epochs out"):
        train_run(tmp_path / "run", epochs=7, resume=True)
    assert train_run(tmp_path / "run", keep=3, resume=True).keep == 3
    (tmp_path / "moved").mkdir()
    moved = {name: shutil.move(path, tmp_path / "moved") for name, path in texts.items()}
    for given in (moved, {}):
        options = train_run(tmp_path / "run", resume=True, **given)
        assert (options.keep, options.train_source) == (3, moved["train_source"])


@pytest.mark.any_backend
def test_a_description_without_a_validation_set_is_told_before_the_work(tmp_path):
    texts = write_pairs(tmp_path)
    corpus = "source: {train_source}, target: {train_target}, languages: en-zh"
    path = tmp_path / "corpora.yaml"
    path.write_text(f"corpora: {{all: {{{corpus.format(**texts)}}}}}\n", encoding="utf-8")
    with pytest.raises(ValueError, match="select needs a validation set"):
        train(tmp_path / "run", {"corpora": path}, effort=2, select="bleu")
    assert not (tmp_path / "run" / "parts").exists()


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"monolingual_target": "m"}, "^monolingual_target is for teachers, which a training has"),
        (
            {"back_translation": "beam", "effort": 2},
            "^back_translation is about text in",
        ),
        ({"teachers_from": "r"}, "^teachers_from is for teachers, which a training has"),
        (
            {"effort": 2, "teachers_from": "r", "vocabulary_size": 9},
            "^The tokenizer is that of teachers_from, .* leave out vocabulary_size",
        ),
        ({"student": "tiny"}, "^student tiny learns from teachers, .* name the model by preset"),
        (
            {"effort": 2, "student": "tiny", "model_options": {"num_heads": 3}},
            "^No model can be made with the model options",
        ),
        ({"effort": 2, "start_from": "r"}, "^effort 2 trains its own teachers .* out start_from"),
        (
            {"effort": 3, "teachers": ["r"]},
            "^effort 3 trains its own .* leave out teachers",
        ),
        ({"effort": 4}, "^effort must be a whole number from 1 to 3, but 4 was given"),
    ],
)
def test_options_that_do_not_fit_an_effort_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        train_run(tmp_path / "run", train_source="a", train_target="b", **options)
