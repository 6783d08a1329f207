"""The content of files that `torch.save` wrote, without PyTorch.

Such a file is a pickle, which is a program: its names are functions that an unpickler calls. The
reader here calls nothing. It follows the few operations that build dicts, lists and tensors, and
makes a `ForeignObject`, which is only a record, of every other name.
"""

import dataclasses
import functools
import io
import math
import pathlib
import pickletools
import re
import struct
import zipfile

import ml_dtypes
import numpy as np

from kformer.interop.limits import MOST_LIST_BYTES
from kformer.interop.toolkits.archives import open_zip

# An operation takes up to some 100 bytes of memory. The vocabularies in an OpenNMT-py checkpoint
# take the most: some 10 operations a word.
_MOST_OPERATIONS = 3_000_000
_MOST_AXES = 16
_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001  # of files before PyTorch 1.6
_DTYPES = {
    "Double": np.float64,
    "Float": np.float32,
    "Half": np.float16,
    "BFloat16": ml_dtypes.bfloat16,
    "Long": np.int64,
    "Int": np.int32,
    "Short": np.int16,
    "Char": np.int8,
    "Byte": np.uint8,
    "Bool": np.bool_,
    "Untyped": np.uint8,
}
_DTYPES = {kind: np.dtype(dtype) for kind, dtype in _DTYPES.items()}
_DTYPE_NAMES = {dtype.name: dtype for dtype in _DTYPES.values()}
_STORAGE = re.compile(r"torch(?:\.storage)? _?(\w+)Storage")
_VALUES = frozenset(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING "
    "UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8".split()
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_KEYS = (str, bytes, int, float, bool, type(None))
_ERRORS = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, EOFError),
    *(struct.error, zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError),
)


@dataclasses.dataclass
class ForeignObject:
    """What a file says about an object of a class that this module does not know, or about a call
    of an unknown function. A name alone has no arguments.

    Args:
        name: str. Module and name, with a space between.
        arguments: tuple, default `None`. What it was made of.
        state: any, default `None`. What was set later, usually a dict of attributes.
        items: dict or list, default `None`. Its items, where it is a kind of dict or list.
    """

    name: str
    arguments: tuple | None = None
    state: object = None
    items: dict | list | None = None


@dataclasses.dataclass
class _Storage:
    """Numbers in a file, which tensors are views of."""

    path: pathlib.Path
    kind: str
    num_bytes: int
    start: int = 0


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file.

    Attributes:
        shape: tuple of int.
        dtype: NumPy dtype, or `None` for one that is not read.
    """

    shape: tuple
    dtype: np.dtype | None
    _strides: tuple
    _offset: int
    _storage: _Storage

    def read(self):
        """The tensor as a NumPy array over the mapped file.

        Raises:
            TypeError: it has a dtype that is not read.
        """
        if self.dtype is None:
            raise TypeError(f"{self._storage.kind} is not read")
        if 0 in self.shape:
            return np.zeros(self.shape, self.dtype)
        size, start = self.dtype.itemsize, self._storage.start
        last = sum((n - 1) * step for n, step in zip(self.shape, self._strides, strict=True))
        offset = start + self._offset * size
        flat = np.memmap(self._storage.path, self.dtype, "r", offset, (last + 1,))
        strides = [step * size for step in self._strides]
        return np.lib.stride_tricks.as_strided(flat, self.shape, strides, writeable=False)


class _Attributes(dict):
    """An `argparse.Namespace`."""


def read_torch(path):
    """The content of a PyTorch file (`.pt`, `.bin`), of today's zip format or the one before it.

    Nothing in the file is run, and the numbers of a tensor are read when they are asked for.

    Args:
        path: path.

    Returns:
        As the file has it: dicts (also for an `argparse.Namespace`), lists, tuples, sets, numbers,
        strings, `StoredTensor`s, and a `ForeignObject` for anything else.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged or of another format, or asks for more memory than its size
            justifies.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    try:
        return _read_zip(path) if zipfile.is_zipfile(path) else _read_old(path)
    except _ERRORS as error:
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise ValueError(
            f"{path} is damaged or no PyTorch file, and was not loaded ({reason[:200]})."
        ) from None


def _read_zip(path):
    """`data.pkl` and one member a storage, in a folder, uncompressed."""
    with open_zip(path) as archive, open(path, "rb") as file:
        members = {member.filename: member for member in archive.infolist()}
        if any(member.compress_type != zipfile.ZIP_STORED for member in members.values()):
            raise ValueError("its members are compressed")
        pickles = [name for name in members if name.rpartition("/")[2] == "data.pkl"]
        if len(pickles) != 1:
            raise ValueError("it is a zip file without a data.pkl")
        root, pickle = pickles[0].removesuffix("data.pkl"), members[pickles[0]]
        if pickle.file_size > MOST_LIST_BYTES:
            raise ValueError("its list of tensors is too long")
        if (order := members.get(f"{root}byteorder")) and archive.read(order) != b"little":
            raise ValueError("its numbers are big-endian")

        @functools.cache
        def storage(kind, key, num_bytes):
            member = members[f"{root}data/{key}"]
            file.seek(member.header_offset)
            start = file.tell() + 30 + sum(struct.unpack("<26x2H", file.read(30)))
            if num_bytes > member.file_size or start + num_bytes > path.stat().st_size:
                raise ValueError(f"it ends before the last number of {key!r}")
            return _Storage(path, kind, num_bytes, start)

        return _Reader(io.BytesIO(archive.read(pickle)), storage).read()


def _read_old(path):
    """Five pickles (a magic number, the version, the machine's sizes, the content, the storages'
    keys), then for each storage its length and its numbers."""
    storages = {}

    def storage(kind, key, num_bytes):
        known = storages.setdefault(key, _Storage(path, kind, num_bytes))
        if (kind, num_bytes) != (known.kind, known.num_bytes):
            raise ValueError(f"the storage {key!r} has two sizes")
        return known

    with open(path, "rb") as file:
        stream = io.BytesIO(file.read(MOST_LIST_BYTES))
    if _Reader(stream, storage).read() != _MAGIC or _Reader(stream, storage).read() != _VERSION:
        raise ValueError("it does not begin as PyTorch's files do")
    machine, content, keys = (_Reader(stream, storage).read() for _ in range(3))
    if not machine["little_endian"]:
        raise ValueError("its numbers are big-endian")
    start = stream.tell()
    if sorted(keys) != sorted(storages):
        raise ValueError("its tensors are not those of its list")
    for key in keys:
        storages[key].start = start + 8
        start += 8 + storages[key].num_bytes
    if start > path.stat().st_size:
        raise ValueError("it ends before its last number")
    return content


class _Reader:
    """Reads one pickle.

    Args:
        stream: binary stream.
        storage: function of a kind ("Float"), a key and a number of bytes, which returns a
            `_Storage`.
    """

    def __init__(self, stream, storage):
        self._stream, self._storage = stream, storage
        self._stack, self._marks, self._memo = [], [], {}
        self._operations = 0

    def read(self):
        """The object of the pickle."""
        for operation, argument, _ in pickletools.genops(self._stream):
            self._count(1)
            self._follow(operation.name, argument)
        return self._stack.pop()

    def _count(self, number):
        """Counts operations, and items that one copies: both take memory."""
        self._operations += number
        if self._operations > _MOST_OPERATIONS:
            raise ValueError("its list of objects is too long")

    def _follow(self, name, argument):
        stack = self._stack
        if name in _VALUES:
            stack.append(argument)
        elif name.endswith("PUT"):
            self._memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name.endswith("GET"):
            stack.append(self._memo[argument])
        elif name in _TUPLES:
            stack.append(tuple(self._pop(_TUPLES[name])))
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name == "TUPLE":
            stack.append(tuple(self._pop_marked()))
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "DICT":
            stack.append(_dict(_pairs(self._pop_marked())))
        elif name in ("EMPTY_LIST", "LIST"):
            stack.append(self._pop_marked() if name == "LIST" else [])
        elif name in ("EMPTY_SET", "FROZENSET"):
            stack.append(_set(self._pop_marked() if name == "FROZENSET" else ()))
        elif name in ("SETITEM", "SETITEMS"):
            values = self._pop(2) if name == "SETITEM" else self._pop_marked()
            _items(stack[-1], dict).update(_dict(_pairs(values)))
        elif name in ("APPEND", "APPENDS"):
            values = self._pop(1) if name == "APPEND" else self._pop_marked()
            _items(stack[-1], list).extend(values)
        elif name == "ADDITEMS":
            values = self._pop_marked()
            _items(stack[-1], set).update(_set(values))
        elif name in ("POP", "POP_MARK"):  # In the pickle of a tuple that holds itself.
            self._pop(1) if name == "POP" else self._pop_marked()
        elif name == "GLOBAL":
            stack.append(ForeignObject(argument))
        elif name == "STACK_GLOBAL":
            stack.append(ForeignObject(" ".join(self._pop(2))))
        elif name in ("REDUCE", "NEWOBJ"):
            stack.append(self._made(*self._pop(2)))
        elif name == "BUILD":
            (state,) = self._pop(1)
            self._build(stack[-1], state)
        elif name == "BINPERSID":
            (identity,) = self._pop(1)
            stack.append(self._stored(*identity))
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise ValueError(f"it has the pickle operation {name}")

    def _pop(self, number):
        start = len(self._stack) - number
        if start < (self._marks[-1] if self._marks else 0):
            raise ValueError("its pickle takes more than it has")
        values = self._stack[start:]
        del self._stack[start:]
        return values

    def _pop_marked(self):
        mark = self._marks.pop()
        return self._pop(len(self._stack) - mark)

    def _made(self, function, arguments):
        """What a call of a name returns, or a record of the call."""
        name, first = function.name, arguments[0] if arguments else ()
        if name == "torch._utils _rebuild_parameter":
            return first
        if name.startswith("torch._utils _rebuild_tensor"):
            return _tensor(*arguments[:4], arguments[6] if name.endswith("_v3") else None)
        if name == "argparse Namespace":
            return _Attributes()
        if name == "collections defaultdict":
            return {}
        if name in ("collections OrderedDict", "collections Counter"):
            self._count(len(first))
            return _dict(first.items() if isinstance(first, dict) else first)
        if name in ("builtins set", "__builtin__ set"):
            self._count(len(first))
            return _set(first)
        if name == "torch Size":
            self._count(len(first))
            return tuple(first)
        return ForeignObject(name, arguments)

    def _build(self, target, state):
        if isinstance(target, _Attributes):
            self._count(len(state))
            target.update(state)
        elif isinstance(target, ForeignObject):
            target.state = state

    def _stored(self, mark, kind, key, device, count, view=None):
        """The storage that a persistent id names."""
        match = _STORAGE.fullmatch(kind.name)
        if mark != "storage" or match is None or view is not None:
            raise ValueError(f"it has a storage that is not read, {kind.name}")
        if match[1] not in _DTYPES or not _is_size(count):
            raise ValueError(f"it has {count} numbers of the kind {match[1]}")
        return self._storage(match[1], key, count * _DTYPES[match[1]].itemsize)


def _tensor(storage, offset, shape, strides, dtype):
    sizes = (offset, *shape, *strides)
    if len(shape) != len(strides) or len(shape) > _MOST_AXES or not all(map(_is_size, sizes)):
        raise ValueError("it has a tensor of an impossible shape")
    if dtype is not None:
        dtype = _DTYPE_NAMES.get(dtype.name.removeprefix("torch "))
    elif storage.kind != "Untyped":
        dtype = _DTYPES[storage.kind]
    size = 1 if dtype is None else dtype.itemsize
    last = sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    if 0 in shape:
        last = -1
    if max(math.prod(shape), offset + last + 1) * size > storage.num_bytes:
        raise ValueError(
            f"a tensor has the shape {list(shape)}, but the file stores fewer numbers for it"
        )
    return StoredTensor(tuple(shape), dtype, tuple(strides), offset, storage)


def _is_size(value):
    return type(value) is int and 0 <= value < 1 << 48


def _items(target, kind):
    """The container that items are added to."""
    if isinstance(target, ForeignObject):
        if target.items is None:
            target.items = kind()
        target = target.items
    if not isinstance(target, kind):
        raise ValueError(f"its pickle adds items to a {type(target).__name__}")
    return target


def _pairs(values):
    return zip(values[::2], values[1::2], strict=True)


def _dict(pairs):
    return {_key(key): value for key, value in pairs}


def _set(values):
    return {_key(value) for value in values}


def _key(value):
    """A key. The hash of a tuple of tuples may take for ever, so few types are keys."""
    if not isinstance(value, _KEYS):
        raise ValueError(f"it has a {type(value).__name__} as a key")
    return value
