"""The signature of a translator's SavedModel that aligns the words of its translations.

Shape letters: B texts, S source tokens, T target tokens, M source words, N target
words.
"""

import tensorflow as tf

from kformer.export.saved_model.tokenizer import valid_text
from kformer.text.normalization import SPACE_SIGN

# What separates words, as `str.split` does, and what is a word by itself, as
# `kformer.text.words.split_words` does: Chinese characters and kana, with their combining marks.
_SPACES = r"[\s\p{Z}\x{85}\x{1c}-\x{1f}]+"
_ALONE = r"([\x{2E80}-\x{312F}\x{3190}-\x{9FFF}\x{F900}-\x{FAFF}\x{20000}-\x{3FFFF}]\p{M}*)"


class WordAlignment:
    """Computes in a graph what `Translator.align` computes.

    Words are those that the tokens write, so they are normalized: `ﬁve` is `five`.

    Args:
        tokenizer: `kformer.Tokenizer`.
        source: `kformer.translating.word_alignment.AlignmentSource`. The attention that is read.
        pad_id: int.
    """

    def __init__(self, tokenizer, source, pad_id):
        self._source, self._pad_id = source, pad_id
        self._surfaces = {}
        for side in ("source", "target"):
            vocabulary = tokenizer.vocabulary(side)
            self._surfaces[side] = surfaces = list(vocabulary.surfaces)
            # Where it is a part of a word, an unknown token must not divide the word.
            surfaces[vocabulary.unknown_id] = surfaces[vocabulary.unknown_id].strip()

    def of_translations(self, source_ids, ids, attention):
        """The words of texts and of their translations, and which belong together.

        Args:
            source_ids: int32 tensor `[B, S]`.
            ids: int32 tensor `[B, T]`.
            attention: float32 tensor `[B, layers, heads, T, S]`. Row t is of the position that
                predicts token t.

        Returns:
            Dict: `source_words` string `[B, M]` and `target_words` string `[B, N]` (rows filled up
            with empty strings) and `alignment` int32 `[B, N]`: for each target word the index of
            its source word, or -1.
        """
        weights, head = attention[:, self._source.layer], self._source.head
        weights = tf.reduce_mean(weights, axis=1) if head is None else weights[:, head]  # [B, T, S]
        if self._source.after:
            # A token is read at the position after the one that predicts it, except the last.
            last = tf.reduce_sum(tf.cast(ids != self._pad_id, tf.int32), axis=1, keepdims=True) - 1
            following = tf.minimum(tf.range(1, tf.shape(ids)[1] + 1), tf.maximum(last, 0))
            weights = tf.gather(weights, following, batch_dims=1)
        source_words, of_source = self._words(source_ids, "source")
        target_words, of_target = self._words(ids, "target")
        of_target /= tf.maximum(tf.reduce_sum(of_target, axis=1, keepdims=True), 1.0)
        scores = tf.einsum("btn,bts,bsm->bnm", of_target, weights, of_source)
        # Sources of a batch of empty texts have no word, but a maximum needs one.
        scores = tf.pad(scores, [[0, 0], [0, 0], [0, 1]])
        best = tf.argmax(scores, axis=2, output_type=tf.int32)
        best = tf.where(tf.reduce_max(scores, axis=2) > 0, best, -1)
        return {"source_words": source_words, "target_words": target_words, "alignment": best}

    def _words(self, ids, side):
        """The words that ids `[B, S]` write, string `[B, M]`, and which token writes a part of
        which word, float32 `[B, S, M]`.
        """
        table = tf.constant(self._surfaces[side])
        last = tf.shape(table)[0] - 1
        surfaces = tf.gather(table, tf.where((ids >= 0) & (ids < last), ids, last))
        surfaces = tf.strings.regex_replace(surfaces, SPACE_SIGN, " ")
        text = tf.strings.reduce_join(surfaces, axis=1)
        text = valid_text(text)
        text = tf.strings.regex_replace(text, _SPACES, " ")
        text = tf.strings.regex_replace(text, _ALONE, r" \1 ")
        words = tf.strings.split(text).to_tensor(default_value="")
        written = tf.strings.regex_replace(surfaces, _SPACES, "")
        (begins, ends), (starts, stops) = _spans(written), _spans(words)
        begins, ends = begins[:, :, None], ends[:, :, None]
        starts, stops = starts[:, None], stops[:, None]
        # A token that writes spaces alone belongs to the word after it.
        is_within = (surfaces != "")[:, :, None] & (starts <= begins) & (begins < stops)
        return words, tf.cast(is_within | ((begins < stops) & (ends > starts)), tf.float32)


def _spans(strings):
    """Where strings `[B, K]` begin and end, in bytes, if they stand one after the other."""
    lengths = tf.strings.length(strings)
    ends = tf.cumsum(lengths, axis=1)
    return ends - lengths, ends
