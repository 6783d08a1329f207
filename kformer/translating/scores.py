"""The scores of given translations."""

import numpy as np

from kformer.decoding import Scorer
from kformer.text.text_bound import byte_bound, whole_texts
from kformer.translation import Score, padded
from kformer.utils.checks import check_texts
from kformer_cli.text_files import check_same_length


def score_texts(translator, sources, targets, batch_size, progress):
    """What `Translator.score` returns; the arguments are those of that method."""
    sources, targets = check_texts(sources), check_texts(targets)
    check_same_length("the sources", len(sources), "the targets", len(targets))
    model, tokenizer, options = translator.model, translator.tokenizer, translator.options
    if translator._scorer is None:
        translator._scorer = Scorer(model)
    rows, truncated = translator._source_rows(sources, keep_empty=True)
    targets = whole_texts(targets, byte_bound(model.max_length, options.max_text_bytes))
    labels = tokenizer.tokenize(targets, side="target", special_tokens=True)
    # Forced tokens do not count in a search's score, nor do tokens after the end token, which
    # some models have.
    prefix, suffix = options.prefix_ids, tokenizer.target_suffix
    prefix = len(prefix) if prefix == tokenizer.target_prefix else 0
    behind = suffix[::-1].index(tokenizer.end_id) if tokenizer.end_id in suffix else 0
    for i, row in enumerate(labels):
        if len(row) > model.max_length:
            raise ValueError(
                f"Target {i + 1} has {len(row)} tokens, more than the model's limit of "
                f"{model.max_length}; split it."
            )
    scores = [None] * len(sources)
    order = sorted(range(len(sources)), key=lambda i: -len(rows[i]) - len(labels[i]))
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        chosen = [labels[i] for i in batch]
        lengths = np.array([len(row) - behind for row in chosen])
        sides = [padded(side, model.pad_id) for side in ([rows[i] for i in batch], chosen)]
        found = translator._scorer(*sides, lengths, prefix)
        for i, score in zip(batch, found, strict=True):
            scores[i] = Score(score, truncated[i])
        if progress is not None:
            progress(start + len(batch))
    return scores
