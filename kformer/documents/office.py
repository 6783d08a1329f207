"""Files of word processors and slides: ZIP archives of XML, of which the paragraphs are edited.

The members with text become one text, so that a document of many members is translated as any
other. Paragraphs within paragraphs, such as those of text boxes, are parts of their own in it.
"""

import io
import re
import warnings
import zipfile

from kformer.documents.format import Format, Segment
from kformer.documents.html_pages import pieces_of
from kformer.documents.html_tokens import html_tokens
from kformer.documents.office_runs import run_segment
from kformer.documents.xml_pieces import (
    Names,
    check_xml,
    escaped,
    holds,
    local,
    runs,
    without_overlaps,
)
from kformer.utils.compressed import naming_archive
from kformer_options.text_files import OFFICE

# The most bytes of a file when unpacked, and how many times smaller it may be when packed.
_MOST_BYTES, _MOST_RATIO, _SMALL = 1 << 29, 200, 1 << 20
# XML has no such signs: between parts, and around the number of what stands elsewhere.
_BETWEEN, _BEFORE, _AFTER = "\0", "\1", "\2"
_NUMBER = re.compile(f"{_BEFORE}(\\d+){_AFTER}")
_DOCUMENT = "The document"


class Archive(Format):
    """A format of ZIP archives of XML.

    Attributes:
        members: str. A regular expression for the names of the members with text.
        paragraphs: frozenset of str. The elements that are paragraphs, without their prefix.
        excluded: frozenset of str. The elements whose paragraphs stay.
    """

    escapes = (escaped,)
    members: str
    paragraphs = frozenset("p")
    excluded = frozenset()

    def unpacked(self, content):
        """Returns the text of an archive, and a function from its translation to the bytes of the
        translated archive.

        Args:
            content: bytes.

        Raises:
            ValueError: it is no such archive, is damaged or encrypted, or larger than 512 MiB when
                unpacked.
        """
        stored, translated, texts = [], [], {}
        with naming_archive(_DOCUMENT), zipfile.ZipFile(io.BytesIO(content)) as archive:
            _check(archive.infolist())
            for name in archive.namelist():
                if re.fullmatch(self.members, name):
                    texts[name] = self._hoisted(_decoded(archive, name), stored, translated)
        if not texts:
            raise ValueError(f"{_DOCUMENT} has no text of the format {self.name!r}: give another.")
        parts = [stored[number] for number in translated]

        def write(translation):
            *inner, members = translation.split(_BETWEEN, len(parts))
            for number, text in zip(translated, inner, strict=True):
                stored[number] = _restored(text, stored)
            for name, text in zip(texts, members.split(_BETWEEN), strict=True):
                texts[name] = _restored(text, stored)
            return _packed(content, texts)

        return _BETWEEN.join([*parts, *texts.values()]), write

    def _hoisted(self, text, stored, translated):
        """Returns a text without paragraphs that are in others, and without what is excluded.

        Args:
            text: str.
            stored: list of str, to which they are added, inner ones first.
            translated: list of int, to which the numbers of those paragraphs are added.
        """
        levels, depth = [[]], 0
        for token in html_tokens(text):
            name, raw = local(token.name), text[token.start : token.end]
            is_end = token.kind == "end"
            if not (is_end or holds(token)):
                levels[-1].append(raw)
            elif name in self.excluded:
                # The element stays, without its content.
                depth += -1 if is_end else 1
                if is_end and depth == 0:
                    stored.append("".join(levels.pop()))
                    levels[-1] += [f"{_BEFORE}{len(stored) - 1}{_AFTER}", raw]
                else:
                    levels[-1].append(raw)
                    if depth == 1:
                        levels.append([])
            elif name in self.paragraphs and not depth:
                levels += [] if is_end else [[]]
                levels[-1].append(raw)
                if is_end:
                    whole = "".join(levels.pop())
                    if len(levels) > 1:
                        translated.append(len(stored))
                        stored.append(whole)
                        whole = f"{_BEFORE}{len(stored) - 1}{_AFTER}"
                    levels[-1].append(whole)
            else:
                levels[-1].append(raw)
        return "".join(levels[0])

    def segments(self, text):
        paragraph = None
        for token in html_tokens(text):
            is_paragraph = local(token.name) in self.paragraphs
            if is_paragraph and holds(token):
                paragraph = []
            elif is_paragraph and token.kind == "end" and paragraph is not None:
                segment = self.segment(text, paragraph)
                paragraph = None
                if segment is not None:
                    yield segment
            elif paragraph is not None:
                paragraph.append(token)

    def segment(self, text, tokens):
        """Returns the `Segment` of the content of a paragraph, a list of `Token`; `None` if it has
        no text.
        """
        return run_segment(text, tokens)


class Word(Archive):
    """DOCX files: text, tables, headers, footers and notes.

    Comments and what was deleted stay. What was inserted stays marked as such.
    """

    name = "docx"
    endings = OFFICE[name]
    members = r"word/(?:document|header|footer|footnotes|endnotes)\d*\.xml"


class Slides(Archive):
    """PPTX files: slides, their notes and diagrams."""

    name = "pptx"
    endings = OFFICE[name]
    members = r"ppt/(?:slides/slide|notesSlides/notesSlide|diagrams/(?:data|drawing))\d+\.xml"


class OpenDocument(Archive):
    """ODT files: text, tables, headers, footers, notes; and the slides of ODP files."""

    name = "odt"
    endings = OFFICE[name]
    members = r"(?:content|styles)\.xml"
    paragraphs = frozenset(("p", "h"))
    excluded = frozenset(("annotation", "tracked-changes"))
    _names = Names(
        pairs=frozenset(("span", "a", "meta")),
        lines=frozenset(("line-break",)),
        ends=frozenset(("tab",)),
    )

    def segment(self, text, tokens):
        slices = list(runs(text, tokens, self._names))
        kinds = without_overlaps([kind for *_, kind in slices])
        first, pieces = pieces_of([text[start:end] for start, end, _ in slices], kinds)
        if pieces:
            return Segment(slices[first][0], slices[first + len(pieces) - 1][1], pieces)


def _check(members):
    """Checks that an archive is not too large when unpacked, and says what is not translated."""
    size = sum(member.file_size for member in members)
    is_bomb = any(
        member.file_size > max(_SMALL, _MOST_RATIO * member.compress_size) for member in members
    )
    if size > _MOST_BYTES or is_bomb:
        raise ValueError(
            f"{_DOCUMENT} has {size:,} bytes when unpacked: it may have {_MOST_BYTES:,}, and each "
            f"of its files {_MOST_RATIO} times what it has when packed. Save it in parts."
        )
    names = [member.filename.lower() for member in members]
    if any("_xmlsignatures/" in name or "documentsignatures" in name for name in names):
        warnings.warn(
            f"{_DOCUMENT} is signed, and the signature does not hold for its translation: sign it "
            "again.",
            stacklevel=5,
        )
    if any("vbaproject" in name or name.startswith("basic/") for name in names):
        warnings.warn(f"{_DOCUMENT} has macros, which stay as they are.", stacklevel=5)


def _decoded(archive, name):
    content = archive.read(name)
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        raise ValueError(
            f"{name} of the document is not UTF-8: save it again, without a password."
        ) from None
    check_xml(text, f"{name} of the document")
    return text


def _restored(text, stored):
    """Returns a text with what stands elsewhere put back."""
    return _NUMBER.sub(lambda match: stored[int(match[1])], text)


def _packed(content, texts):
    """Returns the bytes of an archive with some members replaced."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(file, "w") as target:
        for member in source.infolist():
            content = source.read(member)
            if member.filename in texts:
                text = texts[member.filename]
                is_utf_16 = content[:2] in (b"\xff\xfe", b"\xfe\xff")
                content = text.encode("utf-16" if is_utf_16 else "utf-8")
            target.writestr(member, content)
    return file.getvalue()
