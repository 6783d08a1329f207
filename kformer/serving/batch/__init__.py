"""Translates a file of any length by many workers, and goes on where it was killed."""

from kformer.serving.batch.job import BatchOptions, translate_file

__all__ = ["BatchOptions", "translate_file"]
