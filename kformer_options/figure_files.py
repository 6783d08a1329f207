"""What the file of a figure must be called, and what writes it.

This module imports only the standard library, as `kformer_options.text_files` does.
"""

import pathlib

from kformer_options.installed import check_extra

_SUFFIXES = (".png", ".svg", ".pdf")


def check_figure(path):
    """Checks that a figure can be written to a path: by its suffix, and with Matplotlib.

    Args:
        path: path.

    Raises:
        ValueError: it is another suffix.
        ImportError: Matplotlib is not installed.
    """
    if pathlib.Path(path).suffix.lower() not in _SUFFIXES:
        raise ValueError(
            f"A figure is written to a file that ends in {', '.join(_SUFFIXES)}, but {path} was "
            "given."
        )
    check_extra("A figure", "plots")
