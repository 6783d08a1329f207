"""Limits on what a `.keras` file may ask for, so that loading a stranger's run takes no more memory
than its weights justify. They are checked before Keras reads the file.
"""

import concurrent.futures
import io
import math
import random
import zipfile

import h5py
import keras

from kformer.utils.files import parse_json

# The configuration of a large model of Keras's own layers has some 100 KB.
MOST_CONFIG_BYTES = 4 << 20
MOST_MEMBERS = 10_000
_JSON_FILES = ("config.json", "metadata.json")
# A layer may have some more weights than it saves, such as those of LoRA.
_SPARE_NUMBERS = 1 << 24
# Numbers in the variables of a metric.
_MOST_METRIC_NUMBERS = 1 << 22
# The options that are numbers of layers, and so of Python objects, whatever their sizes.
_NUMBERS_OF_LAYERS = ("num_layers", "num_encoder_layers", "num_decoder_layers")


def check_archive(path):
    """Checks that a `.keras` file unpacks to about its own size, and what its metrics ask for.

    Args:
        path: `pathlib.Path` of the file.

    Returns:
        `(config, sizes)`: the configuration of its model, a dict, and how many numbers each of its
        weights has, a list of int.

    Raises:
        ValueError: it unpacks to more, or a metric would take too much memory.
        zipfile.BadZipFile, OSError: it is not an archive.
    """
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        unpacked = sum(member.file_size for member in members)
        if len(members) > MOST_MEMBERS or unpacked > 2 * size + MOST_CONFIG_BYTES:
            files = f"{len(members):,} files of {unpacked:,} bytes"
            _refuse(path, f"has {size:,} bytes, but unpacks to {files}")
        for member in members:
            if member.filename in _JSON_FILES and member.file_size > MOST_CONFIG_BYTES:
                name, size = member.filename, member.file_size
                _refuse(path, f"has a {name} of {size:,} bytes, more than any model needs")
        config = {}
        if "config.json" in archive.namelist():
            config = parse_json(archive.read("config.json"), f"config.json of {path}")
        weights = [member for member in members if member.filename.endswith(".h5")]
        sizes = [size for member in weights for size in _stored_sizes(archive, member, path)]
    for entry in _objects([config.pop("compile_config", None)]):
        # Of a metric: a matrix of classes, a list of thresholds.
        for name, power in (("num_classes", 2), ("num_thresholds", 1)):
            value = entry.get(name)
            if isinstance(value, int | float) and value > _MOST_METRIC_NUMBERS ** (1 / power):
                _refuse(path, f"has a metric with {name}={value}")
    return config, sizes


def check_weights(config, sizes, path):
    """Checks that a model has about as many weights as its file.

    The model is built once without memory for its weights, to add up their sizes.

    Args:
        config, sizes: as `check_archive` returns them.
        path: path of the file, for the message.

    Raises:
        ValueError: it has more, or cannot be built.
    """
    for entry in _objects([config]):
        values = [entry.get(name) for name in _NUMBERS_OF_LAYERS]
        layers = max((value for value in values if type(value) is int), default=0)
        if layers > len(sizes):
            need = f"its configuration asks for at least {layers:,} layers"
            _refuse(path, f"has {len(sizes):,} weights, but {need}")
    # Keras keeps the variables without memory in a list of the thread, which ends with this one.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        numbers = thread.submit(_numbers_of_model, config).result()
    if numbers > 2 * sum(sizes) + _SPARE_NUMBERS:
        count = sum(sizes)
        _refuse(path, f"has {count:,} numbers in its weights, but its layers ask for {numbers:,}")


def _numbers_of_model(config):
    state = random.getstate()  # A layer without a seed chooses one.
    try:
        with keras.StatelessScope(initialize_variables=False):
            model = keras.saving.deserialize_keras_object(config, safe_mode=True)
            return sum(math.prod(variable.shape) for variable in model.variables)
    finally:
        random.setstate(state)


def _stored_sizes(archive, member, path):
    """Returns how many numbers each dataset of an HDF5 file has."""
    sizes = []

    def visit(name, item):
        is_own = True
        if isinstance(item, h5py.Group):
            # Each is in this file itself: a link may lead to another file of the machine.
            is_own = all(type(item.get(key, getlink=True)) is h5py.HardLink for key in item)
        elif isinstance(item, h5py.Dataset):
            is_own = not item.external and not item.is_virtual
            if item.dtype.itemsize:
                sizes.append((math.prod(item.shape or ()), item.dtype.itemsize))
        if not is_own:
            _refuse(path, "has weights that are stored elsewhere")

    # In memory, as Keras reads it afterwards: h5py jumps to and fro, and at each jump back a member
    # of an archive is read again from its beginning.
    content = io.BytesIO(archive.read(member))
    try:
        with h5py.File(content, "r") as weights:
            visit("", weights)
            weights.visititems(visit)
    except (OSError, RuntimeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} has no readable {member.filename} ({error}).") from None
    if sum(count * width for count, width in sizes) > member.file_size:
        size = member.file_size
        _refuse(path, f"has weights that claim more bytes than the {size:,} of the file")
    return [count for count, _ in sizes]


def _refuse(path, reason):
    raise ValueError(f"{path} {reason}: it is not loaded.")


def _objects(value):
    """Yields the JSON objects within a JSON value, itself included."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
        children = value.values() if isinstance(value, dict) else value
        waiting += [child for child in children if isinstance(child, dict | list)]
