"""Batches of given translations, which a model reads in one forward pass."""

import numpy as np

from kformer.decoding.batching import padded_length, padded_rows
from kformer.text.text_bound import byte_bound, whole_texts
from kformer.translating.translation import padded
from kformer.utils import backend
from kformer.utils.checks import check_texts, check_whole
from kformer_options.text_files import check_same_length


def pairs_of_texts(translator, sources, targets):
    """Checks and tokenizes given translations.

    Args:
        translator: `kformer.Translator`.
        sources, targets: lists of str of one length.

    Returns:
        The source ids, which sources were cut, and the labels: the ids of the targets, special
        tokens included. Lists with an entry for each pair.

    Raises:
        ValueError: the sides differ in length, or a target is longer than the model's limit.
    """
    sources, targets = check_texts(sources), check_texts(targets)
    check_same_length("the sources", len(sources), "the targets", len(targets))
    model, options = translator.model, translator.options
    rows, truncated = translator._source_rows(sources, keep_empty=True)
    targets = whole_texts(targets, byte_bound(model.max_length, options.max_text_bytes))
    labels = translator.tokenizer.tokenize(targets, side="target", special_tokens=True)
    for i, row in enumerate(labels):
        if len(row) > model.max_length:
            raise ValueError(
                f"Target {i + 1} has {len(row)} tokens, more than the model's limit of "
                f"{model.max_length}; split it."
            )
    return rows, truncated, labels


def counted_part(translator, labels):
    """The tokens of a target that a search chooses and whose probabilities count, as a slice.

    Forced tokens at the beginning do not count, nor do tokens after the end token, which some
    models have.

    Args:
        translator: `kformer.Translator`.
        labels: list of int. The tokens of the target.
    """
    prefix, tokenizer = translator.options.prefix_ids, translator.tokenizer
    begin = len(prefix) if prefix == tokenizer.target_prefix else 0
    ends = [i for i in range(begin, len(labels)) if labels[i] == tokenizer.end_id]
    return slice(begin, ends[0] + 1 if ends else len(labels))


def forced_batches(model, rows, labels, batch_size, progress=None):
    """Yields batches of pairs of similar lengths, the longest first. Pairs without labels are left
    out.

    Args:
        model: `Transformer` or `Ensemble`.
        rows, labels: lists of lists of ids, as `pairs_of_texts` returns them.
        batch_size: int. The most pairs of a batch.
        progress: function, default `None`. It is called after each batch with the number of pairs
            done.

    Yields:
        The indices of the pairs, and int32 arrays `source_ids` `[B, S]`, `target_ids` and `labels`
        `[B, T]`. Row i of the decoder's output predicts label i. Where shapes are compiled there
        are more rows than pairs.
    """
    batch_size = check_whole("batch_size", batch_size)
    filled = [i for i, row in enumerate(labels) if row]
    order = sorted(filled, key=lambda i: -len(rows[i]) - len(labels[i]))
    done = len(labels) - len(filled)
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        sides = [padded([side[i] for i in batch], model.pad_id) for side in (rows, labels)]
        if backend.uses_static_shapes():
            sides = [_padded_for_compiler(side, model) for side in sides]
        starts = np.full((len(sides[1]), 1), model.start_id, "int32")
        yield batch, sides[0], np.concatenate([starts, sides[1][:, :-1]], axis=1), sides[1]
        done += len(batch)
        if progress is not None:
            progress(done)


def _padded_for_compiler(ids, model):
    """Ids `[B, L]` with numbers of rows and columns that are some of a few."""
    rows, length = ids.shape
    more = padded_rows(rows) - rows, padded_length(length, model.max_length) - length
    return np.pad(ids, [(0, more[0]), (0, more[1])], constant_values=model.pad_id)


def compiled(translator, name, make):
    """A function that a translator keeps, compiled when it is first needed.

    Args:
        translator: `kformer.Translator`.
        name: str, or a tuple. The key by which it is kept.
        make: function of the model to a function for `backend.compile_function`.
    """
    kept = translator._compiled
    if name not in kept:
        kept[name] = backend.compile_function(make(translator.model), translator.model)
    return kept[name]
