"""The cross-attention of one translation."""

import numpy as np
from keras import ops

from kformer.translating.translation import AttentionMap
from kformer.utils.checks import check_texts


def attention_map(translator, source, target, options):
    """What `Translator.attention` returns; the arguments are those of that method."""
    if target is None:
        labels = translator.translate([source], **options)[0].hypotheses[0].ids
    else:
        labels = translator.tokenizer.tokenize(target, side="target", special_tokens=True)
    (row,), _ = translator._source_rows(check_texts([source]), keep_empty=True)
    if not labels:
        labels = [translator.tokenizer.end_id]
    inputs = {
        "source_ids": np.array([row]),
        "target_ids": np.array([[translator.model.start_id, *labels[:-1]]]),
    }
    scores = translator.model.inspect(inputs)["cross_attention_scores"]
    return AttentionMap(
        translator.tokenizer.tokens(row, side="source"),
        translator.tokenizer.tokens(labels, side="target"),
        np.stack([ops.convert_to_numpy(ops.cast(layer[0], "float32")) for layer in scores]),
    )
