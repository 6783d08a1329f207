"""The folder of a published checkpoint. Reading it runs no code and never leaves the folder."""

import contextlib
import pathlib
import pickle
import zipfile

import numpy as np

from kformer.utils.files import read_json

# The tokenizer.json of 256,000 pieces has some 35 MB.
MOST_JSON_BYTES = 128 << 20
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
        ValueError: `config.json` is no JSON object, or a link leads out of the folder.
    """

    def __init__(self, path):
        self.path = pathlib.Path(path)
        if not self.path.is_dir():
            raise FileNotFoundError(
                f"There is no folder {self.path}: give the folder of a downloaded model, with its "
                "config.json."
            )
        self.config = self.read_json("config.json")
        if self.config is None:
            raise FileNotFoundError(
                f"{self.path} has no config.json, so it is no folder of a published model."
            )

    def file(self, name):
        """The path of a file, or `None` if there is none.

        Raises:
            ValueError: it is a link that leads out of the folder.
        """
        path = self.path / name
        if not path.is_symlink() and not path.exists():
            return None
        inside = False
        with contextlib.suppress(OSError, RuntimeError):  # a loop of links
            inside = path.resolve().is_relative_to(self.path.resolve())
        if not inside:
            raise ValueError(
                f"{path} is a link that leads out of the folder, and is not followed: copy the "
                "model with its files (as `cp -rL` does) and import the copy."
            )
        return path if path.is_file() else None

    def check_links(self):
        """Makes sure that no link in the folder leads out of it.

        Raises:
            ValueError: one does.
        """
        for path in sorted(self.path.rglob("*")):
            self.file(path.relative_to(self.path))

    def read_json(self, name):
        """The JSON object in a file; `None` if there is no such file.

        Raises:
            ValueError: the file holds none.
        """
        path = self.file(name)
        if path is None:
            return None
        return read_json(path, remedy="download the model again", most=MOST_JSON_BYTES)

    def open_weights(self):
        """The weights: a `Weights` over all files that hold them.

        Raises:
            FileNotFoundError: there are none, or a shard is missing.
            ValueError: a file is damaged, or two files hold the same tensor.
            ImportError: the library that reads the format is not installed.
        """
        for name, open_file in ((_SAFETENSORS, _open_safetensors), (_PICKLE, _open_pickle)):
            files = self._weight_files(name)
            if files:
                return Weights(files, open_file)
        raise FileNotFoundError(
            f"{self.path} has no weights: neither {_SAFETENSORS}, nor its shards with "
            f"{_SAFETENSORS}.index.json, nor {_PICKLE}."
        )

    def _weight_files(self, name):
        whole = self.file(name)
        if whole is not None:
            return [whole]
        index = self.read_json(f"{name}.index.json")
        if index is None:
            return []
        shards = index.get("weight_map")
        if (
            not isinstance(shards, dict)
            or not shards
            or not all(isinstance(shard, str) for shard in shards.values())
        ):
            raise ValueError(
                f"{self.path / name}.index.json has no weight_map: download the model again."
            )
        files = []
        for shard in sorted(set(shards.values())):
            # A plain file name: an index must not lead to another folder.
            path = self.file(shard) if pathlib.PurePath(shard).name == shard else None
            if path is None:
                raise FileNotFoundError(
                    f"{self.path} lacks {shard!r}, which its index of weights names: download the "
                    "model again."
                )
            files.append(path)
        return files


class Weights:
    """Tensors by name, from several files. A tensor is read when it is asked for.

    Args:
        files: list of `pathlib.Path`.
        open_file: function of a path. Returns a dict of name to shape, and a function of a name
            that returns an array.

    Attributes:
        shapes: dict of name to shape.
    """

    def __init__(self, files, open_file):
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
        except (
            AttributeError,
            TypeError,
        ) as error:  # Either library raises these, for example for 8-bit numbers.
            raise ValueError(
                f"The tensor {name!r} holds numbers that cannot be read ({error}); download "
                "weights in float32."
            ) from None


def _open_safetensors(path):
    try:
        import safetensors
    except ImportError:
        raise ImportError(
            f"Reading {path} needs safetensors, which is not installed here: run `pip install "
            "safetensors`."
        ) from None
    try:
        # Mapped into memory: a tensor's bytes are read when it is. The library checks the header's
        # size and that it covers the file.
        file = safetensors.safe_open(str(path), framework="numpy")
        names = file.keys()  # `file` cannot be iterated itself.
        shapes = {name: file.get_slice(name).get_shape() for name in names}
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged or no safetensors file ({error}): download it again."
        ) from None
    return shapes, file.get_tensor


def _open_pickle(path):
    try:
        import torch
    except ImportError:
        raise ImportError(
            f"Reading {path} needs PyTorch, which is not installed here: run `pip install torch`, "
            "or download the model's model.safetensors."
        ) from None
    try:
        # weights_only: only tensors are unpickled. Older files are no archives and cannot be
        # mapped.
        tensors = torch.load(
            path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
        )
    except (
        pickle.UnpicklingError,
        RuntimeError,
        EOFError,
        ValueError,
        KeyError,
        AttributeError,
        IndexError,
        TypeError,
    ) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"{path} is damaged, or holds more than weights, and was not loaded ({reason})."
        ) from None
    if not isinstance(tensors, dict) or not all(
        isinstance(value, torch.Tensor) for value in tensors.values()
    ):
        raise ValueError(
            f"{path} holds other things than tensors by name, so it is no file of weights."
        )

    def read(name):
        tensor = tensors[name].detach()
        if tensor.dtype == torch.bfloat16:
            import ml_dtypes

            return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return np.asarray(tensor.numpy())

    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}, read
