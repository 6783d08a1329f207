"""The tokenizer inside a TensorFlow graph: the same ids and the same text as `kformer.Tokenizer`
gives in Python.

Only ops of core TensorFlow and of tensorflow-text are used, which TensorFlow Serving links.
TensorFlow is imported when the first one is made, not when this module is imported."""

import functools
import re

from kformer.text.languages import TAG_PATTERN
from kformer.text.normalization import SPACE_SIGN
from kformer.utils.checks import check_choice


def GraphTokenizer(tokenizer):  # noqa: N802 - it makes an object of a class that needs TensorFlow to be defined
    """A `tf.Module` that tokenises and detokenises in a graph.

    Assign it to an attribute of the module that is exported, and call its methods in that module's
    `tf.function`s. Each method takes an empty batch, and no string can make it fail or change
    another row.

    - `tokenize(texts, side="source", special_tokens=True)`: `tf.string` [B] to ragged int32 [B,
      (S)].
    - `detokenize(ids, side="target")`: ragged or dense integers [B, (T)], or dense [..., T], to
      `tf.string` [B] or [...]. Control ids write nothing, so padding may stay.
    - `tokens(ids, side="target")`: ids of any shape, ragged or dense, to the pieces as `tf.string`
      of the same shape.

    SentencePiece cuts the text; ids and text are put together from lists (see
    `kformer.text.vocabulary.Vocabulary`), which are constants in the graph. A SentencePiece model
    that serves both sides is embedded once.

    Args:
        tokenizer: a `kformer.Tokenizer`.

    Returns:
        tf.Module.

    Raises:
        ImportError: if tensorflow or tensorflow-text is not installed.

    Example:

        module = tf.Module()
        module.tokenizer = GraphTokenizer(kformer.Tokenizer.load("tokenizer"))

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def back_and_forth(texts):
            return module.tokenizer.detokenize(module.tokenizer.tokenize(texts), side="source")

        tf.saved_model.save(module, "saved_models/echo/1", signatures=back_and_forth)
    """
    return _graph_tokenizer_class()(tokenizer)


@functools.cache
def _graph_tokenizer_class():
    try:
        import tensorflow as tf
        import tensorflow_text as tf_text
    except ImportError as error:
        raise ImportError(
            f"A tokenizer in a TensorFlow graph needs tensorflow and tensorflow-text ({error}); "
            "run `pip install tensorflow tensorflow-text` on a platform that has both."
        ) from error

    class GraphVocabulary(tf.Module):
        """One side: the lists of a `Vocabulary` as tensors, beside its SentencePiece model."""

        def __init__(self, vocabulary, sentencepiece):
            super().__init__()
            self._sentencepiece = sentencepiece
            self._normalization = vocabulary.normalization
            self._leading_space_signs = vocabulary.leading_space_signs
            self._size = len(vocabulary)
            self._id_map = (
                None if vocabulary.id_map is None else tf.constant(vocabulary.id_map, tf.int32)
            )
            self._unknown_id = vocabulary.unknown_id
            self._foreign_pieces = None
            if vocabulary.foreign_pieces:
                keys = tf.constant([piece.encode("utf-8") for piece in vocabulary.foreign_pieces])
                values = tf.constant(list(vocabulary.foreign_pieces.values()), tf.int32)
                table = tf.lookup.KeyValueTensorInitializer(keys, values)
                self._foreign_pieces = tf.lookup.StaticHashTable(
                    table, default_value=vocabulary.unknown_id
                )
                # The op gives ids or pieces, as it was made.
                self._piecewise = tf_text.SentencepieceTokenizer(
                    vocabulary.model, out_type=tf.string
                )
            self._surfaces = tf.constant(vocabulary.surfaces)
            pieces = [piece.encode("utf-8") for piece in vocabulary.pieces]
            self._pieces = tf.constant([*pieces, pieces[vocabulary.unknown_id]])

        def encode(self, texts):
            texts = replace_all(valid_text(texts), self._normalization.before)
            ids = self._sentencepiece.tokenize(texts)
            if self._id_map is not None:
                ids = ids.with_values(tf.gather(self._id_map, ids.values))
            return ids if self._foreign_pieces is None else self._look_up_unknown(texts, ids)

        def _look_up_unknown(self, texts, ids):
            """As `Vocabulary` does: only the rows that have an unknown id are cut once more, into
            pieces.
            """
            again = tf.reduce_any(ids.with_values(ids.values == self._unknown_id), axis=1)
            found = self._foreign_pieces.lookup(
                self._piecewise.tokenize(tf.boolean_mask(texts, again)).values
            )
            places = tf.where(tf.repeat(again, ids.row_lengths()))
            former = tf.gather_nd(ids.values, places)
            found = tf.where(former == self._unknown_id, found, former)
            return ids.with_values(tf.tensor_scatter_nd_update(ids.values, places, found))

        def decode(self, ids):
            surfaces = self._look_up(self._surfaces, ids)
            if isinstance(surfaces, tf.RaggedTensor):
                surfaces = surfaces.to_tensor(default_value="")
            texts = valid_text(tf.strings.reduce_join(surfaces, axis=-1))
            if self._leading_space_signs:
                pattern = r"\A" + SPACE_SIGN + ("" if self._leading_space_signs == 1 else "+")
                texts = tf.strings.regex_replace(texts, pattern, "", replace_global=False)
            return replace_all(texts, ((SPACE_SIGN, " "), *self._normalization.after))

        def tokens(self, ids):
            return self._look_up(self._pieces, ids)

        def _look_up(self, table, ids):
            if isinstance(ids, tf.RaggedTensor):
                return ids.with_flat_values(self._look_up(table, ids.flat_values))
            ids = tf.convert_to_tensor(ids)
            # The last row of a table stands for ids outside of the vocabulary, such as a padded
            # output layer's.
            return tf.gather(
                table,
                tf.where((ids >= 0) & (ids < self._size), ids, tf.cast(self._size, ids.dtype)),
            )

    class GraphTokenizerModule(tf.Module):
        def __init__(self, tokenizer):
            super().__init__()
            models, vocabularies = {}, {}
            for side in ("source", "target"):
                vocabulary = tokenizer.vocabulary(side)
                if vocabulary.model not in models:
                    models[vocabulary.model] = tf_text.SentencepieceTokenizer(
                        vocabulary.model, out_type=tf.int32
                    )
                if vocabulary not in vocabularies:
                    vocabularies[vocabulary] = GraphVocabulary(vocabulary, models[vocabulary.model])
            self._source = vocabularies[tokenizer.vocabulary("source")]
            self._target = vocabularies[tokenizer.vocabulary("target")]
            self._prefixes = {"source": tokenizer.source_prefix, "target": tokenizer.target_prefix}
            self._suffixes = {"source": tokenizer.source_suffix, "target": tokenizer.target_suffix}
            self._tags = None
            if tokenizer.language_tags:
                # One more, that no text has: the graph gathers from this list, which then is never
                # empty.
                tags = {"": tokenizer.unknown_id, **tokenizer.tag_ids}
                self._tags = tf.constant([tag.encode("utf-8") for tag in tags])
                self._tag_ids = tf.constant(list(tags.values()), tf.int32)
                self._unknown_id = tokenizer.unknown_id

        def tokenize(self, texts, side="source", special_tokens=True):
            vocabulary = self._side(side)
            texts = tf.convert_to_tensor(texts, tf.string)
            parts = []
            if side == "source" and self._tags is not None:
                has_tag, tags, texts = self._cut_tags(texts)
                parts.append(tags)
            ids = vocabulary.encode(texts)
            parts.append(ids)
            if special_tokens:
                rows = tf.ones([ids.nrows()], tf.bool)
                # A text's own tag takes the place of the prefix.
                parts.insert(
                    0, repeated(self._prefixes[side], rows if len(parts) == 1 else ~has_tag)
                )
                parts.append(repeated(self._suffixes[side], rows))
            return ids if len(parts) == 1 else tf.concat(parts, axis=1)

        def _cut_tags(self, texts):
            """Whether each text begins with a language tag `[B]`, the tag's id `[B, (0 or 1)]`, the
            texts without.
            """
            texts = valid_text(texts)
            rest = tf.strings.regex_replace(texts, TAG_PATTERN, "", replace_global=False)
            sizes = tf.strings.length(texts) - tf.strings.length(rest)
            tags = tf.strings.substr(texts, tf.zeros_like(sizes), sizes)
            equal = tags[:, None] == self._tags[None, :]
            ids = tf.where(
                tf.reduce_any(equal, axis=1),
                tf.gather(self._tag_ids, tf.argmax(equal, axis=1)),
                self._unknown_id,
            )
            has_tag = sizes > 0
            ids = tf.RaggedTensor.from_row_lengths(ids[has_tag], tf.cast(has_tag, tf.int64))
            return has_tag, ids, rest

        def detokenize(self, ids, side="target"):
            return self._side(side).decode(ids)

        def tokens(self, ids, side="target"):
            return self._side(side).tokens(ids)

        def _side(self, side):
            check_choice("side", side, ("source", "target"))
            return self._source if side == "source" else self._target

    def repeated(ids, rows):
        """Ragged `[B, (S)]`: the ids in each row that is True, nothing in the others."""
        added = tf.tile(
            tf.constant(ids, tf.int32, (len(ids),)), [tf.reduce_sum(tf.cast(rows, tf.int32))]
        )
        return tf.RaggedTensor.from_row_lengths(added, tf.cast(rows, tf.int64) * len(ids))

    def valid_text(texts):
        # ICU puts one U+FFFD for each maximal invalid part, as Python does.
        return tf.strings.unicode_transcode(
            texts, "UTF-8", "UTF-8", errors="replace", replacement_char=0xFFFD
        )

    def replace_all(texts, replacements):
        # Replacements of the rules have no backslash, which would mean something to RE2.
        for literal, replacement in replacements:
            texts = tf.strings.regex_replace(texts, re.escape(literal), replacement)
        return texts

    return GraphTokenizerModule
