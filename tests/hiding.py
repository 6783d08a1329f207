"""Processes in which some packages are not installed."""


def hiding(*packages):
    """Python source that, at the start of a program, makes packages seem not installed."""
    return f"""
import sys
from importlib.machinery import PathFinder

class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in {packages!r} else super().find_spec(name, path, target)

sys.meta_path = [Hiding if finder is PathFinder else finder for finder in sys.meta_path]
"""
