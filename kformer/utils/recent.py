"""What was used last, of values that take long to make."""

import collections
import contextlib


class Recent:
    """Keeps the last few values that were used, whose keys come from a caller who may have many."""

    most = 8

    def __init__(self):
        self._values = collections.OrderedDict()

    def __len__(self):
        return len(self._values)

    def get_or_make(self, key, make):
        """Returns the value of a key, and forgets the value that was not used for longest.

        Args:
            key: hashable.
            make: function without arguments, which makes a missing value.

        Returns:
            The value.
        """
        value = self._values.get(key)
        if value is None:
            value = make()
        self._values[key] = value
        with contextlib.suppress(KeyError):  # Another thread may have removed it.
            self._values.move_to_end(key)
        while len(self._values) > self.most:
            self._values.popitem(last=False)
        return value
