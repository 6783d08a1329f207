"""What is here: the backends of Keras, the packages of the extras, the CPU.

This module imports only the standard library, as `kformer_options.training` does.
"""

import importlib.util
import json
import os
import pathlib
import platform

from kformer_options.names import named

BACKENDS = ("tensorflow", "jax", "torch")
# The packages that show whether an extra of `pyproject.toml` is installed.
EXTRAS = {
    "tensorflow": ("tensorflow", "tensorflow_text"),
    "serve": ("starlette", "uvicorn", "httptools", "prometheus_client", "yaml"),
    "grpc": ("grpc", "tensorflow_serving"),
    "cluster": ("ray", "pyarrow"),
    "ctranslate2": ("ctranslate2",),
    "interop": ("safetensors",),
    "opennmt": ("pyonmttok",),
    "onnx": ("onnx",),
    "plots": ("matplotlib",),
    "corpora": ("yaml", "ftfy", "py3langid", "pyarrow", "polib"),
    "documents": ("markdown_it", "polib", "sentencex"),
}


def is_installed(package):
    """Returns whether Python finds a package. It is not imported."""
    return importlib.util.find_spec(package) is not None


def check_extra(what, extra, packages=None):
    """Checks that the packages of an extra are installed.

    Args:
        what: str. What needs them: the subject of the message.
        extra: str. A name in `EXTRAS`.
        packages: tuple of str, default `None`, for all of the extra. Those that are needed.

    Raises:
        ImportError: one is not installed. The message names what to install.
    """
    missing = [name for name in packages or EXTRAS[extra] if not is_installed(name)]
    if missing:
        names, verb = " and ".join(missing).replace("_", "-"), "are" if missing[1:] else "is"
        raise ImportError(
            f"{what} needs {names}, which {verb} not installed here: run `pip install "
            f'"kformer[{extra}]"`.'
        )


def check_server(engine, grpc_port):
    """Checks that the packages that a server needs are installed.

    Args:
        engine: str, a name in `kformer_options.serving.ENGINES`.
        grpc_port: int or `None`. The port of gRPC; without one its packages are not needed.

    Raises:
        ImportError: one is not. The message names the extra that brings it.
    """
    check_extra("The server", "serve")
    if engine in ("torch", "ctranslate2"):
        check_extra(f"{named('engine')} {engine}", engine, (engine,))
    else:
        check_extra("A SavedModel", "tensorflow")
    if grpc_port is not None:
        check_extra(named("grpc_port"), "grpc")
    if engine == "ray":
        check_extra(f"{named('engine')} ray", "cluster", ("ray",))


def cpu_name():
    """Returns the CPU's name as the system gives it, vendor first."""
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
        lines = [line.partition(":") for line in text.splitlines()]
        return next(value.strip() for name, _, value in lines if name.strip() == "model name")
    except (OSError, StopIteration):
        return platform.processor()


def keras_backend():
    """Returns the backend that Keras takes: of KERAS_BACKEND, of its own file, or TensorFlow."""
    if backend := os.environ.get("KERAS_BACKEND"):
        return backend
    home = os.environ.get("KERAS_HOME") or pathlib.Path.home() / ".keras"
    try:
        text = (pathlib.Path(home) / "keras.json").read_text(encoding="utf-8")
        return json.loads(text).get("backend", BACKENDS[0])
    except (OSError, ValueError, AttributeError):
        return BACKENDS[0]


def installed_backends():
    """Returns the backends that are installed, PyTorch first: it starts the quickest."""
    return [name for name in reversed(BACKENDS) if is_installed(name)]


def check_backend():
    """Checks that Keras can be imported with its backend.

    Raises:
        ImportError: no backend is installed, or another one than Keras takes.
    """
    backend = keras_backend()
    if is_installed(backend):
        return
    installed = installed_backends()
    if not installed:
        raise ImportError(
            "kformer needs a backend of Keras, and none is installed here: run `pip install "
            '"kformer[tensorflow]"`, or with torch or jax in its place.'
        )
    raise ImportError(
        f"Keras would take the backend '{backend}', which is not installed here, but "
        f"{' and '.join(installed)} {'are' if installed[1:] else 'is'}: set the environment "
        f"variable KERAS_BACKEND={installed[0]} before Python imports kformer."
    )
