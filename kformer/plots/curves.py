"""Numbers along a training, and along lengths."""

import csv
import pathlib

import numpy as np

from kformer.plots.style import COLORS, matplotlib_figure

# Every step has a loss; a line of so many points is as many as a picture shows.
_POINTS = 400


def plot_training(runs, names=None, metrics=("nll", "bleu")):
    """Training and validation curves of one run or several.

    Args:
        runs: a run directory (with `history.csv`), a list of them, or the dict of a Keras
            `History`.
        names: a name for each; `None` for the directories' own.
        metrics: names of numbers, each of which gets a picture, with `val_` in front where it was
            validated; the loss comes first.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        FileNotFoundError: a directory has no `history.csv`.
        ValueError: there is nothing to draw, or another number of names.
    """
    runs = list(runs) if isinstance(runs, list | tuple) else [runs]
    names = (
        [("run" if isinstance(run, dict) else pathlib.Path(run).name) for run in runs]
        if names is None
        else list(names)
    )
    if not runs or len(names) != len(runs):
        raise ValueError(f"There are {len(names)} names for {len(runs)} runs; give one for each.")
    histories = [_history(run) for run in runs]
    wanted = ["loss", *(name for name in metrics if name != "loss")]
    shown = [
        name
        for name in wanted
        if any(name in history or f"val_{name}" in history for history in histories)
    ]
    if not shown:
        raise ValueError(f"No run has {', '.join(wanted)} in its history.")
    figure = matplotlib_figure(4.6 * len(shown), 3.4)
    for axes, metric in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        for color, name, history in zip(COLORS * len(runs), names, histories, strict=False):
            for key, style, label in (
                (metric, ":", f"{name}, training"),
                (f"val_{metric}", "-", f"{name}, validation"),
            ):
                if key in history:
                    axes.plot(
                        *_thinned(*history[key]), style, color=color, label=label, linewidth=1.4
                    )
        axes.set(xlabel="step" if not isinstance(runs[0], dict) else "epoch", title=metric)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=7, frameon=False)
    return figure


def plot_lengths(times, what="seconds", title=None):
    """Time or memory against length, both on logarithmic scales: a straight line of slope 1 is
    linear, of slope 2 quadratic.

    Args:
        times: dict of name to dict of length to number.
        what: what the numbers are.
        title: text above.

    Returns:
        `matplotlib.figure.Figure`.
    """
    figure = matplotlib_figure(5.4, 3.8)
    axes = figure.subplots()
    for number, (name, points) in enumerate(times.items()):
        # When the colors begin anew, lines are drawn in another way.
        style = ("o-", "s--", "^:")[number // len(COLORS) % 3]
        lengths, color = sorted(points), COLORS[number % len(COLORS)]
        axes.loglog(
            lengths,
            [points[length] for length in lengths],
            style,
            color=color,
            label=name,
            markersize=4,
            base=2,
        )
    axes.set(xlabel="length in tokens", ylabel=what, title=title or "")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


def _history(run):
    """dict of name to (steps, numbers)."""
    if isinstance(run, dict):
        return {
            name: (np.arange(1, len(numbers) + 1), np.asarray(numbers, float))
            for name, numbers in run.items()
        }
    path = pathlib.Path(run) / "history.csv"
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: is {run} the directory of a run?")
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = {}
    for row in rows:
        for name, text in row.items():
            if text not in (None, "") and name != "step":
                steps, numbers = found.setdefault(name, ([], []))
                steps.append(int(row["step"]))
                numbers.append(float(text))
    return found


def _thinned(steps, numbers):
    """At most some hundred points, each the mean of its neighbours."""
    size = max(1, len(steps) // _POINTS)
    count = len(steps) // size * size
    return tuple(
        np.asarray(part[:count], float).reshape(-1, size).mean(axis=1) for part in (steps, numbers)
    )
