"""Settings of the process that change its speed and not what it computes, or hardly: chosen by
whoever trains, never by an import.
"""

import ctypes
import os
import sys

import keras

from kformer.layers.products import set_training_products
from kformer.utils.checks import check_choice

PRECISIONS = ("highest", "high", "medium")

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4


def configure_machine(matmul_precision=None, keep_memory=False):
    """Sets how this process multiplies float32 matrices and whether it keeps the memory that it
    frees.

    Args:
        matmul_precision: of float32 products in training. "highest" multiplies in float32; "high"
            and "medium" allow TensorFloat-32 and bfloat16 on GPUs (TensorFlow has TensorFloat-32
            alone); on a processor with instructions for it "medium" rounds to bfloat16 what
            TensorFlow and PyTorch multiply in a training step, see `kformer.layers.products`, while
            JAX would gain nothing there. `None` leaves it to the backend.
        keep_memory: whether malloc keeps what is freed in place of giving it back. Else large
            arrays are asked from the system anew in each step, and cleared page by page, which
            takes PyTorch a tenth of a step of the tiny preset on a processor (JAX asks the system
            itself). The process's memory then stays at its peak. Only glibc can.

    Returns:
        A sentence that says what holds now.

    Raises:
        ValueError: there is no such precision.
    """
    backend = keras.backend.backend()
    parts = [f"{backend} on {_processors()} processor(s)"]
    if matmul_precision is not None:
        check_choice("matmul_precision", matmul_precision, PRECISIONS)
        _set_precision(backend, matmul_precision)
    rounds = (
        backend != "jax"
        and matmul_precision == "medium"
        and not _has_gpu(backend)
        and has_bfloat16_products()
    )
    set_training_products("bfloat16" if rounds else None)
    parts.append(
        f"float32 products: {matmul_precision or 'the usual'} precision{', bfloat16 in training steps' if rounds else ''}"
    )
    if keep_memory:
        parts.append(
            "freed memory is kept" if _keep_memory() else "freed memory cannot be kept (no glibc)"
        )
    if backend == "tensorflow":
        parts.append(
            f"oneDNN {'off' if os.environ.get('TF_ENABLE_ONEDNN_OPTS') == '0' else 'as TensorFlow chooses'}"
        )
    return f"Machine: {'; '.join(parts)}."


def has_bfloat16_products():
    """Whether this machine's processor says that it multiplies bfloat16 matrices itself: emulated,
    they would take longer than float32.
    """
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            words = set(file.read().split())
    except OSError:
        return False
    return not words.isdisjoint({"avx512_bf16", "amx_bf16", "bf16"})


def _has_gpu(backend):
    if backend == "torch":
        import torch

        return torch.cuda.is_available()
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


def _processors():
    threads = os.environ.get("OMP_NUM_THREADS", "")
    return (
        threads
        if threads.isdecimal()
        else len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count()
    )


def _set_precision(backend, precision):
    if backend == "torch":
        import torch

        torch.set_float32_matmul_precision(precision)
    elif backend == "jax":
        import jax

        jax.config.update(
            "jax_default_matmul_precision", {"medium": "default"}.get(precision, precision)
        )
    else:
        import tensorflow as tf

        tf.config.experimental.enable_tensor_float_32_execution(precision != "highest")


def _keep_memory():
    """Whether glibc's malloc does as it is told."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 2**26))
    return all([mallopt(name, value) == 1 for name, value in settings])
