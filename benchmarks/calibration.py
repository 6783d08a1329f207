"""How far a model's confidence can be trusted, on text that it was not calibrated with.

    python benchmarks/calibration.py RUN --valid-source val.en --valid-target val.de
        --source test.en --reference test.de [--tokenize none]

Fits the temperature on the validation set. Prints the expected calibration error of the tokens of
both sets without it and with it, and what the confidence in the run's own translations of the test
set is worth: BLEU and chrF (sacreBLEU) of the most and of the least confident half, beside halves
by length. KERAS_BACKEND selects the backend.
"""

import argparse
import pathlib
import sys

import numpy as np
import sacrebleu

import kformer
from kformer.translating.confidence import calibration_error, token_statistics
from kformer.translating.pairs import PairReader

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.tables import print_command, print_head, print_row  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    for name in ("--valid-source", "--valid-target", "--source", "--reference"):
        parser.add_argument(name, type=pathlib.Path, required=True)
    parser.add_argument("--tokenize", default="none")
    options = parser.parse_args()
    valid = _lines(options.valid_source), _lines(options.valid_target)
    test = _lines(options.source), _lines(options.reference)
    translator = kformer.Translator.load(options.run)
    temperature = translator.calibrate(*valid)["confidence"]["temperature"]
    print_command()
    print_head(["tokens of", "number", "error, temperature 1", f"error, temperature {temperature}"])
    for name, sides in (("the validation set", valid), ("the test set", test)):
        reader = PairReader(translator.model, translator.tokenizer)
        pairs = reader.tokenize(*sides, translator.options)
        errors = []
        for beta in (1.0, 1 / temperature):
            found = token_statistics(reader, pairs, beta)
            errors.append(f"{calibration_error(found['top'], found['hit']):.4f}")
        print_row(name, f"{len(found['hit']):,}", *errors)
    _halves(translator, *test, options.tokenize)


def _halves(translator, sources, references, tokenize):
    """Scores of the halves of a test set, by confidence and by length."""
    found = translator(sources)
    sure = [each.mean for each in translator.confidence(sources, found)]
    print()
    print_head(["sentences", "BLEU", "chrF"])
    orders = {
        ("more confident", "less confident"): np.argsort(-np.array(sure)),
        ("shorter", "longer"): np.argsort([len(source) for source in sources]),
    }
    print_row("all", *_scores(found, references, range(len(found)), tokenize))
    for names, order in orders.items():
        for name, half in zip(names, np.array_split(order, 2), strict=True):
            print_row(f"the {name} half", *_scores(found, references, half, tokenize))


def _scores(found, references, chosen, tokenize):
    found, references = [found[i] for i in chosen], [[references[i] for i in chosen]]
    bleu = sacrebleu.corpus_bleu(found, references, tokenize=tokenize, force=True).score
    return f"{bleu:.2f}", f"{sacrebleu.corpus_chrf(found, references).score:.2f}"


def _lines(path):
    return path.read_text(encoding="utf-8").rstrip("\n").split("\n")


if __name__ == "__main__":
    main()
