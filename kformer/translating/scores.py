"""The scores of given translations."""

import numpy as np

from kformer.decoding import Scorer
from kformer.translating.forced import counted_part, pairs_of_texts
from kformer.translating.translation import Score, padded


def score_texts(translator, sources, targets, batch_size, progress):
    """What `Translator.score` returns; the arguments are those of that method."""
    rows, truncated, labels = pairs_of_texts(translator, sources, targets)
    model = translator.model
    if translator._scorer is None:
        translator._scorer = Scorer(model)
    scores = [None] * len(rows)
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]) - len(labels[i]))
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        parts = [counted_part(translator, labels[i]) for i in batch]
        lengths = np.array([part.stop for part in parts])
        sides = [padded([side[i] for i in batch], model.pad_id) for side in (rows, labels)]
        found = translator._scorer(*sides, lengths, parts[0].start)
        for i, score in zip(batch, found, strict=True):
            scores[i] = Score(score, truncated[i])
        if progress is not None:
            progress(start + len(batch))
    return scores
