"""Sequence-level distillation: training texts that teachers translated."""

import pathlib

import pytest

import kformer
from kformer.distillation.text import distill
from kformer.trainer import train_run
from kformer.translating.translation import Hypothesis, Translation
from kformer_cli.main import main

FROZEN = pathlib.Path(__file__).parents[1] / "frozen_run"
SOURCES = ["a b c", "d", "e f", "g"]
REFERENCES = ["A B C", "D", "E F", "G"]
BEAMS = [["A X", "A B C D", "X"], ["D", "Y", "Z"], ["", "E", ""], ["G G", "G", "H"]]


class Teacher:
    def __init__(self):
        self.asked = None

    def translate(self, texts, *, batch_size, progress, **options):
        self.asked = options
        beams = [beam[: options.get("n_best", 1)] for beam in BEAMS]
        return [
            Translation([Hypothesis(text, 0.0, 0.0, []) for text in beam], number == 3)
            for number, beam in enumerate(beams)
        ]


@pytest.mark.any_backend
def test_the_best_translation_or_the_one_most_like_the_reference():
    teacher = Teacher()
    found = distill(teacher, SOURCES)
    assert (found.sources, found.targets) == (["a b c", "d"], ["A X", "D"]) and (
        found.num_empty,
        found.num_truncated,
    ) == (1, 1)
    assert teacher.asked == {"beam_size": 5}
    found = distill(teacher, SOURCES, REFERENCES, closest=True, beam_size=3)
    assert teacher.asked == {"beam_size": 3, "n_best": 3}
    assert (found.sources, found.targets) == (
        ["a b c", "d", "e f"],
        ["A B C D", "D", "E"],
    ) and found.num_empty == 0


@pytest.mark.any_backend
def test_given_pairs_come_along_once():
    found = distill(Teacher(), SOURCES, REFERENCES, keep_original=True)
    assert list(zip(found.sources, found.targets, strict=True)) == [
        ("a b c", "A X"),
        ("d", "D"),
        ("a b c", "A B C"),
        ("e f", "E F"),
        ("g", "G"),
    ]


class Echo:
    """Translates each text into its own name followed by the text."""

    def __init__(self, name):
        self.name = name

    def translate(self, texts, *, batch_size, progress, **options):
        for done in range(1, len(texts) + 1):
            progress(done)
        return [Translation([Hypothesis(self.name + text, 0.0, 0.0, [])], False) for text in texts]


@pytest.mark.any_backend
def test_teachers_by_themselves_and_backwards():
    done = []
    found = distill(
        [Echo("1"), Echo("2"), Echo("1")],
        ["a", "b", "a"],
        ["A", "B", "A"],
        backward=Echo("0"),
        progress=done.append,
    )
    # A pair that the text has twice stays twice; a pair that an earlier teacher made is not added.
    assert list(zip(found.sources, found.targets, strict=True)) == [
        ("a", "1a"),
        ("b", "1b"),
        ("a", "1a"),
        ("a", "2a"),
        ("b", "2b"),
        ("a", "2a"),
        ("0A", "A"),
        ("0B", "B"),
        ("0A", "A"),
    ]
    assert done == list(range(1, 13)) and found.num_empty == 0
    found = distill(
        [], ["a"], ["A"], backward=[Echo("0"), Echo("9")], keep_original=True, progress=done.append
    )
    assert list(zip(found.sources, found.targets, strict=True)) == [
        ("0A", "A"),
        ("9A", "A"),
        ("a", "A"),
    ]


@pytest.mark.any_backend
def test_round_trips_are_new_on_both_sides():
    done = []
    teachers = {"backward": [Echo("5"), Echo("6")], "round_trips": True, "progress": done.append}
    found = distill([Echo("1"), Echo("2")], ["a", "5B", "c"], ["A", "B", "A"], **teachers)
    # A source that is in the text, or was made before, is not translated again.
    assert list(zip(found.sources, found.targets, strict=True))[6:] == [
        ("5A", "A"),
        ("5B", "B"),
        ("5A", "A"),
        ("6A", "A"),
        ("6B", "B"),
        ("6A", "A"),
        ("5A", "25A"),
        ("6A", "16A"),
        ("6B", "16B"),
    ]
    assert done == [*range(1, 16)] and (found.num_empty, found.num_truncated) == (0, 0)
    # One forward teacher makes all round trips. Repeated and empty sources make none.
    alone = distill(
        Echo("1"),
        ["a"],
        ["A"],
        backward=[Echo("5"), Echo("5"), Echo("6")],
        round_trips=True,
        progress=done.append,
    )
    assert list(zip(alone.sources, alone.targets, strict=True))[-2:] == [
        ("5A", "15A"),
        ("6A", "16A"),
    ]
    found = distill(
        Echo("1"), SOURCES, REFERENCES, backward=Teacher(), round_trips=True, progress=done.append
    )
    assert list(zip(found.sources, found.targets, strict=True))[4:] == [
        ("A X", "A B C"),
        ("D", "D"),
        ("A X", "1A X"),
        ("D", "1D"),
    ]
    for arguments in ((Echo("1"), SOURCES, REFERENCES), ([], SOURCES, REFERENCES)):
        with pytest.raises(
            ValueError, match="round_trips go back and forth: give teachers of both directions"
        ):
            distill(
                *arguments, backward=[Echo("5")] if arguments[0] == [] else (), round_trips=True
            )


@pytest.mark.any_backend
def test_wrong_arguments_are_refused():
    for arguments, message in (
        (([],), "nothing to distill"),
        ((SOURCES, REFERENCES[:2]), "4 lines in the sources, but 2 in the references"),
    ):
        with pytest.raises(ValueError, match=message):
            distill(Teacher(), *arguments)
    with pytest.raises(ValueError, match="need the target side of the training text"):
        distill(Teacher(), SOURCES, closest=True)
    with pytest.raises(
        ValueError, match="backward, closest and keep_original need the target side"
    ):
        distill(Teacher(), SOURCES, backward=Teacher())
    with pytest.raises(ValueError, match="nobody to translate"):
        distill([], SOURCES)


class Command:
    """`kformer distill` by the frozen run, given twice, on six lines in a folder."""

    def __init__(self, folder, capfd):
        self.folder, self.capfd = folder, capfd
        pairs = kformer.examples.generate_pairs(6, seed=5, split="test", categories=("time",))
        self.sides = [pair.source for pair in pairs], [pair.target for pair in pairs]
        for name, lines in zip(("source", "target"), self.sides, strict=True):
            (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def run(self, *options):
        """The exit code, and what was printed on standard error."""
        command = ["distill", FROZEN, FROZEN, "--source", self.folder / "source"]
        for side in ("source", "target"):
            command += [f"--output-{side}", self.folder / f"kd.{side}"]
        self.capfd.readouterr()
        code = main([*map(str, (*command, *options))])
        return code, self.capfd.readouterr().err

    def made(self, *options):
        """The lines of the two files that a successful command wrote, and what it printed."""
        code, printed = self.run(*options)
        assert code == 0, printed
        return *self.outputs(), printed

    def outputs(self):
        return [
            (self.folder / f"kd.{side}").read_text(encoding="utf-8").splitlines()
            for side in ("source", "target")
        ]


@pytest.fixture
def command(tmp_path, capfd):
    return Command(tmp_path, capfd)


@pytest.mark.heavy
@pytest.mark.any_backend
def test_the_command_writes_both_sides(command):
    sources, targets = command.sides
    *found, printed = command.made()
    assert "6 pairs (0 with an empty translation and 0 too long for a teacher left out)" in printed
    translator = kformer.Translator.load(FROZEN)
    assert found == [sources, translator(sources, beam_size=5)]
    # Given a second time, the same teacher makes nothing new; backwards it writes sources.
    separately = ["--reference", command.folder / "target", "--separately"]
    separately += ["--backward", FROZEN, "--beam-size", "2"]
    *found, _ = command.made(*separately)
    backwards = translator(targets, beam_size=2)
    assert found == [sources + backwards, translator(sources, beam_size=2) + targets]
    *again, _ = command.made(*separately, "--round-trips")
    new = list(dict.fromkeys(backwards))
    assert again == [found[0] + new, found[1] + translator(new, beam_size=2)]


@pytest.mark.any_backend
def test_the_command_checks_its_options_before_it_translates(command):
    found = command.made()[:2]
    code, printed = command.run("--output-target", command.folder / "nowhere" / "kd.target")
    assert code != 0
    assert "of the output file does not exist" in " ".join(printed.split())
    assert "lines" not in printed and command.outputs() == list(found)
    code, printed = command.run("--backward", FROZEN)
    assert code != 0 and "give it by --reference" in " ".join(printed.split())


@pytest.mark.heavy
@pytest.mark.any_backend
def test_a_student_teaches_the_next(tmp_path):
    pairs = kformer.examples.generate_pairs(30, seed=6, split="train", categories=("time",))
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    runs = [FROZEN]
    for turn in (1, 2):
        # First one teacher, then that and its student together.
        teachers = kformer.Translator.load(runs)
        found = distill(teachers, sources, targets, keep_original=True, beam_size=2)
        translations = teachers(sources, beam_size=2)
        expected = [*zip(sources, translations, strict=True), *zip(sources, targets, strict=True)]
        assert set(zip(found.sources, found.targets, strict=True)) == set(expected)
        files = {}
        for side, texts in (("source", found.sources), ("target", found.targets)):
            files[f"train_{side}"] = tmp_path / f"{turn}.{side}"
            files[f"train_{side}"].write_text(
                "".join(f"{text}\n" for text in texts), encoding="utf-8"
            )
        settings = {
            "batch_tokens": 256,
            "max_shapes": 1,
            "steps": 12,
            "learning_rate": 0.02,
            "report": len,
            "show_progress": False,
        }
        runs.append(
            train_run(tmp_path / f"run-{turn}", start_from=runs[-1], **files, **settings).path
        )
    # The three runs give the same text different scores.
    scores = {
        tuple(
            round(beam.hypotheses[0].score, 3)
            for beam in kformer.Translator.load(run).translate(sources[:4])
        )
        for run in runs
    }
    assert len(scores) == 3
