"""One wording for each check of an argument; NumPy's numbers pass, booleans do not."""

import numpy as np
import pytest

from kformer.utils.checks import check_choice, check_number, check_whole, shown
from kformer_options.text_files import check_same_length


def test_whole_numbers_pass_as_ints():
    for value in (3, np.int64(3), np.uint8(3)):
        assert check_whole("keep", value, least=3, most=3) == 3
        assert type(check_whole("keep", value)) is int
    assert check_whole("seed", 0, least=0) == 0
    assert check_whole("offset", -5, least=-5) == -5


@pytest.mark.parametrize("value", [0, -1, True, np.True_, 2.0, 2.5, "3", None, [3], float("nan")])
def test_what_is_no_whole_number_of_at_least_1(value):
    with pytest.raises(ValueError) as error:
        check_whole("keep", value)
    assert (
        str(error.value) == f"keep must be a whole number of at least 1, but {value!r} was given."
    )


def test_a_value_of_any_size_is_shown_in_a_few_words():
    assert shown(2) == "2" and shown("a") == "'a'" and shown([1, "b"]) == "[1, 'b']"
    for value in ("x" * 10**6, list(range(10**6)), {str(i): ["y" * 999] * 99 for i in range(999)}):
        assert len(shown(value)) < 500
    with pytest.raises(ValueError) as error:
        check_choice("mode", "x" * 10**6, ["a", "b"])
    assert len(str(error.value)) < 600


def test_a_number_of_any_size_is_shown():
    with pytest.raises(ValueError, match="^seed must be a whole number from 0 to 9, but .* was"):
        check_whole("seed", 10**5000, 0, 9)


def test_a_range_of_whole_numbers():
    with pytest.raises(ValueError, match="^seed must be a whole number from 0 to 9, but 10 was"):
        check_whole("seed", 10, least=0, most=9)


def test_rates():
    for value in (0, 0.0, 0.5, np.float32(0.5), 0.999):
        assert check_number("dropout", value, at_least=0, below=1) == value
    for value in (1, 1.0, -0.1, True, False, "0.1", None):
        with pytest.raises(ValueError) as error:
            check_number("dropout", value, at_least=0, below=1)
        assert str(error.value) == f"dropout must be in [0, 1), but {value!r} was given."


def test_numbers_are_finite_and_within_limits():
    assert check_number("share", np.float32(0.5), above=0, below=1) == 0.5
    assert type(check_number("scale", 2, above=0)) is float
    for value, limits, expected in (
        (1, {"above": 0, "below": 1}, "above 0 and below 1"),
        (-1, {"at_least": 0, "note": " (0 for none)"}, "at least 0 (0 for none)"),
        (float("nan"), {"at_least": 0, "below": 1}, "a finite number"),
    ):
        with pytest.raises(ValueError) as error:
            check_number("share", value, **limits)
        assert str(error.value) == f"share must be {expected}, but {value} was given."


def test_choices():
    assert check_choice("norm", "pre", ("pre", "post")) == "pre"
    assert check_choice("head", None, ("mean", None)) is None
    assert check_choice("side", "a", {"a": 1}) == "a"
    with pytest.raises(ValueError, match="^norm must be one of pre, post, but 'both' was given.$"):
        check_choice("norm", "both", ("pre", "post"))
    with pytest.raises(ValueError, match=r"^norm must be one of pre, but \['pre'\] was given.$"):
        check_choice("norm", ["pre"], {"pre": 1})


def test_sides_of_equal_length():
    assert check_same_length("'a.en'", 3, "'a.de'", 3) == 3
    with pytest.raises(ValueError) as error:
        check_same_length("'a.en'", 3, "'a.de'", 4)
    assert str(error.value) == (
        "The two sides differ in length: 3 lines in 'a.en', but 4 in 'a.de'; "
        "line n of one must belong to line n of the other."
    )
