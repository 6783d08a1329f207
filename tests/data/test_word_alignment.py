"""The statistical aligner, on generated pairs whose alignment is known."""

import pathlib
import tracemalloc

import numpy as np
import pytest

from kformer.data import align_words, alignment_error_rate, word_alignment
from kformer.data.word_alignment import _combined
from kformer_cli.main import main

pytestmark = pytest.mark.any_backend(quickest="torch")


def generated(rng, count, *, swaps=0.0, fillers=0.0, words=80):
    """Sentences of random words and their word by word translations, in which neighbours change
    places with a probability `swaps`, and a word without source stands before another with a
    probability `fillers`; and the alignments.
    """
    sources, targets, alignments = [], [], []
    for _ in range(count):
        source = rng.zipf(1.3, rng.integers(1, 13)) % words
        order = list(range(len(source)))
        for i in range(len(order) - 1):
            if rng.random() < swaps:
                order[i], order[i + 1] = order[i + 1], order[i]
        target, alignment = [], []
        for i in order:
            if rng.random() < fillers:
                target.append(f"filler{rng.integers(3)}")
            alignment.append((i, len(target)))
            target.append(f"t{source[i]}")
        sources.append(" ".join(f"s{word}" for word in source))
        targets.append(" ".join(target))
        alignments.append(sorted(alignment))
    return sources, targets, alignments


@pytest.mark.parametrize(
    "text, most", [({}, 0.0), ({"swaps": 0.3}, 0.08), ({"swaps": 0.3, "fillers": 0.2}, 0.12)]
)
def test_known_alignments_are_found(rng, text, most):
    sources, targets, expected = generated(rng, 1500, **text)
    error = alignment_error_rate(align_words(sources, targets), expected)
    in_order = [
        [(i, i) for i in range(min(len(s.split()), len(t.split())))]
        for s, t in zip(sources, targets, strict=True)
    ]
    assert error <= most and (not text or alignment_error_rate(in_order, expected) > 4 * error)


def test_empty_sentences_and_lines_of_one_word():
    assert align_words([], []) == []
    assert align_words(["", "a", ""], ["", "", "b"]) == [[], [], []]
    assert align_words(["a", "a b"], ["x", "x y"]) == [[(0, 0)], [(0, 0), (1, 1)]]
    with pytest.raises(ValueError, match="differ in length"):
        align_words(["a"], [])


def test_memory_of_long_sentences(rng, monkeypatch):
    """8 bytes for each pair of words, and a little for each word."""
    monkeypatch.setattr(word_alignment, "_CHUNK", 2**12)
    texts = [" ".join(map(str, rng.integers(0, 20, 100))) for _ in range(100)]
    tracemalloc.start()
    align_words(texts, texts, 1)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 11 * 100 * 100 * 100


def test_a_line_of_too_many_words_is_left_out_and_named():
    long = "a b " * 10_000
    tracemalloc.start()
    with pytest.warns(UserWarning, match="Line 2 is not aligned: 20,000 words with 20,000"):
        alignments = align_words(["a b", long, "a"], ["x y", long, "x"])
    assert tracemalloc.get_traced_memory()[1] < 2**23
    tracemalloc.stop()
    assert alignments == [[(0, 0), (1, 1)], [], [(0, 0)]]


def test_combination_of_two_directions():
    # (1, 1) is found twice; (1, 2) is its neighbour and (2, 1), too; (4, 4) is alone, with free
    # words; (1, 4) is not a neighbour, and its source word is taken.
    assert _combined([(1, 1), (1, 2), (4, 4)], [(1, 1), (2, 1), (1, 4)]) == [
        (1, 1),
        (1, 2),
        (2, 1),
        (4, 4),
    ]
    assert _combined([], [(0, 3)]) == [(0, 3)] and _combined([], []) == []


def test_error_rate():
    assert alignment_error_rate([[(0, 0)], []], [[(0, 0)], []]) == 0
    assert alignment_error_rate([[(0, 0)]], [[(1, 1)]]) == 1
    assert alignment_error_rate([[(0, 0), (1, 1)], [(2, 2)]], [[(0, 0)], [(2, 2)]]) == 1 - 4 / 5
    assert alignment_error_rate([], []) == 0


def test_command_writes_pharaohs_format(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    sources, targets, expected = generated(np.random.default_rng(1), 300)
    for name, lines in (("s", sources), ("t", targets)):
        pathlib.Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = ["align", "--source", "s", "--target", "t"]
    assert main([*command, "--output", "found"]) == 0
    lines = pathlib.Path("found").read_text().splitlines()
    found = [[tuple(map(int, pair.split("-"))) for pair in line.split()] for line in lines]
    assert alignment_error_rate(found, expected) < 0.02
    assert main(command) == 0 and capfd.readouterr().out.splitlines() == lines
    assert main([*command[:-1], "absent"]) == 1 and "absent" in capfd.readouterr().err
