"""Translates generated and real documents, and compares their structure with the source's.

    python benchmarks/documents.py [--seed 0] [--model RUN_OR_SAVED_MODEL [--model-files 20]
        [--source test.en --reference test.zh --tokenize zh]] [--large 1000000] [--lines 100000]
    python benchmarks/documents.py --share 0 --folder unpacked_packages

It generates 500 HTML pages, 200 SRT, 200 PO and 200 Markdown files, and takes real ones from
installed packages: catalogues of Sphinx (BSD), templates and READMEs of packages for notebooks and
documentation. Each is translated by two functions that stand for a model, one to capital letters
and one that reverses the words of a sentence, and some by a real one. Parsers that are not
kformer's read both sides: html5lib, polib, markdown-it-py, and a regular expression for SRT.
Prints a Markdown table: files, and those that differ in structure, in what must be kept or in
words.

With a folder it takes the files of applications in it: XLIFF, JSON, ARB, properties, and strings of
Apple and Android; units, keys, tags and placeholders are compared by Python's parsers of XML and
JSON, and by regular expressions. Of office files (DOCX, PPTX, ODT, ODP) members without text are
compared byte for byte, and of the others the elements (without the runs of DOCX and PPTX, which a
translation divides anew) and the letters.

`--large` has the CPU seconds of documents of half as many bytes and of so many, of each format, and
by how much the larger one raises the peak of memory, in a process of its own.

With a test set, the model also translates paragraphs of five of its sentences: BLEU (sacreBLEU) of
the sentences line by line, of the paragraphs as documents, and of the paragraphs as if each were
one sentence.
"""

import argparse
import collections
import importlib.metadata
import io
import itertools
import json
import multiprocessing
import pathlib
import random
import re
import resource
import sys
import time
import xml.etree.ElementTree as ElementTree
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.common import print_command, print_head, print_row, read  # noqa: E402

COUNTS = {"html": 500, "srt": 200, "po": 200, "markdown": 200}
_TEXT = "The man number {i} walks under the old house."
_TIMES = "{i}\n00:00:01,000 --> 00:00:02,000\n"
# What a large document of a format begins with, has again and again, and ends with.
UNITS = {
    "text": ("", f"{_TEXT}\n\n", ""),
    "lines": ("", f"{_TEXT}\n", ""),
    "html": ("<body>", "<p>The <b>man</b> number {i} walks under it.</p>\n", "</body>"),
    "markdown": ("", f"- **{_TEXT}**\n\n", ""),
    "srt": ("", f"{_TIMES}{_TEXT}\n\n", ""),
    "vtt": ("WEBVTT\n\n", f"{_TIMES.replace(',', '.')}{_TEXT}\n\n", ""),
    "po": ('msgid ""\nmsgstr ""\n', f'\nmsgid "{_TEXT}"\nmsgstr ""\n', ""),
    "json": ('{"begin": ""', f',\n"{{i}}": "{_TEXT}"', "}"),
    "properties": ("", f"key.{{i}} = {_TEXT}\n", ""),
    "strings": ("", f'"{{i}}" = "{_TEXT}";\n', ""),
    "android": ("<resources>", f'<string name="a{{i}}">{_TEXT}</string>\n', "</resources>"),
    "xliff": (
        '<xliff version="2.0" srcLang="en"><file id="f">',
        f'<unit id="{{i}}"><segment><source>{_TEXT}</source></segment></unit>\n',
        "</file></xliff>",
    ),
    "docx": (
        '<w:document xmlns:w="w"><w:body>',
        f"<w:p><w:r><w:t>{_TEXT}</w:t></w:r></w:p>",
        "</w:body></w:document>",
    ),
    "pptx": (
        '<p:sld xmlns:p="p" xmlns:a="a">',
        f"<a:p><a:r><a:t>{_TEXT}</a:t></a:r></a:p>",
        "</p:sld>",
    ),
    "odt": (
        '<office:document-content xmlns:office="o" xmlns:text="t">',
        f"<text:p>{_TEXT}</text:p>",
        "</office:document-content>",
    ),
}
MEMBERS = {"docx": "word/document.xml", "pptx": "ppt/slides/slide1.xml", "odt": "content.xml"}


def real_files(count):
    """Yields package, format and path of documents of installed packages, so many of a kind."""
    endings = {".html": "html", ".htm": "html", ".po": "po", ".pot": "po", ".md": "markdown"}
    for package in ("sphinx", "furo", "nbconvert", "myst-nb", "tensorboard", "notebook"):
        try:
            files = importlib.metadata.files(package) or ()
        except importlib.metadata.PackageNotFoundError:
            continue
        kinds = collections.Counter()
        for file in sorted(map(str, files)):
            kind = endings.get(pathlib.PurePath(file).suffix)
            path = importlib.metadata.distribution(package).locate_file(file)
            if kind and kinds[kind] < count and pathlib.Path(path).is_file():
                kinds[kind] += 1
                yield package, kind, pathlib.Path(path)
    readme = pathlib.Path(__file__).resolve().parent.parent / "README.md"
    yield "kformer", "markdown", readme


def _measure(label, name, texts, translator):
    from tests.documents.generated import compare

    begin, bad = time.perf_counter(), collections.Counter()
    sentences = untranslated_parts = 0
    for text in texts:
        differing, report = compare(name, text, translator)
        bad.update(differing or ())
        sentences += report.sentences
        untranslated_parts += report.untranslated
    seconds = time.perf_counter() - begin
    shown = ", ".join(f"{bad[kind]} {kind}" for kind in sorted(bad)) or "none"
    print_row(
        label, name, len(texts), f"{sentences:,}", shown, untranslated_parts, f"{seconds:.1f}"
    )


# The name of a key, and a placeholder that is kept.
_KEYS = {
    "strings": re.compile(r'^[ \t]*("(?:[^"\\]|\\.)*"|[\w.-]+)\s*=', re.M),
    "properties": re.compile(r"^[ \t]*((?:\\.|[^\\\s=:#!])(?:\\.|[^\\\s=:])*)", re.M),
}
_SKELETONS = ("xliff", "json", "strings", "properties", "android")
_PLACEHOLDER = re.compile(r"%(?:\d+\$)?[-+\d.]*l*[sdifuxc@]|%\w+%|\{\{? ?\w+ ?\}\}?")


def _archive(name, content):
    """What stays the same in an office file."""
    from kformer.documents.formats import format_named

    format, runs = format_named(name), ("r", "rPr", "t") if name != "odt" else ()

    def elements(element):
        tag = element.tag.rpartition("}")[2]
        if tag not in runs:
            yield element.tag, sorted(element.items())
        for child in element if tag != "rPr" else ():
            yield from elements(child)

    rows = []
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for member in archive.namelist():
            each = archive.read(member)
            if re.fullmatch(format.members, member):
                root = ElementTree.fromstring(each)
                letters = collections.Counter("".join(root.itertext()).casefold())
                letters = {sign: letters[sign] for sign in letters if not sign.isspace()}
                each = sorted(elements(root)), sorted(letters.items())
            rows.append((member, each))
    return rows


def _skeleton(name, content):
    """What stays the same in a file of an application."""
    if name in MEMBERS:
        return _archive(name, content)
    text = _decoded(content)
    if name == "json":
        keys = []
        json.loads(text, strict=False, object_pairs_hook=lambda pairs: keys.extend(dict(pairs)))
        return keys, sorted(_PLACEHOLDER.findall(text))
    if name in _KEYS:
        return _KEYS[name].findall(text), sorted(_PLACEHOLDER.findall(text))
    root = ElementTree.fromstring(text.encode())
    if name == "android":
        rows = sorted((each.tag, sorted(each.items())) for each in root.iter())
        return rows, sorted(_PLACEHOLDER.findall(text))
    units = []
    for unit in root.iter():
        source, target = (unit.find(f"{{*}}{side}") for side in ("source", "target"))
        if source is not None:
            sides = [source] if target is None else [source, target]
            rows = [sorted((e.tag, sorted(e.items())) for e in side.iter()) for side in sides]
            rows = [
                [row for row in each if not re.search("(source|target)$", row[0])] for each in rows
            ]
            texts = ["".join(side.itertext()) for side in sides]
            is_same = rows[0] == rows[-1] and len({*map(_placeholders, texts)}) == 1
            units.append((ElementTree.tostring(source), is_same))
    return units


def _placeholders(text):
    return tuple(sorted(_PLACEHOLDER.findall(text)))


def _folder(folder):
    """Files of applications in a folder, translated by functions."""
    from kformer.documents import format_of, translate_document
    from tests.documents.generated import Function, reverse

    files = collections.defaultdict(list)
    for path in sorted(folder.rglob("*")):
        is_android = path.suffix == ".xml" and path.parent.name.partition("-")[0] == "values"
        name = "android" if is_android else format_of(path)
        if path.is_file() and name in (*_SKELETONS, *MEMBERS):
            files[name].append(path)
    for label, function in (("identity", str), ("capitals", str.upper), ("reversed", reverse)):
        for name, paths in files.items():
            begin, counts = time.perf_counter(), collections.Counter()
            for path in paths:
                content = path.read_bytes()
                try:
                    found = translate_document(Function(function), content, name)
                except ValueError as error:  # It is no file of its format.
                    print(f"{path}: {error}", file=sys.stderr)
                    counts["refused"] += 1
                    continue
                sides = (_skeleton(name, each) for each in (content, found.text))
                if len({*map(repr, sides)}) > 1:
                    print(f"{path} differs", file=sys.stderr)
                    counts["structure"] += 1
                counts.update(sentences=found.report.sentences, left=found.report.untranslated)
            seconds = time.perf_counter() - begin
            sentences, left = counts.pop("sentences", 0), counts.pop("left", 0)
            shown = ", ".join(f"{counts[kind]} {kind}" for kind in sorted(counts)) or "none"
            print_row(label, name, len(paths), f"{sentences:,}", shown, left, f"{seconds:.1f}")


def _decoded(content):
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _large(size):
    """Time and memory of documents of each format with so many bytes, and with half of them."""
    print_head(("format", "MB", "CPU s", "MB", "CPU s", "MiB more"))
    for name, (head, unit, tail) in UNITS.items():
        cells = []
        for part in (size // 2, size):
            numbers = itertools.count(1)
            units = (unit.replace("{i}", str(i)) for i in numbers)
            body, length = [], 0
            while length < part:
                body.append(next(units))
                length += len(body[-1])
            content = head + "".join(body) + tail
            if name in MEMBERS:
                file = io.BytesIO()
                with zipfile.ZipFile(file, "w") as archive:
                    archive.writestr(MEMBERS[name], content)
                content = file.getvalue()
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                seconds, memory = pool.apply(_translate_large, (content, name))
            cells += [f"{len(content) / 1e6:.1f}", f"{seconds:.1f}"]
        print_row(name, *cells, f"{memory:.0f}")
    print()


def _translate_large(content, name):
    """CPU seconds, and by how many MiB the peak of memory rises, in a process of its own."""
    from kformer.documents import translate_document
    from tests.documents.generated import Function

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    translate_document(Function(str.upper), "A man.")
    before, begin = peak(), time.process_time()
    translate_document(Function(str.upper), content, name)
    return time.process_time() - begin, peak() - before


def _many_lines(count):
    """Lines of all kinds, translated one by one: how many have moved."""
    from kformer.documents import translate_document
    from tests.documents.generated import Function

    rng = random.Random(0)
    kinds = ("", " ", "One. Two! Three?", "\tA line\r", "a" * 1000, "\u2028 x. \x85 y. \x0b", "%s.")
    lines = [f"{rng.choice(kinds)}{i}" if rng.random() < 0.7 else "" for i in range(count)]
    begin, moved = time.perf_counter(), 0
    for start in range(0, count, 1000):
        part = lines[start : start + 1000]
        found = translate_document(Function(str.upper), "\n".join(part), "lines").text.split("\n")
        moved += len(found) != len(part)
        pairs = zip(part, found, strict=False)
        moved += sum(re.findall(r"\d+", a) != re.findall(r"\d+", b) for a, b in pairs)
    print(f"{count:,} lines: {moved} moved, {time.perf_counter() - begin:.1f} s")


def _model(arguments):
    """Generated documents and a test set's paragraphs, translated by a real model."""
    import sacrebleu

    from kformer import Translator
    from kformer.documents import translate_document
    from kformer.export import SavedModelTranslator
    from tests.documents.generated import Generator

    is_run = (pathlib.Path(arguments.model) / "config.json").is_file()
    model = (Translator.load if is_run else SavedModelTranslator)(arguments.model)
    for name in COUNTS:
        maker = Generator(name, arguments.seed)
        texts = [maker.document() for _ in range(arguments.model_files)]
        _measure("model", name, texts, model)
    if arguments.source is None:
        return
    sources, references = read(arguments.source), read(arguments.reference)
    print()
    print_head((arguments.source.name, "BLEU", "s"))
    paragraphs = _paragraphs(sources)
    for label, texts, expected in (
        ("line by line", sources, references),
        ("paragraphs, as documents", paragraphs, _paragraphs(references)),
        ("paragraphs, each as one sentence", paragraphs, _paragraphs(references)),
    ):
        begin = time.perf_counter()
        if "documents" in label:
            found = translate_document(model, "\n\n".join(texts)).text.split("\n\n")
        else:
            found = [part.text for part in model.translate(texts)]
        seconds = time.perf_counter() - begin
        if len(found) == len(sources):  # The same units for all three.
            found, expected = _paragraphs(found), _paragraphs(expected)
        bleu = sacrebleu.corpus_bleu(found, [expected], tokenize=arguments.tokenize).score
        print_row(label, f"{bleu:.2f}", f"{seconds:.1f}")


def _paragraphs(lines, size=5):
    return [" ".join(lines[start : start + size]) for start in range(0, len(lines), size)]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="of the files; 0: a model alone")
    parser.add_argument("--model", help="a run or a SavedModel")
    parser.add_argument("--model-files", type=int, default=20, help="of each format")
    parser.add_argument("--source", type=pathlib.Path, help="a test set, for the model")
    parser.add_argument("--reference", type=pathlib.Path)
    parser.add_argument("--tokenize", default="13a", help="sacreBLEU's, for the paragraphs")
    parser.add_argument("--large", type=int, default=0, help="bytes of a document of each format")
    parser.add_argument("--folder", type=pathlib.Path, help="of files of applications and offices")
    parser.add_argument("--lines", type=int, default=0, help="lines that must not move")
    arguments = parser.parse_args()
    print_command()
    if arguments.share or arguments.model or arguments.folder:
        print_head(("translator", "format", "files", "sentences", "differ", "left alone", "s"))
    if arguments.share:
        _functions(arguments)
    if arguments.model:
        _model(arguments)
    if arguments.folder:
        _folder(arguments.folder)
    if arguments.large:
        _large(arguments.large)
    if arguments.lines:
        _many_lines(arguments.lines)


def _functions(arguments):
    """Generated and real documents, translated by functions."""
    from tests.documents.generated import Function, Generator, reverse

    for label, function in (("capitals", str.upper), ("reversed", reverse)):
        for name, count in COUNTS.items():
            maker = Generator(name, arguments.seed)
            texts = [maker.document() for _ in range(max(1, int(count * arguments.share)))]
            _measure(label, name, texts, Function(function))
        real = collections.defaultdict(list)
        for package, name, path in real_files(max(1, int(40 * arguments.share))):
            real[package, name].append(path.read_text(encoding="utf-8", errors="replace"))
        for (package, name), texts in real.items():
            _measure(f"{label}, {package}", name, texts, Function(function))


if __name__ == "__main__":
    main()
