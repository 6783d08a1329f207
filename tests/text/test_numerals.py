"""Numbers in digits and in words."""

from fractions import Fraction

import pytest

from kformer.text.numerals import numbers_of

pytestmark = pytest.mark.any_backend


@pytest.mark.parametrize(
    "text, values",
    [
        ("1,000 and 1000 and 1'000 and 1 000", [{1000, 1}, {1000}, {1000}, {1000}]),
        ("1500 million", [{1500 * 10**6}]),
        ("1.000.000,50 and 12,34,567 and .25", [{Fraction(2000001, 2)}, {1234567}, {0.25}]),
        ("at 7:30, for 3.50, 10.30 Uhr", [{7}, {30}, {3.5}, {10}, {30}]),
        ("at 19:30 and 17.05.2024", [{19, 7}, {30}, {17}, {5}, {2024}]),
        ("at 192.168.0.1", [{19216801}]),
        ("2.5 million, 3 Millionen, 2 Mio.", [{2500000}, {3000000}, {2000000}]),
        ("$10k and 5 m", [{10, 10000}, {5, 5000000}]),
        ("1.5 billion", [{1500000000, 1500000000000}]),
        ("2万人, 3万5千, 250万, 50千米", [{20000}, {35000}, {2500000}, {50}]),
        ("in 2010 300 people", [{2010}, {300}]),
        ("in the 1980s", [{1980, 80, 20}]),
        ("２：３０ ٢٥ 1½", [{2}, {30}, {25}, {1.5}]),
        ("Louis XIV, XXIe, MIX", [{14}, {21}]),
        ("no number", []),
        ("1" * 5000 + " million", [{int("1" * 4000) * 10**6}]),
        ("1." + "1" * 5000, [{Fraction("1." + "1" * 4000)}]),
    ],
)
def test_numbers_in_digits(text, values):
    assert [number.values for number in numbers_of(text)] == values


@pytest.mark.parametrize(
    "value, texts",
    [
        (12, "twelve|zwölf|douze|doce|十二|a dozen|twelfth|zwölften|douzième|December"),
        (25, "twenty-five|Fünfundzwanzig|vingt-cinq|veinticinco|二十五|廿五|贰拾伍|TWENTY FIVE"),
        (21, "twenty-first|einundzwanzig|vingt et un|veintiún|veintiuno"),
        (30, "thirty|dreißig|dreissig|trente|treinta|三十|dreißigjährige"),
        (80, "eighty|achtzig|quatre-vingts|huitante|ochenta|eighties|achtziger"),
        (92, "ninety-two|zweiundneunzig|quatre-vingt-douze|noventa y dos"),
        (365, "three hundred and sixty-five|dreihundertfünfundsechzig|trois cent soixante-cinq"),
        (365, "trescientos sesenta y cinco|三百六十五"),
        (1984, "nineteen eighty-four|neunzehnhundertvierundachtzig|一九八四"),
        (2001, "zweitausendundeins|two thousand and one|二〇〇一|两千零一"),
        (3500, "三千五|three thousand five hundred|tres mil quinientos"),
        (10305, "一万零三百零五|一万〇三百〇五"),
        (500000, "half a million|eine halbe Million|demi-million|fünfhunderttausend|五十万"),
        (150 * 10**6, "一亿五千万|hundred and fifty million|ciento cincuenta millones"),
    ],
)
def test_numbers_in_words(value, texts):
    for text in texts.split("|"):
        (number,) = numbers_of(text)
        assert value in number.values and number.is_spelled, text


@pytest.mark.parametrize(
    "text, values",
    [
        ("Sie helfen mit Selfies, a tender family, achtung", []),
        ("one hundred and two hundred", [{100}, {200}]),
        ("between twenty and five", [{20}, {5}]),
        ("10 millionaires", [{10}, {1000000}]),
        ("twenty cents", [{20, 2000}]),
        ("万一", []),
        ("三四次", [{34, 3, 4}]),
    ],
)
def test_words_that_are_no_number_or_several(text, values):
    assert [number.values for number in numbers_of(text)] == values


def test_a_number_knows_its_characters():
    text = "İ: In 2.5 million Fällen, dreißig"
    spans = [text[each.start : each.stop] for each in numbers_of(text)]
    assert spans == ["2.5 million", "dreißig"]
