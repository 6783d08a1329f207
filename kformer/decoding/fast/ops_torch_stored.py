"""The operations of the fast decoder on PyTorch, with matrices in bfloat16 or int8."""

import abc
from typing import Any, NamedTuple

from kformer.decoding.fast.ops import HIGHEST, HIGHEST_OF_7_BITS, PROBE_LENGTH
from kformer.decoding.fast.ops_torch import TorchOps
from kformer.decoding.fast.smoothing import SmoothedOps
from kformer.utils.recent import Recent


class StoredTorchOps(TorchOps):
    """Converts each matrix once, and keeps the result.

    Tables of embeddings stay float32: only their rows are read.
    """

    def __init__(self):
        super().__init__()
        self._stored = {}  # by variable
        self._shortlists = Recent()  # by shortlist, then by variable

    @abc.abstractmethod
    def convert(self, matrix):
        """A matrix `[O, I]` in the form that `product` takes."""

    def bind(self, variable, factors=None):
        if factors is None:
            return super().bind(variable)
        return self._store(id(variable), lambda: variable.value / self._torch.from_numpy(factors))

    def bind_kernel(self, variable, factors=None):
        def matrix():
            return self._rows_times(variable.value, factors).T

        return self._store(id(variable), lambda: self.convert(matrix().contiguous()))

    def bind_projection(self, variable, is_table, tokens=None, factors=None):
        def matrix():
            table = variable.value if is_table else self._rows_times(variable.value, factors).T
            return table if tokens is None else table[tokens]

        stored = self._stored
        if self._torch.is_tensor(tokens):
            return self.convert(matrix().contiguous())
        if tokens is not None:
            stored = self._shortlists.get_or_make(tokens.tobytes(), dict)
        key = (id(variable), is_table)
        return self._store(key, lambda: self.convert(matrix().contiguous()), stored)

    def _rows_times(self, matrix, factors):
        return matrix if factors is None else matrix * self._torch.from_numpy(factors)[:, None]

    def _store(self, key, make, stored=None):
        stored = self._stored if stored is None else stored
        if key not in stored:
            with self._torch.no_grad():
                stored[key] = make()
        return stored[key]


class Bfloat16TorchOps(StoredTorchOps):
    """Products of bfloat16 numbers, summed in float32 and rounded."""

    def convert(self, matrix):
        return matrix.bfloat16()

    def product(self, x, kernel, bias=None, is_positive=False):
        y = self._functional.linear(x.bfloat16(), kernel).float()
        return y if bias is None else y.add_(bias)


class Int8Matrix(NamedTuple):
    """A matrix `[O, I]` as an int8 product reads it."""

    packed: Any  # int8, in oneDNN's layout
    scales: Any  # float32 [O]: row = scale * values
    zeros: Any  # int32 [O]


class Int8TorchOps(SmoothedOps, StoredTorchOps):
    """Products of int8 weights and 8-bit activations, as `kformer.decoding.fast.ops_stored.Int8Ops`
    on TensorFlow: a scale per column of a matrix, and per row of activations; 7 bits for
    activations where the CPU adds pairs of products in 16 bits.
    """

    def __init__(self):
        super().__init__()
        torch = self._torch
        probe = self.convert(torch.ones((1, PROBE_LENGTH)))
        y = self._byte_product(torch.full((1, PROBE_LENGTH), 255, dtype=torch.uint8), probe, 0)
        is_exact = round(y.item() * HIGHEST) == 255 * HIGHEST * PROBE_LENGTH
        self._highest = HIGHEST if is_exact else HIGHEST_OF_7_BITS

    def convert(self, matrix):
        torch = self._torch
        largest = matrix.abs().amax(dim=1)
        scales = torch.where(largest > 0, largest / HIGHEST, 1.0)
        values = (matrix / scales[:, None]).round().to(torch.int8)
        packed = torch.ops.onednn.qlinear_prepack(values, None)
        return Int8Matrix(packed, scales, torch.zeros(len(scales), dtype=torch.int32))

    def product(self, x, kernel, bias=None, is_positive=False):
        torch = self._torch
        offset, highest = self._highest + 1, self._highest
        if is_positive:  # Zero is the byte 0 then.
            offset, highest = 0, 2 * self._highest + 1
        unit = (x if is_positive else x.abs()).amax(dim=-1, keepdim=True) / highest
        # A row of zeros stays one: its unit of 0 removes what dividing by 0 gave.
        factor = torch.where(unit > 0, 1 / unit, 0.0)
        # A conversion drops the fraction, so the half that was added rounds.
        y = self._byte_product((x * factor).add_(offset + 0.5).to(torch.uint8), kernel, offset)
        return y.mul_(unit) if bias is None else torch.addcmul(bias, y, unit)

    def _byte_product(self, x, matrix, offset):
        """The product of bytes `[R, I]` less an offset and an `Int8Matrix`, `[R, O]`."""
        return self._torch.ops.onednn.qlinear_pointwise(
            x,
            1.0,
            offset,
            matrix.packed,
            matrix.scales,
            matrix.zeros,
            None,
            1.0,
            0,
            self._torch.float32,
            "none",
            [],
            "",
        )
