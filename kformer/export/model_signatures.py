"""The graphs inside the SavedModels of the models that translate nothing. TensorFlow only."""

from kformer.decoding import search as run_search
from kformer.decoding.search import check_options

# Signatures without a text and with one.
IDS, TEXT = "token_ids", "serving_default"


def build_encoder_module(model, graph_tokenizer, special_tokens, labels):
    """The module and the signatures of a `TransformerEncoder`; `graph_tokenizer` and `labels` may be `None`."""
    import tensorflow as tf

    def outputs_of(ids):
        found = model({"token_ids": ids}, training=False)
        if model.head in ("classification", "labelling"):
            best = tf.argmax(found, axis=-1, output_type=tf.int32)
            chosen = best if labels is None else tf.gather(tf.constant(labels), best)
            if model.head == "labelling":
                is_real = ids != model.pad_id
                chosen = tf.where(is_real, chosen, -1 if labels is None else "")
            return {"probabilities": tf.nn.softmax(found), "label": chosen}
        return {{"regression": "values", "embedding": "embedding"}.get(model.head, "hidden_states"): tf.cast(found, tf.float32)}

    def by_text(text):
        rows = graph_tokenizer.tokenize(text, side="source", special_tokens=special_tokens)
        truncated = rows.row_lengths() > model.max_length
        ids = rows[:, : model.max_length].to_tensor(default_value=model.pad_id)
        # A layer needs a token to work on, also where no text has one.
        ids = tf.pad(ids, [[0, 0], [0, tf.cast(tf.shape(ids)[1] < 1, tf.int32)]], constant_values=model.pad_id)
        found = outputs_of(ids)
        if model.head in (None, "labelling"):
            found["tokens"] = tf.where(ids == model.pad_id, "", graph_tokenizer.tokens(ids, side="source"))
        return {**found, "truncated": truncated}

    return _module(model, graph_tokenizer, outputs_of, by_text)


def build_language_module(model, graph_tokenizer, options):
    """The module and the signatures of a `TransformerDecoder`; `graph_tokenizer` may be `None`."""
    import tensorflow as tf

    check_options(model, options)
    room = model.max_length - options.max_length

    def continued(ids):
        """Ids `[B, S]`, start token included, to what follows."""
        rows = tf.shape(ids)[0]
        limits = tf.fill([rows], options.max_length)
        found = run_search(model, ids, limits, tf.range(rows), options=options, steps=options.max_length + 1)
        best = found.ids[:, 0]
        # The end token and what stands behind it are no part of the text.
        is_open = tf.cumsum(tf.cast(best == model.end_id, tf.int32), axis=1) < 1
        return tf.where(is_open, best, model.pad_id), found.scores[:, 0]

    def by_ids(ids):
        starts = tf.fill([tf.shape(ids)[0], 1], model.start_id)
        ids, scores = continued(tf.concat([starts, ids], axis=1))
        return {"continuation": ids, "score": scores}

    def by_text(text):
        rows = graph_tokenizer.tokenize(text, side="target", special_tokens=False)
        # The last words say most about what follows.
        kept = rows[:, -(room - 1) :] if room > 1 else rows[:, :0]
        starts = tf.fill([rows.nrows(), 1], model.start_id)
        prompts = tf.concat([starts, kept], axis=1)
        ids, scores = continued(prompts.to_tensor(default_value=model.pad_id))
        whole = tf.concat([rows, tf.RaggedTensor.from_tensor(ids)], axis=1)
        return {
            "text": graph_tokenizer.detokenize(whole, side="target"),
            "continuation": graph_tokenizer.detokenize(ids, side="target"),
            "score": scores,
            "truncated": rows.row_lengths() > room - 1,
        }

    return _module(model, graph_tokenizer, by_ids, by_text)


def build_forecast_module(model, steps):
    """The module and the signature of a `Forecaster`."""
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec([None, None, model.num_features], tf.float32, name="past")], autograph=False)
    def serving_default(past):
        return {"forecast": model.forecast_in_graph(past, steps)}

    return _owning(model, None, {"serving_default": serving_default})


def _module(model, graph_tokenizer, by_ids, by_text):
    """A module with a signature for ids and, with a tokenizer, one for texts, which is then the default."""
    import tensorflow as tf

    ids = tf.function(by_ids, input_signature=[tf.TensorSpec([None, None], tf.int32, name="token_ids")], autograph=False)
    if graph_tokenizer is None:
        return _owning(model, None, {TEXT: ids, IDS: ids})

    def for_any_batch(text):
        batch = tf.shape(text)[0]
        # The model needs a row to work on, also where there is no text.
        found = by_text(tf.concat([text, tf.fill([tf.cast(batch < 1, tf.int32)], "")], axis=0))
        return {name: value[:batch] for name, value in found.items()}

    text = tf.function(for_any_batch, input_signature=[tf.TensorSpec([None], tf.string, name="text")], autograph=False)
    return _owning(model, graph_tokenizer, {TEXT: text, IDS: ids})


def _owning(model, graph_tokenizer, functions):
    import tensorflow as tf

    module = tf.Module()
    module.tokenizer = graph_tokenizer
    # What the graph reads, and no more: the optimiser's and the dropout's counters stay behind.
    used = {id(variable) for function in functions.values() for variable in function.get_concrete_function().graph.variables}
    module.model_variables = [weight.value for weight in model.weights if id(weight.value) in used]
    return module, functions
