"""The description of corpora: what it may say, and one sentence for what it may not."""

import gzip

import pytest

from kformer.data import Corpora
from kformer.data.corpora.rules import LEVELS, RULES
from kformer_options.names import command_line_names

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
        ("corpora: {x: {}}\nclean: usal", "corpora.yaml: clean must be one of none, usual, strict"),
        ("corpus: {}", "the description has the unknown key 'corpus': corpora, validation, clean"),
        ("corpora: {../x: {}}", "The corpus '../x' needs a name of letters, digits"),
        ("corpora: {yes: {}}", "The corpus True needs a name"),
        ("corpora: {x: 3}", "the corpus 'x' must be names with values, but 3 was given"),
        (ONE % (", wieght: 3", ""), "the corpus 'ui' has the unknown key 'wieght': files, source"),
        (ONE % (", weight: 0", ""), "weight of the corpus 'ui' must be above 0 and at most 10000"),
        (ONE % (", clean: some", ""), "clean of the corpus 'ui' must be one of none, usual, str"),
        (ONE % (", clean: [emty]", ""), "A rule of clean of the corpus 'ui' must be one of moji"),
        (ONE % (", clean: 3", ""), "clean of the corpus 'ui' must be none, usual, strict or a li"),
        (
            ONE % (", columns: [0, 1]", ""),
            "columns of the corpus 'ui' must be two different numbers",
        ),
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
    with command_line_names(), pytest.raises(ValueError, match=sentence) as error:
        load(folder, text)  # The names are those of the file there, too.
    assert str(error.value).startswith(str(folder)) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("corpora:\n  x: {files: a}\n  x: {files: b}", "the key 'x' stands there twice .*line 3"),
        (ONE % (", weight: 1, weight: 2", ""), "the key 'weight' stands there twice"),
        ("corpora: {no: {files: crawl.tsv}}", "corpus False needs a name .* in quotes where YAML"),
        (ONE % (", columns: [a, b]", ""), "the corpus 'ui' has columns, which belong to files: le"),
        ("corpora: {x: {files: crawl.tsv, languages: en-de, columns: [2, 2]}}", "two different nu"),
        ("corpora: {x: {files: x.jsonl, languages: en-de, columns: [1, 2]}}", "name them, such as"),
        ("corpora: {x: {files: x.tmx, languages: en-de, columns: [1, 2]}}", "tmx has none: leave"),
        ("corpora: {x: {pairs: 3, languages: en-de}}", "pairs of the corpus 'x' must be a list of"),
        ("corpora: {x: {source: ui.en, target: sub, languages: en-de}}", "target '.*' is a folder"),
        ("corpora: {x: {source: ui.en, target: u16, languages: en-de}}", "target .* is UTF-16, no"),
        (ONE % ("", "\nvalidation: []"), "validation must be names with values, but \\[\\] was g"),
        (
            ONE % ("", "\nvalidation: {en-de: {source: [ui.en], target: ui.de}}"),
            "must be a path, b",
        ),
        (ONE % ("", "\nvalidation: {en-de: {source: sub, target: ui.de}}"), "source '.*' is a fol"),
        (ONE % ("", "\nvalidation: {en-de: {source: v.gz, target: ui.de}}"), "compressed by gzip"),
    ],
)
def test_what_reads_otherwise_than_it_looks_is_one_sentence(folder, text, sentence):
    (folder / "sub").mkdir()
    (folder / "u16").write_text("a\n", encoding="utf-16")
    (folder / "v.gz").write_bytes(gzip.compress(b"a\n"))
    for name in ("x.jsonl", "x.tmx"):
        (folder / name).touch()
    test_a_mistake_is_one_sentence(folder, text, sentence)


def test_empty_values_are_unset_and_merges_are_read(folder):
    base = "{source: ui.en, target: ui.de, languages: en-de, weight: 2}"
    text = f"corpora:\n  a: &a {base}\n  b: {{<<: *a, weight: 3, clean: }}\nvalidation: "
    a, b = load(folder, text).corpora.values()
    assert (a.weight, b.weight, b.source) == (2, 3, a.source)
    assert b.clean == LEVELS["usual"]


def test_a_missing_file_is_named(folder):
    with pytest.raises(FileNotFoundError, match="the corpus 'x' names .*no.tsv, which does not"):
        load(folder, "corpora: {x: {files: no.tsv, languages: en-de}}")
