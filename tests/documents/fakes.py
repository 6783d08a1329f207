"""Translators that need no model."""

import random

from kformer.translating.translation import Hypothesis, Translation


class Fake:
    """Translates by a function, as a SavedModel without the signature `constrained` would.

    Args:
        function: function of a sentence to its translation.
        most: int, default 400. Longer sentences are cut.
    """

    takes_terms = False

    def __init__(self, function, most=400):
        self.function, self.most = function, most
        self.asked = []

    def translate(self, texts, **options):
        self.asked += texts
        return [
            Translation(
                [Hypothesis(self.function(text[: self.most]), 0.0, None, None)],
                len(text) > self.most,
            )
            for text in texts
        ]


def reverse(text):
    """The words of a sentence from the last to the first."""
    return " ".join(reversed(text.split()))


def scrambled(text):
    """The words in another order and number, as a weak model writes them; what is not a plain word
    stands once.
    """
    rng, words = random.Random(text), []
    for word in text.split():
        words += [word] * (rng.choice((0, 1, 1, 2)) if word.isalpha() else 1)
    rng.shuffle(words)
    return " ".join(words) or text
