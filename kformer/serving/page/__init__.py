"""The server side of the page `kformer.plots.page`: its routes."""
