"""Columns of Arrow tables."""


def check_text_type(kind, name, path):
    """Checks that a column holds text.

    Args:
        kind: `pyarrow.DataType`.
        name: str. The name of the column.
        path: path of the file, for messages.

    Raises:
        ValueError: it holds something else.
    """
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    is_text = types.is_string(kind) or types.is_large_string(kind)
    if not (is_text or types.is_string_view(kind)):
        raise ValueError(f"The column {name!r} of {path} holds {kind}, not text.")
