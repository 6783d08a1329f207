"""Mistakes that show without a model."""

import pytest

from kformer.translating.mistakes import are_in_other_language, find_mistakes, repetitions
from kformer_options.installed import is_installed

pytestmark = pytest.mark.any_backend


@pytest.mark.parametrize(
    "source, target, missing, added",
    [
        ("It costs 1,250 euros.", "Es kostet 1.250 Euro.", [], []),
        ("It costs 25 euros.", "Es kostet 52 Euro.", ["25"], ["52"]),
        ("Twenty-five men, 7 women.", "25 Männer, sieben Frauen.", [], []),
        ("三十二个人", "32 people", [], []),
        ("3.50 euros at 7:30", "3,5 Euro um 19.30 Uhr", [], []),
        ("3.50 euros", "350 Euro", ["3.50"], ["350"]),
        ("2 million people", "2 Leute", ["2 million"], []),
        ("2 million people", "2.000.000 Leute", [], []),
        ("25 men and 25 women", "25 Männer und Frauen", ["25"], []),
        ("2024-10-17, 1980s", "17. Oktober 2024, 20世纪80年代", [], []),
        ("+49 (0)30 123-4567", "+49 30 1234567", [], []),
        ("Louis XIV", "Ludwig der 16.", ["XIV"], ["16"]),
        ("half past ten, 50 % of them", "10:30, die Hälfte", [], []),
        ("See http://a.org/12.", "Siehe http://a.org/12.", [], []),
        ("Hello {name}!", "{name}, hallo {name}!", [], ["{name}"]),
        (
            "See /usr/bin or a.b.org or C:\\x\\y.",
            "Und/oder.",
            ["/usr/bin", "a.b.org", "C:\\x\\y"],
            [],
        ),
        ("Write to mül@exä.de, @ann.", "Schreib.", ["mül@exä.de", "@ann"], []),
        ("Write to a@b.org, {name}!", "Schreiben Sie!", ["a@b.org", "{name}"], []),
        ("Hello", "Hallo %s", [], ["%s"]),
        ("a man in a hat", "ein Mann mit Hut mit Hut mit Hut", [], ["mit Hut mit Hut"]),
        ("the old man sits here", "the old man sits da", [], ["the old man sits da"]),
        ("那个男人在遛狗", "那个男人在遛狗", [], ["那个男人在遛狗"]),
        ("la la la la", "la la la la", [], []),
        ("a man", "这个男人这个男人", [], ["这个男人"]),
        ("hello", "สวัสดีสวัสดีสวัสดีสวัสดี", [], ["สวัสดีสวัสดีสวัสดีสวัสดี"]),
        ("hahahahaha", "哈哈哈哈哈", [], []),
        ("", "", [], []),
    ],
)
def test_what_is_missing_or_too_much(source, target, missing, added):
    found = find_mistakes(source, target)
    assert [[span.text for span in side] for side in found] == [missing, added]
    for text, side in zip((source, target), found, strict=True):
        assert all(text[span.start : span.stop] == span.text for span in side)


def test_numbers_in_words_count_where_both_languages_are_known():
    pair = "Twenty-five of a hundred men", "Männer"
    assert find_mistakes(*pair) == ([], [])
    (span,), _ = find_mistakes(*pair, has_words=True)
    assert span.text == "Twenty-five"


@pytest.mark.parametrize(
    "words, spans",
    [
        ("a b c", []),
        ("very very good", []),
        ("no no no", [(1, 3)]),
        ("a b a b", [(2, 4)]),
        ("a b c d e x a b c d e", [(6, 11)]),
        (", , ,", []),
    ],
)
def test_repetitions(words, spans):
    assert repetitions(words.split()) == spans
    assert repetitions(words.split(), ["x", "y", "x", "y"]) == [], "as the source does"


@pytest.mark.skipif(not is_installed("py3langid"), reason="py3langid is an extra")
def test_another_language():
    texts = ["Der alte Mann sitzt mit seinem Hund auf einer Bank im Park.", "Ein Hund."]
    assert are_in_other_language(texts, "en") == [True, False], "two words are too few"
    assert are_in_other_language(texts, "deu_Latn") == [False, False]
    assert are_in_other_language(texts, None) == [False, False]
