"""Numbers in digits and in words."""

import pytest

from kformer.text.numerals import is_spelled, numbers_of, spelled

pytestmark = pytest.mark.any_backend


@pytest.mark.parametrize(
    "text, values",
    [
        ("1,000 and 1.000 and 1 000 and 1000", [{1000}] * 4),
        ("at 07:30, for 3.50", [{730}, {350}]),
        ("2.5 million, 3 Millionen", [{25, 2500000}, {3, 3000000}]),
        ("2万人", [{2, 20000}]),
        ("in 2010 300 people", [{2010}, {300}]),
        ("no number", []),
        ("1" * 5000 + " million", [{int("1" * 4000), int("1" * 4000) * 10**6}]),
    ],
)
def test_numbers_in_digits(text, values):
    assert [number.values for number in numbers_of(text)] == values


@pytest.mark.parametrize(
    "value, forms",
    [
        (12, "twelve zwölf douze doce 十二 dozen".split()),
        (25, ["twenty-five", "fünfundzwanzig", "vingt-cinq", "veinticinco", "二十五"]),
        (30, ["thirty", "dreißig", "dreissig", "trente", "treinta", "三十"]),
        (71, ["seventy-one", "soixante et onze", "setenta y uno"]),
        (80, ["quatre-vingts"]),
        (92, ["quatre-vingt-douze"]),
        (200, ["two hundred", "zweihundert", "deux cents", "二百", "两百"]),
        (1000, ["one thousand", "tausend", "一千"]),
        (10305, ["一万零三百零五", "一万〇三百〇五"]),
    ],
)
def test_numbers_in_words(value, forms):
    assert set(forms) <= spelled(value)
    assert "" not in spelled(value)


def test_no_two_numbers_are_written_alike():
    forms = [form for value in range(1, 100) for form in spelled(value)]
    assert len(forms) == len(set(forms))


@pytest.mark.parametrize(
    "value, text, expected",
    [
        (11, "elf männer helfen", True),
        (11, "sie helfen mit selfies", False),
        (10, "a tender man", False),
        (50, "eine fünfzigjährige frau", True),
        (1000, "a family", False),
        (32, "共三十二人", True),
    ],
)
def test_a_number_is_a_word_of_its_own(value, text, expected):
    assert is_spelled(value, text) is expected
