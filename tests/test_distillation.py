"""Texts for students."""

import pathlib
import subprocess
import sys

import pytest

import kformer
from kformer.distillation import distill
from kformer.translator import Hypothesis, Translation

FROZEN = pathlib.Path(__file__).parent / "frozen_run"
SOURCES = ["a b c", "d", "e f", "g"]
REFERENCES = ["A B C", "D", "E F", "G"]
BEAMS = [["A X", "A B C D", "X"], ["D", "Y", "Z"], ["", "E", ""], ["G G", "G", "H"]]


class Teacher:
    def __init__(self):
        self.asked = None

    def translate(self, texts, *, batch_size, progress, **options):
        self.asked = options
        beams = [beam[: options.get("n_best", 1)] for beam in BEAMS]
        return [Translation([Hypothesis(text, 0.0, 0.0, []) for text in beam], number == 3) for number, beam in enumerate(beams)]


@pytest.mark.any_backend
def test_the_best_translation_or_the_one_most_like_the_reference():
    teacher = Teacher()
    found = distill(teacher, SOURCES)
    assert (found.sources, found.targets) == (["a b c", "d"], ["A X", "D"]) and (found.num_empty, found.num_truncated) == (1, 1)
    assert teacher.asked == {"beam_size": 5}
    found = distill(teacher, SOURCES, REFERENCES, closest=True, beam_size=3)
    assert teacher.asked == {"beam_size": 3, "n_best": 3}
    assert (found.sources, found.targets) == (["a b c", "d", "e f"], ["A B C D", "D", "E"]) and found.num_empty == 0


@pytest.mark.any_backend
def test_given_pairs_come_along_once():
    found = distill(Teacher(), SOURCES, REFERENCES, keep_original=True)
    assert list(zip(found.sources, found.targets, strict=True)) == [
        ("a b c", "A X"), ("d", "D"), ("a b c", "A B C"), ("e f", "E F"), ("g", "G"),
    ]  # fmt: skip


@pytest.mark.any_backend
def test_what_cannot_be_distilled():
    for arguments, message in (
        (([],), "nothing to distill"),
        ((SOURCES, REFERENCES[:2]), "There are 4 sources but 2 references"),
    ):
        with pytest.raises(ValueError, match=message):
            distill(Teacher(), *arguments)
    with pytest.raises(ValueError, match="need the target side of the training text"):
        distill(Teacher(), SOURCES, closest=True)


@pytest.mark.any_backend
def test_the_command_writes_both_sides(tmp_path):
    pairs = kformer.data.generate_pairs(6, seed=5, split="test", categories=("time",))
    (tmp_path / "source").write_text("".join(f"{pair.source}\n" for pair in pairs), encoding="utf-8")
    outputs = [tmp_path / "kd.source", tmp_path / "kd.target"]
    command = [sys.executable, "-c", "from kformer_command import main; main()", "distill", str(FROZEN), str(FROZEN)]
    command += ["--source", str(tmp_path / "source"), "--output-source", str(outputs[0]), "--output-target", str(outputs[1])]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert "6 pairs (0 with an empty translation and 0 too long for the teacher left out)" in process.stderr
    found = [path.read_text(encoding="utf-8").splitlines() for path in outputs]
    expected = kformer.Translator.load(FROZEN)([pair.source for pair in pairs], beam_size=5)
    assert found == [[pair.source for pair in pairs], expected]
