"""Files of other toolkits' models, of any size, with random weights.

Each is the fixture of the tests (`tests/interop/toolkits/data`), grown: every axis of width 32 to
another width, its layers repeated, its vocabulary filled with invented tokens.
"""

import json
import re
import shutil

import numpy as np

from benchmarks.common import ROOT, write

DATA = ROOT / "tests" / "interop" / "toolkits" / "data"
# Hidden size, inner size, layers of each side, heads, tokens.
SIZES = {"60M": (512, 2048, 6, 8, 32_000), "600M": (1024, 8192, 12, 16, 32_000)}
_OLD = {"hidden": 32, "inner": 64, "layers": 2, "heads": 4}
_LAYER = re.compile(r"(?<=_l)\d+(?=_)|(?<=layers[./])\d+(?=[./])|(?<=transformer\.)\d+(?=\.)")


class Grown:
    """The sizes of a fixture and of what it grows to.

    Args:
        size: str. A key of `SIZES`.
        old_tokens: dict of int to the number of tokens that it grows to.
    """

    def __init__(self, size, *old_tokens):
        self.hidden, self.inner, self.layers, self.heads, self.tokens = SIZES[size]
        self._axes = {_OLD["hidden"]: self.hidden, _OLD["inner"]: self.inner}
        self._axes |= {number: self.tokens for number in old_tokens}
        self._rng = np.random.default_rng(0)

    def tensors(self, shapes):
        """Yields the names of all layers and random float32 arrays of the grown shapes."""
        for name, shape in shapes.items():
            numbers = sorted({int(found[0]) for found in _LAYER.finditer(name)})
            first = int(re.search(r"_l\d+_", name) is not None)  # Marian counts from 1.
            if numbers and numbers != [first]:
                continue  # Each layer is the first.
            count = self.layers if numbers else 1
            grown = tuple(self._axes.get(axis, axis) for axis in shape)
            for layer in range(count):
                array = self._rng.standard_normal(grown, "float32") * (0.5 / grown[-1] ** 0.5)
                yield _LAYER.sub(str(first + layer), name), array

    def names(self, given=()):
        """As many tokens as there are to be, the given ones first."""
        more = (f"w{number}" for number in range(self.tokens))
        return [*given, *more][: self.tokens]


def marian(folder, size):
    """Marian's `.npz` with its `vocab.yml`."""
    with np.load(DATA / "marian-opusmt" / "opus.npz") as stored:
        settings = bytes(stored["special:model.yml"]).rstrip(b"\0").decode()
        shapes = {name: stored[name].shape for name in stored if not name.startswith("special:")}
    grown = Grown(size, 182)
    for name, value in {
        "(dec|enc)-depth": grown.layers,
        "dim-emb": grown.hidden,
        "transformer-dim-ffn": grown.inner,
        "transformer-heads": grown.heads,
    }.items():
        settings = re.sub(rf"(?m)^({name}): \d+$", rf"\g<1>: {value}", settings)
        settings = settings.replace("- 182", f"- {grown.tokens}")
    arrays = dict(grown.tensors(shapes))
    arrays["special:model.yml"] = np.frombuffer(settings.encode() + b"\0", "int8")
    np.savez(folder / "opus.npz", **arrays)
    shutil.copy(DATA / "marian-opusmt" / "decoder.yml", folder)
    tokens = grown.names(["</s>", "<unk>"])
    write(folder / "vocab.yml", [f"{json.dumps(token)}: {i}" for i, token in enumerate(tokens)])


def fairseq(folder, size):
    """fairseq's `.pt` with its dictionaries."""
    import torch

    content = torch.load(DATA / "fairseq-sinusoidal" / "model.pt", weights_only=False)
    grown = Grown(size, 182)
    settings = vars(content["cfg"]["model"])
    for side in ("encoder", "decoder"):
        settings[f"{side}_layers"] = grown.layers
        settings[f"{side}_embed_dim"] = grown.hidden
        settings[f"{side}_ffn_embed_dim"] = grown.inner
        settings[f"{side}_attention_heads"] = grown.heads
    settings["decoder_output_dim"] = settings["decoder_input_dim"] = grown.hidden
    shapes = {name: tuple(tensor.shape) for name, tensor in content["model"].items()}
    content["model"] = {name: torch.from_numpy(x) for name, x in grown.tensors(shapes)}
    for name in ("decoder.embed_tokens.weight", "decoder.output_projection.weight"):
        content["model"][name] = content["model"]["encoder.embed_tokens.weight"]
    torch.save(content, folder / "model.pt")
    for language in ("en", "de"):
        write(folder / f"dict.{language}.txt", [f"{name} 1" for name in grown.names()[4:]])


def opennmt_py(folder, size):
    """OpenNMT-py's `.pt`, with its vocabularies inside."""
    import torch

    content = torch.load(DATA / "opennmt-py-sinusoidal" / "model.pt", weights_only=False)
    grown = Grown(size, 184)
    settings = vars(content["opt"])
    for name, value in settings.items():
        if name.endswith("vec_size") or name.endswith("hid_size") or name == "hidden_size":
            settings[name] = grown.hidden if value == _OLD["hidden"] else value
    settings |= {"enc_layers": grown.layers, "dec_layers": grown.layers}
    settings |= {"heads": grown.heads, "transformer_ff": grown.inner}
    for part in ("model", "generator"):
        shapes = {name: tuple(tensor.shape) for name, tensor in content[part].items()}
        content[part] = {name: torch.from_numpy(x) for name, x in grown.tensors(shapes)}
    for name in [name for name in content["model"] if name.endswith(".pe.pe")]:
        content["model"][name] = torch.from_numpy(_sines(grown.hidden)[:, None])
    for side in ("src", "tgt"):
        content["vocab"][side] = grown.names(content["vocab"][side])
    torch.save(content, folder / "model.pt")


def _sines(size):
    angles = np.arange(256)[:, None] / 10_000 ** (np.arange(0, size, 2) / size)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(256, size).astype("float32")


def opennmt_tf(folder, size):
    """A model directory of OpenNMT-tf, whose checkpoint TensorFlow writes."""
    import tensorflow as tf

    from kformer.interop.toolkits.tf_checkpoint import read_checkpoint

    run = DATA / "opennmt-tf-transformer" / "run"
    stored, _ = read_checkpoint(run / "ckpt-700")
    shapes = {name: tensor.shape for name, tensor in stored.items() if name.startswith("model/")}
    grown = Grown(size, 99, 124)
    arrays = dict(grown.tensors(shapes))
    specs = [""] * len(arrays)
    tf.raw_ops.SaveV2(
        prefix=str(folder / "ckpt-700"),
        tensor_names=list(arrays),
        shape_and_slices=specs,
        tensors=[tf.constant(array) for array in arrays.values()],
    )
    text = (run / "model_description.py").read_text(encoding="utf-8")
    for name, value in {
        "num_layers": grown.layers,
        "num_units": grown.hidden,
        "num_heads": grown.heads,
        "ffn_inner_dim": grown.inner,
    }.items():
        text = re.sub(rf"{name}=\d+", f"{name}={value}", text)
    write(folder / "model_description.py", [text])
    for side in ("source", "target"):
        tokens = grown.names(["<blank>", "<s>", "</s>"])[:-1]  # The last is the unknown word.
        write(folder / f"{side}.vocab", tokens)


def ctranslate2(folder, size):
    """A folder that kformer exports from the model of `marian`."""
    import kformer

    other = folder.with_name(f"{folder.name}-marian")
    other.mkdir()
    marian(other, size)
    translator = kformer.interop.load_checkpoint(other, pretokenized=True)
    folder.rmdir()
    translator.export(folder, "ctranslate2")
    shutil.rmtree(other)


FORMATS = {
    "marian": (marian, "", True),
    "fairseq": (fairseq, "model.pt", True),
    "opennmt_py": (opennmt_py, "model.pt", True),
    "opennmt_tf": (opennmt_tf, "", True),
    "ctranslate2": (ctranslate2, "", False),
}
