"""The graph inside the SavedModel: strings to ids, search, ids to strings. TensorFlow only."""

import dataclasses

from keras import ops

from kformer.decoding import search as run_search
from kformer.decoding.inference import can_infer
from kformer.decoding.search import check_options
from kformer.export.stored_kernels import stored_kernels


def build_translation_module(model, graph_tokenizer, tokenizer, options, dtype=None):
    """A `tf.Module` and its signatures.

    Args:
        model: a `Transformer` under the TensorFlow backend.
        graph_tokenizer: the `GraphTokenizer` of `tokenizer`.
        tokenizer: the `Tokenizer`.
        options: `SearchOptions`; `n_best` counts for the signature of that name, the others search for one.
        dtype: of the matrices, as for `export_saved_model`.

    Returns:
        The module, which owns the variables that the graph reads, and a dict of the signatures' functions.
    """
    import tensorflow as tf

    check_options(model, options)
    runs_by_kernels = can_infer(model)
    if not runs_by_kernels and dtype not in (None, model.policy_name):
        raise ValueError(
            f"The SavedModel cannot be had in {dtype}: the model computes in {model.policy_name} or has layers of its own; only a float32 "
            "model of this package's layers can be converted. Export it without a dtype."
        )
    kernels = stored_kernels(dtype or "float32") if runs_by_kernels else None
    special_ids = len(tokenizer.source_prefix) + len(tokenizer.source_suffix)
    # Where a text may begin with a language tag of its own, the tag is nothing to translate either.
    tags = [] if tokenizer.source_prefix else sorted(set(tokenizer.tag_ids.values()))
    suffix = list(tokenizer.source_suffix)
    limit = model.max_length
    best_one = dataclasses.replace(options, n_best=1)

    def source_rows(text):
        """Padded ids `[B, S]`, tokens per row, whether a row was cut, whether a row has nothing to translate."""
        rows = graph_tokenizer.tokenize(text)
        lengths = tf.cast(rows.row_lengths(), tf.int32)
        truncated = lengths > limit
        ids = rows[:, :limit].to_tensor(default_value=model.pad_id)
        if suffix:
            # A row that was cut still ends as every row does.
            columns = tf.range(tf.shape(ids)[1]) - (limit - len(suffix))
            ends = tf.gather(tf.constant(suffix, tf.int32), tf.clip_by_value(columns, 0, len(suffix) - 1))
            ids = tf.where(truncated[:, None] & (columns >= 0)[None, :], ends[None, :], ids)
        least = tf.fill(tf.shape(lengths), special_ids)
        if tags:
            first = rows[:, :1].to_tensor(default_value=-1, shape=[None, 1])
            least += tf.cast(tf.reduce_any(first == tf.constant([tags], tf.int32), axis=1), tf.int32)
        return ids, tf.minimum(lengths, limit), truncated, lengths <= least

    def translate(text, search_options):
        """Everything a signature may return, for texts `[B]`."""
        batch = tf.shape(text)[0]
        # The search needs a row to work on, also where there is no text.
        text = tf.concat([text, tf.fill([tf.cast(batch < 1, tf.int32)], "")], axis=0)
        source_ids, lengths, truncated, is_empty = source_rows(text)
        # `SearchOptions.limits`, in the same 64 bits.
        ratio = min(options.length_ratio, options.max_length)
        relative = tf.cast(tf.cast(lengths, tf.float64) * ratio, tf.int64) + options.length_offset
        limits = tf.cast(tf.clip_by_value(relative, max(1, options.min_length), options.max_length), tf.int32)
        # What will be thrown away must not keep the others waiting.
        limits = tf.where(is_empty, 0, limits)
        found = run_search(
            model,
            source_ids,
            limits,
            tf.range(tf.shape(text)[0]),
            options=search_options,
            steps=tf.reduce_max(limits) + 1,
            kernels=kernels,
        )
        texts = tf.where(is_empty[:, None], "", graph_tokenizer.detokenize(found.ids))
        scores = tf.where(is_empty[:, None], 0.0, found.scores)
        return {
            "source_ids": source_ids[:batch],
            "ids": found.ids[:batch],
            "texts": texts[:batch],
            "scores": scores[:batch],
            "truncated": truncated[:batch],
        }

    # Without autograph: there is no Python control flow on tensors to rewrite, and rewriting takes as long as tracing.
    signature = [tf.TensorSpec([None], tf.string, name="text")]

    @tf.function(input_signature=signature, autograph=False)
    def serving_default(text):
        found = translate(text, best_one)
        return {"translation": found["texts"][:, 0], "score": found["scores"][:, 0], "truncated": found["truncated"]}

    @tf.function(input_signature=signature, autograph=False)
    def n_best(text):
        found = translate(text, options)
        return {
            "translation": found["texts"][:, 0],
            "score": found["scores"][:, 0],
            "truncated": found["truncated"],
            "translations": found["texts"],
            "scores": found["scores"],
        }

    @tf.function(input_signature=signature, autograph=False)
    def attention(text):
        found = translate(text, best_one)
        source_ids, ids = found["source_ids"], found["ids"][:, 0]
        # Row t of the weights is where the model looked when it predicted token t: its inputs are the tokens before.
        starts = tf.fill([tf.shape(ids)[0], 1], model.start_id)
        target_ids = tf.concat([starts, ids[:, :-1]], axis=1)
        weights = ops.stack(model.inspect({"source_ids": source_ids, "target_ids": target_ids})["cross_attention_scores"], axis=1)

        def tokens(ids, side):
            return tf.where(ids == model.pad_id, "", graph_tokenizer.tokens(ids, side=side))

        return {
            "translation": found["texts"][:, 0],
            "source_tokens": tokens(source_ids, "source"),
            "target_tokens": tokens(ids, "target"),
            "attention": tf.cast(weights, tf.float32),
        }

    functions = [serving_default, n_best]
    if dtype in (None, model.policy_name):
        functions.append(attention)
    module = tf.Module()
    module.tokenizer = graph_tokenizer
    # What the graph reads, and no more: the optimiser's and the dropout's counters stay behind, and so does what was converted.
    used = {id(variable) for function in functions for variable in function.get_concrete_function().graph.variables}
    module.model_variables = [weight.value for weight in model.weights if id(weight.value) in used]
    module.stored_variables = [] if kernels is None else kernels.variables
    # The functions are signatures only: as attributes of the module each would be stored once more.
    return module, {function.__name__: function for function in functions}
