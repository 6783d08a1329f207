"""Back-translation: the tag and the noise of sources that a model wrote."""

import collections

import pytest

from kformer.distillation.back_translation import TAG, add_noise, tagged

pytestmark = pytest.mark.any_backend
WORDS = [f"w{index}" for index in range(40)]


def test_a_source_that_a_model_wrote_is_marked():
    assert tagged("half past four") == f"{TAG} half past four"


def test_noise_drops_hides_and_moves_words_as_often_as_said():
    counts, moves = collections.Counter(), []
    for index in range(400):
        noisy = add_noise(" ".join(WORDS), 1, index).split(" ")
        counts["kept"] += len(noisy)
        counts["hidden"] += noisy.count("_")
        places = [int(word[1:]) for word in noisy if word != "_"]
        assert set(noisy) <= {*WORDS, "_"} and len(places) == len(set(places))
        order = sorted(places)
        moves += [abs(order.index(place) - at) for at, place in enumerate(places)]
    assert counts["kept"] / (400 * 40) == pytest.approx(0.9, abs=0.01)
    assert counts["hidden"] / counts["kept"] == pytest.approx(0.1, abs=0.01)
    # A word passes only words that were at most three places away.
    assert max(moves) == 3 and moves.count(0) < len(moves) / 2


def test_noise_depends_on_seed_and_index_alone():
    text = " ".join(WORDS)
    assert add_noise(text, 1, 5) == add_noise(text, 1, 5)
    assert len({add_noise(text, seed, index) for seed in (1, 2) for index in (5, 6)}) == 4


def test_noise_of_chinese_is_about_characters_and_never_empties_a_text():
    noisy = add_noise("今天天气很好我们去公园散步吧", 0, 0)
    assert " " not in noisy and len(noisy) >= 8
    for space in ("\u00a0", "\u3000"):  # Words with any space between them are not glued.
        assert {"ein Haus", "Haus ein"} & {
            add_noise(f"ein{space}Haus", 0, index) for index in range(9)
        }
    assert all(add_noise("word", 0, index) in ("word", "_") for index in range(50))
