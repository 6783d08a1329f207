"""Links that their text names, signs of blocks in a translation, and dialects of Markdown."""

import re

import pytest

from kformer.documents import translate_document
from tests.documents.fakes import Fake, reverse

pytestmark = pytest.mark.any_backend


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("See [a doc] now.", "SIEHE [a DOKUMENT][a doc] JETZT."),
        ("See [a doc][] now.", "SIEHE [a DOKUMENT][a doc] JETZT."),
        ("See [a] now.", "SIEHE [a] JETZT."),
        ("> See [a\n> doc] now.", "> SIEHE [a\n> DOKUMENT][a doc] JETZT."),
    ],
)
def test_a_link_whose_text_names_it(text, expected):
    words = {"See": "SIEHE", "now.": "JETZT.", "doc": "DOKUMENT"}
    end = "\n\n[a doc]: b\n[a]: c\n"
    for function, target in (
        (lambda text: " ".join(words.get(word, word) for word in text.split()), expected),
        (str, text),
    ):
        found = translate_document(Fake(function), text + end, "markdown")
        assert (found.text, found.report.untranslated) == (target + end, 0)


def test_footnotes_in_any_script():
    text = "Water.[^1] More[^b].\n\n[^1]: Note\n[^b]: A long note.\n"
    found = translate_document(Fake(lambda text: "水"), text, "markdown")
    assert found.text == "水[^1] 水[^b]\n\n[^1]: 水\n[^b]: 水\n"
    assert found.report.untranslated == 0


@pytest.mark.parametrize("sign", "> # - + * 1. 12) | ::: === --- ~~~ !!! ???".split())
def test_signs_that_would_begin_a_block(sign):
    """They are text, at the begin of each line."""
    for text in ("a bird\nand c\n", "> a bird\n> and c\n", "- a bird\n  and c\n"):
        found = translate_document(Fake(lambda text: f"{sign} b {sign}"), text, "markdown")
        assert found.report.untranslated == 0 and "bird" not in found.text
        found = translate_document(Fake(reverse), text.replace("bird", f"b {sign}"), "markdown")
        first, second = found.text.splitlines()
        assert second.startswith(text.splitlines()[1].removesuffix("and c"))
        assert not second.removeprefix("> ").strip().startswith((f"{sign} ", f"{sign}\n"))


@pytest.mark.parametrize(
    "text",
    [
        "## Aa bb {#id .c d=e}",
        "See [aa](u){target=_blank} aa `x`{.c}.",
        "Aa\n{: .c}",
        "Aa :smile: bb :+1:",
        '!!! note inline "Aa bb"\n    cc dd.',
        "??? tip\n    Aa bb",
        "::: warning\nAa bb.\n:::",
        "Aa {ref}`b` [[c d]] aa",
        "[TOC]\nAa",
    ],
)
def test_dialects(text):
    expected = re.sub(r"\b(?:aa|bb|cc|dd|see)\b", lambda word: word[0].upper(), text, flags=re.I)
    assert translate_document(Fake(str.upper), text, "markdown").text == expected
