"""Finds out whose model a path holds, and makes a translator of it; names what is no such model."""

import importlib
import json
import pathlib

from kformer.decoding import SearchOptions
from kformer.decoding.searcher import check_options
from kformer.interop.weights import check_sizes, load_weights
from kformer.models import Transformer
from kformer.models.config import TransformerConfig
from kformer.translating.translator import Translator
from kformer.utils.files import read_bytes
from kformer_options.model_folders import missing_model
from kformer_options.names import command_line_names

# The modules of this package that read a toolkit's files, in the order in which they are asked.
_READERS = (
    "marian",
    "fairseq",
    "opennmt_py",
    "opennmt_tf",
    "ctranslate2",
    "eole",
)
_SETTINGS = "the file of settings"
_MOST_SETTINGS_BYTES = 1 << 20


def find_reader(path):
    """The module that reads a path, or `None` if it is no toolkit's.

    Args:
        path: `pathlib.Path` of a file or folder.
    """
    for name in _READERS:
        reader = importlib.import_module(f"kformer.interop.toolkits.{name}")
        if reader.is_mine(path):
            return reader
    return None


def make_translator(toolkit_model, path, name, dtype, report):
    """The translator of a model that a toolkit's reader returned.

    Args:
        toolkit_model: `ToolkitModel`.
        path: path of its files, for messages.
        name: str. What the run's metadata call the model.
        dtype: str. The dtype of the weights.
        report: function of a str, or `None`.

    Returns:
        `Translator`.

    Raises:
        ValueError: the parts do not fit together.
    """
    where, weights = str(path), toolkit_model.weights
    try:
        with command_line_names(False):  # What is wrong stands in the files, not in an option.
            config = TransformerConfig.of(toolkit_model.arguments)
            check_sizes(config.to_dict(), weights, where, _SETTINGS)
            model = Transformer(**toolkit_model.arguments, dtype=dtype)
            search = {"max_length": max(1, model.max_length - 1), **toolkit_model.search}
            options = SearchOptions(**search)
            check_options(model, options)
    except ValueError as error:
        message = str(error)
        raise ValueError(message if message.startswith(where) else f"{where}: {error}") from None
    load_weights(model, weights, where, _SETTINGS)
    for remark in toolkit_model.remarks if report is not None else ():
        report(remark)
    origin = {"model_type": toolkit_model.toolkit, "name": name}
    config = {**(toolkit_model.config or {}), "imported": origin}
    return Translator(model, toolkit_model.tokenizer, options, config)


def refuse_other(path):
    """Refuses what no toolkit's reader takes, and says what it is, if that can be seen.

    Args:
        path: path of a file or folder.

    Raises:
        FileNotFoundError: there is nothing there, or nothing that is known.
        ValueError: it is known, and cannot be imported. A folder as Hugging Face's library writes
            it passes.
    """
    path = pathlib.Path(path)
    if not path.exists():
        raise missing_model(path)
    kind = _kind_of_folder(path) if path.is_dir() else _kind_of_file(path)
    if kind is not None:
        raise ValueError(f"{path} is {kind}")
    if not (path / "config.json").is_file():
        raise FileNotFoundError(
            f"{path} has no config.json, so it is no folder as Hugging Face's library writes it, "
            "and no model of another toolkit that kformer reads (Marian, OpenNMT, eole, fairseq, "
            "CTranslate2)."
            if path.is_dir()
            else f"{path} is no model that kformer knows: give the file of another toolkit's "
            "model, or the folder of a downloaded one."
        )


def _kind_of_folder(folder):
    """What a folder is that cannot be imported, and what to do instead; `None` if unknown."""
    names = {path.name for path in folder.iterdir()}
    if "config.json" in names:
        try:
            config = json.loads(read_bytes(folder / "config.json", _MOST_SETTINGS_BYTES))
        except (ValueError, RecursionError):
            return None  # The folder's own reader says so.
        if isinstance(config, dict) and "format_version" in config and "model_type" not in config:
            return (
                "a run of kformer already: `kformer translate` takes it as it is, and `kformer "
                "train --start-from` trains it further."
            )
        return None
    if "saved_model.pb" in names or next(folder.glob("[0-9]*/saved_model.pb"), None):
        return (
            "a SavedModel of TensorFlow, whose weights are inside a graph: `kformer translate` and "
            "`kformer serve` take one that kformer exported; of another, give the checkpoint that "
            "it was made from."
        )
    if any(name.startswith("params.") for name in names) and {"config", "version"} & names:
        return f"a Sockeye model, {_NOT_READ}"
    if "config.yaml" in names and any(name.endswith(".ckpt") for name in names):
        return f"a Joey NMT model, {_NOT_READ}"
    if {"hparams.json", "flags.txt", "flags_t2t.txt"} & names or any(
        name.startswith("model.ckpt-") and name.endswith(".index") for name in names
    ):
        return f"a checkpoint of tensor2tensor or of a toolkit like it, {_NOT_READ}"
    if next(folder.glob("*.pt"), None) or next(folder.glob("*.pth"), None):
        return f"a folder of PyTorch files of no toolkit that kformer reads: {_PYTORCH_REMEDY}"
    if next(folder.glob("*.keras"), None) or next(folder.glob("*.h5"), None):
        return f"a folder of Keras files: {_KERAS_REMEDY}"
    return None


_NOT_READ = (
    "which kformer does not read. Its translations can teach a new model: translate a large text "
    "with it, and give both to `kformer train`."
)
_PYTORCH_REMEDY = (
    "it reads fairseq's and OpenNMT-py's, each with its vocabularies, and folders as Hugging "
    "Face's library and eole write them."
)
_KERAS_REMEDY = (
    "kformer reads its own runs alone, since it knows no names of other layers; Keras reads it by "
    "`keras.saving.load_model`."
)


def _kind_of_file(path):
    """What a file is that cannot be imported, and what to do instead; `None` if unknown."""
    with open(path, "rb") as file:
        start = file.read(512)
    ending = path.suffix.lower()
    if ending == ".keras" or start.startswith(b"\x89HDF\r\n"):
        return f"a Keras file: {_KERAS_REMEDY}"
    if ending in (".pt", ".pth", ".ckpt", ".bin") and start.startswith((b"PK\3\4", b"\x80")):
        return f"a PyTorch file of no toolkit that kformer reads: {_PYTORCH_REMEDY}"
    if ending == ".npz":
        return (
            "an archive of NumPy arrays without the settings special:model.yml, so not of Marian "
            "(of Nematus, perhaps, which Marian converts)."
        )
    if ending == ".safetensors":
        return "a file of weights alone: give the folder that has config.json, too."
    if ending == ".onnx":
        return "an ONNX graph, which has no weights by name: give the model that it was made from."
    if start.startswith(b"GGUF"):
        return "a GGUF file, of llama.cpp: give the model that it was made from."
    if start[4:8] == b"TFL3":
        return "a model of LiteRT, whose weights are in a graph: give the one it was made from."
    if path.name == "saved_model.pb":
        return "the graph of a SavedModel: give the checkpoint that it was made from."
    if start[257:262] == b"ustar" or start.startswith(
        (b"\x1f\x8b", b"\xfd7zXZ", b"BZh", b"7z\xbc\xaf")
    ):
        return "a compressed archive: unpack it, and give the folder."
    return None
