"""The graphs of the SavedModels that do not translate: encoders, language models, forecasters."""

import tensorflow as tf

from kformer.decoding import decoder_for
from kformer.decoding import search as run_search
from kformer.export.saved_model.graph import (
    cut_texts,
    owning_module,
    padded_rows,
    signature,
    with_a_row,
)
from kformer.text.text_bound import byte_bound

# Signatures without a text and with one; the latter is the one that servers take by default.
IDS, TEXT = "token_ids", "serving_default"


class TokenGraph:
    """The signatures of a model of tokens: one for ids and, with a tokenizer, one for texts.

    A subclass computes outputs by name, for at least one row: `from_ids` for padded int32 ids
    `[B, S]`, and `from_text` for a string tensor `[B]`.

    Args:
        model: Keras model with `pad_id` and `max_length`, under the TensorFlow backend.
        graph_tokenizer: `GraphTokenizer`, default `None`, for no signature with texts.
    """

    def __init__(self, model, graph_tokenizer=None):
        self.model = model
        self.tokenizer = graph_tokenizer

    def token_ids(self, token_ids):
        """The signature for int32 ids `[B, S]`, also for no row: outputs by name."""
        outputs = self.from_ids(with_a_row(token_ids, self.model.pad_id))
        return {name: value[: tf.shape(token_ids)[0]] for name, value in outputs.items()}

    def text(self, text):
        """The signature for a string tensor `[B]`, also for no text: outputs by name."""
        outputs = self.from_text(with_a_row(text))
        return {name: value[: tf.shape(text)[0]] for name, value in outputs.items()}

    def build(self):
        """Traces the signatures.

        Returns:
            `tf.Module` that owns the variables, and a dict of name to `tf.function`. The signature
            for texts is the default, or the one for ids where there is no tokenizer.
        """
        ids = signature(self.token_ids, {"token_ids": ([None, None], "int32")})
        functions = {TEXT: ids, IDS: ids}
        if self.tokenizer is not None:
            functions[TEXT] = signature(self.text, {"text": ([None], "string")})
        return owning_module(self.model, functions.values(), self.tokenizer), functions


class EncoderGraph(TokenGraph):
    """The signatures of a `TransformerEncoder`.

    Args:
        model: the model.
        graph_tokenizer: `GraphTokenizer`, or `None` for no signature with texts.
        special_tokens: bool. Whether texts get the tokenizer's prefix and suffix.
        suffix: sequence of ints. That suffix.
        labels: list of str or `None`. Names of the classes.
        max_text_bytes: int or `None`. As of `SearchOptions`.
    """

    def __init__(self, model, graph_tokenizer, special_tokens, suffix, labels, max_text_bytes):
        super().__init__(model, graph_tokenizer)
        self.max_text_bytes = byte_bound(model.max_length, max_text_bytes)
        self.special_tokens, self.suffix, self.labels = special_tokens, suffix, labels
        self._is_by_token = model.head in (None, "labelling")

    def from_ids(self, ids):
        limit = self.model.max_length
        truncated = tf.reduce_any(ids[:, limit:] != self.model.pad_id, axis=1)
        return {**self._outputs(ids[:, :limit]), "truncated": truncated}

    def from_text(self, text):
        text, was_cut = cut_texts(text, self.max_text_bytes)
        rows = self.tokenizer.tokenize(text, side="source", special_tokens=self.special_tokens)
        ids, truncated = padded_rows(rows, self.model.max_length, self.model.pad_id, self.suffix)
        outputs = {**self._outputs(ids), "truncated": truncated | was_cut}
        if self._is_by_token:
            pieces = self.tokenizer.tokens(ids, side="source")
            outputs["tokens"] = tf.where(ids == self.model.pad_id, "", pieces)
        return outputs

    def _outputs(self, ids):
        """The head's outputs by name, for ids `[B, S]`, S at most `max_length`."""
        length = tf.shape(ids)[1]
        # A layer needs at least one token, also where no row has one.
        padding = [[0, 0], [0, tf.cast(length < 1, tf.int32)]]
        ids = tf.pad(ids, padding, constant_values=self.model.pad_id)
        outputs = self.model({"token_ids": ids}, training=False)
        if self.model.head in ("classification", "labelling"):
            outputs = {"probabilities": tf.nn.softmax(outputs), "label": self._label(outputs, ids)}
        else:
            names = {"regression": "values", "embedding": "embedding"}
            outputs = {names.get(self.model.head, "hidden_states"): tf.cast(outputs, tf.float32)}
        if self._is_by_token:
            outputs = {name: value[:, :length] for name, value in outputs.items()}
        return outputs

    def _label(self, logits, ids):
        """The most probable class, a number or a name; of padding -1 or an empty name."""
        best = tf.argmax(logits, axis=-1, output_type=tf.int32)
        chosen = best if self.labels is None else tf.gather(tf.constant(self.labels), best)
        if self.model.head != "labelling":
            return chosen
        return tf.where(ids != self.model.pad_id, chosen, -1 if self.labels is None else "")


class LanguageGraph(TokenGraph):
    """The signatures of a `TransformerDecoder`.

    Args:
        model: the model.
        graph_tokenizer: `GraphTokenizer`, or `None` for no signature with texts.
        options: `SearchOptions`.
    """

    def __init__(self, model, graph_tokenizer, options):
        super().__init__(model, graph_tokenizer)
        self.options = options

    def from_ids(self, ids):
        rows = tf.ragged.boolean_mask(ids, ids != self.model.pad_id)
        ids, scores, truncated = self._continue(rows)
        return {"continuation": ids, "score": scores, "truncated": truncated}

    def from_text(self, text):
        bound = byte_bound(self.model.max_length, self.options.max_text_bytes)
        text, was_cut = cut_texts(text, bound, from_end=True)
        rows = self.tokenizer.tokenize(text, side="target", special_tokens=False)
        ids, scores, truncated = self._continue(rows)
        whole = tf.concat([rows, tf.RaggedTensor.from_tensor(ids)], axis=1)
        return {
            "text": self.tokenizer.detokenize(whole, side="target"),
            "continuation": self.tokenizer.detokenize(ids, side="target"),
            "score": scores,
            "truncated": truncated | was_cut,
        }

    def _continue(self, rows):
        """Continues ragged ids `[B, (S)]`.

        Returns:
            int32 `[B, T]`, float32 `[B]` and boolean `[B]`: the continuation, its score, and
            whether the prompt lost its beginning.
        """
        model, options = self.model, self.options
        longest, longest_end = model.prompt_lengths(options)
        lengths = rows.row_lengths()
        truncated = lengths > longest
        lengths = tf.where(truncated, tf.constant(longest_end, lengths.dtype), lengths)
        # What follows depends most on the last tokens.
        first = tf.expand_dims(rows.row_lengths() - lengths, 1)
        rows = tf.ragged.boolean_mask(rows, tf.ragged.range(rows.row_lengths()) >= first)
        starts = tf.fill([rows.nrows(), 1], model.start_id)
        prompts = tf.concat([starts, rows], axis=1).to_tensor(default_value=model.pad_id)
        limits = model.continuation_limits(tf.cast(lengths, tf.int32), options)
        arguments = decoder_for(model), prompts, limits, tf.range(tf.shape(prompts)[0])
        result, _ = run_search(*arguments, options=options, steps=options.max_length + 1)
        best = result.ids[:, 0]
        # The end token and what follows it are not part of the text.
        is_open = tf.cumsum(tf.cast(best == model.end_id, tf.int32), axis=1) < 1
        continuation = tf.where(is_open, best, model.pad_id)
        return continuation, result.scores[:, 0], truncated


class ForecastGraph:
    """The signature of a `Forecaster`.

    Args:
        model: the model, under the TensorFlow backend.
        steps: int. The number of steps to forecast.
    """

    def __init__(self, model, steps):
        self.model = model
        self.steps = steps
        is_learned = model.get_config()["position_encoding"] == "learned"
        self._max_length = model.max_length if is_learned else 2**31 - 1

    def forecast(self, past):
        """The signature for float32 `[B, S, F]`: `forecast` float32 `[B, steps, G]`."""
        length, limit = tf.shape(past)[1], self._max_length
        is_empty = "The past has no steps; give one at least."
        is_long = f"The past is longer than the {limit} learned positions; shorten it."
        checks = [
            tf.debugging.assert_greater_equal(length, 1, is_empty),
            tf.debugging.assert_less_equal(length, limit, is_long),
        ]
        with tf.control_dependencies(checks):
            past = tf.identity(past)
        return {"forecast": self.model.forecast_in_graph(past, self.steps)}

    def build(self):
        """Traces the signature; returns a module and a dict as `TokenGraph.build` does."""
        shape = [None, None, self.model.num_features]
        functions = {TEXT: signature(self.forecast, {"past": (shape, "float32")})}
        return owning_module(self.model, functions.values()), functions
