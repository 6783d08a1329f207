"""API keys, by their digests."""

import hashlib
import hmac

from kformer.serving.interface import Unauthorized


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
