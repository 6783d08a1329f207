"""Names of types that the annotations of the public API share."""

import os
from collections.abc import Callable, Iterable

Path = str | os.PathLike[str]
Progress = Callable[..., object]
Texts = Iterable[str | bytes]
