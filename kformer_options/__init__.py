"""Options, their limits and meanings, and the checks that need only the standard library.

Nothing here imports Keras, so that `--help` and mistakes answer at once.
"""
