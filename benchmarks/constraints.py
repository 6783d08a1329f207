"""Measures a search in which random words of the reference must occur.

    python benchmarks/constraints.py RUN --data multi30k-en-de/tok [--beam-sizes 4,8]

Translates the sentences of `--set` (files with the endings .en and .de, one sentence a line,
tokenized) freely, and with one to three words of each reference forced, which are sampled with a
seed. Each sentence comes `--draws` times, with other words. Prints a Markdown table: how many of
the words occur, as words, in either translation, sacreBLEU's BLEU (`tokenize="none"`) and the
median time of `--repeats` passes of either kind, in turns. KERAS_BACKEND selects the backend.
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


def in_turns(passes, repeats):
    """What each of some functions returns, and its median time in seconds."""
    times = [[] for _ in passes]
    for _ in range(repeats):
        results = []
        for translate, found in zip(passes, times, strict=True):
            start = time.perf_counter()
            results.append(translate())
            found.append(time.perf_counter() - start)
    return results, [statistics.median(found) for found in times]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="a run directory")
    parser.add_argument("--data", type=pathlib.Path, required=True, metavar="FOLDER")
    parser.add_argument("--set", default="test2016", help="default: test2016")
    parser.add_argument("--draws", type=int, default=2, help="default: 2")
    parser.add_argument("--sentences", type=int, help="the first so many; default: all")
    parser.add_argument("--beam-sizes", default="4", help="default: 4")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    translator = kformer.Translator.load(options.run)
    print_command()
    heads = ("beam", "sentences", "words", "occur freely, %", "forced, %", "BLEU freely", "forced")
    print_head((*heads, "s freely", "forced", "speed"))
    sides = (
        (options.data / f"{options.set}.{ending}").read_text(encoding="utf-8").splitlines()
        for ending in ("en", "de")
    )
    sources, references = (side[: options.sentences] * options.draws for side in sides)
    terms = sample_terms(references, seed=0)
    for beam_size in map(int, options.beam_sizes.split(",")):
        search = {"beam_size": beam_size, "batch_size": options.batch_size}
        translator(sources[:64], **search)
        (free, forced), (free_time, forced_time) = in_turns(
            [
                lambda s=search: translator(sources, **s),
                lambda s=search: translator(sources, terms=terms, **s),
            ],
            options.repeats,
        )
        bleu = [
            sacrebleu.corpus_bleu(texts, [references], tokenize="none", force=True).score
            for texts in (free, forced)
        ]
        shares = [occurring(terms, texts) for texts in (free, forced)]
        print_row(
            beam_size,
            len(sources),
            sum(map(len, terms)),
            *(f"{share:.2f}" for share in shares),
            *(f"{score:.2f}" for score in bleu),
            f"{free_time:.1f}",
            f"{forced_time:.1f}",
            f"{free_time / forced_time:.2f}",
        )


if __name__ == "__main__":
    main()
