"""Each format of a corpus: what is read from it, and what is said of it when it is wrong."""

import bz2
import csv
import gzip
import json
import lzma
import os
import random
import threading
import tracemalloc
import zipfile
from xml.sax.saxutils import escape

import polib
import pyarrow
import pyarrow.parquet
import pytest

from kformer.data.corpora import readers
from kformer.data.corpora.description import Corpora
from kformer.utils.compressed import plain_name

PAIRS = [
    ("A house.", "Ein Haus."),
    ("Two <b>houses</b> & \u2028 a “tree”", "Zwei <b>Häuser</b> & \u2028 ein „Baum“"),
    (' half past "four" ', "it's, 半过四"),
    ("", "nur hier"),
    ("last", "letzter \x85 Satz 😀"),
]
COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda content: pyarrow.compress(content, "zstd", asbytes=True),
}

pytestmark = pytest.mark.any_backend


def tsv(path, pairs):
    path.write_text("".join(f"{s}\t{t}\n" for s, t in pairs), "utf-8", newline="\n")


def csv_file(path, pairs):
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("id", "en", "de"), *((1, *pair) for pair in pairs)])


def jsonl(path, pairs):
    records = [json.dumps({"id": 1, "translation": {"en": s, "de": t}}) for s, t in pairs]
    path.write_text("".join(f"{record}\n" for record in records), "utf-8")


def tmx(path, pairs):
    units = "".join(
        f'<tu>\n<prop type="x">no</prop><tuv xml:lang="en-GB"><seg>{escape(s)}</seg></tuv>\n'
        f'<tuv xml:lang="fr"><seg>non</seg></tuv><tuv xml:lang="DE"><seg>{escape(t)}</seg></tuv>'
        "</tu>\n"
        for s, t in pairs
    )
    text = '<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n'
    text += f'<tmx version="1.4"><header srclang="en"/><body>{units}</body></tmx>\n'
    path.write_text(text, "utf-8", newline="\n")


def xliff(path, pairs):
    units = "".join(
        f"<trans-unit><source>{escape(s)}</source><target>{escape(t)}</target>"
        "<alt-trans><target>non</target></alt-trans></trans-unit>"
        for s, t in pairs
    )
    text = f'<xliff><file source-language="en-GB" target-language="DE">{units}</file></xliff>'
    path.write_text(text, "utf-8", newline="\n")


def moses(path, pairs):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("README", "by nobody")
        for language, side in zip(("de", "en"), (1, 0), strict=True):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            archive.writestr(f"OpenText.de-en.{language}", text)


def table(pairs):
    sources, targets = map(pyarrow.array, zip(*pairs, strict=True))
    struct = pyarrow.StructArray.from_arrays([targets, sources], ["de", "en"])
    return pyarrow.table({"id": [1] * len(pairs), "translation": struct})


def parquet(path, pairs):
    pyarrow.parquet.write_table(table(pairs), path)


def dataset(path, pairs):
    path.mkdir()
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    half = len(pairs) // 2
    for name, part in zip(names, (pairs[:half], pairs[half:]), strict=True):
        with pyarrow.ipc.new_stream(path / name, table(pairs).schema) as stream:
            stream.write_table(table(part), max_chunksize=1000)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0"}
    (path / "state.json").write_text(json.dumps(state))
    (path / "dataset_info.json").write_text("{}")


def po(path, pairs):
    catalogue = polib.POFile()
    catalogue.metadata = {"Content-Type": "text/plain; charset=UTF-8", "Language": "de_AT"}
    for number, (source, target) in enumerate(pairs):
        entry = polib.POEntry(msgid=source, msgstr=target, msgctxt=str(number))
        catalogue.append(entry)
    catalogue.append(polib.POEntry(msgid="not yet", msgstr=""))
    catalogue.append(polib.POEntry(msgid="perhaps", msgstr="vielleicht", flags=["fuzzy"]))
    catalogue.append(polib.POEntry(msgid="before", msgstr="vorher", obsolete=True))
    path.write_text(str(catalogue) + "\n", "utf-8", newline="\n")


WRITERS = {
    "x.tsv": tsv,
    "x.csv": csv_file,
    "x.jsonl": jsonl,
    "x.tmx": tmx,
    "x.xlf": xliff,
    "x.zip": moses,
    "x.parquet": parquet,
    "x": dataset,
    "x.po": po,
}
COLUMNS = {"x.csv": ["en", "de"]}


def corpus(path, **entry):
    entry = {"languages": "en-de", "clean": "none", "files": path, **entry}
    entry = {key: value for key, value in entry.items() if value is not None}
    return Corpora({"shop": entry}).corpora["shop"]


def read(path, **entry):
    pairs = []
    for sources, targets in readers.read_pairs(corpus(path, **entry)):
        assert 0 < len(sources) == len(targets) <= 10_000
        pairs += zip(sources, targets, strict=True)
    return pairs


def fails(match, path, content=None, kind=ValueError, **entry):
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(kind, match=match) as caught:
        read(path, **entry)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", WRITERS)
def test_each_format(tmp_path, name):
    path = tmp_path / name
    pairs = [pair for pair in PAIRS if all(pair)] if name == "x.po" else PAIRS
    WRITERS[name](path, pairs)
    assert read(path, columns=COLUMNS.get(name)) == pairs
    both = [*pairs, *pairs]
    assert read([path, path], columns=COLUMNS.get(name)) == both
    swapped = [pair[::-1] for pair in pairs]
    columns = {"x.csv": ["de", "en"], "x.tsv": [2, 1]}.get(name)
    assert read(path, languages="de-en", columns=columns) == swapped


@pytest.mark.parametrize("name", ("x.tsv", "x.csv", "x.jsonl", "x.tmx", "x.po"))
@pytest.mark.parametrize("ending", COMPRESS)
def test_compressed(tmp_path, name, ending):
    pairs = [(f"house {n}", f"Haus {n}") for n in range(3000)]
    WRITERS[name](tmp_path / name, pairs)
    content = (tmp_path / name).read_bytes()
    path = tmp_path / f"{name}{ending}"
    # Two parts after each other are one file, as those of `cat` and of parallel compressors.
    path.write_bytes(COMPRESS[ending](content[:9999]) + COMPRESS[ending](content[9999:]))
    assert read(path, columns=COLUMNS.get(name)) == pairs


@pytest.mark.parametrize("ending", COMPRESS)
def test_two_files(tmp_path, ending):
    pairs = [(f"house {n}", f"Haus {n}" * (n % 7)) for n in range(25_000)]
    for side, language in enumerate(("en", "de")):
        content = "".join(f"{pair[side]}\r\n" for pair in pairs).removesuffix("\r\n").encode()
        # The first bytes count, whatever the name says.
        (tmp_path / f"x.{language}").write_bytes(COMPRESS[ending](b"\xef\xbb\xbf" + content))
    sides = {"source": tmp_path / "x.en", "target": tmp_path / "x.de"}
    assert read(None, **sides) == pairs
    chunks = [*readers.read_pairs(corpus(None, **sides))]
    assert [len(sources) for sources, _ in chunks] == [10_000, 10_000, 5_000]


def test_a_pipe_is_read_once(tmp_path):
    names = [tmp_path / "x.en", tmp_path / "x.de"]
    content = gzip.compress("".join(f"{n}\n" for n in range(30_000)).encode())
    threads = []
    for name in names:
        os.mkfifo(name)
        threads.append(threading.Thread(target=name.write_bytes, args=[content]))
        threads[-1].start()
    pairs = read(None, source=names[0], target=names[1])
    [thread.join() for thread in threads]
    assert pairs == [(f"{n}", f"{n}") for n in range(30_000)]


def test_pairs_of_python():
    pairs = [("a\nb", "c\r\nd"), ["\ud800", "x"]]
    expected = [("a b", "c  d"), ("\ufffd", "x")]
    assert read(None, pairs=iter(pairs)) == expected
    fails("Pair 2 must be two texts, but it is 'ab'", None, pairs=[("a", "b"), "ab"])


def test_chunks_are_short_where_texts_are_long(tmp_path):
    path = tmp_path / "x.tsv"
    tsv(path, [("a" * 900_000, "b" * 100_000)] * 9)
    sizes = [len(sources) for sources, _ in readers.read_pairs(corpus(path))]
    assert sizes == [5, 4]


def test_columns(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text('en\tscore\tde\nA\t1\t"B\nC\n', "utf-8")
    assert read(path, columns=["de", "en"]) == [('"B', "A"), ("", "C")]
    assert read(path, columns=[3, 1])[1:] == [('"B', "A"), ("", "C")]
    fails("no column 'fr' in its first line, .*correct columns", path, columns=["en", "fr"])
    fails("no column 4 in its first 3 records", path, columns=[1, 4])
    path = tmp_path / "x.csv"
    path.write_bytes(b'A,"one\r\n""two"""\r\n\r\nB\r\n')
    assert read(path) == [("A", 'one "two"'), ("B", "")]
    fails("Line 2 of .*is not CSV .*mend its quotes", path, b'a,b\n"a"x,b\n')
    fails("is not CSV .unexpected end", path, b'a,b\n"a,b\n')
    fails("is not CSV .field larger", path, b'a,b\n"' + b"a,b\n" * 99_999)


def test_json_lines(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"en": "A\\n", "de": "\\ud83d"}\n\n{"en": null, "x": {"y": "Z"}}\n')
    assert read(path) == [("A ", "\ufffd"), ("", "")]
    assert read(path, columns=["x.y", "en"]) == [("", "A "), ("Z", "")]
    fails("has no column 'fr' in its first 2 records", path, columns=["en", "fr"])
    fails("has no text in 'it'", path, languages="en-it")
    fails("Line 2 of .* is not valid JSON .*mend the line", path, b'{"en": "a"}\n{"en"\n')
    fails("Line 1 of .* is not valid JSON .*nested", path, b"[" * 99_999)
    fails("holds list where a JSON object should be", path, b"[]")
    fails("Line 1 of .* has 3 at 'en', not a text", path, b'{"en": 3}')


def test_xliff(tmp_path):
    """Codes are no text, a target that is not translated is none, and the sides have languages."""
    path = tmp_path / "x.xlf"
    path.write_text(
        '<xliff version="2.0" srcLang="de-AT" trgLang="en"><file><unit><segment><source>a<ph>{}'
        '</ph>b <pc>c</pc></source><target>d</target></segment><segment state="initial"><source>e'
        "</source><target>e</target></segment></unit></file></xliff>"
    )
    assert read(path) == [("d", "ab c"), ("", "e")]
    path.write_text(
        '<x:xliff version="1.2"><x:file source-language="de" target-language="en"><x:trans-unit>'
        '<x:source>a<x:bpt id="1">b</x:bpt>c</x:source><x:target>d</x:target></x:trans-unit>'
        "</x:file></x:xliff>".replace("<x:xliff", '<x:xliff xmlns:x="y"')
    )
    assert read(path) == [("d", "ac")]


def test_translation_memories(tmp_path):
    path = tmp_path / "x.tmx"
    path.write_text(
        "<tmx><body><tu><tuv lang='en_US'><seg>a<bpt i='1'>&lt;b><sub>x</sub></bpt>b<hi>c</hi>"
        "</seg></tuv><tuv xml:lang='en-GB'><seg>second</seg></tuv></tu>"
        "<tu><tuv xml:lang='de-AT'><seg>\nd</seg></tuv></tu></body></tmx>"
    )
    assert read(path) == [("abc", ""), ("", " d")]
    assert read(path, languages="en_GB-de") == [("second", ""), ("", " d")]
    fails("has no text in 'fr' in its first 2 records", path, languages="en-fr")
    path.write_text(
        "<!DOCTYPE tmx SYSTEM 'tmx14.dtd'><tmx><tu><tuv lang='en'><seg>a&nbsp;b &what;</seg></tuv>"
        "<tuv lang='de'><seg>&uuml;</seg></tuv></tu></tmx>"
    )
    assert read(path) == [("a\u00a0b &what;", "ü")]
    fails("not valid XML .mismatched tag: line 1, column 7", path, b"<tmx></tm>")
    fails("not valid XML .unknown encoding", path, b'<?xml version="1.0" encoding="foo"?><tmx/>')
    bomb = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 9))
    bomb = f'<!DOCTYPE tmx [<!ENTITY a0 "haha">{bomb}]><tmx>&a8;</tmx>'
    fails("declares entities of XML: write out", path, bomb.encode())
    start = b"<tmx><tu><tuv xml:lang='en'><seg>"
    fails("Line 1 .*a text of more than 1,048,576", path, start + b"a" * 2**21)
    fails("Line 1 .*a tag or comment of more than", path, start + b"<!--" + b"a" * 2**21)
    fails("a tag or comment", path, start + b"<ph a='" + b"a" * 2**21)
    fails("more than 100 elements in one another", path, b"<a>" * 101)
    text = "<tmx><tu><tuv lang='en'><seg>ü</seg></tuv><tuv lang='de'><seg>ß</seg></tuv></tu></tmx>"
    path.write_bytes(f'<?xml version="1.0" encoding="UTF-16"?>{text}'.encode("utf-16"))
    assert read(path) == [("ü", "ß")]


def test_archives(tmp_path):
    path = tmp_path / "x.zip"
    moses(path, PAIRS)
    with zipfile.ZipFile(path, "a") as archive:
        for language in ("en", "de"):
            archive.writestr(f"__MACOSX/._OpenText.de-en.{language}", b"\0\5\xff")
    assert read(path) == PAIRS
    fails(r"must have files that end in .en and .fr.*OpenText", path, languages="en-fr")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("b.en", "b1\nb2")
        archive.writestr("b.de", "B1\nB2\nB3\n\n")
        archive.writestr("c/a.en", "a")
        archive.writestr("c/a.de", "A")
    fails("differ in length: 2 lines in '.*x.zip/b.en', but 4 in '.*x.zip/b.de'", path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("d.en", "")
    fails("two for each name", path)
    fails("damaged, or not what its name says", path, b"PK\x03\x04")


def test_tables(tmp_path):
    path = tmp_path / "x.parquet"
    columns = {"en": ["A", None], "de": ["B", "C"], "n": [1, 2]}
    content = pyarrow.table(columns)
    content = content.set_column(0, "en", content["en"].dictionary_encode())
    pyarrow.parquet.write_table(content, path)
    assert read(path) == [("A", "B"), ("", "C")]
    assert read(path, columns=["de", "en"]) == [("B", "A"), ("C", "")]
    fails("not one column 'fr' among .'en'", path, columns=["en", "fr"])
    fails("not one column 'translation.it' among", path, languages="en-it")
    fails("column 'n' of .* holds int64, not text", path, columns=["en", "n"])
    twice = pyarrow.Table.from_arrays([["A"], ["B"], ["C"]], names=["en", "de", "en"])
    pyarrow.parquet.write_table(twice, path)
    fails("not one column 'translation.en' among .'en', 'de', 'en'", path)
    fails("damaged, or not what its name says", path, b"PAR1")
    (tmp_path / "y").mkdir()
    fails("no state.json: give a folder that save_to_disk", tmp_path / "y")
    dataset(tmp_path / "z", PAIRS)
    (tmp_path / "z" / "state.json").write_text('{"_data_files": [{"filename": "../x.parquet"}]}')
    fails("leads out of .* and is not followed", tmp_path / "z")
    (tmp_path / "z" / "state.json").write_text('{"_data_files": 3}')
    fails("names no whole data: save the dataset again", tmp_path / "z")
    (tmp_path / "z" / "dataset_dict.json").write_text("{}")
    fails("several datasets: name the folder of one, such as", tmp_path / "z")


def test_catalogues(tmp_path):
    path = tmp_path / "x.po"
    catalogue = polib.POFile()
    entry = {"msgid": "%d file", "msgid_plural": "%d files"}
    catalogue.append(polib.POEntry(**entry, msgstr_plural={0: "%d Datei", 1: "%d Dateien"}))
    catalogue.append(polib.POEntry(msgid="a\nb", msgstr="c\nd"))
    path.write_text(str(catalogue))
    assert read(path) == [("%d files", "%d Dateien"), ("a b", "c d")]
    po(path, PAIRS)
    fails("is in 'de_AT' by its header, and the corpus in en and fr", path, languages="en-fr")
    fails("is not a valid PO file", path, b'msgid "a"\nhello\n')
    header = b'msgid ""\nmsgstr "Content-Type: text/plain; charset=%s\\n"\n'
    fails("is not text in foo: correct its header", path, header % b"foo")
    fails("is not text in utf-8", path, b'msgid "\xff"\n')
    path.write_bytes(header % b"latin1" + 'msgid "a"\nmsgstr "ä"\n'.encode("latin1"))
    assert read(path) == [("a", "ä")]


def test_lines_that_are_wrong(tmp_path):
    path, other = tmp_path / "x.tsv", tmp_path / "y.txt"
    fails("Line 3 of .*x.tsv is not valid UTF-8 .byte 0xff", path, b"a\tb\n" * 2 + b"c\xff\td\n")
    fails("Line 2 of .* has more than 1,048,576 bytes: split", path, b"a\tb\n" + b"a" * 2**21)
    fails("Line 2 of .* has more than", path, b"a\tb\n" + b"a" * (2**20 + 1) + b"\n")
    path.write_bytes(b"a\nb\n")
    other.write_bytes(b"a\nb\nc")
    sides = {"source": path, "target": other}
    fails("differ in length: 2 lines in '.*x.tsv', but 3 in '.*y.txt'", None, **sides)
    fails("names .*y.txt, whose name ends in none of .tsv, .*give source and target", other)


def test_bombs(tmp_path):
    line = b"a" * 2**25
    tracemalloc.start()
    for ending in (".gz", ".bz2", ".xz", ".zst"):
        path = tmp_path / f"x.tsv{ending}"
        path.write_bytes(COMPRESS[ending](line))
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        fails("Line 1 of .* has more than 1,048,576 bytes", path)
        assert tracemalloc.get_traced_memory()[1] - before < 2**24
    tracemalloc.stop()
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.en", line)
        archive.writestr("a.de", line)
    fails("Line 1 of .*a.en has more than", tmp_path / "x.zip")
    parquet(tmp_path / "x.parquet", [("a" * (2**20 + 1), "b")])
    fails("Record 1 of .* has a text of 1,048,577 characters", tmp_path / "x.parquet")


@pytest.mark.heavy
@pytest.mark.parametrize("name", ("x.tsv.gz", "x.tsv.zst", "x.tmx", "x.zip", "x.jsonl.bz2"))
def test_pairs_before_the_damage_come(tmp_path, name):
    pairs = [(f"house {n * n}", f"Haus {n * n}") for n in range(50_000)]
    path = tmp_path / plain_name(name)
    WRITERS[path.name](path, pairs)
    content = COMPRESS[name.removeprefix(path.name)](path.read_bytes())
    path = tmp_path / name
    if name == "x.zip":  # The list of its files stands at the end.
        with zipfile.ZipFile(path) as archive:
            at = archive.getinfo("OpenText.de-en.en").header_offset + 90_000
        content = content[:at] + bytes(30) + content[at + 30 :]
    else:
        content = content[: len(content) * 4 // 5]
    path.write_bytes(content)
    some = []
    with pytest.raises(ValueError, match=f"{name}.* is (damaged|not valid)"):
        for sources, targets in readers.read_pairs(corpus(path)):
            some += zip(sources, targets, strict=True)
    assert 10_000 <= len(some) < 50_000 and some == pairs[: len(some)]


def _damaged(generator, content):
    content, place = bytearray(content), generator.randrange(len(content))
    kind = generator.choice(("cut", "flip", "zeros", "utf-8", "loss", "noise", "end", "line"))
    if kind == "cut":
        del content[place:]
    elif kind == "flip":
        content[place] ^= 1 << generator.randrange(8)
    elif kind == "zeros":
        content[place:place] = bytes(generator.randrange(1, 50))
    elif kind == "utf-8":
        content[place:place] = generator.choice((b"\xff", b"\xed\xa0\x80", b"\xc3"))
    elif kind == "loss":
        del content[place : place + generator.randrange(1, 300)]
    elif kind == "noise":
        content[place : place + 50] = generator.randbytes(50)
    elif kind == "end":
        content += generator.randbytes(100)
    else:
        content[place:place] = b" " * (2**20 + 1)
    return bytes(content)


@pytest.mark.parametrize("name", (*WRITERS, "x.tsv.gz", "x.tsv.bz2", "x.tsv.xz", "x.tsv.zst"))
def test_damaged_files(tmp_path, name):
    """Each is read, or there is one sentence that names the file."""
    pairs = [(f"house {n} “tree” & {n * n}", f"Haus {n} 半 <b>ß</b>") for n in range(60)]
    path = file = tmp_path / plain_name(name)
    WRITERS[path.name](path, pairs)
    if path.is_dir():
        file = path / "data-00000-of-00002.arrow"
    content = COMPRESS[name.removeprefix(path.name)](file.read_bytes())
    if not path.is_dir():
        path = file = tmp_path / name
    errors, generator = 0, random.Random(name)
    for _ in range(200):
        file.write_bytes(_damaged(generator, content))
        try:
            some = read(path, columns=COLUMNS.get(name))
            assert all(isinstance(text, str) and "\n" not in text for pair in some for text in pair)
        except ValueError as error:
            assert str(path) in str(error) and "\n" not in str(error), error
            errors += 1
    assert errors > 20
