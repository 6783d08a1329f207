"""What a text file must be, and how many lines it has.

This module imports only the standard library: a command checks its files before it imports anything
else, and kformer reads it too, so that a fault has one wording.
"""

import itertools
import os
import pathlib

from kformer_options.names import in_python
from kformer_options.wording import counted

# What the first bytes of a compressed file are, and what compressed it.
COMPRESSIONS = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}
# The first bytes of files that hold no UTF-8, and what is said about them.
_DECOMPRESS = {"gzip": "gunzip", "bzip2": "bunzip2", "xz": "unxz", "zstd": "unzstd"}
_COMPRESSED = {
    mark: f"compressed by {kind}: decompress it first ({_DECOMPRESS[kind]})."
    for mark, kind in COMPRESSIONS.items()
}
_UTF_16 = "UTF-16, not UTF-8: convert it first (iconv -f UTF-16 -t UTF-8)."
_NO_LINES = {**_COMPRESSED, b"\xff\xfe": _UTF_16, b"\xfe\xff": _UTF_16}
_SAVE_AS_TEXT = "not text: save it as HTML, Markdown or plain text first."
# The endings of documents that are ZIP archives, by their format.
OFFICE = {
    "docx": (".docx", ".docm", ".dotx", ".dotm"),
    "pptx": (".pptx", ".pptm", ".potx", ".potm", ".ppsx", ".ppsm"),
    "odt": (".odt", ".ott", ".odp", ".otp"),
}
_NO_DOCUMENT = {
    **_COMPRESSED,
    b"PK\x03\x04": "a ZIP archive: name its format if this is docx, pptx or odt, or "
    f"{_SAVE_AS_TEXT[10:]}",
    b"%PDF-": f"a PDF, {_SAVE_AS_TEXT}",
    # How Office began its files until 2007.
    b"\xd0\xcf\x11\xe0": "of an old kind of Office, such as .doc or .xls: save it as docx, pptx or "
    "odt, or as text.",
}


def is_path(texts):
    """Whether `texts` is the path of a file, and not the texts themselves."""
    return isinstance(texts, (str, os.PathLike))


def check_text(start, name):
    """Checks that a document is none that only a reader of its own can read, such as a PDF.

    Args:
        start: bytes. Its first ones, or all.
        name: str. What the document is called in the message.

    Raises:
        ValueError: it is.
    """
    for mark, problem in _NO_DOCUMENT.items():
        if start.startswith(mark):
            raise ValueError(f"{name} is {problem}")


def check_readable(texts, side, is_document=False, may_be_compressed=False, format=None):
    """Checks that `texts` is a file or an iterable of strings.

    Args:
        texts: path of a file, or an iterable of strings.
        side: str. What the texts are, for messages, such as "source".
        is_document: bool, default `False`. Whether it is a document, which may be UTF-16.
        may_be_compressed: bool, default `False`. Whether `kformer.utils.compressed` reads it.
        format: str, default `None`. The format of a document; `None` for that of its ending.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the path is a folder or a file that is compressed or UTF-16, or `texts` is no
            iterable.
    """
    if not is_path(texts):
        if isinstance(texts, (bytes, bytearray)) or not hasattr(texts, "__iter__"):
            raise ValueError(
                f"The {side} must be the path of a text file or a list of strings, but it is of "
                f"type {type(texts).__name__}."
            )
        return
    path = pathlib.Path(texts)
    wanted = "a UTF-8 text file with one sentence per line"
    if is_document:
        wanted = "a document, such as text, HTML, Markdown or DOCX"
    if path.is_dir():
        raise ValueError(f"The {side} '{path}' is a folder; give the path of {wanted}.")
    if not path.exists():
        wanted += "" if is_document else in_python(", or a list of strings")
        raise FileNotFoundError(
            f"The {side} file '{path}' does not exist; give the path of {wanted}."
        )
    if path.is_file():
        with open(path, "rb") as file:
            start = file.read(6)
        if is_document:
            is_office = path.suffix.lower() in itertools.chain(*OFFICE.values())
            if not (is_office if format is None else format in OFFICE):
                check_text(start, f"The {side} file '{path}'")
            return
        for mark, problem in _NO_LINES.items():
            if start.startswith(mark) and not (may_be_compressed and mark in COMPRESSIONS):
                raise ValueError(f"The {side} file '{path}' is {problem}")


def check_rereadable(texts, side):
    """Checks that `texts` can be read several times, if they are there and no folder.

    Args:
        texts: path of a file, or an iterable of strings.
        side: str. What the texts are, for messages, such as "source".

    Raises:
        ValueError: the path is that of a pipe or a device.
    """
    is_there = is_path(texts) and os.path.exists(texts)
    if is_there and not os.path.isfile(texts) and not os.path.isdir(texts):
        raise ValueError(
            f"The {side} '{texts}' is a pipe, which can be read only once, and this needs it "
            "several times: write it to a file first."
        )


def is_plain(path):
    """Returns whether a path is one file of lines that can be read several times as it is.

    A list of paths, a pipe and a compressed file are not.

    Args:
        path: path, or list of paths; `None`, a folder and a missing file count as such a file.
    """
    if path is None or (is_path(path) and (not os.path.exists(path) or os.path.isdir(path))):
        return True
    if not is_path(path) or not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return not file.read(6).startswith(tuple(COMPRESSIONS))


def count_lines(texts):
    """Counts the lines of a file or the texts of a list.

    Args:
        texts: path of a file, or an iterable of strings.

    Returns:
        An int, or `None` for an iterator and a pipe, which can be read only once, and for a file
        that is compressed.
    """
    if not is_path(texts):
        return len(texts) if hasattr(texts, "__len__") else None
    if not os.path.isfile(texts):
        return None
    count, last = 0, b"\n"
    with open(texts, "rb") as file:
        if file.peek(6).startswith(tuple(COMPRESSIONS)):
            return None
        while block := file.read(1 << 20):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")  # a last line without its newline is a line too


def check_output(path, *inputs):
    """Checks that an output file can be made: its folder exists, and it is no folder and no input.

    Args:
        path: path, or `None` for standard output.
        *inputs: paths and descriptors of what is read. `None` is left out.

    Raises:
        FileNotFoundError: its folder does not exist.
        IsADirectoryError: it is a folder.
        ValueError: it is one of the inputs, by a link too.
    """
    output = 1 if path is None else path
    for read in filter(lambda read: read is not None and os.path.isfile(read), inputs):
        if os.path.isfile(output) and os.path.samefile(read, output):
            name = "standard input" if read == 0 else f"the input {read}"
            raise ValueError(f"The output would replace {name}: give it another name.")
    if path is not None and not pathlib.Path(path).parent.is_dir():
        raise FileNotFoundError(
            f"The folder {pathlib.Path(path).parent} of the output file does not exist; make it "
            "first."
        )
    if path is not None and os.path.isdir(path):
        raise IsADirectoryError(f"The output {path} is a folder (Is a directory): name a file.")


def check_same_length(name, length, other_name, other_length):
    """Checks that the two sides of a corpus have as many lines.

    Args:
        name, other_name: str. What the message calls the sides, such as "'train.en'".
        length, other_length: int. The number of lines of each side.

    Returns:
        The length.

    Raises:
        ValueError: the lengths differ.
    """
    if length == other_length:
        return length
    raise ValueError(
        f"The two sides differ in length: {counted(length, 'line')} in {name}, but "
        f"{other_length:,} in {other_name}; line n of one must belong to line n of the other."
    )
