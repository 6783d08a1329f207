"""What differs between backends: running a loop, compiling a function, finding the best values.

| backend    | loop              | cache   | compiled by   | compiled again for                 |
|------------|-------------------|---------|---------------|------------------------------------|
| TensorFlow | `tf.while_loop`   | growing | `tf.function` | nothing: batch and lengths dynamic |
| JAX        | `lax.while_loop`  | static  | `jax.jit`     | each shape                         |
| PyTorch    | a Python loop     | growing | not compiled  | -                                  |

Within `static_shapes()` TensorFlow does as JAX does, so that XLA can compile.
"""

import contextlib
import contextvars
import math

import keras
from keras import ops

from kformer.utils.contexts import context_value

GROUP = 16

_STATIC = contextvars.ContextVar("kformer_static_shapes", default=False)


def static_shapes():
    """A context in which functions are traced for XLA: shapes stay the same inside a loop."""
    return context_value(_STATIC, True)


def uses_static_shapes():
    """Whether shapes may not change inside a loop, and each new shape costs a compilation."""
    return keras.backend.backend() == "jax" or _STATIC.get()


def num_replicas():
    """The replicas of the `tf.distribute` strategy of this step; 1 without one.

    On JAX a step over several devices is written as if there were one device, so it has 1, too.
    """
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync if _replica() else 1


def devices_in_use():
    """The devices that share each batch where this is called: those of the scope; 1 without one."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.distribute.get_strategy().num_replicas_in_sync
    in_use = keras.distribution.distribution() if backend == "jax" else None
    return 1 if in_use is None else in_use.num_model_replicas


def replica_number():
    """The number of this replica, from 0, within a step of a `tf.distribute` strategy; else 0."""
    return _replica().replica_id_in_sync_group if num_replicas() > 1 else 0


def sum_over_replicas(value):
    """The sum of a tensor over all replicas that take the same step, without a gradient.

    Args:
        value: float tensor.

    Returns:
        Tensor of the same shape; the value itself if there is one replica.
    """
    if num_replicas() == 1:
        return value
    return _replica().all_reduce("SUM", ops.stop_gradient(value))


def _replica():
    """TensorFlow's replica context, or `None` outside of a replica's step."""
    import tensorflow as tf

    return tf.distribute.get_replica_context()


def while_loop(condition, body, state):
    """Runs `state = body(state)` while `condition(state)`.

    Args:
        condition: function of the state that returns a boolean scalar.
        body: function of the state that returns a state of the same structure. On TensorFlow and
            PyTorch the first axis of a tensor may change its size, and so may the third axis of a
            tensor of rank 4 and the second of one of rank 5 (growing caches).
        state: nested tuple of tensors.

    Returns:
        The last state.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        def invariant(tensor):
            shape = tensor.shape.as_list()
            for axis in {4: (0, 2), 5: (1,)}.get(len(shape), (0,) if shape else ()):
                shape[axis] = None
            return tf.TensorShape(shape)

        state = tf.nest.map_structure(tf.convert_to_tensor, state)
        options = {"shape_invariants": (tf.nest.map_structure(invariant, state),)}
        return tf.while_loop(condition, lambda state: (body(state),), (state,), **options)[0]
    if keras.backend.backend() == "jax":
        return ops.while_loop(condition, lambda state: (body(state),), (state,))[0]
    while condition(state):
        state = body(state)
    return state


def stable_top_k(x, k):
    """Finds the k largest values of each row, best first. Of equal values the first comes first.

    `torch.topk` returns equal values in any order, so ties would differ between the backends.

    Args:
        x: float tensor `[R, C]`. Where a graph does not know C, it is a multiple of `GROUP`, and at
            least k times that.
        k: int. At most C.

    Returns:
        Values `[R, k]`, and their int32 indices `[R, k]`.
    """
    if keras.backend.backend() == "tensorflow" and (size := _group_size(x.shape[1], k)):
        return _grouped_top_k(x, k, size)
    if k == 1 and not prefers_few_passes():
        indices = ops.cast(ops.argmax(x, axis=1, keepdims=True), "int32")
        return pick(x, indices), indices
    if keras.backend.backend() != "torch":
        values, indices = ops.top_k(x, k)
        return values, ops.cast(indices, "int32")
    import torch

    # One more value than asked for shows a tie across the border. Only rows with ties need the slow
    # stable sort.
    values, indices = torch.topk(x, min(k + 1, x.shape[1]))
    tied = (values[:, 1:] == values[:, :-1]).any(dim=1)
    if tied.any():
        best = torch.sort(x[tied], dim=1, descending=True, stable=True)
        size = values.shape[1]
        values[tied], indices[tied] = best.values[:, :size], best.indices[:, :size]
    return values[:, :k], indices[:, :k].to(torch.int32)


def _group_size(columns, k):
    """Returns the best size of a group for `_grouped_top_k`, or 0 where groups do not pay."""
    if k > 32 or columns is not None and columns < 512:
        return 0
    if columns is None:
        return GROUP
    # At least k groups, since each of the k values may lie in a group of its own.
    sizes = [size for size in range(32, min(512, columns // k) + 1) if columns % size == 0]
    return min(sizes, key=lambda size: abs(size - math.sqrt(columns / k)), default=0)


def _grouped_top_k(x, k, size):
    """`stable_top_k` in one quick pass over the row, and a search in the k best groups.

    The k largest values lie in the k groups with the largest maxima. TensorFlow's top-k reads a row
    value by value, and its maximum reads eight or sixteen values at once.
    """
    import tensorflow as tf

    x = tf.reshape(x, (-1, tf.shape(x)[1] // size, size))
    _, best = tf.math.top_k(tf.reduce_max(x, axis=2), k)  # [R, k]
    if k > 1:  # In the order of the row, so that of equal values the first comes first.
        best = -tf.math.top_k(-best, k)[0]
    candidates = tf.reshape(tf.gather(x, best, batch_dims=1), (-1, k * size))
    values, indices = tf.math.top_k(candidates, k)
    return values, tf.gather(best, indices // size, batch_dims=1) * size + indices % size


def take(x, indices, axis=0):
    """Returns `x` at the indices of an axis.

    Indices must not be negative. Keras's `take` allows that, and needs five more operations for it
    on TensorFlow.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.gather(x, indices, axis=axis)
    return ops.take(x, indices, axis=axis)


def nan_unless(condition):
    """Returns 0 where a condition holds and NaN elsewhere, float32 of its shape.

    NaN is computed: TensorFlow's `enable_check_numerics` stops at a constant, though it be unused.
    """
    return ops.sqrt(ops.cast(condition, "float32") - 1.0)


def row_offsets(sentences, size):
    """Returns `[B, 1]`, the first row of each sentence in an array of `size` rows per sentence."""
    return ops.expand_dims(ops.arange(sentences, dtype="int32") * size, 1)


def pick(values, indices):
    """Returns `values` `[B, C]` or `[B, C, L]` at the indices `[B, K]` of each row."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.gather(values, indices, batch_dims=1)
    size = values.shape[1]
    rows = ops.reshape(indices + row_offsets(ops.shape(indices)[0], size), (-1,))
    tail = ops.shape(values)[2:]
    chosen = ops.take(ops.reshape(values, (-1, *tail)), rows, axis=0)
    return ops.reshape(chosen, (ops.shape(indices)[0], indices.shape[1], *tail))


def prefers_few_passes():
    """Whether each pass over the logits costs time, since no compiler merges passes."""
    return keras.backend.backend() == "tensorflow" and not _STATIC.get()


def compile_function(function, model, static_argnames=()):
    """Returns a faster form of a function that runs a model without changing it.

    Args:
        function: takes tensors, and static arguments by keyword. Returns a nested tuple of tensors.
        model: the Keras model whose variables the function reads. They are read at each call, so
            later training counts.
        static_argnames: tuple of str, default `()`. The keyword arguments that are plain Python
            values.

    Returns:
        A function that takes NumPy arrays and returns the same structure of NumPy arrays.
    """
    compiled = {}
    compilers = {"jax": _compile_jax, "tensorflow": _compile_tensorflow, "torch": _compile_torch}
    compiler = compilers[keras.backend.backend()]

    def call(*arrays, **static):
        # Adapters are variables that were not there before.
        adapters = tuple(getattr(one, "lora", None) for one in getattr(model, "models", [model]))
        if adapters not in compiled:
            compiled.clear()
            compiled[adapters] = compiler(function, model, static_argnames)
        arrays = [ops.convert_to_tensor(array) for array in arrays]
        return keras.tree.map_structure(ops.convert_to_numpy, compiled[adapters](*arrays, **static))

    return call


def _compile_jax(function, model, static_argnames):
    import jax

    variables = model.variables

    # Variables are arguments. As constants they would be compiled in, and later training would not
    # count.
    def pure(values, *arrays, **static):
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return function(*arrays, **static)

    layout = {}
    if _on_several_hosts():  # Each host needs all rows of the result.
        mesh = keras.distribution.distribution().device_mesh
        layout["out_shardings"] = keras.distribution.TensorLayout((), mesh).backend_layout
    compiled = jax.jit(pure, static_argnames=static_argnames, **layout)
    return lambda *arrays, **static: compiled(
        [variable.value for variable in variables], *map(_spread, arrays), **static
    )


def _spread(array):
    """An array with its rows on the devices of the distribution in use, if they divide."""
    in_use = keras.distribution.distribution()
    if in_use is not None and array.ndim and not array.shape[0] % in_use.num_model_replicas:
        layout = in_use.get_data_layout(array.shape)
    elif _on_several_hosts():  # No device may be without it.
        layout = keras.distribution.TensorLayout((None,) * array.ndim, in_use.device_mesh)
    else:
        return array
    return keras.distribution.distribute_tensor(array, layout)


@contextlib.contextmanager
def on_this_host():
    """A context in which the variables that Keras makes are on this host alone.

    Of several hosts that train together the first alone saves the model, and Keras makes variables
    for that. With a distribution each waits for the other hosts.
    """
    in_use = keras.distribution.distribution()
    if not _on_several_hosts():
        yield
        return
    keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(in_use)


def _on_several_hosts():
    in_use = keras.distribution.distribution()
    return in_use is not None and in_use.num_processes > 1


def _compile_tensorflow(function, model, static_argnames):
    import tensorflow as tf

    compiled = {}

    def run(*tensors, **static):
        key = tuple(sorted(static.items()))
        if key not in compiled:
            signature = [tf.TensorSpec([None] * len(x.shape), x.dtype) for x in tensors]
            # No Python control flow on tensors needs rewriting, which takes as long as tracing.
            compiled[key] = tf.function(
                lambda *args: function(*args, **static), input_signature=signature, autograph=False
            )
        return compiled[key](*tensors)

    return run


def _compile_torch(function, model, static_argnames):
    import torch

    return torch.inference_mode()(function)
