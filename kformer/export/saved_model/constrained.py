"""The signatures of a translator's SavedModel with terms or a prefix for each text."""

import tensorflow as tf

from kformer.decoding import RowConstraints
from kformer.decoding.repetition import NO_TOKEN
from kformer.export.saved_model.graph import cut_texts, with_a_row
from kformer.text.word_pieces import without_space_sign, word_joins, word_starts


class RowSignatures:
    """What the two signatures compute besides a translation.

    Args:
        graph: `TranslationGraph`.
        vocabulary: `kformer.text.vocabulary.Vocabulary` of the target.
    """

    def __init__(self, graph, vocabulary):
        self.graph = graph
        self._vocabulary = vocabulary
        self._joins = word_joins(vocabulary, graph.model.target_vocabulary_size)

    def constrained(self, text, terms, target_language=None):
        """The best translation of each text that contains its terms.

        Args:
            text: string tensor `[B]`.
            terms: string tensor `[B, K]`; "" is none.

        Returns:
            Dict: as of `serving_default`, and `has_terms` boolean `[B]`, which is `False` where
            terms fit no translation or the vocabulary cannot write them.
        """
        batch = tf.shape(text)[0]
        terms = _one_for_each(text, terms, "terms")
        phrases, is_whole = self._phrases(with_a_row(terms))
        rows = RowConstraints(phrases=phrases)
        least = tf.reduce_sum(_lengths(phrases[:, :, 0]), axis=1)
        result = self._translate(text, target_language, rows, least)
        has_terms = is_whole[:batch] & tf.math.is_finite(result["scores"][:, 0])
        return {**self.graph.best(result), "has_terms": has_terms}

    def prefix(self, text, prefix, target_language=None):
        """The best translation of each text that begins with its prefix.

        Args:
            text, prefix: string tensors `[B]`.

        Returns:
            Dict: as of `serving_default`, and `has_prefix` boolean `[B]`, which is `False` where a
            prefix is longer than the longest translation, and so was cut, or where the vocabulary
            cannot write it, and so it was left out.
        """
        batch, options = tf.shape(text)[0], self.graph.options
        prefix = with_a_row(_one_for_each(text, prefix, "prefix"))
        prefix, was_cut = cut_texts(prefix, self.graph.max_text_bytes)
        rows = self.graph.tokenizer.tokenize(prefix, side="target", special_tokens=False)
        most = options.max_length - len(options.prefix_ids)
        # With one column at least, which no text need fill.
        ids = rows[:, :most].to_tensor(default_value=NO_TOKEN)
        is_known = tf.reduce_all(ids != self._vocabulary.unknown_id, axis=1)
        ids = tf.where(is_known[:, None], ids, NO_TOKEN)
        ids = tf.pad(ids, [[0, 0], [0, 1]], constant_values=NO_TOKEN)
        constraints = RowConstraints(prefix=ids)
        result = self._translate(text, target_language, constraints, _lengths(ids))
        has_prefix = is_known & ~was_cut & (tf.cast(rows.row_lengths(), tf.int32) <= most)
        return {**self.graph.best(result), "has_prefix": has_prefix[:batch]}

    def _translate(self, text, target_language, rows, least):
        """As `TranslationGraph.translate`, with limits raised to the tokens that rows need."""
        constraints = {"rows": rows, "joins": self._joins}

        def search(source_ids, limits, options, **of_language):
            raised = tf.maximum(limits, least + len(options.prefix_ids))
            limits = tf.where(limits > 0, tf.minimum(raised, options.max_length), limits)
            return self.graph.search(source_ids, limits, options, **constraints, **of_language)

        return self.graph.translate(text, target_language, self.graph.best_one, search)

    def _phrases(self, terms):
        """Ids `[B, K, 2, P]` of terms `[B, (K)]`, in the second form without the space sign in
        front; and boolean `[B]`, whether all terms of a row have ids. Those that do not fit the
        longest translation are left out, and cost no more than those that fit.
        """
        options = self.graph.options
        most = options.max_length - len(options.prefix_ids)
        # A term has one token at least, so that more terms than tokens do not fit.
        terms = tf.ragged.boolean_mask(terms, terms != "")[:, : most + 1].to_tensor("")
        batch, count = tf.unstack(tf.shape(terms))
        texts, was_cut = cut_texts(tf.reshape(terms, [-1]), self.graph.max_text_bytes)
        rows = self.graph.tokenizer.tokenize(texts, side="target", special_tokens=False)
        ids = rows[:, : most + 1].to_tensor(default_value=NO_TOKEN)
        ids = tf.pad(ids, [[0, 0], [0, 2]], constant_values=NO_TOKEN)  # [B K, P]
        is_known = ~was_cut & ~tf.reduce_any(ids == self._vocabulary.unknown_id, axis=1)
        ids = tf.where(is_known[:, None], ids, NO_TOKEN)
        lengths = tf.reshape(_lengths(ids), [batch, count])
        fits = tf.reshape(tf.cumsum(lengths, axis=1) <= most, [-1, 1])
        ids = tf.where(fits, ids, NO_TOKEN)
        ids = ids[:, : tf.maximum(0, tf.reduce_max(_lengths(ids))) + 2]
        is_there = (ids[:, 0] != NO_TOKEN) | (rows.row_lengths() < 1)
        is_whole = tf.reduce_all(tf.reshape(is_there, [batch, count]), axis=1)
        forms = tf.stack([ids, self._unsigned(ids)], axis=1)
        return tf.reshape(forms, [batch, count, 2, tf.shape(ids)[1]]), is_whole

    def _unsigned(self, ids):
        """`text_constraints.joined` for ids `[N, P]`; `NO_TOKEN` for phrases without that form."""
        first, second = (tf.maximum(ids[:, i : i + 1], 0) for i in (0, 1))  # [N, 1]
        starts = tf.constant(word_starts(self._vocabulary))
        unsigned = tf.constant(without_space_sign(self._vocabulary))
        start, replaced = tf.gather(starts, first), tf.gather(unsigned, first)
        is_longer = _lengths(ids)[:, None] > 1
        start = tf.where((start == 2) & is_longer, tf.gather(starts, second), start)
        shifted = tf.pad(ids[:, 1:], [[0, 0], [0, 1]], constant_values=NO_TOKEN)
        result = tf.where(replaced == -2, shifted, tf.concat([replaced, ids[:, 1:]], axis=1))
        exists = (start != 1) & (replaced != -1) & ((replaced != -2) | is_longer)
        return tf.where(exists & (ids[:, :1] != NO_TOKEN), result, NO_TOKEN)


def _lengths(ids):
    return tf.reduce_sum(tf.cast(ids != NO_TOKEN, tf.int32), axis=-1)


def _one_for_each(text, rows, name):
    """The rows of an input of a signature, if there are as many as texts."""
    counts = tf.shape(text)[0], tf.shape(rows)[0]
    message = f"{name} needs one row for each text"
    with tf.control_dependencies([tf.debugging.assert_equal(*counts, message=message)]):
        return tf.identity(rows)
