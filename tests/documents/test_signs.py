"""Signs and spaces stay on their side of a tag, and tags within words keep their characters.

The translators are right by construction, so it is known where each tag stands.
"""

import itertools
import random
import re

import pytest

from kformer.documents import translate_document
from tests.documents.fakes import Fake, reverse

pytestmark = pytest.mark.any_backend
WORDS = (
    "see time year people way day thing man world life hand part child eye woman place work week "
    "case point house water river green small large early young old walks reads writes takes"
).split()
# What may stand around words, within a tag and outside of one.
SIGNS = ("{}", "{}", "{}", "({})", "[{}]", '"{}"', "{},", "{}:", "({}),", "“{}”")
IN_WORDS = ("H<sub>2</sub>O", "m<sup>2</sup>", "1<sup>st</sup>", "CO<sub>2</sub>")
WITHOUT_TEXT = ("<a href=x><img src=y></a>", "<i class=icon></i>", "<img src=z>")


def dictionary(text):
    """Each word becomes another one; what is none stays."""
    return re.sub(r"[a-z]{3,}", lambda match: match[0][::-1] + "en", text)


def chinese(text):
    """Each word becomes two signs, without spaces."""
    text = re.sub(r"[a-z]{3,}", lambda m: chr(0x4E00 + WORDS.index(m[0])) + "的", text)
    return re.sub(r"(?<![\w]) | (?![\w])|(?<=的) | (?=[\u4e00-\u9fff])", "", text)


def paragraph(rng, signs=SIGNS, most=2):
    words = rng.sample(WORDS, 12)
    pieces = [rng.choice(signs).format(words.pop())]
    while len(words) > 3:
        inner = " ".join(words.pop() for _ in range(rng.randint(1, most)))
        inner = rng.choice(signs).format(inner)
        tag = rng.choice(("b", "i", "a"))
        outer = rng.choice(signs).format(f"<{tag}>{inner}</{tag}>")
        pieces += [outer] if rng.random() < 0.6 else [inner]
        if rng.random() < 0.3:
            pieces.append(rng.choice(IN_WORDS + WITHOUT_TEXT))
    return f"<p>{' '.join([*pieces, words.pop()])}.</p>"


@pytest.mark.parametrize("function", [str, str.upper, dictionary])
def test_signs_stay_on_their_side_of_a_tag(function):
    rng = random.Random(0)
    for _ in range(60):
        text = paragraph(rng)
        expected = re.sub(r"[^<>]+(?![^<>]*>)", lambda match: function(match[0]), text)
        assert translate_document(Fake(function), text, "html").text == expected


@pytest.mark.parametrize("function", [str.upper, dictionary, reverse])
def test_signs_stay_on_their_side_of_a_code(function):
    rng = random.Random(2)
    signs = [sign for sign in SIGNS if '"' not in sign]
    for _ in range(30):
        text = paragraph(rng, signs, most=1)[3:-4]
        for tag, code in (("<img[^>]*>", '<x id="0"/>'), ("<[^/x][^>]*>", '<g id="0">')):
            text = re.sub(tag, code, text)
        text, numbers = re.sub("</[^>]*>", "</g>", text), itertools.count(1)
        text = re.sub('"0"', lambda _, numbers=numbers: f'"{next(numbers)}"', text)
        file = f"<xliff><file><trans-unit><source>{text}</source></trans-unit></file></xliff>"
        found = translate_document(Fake(function), file, "xliff").text
        found = re.search("<target[^>]*>(.*)</target>", found)[1]
        if function is reverse:
            pieces = re.compile(r"(?:<[^>]*>|[^ <])+")
            assert sorted(pieces.findall(text)) == sorted(pieces.findall(found)), (text, found)
        else:
            expected = re.sub(r"[^<>]+(?![^<>]*>)", lambda match: function(match[0]), text)
            assert found == expected


@pytest.mark.parametrize("function", [reverse, chinese])
def test_signs_within_a_tag_in_another_order_and_script(function):
    rng = random.Random(1)
    for _ in range(60):
        # Where words are reversed, signs around two of them part, and straight quotes change sides.
        signs = [sign for sign in SIGNS if '"' not in sign]
        text = paragraph(rng, signs, most=1 if function is reverse else 2)
        found = translate_document(Fake(function), text, "html").text
        if function is reverse:
            # Each word has the tags and signs that it had, on their sides.
            pieces = re.compile(r"(?:<[^>]*>|[^ <])+")
            sides = [sorted(pieces.findall(page[3:-4])) for page in (text, found)]
        else:
            expected = re.sub(r"[^<>]+(?![^<>]*>)", lambda match: chinese(match[0]), text)
            empty = f" (?![^<>]*>)|{'|'.join(WITHOUT_TEXT)}"
            sides = [re.sub(empty, "", page) for page in (expected, found)]
        assert sides[0] == sides[1], (text, found)
        for pair in WITHOUT_TEXT:
            assert text.count(f" {pair} ") == found.count(f" {pair} ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<p>see <b>(x)</b>.</p>", "<p>SEE <b>(X)</b>.</p>"),
        ("<p><a>f(x)</a> (or <a>g(x)</a>)</p>", "<p><a>F(X)</a> (OR <a>G(X)</a>)</p>"),
        ("<p>the <b>U.S.</b>, y</p>", "<p>THE <b>U.S.</b>, Y</p>"),
        ("<p><i>C++</i>, about <b>5%</b>, y</p>", "<p><i>C++</i>, ABOUT <b>5%</b>, Y</p>"),
        ("<p>word<sup>1</sup> <b>be</b>fore</p>", "<p>WORD<sup>1</sup> <b>BE</b>FORE</p>"),
    ],
)
def test_signs_that_belong_to_a_word(text, expected):
    assert translate_document(Fake(str.upper), text, "html").text == expected


def test_a_number_below_or_above_a_word_of_another_script():
    found = translate_document(
        Fake(lambda text: "水是二氧化碳1的"), "<p>water is x<sup>1</sup>", "html"
    )
    assert found.text == "<p>水是二氧化碳<sup>1</sup>的"


def test_no_line_of_a_subtitle_ends_with_a_sign_that_opens():
    text = "1\n00:00:01,000 --> 00:00:02,000\nI said [sound]\n[bell] be (now)\n"
    for function in (str.upper, reverse, dictionary):
        found = translate_document(Fake(function), text, "srt").text
        assert not re.search(r"[\[(]\n|\n[\])]", found)
    lines = "The <EXCLUDE_PATTERN>s can be file and/or directory patterns that will be\\nexcluded"
    page = f'msgid "{lines} from generation."\nmsgstr ""\n'
    found = translate_document(Fake(reverse), page, "po").text
    assert "<EXCLUDE_PATTERN>s" in found.split("msgstr")[1]
