"""Weights in a `pytorch_model.bin`. Nothing but tensors is unpickled, and none that is larger than
what the file stores for it."""

import pickletools
import re
import zipfile

import numpy as np

from kformer.interop.limits import MOST_LIST_BYTES
from kformer_options.installed import check_extra

# What PyTorch names in a pickle of tensors. Its own list for `weights_only` is longer, and has
# functions that allocate as many bytes as they are asked for.
_TENSOR_PARTS = re.compile(
    r"torch\._utils _rebuild_(tensor(_v[23])?|parameter)|collections OrderedDict|"
    r"torch(\.storage)? \w+Storage|torch (Size|b?float\w+|u?int\d+|bool|half|double)"
)
_PICKLES_OF_OLD_FILES = 4


def open_pickle(path):
    """The tensors of a file.

    Args:
        path: `pathlib.Path`.

    Returns:
        Dict of name to shape, and a function of a name that returns an array.

    Raises:
        ImportError: PyTorch is not installed.
        ValueError: the file is damaged, holds other things than tensors, or a tensor has more
            numbers than the file stores for it.
    """
    check_extra(f"Reading {path}, without a model.safetensors beside it,", "torch", ("torch",))
    import torch

    try:
        # Older files are not archives and cannot be mapped.
        is_archive = zipfile.is_zipfile(path)
        if is_archive:
            _check_archive(path)
        else:
            with open(path, "rb") as file:
                for _ in range(_PICKLES_OF_OLD_FILES):
                    _check_pickle(file)
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)
    except Exception as error:  # Damaged files raise many kinds.
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(
            f"{path} is damaged, or holds more than weights, and was not loaded ({reason})."
        ) from None
    is_table = isinstance(tensors, dict)
    if not is_table or not all(isinstance(value, torch.Tensor) for value in tensors.values()):
        raise ValueError(
            f"{path} holds other things than tensors by name, so it is not a file of weights."
        )
    for name, tensor in tensors.items():
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise ValueError(
                f"{path}: the tensor {name!r} has the shape {list(tensor.shape)}, but the file "
                "stores fewer numbers for it."
            )

    def read(name):
        tensor = tensors[name].detach()
        if tensor.dtype == torch.bfloat16:
            import ml_dtypes

            return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return np.asarray(tensor.numpy())

    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}, read


def _check_archive(path):
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED:
                raise ValueError("its members are compressed")
            if member.filename.rpartition("/")[2] == "data.pkl":
                with archive.open(member) as file:
                    _check_pickle(file)


def _check_pickle(file):
    """Refuses a pickle that names more than the parts of tensors, without running it."""
    start = file.tell()
    for operation, argument, _ in pickletools.genops(file):
        is_name = operation.name in ("GLOBAL", "INST", "STACK_GLOBAL")
        if is_name and not _TENSOR_PARTS.fullmatch(argument or ""):
            raise ValueError(f"it names {argument or 'an object'}")
        if file.tell() - start > MOST_LIST_BYTES:
            raise ValueError("its list of tensors is too long")
