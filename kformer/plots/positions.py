"""Plots of position encodings and of their similarity."""

import numpy as np
from keras import ops

from kformer.layers import rotate_positions
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
    bound = np.abs(vectors).max() or 1
    return _plot(vectors, bound, (6, 4), {"xlabel": "dimension", "title": title}, aspect="auto")


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
    return _plot(unit @ unit.T, 1, (5, 4.2), {"xlabel": "position", "title": title}, "cosine")


def position_vectors(model, count=64):
    """The position vectors of a model's encoder, for the plots of this module.

    Rotary positions have no vectors of their own: then a vector of ones of a head's size is rotated
    to each position, so that the similarity of two rows is the part of an attention score that
    depends on their distance.

    Args:
        model: `kformer.Transformer`.
        count: int, default 64. The number of positions.

    Returns:
        Float array `[positions, D]`.

    Raises:
        ValueError: the model has positions of another kind, or fewer of them.

    Example:

    ```python
    model = kformer.Transformer.from_preset("tiny", vocabulary_size=1000)
    vectors = kformer.plots.position_vectors(model)
    kformer.plots.plot_similarity(vectors)
    ```
    """
    config, kind = model.config, model.config.position_encoding
    if kind == "rope":
        ones = np.ones((1, 1, count, config.head_dim or config.hidden_dim // config.num_heads))
        rotated = rotate_positions(ones.astype("float32"), np.arange(count))
        return ops.convert_to_numpy(rotated)[0, 0]
    if kind == "shaw":
        raise ValueError(
            "The model has positions of the kind 'shaw', which are distances, with vectors in each "
            "layer's attention: plot its attention scores instead."
        )
    if kind not in ("sinusoidal", "sinusoidal_halves", "learned"):
        raise ValueError(
            f"The model has positions of the kind {kind!r}, which have no vectors to plot: they "
            "add a number for each distance to the attention scores."
        )
    network = model.network
    layer = network.source_positions or network.source_embedding
    return ops.convert_to_numpy(layer.position_vectors(count, config.hidden_dim, 0))


def _plot(numbers, bound, size, texts, label="", **style):
    figure = matplotlib_figure(*size)
    axes = figure.subplots()
    picture = axes.imshow(
        numbers, cmap=DIVERGING, vmin=-bound, vmax=bound, interpolation="nearest", **style
    )
    axes.set(ylabel="position", **texts)
    figure.colorbar(picture, ax=axes, label=label)
    return figure


def _matrix(vectors):
    vectors = ops.convert_to_numpy(vectors).astype("float32")
    if vectors.ndim != 2:
        raise ValueError(f"Vectors have the shape [positions, D], not {list(vectors.shape)}.")
    return vectors
