"""The folder of a SavedModel: its versions, and the notes about what it was made from."""

import contextlib
import hashlib
import json
import pathlib
import re

from kformer.export.saved_model.trust import UntrustedModelError, check_graph
from kformer.utils.checks import check_whole
from kformer.utils.files import check_format_version, read_bytes, read_json
from kformer_options.wording import shown

METADATA_FILE = "assets.extra/kformer.json"
GRAPH_FILE = "saved_model.pb"
CHECKSUM = "graph_blake2b"
FORMAT_VERSION = 1
# Weights are no part of it: graphs of this package have a tenth of that, with large vocabularies.
_MOST_GRAPH_BYTES = 2**28
_VERSION = re.compile("[0-9]+")
# The types of what readers use, where it is there.
_TYPES = {"search": dict, "config": dict, "dtype": str, "max_source_length": int, CHECKSUM: str}
_TYPES |= {"languages": list, "source_language": str, "target_language": str}


def version_folder(path, version=None):
    """The folder to write a version to.

    Args:
        path: path. The model's folder.
        version: int, default `None`, for the next free number.

    Returns:
        `pathlib.Path`.

    Raises:
        ValueError: the version exists, or is not a whole number.
    """
    path = pathlib.Path(path)
    if version is None:
        version = 1 + max(_numbered(path), default=0)
    check_whole("version", version, least=0)
    target = path / str(version)
    if target.exists():
        raise ValueError(f"{target} exists already: give another version, or remove it first.")
    return target


def find_version(path):
    """The folder of a SavedModel: `path` itself, or its highest version.

    Args:
        path: path. A version's folder, or the model's.

    Returns:
        `pathlib.Path`.

    Raises:
        FileNotFoundError: there is none.
    """
    for _, folder in sorted(version_folders(path).items(), reverse=True):
        if (folder / GRAPH_FILE).is_file():
            return folder
    raise FileNotFoundError(
        f"There is no SavedModel in {path}: neither {GRAPH_FILE} nor a folder named by a version "
        "number."
    )


def version_folders(path, files=(GRAPH_FILE,)):
    """The versions of a SavedModel, or of another kind of model.

    Args:
        path: path. The model's folder, or one version's.
        files: collection of str, default that of a SavedModel. One of them is in each version.

    Returns:
        Dict of version number to `pathlib.Path`. A version's folder whose name is not a number has
        the number 1.
    """
    path = pathlib.Path(path)
    if any((path / file).is_file() for file in files):
        name = path.resolve().name
        return {int(name) if _VERSION.fullmatch(name) else 1: path}
    return _numbered(path)


def _numbered(path):
    folders = []
    with contextlib.suppress(OSError):  # The folder is away for a moment.
        folders = sorted(folder for folder in path.iterdir() if _VERSION.fullmatch(folder.name))
    return {int(folder.name): folder for folder in folders if folder.is_dir()}


def write_defaults(folder, values):
    """Writes what inputs are where a request leaves them out, into the graph of a SavedModel.

    TensorFlow Serving reads it. (`tf.saved_model.save` could write it, but would trace the
    signatures once more.)

    Args:
        folder: `pathlib.Path`. The version's folder.
        values: dict of the name of an input to a `TensorProto`.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    file = folder / GRAPH_FILE
    saved_model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    for signature in saved_model.meta_graphs[0].signature_def.values():
        for name in values.keys() & signature.inputs.keys():
            signature.defaults[name].CopyFrom(values[name])
    file.write_bytes(saved_model.SerializeToString())


def write_metadata(folder, metadata):
    """Writes what a SavedModel was made from beside it.

    Args:
        folder: `pathlib.Path`. The version's folder.
        metadata: dict of JSON values.
    """
    file = folder / METADATA_FILE
    file.parent.mkdir()
    checksum = _checksum((folder / GRAPH_FILE).read_bytes())
    content = {"format_version": FORMAT_VERSION, **metadata, CHECKSUM: checksum}
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def load_module(folder, metadata, *, trust_models):
    """Loads the graph of a SavedModel (TensorFlow only), once it is known what it may do.

    TensorFlow verifies the variables itself, and the graph is compared with the checksum in the
    metadata, which exports of older versions lack.

    Args:
        folder: `pathlib.Path`. The version's folder.
        metadata: dict, from `read_metadata`.
        trust_models: bool. Whether a graph may have any op.

    Returns:
        What `tf.saved_model.load` returns.

    Raises:
        ValueError: a file is damaged or missing.
        UntrustedModelError: the graph has an op that may reach out of it.
    """
    import tensorflow as tf

    expected = metadata.get(CHECKSUM)
    try:
        content = read_bytes(folder / GRAPH_FILE, _MOST_GRAPH_BYTES)
        if expected is not None and _checksum(content) != expected:
            raise ValueError(f"the checksum of {GRAPH_FILE} is wrong")
        if not trust_models:
            check_graph(content, folder)
        return tf.saved_model.load(str(folder))
    except UntrustedModelError:
        raise
    except Exception as error:  # TensorFlow raises many kinds here.
        reason = " ".join(str(error).split())[:300].rstrip(".")
        raise ValueError(
            f"The SavedModel {folder} is damaged ({reason}): copy it again, or export it again."
        ) from error


def _checksum(content):
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def read_metadata(folder):
    """Reads what a translator's SavedModel was made from.

    Args:
        folder: `pathlib.Path`. The version's folder.

    Returns:
        Dict of JSON values.

    Raises:
        ValueError: the SavedModel was not exported by kformer, or by a newer version, or does not
            translate.
    """
    try:
        metadata = read_json(folder / METADATA_FILE)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{folder} was not exported by kformer: it has no readable {METADATA_FILE}."
        ) from error
    check_format_version(metadata, FORMAT_VERSION, folder / METADATA_FILE, "SavedModel")
    if "search" not in metadata:
        raise ValueError(
            f"{folder} holds a {metadata.get('model')}, which translates nothing: load it with "
            "tf.saved_model.load."
        )
    for name, kind in _TYPES.items():
        value = metadata.get(name)
        if not (value is None and name != "search" or type(value) is kind):
            _raise_odd(folder, name, value)
    n_best, most = metadata["search"].get("n_best"), metadata.get("max_source_length")
    if type(n_best) is not int or n_best < 1:
        _raise_odd(folder, "search.n_best", n_best)
    if most is not None and most < 1:
        _raise_odd(folder, "max_source_length", most)
    return metadata


def _raise_odd(folder, name, value):
    file = folder / METADATA_FILE
    raise ValueError(f"{file}: {name} cannot be {shown(value)}: export the model again.")
