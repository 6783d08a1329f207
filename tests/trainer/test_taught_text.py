"""The student's text: what teachers of both directions translate, in files that are found again."""

import errno
import os
import pathlib

import pytest

from kformer.data.corpus import SIDES
from kformer.trainer import taught_text
from kformer.trainer.lines import Text
from kformer.trainer.taught_text import TaughtText
from kformer.training.options import TrainOptions
from kformer.translating.translation import Hypothesis, Translation

pytestmark = pytest.mark.any_backend


class Teacher:
    """Writes its name behind each word; the text "cut" is too long for it."""

    calls: list = []

    def __init__(self, run):
        self.name = pathlib.Path(run).name

    def translate(self, texts, *, batch_size, first_index, **options):
        Teacher.calls.append((self.name, list(texts), first_index, options))
        return [
            Translation([Hypothesis(self.words(text), 0.0, 0.0, [])], text == "cut")
            for text in texts
        ]

    def words(self, text):
        return " ".join(f"{word}.{self.name[0]}{self.name[-1]}" for word in text.split())


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.setattr(taught_text.Translator, "load", Teacher)
    Teacher.calls = []

    def write(sources, targets, forward=1, backward=1, **options):
        texts = {"train.source": sources, "train.target": targets}
        texts |= {name: options.pop(name) for name in ("alone", "other") if name in options}
        for name, lines in texts.items():
            (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
        options = {
            name: tmp_path / value if name.startswith("mono") else value
            for name, value in options.items()
        }
        options = TrainOptions(tmp_path / "train.source", tmp_path / "train.target", **options)
        runs = [
            [tmp_path / f"{name}-{number}" for number in range(1, count + 1)]
            for name, count in (("forward", forward), ("backward", backward))
        ]
        text = TaughtText(tmp_path / "text", *runs, options, print)
        sides = [tmp_path / "text" / name for name in ("source", "target")]
        count = text.write(Text(options.train_source, options.train_target), Text(*sides))
        pairs = list(zip(*(path.read_text().split("\n")[:-1] for path in sides), strict=True))
        assert len(pairs) == count
        return pairs

    return write


def test_a_full_disk_is_named(write, tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="free some, or write elsewhere") as raised:
        write(["a b"], ["A B"])
    path = pathlib.Path(raised.value.filename)
    assert path.parent == tmp_path / "text" and path.name.startswith("forward-1-")


def test_each_teacher_translates_and_round_trips_come_along(write):
    assert write(["a b", "cut"], ["A B", "C"], forward=2) == [
        ("a b", "a.f1 b.f1"),
        ("a b", "a.f2 b.f2"),
        ("A.b1 B.b1", "A B"),
        ("C.b1", "C"),
        ("A.b1 B.b1", "A.b1.f1 B.b1.f1"),
        ("C.b1", "C.b1.f1"),
        ("a b", "A B"),
        ("cut", "C"),
    ]
    assert all(options == {"beam_size": 5} for *_, options in Teacher.calls)


def test_text_of_one_language_is_shared_among_the_teachers(write):
    found = write(
        ["a"],
        ["A"],
        forward=2,
        backward=2,
        other=["x", "", "y", "a", "x"],
        alone=["X", "Y", "A", "Z"],
        monolingual_source="other",
        monolingual_target="alone",
    )
    given = found.index(("a", "A"))
    assert found[given - 5 :] == [
        ("x", "x.f1"),
        ("y", "y.f2"),
        ("<bt> X.b1", "X"),
        ("<bt> Y.b2", "Y"),
        ("<bt> Z.b1", "Z"),
        ("a", "A"),
    ]


def test_text_of_one_language_is_a_text_of_its_own_beside_several(tmp_path, monkeypatch):
    monkeypatch.setattr(taught_text.Translator, "load", Teacher)
    lines = {"a.source": "a", "a.target": "A", "b.source": "b", "b.target": "B", "alone": "X\nA\nB"}
    for name, text in lines.items():
        (tmp_path / name).write_text(f"{text}\n")
    options = TrainOptions("a", "b", effort=2, monolingual_target=tmp_path / "alone")
    runs = [tmp_path / "forward-1"], [tmp_path / "backward-1"]
    taught = TaughtText(tmp_path / "text", *runs, options, print)
    texts = [Text(*(tmp_path / f"{name}.{side}" for side in SIDES)) for name in "ab"]
    output = Text(tmp_path / "text" / "source", tmp_path / "text" / "target")
    assert taught.write(texts[0], output, with_alone=False) == 4
    assert taught.write_alone(texts, output) == 1
    assert output.source.read_text() == "<bt> X.b1\n" and output.target.read_text() == "X\n"


def test_text_of_the_target_language_is_sampled_or_noised(write):
    options = {"alone": ["X Y Z U V W"] * 1, "monolingual_target": "alone", "seed": 7}
    write(["a"], ["A"], back_translation="sampled", **options)
    sampled = {"beam_size": 1, "sampling": True, "seed": 7}
    assert [asked for *_, asked in Teacher.calls if asked != {"beam_size": 5}] == [sampled]
    noisy = {
        dict(map(reversed, write(["a"], ["A"], back_translation="noised", **{**options, **seed})))[
            "X Y Z U V W"
        ]
        for seed in ({"seed": 1}, {"seed": 2}, {"seed": 3})
    }
    assert len(noisy) == 3 and all(source.startswith("<bt> ") for source in noisy)


def test_a_killed_translation_goes_on_behind_its_last_whole_line(write, tmp_path, monkeypatch):
    monkeypatch.setattr(taught_text, "_CHUNK", 2)
    sources = [f"s{number}" for number in range(5)]
    translate, count = Teacher.translate, []

    def killed(self, texts, **options):
        count.append(texts)
        if len(count) == 3:
            raise KeyboardInterrupt
        return translate(self, texts, **options)

    monkeypatch.setattr(Teacher, "translate", killed)
    with pytest.raises(KeyboardInterrupt):
        write(sources, sources)
    (aside,) = (tmp_path / "text").glob("forward-1-*.partial")
    assert aside.read_text() == "s0.f1\ns1.f1\ns2.f1\ns3.f1\n"
    aside.write_text("s0.f1\ns1.f1\ns2.f1\ns3")  # As if the disk had lost the end.
    monkeypatch.setattr(Teacher, "translate", translate)
    Teacher.calls = []
    found = write(sources, sources)
    assert [(texts, first) for name, texts, first, _ in Teacher.calls if name == "forward-1"][
        :1
    ] == [(["s3", "s4"], 3)]
    assert [pair for pair in found if pair[1].endswith(".f1") and "." not in pair[0]] == [
        (f"s{number}", f"s{number}.f1") for number in range(5)
    ]
    Teacher.calls = []
    assert write(sources, sources) == found and Teacher.calls == []
