"""Compares minimum Bayes risk decoding with greedy and beam search: BLEU, chrF and seconds.

    python benchmarks/minimum_risk.py RUN --source test.en --reference test.de
        [--sentences 200] [--samples 16,64] [--temperatures 1,0.5] [--tokenize none]

Translates the first sentences of the source file, one a line, in each way once. sacreBLEU's
figures, BLEU with the tokenizer that `--tokenize` names. The beam search is the run's own.
KERAS_BACKEND selects the backend.
"""

import argparse
import itertools
import pathlib
import sys
import time

import sacrebleu

import kformer

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.tables import print_command, print_head, print_row  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--reference", type=pathlib.Path, required=True)
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--samples", default="16,64")
    parser.add_argument("--temperatures", default="1,0.5")
    parser.add_argument("--tokenize", default="none")
    options = parser.parse_args()
    sources, references = (
        path.read_text(encoding="utf-8").rstrip("\n").split("\n")
        for path in (options.source, options.reference)
    )
    sources, references = sources[: options.sentences], references[: options.sentences]
    translator = kformer.Translator.load(options.run)
    ways = {"greedy": {"beam_size": 1}, "beam": {}}
    for samples, temperature in itertools.product(
        map(int, options.samples.split(",")), map(float, options.temperatures.split(","))
    ):
        name = f"{samples} samples, temperature {temperature:g}"
        ways[name] = {"mbr": samples, "temperature": temperature}
    translator(sources[:8])  # compiled
    print_command()
    print_head(["", "BLEU", "chrF", "s"])
    for name, way in ways.items():
        start = time.perf_counter()
        found = translator(sources, **way)
        seconds = time.perf_counter() - start
        bleu = sacrebleu.corpus_bleu(
            found, [references], tokenize=options.tokenize, force=True
        ).score
        chrf = sacrebleu.corpus_chrf(found, [references]).score
        print_row(name, f"{bleu:.2f}", f"{chrf:.2f}", f"{seconds:.1f}")


if __name__ == "__main__":
    main()
