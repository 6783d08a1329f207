"""The web format: a folder of static files that translates in a browser."""

from kformer.export.web.export import export_web

__all__ = ["export_web"]
