"""Files of word processors and slides: ZIP archives of XML, of which the paragraphs are edited.

The members with text become one text, so that a document of many members is translated as any
other. Paragraphs within paragraphs, such as those of text boxes, are parts of their own in it.
"""

import collections
import io
import re
import warnings
import zipfile

from kformer.documents.format import Edit, Format, Segment
from kformer.documents.html_pages import pieces_of
from kformer.documents.html_tokens import ATTRIBUTE, html_tokens
from kformer.documents.office_runs import run_segment
from kformer.documents.sentences import language_tag, two_letters
from kformer.documents.xml_pieces import (
    Names,
    check_xml,
    escaped,
    holds,
    keeps_pairs,
    local,
    runs,
    without_overlaps,
    xml_encoding,
)
from kformer.utils.compressed import naming_archive
from kformer_options.text_files import OFFICE

# The most bytes of a file when unpacked, and how many times smaller it may be when packed.
_MOST_BYTES, _MOST_RATIO, _SMALL = 1 << 29, 200, 1 << 20
# How Word begins files that have a password, and did all until 2007.
_COMPOUND = b"\xd0\xcf\x11\xe0"
# XML has no such signs: between parts, and around the number of what stands elsewhere.
_BETWEEN, _BEFORE, _AFTER = "\0", "\1", "\2"
_NUMBER = re.compile(f"{_BEFORE}(\\d+){_AFTER}")
_DOCUMENT = "The document"
# Languages whose texts have a language of their own in a document: East Asian ones, and those from
# right to left.
_SCRIPTS = {
    **dict.fromkeys(("zh", "ja", "ko"), 1),
    **dict.fromkeys(("ar", "fa", "he", "ur"), 2),
}


class Archive(Format):
    """A format of ZIP archives of XML.

    Attributes:
        members: str. A regular expression for the names of the members with text.
        paragraphs: frozenset of str. The elements that are paragraphs, without their prefix.
        excluded: frozenset of str. The elements whose paragraphs stay.
        properties: str. A regular expression for the elements that say the language of text.
        languages: tuple of 3 str. Their attributes for the language of most texts, of East Asian
            ones and of those from right to left.
    """

    escapes = (escaped,)
    members: str
    paragraphs = frozenset("p")
    excluded = frozenset()
    properties: str
    languages: tuple

    def unpacked(self, content):
        """Returns the text of an archive, and a function from its translation to the bytes of the
        translated archive.

        Args:
            content: bytes.

        Raises:
            ValueError: it is no such archive, is damaged or encrypted, or larger than 512 MiB when
                unpacked.
        """
        if content.startswith(_COMPOUND):
            raise ValueError(
                f"{_DOCUMENT} has a password, or is of an old kind such as .doc: save it without "
                f"one as .{self.name}."
            )
        stored, translated, texts = [], {}, {}
        self._places = []
        with naming_archive(_DOCUMENT), zipfile.ZipFile(io.BytesIO(content)) as archive:
            _check(archive.infolist())
            # A file without text is damaged before the long work, not after it.
            if name := archive.testzip():
                raise zipfile.BadZipFile(name)
            for name in archive.namelist():
                if re.fullmatch(self.members, name):
                    text = _decoded(archive, name)
                    texts[name] = self._hoisted(text, name, stored, translated)
        if not texts:
            raise ValueError(f"{_DOCUMENT} has no text of the format {self.name!r}: give another.")
        names, parts = [*texts], [stored[number] for number in translated]
        self._places[:0] = translated.values()

        def write(translation):
            texts = translation.split(_BETWEEN)
            for number, text in zip(translated, texts, strict=False):
                stored[number] = _restored(text, stored)
            members = dict(zip(names, texts[len(translated) :], strict=True))
            return _packed(content, members, stored)

        return _BETWEEN.join([*parts, *texts.values()]), write

    def _hoisted(self, text, member, stored, translated):
        """Returns a text without paragraphs that are in others, and without what is excluded.

        Args:
            text: str.
            member: str. Its name.
            stored: list of str, to which they are added, inner ones first.
            translated: dict, to which the index of each such paragraph is added, with its place.
        """
        levels, depth, count, opened = [[]], 0, 0, []
        for token in html_tokens(text, is_xml=True):
            name, raw = local(token.name), text[token.start : token.end]
            is_end = token.kind == "end"
            count += not is_end and name in self.paragraphs and not depth
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
                    if depth == 1 and not is_end:
                        levels.append([])
            elif name in self.paragraphs and not depth:
                if not is_end:
                    levels.append([])
                    opened.append((member, count))
                levels[-1].append(raw)
                if is_end:
                    whole, place = "".join(levels.pop()), opened.pop()
                    if opened:
                        translated[len(stored)] = place
                        stored.append(whole)
                        whole = f"{_BEFORE}{len(stored) - 1}{_AFTER}"
                    else:
                        self._places.append(place)
                    levels[-1].append(whole)
            else:
                levels[-1].append(raw)
        return "".join(levels[0])

    def segments(self, text):
        paragraph, places = None, iter(self._places)
        for token in html_tokens(text, is_xml=True):
            is_paragraph = local(token.name) in self.paragraphs
            if is_paragraph and holds(token):
                paragraph = []
            elif is_paragraph and token.kind == "end" and paragraph is not None:
                segment, place = self.segment(text, paragraph), next(places)
                paragraph = None
                if segment is not None:
                    segment.place = place
                    yield segment
            elif paragraph is not None:
                paragraph.append(token)

    def segment(self, text, tokens):
        """Returns the `Segment` of the content of a paragraph, a list of `Token`; `None` if it has
        no text.
        """
        return run_segment(text, tokens)

    def is_sound(self, source, target):
        return keeps_pairs(target)

    def language_edits(self, text, source, target):
        """Text that is said to be in the language of the source is said to be in the other."""
        if source is None or target is None:
            return
        source, tag = two_letters(source), language_tag(target)
        changes = self._changes(_SCRIPTS.get(two_letters(target), 0), tag)
        for element in re.finditer(rf"<(?:\w+:)?{self.properties}\b([^<>]*)>", text):
            matches = ATTRIBUTE.finditer(text, *element.span(1))
            values = {local(match[1]): match for match in matches if match[1]}
            before = values.get(self.languages[_SCRIPTS.get(source, 0)])
            if before and two_letters(before[2].strip("\"'")) == source:
                for name in values.keys() & changes.keys():
                    start, end = values[name].span(2)
                    yield Edit(start + 1, end - 1, changes[name])

    def _changes(self, script, tag):
        """Returns the values of attributes that say a language."""
        return {self.languages[script]: tag}


class Word(Archive):
    """DOCX files: text, tables, headers, footers, notes and diagrams.

    Comments and what was deleted stay. What was inserted stays marked as such.
    """

    name = "docx"
    endings = OFFICE[name]
    members = (
        r"word/(?:document|header|footer|footnotes|endnotes|styles|diagrams/(?:data|drawing))\d*"
        r"\.xml"
    )
    properties = "lang"
    languages = ("val", "eastasia", "bidi")


class Slides(Archive):
    """PPTX files: slides, their notes and diagrams."""

    name = "pptx"
    endings = OFFICE[name]
    members = (
        r"ppt/(?:presentation|(?:slides/slide|notesSlides/notesSlide|diagrams/(?:data|drawing))\d+)"
        r"\.xml"
    )
    properties = "(?:r|defR|endParaR)Pr"
    languages = ("lang", "lang", "lang")


class OpenDocument(Archive):
    """ODT files: text, tables, headers, footers, notes; and the slides of ODP files."""

    name = "odt"
    endings = OFFICE[name]
    members = r"(?:content|styles)\.xml"
    paragraphs = frozenset(("p", "h"))
    excluded = frozenset(("annotation", "tracked-changes"))
    properties = "text-properties"
    languages = ("language", "language-asian", "language-complex")
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

    def _changes(self, script, tag):
        language, *others = tag.split("-")
        country = next((each for each in others if len(each) == 2), "none")
        name = self.languages[script]
        return {name: language, name.replace("language", "country"): country}


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
    counts = collections.Counter(member.filename for member in members)
    if twice := next((name for name in counts if counts[name] > 1), None):
        raise ValueError(f"{_DOCUMENT} has two files of the name {twice!r}: save it again.")
    names = [name.lower() for name in counts]
    if any("_xmlsignatures/" in name or "documentsignatures" in name for name in names):
        warnings.warn(
            f"{_DOCUMENT} is signed, and the signature does not hold for its translation: sign it "
            "again.",
            stacklevel=5,
        )
    if any("vbaproject" in name or name.startswith("basic/") for name in names):
        warnings.warn(f"{_DOCUMENT} has macros, which stay as they are.", stacklevel=5)


def _encoding(content):
    is_utf_16 = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    return "utf-16" if is_utf_16 else xml_encoding(content) or "utf-8"


def _decoded(archive, name):
    content = archive.read(name)
    encoding = _encoding(content)
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        raise ValueError(
            f"{name} of the document is not {encoding.upper()}: save it again, without a password."
        ) from None
    check_xml(text, f"{name} of the document")
    return text


def _restored(text, stored):
    """Returns a text with what stands elsewhere put back."""
    return _NUMBER.sub(lambda match: stored[int(match[1])], text)


def _packed(content, texts, stored):
    """Returns the bytes of an archive with some members replaced."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(file, "w") as target:
        target.comment = source.comment
        for member in source.infolist():
            content = source.read(member)
            if member.filename in texts:
                text = _restored(texts[member.filename], stored)
                content = text.encode(_encoding(content), "xmlcharrefreplace")
            target.writestr(member, content)
    return file.getvalue()
