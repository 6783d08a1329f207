"""Measures a search in which random words of the reference must occur.

    python benchmarks/constraints.py RUN --data multi30k-en-de/tok [--beam-sizes 4,8]

Translates the first 2,000 sentences of `val` and `test2016` (files with the endings .en and .de,
one sentence a line, tokenized) freely, and with one to three words of each reference forced, which
are sampled with a seed. Prints a Markdown table: how many of the words occur, as words, in either
translation, sacreBLEU's BLEU (`tokenize="none"`) and the median time of each of `--repeats` passes.
KERAS_BACKEND selects the backend.
"""

import argparse
import pathlib
import random
import statistics
import sys
import time

import sacrebleu

import kformer

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.tables import print_command, print_head, print_row  # noqa: E402


def read_pairs(folder, count):
    """Sources and references."""
    sides = []
    for ending in ("en", "de"):
        lines = []
        for name in ("val", "test2016"):
            lines += (folder / f"{name}.{ending}").read_text(encoding="utf-8").splitlines()
        sides.append(lines[:count])
    return sides


def sample_terms(references, seed):
    """One to three different words of each reference, in any order."""
    rng = random.Random(seed)
    terms = []
    for reference in references:
        words = sorted({word for word in reference.split() if word.isalpha()})
        terms.append(rng.sample(words, min(rng.randint(1, 3), len(words))))
    return terms


def occurring(terms, translations):
    """The share of the terms that occur as words, in percent."""
    found = [
        word in translation.split()
        for words, translation in zip(terms, translations, strict=True)
        for word in words
    ]
    return 100 * sum(found) / len(found)


def timed(translate, repeats):
    """What a function returns, and its median time in seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = translate()
        times.append(time.perf_counter() - start)
    return result, statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="a run directory")
    parser.add_argument("--data", type=pathlib.Path, required=True, metavar="FOLDER")
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--beam-sizes", default="4", help="default: 4")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    translator = kformer.Translator.load(options.run)
    sources, references = read_pairs(options.data, options.sentences)
    terms = sample_terms(references, options.seed)
    print_command()
    heads = ("beam", "words", "occur freely, %", "forced, %", "BLEU freely", "forced")
    print_head((*heads, "s freely", "forced", "speed"))
    for beam_size in map(int, options.beam_sizes.split(",")):
        search = {"beam_size": beam_size, "batch_size": options.batch_size}
        translator(sources[:64], **search)
        free, free_time = timed(lambda s=search: translator(sources, **s), options.repeats)
        forced, forced_time = timed(
            lambda s=search: translator(sources, terms=terms, **s), options.repeats
        )
        bleu = [
            sacrebleu.corpus_bleu(texts, [references], tokenize="none", force=True).score
            for texts in (free, forced)
        ]
        shares = [occurring(terms, texts) for texts in (free, forced)]
        print_row(
            beam_size,
            sum(map(len, terms)),
            *(f"{share:.2f}" for share in shares),
            *(f"{score:.2f}" for score in bleu),
            f"{free_time:.1f}",
            f"{forced_time:.1f}",
            f"{free_time / forced_time:.2f}",
        )


if __name__ == "__main__":
    main()
