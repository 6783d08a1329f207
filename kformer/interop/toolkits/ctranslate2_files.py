"""The tensors in a `model.bin` of CTranslate2, versions 1 to 6 of the format, without the engine.

The file is a list of variables, each with its name, shape, type and numbers, and a list of aliases:
names of variables that are equal to others.
"""

import pathlib
import struct

import ml_dtypes
import numpy as np

from kformer.utils.checks import shown

_MOST_VARIABLES = 20_000
_MOST_AXES = 4
_TYPES = (np.float32, np.int8, np.int16, np.int32, np.float16, ml_dtypes.bfloat16)
# Before version 4 a type was a number of bytes.
_OLD_TYPES = {4: np.float32, 2: np.int16, 1: np.int8}
NEWEST = 6


def read_header(path):
    """Version, name and revision of the specification; `None` if it is no such file."""
    with open(path, "rb") as file:
        stream = _Stream(file, path)
        try:
            version = stream.number("I")
            if not 1 < version <= NEWEST:
                return None
            return version, stream.text(), stream.number("I")
        except ValueError:
            return None


class Variables:
    """The variables of a file. Numbers are read when they are asked for.

    Args:
        path: `pathlib.Path`.

    Attributes:
        version: int. Of the format.
        num_bytes: int. What the tensors take in 16 bits, at least the size of the file.

    Raises:
        ValueError: the file is damaged or of another format.
    """

    def __init__(self, path):
        self._path = pathlib.Path(path)
        self.names, self.aliases, self.used = {}, {}, set()
        with open(path, "rb") as file:
            stream = _Stream(file, path)
            self.version = stream.number("I")
            if not 1 < self.version <= NEWEST:
                raise ValueError(
                    f"{path} is of version {self.version}, and 2 to {NEWEST} are read."
                )
            self.specification, self.revision = stream.text(), stream.number("I")
            self._read_variables(stream)
            if self.version >= 3:
                self._read_aliases(stream)
        # A table of positions may be that of both sides, and is counted for both.
        twice = [name for alias, name in self.aliases.items() if alias.endswith("/encodings")][:1]
        shapes = [self.names[name][0] for name in (*self.names, *twice)]
        numbers = sum(int(np.prod(shape, dtype=object)) for shape in shapes)
        self.num_bytes = max(self._path.stat().st_size, 2 * numbers)

    def _read_variables(self, stream):
        for _ in range(stream.count(_MOST_VARIABLES)):
            name, rank = stream.text(), stream.number("B")
            if rank > _MOST_AXES:
                raise ValueError(f"{self._path} has the variable {shown(name)} of {rank} axes.")
            shape = tuple(stream.number("I") for _ in range(rank))
            kind, size = stream.number("B"), stream.number("I")
            if self.version >= 4:
                dtype = _TYPES[kind] if kind < len(_TYPES) else None
            else:
                dtype, size = _OLD_TYPES.get(kind), size * kind
            expected = int(np.prod(shape, dtype=object))
            if dtype is None or expected * np.dtype(dtype).itemsize != size or name in self.names:
                raise ValueError(
                    f"{self._path} has the variable {shown(name)} of the type {kind} and the shape "
                    f"{list(shape)} in {size} bytes: it is damaged."
                )
            self.names[name] = shape, np.dtype(dtype), stream.skip(size)

    def _read_aliases(self, stream):
        for _ in range(stream.count(_MOST_VARIABLES)):
            alias, name = stream.text(), stream.text()
            if name not in self.names or alias in self.names:
                raise ValueError(f"{self._path} has the alias {shown(alias)} of no variable.")
            self.aliases[alias] = name

    def __contains__(self, name):
        return self.aliases.get(name, name) in self.names

    def stored(self, name):
        """The name under which a variable is stored, that of the other variable for an alias."""
        return self.aliases.get(name, name)

    def shape(self, name):
        """The shape of a variable; ValueError if there is none."""
        if name not in self:
            raise ValueError(
                f"{self._path} lacks the variable {shown(name)}, so it is no Transformer of "
                "CTranslate2's for translation."
            )
        self.used.add(name)
        return self.names[self.stored(name)][0]

    def scalar(self, name, default=None):
        """The number of a variable without axes, or the default."""
        if name not in self:
            return default
        if self.shape(name) not in ((), (1,)):
            raise ValueError(f"{self._path} has the shape {list(self.shape(name))} for {name}.")
        return self._array(self.stored(name)).reshape(()).item()

    def read(self, name):
        """A variable as a NumPy array; 8-bit and 16-bit matrices as float32."""
        self.shape(name)
        name = self.stored(name)
        array = self._array(name)
        if array.dtype not in (np.int8, np.int16):
            return array
        if f"{name}_scale" not in self.names:
            raise ValueError(f"{self._path} lacks the scale of {shown(name)}.")
        scale = self._array(f"{name}_scale").astype(np.float32)
        if scale.size not in (1, len(array)):
            raise ValueError(f"{self._path} has {scale.size} scales of {shown(name)}.")
        return array.astype(np.float32) / scale.reshape(-1, *[1] * (array.ndim - 1))

    def is_quantized(self):
        """Whether matrices have 8 or 16 bits and scales."""
        return any(name.endswith("_scale") and self.names[name][0] for name in self.names)

    def unused(self):
        """The names of tensors and settings that nobody asked for, sorted."""
        used = {self.stored(name) for name in self.used}
        used |= {f"{name}_scale" for name in used}
        # The scale of an alias may be an alias, too, or not be there.
        used_aliases = self.used | {f"{name}_scale" for name in self.used}
        return sorted((self.names.keys() - used) | (self.aliases.keys() - used_aliases))

    def _array(self, name):
        shape, dtype, start = self.names[name]
        if 0 in shape:
            return np.zeros(shape, dtype)
        return np.memmap(self._path, dtype, "r", start, shape or (1,)).reshape(shape)


class _Stream:
    def __init__(self, file, path):
        self._file, self._path = file, path
        self._size = pathlib.Path(path).stat().st_size

    def number(self, kind):
        (value,) = struct.unpack(f"<{kind}", self._bytes(struct.calcsize(f"<{kind}")))
        return value

    def count(self, most):
        if (count := self.number("I")) > most:
            raise ValueError(f"{self._path} has a list of {count}: it is damaged.")
        return count

    def text(self):
        """A name, which ends with a zero."""
        try:
            return self._bytes(self.number("H"))[:-1].decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{self._path} has a name that is no text: it is damaged.") from None

    def skip(self, size):
        """Goes over bytes; returns where they begin."""
        start = self._file.tell()
        if start + size > self._size:
            raise ValueError(f"{self._path} ends early: copy it again.")
        self._file.seek(size, 1)
        return start

    def _bytes(self, count):
        content = self._file.read(count)
        if len(content) < count:
            raise ValueError(f"{self._path} ends early: copy it again.")
        return content
