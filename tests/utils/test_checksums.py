"""Checksums of files and JSON objects."""

import json
import zlib

import numpy as np
import pytest

from kformer.utils.checksums import file_checksum, is_damaged, with_checksum, without_checksum

pytestmark = pytest.mark.any_backend


def test_a_file(tmp_path):
    content = bytes(range(256)) * 9000  # more than one block
    (tmp_path / "file").write_bytes(content)
    assert file_checksum(tmp_path / "file") == zlib.crc32(content)


def test_an_object_comes_back_whole():
    """In any order of its keys, which may be numbers, and with tuples."""
    value = {"b": (1, 2), "a": {10: 0.1, 9: None, "é": [True]}}
    read = json.loads(json.dumps(with_checksum(value)))
    assert not is_damaged(read) and not is_damaged(dict(reversed(read.items())))
    assert without_checksum(with_checksum(value)) == value
    assert with_checksum(with_checksum(value)) == with_checksum(value)
    assert is_damaged({**read, "b": [1, 3]}) and is_damaged({**read, "c": 0})
    assert not is_damaged(value)  # as earlier versions wrote it


def test_what_json_cannot_hold_is_left_to_the_writer():
    """Which names the file."""
    for value in (np.array(5), {1, 2}, range(3)):
        assert with_checksum({"a": value})["a"] is value
