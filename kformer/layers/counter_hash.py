"""Random bits as a pure function of a key and a position.

Keras's random functions keep their state in a seed generator (not saved with a model) or in the
backend's global generator, and differ between backends. A counter-based hash has no state. The same
key gives the same bits on TensorFlow, JAX and PyTorch; a resumed run gets the bits of the
uninterrupted one; and a compiler fuses the arithmetic into the operation that uses it.

All arithmetic is in int32, whose multiplication wraps around on all three backends (PyTorch has no
uint32 arithmetic). A right shift of an int32 copies the sign bit, so a bit mask follows each shift.

References:
    Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (counter-based generators).
    Appleby, MurmurHash3, the 32-bit finaliser (its constants).
"""

import random
import zlib

from keras import ops

_GOLDEN = 0x9E3779B9
_FIRST = 0x85EBCA6B
_SECOND = 0xC2B2AE35


def _int32(value):
    """A Python int modulo 2**32, read as a signed 32-bit number."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= (1 << 31) else value


def _xor_shift(x, bits):
    return ops.bitwise_xor(x, ops.bitwise_and(ops.right_shift(x, bits), (1 << (32 - bits)) - 1))


def mix(x):
    """MurmurHash3's finaliser: a bijection of int32.

    Each input bit affects every output bit.

    Args:
        x: int32 tensor of any shape.

    Returns:
        int32 tensor of that shape.
    """
    x = _xor_shift(x, 16) * _int32(_FIRST)
    x = _xor_shift(x, 13) * _int32(_SECOND)
    return _xor_shift(x, 16)


def settled_seed(seed):
    """The seed as an int, or a random one in place of `None`.

    A layer chooses its seed when it is made, not when it first needs a number. So the seed is in
    its configuration, and a reloaded layer continues as the saved one would have.

    Args:
        seed: int or `None`. `None` takes a random one from Python's generator, which
            `keras.utils.set_random_seed` seeds.

    Returns:
        An int.
    """
    return random.getrandbits(31) if seed is None else int(seed)


def derive_seed(seed, name):
    """A seed for the part called `name` of something that was given `seed`.

    Args:
        seed: int.
        name: str. The same name under the same seed always gives the same result.

    Returns:
        An int in `[0, 2**31)`.
    """
    return zlib.crc32(f"{int(seed)}/{name}".encode()) & 0x7FFFFFFF


def fold_key(seed, *counters):
    """Mixes a seed and counters (a step, a row) into one int32 key.

    Args:
        seed: int.
        *counters: ints or int32 tensors, broadcastable against each other.

    Returns:
        int32 tensor of the counters' broadcast shape.
    """
    key = ops.convert_to_tensor(_int32(seed * _GOLDEN + 1), dtype="int32")
    for counter in counters:
        key = mix(ops.bitwise_xor(key, mix(ops.cast(counter, "int32") + _int32(_GOLDEN))))
    return key


def random_bits(rows, columns, key, first=0):
    """32 random bits for each element of a matrix.

    Each row and each column is hashed once, and the sum of the two hashes is mixed again. The bare
    sum would not do: the four corners of any rectangle would not be independent.

    Args:
        rows: int or scalar tensor. The number of rows.
        columns: int or scalar tensor. The number of columns.
        key: int32 tensor, a scalar for the whole matrix, or `[rows]`, where a row's bits depend on
            its own key alone.
        first: int or scalar tensor, default 0. With a scalar key, the number of the first row: the
            rows from there on of a larger matrix have the same bits as in that matrix.

    Returns:
        int32 tensor `[rows, columns]`; the upper and the lower 16 bits can be used as two numbers.
    """
    if len(key.shape) == 0:
        key = ops.bitwise_xor(mix(ops.arange(rows, dtype="int32") + first), key)
    column_hash = mix(ops.arange(columns, dtype="int32") + _int32(_GOLDEN))
    bits = ops.expand_dims(mix(key), 1) + ops.expand_dims(column_hash, 0)
    return _xor_shift(bits * _int32(_FIRST), 15) * _int32(_SECOND)


def uniform(rows, columns, key):
    """Uniform random numbers above 0 and up to 1.

    Args:
        rows: int or scalar tensor. The number of rows.
        columns: int or scalar tensor. The number of columns.
        key: int32 tensor. As in `random_bits`.

    Returns:
        float32 tensor `[rows, columns]`.
    """
    bits = mix(random_bits(rows, columns, key))
    # 24 bits fill the significand of a float32. The half step excludes 0, and rounds to 1 at the
    # other end.
    top = ops.cast(ops.bitwise_and(ops.right_shift(bits, 8), 0xFFFFFF), "float32")
    return top * (2.0**-24) + 2.0**-25
