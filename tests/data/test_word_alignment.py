"""The statistical aligner, on generated pairs whose alignment is known."""

import pathlib
import tracemalloc

import numpy as np
import pytest

from kformer.data import align_words, alignment_error_rate, word_alignment
from kformer.data.word_alignment import AlignmentScores, _combined, read_pharaoh
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


def test_scores_tell_translations_from_others(rng):
    sources, targets, _ = generated(rng, 3000, swaps=0.3, fillers=0.2)
    scores = AlignmentScores.fit(sources[:2500], targets[:2500])
    good, shifted = scores(sources, targets), scores(sources, targets[1:] + targets[:1])
    rows = [i for i in range(2999) if min(len(sources[i].split()), len(targets[i + 1].split())) > 3]
    for part in (rows[:2000], [i for i in rows if i >= 2500]):  # Also pairs that it never saw.
        assert np.mean(good[part] > 0.5) > 0.98 and np.mean(shifted[part] < 0.5) > 0.95
    cut = [" ".join(text.split()[: len(text.split()) // 3]) for text in targets]
    long = [i for i in rows if len(sources[i].split()) > 8]
    assert np.all(scores(sources, cut)[long] < good[long] - 0.5)


def test_scores_of_a_pair_do_not_depend_on_the_others(rng, monkeypatch):
    sources, targets, _ = generated(rng, 300)
    scores = AlignmentScores.fit(sources, targets)
    expected = scores(sources, targets)
    np.testing.assert_allclose(scores(sources[7:9], targets[7:9]), expected[7:9])
    monkeypatch.setattr(word_alignment, "_CHUNK", 100)
    np.testing.assert_allclose(scores(sources, targets), expected)
    np.testing.assert_allclose(AlignmentScores.fit(sources, targets)(sources, targets), expected)


def test_scores_of_what_says_nothing():
    scores = AlignmentScores.fit(["a b", "c"] * 5, ["x y", "z"] * 5)
    assert scores(["", "new words", "a"], ["", "other ones", ""]).tolist()[:2] == [np.inf] * 2
    assert len(scores([], [])) == 0
    assert AlignmentScores.fit([], [])(["a"], ["b"]).tolist() == [np.inf]
    assert AlignmentScores.fit([""], [""])(["a"], ["b"]).tolist() == [np.inf]
    with pytest.raises(ValueError, match="differ in length"):
        AlignmentScores.fit(["a"], [])
    with pytest.raises(ValueError, match="differ in length"):
        scores(["a"], [])


def test_scores_look_at_the_first_words(monkeypatch):
    sources = ["the house a dog", "a dog the house"] * 5
    targets = ["das Haus x y", "x y das Haus"] * 5
    pairs = ["the house a dog", "the house a cat"], ["das Haus x y", "das Haus x z"]
    for most, is_same in ((1000, False), (2, True)):
        monkeypatch.setattr(word_alignment, "_MOST_SCORED", most)
        first, second = AlignmentScores.fit(sources, targets)(*pairs)
        assert (first == second) == is_same


def test_scores_of_a_large_corpus_are_fitted_on_a_part(rng, monkeypatch):
    sources, targets, _ = generated(rng, 2000)
    monkeypatch.setattr(word_alignment, "_MOST_FITTED", 20_000)
    scores = AlignmentScores.fit(sources, targets)
    long = [i for i in range(1999) if len(sources[i].split()) > 4]
    good, shifted = scores(sources, targets), scores(sources, targets[1:] + targets[:1])
    assert np.mean(good[long] > shifted[long]) > 0.98


@pytest.mark.parametrize("line", ["0-0 1", "0-0 1:1", "0-0 -1-2", f"0-{'9' * 5_000}"])
def test_a_line_that_is_no_alignment_is_named(tmp_path, line):
    path = tmp_path / "alignments"
    path.write_text(f"0-0 1p2\n{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match="^Line 2 of the alignment file .* not in Pharaoh's forma"):
        read_pharaoh(path)
    path.write_text("0-0 1p2\n\n", encoding="utf-8")
    assert read_pharaoh(path) == [[(0, 0), (1, 2)], []]
