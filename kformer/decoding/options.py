"""The options of a search, which `kformer_options.search` declares, and their saved form."""

from kformer_options.names import command_line_names
from kformer_options.search import TOKEN_LISTS, SearchOptions

__all__ = ["TOKEN_LISTS", "SearchOptions", "read_options"]


def read_options(config, path):
    """`SearchOptions` from a configuration file.

    Args:
        config: dict of JSON values.
        path: path of the file, for messages.

    Raises:
        ValueError: an option is unknown, or its value is not possible.
    """
    try:
        with command_line_names(False):
            return SearchOptions(**config)
    except (TypeError, ValueError) as error:
        raise ValueError(f"The search options in {path} cannot be used: {error}") from error
