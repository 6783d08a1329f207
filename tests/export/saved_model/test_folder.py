"""What stands beside a SavedModel is read whole and checked whole."""

import json

import pytest

from kformer.export.saved_model.folder import METADATA_FILE, read_metadata

pytestmark = pytest.mark.any_backend

RIGHT = {"format_version": 1, "search": {"n_best": 4}, "max_source_length": 40, "config": {}}


def write(folder, content):
    (folder / METADATA_FILE).parent.mkdir(exist_ok=True)
    (folder / METADATA_FILE).write_text(content)


def test_right_metadata(tmp_path):
    for change in ({}, {"dtype": "int8"}, {"max_source_length": None}, {"config": None}):
        write(tmp_path, json.dumps({**RIGHT, **change}))
        assert read_metadata(tmp_path) == {**RIGHT, **change}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("search", [5, None, [], "beam", True, {}, {"n_best": "4"}, {"n_best": 0}]),
        ("search", [{"n_best": True}, {"n_best": None}, {"n_best": [4]}]),
        ("max_source_length", ["40", 0, -1, 1.5, True, {}]),
        ("config", [5, "x", []]),
        ("dtype", [5, [], {}]),
        ("graph_blake2b", [5, []]),
        ("format_version", ["1", None, []]),
    ],
)
def test_odd_metadata_is_refused(tmp_path, name, values):
    """Where it was not, a new version took over from a good one and failed at each request."""
    for value in values:
        write(tmp_path, json.dumps({**RIGHT, name: value}))
        with pytest.raises(ValueError, match=name):
            read_metadata(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "5", "null", '{"a": ', "[" * 100_000, "\ud800"])
def test_what_is_no_metadata_is_refused(tmp_path, content):
    (tmp_path / METADATA_FILE).parent.mkdir()
    (tmp_path / METADATA_FILE).write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(ValueError, match="not exported by kformer"):
        read_metadata(tmp_path)
