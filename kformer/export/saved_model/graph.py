"""What the graphs of several SavedModels have in common. TensorFlow only."""


def padded_rows(rows, limit, pad_id, suffix=()):
    """Ragged ids as a dense batch, truncated at a limit.

    Args:
        rows: ragged int32 tensor `[B, (S)]`.
        limit: int. The maximum number of ids of a row.
        pad_id: int. Fills shorter rows up.
        suffix: sequence of ints, default empty. Every row ends with it, a truncated one as well.

    Returns:
        int32 tensor `[B, S]` and boolean tensor `[B]`: the ids, and which rows were truncated.
    """
    import tensorflow as tf

    truncated = tf.cast(rows.row_lengths(), tf.int32) > limit
    ids = rows[:, :limit].to_tensor(default_value=pad_id)
    if suffix:
        columns = tf.range(tf.shape(ids)[1]) - (limit - len(suffix))
        ends = tf.gather(
            tf.constant(suffix, tf.int32), tf.clip_by_value(columns, 0, len(suffix) - 1)
        )
        ids = tf.where(truncated[:, None] & (columns >= 0)[None, :], ends[None, :], ids)
    return ids, truncated


def signature(function, name, shape, dtype):
    """A `tf.function` of one named input, as a SavedModel's signature needs it.

    Args:
        function: function of a tensor. Returns a dict of name to tensor.
        name: str. The input's name.
        shape: list of int or `None`. The input's shape.
        dtype: str. The input's dtype.
    """
    import tensorflow as tf

    # Without autograph: there is no Python control flow on tensors to rewrite, and rewriting takes
    # as long as tracing.
    spec = tf.TensorSpec(shape, dtype, name=name)
    return tf.function(function, input_signature=[spec], autograph=False)


def owning_module(model, functions, graph_tokenizer=None):
    """A `tf.Module` that owns the variables that some functions read.

    Args:
        model: Keras model. Its weights are the variables.
        functions: iterable of `tf.function`s with signatures.
        graph_tokenizer: `GraphTokenizer`, default `None`. The module owns it, too.

    Returns:
        `tf.Module`. The functions are not its attributes: each would be stored once more.
    """
    import tensorflow as tf

    module = tf.Module()
    module.tokenizer = graph_tokenizer
    # Only what the graphs read: the counters of optimizer and dropout stay behind, and so do
    # weights of which a graph reads a converted copy.
    used = {
        id(variable)
        for function in functions
        for variable in function.get_concrete_function().graph.variables
    }
    module.model_variables = [weight.value for weight in model.weights if id(weight.value) in used]
    return module
