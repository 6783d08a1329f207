"""What all plots share: figures, colors, fonts and files."""

import functools
import importlib.util
import io
import pathlib
import warnings

from kformer.utils.files import replacing
from kformer_options.figure_files import check_figure
from kformer_options.installed import check_extra

# One hue from light to dark: larger values are darker, on the screen and in print.
SEQUENTIAL = "Blues"
# For values around zero.
DIVERGING = "RdBu_r"
COLORS = ("#1f5fa8", "#d1600a", "#2b8a3e", "#8a3ea8", "#b0203a", "#5c5c5c")
_DPI = 150
_NO_TEXT = ("cm", "STIX", "Last Resort")


def matplotlib_figure(width, height):
    """Makes an empty figure.

    Args:
        width: float. In inches.
        height: float. In inches.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ImportError: Matplotlib is not installed.
    """
    check_extra("A figure", "plots")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    # IPython draws figures by itself only after pyplot has made one.
    figure._repr_png_ = functools.partial(_png, figure)
    return figure


def _png(figure):
    figure.savefig(file := io.BytesIO(), format="png")
    return file.getvalue()


def save(figure, path):
    """Writes a figure to a file, atomically.

    Args:
        figure: `matplotlib.figure.Figure`.
        path: path. It ends in `.png`, `.svg` or `.pdf`.

    Returns:
        `pathlib.Path`. The same path.

    Raises:
        ValueError: the path has another suffix.

    Example:

    ```python
    vectors = kformer.layers.sinusoidal_positions(np.arange(64), 32)
    kformer.plots.save(kformer.plots.plot_positions(vectors), "positions.svg")
    # PosixPath('positions.svg')
    ```
    """
    path = pathlib.Path(path)
    check_figure(path)
    with replacing(path.resolve()) as part:  # A link stays one.
        figure.savefig(part, dpi=_DPI, format=path.suffix[1:].lower())
    return path


def write_text(path, text):
    """Writes a text file, atomically.

    Args:
        path: `pathlib.Path`.
        text: str.
    """
    with replacing(path.resolve()) as part:
        part.write_text(text, encoding="utf-8")


def font_families(texts):
    """Finds font families that together have all characters of the texts.

    Matplotlib's default font lacks Chinese, Japanese and Korean. Installed fonts are searched, then
    those of the package mplfonts. A warning names characters that no font has.

    Args:
        texts: list of str.

    Returns:
        List of str, Matplotlib's default first.
    """
    from matplotlib import font_manager

    families = ["DejaVu Sans"]
    missing = {ord(sign) for text in texts for sign in text if not sign.isspace()}
    missing -= _characters(font_manager.findfont(families[0]))
    for path, family in _fonts() if missing else ():
        if missing & _characters(path):
            families.append(family)
            missing -= _characters(path)
        if not missing:
            break
    if missing:
        signs = "".join(sorted(map(chr, missing))[:8])
        warnings.warn(
            f'No font here has {signs!r}, which become boxes: pip install "kformer[cjk]".',
            stacklevel=3,
        )
    return families


@functools.lru_cache(maxsize=1)
def _fonts():
    """List of (file, family) of each usable font, installed ones first."""
    from matplotlib import font_manager

    # Fonts for formulas use other code points, and "Last Resort" has a box for every character.
    fonts = [
        (font.fname, font.name)
        for font in font_manager.fontManager.ttflist
        if not font.name.startswith(_NO_TEXT)
    ]
    package = importlib.util.find_spec("mplfonts")
    for folder in package.submodule_search_locations if package else ():
        for path in sorted(pathlib.Path(folder, "fonts").glob("NotoSansCJK*.otf")):
            font_manager.fontManager.addfont(path)
            fonts.append((str(path), font_manager.FontProperties(fname=path).get_name()))
    return fonts


@functools.lru_cache(maxsize=256)
def _characters(path):
    from matplotlib.ft2font import FT2Font

    return set(FT2Font(str(path)).get_charmap())
