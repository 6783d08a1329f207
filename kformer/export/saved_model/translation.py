"""The graph inside the SavedModel: strings to ids, search, ids to strings. TensorFlow only."""

import dataclasses

from keras import ops

from kformer.decoding import search as run_search
from kformer.decoding.fast.decoder import can_infer
from kformer.decoding.fast.ops_stored import XlaKernels, stored_kernels
from kformer.decoding.run_search import SearchResult
from kformer.decoding.searcher import check_options
from kformer.export.saved_model.rows import padded_rows
from kformer.utils.backend import static_shapes

# To a multiple of so many tokens a source is padded where each length is compiled.
_LENGTHS = 16


def build_translation_module(
    model, graph_tokenizer, tokenizer, options, dtype=None, single_too=False
):
    """A `tf.Module` and its signatures.

    Args:
        model: a `Transformer` under the TensorFlow backend.
        graph_tokenizer: the `GraphTokenizer` of `tokenizer`.
        tokenizer: the `Tokenizer`.
        options: `SearchOptions`; `n_best` counts for the signature of that name, the others search
            for one.
        dtype: of the matrices, as for `export_saved_model`.
        single_too: whether to make the signature `single`, which XLA compiles.

    Returns:
        The module, which owns the variables that the graph reads, and a dict of the signatures'
        functions.
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
    if single_too and (kernels is None or dtype not in (None, "float32")):
        raise ValueError(
            f"The signature for single texts runs in float32 by this package's own layers, but the model computes in "
            f"{dtype or model.policy_name} or has others; export it without."
        )
    special_ids = len(tokenizer.source_prefix) + len(tokenizer.source_suffix)
    # Where a text may begin with a language tag of its own, the tag is nothing to translate either.
    tags = [] if tokenizer.source_prefix else sorted(set(tokenizer.tag_ids.values()))
    suffix = list(tokenizer.source_suffix)
    limit = model.max_length
    best_one = dataclasses.replace(options, n_best=1)

    def source_rows(text):
        """Padded ids `[B, S]`, tokens per row, whether a row was cut, whether a row has nothing to
        translate.
        """
        rows = graph_tokenizer.tokenize(text)
        lengths = tf.cast(rows.row_lengths(), tf.int32)
        ids, truncated = padded_rows(rows, limit, model.pad_id, suffix)
        least = tf.fill(tf.shape(lengths), special_ids)
        if tags:
            first = rows[:, :1].to_tensor(default_value=-1, shape=[None, 1])
            least += tf.cast(
                tf.reduce_any(first == tf.constant([tags], tf.int32), axis=1), tf.int32
            )
        return ids, tf.minimum(lengths, limit), truncated, lengths <= least

    def limits_of(lengths):
        """`SearchOptions.limits`, in the same 64 bits."""
        ratio = min(options.length_ratio, options.max_length)
        relative = tf.cast(tf.cast(lengths, tf.float64) * ratio, tf.int64) + options.length_offset
        return tf.cast(
            tf.clip_by_value(relative, max(1, options.min_length), options.max_length), tf.int32
        )

    def find(source_ids, limits, search_options):
        """The search, for padded ids `[B, S]`."""
        numbers, steps = tf.range(tf.shape(limits)[0]), tf.reduce_max(limits) + 1
        return run_search(
            model, source_ids, limits, numbers, options=search_options, steps=steps, kernels=kernels
        )

    @tf.function(
        input_signature=[tf.TensorSpec([1, None], tf.int32), tf.TensorSpec([1], tf.int32)],
        autograph=False,
        jit_compile=True,
    )
    def find_single(source_ids, limits):
        # The room that the longest source of this shape may need: it depends on the shape alone.
        steps = limits_of(tf.shape(source_ids)[1]) + 1
        with static_shapes():
            return tuple(
                run_search(
                    model,
                    source_ids,
                    limits,
                    tf.range(1),
                    options=best_one,
                    steps=steps,
                    kernels=XlaKernels(kernels),
                )
            )

    def find_compiled(source_ids, limits, search_options):
        """The same for one sentence, whose length is rounded up: XLA compiles once for each."""
        length = tf.shape(source_ids)[1]
        rounded = tf.maximum(length, tf.minimum(-(-length // _LENGTHS) * _LENGTHS, limit))
        source_ids = tf.pad(
            source_ids, [[0, 0], [0, rounded - length]], constant_values=model.pad_id
        )
        return SearchResult(*find_single(source_ids, limits))

    def translate(text, search_options, find=find):
        """Everything a signature may return, for texts `[B]`."""
        batch = tf.shape(text)[0]
        # The search needs a row to work on, also where there is no text.
        text = tf.concat([text, tf.fill([tf.cast(batch < 1, tf.int32)], "")], axis=0)
        source_ids, lengths, truncated, is_empty = source_rows(text)
        # What will be thrown away must not keep the others waiting.
        limits = tf.where(is_empty, 0, limits_of(lengths))
        found = find(source_ids, limits, search_options)
        texts = tf.where(is_empty[:, None], "", graph_tokenizer.detokenize(found.ids))
        scores = tf.where(is_empty[:, None], 0.0, found.scores)
        return {
            "source_ids": source_ids[:batch],
            "ids": found.ids[:batch],
            "texts": texts[:batch],
            "scores": scores[:batch],
            "truncated": truncated[:batch],
        }

    def best_of(found):
        """What a signature with one translation per text returns."""
        return {
            "translation": found["texts"][:, 0],
            "score": found["scores"][:, 0],
            "truncated": found["truncated"],
        }

    # Without autograph: there is no Python control flow on tensors to rewrite, and rewriting takes
    # as long as tracing.
    signature = [tf.TensorSpec([None], tf.string, name="text")]

    @tf.function(input_signature=signature, autograph=False)
    def serving_default(text):
        return best_of(translate(text, best_one))

    @tf.function(input_signature=signature, autograph=False)
    def n_best(text):
        found = translate(text, options)
        return {**best_of(found), "translations": found["texts"], "scores": found["scores"]}

    @tf.function(input_signature=signature, autograph=False)
    def attention(text):
        found = translate(text, best_one)
        source_ids, ids = found["source_ids"], found["ids"][:, 0]
        # Row t of the weights is where the model looked when it predicted token t: its inputs are
        # the tokens before.
        starts = tf.fill([tf.shape(ids)[0], 1], model.start_id)
        target_ids = tf.concat([starts, ids[:, :-1]], axis=1)
        weights = ops.stack(
            model.inspect({"source_ids": source_ids, "target_ids": target_ids})[
                "cross_attention_scores"
            ],
            axis=1,
        )

        def tokens(ids, side):
            return tf.where(ids == model.pad_id, "", graph_tokenizer.tokens(ids, side=side))

        return {
            "translation": found["texts"][:, 0],
            "source_tokens": tokens(source_ids, "source"),
            "target_tokens": tokens(ids, "target"),
            "attention": tf.cast(weights, tf.float32),
        }

    @tf.function(input_signature=[tf.TensorSpec([1], tf.string, name="text")], autograph=False)
    def single(text):
        return best_of(translate(text, best_one, find_compiled))

    functions = [serving_default, n_best]
    if dtype in (None, model.policy_name):
        functions.append(attention)
    if single_too:
        serving_default.get_concrete_function()  # It makes the variables that XLA's graph uses, too.
        functions.append(single)
    module = tf.Module()
    module.tokenizer = graph_tokenizer
    # What the graph reads, and no more: the optimiser's and the dropout's counters stay behind, and
    # so does what was converted.
    used = {
        id(variable)
        for function in functions
        for variable in function.get_concrete_function().graph.variables
    }
    module.model_variables = [weight.value for weight in model.weights if id(weight.value) in used]
    module.stored_variables = [] if kernels is None else kernels.variables
    # The functions are signatures only: as attributes of the module each would be stored once more.
    return module, {function.__name__: function for function in functions}
