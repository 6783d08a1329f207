"""Pairs of texts, a source and its translation, which a model reads in one forward pass."""

import functools
from typing import NamedTuple

import numpy as np
from keras import ops

from kformer.decoding import Scorer
from kformer.decoding.batching import pad_shape
from kformer.text.text_bound import byte_bound, cut_texts, source_rows
from kformer.translating.translation import AttentionMap, Score
from kformer.utils import backend
from kformer.utils.checks import check_texts, check_whole
from kformer.utils.rows import pad_rows
from kformer_options.text_files import check_same_length


class TextPairs(NamedTuple):
    """Texts and their translations, with their tokens. All lists have an entry for each pair.

    Attributes:
        sources, targets: lists of str.
        rows, labels: lists of lists of int. The tokens of both sides, special tokens included.
        counted: list of slice. The labels whose probabilities count, see `counted_labels`.
        truncated: list of bool. Whether the source was longer than the model's limit and was cut.
    """

    sources: list
    targets: list
    rows: list
    labels: list
    counted: list
    truncated: list


class PairReader:
    """Reads pairs of texts with a model.

    Args:
        model: `kformer.Transformer`, or a `kformer.models.Ensemble`.
        tokenizer: `kformer.Tokenizer`.
    """

    def __init__(self, model, tokenizer):
        self.model, self.tokenizer = model, tokenizer
        self._functions, self._scorer = {}, Scorer(model)

    def tokenize(self, sources, targets, options, keep_long=False):
        """Checks and tokenizes pairs of texts.

        Args:
            sources, targets: lists of str of one length.
            options: `SearchOptions`.
            keep_long: bool, default `False`. Whether a target longer than the model's limit has no
                labels, so that `run` leaves it out, and is no error.

        Returns:
            `TextPairs`.

        Raises:
            ValueError: the sides differ in length, or a target is longer than the model's limit.
        """
        sources, targets = check_texts(sources), check_texts(targets)
        check_same_length("the sources", len(sources), "the targets", len(targets))
        most = self.model.max_length
        bound = byte_bound(most, options.max_text_bytes)
        cut, is_too_long = cut_texts(targets, bound)
        if any(is_too_long) and not keep_long:
            raise ValueError(
                f"Target {is_too_long.index(True) + 1} has more than {bound} bytes; split it, or "
                "raise max_text_bytes of the translator's options."
            )
        labels = self.tokenizer.tokenize(cut, side="target", special_tokens=True)
        for i, row in enumerate(labels):
            if (is_too_long[i] or len(row) > most) and keep_long:
                labels[i] = []
            elif len(row) > most:
                raise ValueError(
                    f"Target {i + 1} has {len(row)} tokens, more than the model's limit of "
                    f"{most}; split it."
                )
        return self.pairs(sources, targets, labels, options)

    def pairs(self, sources, targets, labels, options):
        """Returns the `TextPairs` of texts whose targets are tokenized already."""
        limits = (self.model.max_length, options.max_text_bytes)
        rows, truncated = source_rows(self.tokenizer, sources, *limits, keep_empty=True)
        counted = [counted_labels(self.tokenizer, options.prefix_ids, row) for row in labels]
        return TextPairs(sources, targets, rows, labels, counted, truncated)

    def run(self, name, function, pairs, batch_size, progress=None, arguments=()):
        """Runs a function of the model, compiled when it is first needed, on pairs.

        Batches have pairs of similar lengths, the longest first. Pairs without labels are left
        out. Where shapes are compiled, a batch has more rows than pairs.

        Args:
            name: str, or a tuple. The key of the compiled function.
            function: function of the model, `source_ids` `[B, S]`, `target_ids` and `labels`
                `[B, T]`, and the arguments, to a tuple of tensors `[B, ...]`. Row t of the
                decoder's output predicts label t.
            pairs: `TextPairs`.
            batch_size: int. The most pairs of a batch.
            progress: function, default `None`. It is called after each batch with the number of
                pairs done.
            arguments: tuple of arrays, default `()`.

        Yields:
            The index of each pair, and the list of its arrays, the first axis taken off.
        """
        model = self.model
        if name not in self._functions:
            function = functools.partial(function, model)
            self._functions[name] = backend.compile_function(function, model)
        for batch, source_ids, labels in self._batches(pairs, batch_size, progress):
            if backend.uses_static_shapes():
                source_ids, labels = (pad_shape(ids, model) for ids in (source_ids, labels))
            starts = np.full((len(labels), 1), model.start_id, "int32")
            target_ids = np.concatenate([starts, labels[:, :-1]], axis=1)
            outputs = self._functions[name](source_ids, target_ids, labels, *arguments)
            for row, i in enumerate(batch):
                yield i, [values[row] for values in outputs]

    def _batches(self, pairs, batch_size, progress):
        """Yields the indices of each batch's pairs, and their padded source ids and labels."""
        batch_size, sides = check_whole("batch_size", batch_size), (pairs.rows, pairs.labels)
        filled = [i for i, row in enumerate(pairs.labels) if row]
        order = sorted(filled, key=lambda i: -len(pairs.rows[i]) - len(pairs.labels[i]))
        done = len(pairs.labels) - len(filled)
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            yield batch, *(pad_rows([side[i] for i in batch], self.model.pad_id) for side in sides)
            done += len(batch)
            if progress is not None:
                progress(done)

    def score(self, pairs, batch_size, progress=None):
        """Returns a list of `Score`; arguments are those of `run`."""
        scores = [Score(0.0, was_cut) for was_cut in pairs.truncated]
        for batch, source_ids, labels in self._batches(pairs, batch_size, progress):
            lengths = np.array([pairs.counted[i].stop for i in batch])
            values = self._scorer(source_ids, labels, lengths, pairs.counted[batch[0]].start)
            for i, value in zip(batch, values, strict=True):
                scores[i] = Score(value, pairs.truncated[i])
        return scores

    def attention(self, source, labels, options):
        """Returns the `AttentionMap` of a translation.

        Args:
            source: str.
            labels: list of int. The tokens of the translation.
            options: `SearchOptions`.
        """
        labels = labels or [self.tokenizer.end_id]
        (row,) = self.pairs(check_texts([source]), [""], [labels], options).rows
        weights = attention_weights(self.model, row, [self.model.start_id, *labels[:-1]])["cross"]
        tokens = [self.tokenizer.tokens(*side) for side in ((row, "source"), (labels, "target"))]
        return AttentionMap(*tokens, weights)


def attention_weights(model, source_ids, target_ids):
    """Returns the attention of one pair of texts, from one forward pass.

    Args:
        model: `kformer.Transformer`.
        source_ids, target_ids: lists of int. What encoder and decoder read.

    Returns:
        Dict of "cross", "encoder" and "decoder" to a float32 array `[layers, N, queries, keys]`.
    """
    inputs = {"source_ids": source_ids, "target_ids": target_ids}
    outputs = model.inspect({name: np.array([ids], "int32") for name, ids in inputs.items()})
    weights = {}
    for kind in ("cross", "encoder", "decoder"):
        # A decoder with an SSRU has no self-attention.
        layers = outputs.get(f"{kind}_attention_scores", [])
        layers = [ops.convert_to_numpy(ops.cast(scores[0], "float32")) for scores in layers]
        weights[kind] = np.stack(layers) if layers else np.zeros((0, 0, 0, 0), "float32")
    return weights


def counted_labels(tokenizer, prefix_ids, labels):
    """Returns the slice of a target's tokens that a search chooses and whose probabilities count.

    Forced tokens at the beginning do not count, nor do tokens after the end token, which some
    models have.

    Args:
        tokenizer: `kformer.Tokenizer`.
        prefix_ids: tuple of int. The forced tokens.
        labels: list of int. The tokens of the target.
    """
    begin = len(prefix_ids) if prefix_ids == tokenizer.target_prefix else 0
    ends = [i for i in range(begin, len(labels)) if labels[i] == tokenizer.end_id]
    return slice(begin, ends[0] + 1 if ends else len(labels))
