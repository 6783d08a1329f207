"""Limits on what a `.keras` file may ask for, so that loading a stranger's run takes no more memory
than its weights justify. They are checked before Keras reads the file.
"""

import contextlib
import io
import json
import math
import threading
import zipfile

import h5py
import keras

# The configuration of a large model of Keras's own layers has some 100 KB.
MOST_CONFIG_BYTES = 4 << 20
MOST_MEMBERS = 10_000
# A layer may have some more weights than it saves, such as those of LoRA.
_SPARE_NUMBERS = 1 << 24
# Numbers in the variables of a metric: a matrix of classes, a list of thresholds.
_MOST_METRIC_NUMBERS = 1 << 22
# A whole number up to this one is not a size that would matter.
_SMALL = 1 << 20
# The options of kformer's and of Keras's layers that are sizes of weights.
_SIZES = {
    *("hidden_dim", "intermediate_dim", "num_heads", "head_dim", "num_key_value_heads"),
    *("decoder_intermediate_dim", "decoder_num_heads"),
    *("vocabulary_size", "target_vocabulary_size", "num_outputs", "relative_buckets"),
    *("num_layers", "num_encoder_layers", "num_decoder_layers", "num_features", "num_targets"),
    *("units", "filters", "input_dim", "output_dim", "key_dim", "value_dim", "global_tokens"),
}


def check_archive(path):
    """Checks that a `.keras` file unpacks to about its own size, and has weights for its model.

    Args:
        path: `pathlib.Path` of the file.

    Returns:
        How many numbers its weights have, int.

    Raises:
        ValueError: it unpacks to more, or its configuration asks for more than the file has.
        zipfile.BadZipFile, OSError: it is not an archive.
    """
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        unpacked = sum(member.file_size for member in members)
        if len(members) > MOST_MEMBERS or unpacked > 2 * size + MOST_CONFIG_BYTES:
            raise ValueError(
                f"{path} has {size:,} bytes, but unpacks to {len(members):,} files of "
                f"{unpacked:,} bytes: it is not loaded."
            )
        names = {member.filename: member for member in members}
        for name in {"config.json", "metadata.json"} & names.keys():
            if names[name].file_size > MOST_CONFIG_BYTES:
                raise ValueError(
                    f"{path} has a {name} of {names[name].file_size:,} bytes, more than any model "
                    "needs: it is not loaded."
                )
        config = _read_config(archive, path) if "config.json" in names else {}
        numbers = sum(
            _stored_numbers(archive, names[name], path) for name in names if name.endswith(".h5")
        )
    for part in _parts([config.pop("compile_config", None)]):
        _check_metric(part, path)
    needed = max(_least_numbers(part) for part in _parts(config))
    if needed > numbers:
        raise ValueError(
            f"{path} has {numbers:,} numbers in its weights, but its configuration asks for at "
            f"least {needed:,}: it is not loaded."
        )
    return numbers


_making = threading.RLock()


@contextlib.contextmanager
def no_more_weights_than(numbers, path):
    """A context in which layers that this thread makes have about as many weights as a file has.

    The weights of a layer of Keras's own, or of a user, are known when it makes them, and not from
    its configuration. One model is loaded at a time.

    Args:
        numbers: int, as `check_archive` returns it.
        path: path of the file, for the message.

    Raises:
        ValueError: by the layer that would make more.
    """
    thread, made = threading.get_ident(), 0

    def counted(layer, shape=None, *arguments, **options):
        nonlocal made
        if threading.get_ident() == thread:
            made += math.prod(() if shape is None else tuple(shape))
            if made > 2 * numbers + _SPARE_NUMBERS:
                raise ValueError(
                    f"{path} has {numbers:,} numbers in its weights, but its layers ask for at "
                    f"least {made:,}: it is not loaded."
                )
        return add_weight(layer, shape, *arguments, **options)

    with _making:
        add_weight = keras.layers.Layer.add_weight
        keras.layers.Layer.add_weight = counted
        try:
            yield
        finally:
            keras.layers.Layer.add_weight = add_weight


def _check_metric(config, path):
    """Checks that a metric's configuration asks for no huge variables."""
    for name, power in (("num_classes", 2), ("num_thresholds", 1)):
        value = config.get(name)
        if isinstance(value, int | float) and value > _MOST_METRIC_NUMBERS ** (1 / power):
            raise ValueError(f"{path} has a metric with {name}={value}: it is not loaded.")


def _read_config(archive, path):
    try:
        config = json.loads(archive.read("config.json"))
    except RecursionError:
        raise ValueError(f"{path} has a config.json that is nested too deeply.") from None
    except ValueError as error:
        raise ValueError(f"{path} has a config.json that is not valid JSON ({error}).") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} has a config.json that holds no JSON object.")
    return config


def _stored_numbers(archive, member, path):
    """How many numbers the datasets of an HDF5 file have."""
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
            raise ValueError(f"{path} has weights that are stored elsewhere: it is not loaded.")

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
        raise ValueError(
            f"{path} has weights that claim more bytes than the {member.file_size:,} of the file: "
            "it is not loaded."
        )
    return sum(count for count, _ in sizes)


def _parts(value):
    """A JSON value, and all objects within it."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
        children = value.values() if isinstance(value, dict) else value
        waiting += [child for child in children if isinstance(child, dict | list)]


def _least_numbers(config):
    """The fewest numbers in the weights of a layer or model with this configuration.

    It is exact enough for kformer's models; of others only a single huge size is seen.
    """

    def size(name):
        value = config.get(name)
        return value if type(value) is int and value > 0 else 0

    sizes = (
        part
        for name, value in config.items()
        if name in _SIZES or name.endswith("_shape")
        for part in (value if isinstance(value, list) else [value])
    )
    huge = max((part for part in sizes if type(part) is int and part > _SMALL), default=0)
    hidden = size("hidden_dim")
    attention = size("num_heads") * size("head_dim") or hidden
    layers = size("num_encoder_layers") or size("num_layers")
    tables = size("vocabulary_size") + size("num_outputs")
    if config.get("position_encoding") == "learned":
        tables += size("max_length")
    if config.get("share_embeddings") is False:
        tables += size("target_vocabulary_size")
    products = 2 * attention + 2 * size("intermediate_dim")
    return max(huge, hidden * (tables + layers * products + size("num_decoder_layers")))
