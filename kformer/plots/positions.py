"""Plots of position encodings and of their similarity."""

import numpy as np
from keras import ops

from kformer.plots.style import DIVERGING, matplotlib_figure


def plot_positions(vectors, title="position encoding"):
    """Plots position vectors, with a row for each position and a column for each dimension.

    Args:
        vectors: float array or tensor `[positions, D]`. From
            `kformer.layers.sinusoidal_positions`, or a learned table.
        title: str, default "position encoding". A text above the plot.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: the vectors have another rank.

    Example:

    ```python
    vectors = kformer.layers.sinusoidal_positions(np.arange(64), 32)
    figure = kformer.plots.plot_positions(vectors)
    ```
    """
    vectors = _matrix(vectors)
    figure = matplotlib_figure(6, 4)
    axes = figure.subplots()
    bound = np.abs(vectors).max() or 1
    picture = axes.imshow(
        vectors, cmap=DIVERGING, vmin=-bound, vmax=bound, aspect="auto", interpolation="nearest"
    )
    axes.set(xlabel="dimension", ylabel="position", title=title)
    figure.colorbar(picture, ax=axes)
    return figure


def plot_similarity(vectors, title="similarity of positions"):
    """Plots the cosine similarity of every position with every other.

    Args:
        vectors: float array or tensor `[positions, D]`.
        title: str, default "similarity of positions". A text above the plot.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: the vectors have another rank.

    Example:

    ```python
    vectors = kformer.layers.sinusoidal_positions(np.arange(64), 32)
    figure = kformer.plots.plot_similarity(vectors)
    ```
    """
    vectors = _matrix(vectors)
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    figure = matplotlib_figure(5, 4.2)
    axes = figure.subplots()
    picture = axes.imshow(unit @ unit.T, cmap=DIVERGING, vmin=-1, vmax=1, interpolation="nearest")
    axes.set(xlabel="position", ylabel="position", title=title)
    figure.colorbar(picture, ax=axes, label="cosine")
    return figure


def _matrix(vectors):
    vectors = ops.convert_to_numpy(vectors).astype("float32")
    if vectors.ndim != 2:
        raise ValueError(
            f"Position vectors have the shape [positions, D], but {list(vectors.shape)} was given."
        )
    return vectors
