"""What the graphs of several SavedModels have in common.

Only what makes a graph imports this module and those that import it, since they need TensorFlow.
"""

import tensorflow as tf


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
    truncated = tf.cast(rows.row_lengths(), tf.int32) > limit
    ids = rows[:, :limit].to_tensor(default_value=pad_id)
    if suffix:
        columns = tf.range(tf.shape(ids)[1]) - (limit - len(suffix))
        indices = tf.clip_by_value(columns, 0, len(suffix) - 1)
        ends = tf.gather(tf.constant(suffix, tf.int32), indices)
        ids = tf.where(truncated[:, None] & (columns >= 0)[None, :], ends[None, :], ids)
    return ids, truncated


def hypothesis_lengths(ids, end_id, pad_id):
    """The number of tokens of hypotheses `[B, T]`, int32 `[B]`, as `up_to_end` has them in Python.

    A search may generate the padding token; what follows the end token is padding.
    """
    steps = tf.range(1, tf.shape(ids)[1] + 1)
    # Before the first end token, and with it.
    is_open = tf.cumsum(tf.cast(ids == end_id, tf.int32), axis=1, exclusive=True) < 1
    return tf.reduce_max(tf.where(is_open & ((ids != pad_id) | (ids == end_id)), steps, 0), axis=1)


def cut_texts(texts, bound, from_end=False):
    """Texts cut to a number of bytes where a code point begins, before they are tokenized.

    As `kformer.text.text_bound.cut_text` does in Python.

    Args:
        texts: string tensor `[B]`.
        bound: int, at least 4. The most bytes of a text.
        from_end: bool, default `False`. Whether the end of a text is kept, not its beginning.

    Returns:
        string tensor `[B]` and boolean tensor `[B]`: the texts, and which were cut.
    """
    lengths = tf.strings.length(texts)
    was_cut = lengths > bound
    # Four bytes, one of which begins a code point: from the cut on, or those up to it.
    first = lengths - bound if from_end else bound - 3
    first = tf.where(was_cut, first, 0)
    around = tf.strings.substr(texts, first, tf.fill(tf.shape(texts), 4))
    around = tf.strings.substr(tf.strings.join([around, "\0\0\0\0"]), 0, 4)
    values = tf.io.decode_raw(around, tf.uint8)  # [B, 4], but [0, 0] for no text
    values = tf.reshape(values, tf.concat([tf.shape(texts), [4]], axis=0))
    begins = tf.cast((values < 0x80) | (values >= 0xC0), tf.int32)
    steps = tf.argmax(begins if from_end else begins[:, ::-1], axis=1, output_type=tf.int32)
    starts = tf.where(was_cut, first + steps, 0) if from_end else tf.zeros_like(lengths)
    sizes = lengths - starts if from_end else tf.where(was_cut, bound - steps, lengths)
    return tf.strings.substr(texts, starts, sizes), was_cut


def with_a_row(batch, filler=""):
    """A batch `[B, ...]`, with a row of a filler where it has none.

    A search needs one, also where there is no text.
    """
    is_empty = tf.cast(tf.shape(batch)[:1] < 1, tf.int32)
    row = tf.fill(tf.concat([is_empty, tf.shape(batch)[1:]], axis=0), filler)
    return tf.concat([batch, row], axis=0)


def signature(function, inputs):
    """A concrete function of named inputs, as a SavedModel's signature needs it.

    It is traced here: `tf.saved_model.save` traces a `tf.function` again.

    Args:
        function: function of tensors, by name. Returns a dict of name to tensor.
        inputs: dict of name to a pair of shape, a list of int or `None`, and dtype, a str.
    """
    # Without autograph: there is no Python control flow on tensors to rewrite, and rewriting takes
    # as long as tracing.
    specs = [tf.TensorSpec(shape, dtype, name=name) for name, (shape, dtype) in inputs.items()]
    traced = tf.function(function, input_signature=specs, autograph=False)
    return traced.get_concrete_function()


def owning_module(model, functions, graph_tokenizer=None):
    """A `tf.Module` that owns the variables that some functions read.

    Args:
        model: Keras model. Its weights are the variables.
        functions: iterable of concrete functions.
        graph_tokenizer: `GraphTokenizer`, default `None`. The module owns it, too.

    Returns:
        `tf.Module`. The functions are not its attributes: each would be stored once more.
    """
    module = tf.Module()
    module.tokenizer = graph_tokenizer
    # Only what the graphs read: the counters of optimizer and dropout stay behind, and so do
    # weights of which a graph reads a converted copy.
    used = {id(variable) for function in functions for variable in function.graph.variables}
    module.model_variables = [weight.value for weight in model.weights if id(weight.value) in used]
    return module
