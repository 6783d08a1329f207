"""API keys, by their digests."""

import hashlib
import hmac
import re

from kformer.serving.interface import Unauthorized, require


class ApiKeys:
    """The keys with which requests are answered.

    Args:
        keys: list of bytes, default empty, for requests of everybody.
    """

    def __init__(self, keys=()):
        self._digests = [hashlib.sha256(key).digest() for key in keys]

    def check(self, *candidates):
        """Checks a request's keys, in a time that does not depend on them.

        Args:
            *candidates: str or `None`. What stands where a key may stand: the value of
                `Authorization`, with or without `Bearer`, of `X-API-Key`, and so on.

        Raises:
            Unauthorized: none of them is a key.
        """
        is_known = not self._digests
        for candidate in candidates:
            text = candidate if isinstance(candidate, str) else ""
            key = re.sub("^bearer ", "", text, flags=re.IGNORECASE).strip()
            digest = hashlib.sha256(key.encode("utf-8", "replace")).digest()
            for known in self._digests:
                is_known |= hmac.compare_digest(digest, known)
        require(is_known, "The request has no valid API key.", Unauthorized)
