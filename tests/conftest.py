"""Fixtures of all tests.

Run the tests with `python -m tests` (every backend), or with pytest and one KERAS_BACKEND.
"""

import collections
import functools
import importlib.util
import mmap
import os
import pathlib
import sys


def quick_compilation(flags):
    """Returns XLA's flags, and those that halve the time of a compilation.

    XLA ends the process at a flag that it does not know, and the second is not in every version:
    the libraries are searched for its name.
    """
    settings = {"xla_backend_optimization_level": "0"}
    if all(knows(*names, b"xla_cpu_use_fusion_emitters") for names in XLA_LIBRARIES):
        settings["xla_cpu_use_fusion_emitters"] = "false"
    flags_of_settings = [
        f"--{name}={value}" for name, value in settings.items() if name not in flags
    ]
    return " ".join([flags, *flags_of_settings]).strip()


XLA_LIBRARIES = (("jaxlib", "libjax_common.*"), ("tensorflow", "libtensorflow_framework.*"))


def knows(package, library, flag):
    """Returns whether the library of a package knows a flag, or the package is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        return True
    for path in pathlib.Path(spec.submodule_search_locations[0]).glob(library):
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            if text.find(flag) >= 0:
                return True
    return False


os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if os.environ.get("KFORMER_TEST_CORES"):  # Before a backend counts the cores.
    os.sched_setaffinity(0, map(int, os.environ["KFORMER_TEST_CORES"].split(",")))
if os.environ.get("KERAS_BACKEND") in ("jax", "tensorflow"):
    # JAX compiles each operation for each shape, and TensorFlow what serves single texts, and most
    # of it runs once. Compilation takes most of the time, so it does not optimize.
    os.environ["XLA_FLAGS"] = quick_compilation(os.environ.get("XLA_FLAGS", ""))
if os.environ.get("KERAS_BACKEND") == "jax":
    os.environ.setdefault(
        "JAX_COMPILATION_CACHE_DIR",
        str(pathlib.Path(__file__).parent.parent / ".pytest_cache" / "jax"),
    )
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# `from tests.peers import ...` works under a bare `pytest` too, which does not put the working
# directory on the path.
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

import kformer  # noqa: E402

SEED = 0
POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")


def pytest_configure(config):
    # Keras reads PyTorch tensors by np.array, which NumPy 2 warns about.
    config.addinivalue_line(
        "filterwarnings", "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"
    )


@functools.cache
def files_of_process(kind, share):
    """Returns the files of tests that a process reads: its share of all, such as "1/2"."""
    files = sorted(pathlib.Path(__file__).parent.rglob("test_*.py"))
    if kind == "smoke":
        files = [file for file in files if "mark.smoke" in file.read_text(encoding="utf-8")]
    index, count = map(int, share.split("/"))
    return files[index - 1 :: count]


def pytest_ignore_collect(collection_path):
    """Leaves the files of other processes out: to import all takes 20 seconds."""
    kind = os.environ.get("KFORMER_TESTS")
    if kind is None or collection_path.suffix != ".py":
        return None
    files = files_of_process(kind, os.environ["KFORMER_TEST_FILES"])
    return True if collection_path not in files else None


def pytest_collection_modifyitems(config, items):
    """Selects the tests of this process, as `python -m tests` names them in `KFORMER_TESTS`.

    short: all but those marked `heavy`. smoke: those marked `smoke`. any: those marked
    `any_backend`, which need no particular backend. each: the others, and those marked
    `any_backend(quickest="torch")` if this is PyTorch's process. A process may have a share of the
    files. JAX and TensorFlow, which compile and trace for each shape, have fewer values of a
    parameter: see `few_values`. Without the variable all tests run.
    """
    kind = os.environ.get("KFORMER_TESTS")
    if kind is None:
        return
    selected = [item for item in items if _is_of_kind(item, kind)]
    if keras.backend.backend() != "torch":
        selected = few_values(selected)
    files = files_of_process(kind, os.environ["KFORMER_TEST_FILES"])
    selected = [item for item in selected if item.path in files]
    deselected = set(items) - set(selected)
    if deselected:
        config.hook.pytest_deselected(items=list(deselected))
        items[:] = selected


def _is_of_kind(item, kind):
    if kind == "short":
        return item.get_closest_marker("heavy") is None
    if kind == "smoke":
        return item.get_closest_marker("smoke") is not None
    marker = item.get_closest_marker("any_backend")
    quickest = marker and marker.kwargs.get("quickest")
    if quickest in os.environ["KFORMER_TESTED_BACKENDS"].split(","):
        return kind == "each" and keras.backend.backend() == quickest
    return (marker is not None) == (kind == "any")


def few_values(items):
    """Returns the tests with the first and the last value of each parameter, each in one
    combination.
    """
    counts = collections.defaultdict(int)
    for item in items:
        for *parameter, index in _values(item):
            counts[*parameter] = max(counts[*parameter], index + 1)
    seen, selected = set(), []
    for item in items:
        values = _values(item)
        if all(index in (0, counts[*parameter] - 1) for *parameter, index in values):
            if not values or not seen.issuperset(values):
                selected.append(item)
            seen.update(values)
    return selected


def _values(item):
    """Returns a tuple of file, test, parameter and number of the value for each parameter."""
    indices = item.callspec.indices.items() if hasattr(item, "callspec") else ()
    return [(item.path, item.originalname, *each) for each in indices]


def pytest_sessionfinish(session, exitstatus):
    session.config.exit_status = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    """Ends a process of `python -m tests` at once: freeing all graphs one by one takes a minute."""
    if "KFORMER_TESTS" in os.environ and hasattr(config, "exit_status"):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(config.exit_status)


def pytest_report_header(config):
    return f"keras {keras.__version__} on {keras.backend.backend()}"


@pytest.fixture(autouse=True)
def same_start():
    """Every test begins with the same seeds and float32, whatever ran before it."""
    keras.utils.set_random_seed(SEED)
    keras.config.set_dtype_policy("float32")
    yield
    keras.config.set_dtype_policy("float32")


@pytest.fixture
def rng():
    """A NumPy generator, the same for every test."""
    return np.random.default_rng(SEED)


@pytest.fixture
def backend():
    """The name of the backend: tensorflow, jax or torch."""
    return keras.backend.backend()


@pytest.fixture
def quick_compile():
    """Arguments of `compile` for a test that needs no graph: TensorFlow traces one for seconds, per
    model.
    """
    return {"run_eagerly": keras.backend.backend() == "tensorflow"}


@pytest.fixture(scope="module")
def same_threads():
    """For tests with CTranslate2, which sets the number of OpenMP's threads: PyTorch's as well, and
    its sums change in the last bit.
    """
    if keras.backend.backend() != "torch":
        yield
        return
    import torch

    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=POLICIES)
def policy(request):
    """Each dtype policy in turn, set globally."""
    keras.config.set_dtype_policy(request.param)
    return request.param


@pytest.fixture
def randomize(rng):
    """A function that changes every trainable weight of a built layer or model at random.

    After it no weight has an initial value, such as a bias of zero.
    """

    def apply(layer):
        for weight in layer.trainable_weights:
            values = keras.ops.convert_to_numpy(weight.value).astype("float32")
            weight.assign(values + rng.normal(0, 0.1, values.shape).astype("float32"))
        return layer

    return apply


@pytest.fixture
def tiny_transformer(randomize):
    """A function that makes a very small Transformer with random weights; its arguments override
    the sizes below.

    The sizes are those of the tests of layers, too: JAX compiles each operation once per shape.
    """

    def make(**overrides):
        sizes = {
            "vocabulary_size": 11,
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "hidden_dim": 8,
            "intermediate_dim": 16,
            "num_heads": 2,
            "max_length": 16,
        }
        return randomize(kformer.Transformer(**{**sizes, **overrides}))

    return make


@pytest.fixture
def random_batch(rng):
    """A function that samples source and target ids; all rows but the first end with padding."""

    def sample(rows=2, source_length=5, target_length=4, vocabulary_size=11, pad_id=0, start_id=2):
        def ids(length):
            values = rng.integers(4, vocabulary_size, (rows, length)).astype("int32")
            lengths = np.append(length, rng.integers(2, length, rows - 1))
            return np.where(np.arange(length) < lengths[:, None], values, pad_id).astype("int32")

        target_ids = ids(target_length)
        target_ids[:, 0] = start_id
        return {"source_ids": ids(source_length), "target_ids": target_ids}

    return sample
