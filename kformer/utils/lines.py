"""Reads and counts lines, so that line n of one file always meets line n of the other."""

import codecs
import itertools
import os

from kformer.utils.compressed import open_binary
from kformer_options.text_files import check_readable, count_lines, is_path  # noqa: F401


def describe(texts, side):
    """Returns the name of a side for messages: "the source file 'train.en'", "the source texts"."""
    return f"the {side} file '{os.fspath(texts)}'" if is_path(texts) else f"the {side} texts"


def read_chunks(texts, side, chunk_lines):
    r"""Yields lists of at most `chunk_lines` texts, in order.

    A line of a file ends at `"\n"` and nowhere else. `str.splitlines` also breaks at U+2028,
    `"\x0b"`, `"\x85"` and others, which occur inside sentences, and would pair every later source
    line with the wrong target line. One `"\r"` before the newline is dropped, and so is a byte
    order mark at the start of the file. Texts of a list are not changed.

    Args:
        texts: path of a UTF-8 file, which may be compressed (`kformer.utils.compressed`), or an
            iterable of strings.
        side: str. What the texts are, for messages, such as "source".
        chunk_lines: int. The most texts in one list.

    Raises:
        ValueError: a line is not UTF-8 (the message has its number), or an item is not a proper
            string.
    """
    if not is_path(texts):
        iterator, number = iter(texts), 0
        while chunk := list(itertools.islice(iterator, chunk_lines)):
            _check_strings(chunk, side, number)
            number += len(chunk)
            yield chunk
        return
    number = 0
    with open_binary(texts) as file:
        while raw := list(itertools.islice(file, chunk_lines)):
            if number == 0 and raw[0].startswith(codecs.BOM_UTF8):
                raw[0] = raw[0][len(codecs.BOM_UTF8) :]
                if not raw[0]:  # The file holds the mark alone.
                    return
            yield decode_lines(raw, describe(texts, side), number)
            number += len(raw)


def read_lines(path, side):
    """Reads all lines of a text file.

    Args:
        path: path of the file.
        side: str. What the lines are, for messages, such as "source".

    Returns:
        A list of str.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is empty, or not UTF-8.
    """
    check_readable(str(path), side)
    lines = [line for chunk in read_chunks(str(path), side, 100_000) for line in chunk]
    if not lines:
        raise ValueError(f"The {side} file '{path}' is empty.")
    return lines


def one_line(text):
    """A text without line breaks."""
    return text.replace("\r", " ").replace("\n", " ")


def proper(text):
    """Returns a text with U+FFFD for each half of a surrogate pair, which is no character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def decode_lines(raw, name, number):
    """Returns the texts of lines.

    Args:
        raw: list of bytes, of which each but the last ends in a newline. Each may be several lines.
        name: str. What the lines are from, for messages, such as "the source file 'train.en'".
        number: int. The number of lines before them.

    Returns:
        A list of str.

    Raises:
        ValueError: a line is not UTF-8.
    """
    # One call for the whole chunk is several times faster than one call per line.
    content = b"".join(raw)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        *lines, start = content[: error.start].split(b"\n")
        raise ValueError(
            f"Line {number + len(lines) + 1} of {name} is not valid UTF-8 "
            f"(byte 0x{content[error.start]:02x} at position {len(start)}); convert the file "
            "to UTF-8, or remove that line from both sides."
        ) from None
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
        for index, item in enumerate(chunk, number + 1):
            name = f"Item {index} of the {side} texts"
            if not isinstance(item, str):
                kind = type(item).__name__
                message = f"{name} is of type {kind}; every item must be a string."
                raise ValueError(message) from None
            if any("\ud800" <= character <= "\udfff" for character in item):
                raise ValueError(
                    f"{name} holds a lone surrogate and is not valid Unicode; decode the text with "
                    "errors='strict', or remove the item from both sides."
                ) from None
