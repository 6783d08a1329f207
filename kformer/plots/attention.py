"""Attention maps of a model: which token attended to which."""

from dataclasses import dataclass

import numpy as np
from keras import ops

from kformer.plots.style import SEQUENTIAL, font_families, matplotlib_figure
from kformer.utils.checks import check_choice

KINDS = ("cross", "encoder", "decoder")


@dataclass(frozen=True)
class AttentionMaps:
    """The attention of all layers and heads in one forward pass.

    Args:
        source, target: lists of S and T str. Labels of the tokens.
        encoder: float array `[layers, N, S, S]`. Self-attention in the encoder.
        decoder: float array `[layers, N, T, T]`. Causal self-attention.
        cross: float array `[layers, N, T, S]`. Rows are queries: what the decoder reads (the start
            token and the translation so far).
        text: str. The translation.
    """

    source: list
    target: list
    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray
    text: str

    def of(self, kind):
        """One kind of attention.

        Args:
            kind: str, "cross", "encoder" or "decoder".

        Returns:
            Float array `[layers, N, queries, keys]`, labels of the queries, labels of the keys.
        """
        check_choice("The kind of attention", kind, KINDS)
        queries, keys = {
            "encoder": (self.source, self.source),
            "decoder": (self.target, self.target),
            "cross": (self.target, self.source),
        }[kind]
        return getattr(self, kind), queries, keys


def attention_maps(translator, source, target=None, **options):
    """Runs a translator's model on one sentence and returns all its attention.

    Args:
        translator: `kformer.Translator`.
        source: str. A sentence.
        target: str, default `None`, for the translator's own. Its translation.
        **options: of the translator, such as `beam_size`.

    Returns:
        `AttentionMaps`.

    Raises:
        ValueError: the source is empty.
    """
    tokenizer, model = translator.tokenizer, translator.model
    source_ids = tokenizer.tokenize([source], special_tokens=True)[0]
    if not source.strip():
        raise ValueError("The source is empty, so there is no attention: give a sentence.")
    target = translator([source], **options)[0] if target is None else target
    target_ids = [
        model.start_id,
        *tokenizer.tokenize([target], side="target", special_tokens=True)[0],
    ]
    # The decoder never reads the end token.
    target_ids = (
        target_ids[:-1] if target_ids[-1] == model.end_id and len(target_ids) > 1 else target_ids
    )
    inputs = {
        "source_ids": np.array([source_ids], "int32"),
        "target_ids": np.array([target_ids], "int32"),
    }
    seen = model.inspect(inputs)

    def stacked(name):
        return np.stack(
            [
                ops.convert_to_numpy(ops.cast(scores[0], "float32"))
                for scores in seen[f"{name}_attention_scores"]
            ]
        )

    labels = [tokenizer.id_to_token(token, "source") for token in source_ids]
    target_labels = [tokenizer.id_to_token(token, "target") for token in target_ids]
    return AttentionMaps(
        labels, target_labels, stacked("encoder"), stacked("decoder"), stacked("cross"), target
    )


def plot_attention(
    scores, queries=None, keys=None, *, layers=None, heads=None, mean=False, title=None
):
    """Plots attention maps, a row for each layer and a column for each head.

    Args:
        scores: `AttentionMaps`, of which the cross-attention is plotted, or an array `[T, S]`,
            `[N, T, S]` or `[layers, N, T, S]`.
        queries, keys: lists of T and S str, default `None`, for those of `AttentionMaps` or none.
            Labels.
        layers, heads: lists of int, default `None`, for all. Which to plot, counted from 0;
            negative numbers count from the end.
        mean: bool, default `False`. Whether to plot the mean over the heads instead of each.
        title: str, default `None`. Text above.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: the array has another rank, there are too many or too few labels, or there is no
            such layer or head.

    Example:

    ```python
    translator = kformer.Translator.load("runs/en-de")
    maps = kformer.plots.attention_maps(translator, "A man rides a horse.")
    figure = kformer.plots.plot_attention(maps, layers=[-1])
    kformer.plots.save(figure, "attention.png")
    ```
    """
    if isinstance(scores, AttentionMaps):
        scores, queries, keys = scores.of("cross")
    scores = np.asarray(scores, "float32")
    if not 2 <= scores.ndim <= 4:
        raise ValueError(
            "Attention scores have the shape [T, S], [N, T, S] or [layers, N, T, S], but "
            f"{list(scores.shape)} was given."
        )
    scores = scores.reshape((1,) * (4 - scores.ndim) + scores.shape)
    for name, labels, size in (
        ("queries", queries, scores.shape[2]),
        ("keys", keys, scores.shape[3]),
    ):
        if labels is not None and len(labels) != size:
            raise ValueError(
                f"There are {len(labels)} labels for {size} {name}; give one for each."
            )
    layer_numbers = _chosen(layers, scores.shape[0], "layer")
    if mean:
        scores, heads = scores.mean(axis=1, keepdims=True), None
    head_numbers = _chosen(heads, scores.shape[1], "head")
    rows, columns = len(layer_numbers), len(head_numbers)
    cell = 0.28 if queries or keys else 0.08
    width, height = max(2.2, cell * scores.shape[3] + 0.8), max(1.8, cell * scores.shape[2] + 0.8)
    figure = matplotlib_figure(min(40, columns * width), min(40, rows * height + 0.3))
    families = font_families([*(queries or []), *(keys or []), title or ""])
    grid = figure.subplots(rows, columns, squeeze=False)
    for row, layer in enumerate(layer_numbers):
        for column, head in enumerate(head_numbers):
            axes = grid[row][column]
            picture = axes.imshow(
                scores[layer, head],
                cmap=SEQUENTIAL,
                vmin=0,
                vmax=1,
                aspect="auto",
                interpolation="nearest",
            )
            _label(axes.xaxis, keys, families, rotation=90)
            _label(axes.yaxis, queries, families, shown=column == 0)
            name = f"layer {layer + 1}" + (
                ""
                if scores.shape[1] == 1 and not mean
                else ", mean of heads"
                if mean
                else f", head {head + 1}"
            )
            axes.set_title(name, fontsize=9)
    figure.colorbar(picture, ax=grid, shrink=0.6, label="attention")
    if title:
        figure.suptitle(title, fontfamily=families)
    return figure


def _chosen(numbers, size, what):
    if numbers is None:
        return list(range(size))
    for number in numbers:
        if not -size <= number < size:
            raise ValueError(
                f"There is no {what} {number}: they are numbered from 0 to {size - 1}."
            )
    return [number % size for number in numbers]


def _label(axis, labels, families, rotation=0, shown=True):
    if labels is None or not shown:
        axis.set_ticks([])
        return
    axis.set_ticks(range(len(labels)), labels, rotation=rotation, fontsize=8, fontfamily=families)
    axis.set_tick_params(length=0)
