"""Attention maps of a model, which show which token attends to which."""

import math
from dataclasses import dataclass, field

import numpy as np

from kformer.plots.style import SEQUENTIAL, font_families, matplotlib_figure
from kformer.translating.pairs import attention_weights
from kformer.utils.checks import check_choice
from kformer_options.names import on_command_line

KINDS = ("cross", "encoder", "decoder")
# The names of the rows and of the columns of a map.
AXES = {
    "cross": ("predicted token", "source token"),
    "encoder": ("source token", "source token that is attended to"),
    "decoder": ("predicted token", "token before it"),
    None: ("query", "key"),
}
_CHINESE = {
    "predicted token": "译文的词元",
    "source token": "原文的词元",
    "source token that is attended to": "被关注的原文词元",
    "token before it": "在它之前的词元",
    "query": "查询",
    "key": "键",
    "layer {}": "第 {} 层",
    ", head {}": "，第 {} 个头",
    ", mean of heads": "，各头平均",
    "attention": "注意力",
}
# A picture of this size in inches has 1920 x 1080 pixels.
_SCREEN = (12.8, 7.2)
_MOST_INCHES = 40


@dataclass(frozen=True)
class AttentionMaps:
    """The attention of all layers and heads in one forward pass, for S source and T target tokens.

    Attributes:
        source: list of S str. The source tokens.
        target: list of T str. The predicted tokens, with the end token last.
        encoder: float array `[layers, N, S, S]`. Self-attention of the encoder.
        decoder: float array `[layers, N, T, T]`. Causal self-attention of the decoder. Rows are
            predicted tokens, columns tokens that the decoder has read.
        cross: float array `[layers, N, T, S]`. Attention of the decoder to the source. Rows are
            predicted tokens, as in `Translator.attention`; columns are source tokens.
        text: str. The translation.
        read: list of T str. The tokens that the decoder reads: the start token, and `target`
            without its last token.
        source_text: str. The source sentence.
        hypotheses: list of `kformer.translating.translation.Hypothesis`. The translations of the
            search, best first; empty where a target was given.
    """

    source: list
    target: list
    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray
    text: str
    read: list
    source_text: str
    hypotheses: list = field(default_factory=list)

    def of(self, kind):
        """Returns one kind of attention with its labels.

        Args:
            kind: str. "cross", "encoder" or "decoder".

        Returns:
            Float array `[layers, N, queries, keys]`, the list of labels of the queries, and that of
            the keys.

        Raises:
            ValueError: the kind is unknown, or the model has none of it.
        """
        check_choice("The kind of attention", kind, KINDS)
        if not len(getattr(self, kind)):
            raise ValueError(
                "The model's decoder has an SSRU in place of self-attention: look at its attention "
                "of the kind cross or encoder."
            )
        queries = self.source if kind == "encoder" else self.target
        keys = self.read if kind == "decoder" else self.source
        return getattr(self, kind), queries, keys


def attention_maps(translator, source, target=None, **options):
    """Runs a translator's model on one sentence and returns all its attention.

    Args:
        translator: `kformer.Translator`.
        source: str. A sentence.
        target: str or `None`, default `None`. Its translation; `None` for the translator's own.
        **options: options of the translator, such as `beam_size`.

    Returns:
        `AttentionMaps`.

    Raises:
        ValueError: the source is empty.
    """
    tokenizer, model = translator.tokenizer, translator.model
    source_ids = tokenizer.tokenize([source], special_tokens=True)[0]
    if not source.strip():
        raise ValueError("The source is empty, so there is no attention: give a sentence.")
    hypotheses = []
    if target is None:
        # All hypotheses of the final beam (no extra cost).
        search = translator.search_options(options)
        if not search.sampling:
            options = {**options, "n_best": search.beam_size}
        hypotheses = translator.translate([source], **options)[0].hypotheses
        target = hypotheses[0].text
    target_ids = list(tokenizer.tokenize([target], side="target", special_tokens=True)[0])
    if target_ids[-1:] != [model.end_id]:
        target_ids.append(model.end_id)
    read_ids = [model.start_id, *target_ids[:-1]]
    sides = ((source_ids, "source"), (target_ids, "target"), (read_ids, "target"))
    labels = [[tokenizer.id_to_token(token, side) for token in ids] for ids, side in sides]
    return AttentionMaps(
        *labels[:2],
        **attention_weights(model, source_ids, read_ids),
        text=target,
        read=labels[2],
        source_text=source,
        hypotheses=hypotheses,
    )


def plot_attention(
    scores,
    queries=None,
    keys=None,
    *,
    kind=None,
    layers=None,
    heads=None,
    mean=None,
    title=None,
    language="en",
):
    """Plots attention maps: a row for each layer and a column for each head, or means of heads.

    If neither `layers` nor `heads` is given, or one layer, the picture fits a screen of 1920 x 1080
    pixels. Without them it shows the mean of each layer's heads.

    Args:
        scores: `AttentionMaps`, or float array `[T, S]`, `[N, T, S]` or `[layers, N, T, S]`.
        queries: list of T str or `None`, default `None`. Labels of the rows; `AttentionMaps` have
            their own.
        keys: list of S str or `None`, default `None`. Labels of the columns; `AttentionMaps` have
            their own.
        kind: str or `None`, default `None`. "cross", "encoder" or "decoder": chooses one of
            `AttentionMaps` and names the axes. `None` means "cross" for `AttentionMaps`, and
            axes named "query" and "key" for an array.
        layers: list of int or `None`, default `None`. The layers to plot, counted from 0, negative
            numbers from the end; `None` for all.
        heads: list of int or `None`, default `None`. The heads to plot, likewise.
        mean: bool or `None`, default `None`. Whether to plot the mean over these heads instead of
            each; `None` for means if there are several layers and neither `layers` nor `heads` is
            given.
        title: str or `None`, default `None`. A text above the plot.
        language: str, default "en". The language of the names of axes, layers and heads: "en" or
            "zh".

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: the array has another rank, the number of labels is wrong, or there is no such
            kind, layer, head or language, or none is chosen.

    Example:

    ```python
    translator = kformer.Translator.load("runs/en-de")
    maps = kformer.plots.attention_maps(translator, "A man rides a horse.")
    figure = kformer.plots.plot_attention(maps, layers=[-1])
    kformer.plots.save(figure, "attention.png")
    ```
    """
    if isinstance(scores, AttentionMaps):
        kind = kind or "cross"
        scores, queries, keys = scores.of(kind)
    elif kind is not None:
        check_choice("The kind of attention", kind, KINDS)
    check_choice("The language", language, ("en", "zh"))
    words = _CHINESE if language == "zh" else {text: text for text in _CHINESE}
    scores = np.asarray(scores, "float32")
    if not 2 <= scores.ndim <= 4:
        raise ValueError(
            "Attention scores have the shape [T, S], [N, T, S] or [layers, N, T, S], but "
            f"{list(scores.shape)} was given."
        )
    scores = scores.reshape((1,) * (4 - scores.ndim) + scores.shape)
    sides = {"queries": (queries, scores.shape[2]), "keys": (keys, scores.shape[3])}
    for name, (labels, size) in sides.items():
        if labels is not None and len(labels) != size:
            raise ValueError(f"There are {len(labels)} labels for {size} {name}; give one each.")
    is_overview = layers is None and heads is None
    layer_numbers = _chosen(layers, scores.shape[0], "layer")
    head_numbers = _chosen(heads, scores.shape[1], "head")
    if mean if mean is not None else is_overview and scores.shape[0] > 1:
        names = [words[", mean of heads"] if scores.shape[1] > 1 or mean else ""]
        if heads is not None:
            names[0] += f" {', '.join(str(head + 1) for head in head_numbers)}"
        scores, head_numbers = scores[:, head_numbers].mean(axis=1, keepdims=True), [0]
    else:
        is_one = scores.shape[1] == 1
        names = ["" if is_one else words[", head {}"].format(head + 1) for head in head_numbers]
    panels = [
        (scores[layer, head], words["layer {}"].format(layer + 1) + name)
        for layer in layer_numbers
        for head, name in zip(head_numbers, names, strict=True)
    ]
    fits_screen = is_overview or len(layer_numbers) == 1
    columns = len(head_numbers)
    if fits_screen or columns == 1:
        columns = math.ceil(len(panels) ** 0.5)
    names = [words[name] for name in (*AXES[kind], "attention")]
    return _plot_panels(panels, columns, (queries, keys), names, fits_screen, title)


def _plot_panels(panels, columns, labels, names, fits_screen, title):
    queries, keys = labels
    rows = math.ceil(len(panels) / columns)
    num_queries, num_keys = panels[0][0].shape
    cell = 0.28 if queries or keys else 0.08
    width, height = max(2.2, cell * num_keys + 1), max(1.8, cell * num_queries + 1)
    most = _SCREEN if fits_screen else (_MOST_INCHES, _MOST_INCHES)
    size = min(most[0], columns * width + 0.6), min(most[1], rows * height + 0.4)
    figure = matplotlib_figure(*size)
    # The inches of a token, after names and titles have theirs.
    inches = min((size[0] / columns - 1) / num_keys, (size[1] / rows - 1) / num_queries)
    texts = [*(queries or []), *(keys or []), title or ""]
    style = {"fontsize": max(3, min(8, 60 * inches)), "fontfamily": font_families(texts)}
    names_family = font_families(names)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for number, (axes, (scores, name)) in enumerate(zip(grid.flat, panels, strict=False)):
        picture = axes.imshow(
            scores, cmap=SEQUENTIAL, vmin=0, vmax=1, aspect="auto", interpolation="nearest"
        )
        row_labels = queries if number % columns == 0 else None
        for axis, labels, rotation in ((axes.xaxis, keys, 90), (axes.yaxis, row_labels, 0)):
            if labels is None:
                axis.set_ticks([])
            else:
                axis.set_ticks(range(len(labels)), labels, rotation=rotation, **style)
                axis.set_tick_params(length=0)
        axes.set_title(name, fontsize=9, fontfamily=names_family)
    bar = figure.colorbar(picture, ax=grid, shrink=0.6)
    bar.set_label(names[2], fontfamily=names_family)
    figure.supylabel(names[0], fontsize=9, fontfamily=names_family)
    figure.supxlabel(names[1], fontsize=9, fontfamily=names_family)
    if title:
        figure.suptitle(title, fontfamily=style["fontfamily"], wrap=True)
    return figure


def _chosen(numbers, size, what):
    if numbers is None:
        return list(range(size))
    if not len(numbers):
        raise ValueError(f"{what}s has no number: give one, or leave it out for all.")
    for number in numbers:
        if not -size <= number < size:
            first = 1 if on_command_line() else 0
            raise ValueError(
                f"There is no {what} {number + first}: they are numbered from {first} to "
                f"{size - 1 + first}."
            )
    return [number % size for number in numbers]
