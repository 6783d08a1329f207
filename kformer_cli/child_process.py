"""The environment of a process that this one starts.

This module needs the standard library alone, as `kformer_cli.declarations` does.
"""

import os
import sys


def environment(**own):
    """This process's environment, with its path, so that a child can import the same modules.

    Args:
        **own: str. Further variables of the child.

    Returns:
        dict of str to str.
    """
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **own}
