"""Catalogues of gettext (PO) as polib reads them."""

import re

from kformer_options.installed import check_extra

CHARSET = re.compile(rb"charset=([A-Za-z0-9_.:-]{2,40})")


class _Content(str):
    """A catalogue whose lines end at "\\n" alone, as those of gettext do."""

    def splitlines(self, keepends=False):
        return self.split("\n")


def charset(content):
    """Returns the name of the encoding in the header of a catalogue, str or `None`.

    Args:
        content: bytes.
    """
    match = CHARSET.search(content[:10_000])
    return match and match[1].decode("ascii")


def read_catalogue(text, name, extra):
    """Returns a catalogue.

    Args:
        text: str. The content of the file.
        name: str. What it is, for messages, such as "The document".
        extra: str. The extra that brings polib, for messages.

    Returns:
        `polib.POFile`, a list of entries.

    Raises:
        ImportError: polib is not installed.
        ValueError: it is no catalogue.
    """
    check_extra("A PO file", extra, ("polib",))
    import polib

    # polib takes a text that looks like no path for the content of a file.
    try:
        return polib.pofile(_Content(text + "\n"), check_for_duplicates=False)
    except (OSError, ValueError, AttributeError, IndexError) as error:
        raise ValueError(f"{name} is not a valid PO file: {error}.") from error
