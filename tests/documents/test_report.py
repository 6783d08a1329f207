"""What a report says of a document that did not come out whole."""

import pytest

from kformer.documents import translate_document
from tests.documents.fakes import Fake

pytestmark = pytest.mark.any_backend


def problems(function, text, format="text"):
    report = translate_document(Fake(function), text, format).report
    return [(problem.line, problem.text, problem.reason) for problem in report.problems]


def test_what_was_not_translated_has_its_line_and_reason():
    assert problems(str.upper, "b\n\na\0b\n", "markdown") == [(3, "a\0b", "it could not be read")]
    page = "<html lang=en>\n<p>a</p>\n<p>b c</p>"
    blank = lambda text: "" if "b" in text else text  # noqa: E731
    assert problems(blank, page, "html") == [(3, "b c", "the model returned nothing")]
    reason = "its translation would have broken the document"
    assert problems(lambda text: "    x", "a\n\nb", "markdown") == [
        (1, "a", reason),
        (3, "b", reason),
    ]


def test_a_number_that_a_translation_lacks():
    lacks = "the translation lacks 3"
    text = "Some 3 birds, 1,000 bees.\n\nIn 1999, 5 km."
    assert problems(lambda text: "Ein Mann 1.000", text) == [
        (1, text.split("\n")[0], lacks),
        (3, "In 1999, 5 km.", "the translation lacks 1999"),
    ]
    assert problems(lambda text: text.replace("3", "٣"), text) == []


def test_the_most_doubtful_sentences_come_first():
    text = "A bird. Two.\n\nCall 1234 now. A bee.\n"
    answers = {"A bird.": "Ein Vogel.", "Call 1234 now.": "Ruf an ruf an jetzt.", "Two.": "Zwei."}
    fake = Fake(lambda text: answers.get(text, "Eine Biene."))
    report = translate_document(fake, text, coverage=True).report
    assert [(one.line, one.source) for one in report.translations] == [
        (1, "A bird."),
        (1, "Two."),
        (3, "Call 1234 now."),
        (3, "A bee."),
    ]
    first, *others = report.coverage
    assert (first.line, first.source, first.translation) == (
        3,
        "Call 1234 now.",
        "Ruf an ruf an jetzt.",
    )
    assert [span.text for span in first.coverage.missing] == ["1234"]
    assert first.as_dict()["added"][0]["kind"] == "repetition"
    assert [each.coverage.probability for each in others] == [0, 0, 0]
    assert translate_document(fake, text).report.coverage == []


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark(encoding):
    found = translate_document(Fake(str.upper), "Söme house.\n".encode(encoding))
    assert found.text == "SÖME HOUSE.\n".encode(encoding)


def test_bytes_that_are_not_utf_8_are_counted():
    found = translate_document(Fake(str.upper), "Söme hoüse.\n".encode("latin-1"))
    assert found.text.decode() == "S\ufffdME HO\ufffdSE.\n" and found.report.unreadable == 2
