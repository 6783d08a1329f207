"""The configuration file of a server.

This module imports only the standard library, and PyYAML where a file is read, as the file may say
which backend Keras is to take.
"""

import pathlib

from kformer_options.installed import check_extra

_MOST_BYTES = 2**20


def read_values(path):
    """Reads names and values.

    Args:
        path: path of a YAML file.

    Returns:
        Dict of what stands there.

    Raises:
        OSError: the file cannot be read.
        ImportError: PyYAML is not installed.
        ValueError: it is not YAML, or has no names and values.
    """
    check_extra("A configuration", "serve", ("yaml",))
    import yaml

    path = pathlib.Path(path)
    with open(path, "rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"{path} has more than {_MOST_BYTES:,} bytes: is it a configuration?")
    try:
        # A few aliases of aliases stand for more values than a machine can hold.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(content)):
            raise ValueError("an alias such as *name is not read here, write its value out")
        values = yaml.safe_load(content)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold names and values, such as port: 8501.")
    return values
