"""Files of terms, and where terms occur."""

import time

import pytest

from kformer.documents import Entry, Glossary, translate_document
from tests.documents.fakes import Fake

pytestmark = pytest.mark.any_backend


def found(glossary, text):
    return [(text[start:end], entry.target) for start, end, entry in glossary.find(text)]


def test_a_file(tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_text(
        "\ufeff# animals\n\ndog|dogs\tHund|Hunde\nGit\t\tcase\r\n机器学习\tmachine learning\n",
        encoding="utf-8",
    )
    glossary = Glossary.load(path)
    assert len(glossary) == 3
    assert found(glossary, "Two Dogs, git and Git; dogma") == [
        ("Dogs", ("Hund", "Hunde")),
        ("Git", ()),
    ]
    assert found(glossary, "我学机器学习吗") == [("机器学习", ("machine learning",))]


def test_terms_of_a_dict_and_terms_that_stay():
    assert found(Glossary({"USA": "美国"}), "The USA and U.") == [("USA", ("美国",))]
    assert found(Glossary(["IBM"]), "I and IBM") == [("IBM", ())]


def test_the_longest_term_counts():
    glossary = Glossary([("a b", "1"), ("a", "2"), Entry(("a b c",), ("3",)), ("A", "4", True)])
    assert found(glossary, "a b c a b A x a") == [
        ("a b c", ("3",)),
        ("a b", ("1",)),
        ("A", ("4",)),
        ("a", ("2",)),
    ]
    assert found(Glossary([("a b", "1"), ("b c d", "2")]), "a b c d") == [("a b", ("1",))]


def test_many_terms_that_begin_with_one_word():
    begin = time.process_time()
    glossary = Glossary([(f"the word{number}", "x") for number in range(10_000)])
    assert len(found(glossary, "the word9 " * 1000)) == 1000
    assert time.process_time() - begin < 2


@pytest.mark.parametrize(
    "line, message",
    [
        ("a\tb\tnoun", "Line 2 of the glossary '.*': expected a source, a target and perhaps case"),
        ("\tb", "Line 2 .*has no word"),
        ("ok\tagain", "Line 2 .*two entries for 'ok'"),
        ("OK\tagain", "Line 2 .*two entries for 'OK'"),
    ],
)
def test_a_line_that_is_no_term(tmp_path, line, message):
    path = tmp_path / "terms.tsv"
    path.write_text(f"ok\tgut\n{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        Glossary.load(path)


def test_a_file_that_is_none(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        Glossary.load(tmp_path / "none.tsv")
    (tmp_path / "latin.tsv").write_bytes(b"\xff\tb\n")
    with pytest.raises(ValueError, match="not UTF-8"):
        Glossary.load(tmp_path / "latin.tsv")


def memory(path, *units):
    text = "".join(
        f"<tu><tuv xml:lang='en'><seg>{source}</seg></tuv><tuv xml:lang='de'><seg>{target}</seg>"
        "</tuv></tu>"
        for source, target in units
    )
    path.write_text(f"<tmx>{text}</tmx>", encoding="utf-8")
    return path


def test_a_translation_memory(tmp_path):
    units = (("big house", "Haus"), ("Big house", "Gebäude"), ("A house  is big.", "Groß!"))
    path = memory(tmp_path / "x.tmx", *units)
    with pytest.raises(ValueError, match="name two by --language-pair .* NAME:en-de=FILE"):
        Glossary.load(path)
    glossary = Glossary.load(path, ("en", "de"))
    assert found(glossary, "A big house") == [("big house", ("Haus", "Gebäude"))]
    fake = Fake(str.upper)
    text = "<p>A house is big. A <b>house</b> is big. My big house.</p>"
    translation = translate_document(fake, text, "html", glossary=glossary)
    assert translation.text == "<p>Groß! <b>Groß</b>! MY Haus.</p>"
    assert not any("is big" in each for each in fake.asked) and translation.report.sentences == 3


def test_sentences_of_a_memory_with_what_is_kept(tmp_path):
    units = (
        ("Open the file %s now please.", "Bitte jetzt %s öffnen."),
        ("Copy %s to %d%% of %s.", "%s auf %d%% von %s."),
        ("See <ph>{0}</ph> for <ph>&lt;b&gt;</ph>more now.", "Mehr in <ph>{0}</ph>."),
        ("Go to https://a.org/b now.", "Nichts davon hier."),
    )
    glossary = Glossary.load(memory(tmp_path / "x.tmx", *units), ("en", "de"))
    fake = Fake(str.upper)
    for source, target in (
        ("Open the  file %s now please.", "Bitte jetzt %s öffnen."),
        ("Copy %s to %d%% of %s.", "%s auf %d%% von %s."),
        ("See {0} for more now.", "Mehr in {0}."),
        # What lacks an address is no translation.
        ("Go to https://a.org/b now.", "GO TO https://a.org/b NOW."),
    ):
        assert translate_document(fake, source, glossary=glossary).text == target
    assert fake.asked == ["Go to X1 now."]
