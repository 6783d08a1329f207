"""The interface of a format: segments of a text, and translations written in their place.

The text of a document is never written anew: a translation replaces the slice of its segment, and
every other character stays.
"""

import abc
import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator

# Kinds of `Mark`. At INLINE a sentence goes on, as around a picture; at BREAK a line ends within a
# sentence, which stands there for a space; at BOUNDARY a sentence ends, whatever its signs are.
INLINE, BREAK, BOUNDARY = "inline", "break", "boundary"
# What is within more pairs of tags is not a sentence of a writer.
_MOST_NESTED = 50


@dataclasses.dataclass(frozen=True)
class Text:
    """Text to translate, without the escapes of its format."""

    text: str


@dataclasses.dataclass(frozen=True)
class Tag:
    """One side of a pair of tags within a sentence, such as `<b>` or `</b>`.

    Attributes:
        raw: str. As it stands in the document.
        name: str. The element.
        opens: bool. Whether it is the first of the pair.
        partner: int. The index of the other side among the pieces of its `Segment`, which finds it.
        changed: tuple of str, default `None`. What stands between the tags, and what is written for
            `raw` where the translation has anything else there.
    """

    raw: str
    name: str
    opens: bool
    partner: int | None = None
    changed: tuple | None = None


@dataclasses.dataclass(frozen=True)
class Mark:
    """What has no text for a reader, such as a picture or the end of a line.

    Attributes:
        raw: str. As it stands in the document.
        kind: str. `INLINE`, `BREAK` or `BOUNDARY`.
    """

    raw: str
    kind: str = INLINE


@dataclasses.dataclass(frozen=True)
class Kept:
    """Text for a reader that comes out as it went in, such as a code span."""

    raw: str


@dataclasses.dataclass
class Segment:
    """Text that belongs together, such as a paragraph.

    Attributes:
        start, end: int. The slice of the document that its translation replaces.
        pieces: list of `Text`, `Tag`, `Mark` and `Kept`, in their order. It is empty for text that
            is not translated since it could not be read. A tag without a partner, or within too
            many others, becomes a boundary.
        format: `Format`, default `None`. That of the slice, if it is another than the document's.
        written: function of the pieces of a translation, joined, to what replaces the slice;
            default `str`.
        place: tuple of str and int, default `None`. In an archive, the member and the number of the
            paragraph in it, from 1.
    """

    start: int
    end: int
    pieces: list
    format: "Format | None" = None
    written: Callable = str
    place: tuple | None = None

    def __post_init__(self):
        pieces, partners, opened, counts = self.pieces, {}, [], collections.Counter()
        tags = [(index, piece) for index, piece in enumerate(pieces) if isinstance(piece, Tag)]
        for index, tag in tags:
            if tag.opens:
                opened.append(index)
                counts[tag.name] += 1
            elif counts[tag.name]:
                start = None
                while start is None or pieces[start].name != tag.name:
                    start = opened.pop()
                    counts[pieces[start].name] -= 1
                if len(opened) < _MOST_NESTED:
                    partners |= {start: index, index: start}
        for index, tag in tags:
            is_paired = index in partners
            tag = dataclasses.replace(tag, partner=partners.get(index))
            pieces[index] = tag if is_paired else Mark(tag.raw, BOUNDARY)


@dataclasses.dataclass(frozen=True)
class Edit:
    """A slice of a document and what replaces it."""

    start: int
    end: int
    text: str


class Format(abc.ABC):
    """A format of documents.

    Attributes:
        name: str. What users call it.
        endings: tuple of str. The endings of its files' names.
        escapes: tuple of functions of a text to what is written for it: the first whose result is
            sound counts.
    """

    name: str
    endings: tuple
    escapes = (str,)

    @abc.abstractmethod
    def segments(self, text: str) -> Iterator[Segment]:
        """Yields the segments of a document, in the order of their places."""

    def is_sound(self, source: str, target: str) -> bool:
        """Whether the translation of a segment has the structure of its source, both as they are
        written in the document.
        """
        return True

    def encoding(self, content: bytes) -> str | None:
        """The encoding that a document says it has; `None` if it says nothing."""
        return None

    def encoded(self, text: str, encoding: str) -> bytes:
        """A document in the encoding that it says it has; characters may be missing there. A byte
        that could not be read is a lone surrogate.
        """
        return text.encode(encoding, "surrogateescape")

    def target_languages(self, text: str) -> Iterable[str]:
        """The codes of the languages that a document says it is to be translated into."""
        return ()

    def language_edits(self, text: str, source: str | None, target: str | None) -> Iterable[Edit]:
        """What a document says of its language, as its translation says it.

        Args:
            text: str. The document.
            source, target: str or `None`. The codes of its language and of the one that it is
                translated to; `None` where they are not known.
        """
        return ()


def edited(text, edits, start=0, end=None):
    """Returns a slice of a text with some slices in it replaced.

    Args:
        text: str.
        edits: list of `Edit` that do not overlap.
        start: int, default 0.
        end: int, default `None`. `None` for that of the text.
    """
    texts, position = [], start
    for edit in sorted(edits, key=lambda edit: edit.start):
        texts += [text[position : edit.start], edit.text]
        position = edit.end
    return "".join([*texts, text[position:end]])


def moved_back(position, edits):
    """Returns where a position of an edited text, which is in no edit, was before.

    Args:
        position: int.
        edits: list of `Edit`, in order.
    """
    for edit in edits:
        if position <= edit.start:
            break
        position -= len(edit.text) - (edit.end - edit.start)
    return position
