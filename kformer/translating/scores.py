"""The scores of given translations."""

import numpy as np

from kformer.decoding import Scorer
from kformer.text.text_bound import byte_bound, cut_texts
from kformer.translation import Score
from kformer.utils.checks import check_same_length, check_texts


def score_texts(translator, sources, targets, batch_size, progress):
    """What `Translator.score` returns; the arguments are those of that method."""
    sources, targets = check_texts(sources), check_texts(targets)
    check_same_length("the sources", len(sources), "the targets", len(targets))
    if translator._scorer is None:
        translator._scorer = Scorer(translator.model)
    rows, truncated = translator._source_rows(sources, keep_empty=True)
    targets = _whole_targets(translator, targets)
    labels = translator.tokenizer.tokenize(targets, side="target", special_tokens=True)
    # Forced tokens do not count in a search's score, nor do tokens after the end token, which
    # some models have.
    prefix, suffix = translator.options.prefix_ids, translator.tokenizer.target_suffix
    prefix = len(prefix) if prefix == translator.tokenizer.target_prefix else 0
    behind = (
        suffix[::-1].index(translator.tokenizer.end_id)
        if translator.tokenizer.end_id in suffix
        else 0
    )
    for i, row in enumerate(labels):
        if len(row) > translator.model.max_length:
            raise ValueError(
                f"Target {i + 1} has {len(row)} tokens, more than the model's limit of "
                f"{translator.model.max_length}; split it."
            )
    scores = [None] * len(sources)
    order = sorted(range(len(sources)), key=lambda i: -len(rows[i]) - len(labels[i]))
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        chosen = [labels[i] for i in batch]
        lengths = np.array([len(row) - behind for row in chosen])
        found = translator._scorer(
            translator._pad([rows[i] for i in batch]), translator._pad(chosen), lengths, prefix
        )
        for i, score in zip(batch, found, strict=True):
            scores[i] = Score(score, truncated[i])
        if progress is not None:
            progress(start + len(batch))
    return scores


def _whole_targets(translator, targets):
    """The targets of `score`; a ValueError for one that is longer than the bound in bytes."""
    bound = byte_bound(translator.model.max_length, translator.options.max_text_bytes)
    targets, truncated = cut_texts(targets, bound)
    if any(truncated):
        raise ValueError(
            f"Target {truncated.index(True) + 1} has more than {bound} bytes; split it, or "
            "raise max_text_bytes of the translator's options."
        )
    return targets
