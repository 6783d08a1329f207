"""Published folders that ask for more memory than their files justify, by a seed."""

import json
import shutil
import struct
import zipfile

import numpy as np
import torch
from safetensors.torch import load_file, save_file

WEIGHTS, PICKLE = "model.safetensors", "pytorch_model.bin"
MARIAN_SIZES = (
    *("d_model", "encoder_layers", "decoder_layers", "vocab_size", "decoder_vocab_size"),
    *("max_position_embeddings", "encoder_ffn_dim", "encoder_attention_heads"),
)
T5_SIZES = (
    *("d_model", "d_kv", "d_ff", "num_heads", "num_layers", "num_decoder_layers", "vocab_size"),
    *("n_positions", "relative_attention_num_buckets", "relative_attention_max_distance"),
)


def edit(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def config_sizes(folder, rng):
    """One or several sizes of the configuration are huge."""
    config = json.loads((folder / "config.json").read_text())
    names = T5_SIZES if config["model_type"] == "t5" else MARIAN_SIZES
    for name in rng.choice(names, rng.integers(1, 3), replace=False):
        twin = {"encoder_ffn_dim": "decoder_ffn_dim"}.get(name, name)
        twin = {"encoder_attention_heads": "decoder_attention_heads"}.get(name, twin)
        edit(folder / "config.json", **dict.fromkeys((str(name), twin), _huge(rng)))


def vocabulary_ids(folder, rng):
    """A piece has a huge id, which the configuration may allow."""
    size = _huge(rng)
    if (folder / "vocab.json").exists():
        edit(folder / "vocab.json", surplus=size)
    else:
        edit(folder / "tokenizer_config.json", added_tokens_decoder={str(size): {"content": "<x>"}})
    if rng.random() < 0.5:
        edit(folder / "config.json", vocab_size=size + 1)


def extra_ids(folder, rng):
    edit(folder / "tokenizer_config.json", extra_ids=_huge(rng))
    if rng.random() < 0.5:
        edit(folder / "config.json", vocab_size=10**9)


def empty_lists(folder, rng):
    """JSON of many small objects, each of which takes much more memory than text."""
    name = rng.choice(["config.json", "tokenizer_config.json", "generation_config.json"])
    item = rng.choice(["[]", "{}", '{"a":0}', "[0]"])
    text = ",".join([item] * int(rng.integers(8, 12) * 10**6))
    content = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
    (folder / name).write_text(json.dumps(content)[:-1].rstrip() + f', "_more": [{text}]}}')


def many_pieces(folder, rng):
    """A vocabulary of millions of pieces, with or without a table of as many rows."""
    name = "vocab.json" if (folder / "vocab.json").exists() else "added_tokens.json"
    count = int(rng.integers(3, 6) * 10**6)
    old = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
    old |= {f"p{i}": i for i in range(len(old), count)}
    (folder / name).write_text(json.dumps(old))
    edit(folder / "config.json", vocab_size=count)


def many_rows(folder, rng):
    """As many pieces as kformer reads, each with a row of the table."""
    vocabulary = json.loads((folder / "vocab.json").read_text())
    size, count = len(vocabulary), int(rng.integers(250_000, 319_000))
    vocabulary |= {f"piece{i}ß": i for i in range(size, count)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    edit(folder / "config.json", vocab_size=count, decoder_vocab_size=count)
    tensors = load_file(folder / WEIGHTS)
    tensors = {name: x for name, x in tensors.items() if x.ndim < 2 or size not in x.shape}
    tensors["model.shared.weight"] = torch.zeros(count, 32).half()
    save_file(tensors, folder / WEIGHTS)


def empty_pieces(folder, rng):
    """A SentencePiece model with millions of pieces of no content."""
    for path in [*folder.glob("*.spm"), *folder.glob("*.model")]:
        path.write_bytes(path.read_bytes() + b"\x0a\x00" * int(rng.integers(5, 20) * 10**6))


def empty_tensors(folder, rng):
    """A header with very many tensors of size zero, or of layers that have one number each."""
    tensors = load_file(folder / WEIGHTS)
    count = int(rng.integers(2, 5) * 10**5)
    config = json.loads((folder / "config.json").read_text())
    name = "encoder.block.{}.x" if config["model_type"] == "t5" else "model.encoder.layers.{}.x"
    start = sum(tensor.nbytes for tensor in tensors.values())
    header = {name.format(i): _entry("F32", [0], start, start) for i in range(count)}
    end = 0
    content = b""
    for key, tensor in tensors.items():
        content += tensor.contiguous().numpy().tobytes()
        header[key] = _entry("F32", list(tensor.shape), end, len(content))
        end = len(content)
    text = json.dumps(header).encode()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + content)
    if rng.random() < 0.5:
        edit(folder / "config.json", encoder_layers=count + 1, num_layers=count + 1)


def expanded(folder, rng):
    """Tensors of stride 0, far larger than the storage behind them."""
    tensors = load_file(folder / WEIGHTS)
    names = [name for name in tensors if "norm" in name or "shared" in name]
    copies = ["model.decoder.embed_positions.weight", "lm_head.weight", "model.encoder.version"]
    rows = int(rng.integers(1, 9) * 10**8)
    for name in [str(rng.choice(names)), str(rng.choice(copies))]:
        one = torch.zeros(1, 32, dtype=[torch.float32, torch.bfloat16][rng.integers(2)])
        tensors[name] = one.expand(rows, 32)
    if rng.random() < 0.5:
        edit(folder / "config.json", vocab_size=rows)
    _as_pickle(folder, tensors)


def aliased(folder, rng):
    """Very many layers, all of whose tensors are one storage."""
    tensors = load_file(folder / WEIGHTS)
    config = json.loads((folder / "config.json").read_text())
    first, field = "model.encoder.layers.0.", "encoder_layers"
    if config["model_type"] == "t5":
        first, field = "encoder.block.0.", "num_layers"
    count = int(rng.integers(300, 600))
    own = {name: tensor for name, tensor in tensors.items() if name.startswith(first)}
    for number in range(1, count):
        for name, tensor in own.items():
            tensors[name.replace(".0.", f".{number}.", 1)] = tensor
    edit(folder / "config.json", **{field: count})
    _as_pickle(folder, tensors)


class _Allocates:
    def __init__(self, size):
        self.size = size

    def __reduce__(self):
        return bytearray, (self.size,)


def allocating_pickle(folder, rng):
    """A pickle that calls a harmless function with a huge size."""
    tensors = {**load_file(folder / WEIGHTS), "surplus": _Allocates(_huge(rng))}
    _as_pickle(folder, tensors, zipped=rng.random() < 0.5)


def deflated(folder, rng):
    """An archive whose members are compressed."""
    tensors = {**load_file(folder / WEIGHTS), "surplus": torch.zeros(int(1.6e8))}
    _as_pickle(folder, tensors)
    packed = zipfile.ZipFile(folder / "aside", "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with zipfile.ZipFile(folder / PICKLE) as plain, packed:
        for member in plain.infolist():
            with plain.open(member) as file, packed.open(member.filename, "w") as copy:
                shutil.copyfileobj(file, copy, 1 << 24)
    (folder / "aside").replace(folder / PICKLE)


KINDS = {
    "marian": (
        *(config_sizes, vocabulary_ids, empty_lists, many_pieces, empty_pieces, empty_tensors),
        *(many_rows, expanded, aliased, allocating_pickle, deflated),
    ),
    "t5": (config_sizes, vocabulary_ids, extra_ids, many_pieces, empty_tensors, aliased),
}


def malicious_folder(originals, path, seed):
    """Makes a folder that asks for too much memory.

    Args:
        originals: dict of "marian" and "t5" to the path of a sound folder.
        path: `pathlib.Path`. The folder to make.
        seed: int. Consecutive seeds make folders of different kinds.

    Returns:
        str. What is wrong with it.
    """
    kinds = [(family, kind) for family, kinds in KINDS.items() for kind in kinds]
    family, kind = kinds[seed % len(kinds)]
    shutil.copytree(originals[family], path)
    kind(path, np.random.default_rng(seed))
    return f"{family}: {kind.__name__}"


def _huge(rng):
    return int(10 ** rng.integers(7, 12))


def _entry(dtype, shape, start, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def _as_pickle(folder, tensors, zipped=True):
    (folder / WEIGHTS).unlink()
    torch.save(tensors, folder / PICKLE, _use_new_zipfile_serialization=zipped)


def save_half(folder):
    """The weights in float16."""
    tensors = {name: tensor.half() for name, tensor in load_file(folder / WEIGHTS).items()}
    save_file(tensors, folder / WEIGHTS)
