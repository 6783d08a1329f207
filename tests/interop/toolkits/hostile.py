"""Damaged and hostile variants of a toolkit's files, and what an import must make of them: a model,
or one sentence, in little memory and time."""

import os
import random
import resource
import shutil
import struct
import time

import pytest

from kformer.interop.toolkits.archives import unpacked
from kformer.interop.toolkits.kinds import find_reader, refuse_other
from kformer.interop.toolkits.model import ToolkitOptions
from kformer.interop.weights import check_sizes
from kformer.models.config import TransformerConfig

_MOST_BYTES = 300 << 20
_MOST_SECONDS = 5
_NUMBERS = (0, 1, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**64 - 1)
_TEXTS = (
    *(b"", b"\0" * 64, b"[" * 5000, b"{a: " * 3000, b"- " * 20000, b"a: b: c", b"\xff\xfe\xfd"),
    b"a: &a [1]\nb: &b [*a, *a, *a]\nc: &c [*b, *b, *b]\n",
    *(b"!!python/object/apply:os.system ['touch hacked']", b"<<: {a: 1}", b"? [1, 2]\n: 3\n"),
    *(b"%YAML 9.9\n---\n", b"cos\nsystem\n(S'touch hacked'\ntR.", b"PK\3\4" + b"\0" * 60),
)


def damage(folder, rng, first=8192):
    """Damages one file of a folder, most often in its first bytes, where sizes are."""
    path = rng.choice(sorted(each for each in folder.rglob("*") if each.is_file()))
    content = bytearray(path.read_bytes())
    kind = rng.randrange(10)
    position = rng.randrange(max(1, min(len(content), first)))
    if kind < 2:
        for _ in range(rng.choice((1, 3, 30))):
            content[rng.randrange(max(1, min(len(content), first)))] = rng.randrange(256)
    elif kind < 4:
        size = rng.choice((2, 4, 8))
        number = struct.pack("<Q", rng.choice(_NUMBERS))[:size]
        position -= position % size if rng.random() < 0.7 else 0
        content[position : position + size] = number
    elif kind == 4:
        content = content[: rng.choice((position, rng.randrange(len(content) + 1)))]
    elif kind == 5:
        content[position:position] = rng.choice((b"\0" * 8, rng.randbytes(8), content[:64]))
    elif kind == 6:
        content = bytearray(rng.choice(_TEXTS))
    elif kind == 7:
        content = content.replace(
            *rng.choice(
                (
                    (b"32", b"99999999"),
                    (b"2", b"-1"),
                    (b": ", b":"),
                    (b"1", b"1e9"),
                    (b"\n", b"\r\n"),
                )
            )
        )
    path.unlink()
    if kind == 8:
        rng.choice(
            (
                lambda: path.mkdir(),
                lambda: path.symlink_to("/etc/passwd"),
                lambda: path.symlink_to(path),
                lambda: None,
            )
        )()
        return
    if kind == 9:  # The end, where a zip has its list.
        for _ in range(rng.choice((1, 3, 30))):
            content[-1 - rng.randrange(min(len(content), 2048))] = rng.randrange(256)
    path.write_bytes(content)


def read_all(path, options):
    """Reads a model as `load_checkpoint` does, all but making the network."""
    with unpacked(path) as local:
        reader = find_reader(local)
        if reader is None:
            refuse_other(local)
            raise ValueError("It would be read as a folder of Hugging Face's.")
        read = reader.read(local, options)
        config = TransformerConfig.of(read.arguments).to_dict()
        check_sizes(config, read.weights, str(local), "the file of settings")
        for name, shape in read.weights.shapes.items():
            assert read.weights.read(name).shape == shape


def check_variants(source, folder, *, seed, count=200, options=None, into=damage):
    """Imports damaged copies of a folder.

    Args:
        source: path of the folder of a fixture.
        folder: path where the copies are made.
        seed: int.
        count: int, default 200.
        options: `ToolkitOptions`, default `None`.
        into: function of a folder and a `random.Random` that damages it; it may return another
            path to import.

    Returns:
        The number of variants that were refused.
    """
    before, refused = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0
    for number in range(count):
        rng, variant = random.Random(f"{seed}-{number}"), folder / str(number)
        shutil.copytree(source, variant)
        path = into(variant, rng) or variant
        start = time.monotonic()
        try:
            read_all(path, options or ToolkitOptions())
        except (ValueError, FileNotFoundError) as error:
            message = str(error)
            assert message and "\n" not in message and len(message) < 2000, (number, message)
            refused += 1
        except Exception as error:
            pytest.fail(f"variant {number}: {type(error).__name__}: {error}")
        assert time.monotonic() - start < _MOST_SECONDS, number
        shutil.rmtree(variant)
    taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert taken < _MOST_BYTES, taken
    assert not os.path.exists("hacked")
    return refused
