"""The alignment error rate on text whose alignment is known.

    python benchmarks/alignment.py [--pairs 4000] [--epochs 12] [--seed 0]

Generates sentences of 500 words, which are as frequent as in real text (Zipf's law), and their
translations: each word has one translation, or two that follow each other, or none; neighbours
change places. So the alignment is known without an error. Trains a small model and prints the
error rate (0 for the same pairs of words, 1 for no common one) on 500 further pairs: of the
diagonal, of the statistical aligner on those pairs alone and on all of the text, of the model's
attention, before and after `calibrate`, and of models that guided alignment trained. In a second
corpus each word has one translation, and the order is reversed. KERAS_BACKEND selects the backend.
"""

import argparse
import pathlib
import random
import sys
import tempfile
import time

import kformer
from kformer.data import TokenAlignments, align_words, alignment_error_rate
from kformer.translating.word_alignment import ALIGNMENT, guided_source

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.tables import print_command, print_head, print_row  # noqa: E402

_WORDS = 500
_HELD_OUT = 500


class Language:
    """Makes sentences, their translations and the alignments.

    Args:
        seed: int.
        reversed_order: bool. Whether each word has one translation, from the last to the first.
    """

    def __init__(self, seed, reversed_order):
        self._rng, self._reversed = random.Random(seed), reversed_order
        self._weights = [1 / (rank + 1) for rank in range(_WORDS)]
        kinds = [1] if reversed_order else [0, 1, 1, 1, 1, 1, 1, 1, 2]
        self._kinds = [self._rng.choice(kinds) for _ in range(_WORDS)]
        self._kinds[0] = 1

    def pair(self):
        """Returns a source text, a target text, and the pairs of their words' indices."""
        length = self._rng.randint(4, 16)
        words = self._rng.choices(range(_WORDS), self._weights, k=length - 1) + [0]
        order = list(range(length))
        if self._reversed:
            order.reverse()
        else:
            for i in range(length - 1):
                if self._rng.random() < 0.3:
                    order[i], order[i + 1] = order[i + 1], order[i]
        target, pairs = [], []
        for i in order:
            for part in range(self._kinds[words[i]]):
                pairs.append((i, len(target)))
                target.append(f"{_spelled(words[i], 'aeiou')}{part or ''}")
        source = [_spelled(word, "xyz") for word in words]
        return " ".join(source), " ".join(target), sorted(pairs)


def _spelled(number, vowels):
    consonants, text = "bdfgklmnprst", ""
    for _ in range(3):
        number, low = divmod(number, len(consonants))
        text += consonants[low] + vowels[low % len(vowels)]
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print_command()
    for name, is_reversed in (("neighbours change places", False), ("reversed", True)):
        language = Language(options.seed, is_reversed)
        pairs = [language.pair() for _ in range(options.pairs + 2 * _HELD_OUT)]
        print()
        print_head([name, "error rate", "s"])
        for label, error, seconds in _rows(pairs, options.epochs):
            print_row(label, f"{error:.4f}", f"{seconds:.1f}")


def _rows(pairs, epochs):
    sources, targets, expected = zip(*pairs, strict=True)
    count = len(pairs) - 2 * _HELD_OUT
    gold = expected[-_HELD_OUT:]
    test = sources[-_HELD_OUT:], targets[-_HELD_OUT:]
    valid = sources[count:-_HELD_OUT], targets[count:-_HELD_OUT]

    def timed(label, function, *arguments):
        start = time.perf_counter()
        found = function(*arguments)[-_HELD_OUT:]
        return label, alignment_error_rate(found, gold), time.perf_counter() - start

    yield timed("the diagonal", _diagonal, *test)
    yield timed(f"statistical, {_HELD_OUT:,} pairs", align_words, *test)
    yield timed(f"statistical, {len(pairs):,} pairs", align_words, sources, targets)
    translator, seconds = _trained((sources[:count], targets[:count]), valid, epochs)
    label, error, _ = timed("attention", translator.align, *test)
    yield f"{label} (training: {seconds:.0f} s)", error, seconds
    chosen = translator.calibrate(*valid)["alignment"]
    yield timed(f"attention, calibrated ({_place(chosen)})", translator.align, *test)
    known = [list(each) for each in expected[count:-_HELD_OUT]]
    chosen = translator.calibrate(*valid, alignments=known)["alignment"]
    label = f"attention, calibrated with known alignments ({_place(chosen)})"
    yield timed(label, translator.align, *test)
    train = sources[:count], targets[:count]
    for name, words in (
        ("the statistical aligner's words", align_words(*train)),
        ("known words", [list(each) for each in expected[:count]]),
    ):
        translator, seconds = _trained(train, valid, epochs, words)
        label, error, _ = timed(f"guided by {name}", translator.align, *test)
        yield f"{label} (training: {seconds:.0f} s)", error, seconds


def _diagonal(sources, targets):
    found = []
    for source, target in zip(sources, targets, strict=True):
        here, there = len(source.split()), len(target.split())
        found.append([(min(j * here // max(there, 1), here - 1), j) for j in range(there)])
    return found


def _trained(train, valid, epochs, words=None):
    """A translator, guided by aligned words if there are any, and the seconds of its training."""
    start = time.perf_counter()
    train = [list(side) for side in train]
    tokenizer = kformer.Tokenizer.train(texts=[*train[0], *train[1]], vocabulary_size=2000)
    with tempfile.TemporaryDirectory() as folder:
        corpus = kformer.data.prepare(*train, tokenizer, f"{folder}/pairs")
        guided = {}
        if words is not None:
            guided["alignments"] = TokenAlignments(corpus, tokenizer, *train, words)
        data = kformer.data.ParallelDataset.from_prepared(corpus, **guided)
        model = _fitted(data, valid, tokenizer, epochs)
    config = {} if words is None else {ALIGNMENT: guided_source(model)}
    translator = kformer.Translator(model, tokenizer, config=config)
    return translator, time.perf_counter() - start


def _fitted(data, valid, tokenizer, epochs):
    check = kformer.data.ParallelDataset(*map(list, valid), tokenizer, shuffle=False)
    recipe = kformer.training.recommend(data, check, epochs=epochs)
    model = kformer.Transformer.from_preset(**recipe.model)
    recipe.compile(model)
    model.fit(data, **recipe.fit, verbose=0)
    return model


def _place(chosen):
    head = "mean" if chosen["head"] is None else f"head {chosen['head']}"
    return f"layer {chosen['layer']}, {head}"


if __name__ == "__main__":
    main()
