"""API keys, from a file."""

import codecs
import hashlib
import hmac
import pathlib

from kformer.serving.interface import Unauthorized

_MOST_BYTES = 2**20
_LEAST_CHARACTERS = 16


def read_keys(path):
    """Reads API keys.

    Args:
        path: path. One key in each line; empty lines and those that begin with `#` are skipped.

    Returns:
        `ApiKeys`.

    Raises:
        OSError: the file cannot be read.
        ValueError: a key is short or has other characters than ASCII, or there is none.
    """
    with open(path, "rb") as file:
        content = file.read(_MOST_BYTES)
    lines = [line.strip() for line in content.removeprefix(codecs.BOM_UTF8).splitlines()]
    keys = [line for line in lines if line and not line.startswith(b"#")]
    if not keys:
        raise ValueError(f"{pathlib.Path(path)} has no API key: write one in each line.")
    for number, line in enumerate(lines, 1):
        if line in keys and not line.isascii():
            raise ValueError(
                f"{pathlib.Path(path)}, line {number}: an API key has ASCII characters alone, as "
                "headers of HTTP do: make another one."
            )
        if line in keys and len(line) < _LEAST_CHARACTERS:
            raise ValueError(
                f"{pathlib.Path(path)}, line {number}: an API key has at least "
                f"{_LEAST_CHARACTERS} characters."
            )
    return ApiKeys(keys)


class ApiKeys:
    """The keys with which requests are answered.

    Args:
        keys: list of bytes, default empty, for requests of everybody.
    """

    def __init__(self, keys=()):
        self._digests = [hashlib.sha256(key).digest() for key in keys]

    @property
    def are_needed(self):
        """Whether requests need a key."""
        return bool(self._digests)

    def check(self, *candidates):
        """Checks a request's keys, in a time that does not depend on them.

        Args:
            *candidates: str or `None`. What stands where a key may stand: the value of
                `Authorization`, with or without `Bearer`, of `X-API-Key`, and so on.

        Raises:
            Unauthorized: none of them is a key.
        """
        if not self._digests:
            return
        is_known = False
        for candidate in candidates:
            if not isinstance(candidate, str):
                continue
            if candidate[:7].lower() == "bearer ":
                candidate = candidate[7:]
            digest = hashlib.sha256(candidate.strip().encode("utf-8", "replace")).digest()
            for known in self._digests:
                is_known |= hmac.compare_digest(digest, known)
        if not is_known:
            raise Unauthorized("The request has no valid API key.")
