"""Plain text, sentence by sentence: nothing is lost, and lines stay."""

import re

import pytest

from kformer.documents import Glossary, translate_document
from tests.documents.fakes import Fake, reverse

pytestmark = pytest.mark.any_backend

TEXT = """Title of it

  The first sentence is rather long and goes on in the
  next line. Then comes %s a second. See https://x.y/z?a=1. Mail a@b.com!
   - item one is 5 km long
   - item two
name\tvalue here\t5
Dr. Smith has a horse\r
and {name} rides. 2021.
"""


def test_all_but_the_sentences_stays():
    found = translate_document(Fake(str.upper), TEXT)
    expected = TEXT.upper()
    for kept in ("%s", "https://x.y/z?a=1", "a@b.com", "5 km", "{name}"):
        expected = expected.replace(kept.upper(), kept)
    assert found.text == expected
    assert (found.report.sentences, found.report.cut) == (10, 0)


def test_a_sentence_of_two_lines_is_translated_as_one():
    found = translate_document(Fake(reverse), TEXT).text
    assert "line. next the in on goes and long rather is sentence\n  first The second." in found
    assert [line == "" for line in found.split("\n")] == [line == "" for line in TEXT.split("\n")]
    assert found.count("\r\n") == 1


def test_a_sentence_that_is_too_long_is_parted_at_a_clause():
    fake = Fake(str.upper, most=40)
    text = "one two three four five, six seven eight nine ten; eleven twelve " * 20
    found = translate_document(fake, text)
    assert found.text == text.upper()
    assert found.report.cut == 0 and found.report.parted > 0
    whole = translate_document(Fake(str.upper, most=10), "x" * 1000)
    assert whole.text == "X" * 1000 and whole.report.cut == 0


def test_what_the_model_loses_is_put_back():
    """A model that drops every word it does not know, such as "X1"."""
    fake = Fake(lambda text: " ".join(w for w in text.lower().split() if w.isalpha()))
    found = translate_document(fake, "Open %(file)s or `code` and wait 5 min now").text
    assert found == "open %(file)s or `code` and wait 5 min now"


def test_a_translation_with_fewer_words_than_lines():
    for text in ("apple\nbanana\ncherry\n", "> apple\n> banana\n> cherry\n"):
        for format in ("text", "markdown"):
            found = translate_document(Fake(lambda text: "Obst"), text, format).text
            assert found == re.sub(r"\w+", "Obst", text)


@pytest.mark.parametrize("sign", ["\f", "\x0b", "\x1c", "\x85", "\u2028", "\u2029", "\r"])
def test_signs_that_end_lines_stay(sign):
    text = f"one{sign}two, {sign} Three\nand\n{sign}four"
    for format in ("text", "lines"):
        assert translate_document(Fake(str.upper), text, format).text == text.upper()


def test_nothing_stands_for_nothing():
    found = translate_document(Fake(lambda text: ""), "A sentence.\n\n%d\n")
    assert found.text == "A sentence.\n\n%d\n" and found.report.untranslated == 1


def test_bytes_that_are_no_utf8_stay():
    text = b"\xef\xbb\xbfone two. \xff\n\xfe"
    assert translate_document(Fake(str), text).text == text
    utf16 = "\ufeffeinmal\n".encode("utf-16-le")
    assert translate_document(Fake(str.upper), utf16).text == "\ufeffEINMAL\n".encode("utf-16-le")
    for more in (b"\n", b"\x80", b"\x00\xd8\n\x00"):
        assert translate_document(Fake(str), utf16 + more).text == utf16 + more


def test_terms_of_a_glossary():
    glossary = Glossary(
        [("horse", ("Pferd", "Pferde")), ("race horse", "Rennpferd"), ("Acme", None)]
    )
    text = "The race horse of Acme is a horse. Horse: acme."
    found = translate_document(Fake(lambda text: text.lower()), text, glossary=glossary)
    assert found.text == "the Rennpferd of Acme is a Pferd. Pferd: acme."
    assert [(use.source, use.found, use.used) for use in found.report.terms] == [
        ("race horse", 1, 1),
        ("Acme", 2, 2),
        ("horse", 2, 2),
    ]
    assert found.report.parted > 0


def test_an_unknown_format():
    with pytest.raises(ValueError, match="format must be one of text, .*, but 'xlsx' was given"):
        translate_document(Fake(str), "a", format="xlsx")


class Forced(Fake):
    """A model that can be told what to write: it writes nothing else."""

    takes_terms = True

    def translate(self, texts, terms=None, **options):
        rows = [list(row) for row in terms] if terms else [["nothing"] for _ in texts]
        self.asked += rows
        return [self._translation(" ".join(row)) for row in rows]

    def _translation(self, text):
        return Fake(str).translate([text])[0]


def test_a_search_is_told_what_must_occur():
    glossary = Glossary([("horse", ("Pferd", "Pferde")), ("Acme", None)])
    text = "A horse of Acme for %s weighs 5 kg"
    forced = Forced(str)
    found = translate_document(forced, text, glossary=glossary)
    assert forced.asked == [["X1", "Pferd", "Acme", "5 kg"]]
    assert found.text == "%s Pferd Acme 5 kg" and found.report.parted == 0


def test_a_space_between_chinese_sentences_stays():
    """It is left out where it stood between sentences of another script."""
    for text in ("是。 日本。 中。", "a。 日本。 b? 中。"):
        assert translate_document(Fake(str), text).text == text
    assert translate_document(Fake(lambda _: "是。"), "It snows. It rains.").text == "是。是。"
