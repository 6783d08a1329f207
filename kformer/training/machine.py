"""Settings of the process that change its speed; an import never changes them."""

import ctypes
import os
import sys

import keras

from kformer.layers.products import set_training_products
from kformer.utils.checks import check_choice
from kformer_options.training import MATMUL_PRECISIONS
from kformer_options.wording import counted

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4

_configuration = {}


def configuration():
    """Returns the arguments of `configure_machine` for what is in force (dict)."""
    return dict(_configuration)


def configure_machine(matmul_precision=None, keep_memory=False):
    """Sets the precision of float32 products, and whether the process keeps freed memory.

    Args:
        matmul_precision: str or `None`, default `None`. The precision of float32 matrix products in
            training. "highest" multiplies in float32; "high" and "medium" allow TensorFloat-32 and
            bfloat16 on GPUs (TensorFlow has only TensorFloat-32). On a CPU with bfloat16
            instructions "medium" rounds the matrices of a training step to bfloat16 on TensorFlow
            and PyTorch; JAX would not be faster. `None` leaves what an earlier call set, or else
            the backend's default.
        keep_memory: bool, default False. Whether malloc keeps freed memory. Otherwise large arrays
            are requested from the system in each step and cleared page by page, which takes PyTorch
            a tenth of a step of the tiny preset on a CPU. (JAX has its own allocator.) The memory
            of the process then stays at its peak. Needs glibc. A later call does not undo it.

    Returns:
        str, a sentence that describes the settings.

    Raises:
        ValueError: the precision is unknown.

    Example:
    ```python
    print(kformer.training.configure_machine())
    # Machine: torch on 2 CPU cores; float32 products: default precision.
    ```
    """
    global _configuration
    backend = keras.backend.backend()
    if matmul_precision is None:
        matmul_precision = _configuration.get("matmul_precision")
    keep_memory = keep_memory or _configuration.get("keep_memory", False)
    parts = [f"{backend} on {counted(count_cores(), 'CPU core')}"]
    if matmul_precision is not None:
        check_choice("matmul_precision", matmul_precision, MATMUL_PRECISIONS)
        _set_precision(backend, matmul_precision)
    rounds = backend != "jax" and matmul_precision == "medium"
    rounds = rounds and not has_gpu() and has_bfloat16_products()
    set_training_products("bfloat16" if rounds else None)
    steps = ", bfloat16 in training steps" if rounds else ""
    parts.append(f"float32 products: {matmul_precision or 'default'} precision{steps}")
    if keep_memory:
        is_kept = _keep_memory()
        parts.append(f"freed memory {'is kept' if is_kept else 'cannot be kept (no glibc)'}")
    if backend == "tensorflow":
        is_off = os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0"
        parts.append(f"oneDNN {'off' if is_off else 'as TensorFlow chooses'}")
    _configuration = {"matmul_precision": matmul_precision, "keep_memory": keep_memory}
    return f"Machine: {'; '.join(parts)}."


def has_bfloat16_products():
    """Whether the CPU has instructions for bfloat16 products. Without them, they are slower than
    float32.
    """
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            words = set(file.read().split())
    except OSError:
        return False
    return not words.isdisjoint({"avx512_bf16", "amx_bf16", "bf16"})


def has_gpu():
    """Whether the backend computes on a GPU."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return jax.default_backend() == "gpu"
    if backend == "torch":
        import torch

        return torch.cuda.is_available()
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


def count_cores():
    """Returns the CPU cores that this process may use (int)."""
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal():
        return int(threads)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _set_precision(backend, precision):
    if backend == "torch":
        import torch

        torch.set_float32_matmul_precision(precision)
    elif backend == "jax":
        import jax

        precision = "default" if precision == "medium" else precision
        jax.config.update("jax_default_matmul_precision", precision)
    else:
        import tensorflow as tf

        tf.config.experimental.enable_tensor_float_32_execution(precision != "highest")


def _keep_memory():
    """Makes malloc keep freed memory; returns whether it could."""

    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 2**26))
    return all([mallopt(name, value) == 1 for name, value in settings])
