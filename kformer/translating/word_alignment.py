"""Which source word each word of a translation came from, by the cross-attention."""

from typing import NamedTuple

import numpy as np
from keras import ops

from kformer.data.word_alignment import align_words, alignment_error_rate
from kformer.models.guided_alignment import ALIGNMENT_HEAD, alignment_layer, check_guidable
from kformer.text.words import TokenWords, split_words
from kformer.translating.forced import compiled, forced_batches, pairs_of_texts
from kformer_options.text_files import check_same_length

# The key of a run's `config.json` that has the chosen attention.
ALIGNMENT = "alignment"
# The most pairs on which the attention is chosen.
_MOST_PAIRS = 500


class AlignmentSource(NamedTuple):
    """The attention that alignments are read from.

    Attributes:
        layer: int. The decoder layer.
        head: int or `None`. The head; `None` for the mean of all.
        after: bool. Whether a token's attention is that of the position that has read it, and not
            of the one that predicts it.
    """

    layer: int
    head: int | None
    after: bool


def default_source(model):
    """The attention of a model for which none was chosen: the mean of all heads of a layer."""
    return AlignmentSource(alignment_layer(model), None, False)


def guided_source(model):
    """The entry `alignment` of the config of a run whose training guides a head."""
    check_guidable(model.config.attention_kind)
    return AlignmentSource(alignment_layer(model), ALIGNMENT_HEAD, True)._asdict()


def stored_source(translator):
    """The attention that a run's config names, or the default."""
    entry = translator.config.get(ALIGNMENT)
    if entry is None:
        return default_source(translator.model)
    return AlignmentSource(entry["layer"], entry["head"], entry["after"])


def align_texts(translator, sources, targets, batch_size, progress):
    """What `Translator.align` returns; the arguments are those of that method."""
    rows, _, labels = pairs_of_texts(translator, sources, targets)
    pairs = WordPairs(translator, sources, targets, rows, labels)
    return pairs.align(stored_source(translator), batch_size, progress)


class WordPairs:
    """Pairs of texts with their tokens, and the words that each token belongs to.

    Args:
        translator: `kformer.Translator`.
        sources, targets: lists of str.
        rows, labels: lists of lists of ids of the two sides.
    """

    def __init__(self, translator, sources, targets, rows, labels):
        self._translator, self._rows, self._labels = translator, rows, labels
        self.words = [
            (split_words(s), split_words(t)) for s, t in zip(sources, targets, strict=True)
        ]
        find = [TokenWords(translator.tokenizer.vocabulary(s)) for s in ("source", "target")]
        self._members = [
            tuple(
                _membership(one(ids, w), len(w))
                for one, ids, w in zip(find, sides, words, strict=True)
            )
            for *sides, words in zip(rows, labels, self.words, strict=True)
        ]

    def align(self, source, batch_size, progress=None):
        """The alignment of each pair.

        Args:
            source: `AlignmentSource`.
            batch_size: int. The pairs that are read at once.
            progress: function, default `None`. See `forced_batches`.

        Returns:
            List of lists of (source index, target index).
        """
        found = [[] for _ in self._rows]
        heads = slice(None) if source.head is None else slice(source.head, source.head + 1)
        for i, weights in self._attention(source.layer, batch_size, progress):
            weights = weights[heads].mean(axis=0)
            found[i] = _best(self._of_words(i, weights, source.after))
        return found

    def choose(self, expected, batch_size):
        """Finds the layer and head whose alignments are most like the expected ones.

        Args:
            expected: list with an alignment for each pair.
            batch_size: int.

        Returns:
            `AlignmentSource`, and its alignment error rate.
        """
        found = {}
        for layer in range(len(self._translator.model.network.decoder_layers)):
            for i, weights in self._attention(layer, batch_size):
                means = np.concatenate([weights, weights.mean(axis=0, keepdims=True)])
                for after in (True, False):
                    for head, values in enumerate(self._of_words(i, means, after)):
                        head = head if head < len(weights) else None
                        key = AlignmentSource(layer, head, after)
                        found.setdefault(key, [[]] * len(expected))[i] = _best(values)
        errors = {key: alignment_error_rate(each, expected) for key, each in found.items()}
        best = min(errors, key=errors.get)
        return best, errors[best]

    def _attention(self, layer, batch_size, progress=None):
        """Yields the index of each pair and its weights `[N, T, S]` in a layer."""

        def make(model):
            def run(source_ids, target_ids):
                inputs = {"source_ids": source_ids, "target_ids": target_ids}
                scores = model.inspect(inputs)["cross_attention_scores"][layer]
                return ops.cast(scores, "float32")

            return run

        run = compiled(self._translator, ("attention", layer), make)
        batches = (self._translator.model, self._rows, self._labels, batch_size, progress)
        for batch, source_ids, target_ids, _ in forced_batches(*batches):
            for i, weights in zip(batch, run(source_ids, target_ids), strict=False):
                yield i, weights[:, : len(self._labels[i]), : len(self._rows[i])]

    def _of_words(self, i, weights, after):
        """Weights `[..., T, S]` between tokens as those between words, `[..., target, source]`."""
        if after:
            weights = np.concatenate([weights[..., 1:, :], weights[..., -1:, :]], axis=-2)
        of_source, of_target = self._members[i]
        sizes = np.maximum(of_target.sum(axis=0), 1)
        return (of_target / sizes).T @ weights @ of_source


def _membership(ranges, count):
    """A matrix `[tokens, words]` with 1 where a token belongs to a word."""
    members = np.zeros((len(ranges), count), "float32")
    for row, words in zip(members, ranges, strict=True):
        row[words.start : words.stop] = 1
    return members


def _best(weights):
    """The source word of each target word, as sorted pairs; weights `[target, source]`."""
    if not weights.size:
        return []
    chosen = weights.argmax(axis=1)
    has_any = weights.max(axis=1) > 0
    return sorted((int(i), j) for j, i in enumerate(chosen) if has_any[j])


def choose_source(translator, sources, targets, alignments=None, batch_size=32):
    """Chooses the attention that alignments are read from.

    Args:
        translator: `kformer.Translator` of a `Transformer`.
        sources, targets: lists of str, such as a validation set.
        alignments: list of alignments, default `None`; `None` for those of `align_words`.
        batch_size: int, default 32.

    Returns:
        Dict for a run's config: `layer`, `head`, `after`, and `error`, its alignment error rate.
    """
    rows, _, labels = pairs_of_texts(translator, sources, targets)
    if alignments is None:
        alignments = align_words(sources, targets)
    check_same_length("the sources", len(sources), "the alignments", len(alignments))
    # Evenly over the text, since neighbours are alike.
    count = min(len(rows), _MOST_PAIRS)
    chosen = np.linspace(0, len(rows) - 1, count).round().astype(int)
    parts = [[side[i] for i in chosen] for side in (sources, targets, rows, labels, alignments)]
    source, error = WordPairs(translator, *parts[:4]).choose(parts[4], batch_size)
    return {**source._asdict(), "error": round(float(error), 4)}
