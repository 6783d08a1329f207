"""Reading the two sides of a parallel corpus, one text per line, without ever shifting one side
against the other.
"""

import codecs
import itertools
import os
import pathlib


def is_path(texts):
    """Whether `texts` names a file (a string or a path) rather than holding the texts themselves."""
    return isinstance(texts, (str, os.PathLike))


def describe(texts, side):
    """How an error message calls one side: `the source file 'train.en'` or `the source texts`."""
    return f"the {side} file '{os.fspath(texts)}'" if is_path(texts) else f"the {side} texts"


def check_readable(texts, side):
    """Raises one clear sentence when `texts` is neither a readable file nor an iterable of strings.

    Raises:
        FileNotFoundError: when a path leads nowhere.
        ValueError: when it is a folder, or no iterable at all.
    """
    if not is_path(texts):
        if isinstance(texts, (bytes, bytearray)) or not hasattr(texts, "__iter__"):
            raise ValueError(
                f"The {side} must be the path of a text file or a list of strings, but it is of type "
                f"{type(texts).__name__}."
            )
        return
    path = pathlib.Path(texts)
    if path.is_dir():
        raise ValueError(
            f"The {side} '{path}' is a folder; give the path of a text file with one sentence per line."
        )
    if not path.exists():
        raise FileNotFoundError(
            f"The {side} file '{path}' does not exist; give the path of a UTF-8 text file with one sentence per line, "
            "or a list of strings."
        )


def count_lines(texts):
    """Number of lines of a file or texts of a list; `None` for an iterator, which can be read only
    once.
    """
    if not is_path(texts):
        return len(texts) if hasattr(texts, "__len__") else None
    count, last = 0, b"\n"
    with open(texts, "rb") as file:
        while block := file.read(1 << 20):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")  # a last line without its newline is a line too


def read_chunks(texts, side, chunk_lines):
    r"""Yields lists of at most `chunk_lines` texts, in order.

    A line of a file ends at `"\n"` and nowhere else: `str.splitlines` also breaks at U+2028,
    `"\x0b"`, `"\x85"` and others, which occur inside sentences and would pair every later source
    line with the wrong target line. One `"\r"` before the newline belongs to the line's end (files
    written on Windows); a byte order mark at the start of the file is dropped. Texts of a list are
    taken as they are.

    Args:
        texts: path of a UTF-8 file, or an iterable of strings.
        side: `"source"` or `"target"`, for error messages.
        chunk_lines: int. Most lines in one list.

    Raises:
        ValueError: for bytes that are not UTF-8, with the line's number; for an item that is not a
            proper string.
    """
    if not is_path(texts):
        iterator, number = iter(texts), 0
        while chunk := list(itertools.islice(iterator, chunk_lines)):
            _check_strings(chunk, side, number)
            number += len(chunk)
            yield chunk
        return
    number = 0
    with open(texts, "rb") as file:
        while raw := list(itertools.islice(file, chunk_lines)):
            if number == 0 and raw[0].startswith(codecs.BOM_UTF8):
                raw[0] = raw[0][len(codecs.BOM_UTF8) :]
                if not raw[0]:  # nothing but the mark: an empty file
                    return
            yield _decode(raw, texts, side, number)
            number += len(raw)


def _decode(raw, path, side, number):
    try:
        text = b"".join(raw).decode(
            "utf-8"
        )  # one call for the whole chunk: several times faster than one per line
    except UnicodeDecodeError:
        for offset, line in enumerate(raw):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"Line {number + offset + 1} of {describe(path, side)} is not valid UTF-8 (byte "
                    f"0x{line[error.start]:02x} at position {error.start}); convert the file to UTF-8, or remove that "
                    "line from both sides."
                ) from None
        raise
    lines = text.split("\n")
    if raw[-1].endswith(b"\n"):
        lines.pop()
    if "\r" in text:
        lines = [line[:-1] if line.endswith("\r") else line for line in lines]
    return lines


def _check_strings(chunk, side, number):
    try:
        "".join(chunk).encode("utf-8")
    except (TypeError, UnicodeEncodeError):
        for offset, item in enumerate(chunk):
            if not isinstance(item, str):
                raise ValueError(
                    f"Item {number + offset + 1} of the {side} texts is of type {type(item).__name__}; every item "
                    "must be a string."
                ) from None
            try:
                item.encode("utf-8")
            except UnicodeEncodeError:
                raise ValueError(
                    f"Item {number + offset + 1} of the {side} texts holds a lone surrogate and is not valid Unicode; "
                    "decode the text with errors='strict', or remove the item from both sides."
                ) from None
        raise
