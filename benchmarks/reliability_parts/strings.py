"""Generated strings through the SavedModel, in batches and alone.

Two models read them: the frozen one of this repository, and one with random weights, whose outputs
differ for nearly every input. Each string goes through in two batches of different company, and
some also alone. No call may fail; every row has one output, which is UTF-8; and a row's text, score
and truncation are the same in any company (two texts whose scores are equal within float32 are
noted, not counted). The strings come from a generator with a seed: code points of every Unicode
category, pieces that look like control tokens, U+2581 and other marks of tokenizers, heaps of
combining marks, surrogates as bytes, bytes that are not UTF-8, and runs of thousands of one
character.
"""

import os
import pathlib
import shutil
import unicodedata

import numpy as np

from benchmarks.reliability_parts.samples import SIZES, corpus
from benchmarks.reliability_parts.zygote import ROOT, Zygote

CHUNK = 4000
_FROZEN = ROOT / "saved_models" / "frozen"
_ALONE = 0.02
_TIE = 1e-4
_CONTROLS = (
    "</s> <s> <pad> <unk> <0x41> <0x0A> <0xFF> <s/> [CLS] __en__ >>de<< <2de> \u2581 \u2581\u2581 "
    "\u2047 \u2585 \x10 \x10e \x10s \x10\u2581 \ufffd \ufeff \x00 \x1a \x7f \r \n \t \x85 \u2028 "
    "\u200d \u200e \u202e \u2066 \u3000 \u00a0 \u00ad \ufdfa \u1e9e \u0130 \u0149 \ufb03 \u33ff"
).split(" ")
_BAD = (
    b"\xff \xc0\x80 \xed\xa0\x80 \xed\xbf\xbf \xed\xa0\xbd\xed\xb8\x80 \xf4\x90\x80\x80 \xf8\x88 "
    b"\xe2\x96 \xf0\x9f\x98 \x80 \xbf\xbf \xfe\xff \xc3 \xe0\x80\xaf \xf0\x80\x80\x80"
).split(b" ")


class Strings:
    """The generator.

    Args:
        rng: numpy generator.
        words: list of str, from which ordinary text is made.
    """

    def __init__(self, rng, words):
        self._rng, self._words = rng, words
        self._categories = {}
        for point in range(0x110000):
            self._categories.setdefault(unicodedata.category(chr(point)), []).append(point)
        self._names = [name for name in sorted(self._categories) if name != "Cs"]
        self._marks = self._categories["Mn"]
        self._kinds = [
            self._points,
            self._categories_mixed,
            self._combining,
            self._controls,
            self._bytes,
            self._run,
            self._ordinary,
            self._broken,
            self._concatenated,
        ]

    def __call__(self):
        """A string, as bytes."""
        return self._kinds[int(self._rng.integers(len(self._kinds)))]()

    def _pick(self, items):
        return items[int(self._rng.integers(len(items)))]

    def _length(self):
        return int(self._rng.geometric(0.08)) - 1

    def _points(self):
        points = self._categories[self._pick(self._names)]
        return "".join(chr(self._pick(points)) for _ in range(self._length())).encode()

    def _categories_mixed(self):
        return "".join(
            chr(self._pick(self._categories[self._pick(self._names)]))
            for _ in range(self._length())
        ).encode()

    def _combining(self):
        parts = []
        for _ in range(int(self._rng.integers(1, 5))):
            parts.append(self._pick(["e", "A", "क", "\u1112", "", " ", "\u2581", "👍"]))
            parts += [chr(self._pick(self._marks)) for _ in range(self._length())]
        return "".join(parts).encode()

    def _controls(self):
        glue = self._pick(["", " ", "\u2581"])
        return glue.join(self._pick(_CONTROLS) for _ in range(self._length())).encode()

    def _bytes(self):
        return self._rng.integers(0, 256, self._length(), dtype="uint8").tobytes()

    def _run(self):
        one = self._pick([" ", "a", "\u2581", "。", "\u0301", "😀", "0", "\x00", "\ufdfa", "</s>"])
        return (one * int(10 ** self._rng.uniform(0, 3.3))).encode()

    def _ordinary(self):
        return " ".join(self._pick(self._words) for _ in range(self._length())).encode()

    def _broken(self):
        text = bytearray(self._categories_mixed() if self._rng.random() < 0.5 else self._ordinary())
        for _ in range(int(self._rng.integers(1, 4))):
            at = int(self._rng.integers(len(text) + 1))
            text[at:at] = self._pick(_BAD)
        return bytes(text[: int(self._rng.integers(len(text) + 1))])

    def _concatenated(self):
        return b"".join(self._pick(self._kinds[:8])() for _ in range(2))


def make_model(folder, run):
    """Exports a model with random weights (TensorFlow)."""
    import kformer

    tokenizer = kformer.Tokenizer.load(pathlib.Path(run) / "tokenizer")
    model = kformer.Transformer(
        tokenizer.vocabulary_size, **SIZES, position_encoding="rope", max_length=24, seed=7
    )
    rng = np.random.default_rng(7)
    for weight in model.trainable_weights:
        if len(weight.shape) > 1:  # Predictions that are far from uniform.
            weight.assign(rng.normal(size=weight.shape, scale=weight.shape[-1] ** -0.5))
    limits = {"max_length": 8, "length_ratio": 0.0, "length_offset": 8}
    kformer.Translator(model, tokenizer).export(folder, beam_size=1, **limits)


class Reader:
    """A SavedModel, called with bytes."""

    def __init__(self, path):
        from kformer.export import SavedModelTranslator

        self._model = SavedModelTranslator(path)

    def __call__(self, rows):
        """A list of (text, score, truncated)."""
        return [
            (result.text, result.score, result.truncated)
            for result in self._model.translate(rows, batch_size=len(rows))
        ]


def chunk(seed, number, models, words):
    """One chunk, in a process of its own.

    Returns:
        dict: counts of rows in batches and alone, of ties, and a list of faults.
    """
    rng = np.random.default_rng([seed, number])
    strings = Strings(rng, words)
    readers = [Reader(path) for path in models]
    found = {"in batches": 0, "alone": 0, "ties": 0, "faults": []}
    while found["in batches"] < CHUNK:
        rows = [strings() for _ in range(int(rng.choice([1, 2, 7, 32, 64, 128])))]
        # The frozen model takes longer, as it has a beam.
        read = readers[0 if rng.random() < 0.15 else 1]
        first = _checked(read, rows, found)
        order = rng.permutation(len(rows))
        cut = int(rng.integers(len(rows) + 1))
        for part in (order[:cut], order[cut:]):
            if len(part):
                _compare([rows[i] for i in part], [first[i] for i in part], read, found)
        found["in batches"] += len(rows)
        for i in np.flatnonzero(rng.random(len(rows)) < _ALONE):
            _compare([rows[i]], [first[i]], read, found)
            found["alone"] += 1
    return found


def _checked(read, rows, found):
    try:
        results = read(rows)
    except Exception as error:
        found["faults"].append(f"{type(error).__name__}: {error!s:.300} for {rows!r:.600}")
        return [("", 0.0, False)] * len(rows)
    if len(results) != len(rows):
        found["faults"].append(f"{len(results)} outputs for {len(rows)} rows: {rows!r:.600}")
    return results


def _compare(rows, expected, read, found):
    for row, one, other in zip(rows, _checked(read, rows, found), expected, strict=False):
        near = abs(one[1] - other[1]) < _TIE * max(1.0, abs(one[1]))
        if near and one[0] != other[0]:
            found["ties"] += 1
        elif not near or one[2] != other[2]:
            found["faults"].append(f"{row!r:.400} gives {one} and, in other company, {other}")


def run(tally, options):
    """The part: see the module. `--count` counts strings."""
    module = "benchmarks.reliability_parts.strings"
    with Zygote("tensorflow", options.work) as zygote:
        folder = corpus(zygote, options.work)
        models = [str(_FROZEN), str(folder.parent / "random_model")]
        if not os.path.exists(models[1]):
            arguments = {"folder": models[1], "run": str(folder / "small")}
            outcome = zygote.run(f"{module}:make_model", arguments)
            if outcome.code:
                shutil.rmtree(models[1], ignore_errors=True)
                raise RuntimeError(f"The model could not be exported: {outcome}")
        words = sorted(set((folder / "train.source").read_text(encoding="utf-8").split()))
        for number, _ in tally.trials():
            if tally.tried >= options.count:
                break
            arguments = {"seed": tally.seed, "number": number, "models": models, "words": words}
            outcome = zygote.run(f"{module}:chunk", arguments, seconds=1200, memory=8 << 30)
            if outcome.code:
                tally.add("in batches", str(outcome))
                continue
            for kind in ("in batches", "alone"):
                tally.add(kind, count=outcome.value[kind])
            for fault in outcome.value["faults"]:
                tally.add("in batches", fault, count=0)
            for _ in range(outcome.value["ties"]):
                tally.note("ties")
