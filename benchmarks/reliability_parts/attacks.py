"""Attacks on a folder with a model: each changes one thing in it, at a random place.

An attack is a function of (folder, rng, secret, canary): paths of the folder, of a file outside it
that nothing may read, and of a file that nothing may make. It returns what it did, in words.
"""

import hashlib
import json
import os
import pathlib
import pickle
import struct
import zipfile

import numpy as np

from benchmarks.reliability_parts import attacks_keras
from benchmarks.reliability_parts.hostile_values import changed_json, model_files, pick

_DEEP = 200_000


def attack(folder, rng, secret, canary, only=None):
    """Chooses and runs an attack that suits the folder; returns (its name, what it did)."""
    names = [only] if only else list(ATTACKS)
    while True:
        name = names[int(rng.integers(len(names)))]
        done = ATTACKS[name](folder, rng, secret, canary)
        if done:
            return name, done


def json_value(folder, rng, secret, canary):
    path = pick(rng, model_files(folder, "*.json"))
    text, what = changed_json(path.read_text(encoding="utf-8"), rng, secret, canary)
    path.write_text(text, encoding="utf-8")
    return f"{path.name}: {what}"


def json_text(folder, rng, secret, canary):
    path = pick(rng, model_files(folder, "*.json"))
    texts = {
        "deep lists": "[" * _DEEP + "]" * _DEEP,
        "deep objects": '{"a":' * _DEEP + "1" + "}" * _DEEP,
        "a deep value": '{"format_version": 1, "x": ' + "[" * _DEEP + "]" * _DEEP + "}",
        "a long number": '{"format_version": ' + "9" * 100_000 + "}",
        "not UTF-8": '{"a": "\udcff"}',
        "100 MB of spaces": " " * 100_000_000 + "{}",
        "a list": "[1, 2]",
        "many keys": json.dumps({str(i): i for i in range(300_000)}),
    }
    name = pick(rng, list(texts))
    path.write_text(texts[name], encoding="utf-8", errors="surrogateescape")
    return f"{path.name}: {name}"


def vocabulary(folder, rng, secret, canary):
    files = model_files(folder, "vocab.json")
    if not files:
        return None
    pieces = json.loads(files[0].read_text(encoding="utf-8"))
    piece = pick(rng, sorted(pieces))
    pieces[piece] = pick(rng, [10**9, -1, 2**63, 10**30, 1.5, "0", None, pieces[piece] + 1])
    files[0].write_text(json.dumps(pieces), encoding="utf-8")
    return f"vocab.json: {piece!r} is {pieces[piece]!r}"


def links(folder, rng, secret, canary):
    paths = sorted(folder.rglob("*"))
    path = pick(rng, paths)
    kind = pick(rng, ["file", "parent", "loop", "zero", "pipe", "extra"])
    if kind == "extra":
        path = path.parent / "extra"
    elif path.is_dir():
        os.rename(path, secret.parent / "moved")
    else:
        path.unlink()
    targets = {"file": secret, "parent": secret.parent, "loop": path, "zero": "/dev/zero"}
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(targets.get(kind, secret))
    return f"{path.relative_to(folder)}: a link, {kind}"


class _Payload:
    def __init__(self, command):
        self._command = command

    def __reduce__(self):
        return os.system, (self._command,)


def pickles(folder, rng, secret, canary):
    payload = pickle.dumps(_Payload(f"touch {canary}"), protocol=int(rng.integers(0, 5)))
    kind = pick(rng, ["bin", "zipped bin", "npz", "anything"])
    if kind == "npz":
        array = np.empty(1, dtype=object)
        array[0] = _Payload(f"touch {canary}")
        for state in model_files(folder, "state.json"):
            value = {**json.loads(state.read_text(encoding="utf-8")), "num_seeds": 1}
            state.write_text(json.dumps(value), encoding="utf-8")
            np.savez(state.with_name("seeds.npz"), **{"0": array})
        return "seeds.npz holds a pickle"
    if kind == "anything":
        path = pick(rng, model_files(folder, "*"))
        path.write_bytes(payload)
        return f"{path.name} is a pickle"
    for path in model_files(folder, "*.safetensors"):
        path.unlink()
    path = folder / "pytorch_model.bin"
    if kind == "bin":
        path.write_bytes(payload)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", payload)
            archive.writestr("archive/version", "3\n")
    return f"pytorch_model.bin, {kind}"


def expanded_tensor(folder, rng, secret, canary):
    """A tensor of stride 0: four bytes in the file, gigabytes when it is read."""
    files = model_files(folder, "*.safetensors")
    if not files:
        return None
    import safetensors.numpy
    import torch

    tensors = safetensors.numpy.load_file(files[0])
    tensors = {name: torch.from_numpy(value.copy()) for name, value in tensors.items()}
    name = pick(rng, sorted(tensors))
    tensors[name] = torch.zeros(1).expand(10 ** int(rng.integers(8, 11)), 16)
    files[0].unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    return f"pytorch_model.bin: {name} is expanded to {tuple(tensors[name].shape)}"


def safetensors_header(folder, rng, secret, canary):
    files = model_files(folder, "*.safetensors")
    if not files:
        return None
    data = files[0].read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    name = pick(rng, sorted(set(header) - {"__metadata__"}))
    kind = pick(rng, ["length", "shape", "offsets", "dtype", "deep"])
    if kind == "length":
        size = pick(rng, [2**63, 2**32, length * 10, 0, 7])
        files[0].write_bytes(struct.pack("<Q", size) + data[8:])
        return f"a header of {size} bytes"
    if kind == "shape":
        header[name]["shape"] = pick(rng, [[10**9, 10**9], [2**63], [-1, 4], [10**12, 0], []])
    elif kind == "offsets":
        header[name]["data_offsets"] = pick(rng, [[0, 2**62], [10, 5], [0, 4], [-4, 0]])
    elif kind == "dtype":
        header[name]["dtype"] = pick(rng, ["F8_E4M3", "BOOL", "OBJECT", "I64", ""])
    text = json.dumps(header) if kind != "deep" else "[" * _DEEP
    body = text.encode()
    files[0].write_bytes(struct.pack("<Q", len(body)) + body + data[8 + length :])
    return f"{name} in the header: {kind} {header[name] if kind != 'deep' else ''}"


def sentencepiece_bytes(folder, rng, secret, canary):
    files = model_files(folder, "*.model", "*.spm")
    if not files:
        return None
    path = pick(rng, files)
    data = bytearray(path.read_bytes())
    count = int(10 ** rng.uniform(0, 3))
    for at in rng.integers(0, len(data), count):
        data[at] = int(rng.integers(256))
    path.write_bytes(bytes(data[: int(rng.integers(len(data)))] if rng.random() < 0.3 else data))
    # Its name is made to fit, as whoever sends it would do.
    for config in model_files(folder, "tokenizer.json"):
        name = f"sentencepiece-{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}.model"
        text = config.read_text(encoding="utf-8")
        if path.name in text:
            config.write_text(text.replace(path.name, name), encoding="utf-8")
            path.rename(path.with_name(name))
            break
    return f"{path.name}: {count} bytes are others"


ATTACKS = {
    "a value in JSON": json_value,
    "hostile JSON": json_text,
    "a vocabulary": vocabulary,
    "a link or pipe": links,
    "pickle": pickles,
    "an expanded tensor": expanded_tensor,
    "a safetensors header": safetensors_header,
    "a SentencePiece model": sentencepiece_bytes,
    "a value in Keras's config": attacks_keras.keras_value,
    "a class in Keras's config": attacks_keras.keras_class,
    "Keras's archive": attacks_keras.keras_archive,
    "Keras's weights": attacks_keras.keras_weights,
}


def made_outside(folder):
    """What is in a folder and its subfolders: dict of path to size."""
    folder = pathlib.Path(folder)
    return {
        str(path.relative_to(folder)): path.lstat().st_size for path in sorted(folder.rglob("*"))
    }
