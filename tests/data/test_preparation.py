import copy
import json
import pathlib
import pickle
import warnings

import numpy as np
import pytest

from kformer.data import PreparedCorpus, prepare
from kformer.data.flat_files import FlatFile
from kformer.data.preparation import prepare_cached
from kformer.text import Tokenizer
from kformer.utils.checksums import file_checksum, with_checksum
from kformer.utils.lines import read_chunks
from kformer_options.text_files import count_lines
from tests.utils.disk_calls import DiskCalls

pytestmark = pytest.mark.any_backend


def read(texts, chunk_lines=2):
    return [line for chunk in read_chunks(texts, "source", chunk_lines) for line in chunk]


def write(path, data):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def test_lines_end_at_newlines_only(tmp_path):
    text = "a\u2028b\n\u2029\x85c\x0b\x0cd\x1c\x1d\x1e\n\ne\rf\n"
    path = write(tmp_path / "text", text)
    assert read(path) == ["a\u2028b", "\u2029\x85c\x0b\x0cd\x1c\x1d\x1e", "", "e\rf"]
    assert count_lines(path) == 4


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"one\r\ntwo\r\nthree\r\n", ["one", "two", "three"]),
        (b"one\r\ntwo\r\nthree\r", ["one", "two", "three"]),
        (b"\xef\xbb\xbfone\ntwo", ["one", "two"]),
        (b"one\n\xef\xbb\xbftwo\n", ["one", "\ufefftwo"]),
        (b"\n", [""]),
        (b"one\n\n", ["one", ""]),
        (b"", []),
    ],
)
def test_windows_files_marks_and_last_lines(tmp_path, data, lines):
    path = write(tmp_path / "text", data)
    assert read(path) == lines
    assert count_lines(path) == len(lines)


@pytest.mark.parametrize("as_files", [False, True])
def test_ids_come_back_from_the_folder(toy, tmp_path, as_files, monkeypatch):
    monkeypatch.setattr("kformer.data.preparation.CHUNK_LINES", 7)
    sources, targets = toy.pairs(40)
    tokenizer = toy.CharacterTokenizer()
    given = sources, targets
    if as_files:
        given = [
            write(tmp_path / name, "\n".join(side))
            for name, side in (("s", sources), ("t", targets))
        ]
    done = []
    prepare(*given, tokenizer, tmp_path / "pairs", progress=lambda *counts: done.append(counts))
    corpus = PreparedCorpus.load(tmp_path / "pairs")
    assert (
        corpus.num_pairs == corpus.num_lines == 40 and corpus.num_too_long == corpus.num_empty == 0
    )
    for side, texts in (("source", sources), ("target", targets)):
        ids = tokenizer.tokenize(texts, special_tokens=True)
        assert [corpus.ids(side, i).tolist() for i in range(40)] == ids
        assert corpus.lengths(side).tolist() == [len(i) for i in ids]
    assert corpus.num_target_tokens == corpus.lengths("target").sum()
    assert done == [(7, 40), (14, 40), (21, 40), (28, 40), (35, 40), (40, 40)]
    assert (corpus.pad_id, corpus.start_id, corpus.end_id) == (3, 5, 7)
    with pytest.raises(IndexError):
        corpus.ids("source", 40)


def test_large_vocabulary(toy, tmp_path):
    class Large(toy.CharacterTokenizer):
        vocabulary_size = target_vocabulary_size = 300_000

    corpus = prepare(["a"], ["b"], Large(first=200_000), tmp_path / "pairs")
    assert corpus.ids("source", 0).tolist() == [200_000 + ord("a"), 7]
    assert corpus.ids("source", 0).dtype == np.int32


def test_ids_outside_the_vocabulary(toy, tmp_path):
    tokenizer = toy.CharacterTokenizer()
    tokenizer.vocabulary_size = 1000
    tokenizer._id = lambda character: 1001
    with pytest.raises(ValueError, match="source id 1001, outside its vocabulary of 1000"):
        prepare(["a"], ["b"], tokenizer, tmp_path / "pairs")


def test_long_and_empty_pairs_are_counted_and_reported(toy, tmp_path):
    sources = ["aaaa", "aaa", "", "aaa", "   ", "aaaa", "aaa"]
    targets = ["bbb", "bbb", "bbb", "bbbbbb", "bbb", "", "b"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        corpus = prepare(
            sources, targets, toy.CharacterTokenizer(), tmp_path / "pairs", max_length=4
        )
    assert (corpus.num_lines, corpus.num_pairs) == (7, 2)
    assert (corpus.num_too_long, corpus.too_long_examples) == (2, [1, 4])
    assert (corpus.num_empty, corpus.empty_examples) == (3, [3, 5, 6])
    assert [str(warning.message) for warning in caught] == [
        "2 of 7 pairs have more than max_length=4 tokens on a side and are left out (lines 1, 4); "
        "raise max_length to keep them.",
        "3 of 7 pairs have an empty side and are left out (lines 3, 5, 6).",
    ]
    assert corpus.lengths("source").tolist() == [4, 4] and corpus.lengths("target").tolist() == [
        4,
        2,
    ]


def test_report_takes_the_place_of_warnings(toy, tmp_path, recwarn):
    reports = []
    sources = ["a" * 9] * 30 + ["a"]
    corpus = prepare(
        sources,
        sources,
        toy.CharacterTokenizer(),
        tmp_path / "pairs",
        max_length=5,
        report=reports.append,
    )
    assert corpus.num_too_long == 30 and len(corpus.too_long_examples) == 10
    assert (
        len(reports) == 1
        and "(lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ...)" in reports[0]
        and not recwarn.list
    )


def test_missing_file(toy, tmp_path):
    with pytest.raises(
        FileNotFoundError, match="source file '.*none' does not exist; give the path"
    ):
        prepare(tmp_path / "none", ["b"], toy.CharacterTokenizer(), tmp_path / "pairs")
    with pytest.raises(ValueError, match="is a folder"):
        prepare(["a"], tmp_path, toy.CharacterTokenizer(), tmp_path / "pairs")


@pytest.mark.parametrize("given", [None, 3, b"text"])
def test_neither_path_nor_texts(toy, tmp_path, given):
    with pytest.raises(
        ValueError, match=f"list of strings, but it is of type {type(given).__name__}"
    ):
        prepare(given, ["b"], toy.CharacterTokenizer(), tmp_path / "pairs")


@pytest.mark.parametrize("kind", ["file", "list", "iterator", "mark"])
def test_empty_corpus(toy, tmp_path, kind):
    empty = {
        "file": write(tmp_path / "empty", b""),
        "list": [],
        "iterator": iter([]),
        "mark": write(tmp_path / "mark", b"\xef\xbb\xbf"),
    }[kind]
    with pytest.raises(ValueError, match="The corpus is empty: the source"):
        prepare(empty, empty, toy.CharacterTokenizer(), tmp_path / "pairs")
    assert not (tmp_path / "pairs").exists()


def test_nothing_left(toy, tmp_path):
    with pytest.raises(
        ValueError,
        match="of 2 pairs, 1 with an empty side and 1 with more than max_length=3 tokens",
    ):
        prepare(
            ["", "aaaa"], ["b", "b"], toy.CharacterTokenizer(), tmp_path / "pairs", max_length=3
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [list, iter], ids=["list", "iterator"])
@pytest.mark.parametrize("counts", [(50, 48), (14, 21), (3, 50)])
def test_sides_of_unequal_length(toy, tmp_path, make, counts, monkeypatch):
    monkeypatch.setattr("kformer.data.preparation.CHUNK_LINES", 7)
    tokenizer = toy.CharacterTokenizer()
    sources, targets = make(["a"] * counts[0]), make(["b"] * counts[1])
    with pytest.raises(
        ValueError,
        match=f"{counts[0]} lines in the source texts, but {counts[1]} in the target texts;",
    ):
        prepare(sources, targets, tokenizer, tmp_path / "pairs")
    assert list(tmp_path.iterdir()) == []


def test_unequal_files_are_noticed_before_the_long_work(toy, tmp_path):
    files = write(tmp_path / "s", "a\n" * 30), write(tmp_path / "t", "a\n" * 31)
    tokenizer = toy.CharacterTokenizer()
    with pytest.raises(
        ValueError, match="30 lines in the source file '.*s', but 31 in the target file '.*t'"
    ):
        prepare(*files, tokenizer, tmp_path / "pairs")
    assert tokenizer.texts_seen == 0


def test_invalid_utf8_names_file_and_line(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("kformer.data.preparation.CHUNK_LINES", 2)
    good = write(tmp_path / "good", b"a\nb\nc\nd\n")
    bad = write(tmp_path / "bad", b"a\nb\nc\nd\xc3(\n")
    with pytest.raises(ValueError) as error:
        prepare(good, bad, toy.CharacterTokenizer(), tmp_path / "pairs")
    assert str(error.value) == (
        f"Line 4 of the target file '{bad}' is not valid UTF-8 (byte 0xc3 at position 1); "
        "convert the file to UTF-8, "
        "or remove that line from both sides."
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "good"]


def test_a_character_cut_by_a_newline_is_not_valid(tmp_path):
    # Joined, the two lines would decode: each must be checked as a line of its own.
    with pytest.raises(ValueError, match="Line 1 of"):
        read(write(tmp_path / "bad", b"a\xc3\n\xa4b\n"))


@pytest.mark.parametrize(
    ("item", "message"),
    [(b"b", "Item 2 of the target texts is of type bytes"), ("\ud800", "Item 2 of .* surrogate")],
)
def test_items_that_are_no_strings(toy, tmp_path, item, message):
    with pytest.raises(ValueError, match=message):
        prepare(["a", "a"], ["b", item], toy.CharacterTokenizer(), tmp_path / "pairs")


@pytest.mark.parametrize("max_length", [1, 0, 2.5, "256", True])
def test_max_length(toy, tmp_path, max_length):
    with pytest.raises(ValueError, match="max_length must be a whole number of at least 2"):
        prepare(["a"], ["b"], toy.CharacterTokenizer(), tmp_path / "pairs", max_length=max_length)


def test_an_older_corpus_is_replaced_and_anything_else_is_kept(toy, tmp_path):
    prepare(["a"], ["b"], toy.CharacterTokenizer(), tmp_path / "pairs")
    before = PreparedCorpus.load(tmp_path / "pairs")
    assert (
        prepare(["a", "c"], ["b", "d"], toy.CharacterTokenizer(), tmp_path / "pairs").num_pairs == 2
    )
    assert before.ids("source", 0).tolist() == [
        10 + ord("a"),
        7,
    ]  # still readable by whoever had it open
    (tmp_path / "mine").mkdir()
    (tmp_path / "empty").mkdir()
    write(tmp_path / "mine" / "notes", "mine")
    with pytest.raises(
        ValueError,
        match=r"mine' exists and is not a prepared corpus \(it has notes\); remove it or",
    ):
        prepare(["a"], ["b"], toy.CharacterTokenizer(), tmp_path / "mine")
    prepare(["a"], ["b"], toy.CharacterTokenizer(), tmp_path / "empty")
    for folder, name in ("mine", "meta.json"), ("pairs", "notes"):  # Other files in it are kept.
        (tmp_path / "mine" / "notes").unlink(missing_ok=True)
        write(tmp_path / folder / name, "{}")
        with pytest.raises(ValueError, match=rf"not a prepared corpus \(it has {name}\)"):
            prepare(["a"], ["b"], toy.CharacterTokenizer(), tmp_path / folder)
    (tmp_path / "mine" / "meta.json").write_bytes((tmp_path / "empty" / "meta.json").read_bytes())
    prepare(["a"], ["b"], toy.CharacterTokenizer(), tmp_path / "mine")  # What was left of one.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "mine", "pairs"]


def test_a_failed_preparation_leaves_the_older_corpus(toy, tmp_path):
    prepare(["a"], ["b"], toy.CharacterTokenizer(), tmp_path / "pairs")
    with pytest.raises(ValueError, match="differ in length"):
        prepare(iter(["a", "c"]), iter(["b"]), toy.CharacterTokenizer(), tmp_path / "pairs")
    assert PreparedCorpus.load(tmp_path / "pairs").num_pairs == 1
    assert [path.name for path in tmp_path.iterdir()] == ["pairs"]


def test_a_corpus_is_synced_before_the_rename(toy, tmp_path, monkeypatch):
    disk_calls = DiskCalls(monkeypatch)
    prepare(["a"], ["b"], toy.CharacterTokenizer(), tmp_path / "pairs")
    disk_calls.check(tmp_path / "pairs")


def test_damaged_folders(toy, tmp_path):
    folder = tmp_path / "pairs"
    with pytest.raises(FileNotFoundError, match="holds no prepared corpus"):
        PreparedCorpus.load(folder)
    prepare(["abc"], ["b"], toy.CharacterTokenizer(), folder)
    meta = json.loads((folder / "meta.json").read_text())
    write(folder / "meta.json", json.dumps(meta | {"format_version": 2}))
    with pytest.raises(
        ValueError, match="format version 2, but this kformer reads up to version 1; upgrade"
    ):
        PreparedCorpus.load(folder)
    write(folder / "meta.json", "[1]")
    with pytest.raises(ValueError, match="not the meta.json of any prepared corpus"):
        PreparedCorpus.load(folder)
    write(folder / "meta.json", json.dumps(meta | {"pad_id": meta["pad_id"] + 1}))
    with pytest.raises(ValueError, match="meta.json' is damaged"):
        PreparedCorpus.load(folder)
    write(folder / "meta.json", json.dumps(meta))
    write(folder / "source.ids", b"\0\0")
    with pytest.raises(ValueError, match="'source.ids' has 2 bytes instead of 8"):
        PreparedCorpus.load(folder)
    (folder / "source.ids").unlink()
    with pytest.raises(ValueError, match="'source.ids' is missing"):
        PreparedCorpus.load(folder)


FILES = ["meta.json", "source.ids", "source.offsets", "target.ids", "target.offsets"]


def flip(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.mark.heavy
@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_refused_or_changes_nothing(toy, tmp_path, name):
    whole = prepare(*toy.pairs(30), toy.CharacterTokenizer(), tmp_path / "pairs")
    expected = whole.gather("target", np.arange(30), (30, 60))[0]
    path = tmp_path / "pairs" / name
    content, refused = path.read_bytes(), 0
    for bit in range(3, 8 * len(content), max(1, 8 * len(content) // 200)):
        path.write_bytes(content)
        flip(path, bit)
        try:
            corpus = PreparedCorpus.load(tmp_path / "pairs")
        except ValueError as error:
            refused += 1
            assert "damaged" in str(error) or "format version" in str(error)
        else:  # A space of meta.json.
            assert name == "meta.json"
            np.testing.assert_array_equal(
                corpus.gather("target", np.arange(30), (30, 60))[0], expected
            )
    assert refused > 190


@pytest.mark.parametrize("name", FILES)
def test_damaged_data_of_a_run_is_prepared_again(toy, tmp_path, name):
    given = *toy.pairs(30), toy.CharacterTokenizer(), tmp_path / "data"
    folder = prepare_cached(*given).folder
    contents = {file: (folder / file).read_bytes() for file in FILES}
    for damage in (lambda: flip(folder / name, 100), (folder / name).unlink):
        damage()
        sentences = []
        assert prepare_cached(*given, report=sentences.append).num_pairs == 30
        assert len(sentences) == 1 and sentences[0].endswith("the text is prepared again.")
        assert {file: (folder / file).read_bytes() for file in FILES} == contents


def test_offsets_that_do_not_rise_are_refused(toy, tmp_path):
    """Also with the right checksums."""
    prepare(*toy.pairs(30), toy.CharacterTokenizer(), tmp_path / "pairs")
    meta = json.loads((tmp_path / "pairs" / "meta.json").read_text())
    path = tmp_path / "pairs" / "source.offsets"
    offsets = np.frombuffer(path.read_bytes(), "<u8")
    assert PreparedCorpus.load(tmp_path / "pairs").num_pairs == 30
    for wrong, message in (
        (offsets * 0, "the offsets in its file 'source.offsets' do not rise"),
        (offsets + 1, "do not rise"),
        (np.where(np.arange(31) == 7, 1 << 40, offsets), "do not rise"),
        (np.where(np.arange(31) == 30, 1 << 40, offsets), "ends at 1099511627776 instead of"),
    ):
        path.write_bytes(wrong.astype("<u8").tobytes())
        meta["checksums"]["source.offsets"] = file_checksum(path)
        write(tmp_path / "pairs" / "meta.json", json.dumps(with_checksum(meta)))
        with pytest.raises(ValueError, match=message):
            PreparedCorpus.load(tmp_path / "pairs")


def test_the_name_of_cached_data_is_that_of_its_content(tmp_path):
    """A later version finds it by this name, and a checkpoint has the name, too."""
    tokenizer = Tokenizer.load(pathlib.Path(__file__).parents[1] / "frozen_run" / "tokenizer")
    corpus = prepare_cached(["one two", "three"], ["eins zwei", "drei"], tokenizer, tmp_path)
    assert corpus.folder.name == "pairs-3714d37cdb61e1485416b93d594cc6ae"


def test_cache_is_found_by_content(toy, tmp_path):
    cache = tmp_path / "cache"
    files = write(tmp_path / "s", "aa\nbb\n"), write(tmp_path / "t", "c\nd\n")

    def seen(*given, tokenizer=None, **options):
        tokenizer = tokenizer or toy.CharacterTokenizer()
        corpus = prepare_cached(*given, tokenizer, cache, **options)
        assert corpus.num_pairs == 2
        return tokenizer.texts_seen > 0

    assert seen(*files)
    assert not seen(*files)
    copies = write(tmp_path / "s2", "aa\nbb\n"), write(tmp_path / "t2", "c\nd\n")
    assert not seen(*copies)
    assert seen(*files, max_length=100)
    assert seen(*files, tokenizer=toy.CharacterTokenizer(first=11))
    write(files[1], "c\ne\n")
    assert seen(*files)
    assert seen(["aa", "bb"], ["c", "d"]) and not seen(["aa", "bb"], ["c", "d"])
    assert seen(["aab", "b"], ["c", "d"])
    assert len(list(cache.iterdir())) == 6
    with pytest.raises(ValueError, match="cache_dir needs the source texts twice"):
        seen(iter(["a"]), ["b"])


def test_a_copy_reads_its_own_files(toy, tmp_path):
    """The number of the original's open file may be another file's by then."""
    path = tmp_path / "numbers"
    np.arange(5, dtype="int32").tofile(path)
    file = FlatFile(path, np.dtype("int32"))
    for copied in (copy.deepcopy(file), pickle.loads(pickle.dumps(file))):
        assert copied._file != file._file
        assert copied.read([(1, 2), (4, 1)]).tolist() == [1, 2, 4]
