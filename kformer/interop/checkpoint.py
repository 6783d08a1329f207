"""The folder of a published checkpoint. Reading it runs no code and never leaves the folder."""

import contextlib
import os
import pathlib
import struct

from kformer.interop.hub import cache_root
from kformer.interop.limits import MOST_LIST_BYTES, read_settings
from kformer.interop.toolkits.torch_files import StoredTensor, read_torch
from kformer_options.installed import check_extra
from kformer_options.model_folders import check_published

_SAFETENSORS, _PICKLE = "model.safetensors", "pytorch_model.bin"


class CheckpointFolder:
    """A folder as a model hub lays it out: `config.json`, weights in one file or several, tokenizer
    files.

    Args:
        path: path of the folder.

    Attributes:
        path: `pathlib.Path`.
        config: dict, the content of `config.json`.

    Raises:
        FileNotFoundError: there is no such folder, or no `config.json` in it.
        ValueError: `config.json` is not a JSON object, or a link leads out of the folder.
    """

    def __init__(self, path):
        self.path = pathlib.Path(path)
        check_published(self.path)
        for path in sorted(self.path.rglob("*")):
            self.file(path.relative_to(self.path))  # Raises if it is a link that leads out.
        self.config = self.read_json("config.json")

    def file(self, name):
        """The path of a file, or `None` if there is none.

        Raises:
            ValueError: it is a link that leads out of the folder.
        """
        path = self.path / name
        if not os.path.lexists(path):
            return None
        inside = False
        # A download cache keeps the content beside the folder, and links to it.
        root = cache_root(self.path) or self.path.resolve()
        with contextlib.suppress(OSError, RuntimeError):  # a loop of links
            inside = path.resolve().is_relative_to(root)
        if not inside:
            raise ValueError(
                f"{path} is a link that leads out of the folder, and is not followed: copy the "
                "model with its files (as `cp -rL` does) and import the copy."
            )
        return path if path.is_file() else None

    def read_json(self, name):
        """The JSON object in a file; `None` if there is no such file.

        Raises:
            ValueError: the file holds none.
        """
        path = self.file(name)
        return None if path is None else read_settings(path, "download the model again")

    def open_weights(self):
        """The weights: a `Weights` over all files that hold them.

        Raises:
            FileNotFoundError: there are none, or a shard is missing.
            ValueError: a file is damaged, or two files hold the same tensor.
            ImportError: the library that reads the format is not installed.
        """
        for name, open_file in ((_SAFETENSORS, open_safetensors), (_PICKLE, _open_pickle)):
            files = self._weight_files(name)
            if files:
                return Weights(files, open_file)
        raise FileNotFoundError(
            f"{self.path} has no weights: neither {_SAFETENSORS}, nor its shards with "
            f"{_SAFETENSORS}.index.json, nor {_PICKLE}."
        )

    def _weight_files(self, name):
        if whole := self.file(name):
            return [whole]
        index = self.read_json(f"{name}.index.json")
        if index is None:
            return []
        table = index.get("weight_map")
        shards = list(table.values()) if isinstance(table, dict) else []
        if not shards or not all(isinstance(shard, str) for shard in shards):
            raise ValueError(
                f"{self.path / name}.index.json has no weight_map: download the model again."
            )
        # Plain file names: an index must not lead to another folder.
        files = {
            shard: self.file(shard) if pathlib.PurePath(shard).name == shard else None
            for shard in sorted(set(shards))
        }
        if missing := [shard for shard, path in files.items() if path is None]:
            raise FileNotFoundError(
                f"{self.path} lacks {missing[0]!r}, which its index of weights names: download "
                "the model again."
            )
        return list(files.values())


class Weights:
    """Tensors by name, from several files. A tensor is read when it is asked for.

    Args:
        files: list of `pathlib.Path`.
        open_file: function of a path. Returns a dict of name to shape, and a function of a name
            that returns an array.

    Attributes:
        shapes: dict of name to shape.
        num_bytes: int. The size of the files.
    """

    def __init__(self, files, open_file):
        self.num_bytes = sum(path.stat().st_size for path in files)
        self._readers, self.shapes = {}, {}
        for path in files:
            shapes, read = open_file(path)
            for name, shape in shapes.items():
                if name in self.shapes:
                    raise ValueError(
                        f"The tensor {name!r} is in two files of weights, one of them {path}: "
                        "download the model again."
                    )
                self.shapes[name] = tuple(shape)
                self._readers[name] = read

    def read(self, name):
        """A tensor as a NumPy array, in the dtype in which it is stored.

        Raises:
            ValueError: NumPy has no such dtype.
        """
        try:
            return self._readers[name](name)
        except (AttributeError, TypeError) as error:  # For example of 8-bit numbers.
            raise ValueError(
                f"The tensor {name!r} holds numbers that cannot be read ({error}); download "
                "weights in float32."
            ) from None


def open_safetensors(path):
    """The tensors of a safetensors file, for `Weights`."""
    check_extra(f"Reading {path}", "interop")
    import safetensors

    try:
        with open(path, "rb") as start:
            (header,) = struct.unpack("<Q", start.read(8))
        if header > MOST_LIST_BYTES:
            raise ValueError(f"header too large: {header} bytes")
        # Mapped into memory: a tensor's bytes are read when it is. The library checks that the
        # header covers the file.
        file = safetensors.safe_open(str(path), framework="numpy")
        names = file.keys()  # `file` cannot be iterated itself.
        shapes = {name: file.get_slice(name).get_shape() for name in names}
    except (safetensors.SafetensorError, OSError, ValueError, struct.error) as error:
        raise ValueError(
            f"{path} is damaged or no safetensors file ({error}): download it again."
        ) from None
    return shapes, file.get_tensor


def _open_pickle(path):
    tensors = read_torch(path)
    is_table = isinstance(tensors, dict) and all(isinstance(name, str) for name in tensors)
    if not is_table or not all(isinstance(value, StoredTensor) for value in tensors.values()):
        raise ValueError(
            f"{path} holds more than weights, or other things than tensors by name, and was not "
            "loaded."
        )
    return {name: each.shape for name, each in tensors.items()}, lambda name: tensors[name].read()
