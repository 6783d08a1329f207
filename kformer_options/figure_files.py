"""What the file of a figure must be called.

This module imports only the standard library, as `kformer_options.text_files` does.
"""

import pathlib

_SUFFIXES = (".png", ".svg", ".pdf")


def check_suffix(path):
    """Checks that the suffix of a path is that of a figure.

    Args:
        path: path.

    Raises:
        ValueError: it is another suffix.
    """
    if pathlib.Path(path).suffix.lower() not in _SUFFIXES:
        raise ValueError(
            f"A figure is written to a file that ends in {', '.join(_SUFFIXES)}, but {path} was "
            "given."
        )
