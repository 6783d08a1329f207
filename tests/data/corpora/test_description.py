"""The description of corpora: what it may say, and one sentence for what it may not."""

import pytest

from kformer.data import Corpora
from kformer.data.corpora.rules import LEVELS, RULES

pytestmark = pytest.mark.any_backend

WHOLE = """\
corpora:
  ui: {source: ui.en, target: ui.de, languages: en-de, weight: 3}
  crawl: {files: [crawl.tsv], columns: [2, 1], languages: en-de, clean: strict}
  memory: {files: crawl.tsv, languages: fr-en, both_directions: true, clean: [empty, html]}
validation:
  en-de: {source: ui.en, target: ui.de}
clean: none
"""


@pytest.fixture
def folder(tmp_path):
    for name in ("ui.en", "ui.de", "crawl.tsv", "ui.xyz"):
        (tmp_path / name).write_text("a\tb\n", encoding="utf-8")
    return tmp_path


def load(folder, text):
    path = folder / "corpora.yaml"
    path.write_text(text, encoding="utf-8")
    return Corpora.load(path)


def test_a_description_is_read(folder):
    corpora = load(folder, WHOLE)
    ui, crawl, memory = corpora.corpora.values()
    assert (ui.source, ui.target) == ((folder / "ui.en",), (folder / "ui.de",))
    assert ui.weight == 3 and ui.clean == () and ui.languages == ("en", "de")
    assert crawl.columns == (2, 1) and crawl.clean == RULES == LEVELS["strict"]
    assert memory.clean == ("html", "empty"), "in the order in which they apply"
    assert corpora.directions == [("en", "de"), ("fr", "en"), ("en", "fr")]
    assert corpora.validation == {("en", "de"): (folder / "ui.en", folder / "ui.de")}


def test_it_is_the_same_in_python(folder):
    entry = {"pairs": [("a", "b")], "languages": ("en", "de")}
    corpus = Corpora({"x": entry}).corpora["x"]
    assert corpus.pairs == [("a", "b")] and corpus.clean == LEVELS["usual"]


ONE = "corpora: {ui: {source: ui.en, target: ui.de, languages: en-de%s}}%s"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [", "corpora.yaml is not YAML: "),
        ("[]", "a description must be names with values, but \\[\\] was given"),
        ("validation: {}", "corpora must be names with values, but None was given"),
        ("corpora: {}", "corpora must have at least one corpus"),
        ("corpus: {}", "the description has the unknown key 'corpus': corpora, validation, clean"),
        ("corpora: {../x: {}}", "The corpus '../x' needs a name of letters, digits"),
        ("corpora: {yes: {}}", "The corpus True needs a name"),
        ("corpora: {x: 3}", "the corpus 'x' must be names with values, but 3 was given"),
        (ONE % (", wieght: 3", ""), "the corpus 'ui' has the unknown key 'wieght': files, source"),
        (ONE % (", weight: 0", ""), "weight of the corpus 'ui' must be above 0 and at most 10000"),
        (ONE % (", clean: some", ""), "clean of the corpus 'ui' must be one of none, usual, str"),
        (ONE % (", clean: [emty]", ""), "A rule of clean of the corpus 'ui' must be one of moji"),
        (ONE % (", clean: 3", ""), "clean of the corpus 'ui' must be none, usual, strict or a li"),
        (ONE % (", columns: [0, 1]", ""), "columns of the corpus 'ui' must be two numbers from 1"),
        (ONE % (", files: a.tsv", ""), "the corpus 'ui' needs either files, or source and target"),
        (ONE % ("", "\ntemperature: .5"), "temperature must be at least 1, but 0.5 was given"),
        (ONE % (", weight: 2", "\ntemperature: 5"), "'ui' has a weight, which a temperature of 5"),
        (ONE % ("", "\nvalidation: {en: {}}"), "a direction of validation must be two codes"),
        (ONE % ("", "\nvalidation: {en-de: {source: ui.en}}"), "'en-de' needs source and target"),
        ("corpora: {x: {source: ui.en, languages: en-de}}", "'x' needs either files, or source an"),
        ("corpora: {x: {files: crawl.tsv}}", "the corpus 'x' needs languages, such as en-de"),
        ("corpora: {x: {files: crawl.tsv, languages: en}}", "must be two codes with a hyphen"),
        ("corpora: {x: {files: crawl.tsv, languages: de-de}}", "two languages, but both are de"),
        ("corpora: {x: {files: [], languages: en-de}}", "must be a path or a list of paths"),
        ("corpora: {x: {files: ui.xyz, languages: en-de}}", "the corpus 'x' names .*ui.xyz"),
        (
            "corpora: {x: {source: [ui.en, ui.en], target: ui.de, languages: en-de}}",
            "the corpus 'x' needs as many files of the target side as of the source side",
        ),
    ],
)
def test_a_mistake_is_one_sentence(folder, text, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        load(folder, text)
    assert str(error.value).startswith(str(folder)) and "\n" not in str(error.value)


def test_a_missing_file_is_named(folder):
    with pytest.raises(FileNotFoundError, match="the corpus 'x' names .*no.tsv, which does not"):
        load(folder, "corpora: {x: {files: no.tsv, languages: en-de}}")
