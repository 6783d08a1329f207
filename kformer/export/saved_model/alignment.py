"""The signature of a translator's SavedModel that aligns the words of its translations.

Shape letters: B texts, S source tokens, T target tokens, M source words, N target words.
"""

import tensorflow as tf

# As in `kformer.text.words.split_words`: what separates words (what `str.split` takes for a space,
# and SentencePiece's sign of one), and what is a word by itself (a Chinese character or kana, with
# its combining marks, which the ranges leave out).
_SPACES = r"[\x{2581}\s\p{Z}\x{85}\x{1c}-\x{1f}]+"
_ALONE = (
    r"([\x{2E80}-\x{3029}\x{3030}-\x{3098}\x{309B}-\x{312F}\x{3190}-\x{9FFF}"
    r"\x{F900}-\x{FAFF}\x{20000}-\x{3FFFF}]\p{M}*)"
)


class WordAlignment:
    """Computes in a graph what `Translator.align` computes.

    Words are those that the tokens write, so they are normalized: `ﬁve` is `five`.

    Args:
        tokenizer: `kformer.Tokenizer`.
        source: `kformer.translating.word_alignment.AlignmentSource`. The attention that is read.
    """

    def __init__(self, tokenizer, source):
        self._source = source
        self._surfaces = {}
        for side in ("source", "target"):
            vocabulary = tokenizer.vocabulary(side)
            self._surfaces[side] = surfaces = list(vocabulary.surfaces)
            # Where it is a part of a word, an unknown token must not divide the word.
            surfaces[vocabulary.unknown_id] = surfaces[vocabulary.unknown_id].strip()

    def of_translations(self, source_ids, ids, lengths, attention):
        """The words of texts and of their translations, and which belong together.

        Args:
            source_ids: int32 tensor `[B, S]`.
            ids: int32 tensor `[B, T]`.
            lengths: int32 tensor `[B]`. The tokens of each translation.
            attention: float32 tensor `[B, layers, heads, T, S]`. Row t is of the position that
                predicts token t.

        Returns:
            Dict: `source_words` string `[B, M]` and `target_words` string `[B, N]` (rows filled up
            with empty strings), `alignment` int32 `[B, N]`: for each target word the index of its
            source word, or -1; and `source_coverage` float32 `[B, M]`: the strongest attention of
            any target word on each source word, near 0 where that was left out.
        """
        weights, head = attention[:, self._source.layer], self._source.head
        weights = tf.reduce_mean(weights, axis=1) if head is None else weights[:, head]  # [B, T, S]
        if self._source.after:
            # A token is read at the position after the one that predicts it, except the last.
            last = tf.maximum(lengths[:, None] - 1, 0)
            following = tf.minimum(tf.range(1, tf.shape(ids)[1] + 1), last)
            weights = tf.gather(weights, following, batch_dims=1)
        source_words, of_source = self._words(source_ids, "source")
        target_words, of_target = self._words(ids, "target")
        of_target /= tf.maximum(tf.reduce_sum(of_target, axis=1, keepdims=True), 1.0)
        scores = tf.einsum("btn,bts,bsm->bnm", of_target, weights, of_source)
        # Sources of a batch of empty texts have no word, but a maximum needs one.
        scores = tf.pad(scores, [[0, 0], [0, 0], [0, 1]])
        best = tf.argmax(scores, axis=2, output_type=tf.int32)
        best = tf.where(tf.reduce_max(scores, axis=2) > 0, best, -1)
        coverage = tf.reduce_max(tf.pad(scores, [[0, 0], [0, 1], [0, 0]]), axis=1)[:, :-1]
        return {
            "source_words": source_words,
            "target_words": target_words,
            "alignment": best,
            "source_coverage": coverage,
        }

    def _words(self, ids, side):
        """The words that ids `[B, S]` write, string `[B, M]`, and which token writes a part of
        which word, float32 `[B, S, M]`.
        """
        table = tf.constant(self._surfaces[side])
        last = tf.shape(table)[0] - 1
        surfaces = tf.gather(table, tf.where((ids >= 0) & (ids < last), ids, last))
        characters = _characters(surfaces)
        text = tf.strings.regex_replace(tf.strings.reduce_join(characters, axis=1), _SPACES, " ")
        text = tf.strings.regex_replace(text, _ALONE, r" \1 ")
        words = tf.strings.split(text).to_tensor(default_value="")
        (begins, ends), (starts, stops) = (
            _spans(tf.strings.regex_replace(characters, _SPACES, "")),
            _spans(words),
        )
        for _ in range(3):  # A token without a first byte goes on with the character before it.
            goes_on = (surfaces != "") & (characters == "")
            begins, ends = (tf.where(goes_on, tf.roll(x, 1, axis=1), x) for x in (begins, ends))
        begins, ends = begins[:, :, None], ends[:, :, None]
        starts, stops = starts[:, None], stops[:, None]
        # A token that writes spaces alone belongs to the word after it.
        is_within = (surfaces != "")[:, :, None] & (starts <= begins) & (begins < stops)
        return words, tf.cast(is_within | ((begins < stops) & (ends > starts)), tf.float32)


def _characters(surfaces):
    """The characters whose first bytes tokens write, string `[B, T]`, of their bytes `[B, T]`.

    Bytes that are not UTF-8 write U+FFFD, as in decoding.
    """
    text = tf.strings.reduce_join(surfaces, axis=1)
    codes, offsets = tf.strings.unicode_decode_with_offsets(
        text, "UTF-8", errors="replace", replacement_char=0xFFFD
    )
    sizes = tf.reshape(tf.strings.length(surfaces), [-1])
    of_bytes = tf.repeat(tf.range(tf.size(sizes, tf.int64)), sizes)  # The token of each byte.
    starts = tf.cumsum(tf.strings.length(text), exclusive=True)
    first = tf.cast(offsets.values, tf.int32) + tf.gather(starts, offsets.value_rowids())
    rows, count = tf.gather(of_bytes, first), tf.size(sizes, tf.int64)
    codes = tf.RaggedTensor.from_value_rowids(codes.values, rows, count)
    return tf.reshape(tf.strings.unicode_encode(codes, "UTF-8"), tf.shape(surfaces))


def _spans(strings):
    """Where strings `[B, K]` begin and end, in bytes, when they are joined."""
    lengths = tf.strings.length(strings)
    ends = tf.cumsum(lengths, axis=1)
    return ends - lengths, ends
