"""A dictionary of what was used last."""

import collections
import contextlib


class Recent(collections.OrderedDict):
    """A dictionary that keeps the last few values that `get_or_make` returned.

    For values that take long to make, and whose keys come from a caller who may have many.
    """

    most = 8

    def get_or_make(self, key, make):
        """Returns the value of a key, and forgets the value that was not used for longest.

        Args:
            key: hashable.
            make: function without arguments, which makes a missing value.

        Returns:
            The value.
        """
        value = self.get(key)
        if value is None:
            value = make()
        self[key] = value
        with contextlib.suppress(KeyError):  # Another thread may have removed it.
            self.move_to_end(key)
        while len(self) > self.most:
            self.popitem(last=False)
        return value
