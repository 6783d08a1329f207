"""What a translation is: hypotheses with their scores, and where a translation looked."""

from typing import NamedTuple

import numpy as np


class Hypothesis(NamedTuple):
    """One translation of a sentence.

    Attributes:
        text: the translation.
        score: sum of the log-probabilities of its tokens, the end token included.
        rank: the score after the length penalty; n-best lists are ordered by it.
        ids: list of int, its tokens, the end token included.
    """

    text: str
    score: float
    rank: float
    ids: list


class Translation(NamedTuple):
    """What a search gave for one source text.

    Attributes:
        hypotheses: list of `Hypothesis`, best first.
        truncated: whether the source was longer than the model's limit and was cut.
    """

    hypotheses: list
    truncated: bool

    @property
    def text(self):
        """The best translation."""
        return self.hypotheses[0].text

    @property
    def score(self):
        """The best translation's log-probability."""
        return self.hypotheses[0].score


class AttentionMap(NamedTuple):
    """Where a translation looked.

    Attributes:
        source_tokens, target_tokens: lists of str, the pieces with special tokens.
        weights: float32 array `[layers, heads, T, S]`; row t is the attention when target token t
            was predicted.
    """

    source_tokens: list
    target_tokens: list
    weights: np.ndarray
