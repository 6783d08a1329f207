"""The graphs inside the SavedModels of the models that translate nothing. TensorFlow only."""

from kformer.decoding import search as run_search
from kformer.export.saved_model.rows import padded_rows

# Signatures without a text and with one; the latter is the one that servers take by default.
IDS, TEXT = "token_ids", "serving_default"


def build_encoder_module(model, graph_tokenizer, special_tokens, suffix, labels):
    """The module and the signatures of a `TransformerEncoder`.

    Args:
        model: the model, under the TensorFlow backend.
        graph_tokenizer: `GraphTokenizer`, or `None` for no signature with texts.
        special_tokens: whether texts get the tokenizer's prefix and suffix.
        suffix: that suffix, a sequence of ints, empty without special tokens.
        labels: list of strings, names of the classes, or `None`.
    """
    import tensorflow as tf

    def outputs_of(ids):
        length = tf.shape(ids)[1]
        # A layer needs a token to work on, also where no row has one.
        ids = tf.pad(
            ids, [[0, 0], [0, tf.cast(length < 1, tf.int32)]], constant_values=model.pad_id
        )
        found = model({"token_ids": ids}, training=False)
        if model.head in ("classification", "labelling"):
            best = tf.argmax(found, axis=-1, output_type=tf.int32)
            chosen = best if labels is None else tf.gather(tf.constant(labels), best)
            if model.head == "labelling":
                chosen = tf.where(ids != model.pad_id, chosen, -1 if labels is None else "")
            found = {"probabilities": tf.nn.softmax(found), "label": chosen}
        else:
            found = {
                {"regression": "values", "embedding": "embedding"}.get(
                    model.head, "hidden_states"
                ): tf.cast(found, tf.float32)
            }
        by_token = model.head in (None, "labelling")
        return {name: value[:, :length] if by_token else value for name, value in found.items()}

    def by_ids(ids):
        return {
            **outputs_of(ids[:, : model.max_length]),
            "truncated": tf.reduce_any(ids[:, model.max_length :] != model.pad_id, axis=1),
        }

    def by_text(text):
        rows = graph_tokenizer.tokenize(text, side="source", special_tokens=special_tokens)
        ids, truncated = padded_rows(rows, model.max_length, model.pad_id, suffix)
        found = {**outputs_of(ids), "truncated": truncated}
        if model.head in (None, "labelling"):
            found["tokens"] = tf.where(
                ids == model.pad_id, "", graph_tokenizer.tokens(ids, side="source")
            )
        return found

    return _module(model, graph_tokenizer, by_ids, by_text)


def build_language_module(model, graph_tokenizer, options):
    """The module and the signatures of a `TransformerDecoder`; `graph_tokenizer` may be `None`,
    `options` are `SearchOptions`.
    """
    import tensorflow as tf

    # The start token and what is added must have places of their own; that library's limit does not
    # count the end token.
    room = model.max_length - 1 - (options.max_length + (options.mode == "huggingface"))

    def continued(rows):
        """Ragged ids `[B, (S)]` to what follows, `[B, T]`; the scores, and which rows lost their
        beginning.
        """
        # The last words say most about what follows.
        kept = rows[:, -room:] if room > 0 else rows[:, :0]
        starts = tf.fill([rows.nrows(), 1], model.start_id)
        prompts = tf.concat([starts, kept], axis=1).to_tensor(default_value=model.pad_id)
        count = tf.shape(prompts)[0]
        limits = tf.fill([count], options.max_length)
        found = run_search(
            model, prompts, limits, tf.range(count), options=options, steps=options.max_length + 1
        )
        best = found.ids[:, 0]
        # The end token and what stands behind it are no part of the text.
        is_open = tf.cumsum(tf.cast(best == model.end_id, tf.int32), axis=1) < 1
        return tf.where(is_open, best, model.pad_id), found.scores[:, 0], rows.row_lengths() > room

    def by_ids(ids):
        ids, scores, truncated = continued(tf.ragged.boolean_mask(ids, ids != model.pad_id))
        return {"continuation": ids, "score": scores, "truncated": truncated}

    def by_text(text):
        rows = graph_tokenizer.tokenize(text, side="target", special_tokens=False)
        ids, scores, truncated = continued(rows)
        whole = tf.concat([rows, tf.RaggedTensor.from_tensor(ids)], axis=1)
        return {
            "text": graph_tokenizer.detokenize(whole, side="target"),
            "continuation": graph_tokenizer.detokenize(ids, side="target"),
            "score": scores,
            "truncated": truncated,
        }

    return _module(model, graph_tokenizer, by_ids, by_text)


def build_forecast_module(model, steps):
    """The module and the signature of a `Forecaster`."""
    import tensorflow as tf

    most = model.max_length if model.get_config()["position_encoding"] == "learned" else 2**31 - 1

    @tf.function(
        input_signature=[tf.TensorSpec([None, None, model.num_features], tf.float32, name="past")],
        autograph=False,
    )
    def serving_default(past):
        length = tf.shape(past)[1]
        checks = [
            tf.debugging.assert_greater_equal(
                length, 1, "The past has no steps; give one at least."
            ),
            tf.debugging.assert_less_equal(
                length, most, f"The past is longer than the {most} learned positions; shorten it."
            ),
        ]
        with tf.control_dependencies(checks):
            past = tf.identity(past)
        return {"forecast": model.forecast_in_graph(past, steps)}

    return _owning(model, None, {"serving_default": serving_default})


def _module(model, graph_tokenizer, by_ids, by_text):
    """A module with a signature for ids and, with a tokenizer, one for texts, which is then the
    default.
    """
    import tensorflow as tf

    def ids_of_any_batch(token_ids):
        return _with_a_row(by_ids, token_ids, tf.fill([1, tf.shape(token_ids)[1]], model.pad_id))

    def texts_of_any_batch(text):
        return _with_a_row(by_text, text, tf.constant([""]))

    ids = tf.function(
        ids_of_any_batch,
        input_signature=[tf.TensorSpec([None, None], tf.int32, name="token_ids")],
        autograph=False,
    )
    if graph_tokenizer is None:
        return _owning(model, None, {TEXT: ids, IDS: ids})
    text = tf.function(
        texts_of_any_batch,
        input_signature=[tf.TensorSpec([None], tf.string, name="text")],
        autograph=False,
    )
    return _owning(model, graph_tokenizer, {TEXT: text, IDS: ids})


def _with_a_row(function, batch, row):
    """What a function returns for a batch that may have no rows, where it needs one to work on."""
    import tensorflow as tf

    count = tf.shape(batch)[0]
    filled = tf.concat([batch, row[: tf.cast(count < 1, tf.int32)]], axis=0)
    return {name: value[:count] for name, value in function(filled).items()}


def _owning(model, graph_tokenizer, functions):
    import tensorflow as tf

    module = tf.Module()
    module.tokenizer = graph_tokenizer
    # What the graph reads, and no more: the optimiser's and the dropout's counters stay behind.
    used = {
        id(variable)
        for function in functions.values()
        for variable in function.get_concrete_function().graph.variables
    }
    module.model_variables = [weight.value for weight in model.weights if id(weight.value) in used]
    return module, functions
