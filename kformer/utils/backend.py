"""What differs between backends: how a loop is run and how a function is compiled. Nothing else in
search does.

| backend    | loop              | cache   | compiled by   | anew for                           |
|------------|-------------------|---------|---------------|------------------------------------|
| TensorFlow | `tf.while_loop`   | growing | `tf.function` | nothing: batch and lengths dynamic |
| JAX        | `lax.while_loop`  | static  | `jax.jit`     | each shape, hence `round_up`       |
| PyTorch    | a Python loop     | growing | not at all    | -                                  |

In `static_shapes()` TensorFlow does as JAX does, for XLA to compile.
"""

import contextlib
import contextvars
import math

import keras
from keras import ops

_STATIC = contextvars.ContextVar("kformer_static_shapes", default=False)


@contextlib.contextmanager
def static_shapes():
    """Within it a search is traced for XLA."""
    token = _STATIC.set(True)
    try:
        yield
    finally:
        _STATIC.reset(token)


def uses_static_shapes():
    """Whether shapes may not change inside a loop, and each new shape costs a compilation."""
    return keras.backend.backend() == "jax" or _STATIC.get()


def while_loop(condition, body, state):
    """Runs `state = body(state)` while `condition(state)`.

    Args:
        condition: function of the state to a boolean scalar.
        body: function of the state to a state of the same structure. On TensorFlow and PyTorch the
            first axis of a tensor and the third of a tensor of rank 4 (a growing cache) may change
            their size.
        state: a nested tuple of tensors.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        def invariant(tensor):
            shape = tensor.shape.as_list()
            changing = {4: {0, 2}, 5: {1}}.get(len(shape), {0})
            return tf.TensorShape(
                [None if axis in changing else size for axis, size in enumerate(shape)]
            )

        state = tf.nest.map_structure(tf.convert_to_tensor, state)
        invariants = tf.nest.map_structure(invariant, state)
        return tf.while_loop(
            condition, lambda state: (body(state),), (state,), shape_invariants=(invariants,)
        )[0]
    if keras.backend.backend() == "jax":
        return ops.while_loop(condition, lambda state: (body(state),), (state,))[0]
    while condition(state):
        state = body(state)
    return state


def stable_top_k(x, k):
    """The k largest values of each row, best first, and their places; of equal values the one that
    stands first comes first.

    `torch.topk` leaves the order of equal values open, so a tie would be broken otherwise than on
    the other backends.

    Args:
        x: float tensor `[R, C]`.
        k: int, at most C.

    Returns:
        Values `[R, k]` and places int32 `[R, k]`.
    """
    if keras.backend.backend() == "tensorflow" and (groups := _groups_of(x.shape[1], k)):
        return _grouped_top_k(x, k, groups)
    if k == 1 and not prefers_few_passes():
        places = ops.cast(ops.argmax(x, axis=1, keepdims=True), "int32")
        return pick(x, places), places
    if keras.backend.backend() != "torch":
        values, places = ops.top_k(x, k)
        return values, ops.cast(places, "int32")
    import torch

    # One more than asked for shows a tie across the border; a full stable sort is dear, and only
    # for the rows that have ties.
    values, places = torch.topk(x, min(k + 1, x.shape[1]))
    tied = (values[:, 1:] == values[:, :-1]).any(dim=1)
    if tied.any():
        sorted_values, sorted_places = torch.sort(x[tied], dim=1, descending=True, stable=True)
        values[tied], places[tied] = (
            sorted_values[:, : values.shape[1]],
            sorted_places[:, : values.shape[1]],
        )
    return values[:, :k], places[:, :k].to(torch.int32)


def _groups_of(columns, k):
    """Into how many groups of equal size a row is best divided for `_grouped_top_k`; 0 where it
    does not pay.
    """
    if columns < 2048 or k > 32:
        return 0
    # At least as many groups as values are looked for: each may lie in a group of its own.
    sizes = [size for size in range(32, min(512, columns // k) + 1) if columns % size == 0]
    return (
        columns // min(sizes, key=lambda size: abs(size - math.sqrt(columns / k))) if sizes else 0
    )


def _grouped_top_k(x, k, groups):
    """`stable_top_k` in one quick pass over the row and a search among the groups that can matter.

    The k largest values lie in the k groups with the largest maxima. TensorFlow's top-k goes
    through a row value by value, a maximum eight or sixteen at once."""
    import tensorflow as tf

    size = x.shape[1] // groups
    x = tf.reshape(x, (-1, groups, size))
    _, best = tf.math.top_k(tf.reduce_max(x, axis=2), k)  # [R, k]
    if k > 1:  # In their order in the row, so that of equal values the first comes first.
        best = -tf.math.top_k(-best, k)[0]
    candidates = tf.reshape(tf.gather(x, best, batch_dims=1), (-1, k * size))
    values, places = tf.math.top_k(candidates, k)
    return values, tf.gather(best, places // size, batch_dims=1) * size + places % size


def take(x, places, axis=0):
    """`x` at `places` of an axis; places are not negative, which Keras's `take` allows, for five
    more operations on TensorFlow.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.gather(x, places, axis=axis)
    return ops.take(x, places, axis=axis)


def row_offsets(sentences, size):
    """`[B, 1]`: where each sentence's rows begin in an array with `size` rows per sentence."""
    return ops.expand_dims(ops.arange(sentences, dtype="int32") * size, 1)


def pick(values, places):
    """`values` `[B, C]` or `[B, C, L]` at `places` `[B, K]` of each row."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.gather(values, places, batch_dims=1)
    size = values.shape[1]
    rows = ops.reshape(places + row_offsets(ops.shape(places)[0], size), (-1,))
    tail = ops.shape(values)[2:]
    chosen = ops.take(ops.reshape(values, (-1, *tail)), rows, axis=0)
    return ops.reshape(chosen, (ops.shape(places)[0], places.shape[1], *tail))


def prefers_few_passes():
    """Whether each pass over the logits counts: where no compiler merges them, and a few more of
    the best values cost nothing.
    """
    return keras.backend.backend() == "tensorflow" and not _STATIC.get()


def log_normaliser(logits, largest, place):
    """`logsumexp` of each row `[R, V]`, as `[R, 1]`, by the softmax, which is one operation where
    `logsumexp` is five.

    Args:
        logits: float32 tensor.
        largest: float32 `[R, 1]`, each row's largest.
        place: int32 `[R, 1]`, where that stands.
    """
    return largest - ops.log(pick(ops.softmax(logits), place))


def compile_function(function, model, static_argnames=()):
    """A faster form of a function that runs a model without changing it.

    Args:
        function: takes tensors, and by keyword the static arguments; returns a nested tuple of
            tensors.
        model: the Keras model whose variables the function reads. They are read at each call, so
            later training counts.
        static_argnames: names of keyword arguments that are plain Python values.

    Returns:
        A function that takes NumPy arrays and returns the same structure of NumPy arrays.
    """
    backend = keras.backend.backend()
    if backend == "jax":
        run = _compile_jax(function, model, static_argnames)
    elif backend == "tensorflow":
        run = _compile_tensorflow(function)
    else:
        run = _wrap_torch(function)

    def call(*arrays, **static):
        outputs = run(*(ops.convert_to_tensor(array) for array in arrays), **static)
        return keras.tree.map_structure(ops.convert_to_numpy, outputs)

    return call


def _compile_jax(function, model, static_argnames):
    import jax

    variables = model.variables

    # Variables are arguments: as captured constants they would be compiled in, and training would
    # go unnoticed.
    def pure(values, *arrays, **static):
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return function(*arrays, **static)

    compiled = jax.jit(pure, static_argnames=static_argnames)
    return lambda *arrays, **static: compiled(
        [variable.value for variable in variables], *arrays, **static
    )


def _compile_tensorflow(function):
    import tensorflow as tf

    compiled = {}

    def run(*tensors, **static):
        key = tuple(sorted(static.items()))
        if key not in compiled:
            signature = [
                tf.TensorSpec([None] * len(tensor.shape), tensor.dtype) for tensor in tensors
            ]
            # There is no Python control flow on tensors to rewrite, and rewriting takes as long as
            # tracing.
            compiled[key] = tf.function(
                lambda *args: function(*args, **static), input_signature=signature, autograph=False
            )
        return compiled[key](*tensors)

    return run


def _wrap_torch(function):
    import torch

    def run(*tensors, **static):
        with torch.inference_mode():
            return function(*tensors, **static)

    return run


def round_up(size, multiple):
    """The least multiple of `multiple` that is not below `size`."""
    return -(-size // multiple) * multiple


def padded_length(length, longest):
    """`length` rounded up for few shapes, but never by padding beyond `longest`, the model's limit.

    To a multiple of 16; above 64 of 32, above 128 of 64, and so on: eight lengths up to 256, eight
    more up to 1024."""
    multiple = max(16, (1 << (length - 1).bit_length()) // 4)
    return max(length, min(round_up(length, multiple), longest))


def padded_rows(rows):
    """The number of rows rounded up to a power of two, for few shapes."""
    return 1 << (rows - 1).bit_length()
