"""The cleaning of corpora into lines: counts that add up, and the same bytes after any kill."""

import json
import random

import pytest

from kformer.data import Corpora, clean
from kformer.data.corpora import job

pytestmark = pytest.mark.any_backend

WORDS = (
    "the house and a dog were near every old river while people of our town walked there with "
    "their children or stood in front of it because they liked how green all trees look today"
).split()
GERMAN = (
    "das Haus und ein Hund waren nahe jedem alten Fluss als Leute aus unserer Stadt dort mit "
    "ihren Kindern gingen oder davor standen weil sie mochten wie grün alle Bäume heute aussehen"
).split()


def sentences(count, seed=0):
    """Clean pairs, all different."""
    numbers = random.Random(seed)
    pairs = []
    for _ in range(count):
        words = [numbers.randrange(30) for _ in range(numbers.randrange(8, 14))]
        pairs.append(tuple(" ".join(side[word] for word in words) for side in (WORDS, GERMAN)))
    return pairs


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr("kformer.data.corpora.readers._CHUNK_PAIRS", 20)


@pytest.fixture
def corpora(tmp_path):
    """Two corpora with dirt, and a validation set that stands in the first."""
    clean_pairs, others = sentences(150), sentences(60, seed=1)
    dirt = [("", "leer"), ("12 34", "12 34"), clean_pairs[3], ("<b>a &amp; b", "x")]
    lines = {"one": [*clean_pairs[:100], *dirt, *clean_pairs[100:]], "two": [*others, *dirt]}
    for name, pairs in lines.items():
        text = "".join(f"{source}\t{target}\n" for source, target in pairs)
        (tmp_path / f"{name}.tsv").write_text(text, encoding="utf-8")
    for number, code in enumerate(("en", "de")):
        (tmp_path / f"val.{code}").write_text(clean_pairs[7][number] + "\n", encoding="utf-8")
    return lines, lambda level: Corpora(
        {
            name: {"files": f"{name}.tsv", "languages": "en-de", "weight": weight}
            for name, weight in (("one", 1), ("two", 2))
        },
        validation={"en-de": {"source": "val.en", "target": "val.de"}},
        clean=level,
        folder=tmp_path,
    )


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("level", ["none", "usual", "strict"])
def test_counts_add_up_to_the_input(tmp_path, corpora, level):
    lines, make = corpora
    report = clean(make(level), tmp_path / "out", rejected=True)
    rejected = (tmp_path / "out" / "rejected.tsv").read_text(encoding="utf-8").splitlines()
    total = 0
    for name, counts in report.corpora.items():
        by_rule = {rule: entry["count"] for rule, entry in counts["rejected"].items()}
        assert counts["pairs"] == len(lines[name]) == counts["kept"] + sum(by_rule.values())
        sides = [(tmp_path / "out" / f"{name}.{code}").read_text("utf-8") for code in ("en", "de")]
        kept = list(zip(*(side.splitlines() for side in sides), strict=True))
        assert len(kept) == counts["kept"]
        assert set(kept) <= {*lines[name], ("a & b", "x")}
        for rule, entry in counts["rejected"].items():
            for number, source, target in entry["examples"]:
                pair = lines[name][number - 1]
                assert (source, target) == (("a & b", "x") if pair[1] == "x" else pair)
                assert f"{name}\t{rule}\t{number}\t{source}\t{target}" in rejected
        total += sum(by_rule.values())
    assert total == len(rejected)
    if level == "none":
        assert total == 0
    else:
        one, two = (counts["rejected"] for counts in report.corpora.values())
        assert one["empty"]["count"] == two["empty"]["count"] == 1
        assert one["overlap"]["examples"][0][1:] == list(lines["one"][7])
        assert one["duplicates"]["count"] == 1
        assert two["duplicates"]["count"] >= 1, "of the other corpus"
    again = Corpora.load(tmp_path / "out" / "corpora.yaml")
    assert [corpus.weight for corpus in again.corpora.values()] == [1, 2]
    assert again.validation == make(level).validation
    assert not (tmp_path / "out" / ".cleaning").exists()


def test_a_language_that_the_rule_does_not_know_is_told(tmp_path):
    entry = {"pairs": sentences(20), "languages": "en-ay"}
    report = clean(Corpora({"one": entry}, clean=["language"]), tmp_path / "out")
    assert report.corpora["one"]["unknown"] == ["ay"]
    assert ("one", "not told by language: ay", 20) in report.rows()


@pytest.mark.heavy
@pytest.mark.parametrize("level", ["usual", "strict"])
def test_an_interrupted_job_goes_on_with_the_same_bytes(tmp_path, corpora, level, monkeypatch):
    _, make = corpora
    clean(make(level), tmp_path / "whole", rejected=True)
    expected = content(tmp_path / "whole")
    save, saves = job._Job._save, [0]

    def counted(self):
        saves[0] += 1
        save(self)

    monkeypatch.setattr(job._Job, "_save", counted)
    clean(make(level), tmp_path / "counted", rejected=True)
    for stop in range(1, saves[0] + 1):
        left = [stop]

        def interrupted(self, left=left):
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt
            save(self)

        folder = tmp_path / f"stopped-{stop}"
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(job._Job, "_save", interrupted)
            clean(make(level), folder, rejected=True)
        # What stood in a buffer may be there, in part.
        state = folder / ".cleaning" / "state.json"
        one = json.loads(state.read_text())["corpora"]["one"] if state.exists() else {}
        is_open = not one.get("is_aligned" if level == "strict" else "is_read")
        for path in folder.glob("one.*") if is_open else ():
            with open(path, "ab") as file:
                file.write("half a lin\u00e9".encode()[:-1])
        clean(make(level), folder, rejected=True)
        assert content(folder) == expected, stop


def test_a_finished_folder_is_left_and_another_is_refused(tmp_path, corpora):
    _, make = corpora
    first = clean(make("usual"), tmp_path / "out")
    stamp = (tmp_path / "out" / "one.en").stat().st_mtime_ns
    assert clean(make("usual"), tmp_path / "out").corpora == first.corpora
    assert (tmp_path / "out" / "one.en").stat().st_mtime_ns == stamp
    with pytest.raises(ValueError, match="cleaned from other files or by other rules: choose ano"):
        clean(make("strict"), tmp_path / "out")
    (tmp_path / "begun" / ".cleaning").mkdir(parents=True)
    state = (tmp_path / "out" / "report.json").read_text(encoding="utf-8")
    (tmp_path / "begun" / ".cleaning" / "state.json").write_text(state, encoding="utf-8")
    with pytest.raises(ValueError, match="cleaned from other files or by other rules"):
        clean(make("strict"), tmp_path / "begun")
    with pytest.raises(ValueError, match="is not empty .it has .*: choose another folder"):
        clean(make("usual"), tmp_path)
    (tmp_path / "corpora.yaml").write_text("corpora: {}")  # As if it lay beside the corpora.
    with pytest.raises(ValueError, match="is not empty .it has .*: choose another folder"):
        clean(make("usual"), tmp_path)
    (tmp_path / "report.json").write_text("{}")
    with pytest.raises(ValueError, match="report.json is damaged, or of another program: choose"):
        clean(make("usual"), tmp_path)
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert report["corpora"] == first.corpora


def test_nothing_left_is_one_sentence(tmp_path):
    corpora = Corpora({"x": {"pairs": [("", "a"), ("b", "")], "languages": "en-de"}})
    with pytest.raises(ValueError, match="No pair of any corpus is left by the rules empty: check"):
        clean(corpora, tmp_path / "out")
