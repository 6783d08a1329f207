"""Plots: attention maps, position encodings, training curves, time against length.

They need Matplotlib (`pip install "kformer[plots]"`). Every function whose name begins with `plot`
returns a `matplotlib.figure.Figure`, which notebooks show and `save` writes. Matplotlib's global
state does not change.
"""

from kformer.plots.attention import AttentionMaps, attention_maps, plot_attention
from kformer.plots.curves import plot_lengths, plot_training
from kformer.plots.html import attention_html
from kformer.plots.positions import plot_positions, plot_similarity, position_vectors
from kformer.plots.style import font_families, save

__all__ = [
    "AttentionMaps",
    "attention_html",
    "attention_maps",
    "font_families",
    "plot_attention",
    "plot_lengths",
    "plot_positions",
    "plot_similarity",
    "plot_training",
    "position_vectors",
    "save",
]
