"""Translates generated and real documents, and compares their structure with the source's.

    python benchmarks/documents.py [--seed 0] [--model RUN_OR_SAVED_MODEL [--model-files 20]
        [--source test.en --reference test.zh --tokenize zh]] [--large 1000000] [--lines 100000]

It generates 500 HTML pages, 200 SRT, 200 PO and 200 Markdown files, and takes real ones from
installed packages: catalogues of Sphinx (BSD), templates and READMEs of packages for notebooks and
documentation. Each is translated by two functions that stand for a model, one to capital letters
and one that reverses the words of a sentence, and some by a real one. Parsers that are not
kformer's read both sides: html5lib, polib, markdown-it-py, and a regular expression for SRT.
Prints a Markdown table: files, and those that differ in structure, in what must be kept or in
words.

With a test set, the model also translates paragraphs of five of its sentences: BLEU (sacreBLEU) of
the sentences line by line, of the paragraphs as documents, and of the paragraphs as if each were
one sentence.
"""

import argparse
import collections
import importlib.metadata
import pathlib
import random
import re
import sys
import time
import tracemalloc

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.common import print_command, print_head, print_row, read  # noqa: E402

COUNTS = {"html": 500, "srt": 200, "po": 200, "markdown": 200}


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


def _large(size):
    """Time and memory of one document of many bytes, and of one half as long."""
    from kformer.documents import translate_document
    from tests.documents.generated import Function

    for part in (size // 2, size):
        text = "".join(
            f"The man number {i} walks under the old house.\n\n" for i in range(part // 47)
        )
        tracemalloc.start()
        begin = time.perf_counter()
        translate_document(Function(str.upper), text)
        seconds, memory = time.perf_counter() - begin, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        print(f"{len(text):,} bytes of text: {seconds:.1f} s, peak {memory / 2**20:.0f} MiB")


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
    parser.add_argument("--large", type=int, default=0, help="bytes of one more document")
    parser.add_argument("--lines", type=int, default=0, help="lines that must not move")
    arguments = parser.parse_args()
    print_command()
    print_head(("translator", "format", "files", "sentences", "differ", "left alone", "s"))
    if arguments.share:
        _functions(arguments)
    if arguments.model:
        _model(arguments)
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
