"""The simpler simple recurrent unit (SSRU), which may replace the self-attention of a decoder.

Shape letters: B batch, R rows of a decoder's batch, T tokens, D hidden size, C chunk length.
"""

from typing import Any, NamedTuple, Unpack

import keras
from keras import ops

from kformer.layers.counter_hash import settled_seed
from kformer.layers.initializers import seeded
from kformer.layers.inputs import LayerArguments, ReadsLists
from kformer.layers.low_rank import adapted
from kformer.layers.masks import both, check_fits
from kformer.layers.shapes import linear, reshape
from kformer.utils.backend import while_loop

# The tokens of a chunk are computed one after the other, and chunks are combined by doubling.
_CHUNK = 8


def linear_recurrence(decay, update):
    """Computes `c_t = decay_t c_(t-1) + update_t` for all t, with zeros before the first.

    Few operations follow each other: the tokens of all chunks at once, then the chunks by doubling.
    The gradient is the same recurrence from the end to the beginning.

    Args:
        decay: float32 tensor `[B, T, D]`, between 0 and 1.
        update: float32 tensor `[B, T, D]`.

    Returns:
        float32 tensor `[B, T, D]`.

    References:
        Martin and Cundy 2018, "Parallelizing linear recurrent neural nets over sequence length".
        Hillis and Steele 1986, "Data parallel algorithms" (doubling).
    """

    @ops.custom_gradient
    def run(decay, update):
        states = _scan(decay, update)
        # A tensor of its own: on PyTorch the output would hold on to itself.
        earlier = _shifted(ops.stop_gradient(states))

        def gradient(*args, upstream=None):
            # PyTorch passes the upstream gradient by name, TensorFlow and JAX as the only argument.
            slope = args[0] if upstream is None else upstream
            next_decay = ops.concatenate([decay[:, 1:], ops.zeros_like(decay[:, :1])], axis=1)
            slope = ops.flip(_scan(ops.flip(next_decay, 1), ops.flip(slope, 1)), 1)
            return slope * earlier, slope

        return states, gradient

    return run(decay, update)


def _scan(decay, update):
    """`linear_recurrence`, without its gradient."""
    rows, length = ops.shape(update)[:2]
    count, size = (length + _CHUNK - 1) // _CHUNK, update.shape[-1]
    padding = [(0, 0), (0, count * _CHUNK - length), (0, 0)]

    def positions(x):
        """List of the tensors `[B, chunks, D]` of each position within a chunk."""
        x = reshape(ops.pad(x, padding), (rows, count, _CHUNK, size))
        return list(ops.unstack(x, _CHUNK, axis=2))

    factors, states = positions(decay), positions(update)
    for i in range(1, _CHUNK):
        states[i] = states[i] + factors[i] * states[i - 1]
        factors[i] = factors[i] * factors[i - 1]
    before = _shifted(_doubled(factors[-1], states[-1], count))
    states = [state + factor * before for factor, state in zip(factors, states, strict=True)]
    return reshape(ops.stack(states, axis=2), (rows, count * _CHUNK, size))[:, :length]


def _doubled(decay, update, count):
    """The recurrence over `count` chunks: in step i each adds what the chunk 2^i before it has."""

    def body(state):
        shift, decay, update = state
        padding = [(0, 0), (shift, 0), (0, 0)]
        update = update + decay * ops.pad(update[:, : count - shift], padding)
        decay = decay * ops.pad(decay[:, : count - shift], padding, constant_values=1.0)
        return shift * 2, decay, update

    if not isinstance(count, int):  # TensorFlow, where the length is not known.
        return while_loop(lambda state: state[0] < count, body, (1, decay, update))[2]
    state = (1, decay, update)
    while state[0] < count:
        state = body(state)
    return state[2]


def _shifted(x):
    """`[B, T, D]` with zeros in front and without the last of T."""
    return ops.concatenate([ops.zeros_like(x[:, :1]), x[:, :-1]], axis=1)


class SSRUCache(NamedTuple):
    """The state of an SSRU after the tokens so far. Its size does not depend on their number."""

    state: Any  # float32 [R, D]

    def reorder(self, rows):
        """Returns the cache with its rows reordered: row i is the former row `rows[i]`."""
        return SSRUCache(ops.take(self.state, rows, axis=0))


@keras.saving.register_keras_serializable(package="kformer")
class SSRU(ReadsLists):
    """A recurrent cell whose gate sees the inputs alone, so that training runs in parallel.

    With the forget gate `f = sigmoid(x Wf + bf)` the state is `c_t = f_t c_(t-1) + (1 - f_t) x_t W`
    and the output `relu(c_t)`. Before the first token the state is zero. Gate and state are
    computed in float32, whatever the compute dtype.

    A step of a search takes as long after a thousand tokens as after one, and its cache is one
    vector.

    Args:
        use_bias: bool, default True. Whether the forget gate has a bias; the cell has none.
        kernel_initializer: Keras initializer or its name, default "glorot_uniform". Of both
            matrices.
        seed: int or `None`, default `None`. The seed of the initializer; `None` for a random one.
        **kwargs: further arguments of `keras.layers.Layer`.

    Call arguments:
        x: float tensor `[B, T, D]`.
        padding_mask: boolean tensor `[B, T]`, default `None`. `True` at real tokens. Padding does
            not change the state.
        sequence_starts: boolean tensor `[B, T]`, default `None`. `True` at the first token of each
            sequence of a packed row, where the state is reset to zero.
        cache: `SSRUCache`, default `None`. The tokens before `x`, from `init_cache` or an earlier
            call.
        mask, x_mask: implicit Keras masks of `x`, passed by Keras. They act as `padding_mask`.

    Returns:
        Float tensor `[B, T, D]`; with `cache` also the cache with the new tokens.

    Example:
    ```python
    layer = kformer.layers.SSRU()
    layer(ops.ones((2, 5, 512))).shape  # (2, 5, 512)
    ```

    References:
        Kim et al. 2019, "From research to production and back: ludicrously fast neural machine
        translation", section 3.1.
    """

    input_axes = "[B, T, D]"
    saved_arguments = ("use_bias", "kernel_initializer", "seed")

    def __init__(
        self,
        *,
        use_bias=True,
        kernel_initializer="glorot_uniform",
        seed=None,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(**kwargs)
        self.use_bias, self.seed, self.adapters = use_bias, settled_seed(seed), {}
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, x_shape):
        size = x_shape[-1]

        def initial(shape, dtype=None):
            matrices = [
                seeded(self.kernel_initializer, self.seed, name)((size, size), dtype)
                for name in ("cell", "forget")
            ]
            return ops.concatenate(matrices, axis=1)

        # W and Wf side by side: one product computes both.
        self.cell_forget_kernel = self.add_weight(
            shape=(size, 2 * size), initializer=initial, name="cell_forget_kernel"
        )
        self.forget_bias = None
        if self.use_bias:
            self.forget_bias = self.add_weight(
                shape=(size,), initializer="zeros", name="forget_bias"
            )
        self.built = True

    def kernels(self):
        """Returns a dict of the name of the one projection to its kernel."""
        return {"cell_forget": self.cell_forget_kernel}

    def init_cache(self, rows, max_length=None):
        """Returns the `SSRUCache` before the first token.

        Args:
            rows: int or scalar tensor. R, the rows of the batches.
            max_length: ignored, since the cache does not grow.
        """
        size = self.cell_forget_kernel.shape[0]
        return SSRUCache(ops.zeros((rows, size), dtype="float32"))

    def call(self, x, padding_mask=None, sequence_starts=None, cache=None, mask=None, x_mask=None):
        kernel = ops.cast(self.cell_forget_kernel, self.compute_dtype)
        projected = adapted(self, "cell_forget", x, linear(x, kernel))
        cell, gate = ops.split(ops.cast(projected, "float32"), 2, axis=-1)
        if self.forget_bias is not None:
            gate = gate + ops.cast(self.forget_bias, "float32")
        decay = ops.sigmoid(gate)
        update = (1.0 - decay) * cell
        # With a cache an implicit mask would belong to the new tokens, as a padding mask does.
        real = both(padding_mask, mask if mask is not None else x_mask)
        for name, each in (("padding_mask", real), ("sequence_starts", sequence_starts)):
            check_fits(name, each, "[B, T]", tuple(x.shape[:2]))
        if sequence_starts is not None:
            decay = ops.where(ops.expand_dims(sequence_starts, 2), 0.0, decay)
        if real is not None:
            real = ops.expand_dims(real, 2)
            decay, update = ops.where(real, decay, 1.0), ops.where(real, update, 0.0)
        if cache is not None:
            first = update[:, :1] + decay[:, :1] * ops.expand_dims(cache.state, 1)
            update = ops.concatenate([first, update[:, 1:]], axis=1)
        length = ops.shape(x)[1]
        is_step = isinstance(length, int) and length == 1
        states = update if is_step else linear_recurrence(decay, update)
        outputs = ops.cast(ops.relu(states), self.compute_dtype)
        return outputs if cache is None else (outputs, SSRUCache(states[:, -1]))
