"""The tokenizer in a TensorFlow graph: the same ids and the same text as `kformer.Tokenizer`.

Only ops of core TensorFlow and of tensorflow-text are used, which TensorFlow Serving links. This
module needs both."""

import re

import tensorflow as tf
import tensorflow_text as tf_text

from kformer.text.added_words import FENCE
from kformer.text.languages import TAG_PATTERN
from kformer.text.normalization import SPACE_SIGN
from kformer.utils.checks import check_choice, shown
from kformer_options.names import named

# Bytes that no valid UTF-8 has: around an added word in a text, and before it.
_EDGE, _WORD = b"\xff", b"\xfe"


class GraphTokenizer(tf.Module):
    """A `tf.Module` that tokenizes and detokenizes in a graph.

    Assign it to an attribute of the module that is exported, and call its methods in that module's
    `tf.function`s. Each method takes an empty batch, and no string can make it fail or change
    another row.

    - `tokenize(texts, side="source", special_tokens=True, prefixes=None)`: `tf.string` [B] to
      ragged int32 [B, (S)]. `prefixes`, int32 [B, P] filled up with -1, take the place of the
      tokenizer's own prefix.
    - `detokenize(ids, side="target")`: ragged or dense integers [B, (T)], or dense [..., T], to
      `tf.string` [B] or [...]. Control ids write nothing, so padding may stay.
    - `tokens(ids, side="target")`: ids of any shape, ragged or dense, to the pieces as `tf.string`
      of the same shape.

    SentencePiece segments the text. Ids and text are looked up in lists (see
    `kformer.text.vocabulary.Vocabulary`), which are constants in the graph. A SentencePiece model
    that serves both sides is stored once.

    Args:
        tokenizer: `kformer.Tokenizer`.

    Example:

    ```python
    import tensorflow as tf

    from kformer.export.saved_model.tokenizer import GraphTokenizer

    module = tf.Module()
    module.tokenizer = GraphTokenizer(kformer.Tokenizer.load("runs/en-de/tokenizer"))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def back_and_forth(texts):
        return module.tokenizer.detokenize(module.tokenizer.tokenize(texts), side="source")

    tf.saved_model.save(module, "saved_models/echo/1", signatures=back_and_forth)
    ```
    """

    def __init__(self, tokenizer):
        super().__init__()
        sides = source, target = tokenizer.vocabulary("source"), tokenizer.vocabulary("target")
        models = {
            model: tf_text.SentencepieceTokenizer(model, out_type=tf.int32)
            for model in dict.fromkeys(side.model for side in sides)
        }
        vocabularies = {
            side: _GraphVocabulary(side, models[side.model]) for side in dict.fromkeys(sides)
        }
        self._source, self._target = vocabularies[source], vocabularies[target]
        self._prefixes = {"source": tokenizer.source_prefix, "target": tokenizer.target_prefix}
        self._suffixes = {"source": tokenizer.source_suffix, "target": tokenizer.target_suffix}
        self._tags = None
        if tokenizer.language_tags:
            # With one more tag, which no text has, the list is never empty: the graph gathers from
            # it.
            tags = {"": tokenizer.unknown_id, **tokenizer.tag_ids}
            self._tags = tf.constant([tag.encode("utf-8") for tag in tags])
            self._tag_ids = tf.constant(list(tags.values()), tf.int32)
            self._unknown_id = tokenizer.unknown_id
            self._only_known_tags = tokenizer.language_tags == "known"

    def tokenize(self, texts, side="source", special_tokens=True, prefixes=None):
        vocabulary = self._side(side)
        texts = tf.convert_to_tensor(texts, tf.string)
        columns = []
        if side == "source" and self._tags is not None:
            has_tag, tags, texts = self._split_tags(texts)
            columns.append(tags)
        ids = vocabulary.encode(texts)
        columns.append(ids)
        if special_tokens:
            rows = tf.ones([ids.nrows()], tf.bool)
            # A text's own tag replaces the prefix.
            prefixed = rows if len(columns) == 1 else ~has_tag
            if prefixes is None:
                prefix = _repeated(self._prefixes[side], prefixed)
            else:
                prefix = tf.ragged.boolean_mask(prefixes, (prefixes >= 0) & prefixed[:, None])
            columns.insert(0, prefix)
            columns.append(_repeated(self._suffixes[side], rows))
        return ids if len(columns) == 1 else tf.concat(columns, axis=1)

    def _split_tags(self, texts):
        """Whether each text begins with a language tag `[B]`, the tag's id `[B, (0 or 1)]`, the
        texts without.
        """
        texts = valid_text(texts)
        untagged = tf.strings.regex_replace(texts, TAG_PATTERN, "", replace_global=False)
        sizes = tf.strings.length(texts) - tf.strings.length(untagged)
        tags = tf.strings.substr(texts, tf.zeros_like(sizes), sizes)
        equal = tags[:, None] == self._tags[None, :]
        is_known, has_tag = tf.reduce_any(equal, axis=1), sizes > 0
        if self._only_known_tags:
            has_tag &= is_known
            untagged = tf.where(has_tag, untagged, texts)
        ids = tf.gather(self._tag_ids, tf.argmax(equal, axis=1))
        ids = tf.where(is_known, ids, self._unknown_id)
        ids = tf.RaggedTensor.from_row_lengths(ids[has_tag], tf.cast(has_tag, tf.int64))
        return has_tag, ids, untagged

    def detokenize(self, ids, side="target"):
        return self._side(side).decode(ids)

    def tokens(self, ids, side="target"):
        vocabulary = self._side(side)
        return vocabulary.look_up(vocabulary.pieces, ids)

    def _side(self, side):
        is_source = check_choice("side", side, ("source", "target")) == "source"
        return self._source if is_source else self._target


class _GraphVocabulary(tf.Module):
    """One side: the lists of a `Vocabulary` as tensors, beside its SentencePiece model."""

    def __init__(self, vocabulary, sentencepiece):
        super().__init__()
        self._sentencepiece = sentencepiece
        self._normalization = vocabulary.normalization
        self._leading_space_signs = vocabulary.leading_space_signs
        self._size, self._unknown_id = len(vocabulary), vocabulary.unknown_id
        id_map = vocabulary.id_map
        self._id_map = None if id_map is None else tf.constant(id_map, tf.int32)
        self._words = self._foreign_pieces = None
        if vocabulary.splitter is not None:
            raise ValueError(
                "A SavedModel cannot split texts as OpenNMT's tokenizer does: import the model "
                f"with {named('pretokenized')}, so that texts are tokens with spaces between them."
            )
        if vocabulary.normalization.name == "tokens":
            ids = {piece.encode(): i for piece, i in vocabulary.word_ids.items()}
            self._words = _table(ids, vocabulary.unknown_id)
        if vocabulary.foreign_pieces:
            foreign = {piece.encode(): i for piece, i in vocabulary.foreign_pieces.items()}
            self._foreign_pieces = _table(foreign, vocabulary.unknown_id)
        self._added_words = vocabulary.added_words
        if self._added_words is not None:
            _check_added_words(vocabulary)
            words = self._added_words.ids.items()
            self._word_ids = _table({_WORD + word.encode(): i for word, i in words}, -1)
            self._space_id = vocabulary.space_id
        if vocabulary.foreign_pieces or self._added_words is not None:
            # The op returns ids or pieces; which of them is fixed when it is made.
            self._piecewise = tf_text.SentencepieceTokenizer(vocabulary.model, out_type=tf.string)
        self._surfaces = tf.constant(vocabulary.surfaces)
        pieces = [piece.encode("utf-8") for piece in vocabulary.pieces]
        self.pieces = tf.constant([*pieces, pieces[vocabulary.unknown_id]])

    def encode(self, texts):
        """Ragged int32 ids `[B, (S)]` of texts `[B]`."""
        texts = _replace_all(valid_text(texts), self._normalization.before)
        if self._added_words is None:
            return self._segment(texts)
        parts = self._split(texts)
        words = self._word_ids.lookup(parts.values)
        is_word = words >= 0
        columns = [
            self._segment(tf.where(is_word, "", parts.values)),
            tf.RaggedTensor.from_row_lengths(words[is_word], tf.cast(is_word, tf.int64)),
        ]
        if self._added_words.keeps_spaces:
            columns.append(_repeated((self._space_id,), self._writes_space(parts.values, words)))
        return parts.with_values(tf.concat(columns, axis=1)).merge_dims(1, 2)

    def _split(self, texts):
        """Parts `[B, (P)]` of texts `[B]`, as `AddedWords` splits them; words begin with `_WORD`.

        The first and the last part of a text is no word.
        """
        parts = tf.RaggedTensor.from_tensor(texts[:, None])
        for name, pattern in self._added_words.patterns.items():
            is_word = tf.strings.substr(parts.values, 0, 1) == _WORD
            before = parts.values if name == "raw" else self._normalize(parts.values)
            marked = tf.strings.regex_replace(before, pattern, _EDGE + _WORD + rb"\1" + _EDGE)
            marked = tf.where(is_word | (marked == before), parts.values, marked)
            parts = parts.with_values(tf.strings.split(marked, _EDGE)).merge_dims(1, 2)
        return parts

    def _normalize(self, texts):
        pieces = self._piecewise.tokenize(tf.strings.join([FENCE, texts, FENCE]))
        joined = tf.strings.reduce_join(pieces, axis=-1)
        joined = tf.strings.regex_replace(joined, SPACE_SIGN, " ")
        return tf.strings.regex_replace(joined, rf"(?s)\A *{FENCE}(.*){FENCE} *\z", r"\1")

    def _writes_space(self, parts, words):
        """As `AddedWords.writes_space`, of parts `[P]` and the words' ids among them, else -1."""
        added, texts = self._added_words, self._normalize(parts)

        def is_among(ids, chosen):
            chosen = tf.constant(sorted(chosen), ids.dtype, (len(chosen),))
            return tf.reduce_any(ids[:, None] == chosen, axis=1)

        after, before = tf.roll(words, -1, axis=0), tf.roll(words, 1, axis=0)
        is_space = tf.strings.regex_full_match(texts, " *")
        return (
            (words < 0)
            & (after >= 0)
            & tf.strings.regex_full_match(texts, r"(?s).* ")
            & ~is_among(after, added.lstrip)
            & ~(is_space & is_among(before, added.rstrip))
        )

    def _segment(self, texts):
        if self._words is not None:
            words = tf.strings.split(texts)
            return words.with_values(self._words.lookup(words.values))
        ids = self._sentencepiece.tokenize(texts)
        if self._id_map is not None:
            ids = ids.with_values(tf.gather(self._id_map, ids.values))
        return ids if self._foreign_pieces is None else self._look_up_unknown(texts, ids)

    def _look_up_unknown(self, texts, ids):
        """As `Vocabulary` does: segments the rows with an unknown id again, into pieces."""
        again = tf.reduce_any(ids.with_values(ids.values == self._unknown_id), axis=1)
        pieces = self._piecewise.tokenize(tf.boolean_mask(texts, again)).values
        replaced = self._foreign_pieces.lookup(pieces)
        indices = tf.where(tf.repeat(again, ids.row_lengths()))
        former = tf.gather_nd(ids.values, indices)
        replaced = tf.where(former == self._unknown_id, replaced, former)
        return ids.with_values(tf.tensor_scatter_nd_update(ids.values, indices, replaced))

    def decode(self, ids):
        """Texts `[...]` of ids `[..., T]`."""
        surfaces = self.look_up(self._surfaces, ids)
        if isinstance(surfaces, tf.RaggedTensor):
            surfaces = surfaces.to_tensor(default_value="")
        texts = valid_text(tf.strings.reduce_join(surfaces, axis=-1))
        if self._leading_space_signs:
            pattern = r"\A" + SPACE_SIGN + ("" if self._leading_space_signs == 1 else "+")
            texts = tf.strings.regex_replace(texts, pattern, "", replace_global=False)
        return _replace_all(texts, ((SPACE_SIGN, " "), *self._normalization.after))

    def look_up(self, table, ids):
        """Rows of a table, of the shape of the ids."""
        if isinstance(ids, tf.RaggedTensor):
            return ids.with_flat_values(self.look_up(table, ids.flat_values))
        ids = tf.convert_to_tensor(ids)
        # The last row of a table is for ids outside of the vocabulary, such as those of a padded
        # output layer.
        is_known = (ids >= 0) & (ids < self._size)
        return tf.gather(table, tf.where(is_known, ids, tf.cast(self._size, ids.dtype)))


def _table(ids, default):
    """A table of bytes to ids."""
    values = tf.constant(list(ids.values()), tf.int32)
    table = tf.lookup.KeyValueTensorInitializer(tf.constant(list(ids)), values)
    return tf.lookup.StaticHashTable(table, default)


def _check_added_words(vocabulary):
    """Refuses added words that a graph cannot find."""
    added, processor = vocabulary.added_words, vocabulary.processor
    needs_text = added.keeps_spaces or "normalized" in added.patterns
    reason = None
    if needs_text and any(map(processor.is_byte, range(len(processor)))):
        reason = "are found in normalized text, and pieces that are bytes hide that from a graph"
    for pattern in added.patterns.values():
        try:
            tf.strings.regex_replace([""], pattern, "")
        except tf.errors.InvalidArgumentError:
            reason = "are more than a graph can look for"
    if reason is not None:
        words = shown(list(added.ids))
        raise ValueError(
            f"A SavedModel cannot read the tokenizer's added words {words}: they {reason}."
        )


def _repeated(ids, rows):
    """Ragged `[B, (S)]`: the ids in each row that is True, nothing in the others."""
    count = tf.reduce_sum(tf.cast(rows, tf.int32))
    added = tf.tile(tf.constant(ids, tf.int32, (len(ids),)), [count])
    return tf.RaggedTensor.from_row_lengths(added, tf.cast(rows, tf.int64) * len(ids))


def valid_text(texts):
    """Texts `[...]` with U+FFFD for what is not UTF-8."""
    # ICU writes one U+FFFD for each maximal invalid part, as Python does.
    return tf.strings.unicode_transcode(
        texts, "UTF-8", "UTF-8", errors="replace", replacement_char=0xFFFD
    )


def _replace_all(texts, replacements):
    # The rules' replacements have no backslash, which RE2 would read as a reference.
    for literal, replacement in replacements:
        texts = tf.strings.regex_replace(texts, re.escape(literal), replacement)
    return texts
