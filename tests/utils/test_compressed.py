"""Compressed files: written as their name says, read as their first bytes say."""

import gzip

import pytest

import kformer_options.installed as installed
from kformer.utils.compressed import check_compression, create_binary, open_binary, plain_name
from kformer.utils.lines import read_chunks
from kformer_options.text_files import check_readable, count_lines

CONTENT = "Häuser\n".encode() * 50_000

pytestmark = pytest.mark.any_backend


@pytest.mark.parametrize("ending", ("", ".gz", ".bz2", ".xz", ".zst"))
def test_what_is_written_is_read(tmp_path, ending):
    path = tmp_path / f"x.txt{ending}"
    contents = []
    for _ in range(2):
        with create_binary(path) as file:
            file.write(CONTENT)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1] and (contents[0] == CONTENT) == (not ending)
    assert plain_name(path) == tmp_path / "x.txt"
    path = path.rename(tmp_path / "another")
    with open_binary(path) as file:
        assert file.readline() == CONTENT[:8] and file.read() == CONTENT[8:]
    assert count_lines(path) == (None if ending else 50_000)
    check_readable(path, "source", may_be_compressed=True)
    assert sum(map(len, read_chunks(path, "source", 10_000))) == 50_000
    if ending:
        with pytest.raises(ValueError, match="is compressed by .*: decompress it first"):
            check_readable(path, "source")


@pytest.mark.parametrize("ending", (".gz", ".bz2", ".xz", ".zst"))
@pytest.mark.parametrize("content", (CONTENT, gzip.compress(CONTENT)[:-4]))
def test_a_file_that_is_damaged(tmp_path, ending, content):
    path = tmp_path / f"x{ending}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"x{ending} is damaged"), open_binary(path) as file:
        file.read()


def test_an_error_of_the_system_stays(tmp_path):
    with pytest.raises(FileNotFoundError), open_binary(tmp_path / "none"):
        pass
    with pytest.raises(ZeroDivisionError), open_binary(__file__):
        raise ZeroDivisionError


def test_without_pyarrow(monkeypatch):
    monkeypatch.setattr(installed, "is_installed", lambda name: False)
    with pytest.raises(ImportError, match=r"zstd, needs pyarrow, .*`pip install \"kformer.corpora"):
        check_compression("x.zst")
    check_compression("x.xz")
