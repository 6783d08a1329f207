"""Which source word each word of a translation came from, by the cross-attention."""

from typing import NamedTuple

import numpy as np
from keras import ops

from kformer.data.word_alignment import alignment_error_rate
from kformer.models.guided_alignment import ALIGNMENT_HEAD, alignment_layer, check_guidable
from kformer.text.words import TokenWords, split_words
from kformer.translating.confidence import CONFIDENCE
from kformer.translating.pairs import TextPairs
from kformer_options.text_files import check_same_length

# The key of a run's `config.json` that has the chosen attention.
ALIGNMENT = "alignment"
# The key that has the weights of `kformer.translating.coverage`.
COVERAGE = "coverage"
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


def guided_source(model):
    """Returns the entry `alignment` of the config of a run whose training guides a head."""
    check_guidable(model.config.attention_kind)
    return AlignmentSource(alignment_layer(model), ALIGNMENT_HEAD, True)._asdict()


def stored_source(translator):
    """Returns the attention of a translator's config, or else the mean of a layer's heads."""
    entry = translator.config.get(ALIGNMENT)
    if entry is None:
        return AlignmentSource(alignment_layer(translator.model), None, False)
    return AlignmentSource(entry["layer"], entry["head"], entry["after"])


def without_calibration(config):
    """Returns a run's config without what `Translator.calibrate` measured, which is true of one
    model alone.

    Args:
        config: dict.
    """
    # A head that guided alignment trained stays, and has no measured error.
    is_measured = "error" in config.get(ALIGNMENT, {})
    names = {CONFIDENCE, COVERAGE} | ({ALIGNMENT} if is_measured else set())
    return {name: value for name, value in config.items() if name not in names}


class WordPairs:
    """The words of pairs of texts, and the tokens that write them.

    Args:
        reader: `PairReader`.
        pairs: `TextPairs`.

    Attributes:
        words: list of pairs of lists of str. The words of each source and target.
        members: list of pairs of float arrays `[tokens, words]`, with 1 where a token belongs to a
            word of the source or target.
    """

    def __init__(self, reader, pairs):
        self._reader, self._pairs = reader, pairs
        texts = zip(pairs.sources, pairs.targets, strict=True)
        self.words = [(split_words(source), split_words(target)) for source, target in texts]
        finders = [TokenWords(reader.tokenizer.vocabulary(s)) for s in ("source", "target")]
        self.members = []
        for *sides, words in zip(pairs.rows, pairs.labels, self.words, strict=True):
            matrices = []
            for find, ids, names in zip(finders, sides, words, strict=True):
                matrices.append(np.zeros((len(ids), len(names)), "float32"))
                for row, indices in zip(matrices[-1], find(ids, names), strict=True):
                    row[indices.start : indices.stop] = 1
            self.members.append(matrices)

    def align(self, source, batch_size, progress=None):
        """Returns the alignment of each pair: a list of lists of (source index, target index).

        Args:
            source: `AlignmentSource`.
            batch_size: int. The pairs that are read at once.
            progress: function, default `None`. As for `PairReader.run`.
        """
        alignments = [[] for _ in self.words]
        heads = slice(None) if source.head is None else slice(source.head, source.head + 1)
        for i, weights in self._attention(source.layer, batch_size, progress):
            weights = weights[heads].mean(axis=0)
            alignments[i] = _best(self._of_words(i, weights, source.after))
        return alignments

    def choose(self, expected, batch_size):
        """Finds the layer and head whose alignments are most like the expected ones.

        Args:
            expected: list with an alignment for each pair.
            batch_size: int.

        Returns:
            `AlignmentSource`, and its alignment error rate.
        """
        alignments = {}
        for layer in range(len(self._reader.model.network.decoder_layers)):
            for i, weights in self._attention(layer, batch_size):
                means = np.concatenate([weights, weights.mean(axis=0, keepdims=True)])
                for after in (True, False):
                    for head, values in enumerate(self._of_words(i, means, after)):
                        head = head if head < len(weights) else None
                        key = AlignmentSource(layer, head, after)
                        alignments.setdefault(key, [[]] * len(expected))[i] = _best(values)
        errors = {key: alignment_error_rate(each, expected) for key, each in alignments.items()}
        best = min(errors, key=errors.get)
        return best, errors[best]

    def _attention(self, layer, batch_size, progress=None):
        """Yields the index of each pair and its weights `[N, T, S]` in a layer."""

        def scores(model, source_ids, target_ids, labels):
            inputs = {"source_ids": source_ids, "target_ids": target_ids}
            scores = model.inspect(inputs)["cross_attention_scores"][layer]
            return (ops.cast(scores, "float32"),)

        name, pairs = ("attention", layer), self._pairs
        for i, (weights,) in self._reader.run(name, scores, pairs, batch_size, progress):
            yield i, weights[:, : len(pairs.labels[i]), : len(pairs.rows[i])]

    def _of_words(self, i, weights, after):
        """Weights `[..., T, S]` between tokens as those between words, `[..., target, source]`."""
        if after:
            weights = np.concatenate([weights[..., 1:, :], weights[..., -1:, :]], axis=-2)
        of_source, of_target = self.members[i]
        sizes = np.maximum(of_target.sum(axis=0), 1)
        return (of_target / sizes).T @ weights @ of_source


def _best(weights):
    """Returns the source word of each target word, as sorted pairs; weights `[target, source]`."""
    if not weights.size:
        return []
    chosen = weights.argmax(axis=1)
    has_any = weights.max(axis=1) > 0
    return sorted((int(i), j) for j, i in enumerate(chosen) if has_any[j])


def choose_source(reader, pairs, alignments, batch_size=32):
    """Chooses the attention that alignments are read from.

    Args:
        reader: `PairReader` of a `Transformer`.
        pairs: `TextPairs`, such as a validation set.
        alignments: list with an alignment for each pair.
        batch_size: int, default 32.

    Returns:
        Dict for a run's config: `layer`, `head`, `after`, and `error`, its alignment error rate.
    """
    count = len(pairs.sources)
    check_same_length("the sources", count, "the alignments", len(alignments))
    # Evenly over the text, since neighbours are alike.
    chosen = np.linspace(0, count - 1, min(count, _MOST_PAIRS)).round().astype(int)
    sample = TextPairs(*([side[i] for i in chosen] for side in pairs))
    expected = [alignments[i] for i in chosen]
    source, error = WordPairs(reader, sample).choose(expected, batch_size)
    return {**source._asdict(), "error": round(float(error), 4)}
