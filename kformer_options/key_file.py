"""The file of API keys of a server.

This module imports only the standard library, as `kformer_options.text_files` does.
"""

import codecs
import pathlib

_MOST_BYTES = 2**20
_LEAST_CHARACTERS = 16


def keys_in(path):
    """Reads API keys.

    Args:
        path: path. One key in each line; empty lines and those that begin with `#` are skipped.

    Returns:
        List of bytes.

    Raises:
        OSError: the file cannot be read.
        ValueError: a key is short or has other characters than ASCII, there is none, or the file
            is too large.
    """
    with open(path, "rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"{pathlib.Path(path)} has more than 1 MiB: is it the file of API keys?")
    lines = [line.strip() for line in content.removeprefix(codecs.BOM_UTF8).splitlines()]
    keys = [line for line in lines if line and not line.startswith(b"#")]
    if not keys:
        raise ValueError(f"{pathlib.Path(path)} has no API key: write one in each line.")
    for number, line in enumerate(lines, 1):
        if line in keys and not (line.isascii() and len(line) >= _LEAST_CHARACTERS):
            rule = f"at least {_LEAST_CHARACTERS} characters."
            if not line.isascii():
                rule = "ASCII characters alone, as headers of HTTP do: make another one."
            raise ValueError(f"{pathlib.Path(path)}, line {number}: an API key has {rule}")
    return keys
