"""PyTorch's files are read without PyTorch, and nothing in them is run."""

import argparse
import collections
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest

from kformer.interop.toolkits import torch_files
from kformer.interop.toolkits.torch_files import ForeignObject, read_torch

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.any_backend
MIB = 2**20


class Sizes:
    def __init__(self, **values):
        self.__dict__ |= values


class Call:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def example():
    base = torch.arange(24.0).reshape(4, 6)
    tensors = {
        "view": base[1:, ::2],
        "turned": base.T,
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 5),
        "parameter": torch.nn.Parameter(base + 1),
    }
    kinds = ("float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
    return tensors | {kind: base.to(getattr(torch, kind)) for kind in kinds}


@pytest.mark.parametrize("zipped", [True, False])
def test_all_that_checkpoints_hold_is_read(tmp_path, zipped):
    tensors, path = example(), tmp_path / "model.pt"
    state = torch.nn.Linear(2, 3).state_dict()  # has an attribute beside its items
    content = {
        "args": argparse.Namespace(arch="transformer", layers=6, langs=["en", "de"]),
        "model": tensors,
        "state": state,
        "plain": [None, True, 1, -(2**70), 2.5, "ü", (1, "a"), {"x"}, torch.Size([2, 3])],
        "counts": collections.Counter("aab"),
        "default": collections.defaultdict(int, {"a": 1}),
        "sizes": Sizes(width=512),
    }
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    read = read_torch(path)
    assert read["args"] == vars(content["args"])
    assert read["plain"] == content["plain"]
    assert (read["counts"], read["default"]) == ({"a": 2, "b": 1}, {"a": 1})
    assert list(read["state"]) == ["weight", "bias"]
    assert read["sizes"] == ForeignObject(f"{__name__} Sizes", (), {"width": 512})
    for name, tensor in tensors.items():
        stored, tensor = read["model"][name], tensor.detach()
        assert stored.shape == tuple(tensor.shape)
        array = stored.read()
        assert f"torch.{array.dtype.name}" == str(tensor.dtype)
        np.testing.assert_array_equal(array.astype("float64"), tensor.double().numpy())


def test_float8_is_named_and_not_read(tmp_path):
    torch.save({"x": torch.zeros(3).to(torch.float8_e4m3fn)}, tmp_path / "a.pt")
    with pytest.raises(TypeError):
        read_torch(tmp_path / "a.pt")["x"].read()


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("function", [os.mkdir, eval, bytearray])
def test_nothing_is_called(tmp_path, monkeypatch, protocol, function):
    monkeypatch.chdir(tmp_path)
    argument = {os.mkdir: "made", eval: "__import__('os').mkdir('made')", bytearray: 10**12}
    call = Call(function, argument[function])
    with zipfile.ZipFile("a.pt", "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps({"x": call}, protocol=protocol))
    read = read_torch("a.pt")["x"]
    assert read.name.endswith(function.__name__)
    assert read.arguments == (argument[function],)
    assert not os.path.exists("made")


def pickled(path, content, members=()):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", content)
        for name, size in members:
            archive.writestr(f"a/data/{name}", bytes(size))


def tensor(count, *, offset=0, shape=(2,), strides=(1,), key="0"):
    """A pickle of one tensor, of a storage of two numbers."""
    storage = Call(getattr, "storage")
    pickler = Pickler(storage, ("storage", torch.FloatStorage, key, "cpu", count))
    return pickler.dumps(Call(torch._utils._rebuild_tensor_v2, storage, offset, shape, strides))


class Pickler:
    def __init__(self, storage, identity):
        self.storage, self.identity = storage, identity

    def dumps(self, value):
        import io

        stream = io.BytesIO()
        pickler = pickle.Pickler(stream, 2)
        pickler.persistent_id = lambda x: self.identity if x is self.storage else None
        pickler.dump(value)
        return stream.getvalue()


def nested(steps):
    """Tuples of two times the one before: as a key they would take for ever."""
    return b")" + b"q\x000h\x00h\x00\x86" * steps


BAD = {
    "expanded": (tensor(2, shape=(10**9,), strides=(0,)), "stores fewer numbers"),
    "offset": (tensor(2, offset=1), "stores fewer numbers"),
    "strides": (tensor(2, strides=(2,)), "stores fewer numbers"),
    "negative": (tensor(2, shape=(-1,)), "an impossible shape"),
    "negative stride": (tensor(2, strides=(-1,)), "an impossible shape"),
    "no whole number": (tensor(2, shape=(2.0,)), "an impossible shape"),
    "axes": (tensor(2, shape=(1,) * 99, strides=(1,) * 99), "an impossible shape"),
    "storage": (tensor(3), "ends before"),
    "no storage": (tensor(2, key="1"), "'a/data/1'"),
    "huge storage": (tensor(10**30), "numbers of the kind Float"),
    "far memo": (b"\x80\x02}r\xff\xff\xff\x7f", "exhausted"),
    "long string": (b"\x80\x04\x8d" + struct.pack("<Q", 2**60), "expected"),
    "objects": (b"\x80\x02" + b"}" * (MIB // 4), "list of objects is too long"),
    "bytes": (b"\x80\x02" + b"]0" * (5 * MIB), "list of tensors is too long"),
    "key": (b"\x80\x02}" + nested(99) + b"Ns.", "a tuple as a key"),
    "mark": (b"\x80\x02]te.", ""),
    "underflow": (b"\x80\x02]((\x86.", "takes more than it has"),
    "no pickle": (b"hello", ""),
    "empty": (b"", ""),
    "extension": (b"\x80\x02\x82\x01.", "EXT1"),
    "persistent": (b"Pabc\n.", "PERSID"),
    "instance": (b"(ios\nsystem\n.", "INST"),
    "items of a number": (b"\x80\x02K\x01K\x02K\x03s.", "items to a int"),
    "called number": (b"\x80\x02K\x01)R.", ""),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_pickles_are_refused_in_a_sentence(tmp_path, monkeypatch, name):
    monkeypatch.setattr(torch_files, "_MOST_OPERATIONS", 100_000)
    content, message = BAD[name]
    pickled(tmp_path / "a.pt", content, [("0", 8)])
    with pytest.raises(ValueError, match=rf"a.pt is damaged or no PyTorch file.*{message}") as info:
        read_torch(tmp_path / "a.pt")
    assert "\n" not in str(info.value) and len(str(info.value)) < 500 + len(str(tmp_path))


def test_copies_are_counted(tmp_path):
    """A few bytes that copy a large dict again and again."""
    large = b"\x80\x02}(" + b"".join(b"M%sN" % struct.pack("<H", i) for i in range(2**16)) + b"u"
    copies = b"q\x00" + b"cargparse\nNamespace\n)\x81h\x00b" * 10_000
    pickled(tmp_path / "a.pt", large + copies)
    with pytest.raises(ValueError, match="too long"):
        read_torch(tmp_path / "a.pt")


def test_an_archive_with_a_long_list_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps({}))
        for number in range(100):
            archive.writestr("x" * 65_000 + str(number), b"")
    with pytest.raises(ValueError, match="has a list of members of"):
        read_torch(tmp_path / "a.pt")


@pytest.mark.parametrize("zipped", [True, False])
def test_damage_is_a_sentence(tmp_path, zipped):
    path = tmp_path / "a.pt"
    content = {"args": argparse.Namespace(a=1), "model": {"x": torch.ones(20, 20)}}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    whole, random = path.read_bytes(), np.random.default_rng(1)
    for seed in range(200):
        damaged = bytearray(whole)
        if seed % 4:
            for place in random.integers(0, len(whole), 1 + seed % 8):
                damaged[place] = random.integers(256)
        else:
            del damaged[random.integers(len(whole)) :]
        path.write_bytes(damaged)
        try:
            read = read_torch(path)
            read["model"]["x"].read()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            assert isinstance(error, ValueError) or "read" in locals()
