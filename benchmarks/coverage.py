"""What `Translator.coverage` finds of planted faults, in references and in translations.

    python benchmarks/coverage.py RUN --data FOLDER --pair en-de [--plain] [--worst FILE]
    python benchmarks/coverage.py defaults RUN:FOLDER:PAIR ...

FOLDER has train, val and test text: `train.en`, `val.en`, and `test.en` or `test2016.en`. The run
is calibrated on val, or with --plain not at all. The words of the test text are aligned together
with the training text, and with the words of the source the aligned words of the translation are
taken away. `defaults` prints the weights that several runs give together, without calibration.
"""

import argparse
import json
import pathlib
import re
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.common import print_command, print_head, print_row, read  # noqa: E402

SHARE = 0.02


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", nargs="+")
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--pair", default="en-de")
    parser.add_argument("--plain", action="store_true", help="without calibration")
    parser.add_argument("--most", type=int, default=1000, help="sentences of the test text")
    parser.add_argument("--worst", type=pathlib.Path, help="where the worst translations go")
    parser.add_argument("--beam-size", type=int, default=4)
    options = parser.parse_args()
    print_command()
    if options.run[0] == "defaults":
        print_defaults(options.run[1:])
        return
    measure(options)


def texts_of(folder, pair, name):
    """The lines of both sides of a text."""
    names = [name] if name != "test" else ["test", "test2016"]
    languages = pair.split("-")
    path = next(
        p for p in (folder / each for each in names) if p.with_suffix(f".{languages[0]}").exists()
    )
    return [read(path.with_suffix(f".{language}")) for language in languages]


def print_defaults(runs):
    import kformer
    from kformer.data import align_words
    from kformer.translating import coverage

    rows = {"omission": [], "addition": []}
    for text in runs:
        run, folder, pair = text.split(":")
        translator = kformer.Translator.load(run)
        sides = texts_of(pathlib.Path(folder), pair, "val")
        data = coverage.fault_features(translator, *sides, align_words(*sides))
        for fault, each in data.items():
            rows[fault] += each
    print(json.dumps({fault: coverage.fit_weights(each) for fault, each in rows.items()}, indent=1))


class Planting:
    """Makes faulty translations of texts: a list of (source, target) for each kind of fault."""

    def __init__(self, sources, targets, alignments):
        from kformer.text.words import split_words

        self.random = np.random.default_rng(1)
        self.pairs = list(zip(sources, targets, alignments, strict=True))
        self.split = split_words

    def omissions(self, least, most):
        """Between `least` and `most(words)` words of the source are left out, and `least` or more
        of the translation."""
        from kformer.translating.coverage import plant, without_words

        for source, target, alignment in self.pairs:
            words, others = self.split(source), self.split(target)
            if most(len(words)) < least:
                continue
            size = int(self.random.integers(least, most(len(words)) + 1))
            planted = plant(words, others, alignment, size, self.random)
            if planted is not None and len(planted[1]) >= least:
                yield source, without_words(target, others, planted[1]), planted[0]

    def additions(self):
        """At least three words of the source are taken away: the translation has three or more too
        many."""
        from kformer.translating.coverage import plant, without_words

        for source, target, alignment in self.pairs:
            words, others = self.split(source), self.split(target)
            size = int(self.random.integers(3, max(3, len(words) // 2) + 1))
            planted = plant(words, others, alignment, size, self.random)
            if planted is not None and len(planted[1]) >= 3:
                yield without_words(source, words, planted[0]), target, planted[1]

    def clauses(self):
        """All after a comma or a conjunction is left out."""
        for source, target, _ in self.pairs:
            places = [m.start() for m in re.finditer(r",|，| und | while | 而", target)]
            places = [p for p in places if 0.25 * len(target) < p < 0.8 * len(target)]
            if places:
                yield source, target[: places[0]] + target[-1:], ()

    def repeated(self):
        """Two to five words stand there twice."""
        from kformer.translating.mistakes import word_spans

        for source, target, _ in self.pairs:
            words = self.split(target)
            size = int(self.random.integers(2, 6))
            if len(words) > size + 1:
                spans = word_spans(target, words)
                start = int(self.random.integers(0, len(words) - size))
                begin, end = spans[start][0], spans[start + size - 1][1]
                gap = " " if " " in target else ""
                yield source, target[:end] + gap + target[begin:], ()

    def numbers(self, is_right=False):
        """A number of two to four digits that is another one in the translation."""
        for source, target, _ in self.pairs:
            first, second = map(int, self.random.choice(np.arange(10, 10000), 2, replace=False))
            yield f"{source} ({first})", f"{target} ({first if is_right else second})", ()


def measure(options):
    import kformer
    from kformer.data import align_words

    translator = kformer.Translator.load(options.run[0])
    if not options.plain:
        translator.calibrate(*texts_of(options.data, options.pair, "val"))
    if options.plain:
        translator.config.pop("coverage", None)
    sources, references = (s[: options.most] for s in texts_of(options.data, options.pair, "test"))
    translator(sources[:64], coverage=True)  # Compiles.
    begin = time.process_time()
    results = translator.translate(sources, beam_size=options.beam_size)
    seconds = time.process_time() - begin
    outputs = [result.text for result in results]
    begin = time.process_time()
    annotated = translator.annotated(sources, results, coverage=True)
    more = time.process_time() - begin
    train = texts_of(options.data, options.pair, "train")
    alignments = align_words(sources * 2 + train[0], references + outputs + train[1])
    count = len(sources)

    def probabilities(pairs):
        coverages = translator.coverage(*([pair[side] for pair in pairs] for side in (0, 1)))
        return coverages, np.array([coverage.probability for coverage in coverages])

    untouched, clean = probabilities(list(zip(sources, references, strict=True)))
    print(
        f"{count} references: {np.mean(clean >= 0.5):.1%} doubtful at 0.5; of the model's "
        f"translations {np.mean([each.coverage.is_doubtful for each in annotated]):.1%}. "
        f"Translating takes {seconds:.1f} s of CPU, the coverage {more:.1f} s more "
        f"({more / seconds:.1%})."
    )
    limit = np.quantile(clean, 1 - SHARE)
    print(f"At a probability of {limit:.3f} there are {SHARE:.0%} false alarms.\n")
    print_head(["text", "fault", "sentences", "AUC", "recall", "at 0.5", "words found"])
    sides = (("references", references, 0), ("translations", outputs, count))
    for name, targets, first in sides:
        planting = Planting(sources, targets, alignments[first : first + count])
        kinds = {
            "1 to 2 words left out": planting.omissions(1, lambda size: min(2, size // 2)),
            "3 words to half of them": planting.omissions(3, lambda size: size // 2),
            "a clause left out": planting.clauses(),
            "3 words and more added": planting.additions(),
            "a part repeated": planting.repeated(),
            "another number": planting.numbers(),
        }
        base = (
            clean
            if name == "references"
            else probabilities(list(zip(sources, targets, strict=True)))[1]
        )
        for kind, pairs in kinds.items():
            pairs = list(pairs)
            coverages, values = probabilities(pairs)
            if kind == "another number":
                values = np.array(
                    [
                        max([s.probability for s in c.missing if s.kind == "number"] or [0])
                        for c in coverages
                    ]
                )
            shares = [_share(*each) for each in zip(coverages, pairs, strict=True)]
            shares = [share for share in shares if share is not None]
            found = f"{np.mean(shares):.2f}" if shares else ""
            print_row(
                *(name, kind, len(pairs), f"{area(values, base):.3f}"),
                *(f"{np.mean(values > limit):.3f}", f"{np.mean(values >= 0.5):.3f}", found),
            )
        right = probabilities(list(planting.numbers(is_right=True)))[0]
        wrong = np.mean([any(s.kind == "number" for s in c.missing + c.added) for c in right])
        print_row(name, "the same number", len(right), "", "", f"{wrong:.3f}", "")
    if options.worst:
        write_worst(options.worst, sources, annotated, references)
    print_retries(translator, sources, results, references, annotated)


def _share(coverage, pair):
    """Of the planted words the share that the spans have; `None` where nothing is doubtful."""
    from kformer.text.words import split_words
    from kformer.translating.mistakes import word_spans

    source, target, planted = pair
    if not planted or not coverage.is_doubtful:
        return None
    is_omission = max(planted) < len(split_words(source))
    spans = coverage.missing if is_omission else coverage.added
    text = source if is_omission else target
    places = word_spans(text, split_words(text))
    return np.mean(
        [any(a.start <= places[i][0] < a.stop for a in spans) for i in planted if i < len(places)]
    )


def area(faulty, clean):
    """The area under the curve: how often a faulty one has more than a clean one."""
    clean = np.sort(clean)
    below = np.searchsorted(clean, faulty, "left"), np.searchsorted(clean, faulty, "right")
    return np.mean(np.mean(below, axis=0)) / len(clean)


def write_worst(path, sources, annotated, references):
    """Writes the 50 most doubtful translations."""
    order = sorted(range(len(sources)), key=lambda i: -annotated[i].coverage.probability)[:50]
    with open(path, "w", encoding="utf-8") as file:
        for i in order:
            coverage = annotated[i].coverage
            left, more = (
                [f"{s.text} ({s.kind} {s.probability:.2f})" for s in side] for side in coverage[1:3]
            )
            print(
                f"{i} {coverage.probability}\n  {sources[i]}\n  {annotated[i].text}\n"
                f"  {references[i]}",
                file=file,
            )
            print(f"  left out: {left}\n  added: {more}\n", file=file)


def corpus_bleu(texts, references):
    from sacrebleu.metrics import BLEU

    is_chinese = any("\u4e00" <= character <= "\u9fff" for character in references[0])
    return BLEU(tokenize="zh" if is_chinese else "13a").corpus_score(texts, [references]).score


def print_retries(translator, sources, results, references, annotated):
    """Prints what --retry changes."""
    from kformer.translating.retry import retranslate

    begin = time.perf_counter()
    coverages = [each.coverage for each in annotated]
    others, after = retranslate(translator, sources, results, coverages)
    seconds = time.perf_counter() - begin
    counts = [sum(each.is_doubtful for each in row) for row in (coverages, after)]
    taken = [i for i, each in enumerate(after) if each.retried]
    print(
        f"\n--retry: {counts[0]} doubtful, {counts[1]} afterwards, {len(taken)} taken, "
        f"{seconds:.1f} s"
    )
    for name, each in (("before", results), ("after", others)):
        texts = [result.text for result in each]
        print(f"{name}: BLEU {corpus_bleu(texts, references):.2f}, of those taken ", end="")
        chosen = [[side[i] for i in taken] for side in (texts, references)]
        print(f"{corpus_bleu(*chosen):.2f}" if taken else "none")
    for i in taken[:20]:
        print(f"  {sources[i]}\n    - {results[i].text}\n    + {others[i].text}")


if __name__ == "__main__":
    main()
