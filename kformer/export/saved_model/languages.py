"""The target languages of a translator's SavedModel, of which each text may choose one."""

import numpy as np
import tensorflow as tf

from kformer.decoding.repetition import NO_TOKEN
from kformer.export.saved_model.graph import with_a_row
from kformer.export.saved_model.names import TARGET_LANGUAGE
from kformer.export.saved_model.tokenizer import valid_text
from kformer.text.languages import some_languages

# The most characters of an unknown code in a message.
_SHOWN = 50


class GraphLanguages:
    """What the graph looks up by the language of a text.

    Args:
        choices: dict of code to a pair of `kformer.Tokenizer` and `SearchOptions`. The first code
            is "", for the language of the translator that is exported.

    Attributes:
        forces_tokens: bool. Whether translations into different languages begin differently.
    """

    def __init__(self, choices):
        self._codes = list(choices)
        tokenizers, self._options = zip(*choices.values(), strict=True)
        self._source_prefixes = _padded([tokenizer.source_prefix for tokenizer in tokenizers])
        self._prefixes = _padded([options.prefix_ids for options in self._options])
        self.forces_tokens = len({options.prefix_ids for options in self._options}) > 1

    def indices(self, target_language, text):
        """The index of each text's language, int32 `[B]`, or `[1]` where there is no text.

        Args:
            target_language: string tensor `[B]`, or `[1]` for all texts. Codes, "" for the default.
            text: string tensor `[B]`.

        Raises:
            tf.errors.InvalidArgumentError: (when it runs) there is no such language, or another
                number of them than of texts.
        """
        count = tf.shape(text)[0]
        message = f"{TARGET_LANGUAGE} needs one row for each text, or one for all"
        sizes = tf.shape(target_language)[0]
        check = tf.debugging.Assert((sizes == count) | (sizes == 1), [message])
        with tf.control_dependencies([check]):
            codes = with_a_row(tf.broadcast_to(target_language, [count]))
        is_same = codes[:, None] == tf.constant(self._codes)
        is_known = tf.reduce_any(is_same, axis=1)
        first = codes[tf.argmin(tf.cast(is_known, tf.int32))]
        shown = tf.strings.substr(valid_text(first), 0, _SHOWN, unit="UTF8_CHAR")
        choices = some_languages(self._codes[1:])
        # Without quotes, which TensorFlow would escape.
        ending = f" is unknown; choose one of {choices}, or leave it empty."
        sentence = tf.strings.join(["The target language ", shown, ending])
        check = tf.debugging.Assert(tf.reduce_all(is_known), [sentence])
        with tf.control_dependencies([check]):
            return tf.argmax(is_same, axis=1, output_type=tf.int32)

    def source_prefixes(self, indices):
        """The ids before texts of some languages `[B]`, int32 `[B, P]`, filled up with -1."""
        return tf.gather(tf.constant(self._source_prefixes), indices)

    def prefixes(self, indices):
        """`SearchOptions.prefix_ids` of languages `[B]`, int32 `[B, P]`, filled up with
        `NO_TOKEN`.
        """
        return tf.gather(tf.constant(self._prefixes), indices)

    def values(self, name, dtype, indices=None):
        """The search option of a name for languages `[B]`, as a tensor of a dtype.

        It is a number where all languages have the same; without languages it is the largest.
        """
        values = [getattr(options, name) for options in self._options]
        if indices is None or len(set(values)) == 1:
            return max(values)
        return tf.gather(tf.constant(values, dtype), indices)


def _padded(rows):
    array = np.full([len(rows), max(map(len, rows))], NO_TOKEN, "int32")
    for i, row in enumerate(rows):
        array[i, : len(row)] = row
    return array
