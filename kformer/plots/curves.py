"""Plots of metrics against training steps, and of time against length."""

import csv
import pathlib

import numpy as np

from kformer.plots.style import COLORS, font_families, matplotlib_figure

# The most points of a line. A history has the loss of every step, which are too many to plot.
_POINTS = 400


def plot_training(runs, names=None, metrics=None):
    """Plots training and validation curves of one or several runs.

    Args:
        runs: path of a run directory (with `history.csv`), dict of a Keras `History`, or a list of
            these.
        names: list of str or `None`, default `None`. A name for each run; `None` for the names of
            the directories.
        metrics: sequence of str, default `None`. Names of metrics. After the plot of the loss, each
            gets a plot of its training and validation curves. `None` for nll and bleu, where a run
            has them.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        FileNotFoundError: a directory has no `history.csv`.
        ValueError: no run has one of the metrics, or the numbers of names and runs differ.

    Example:

    ```python
    history = {"loss": [4.0, 3.0, 2.5], "nll": [3.9, 2.9, 2.4], "val_nll": [3.8, 3.0, 2.8]}
    figure = kformer.plots.plot_training(history)
    ```
    """
    runs = list(runs) if isinstance(runs, list | tuple) else [runs]
    if names is None:
        names = ["run" if isinstance(run, dict) else pathlib.Path(run).name for run in runs]
    if not runs or len(names) != len(runs):
        raise ValueError(f"There are {len(names)} names for {len(runs)} runs; give one for each.")
    histories = [_history(run) for run in runs]
    recorded = {name.removeprefix("val_") for history in histories for name in history}
    requested = dict.fromkeys(["loss", *(("nll", "bleu") if metrics is None else metrics)])
    plotted = [name for name in requested if name in recorded]
    missing = [name for name in metrics or () if name not in recorded] if plotted else requested
    if missing:
        names = ", ".join(sorted(recorded)) or "nothing"
        raise ValueError(f"No run has {', '.join(missing)} in its history, but {names}.")
    figure = matplotlib_figure(4.6 * len(plotted), 3.4)
    grid = figure.subplots(1, len(plotted), squeeze=False)[0]
    for axes, metric in zip(grid, plotted, strict=True):
        for color, name, history in zip(COLORS * len(runs), names, histories, strict=False):
            curves = ((metric, ":", "training"), (f"val_{metric}", "-", "validation"))
            for key, style, part in curves:
                if key in history:
                    line = _thinned(*history[key])
                    axes.plot(*line, style, color=color, label=f"{name}, {part}", linewidth=1.4)
        axes.set(xlabel="step" if not isinstance(runs[0], dict) else "epoch", title=metric)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(prop={"family": font_families(names), "size": 7}, frameon=False)
    return figure


def plot_lengths(times, what="seconds", title=None):
    """Plots time or memory against length, both on logarithmic scales.

    A straight line of slope 1 shows linear growth, one of slope 2 quadratic growth.

    Args:
        times: dict of str to dict of int to float. For each name the numbers by length.
        what: str, default "seconds". The quantity or unit of the numbers.
        title: str or `None`, default `None`. A text above the plot.

    Returns:
        `matplotlib.figure.Figure`.

    Example:

    ```python
    times = {"full": {512: 0.1, 1024: 0.4}, "local": {512: 0.1, 1024: 0.2}}
    figure = kformer.plots.plot_lengths(times)
    ```
    """
    figure = matplotlib_figure(5.4, 3.8)
    axes = figure.subplots()
    for number, (name, points) in enumerate(times.items()):
        # Lines of the same color differ in style.
        style = ("o-", "s--", "^:")[number // len(COLORS) % 3]
        lengths, color = sorted(points), COLORS[number % len(COLORS)]
        numbers = [points[length] for length in lengths]
        axes.loglog(lengths, numbers, style, color=color, label=name, markersize=4, base=2)
    families = font_families([*times, what, title or ""])
    axes.set(xlabel="length in tokens")
    axes.set_ylabel(what, fontfamily=families)
    axes.set_title(title or "", fontfamily=families)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(prop={"family": families}, frameon=False)
    return figure


def _history(run):
    """Reads a run: dict of name to (steps, numbers)."""
    if isinstance(run, dict):
        return {name: (range(1, len(numbers) + 1), numbers) for name, numbers in run.items()}
    path = pathlib.Path(run) / "history.csv"
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: is {run} the directory of a run?")
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    points = {
        name: [(int(row["step"]), float(row[name])) for row in rows if row[name]]
        for name in (rows[0] if rows else ())
        if name != "step"
    }
    return {name: tuple(zip(*pairs, strict=True)) for name, pairs in points.items() if pairs}


def _thinned(steps, numbers):
    """Reduces a line to few points, each the mean of consecutive ones."""
    count = max(1, min(len(steps), _POINTS))
    return tuple(
        np.array([part.mean() for part in np.array_split(np.asarray(values, float), count)])
        for values in (steps, numbers)
    )
