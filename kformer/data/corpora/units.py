"""Pairs of texts from translation memories (TMX) and from XLIFF."""

import html
from xml.parsers import expat

from kformer.text.protected import HIDDEN, protected
from kformer.utils.compressed import open_binary
from kformer.utils.languages import is_language

_BLOCK_BYTES = 1 << 16
# The most characters of a text, and of a tag or comment; and the most elements in one another.
_MOST, _MOST_DEPTH = 1 << 20, 100
# Elements in a text with the codes of another format, which are no text.
_CODES = frozenset(("bpt", "ept", "it", "ph", "ut"))
# What a unit of XLIFF has beside its texts, such as matches, which have texts of their own.
_OTHERS = frozenset(("alt-trans", "matches", "seg-source"))
_UNITS, _TEXTS = frozenset(("tu", "trans-unit", "segment")), frozenset(("seg", "source", "target"))
_LANGUAGES = {"source": ("source-language", "srcLang"), "target": ("target-language", "trgLang")}
# A target in one of these states is none yet.
_NOT_TRANSLATED = ("new", "needs-translation", "initial")


def unit_pairs(path, corpus, keeps_placeholders=False):
    """Yields the pairs of a translation memory or an XLIFF file, one for each unit.

    Nothing of the file is held but what is being read. Declared entities are refused.

    Args:
        path: path of the file, which may be compressed.
        corpus: `kformer.data.corpora.description.Corpus`.
        keeps_placeholders: bool, default `False`. Whether a code `ph` around a placeholder such as
            `{0}` counts as its text.

    Yields:
        Two texts, of which `None` is one that a unit does not have.

    Raises:
        ValueError: the file is damaged.
    """
    parser = expat.ParserCreate()
    parser.buffer_text, parser.buffer_size = True, _BLOCK_BYTES
    units = _Units(path, corpus.languages, parser, keeps_placeholders)
    num_bytes = 0
    with open_binary(path) as file:
        try:
            while block := file.read(_BLOCK_BYTES):
                parser.Parse(block)
                num_bytes += len(block)
                if num_bytes - parser.CurrentByteIndex > _MOST + _BLOCK_BYTES:
                    raise units.too_long("a tag or comment")
                yield from units.pairs
                units.pairs.clear()
            parser.Parse(b"", True)
        except (expat.ExpatError, LookupError) as error:
            raise ValueError(f"{path} is not valid XML ({error}): mend it, or remove it.") from None
    yield from units.pairs


class _Units:
    """The units that a parser reads.

    Args:
        path: path of the file.
        languages: two codes.
        parser: an expat parser.
        keeps_placeholders: bool.

    Attributes:
        pairs: list of the pairs that are whole.
    """

    def __init__(self, path, languages, parser, keeps_placeholders):
        self.pairs, self._keeps_placeholders, self._code = [], keeps_placeholders, None
        self._path, self._languages, self._parser = path, languages, parser
        self._sides = {}  # The side of each language that the file names.
        self._unit, self._side, self._state = [None, None], None, None
        self._named = {}  # The side of the sources and targets of XLIFF.
        self._text, self._size, self._depth, self._code_depth = None, 0, 0, None
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler, parser.EntityDeclHandler = self._add, self._refuse
        # Expat skips an entity that a DTD outside of the file may declare, such as "&nbsp;".
        parser.SkippedEntityHandler = lambda name, _: self._add(html.unescape(f"&{name};"))

    def too_long(self, what):
        line = self._parser.CurrentLineNumber
        return ValueError(
            f"Line {line:,} of {self._path} has {what} of more than {_MOST:,} characters: remove "
            "its unit."
        )

    def _start(self, name, attributes):
        name = name.rpartition(":")[2]
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            line = self._parser.CurrentLineNumber
            raise ValueError(
                f"Line {line:,} of {self._path} has more than {_MOST_DEPTH} elements in one "
                "another, which no translation memory has: remove them."
            )
        if self._code_depth is not None:
            return
        if name in ("xliff", "file"):
            for side, names in _LANGUAGES.items():
                tag = next((attributes[each] for each in names if each in attributes), None)
                self._named[side] = self._named.get(side) if tag is None else self._side_of(tag)
        elif name in _UNITS:
            self._unit, self._state = [None, None], attributes.get("state")
        elif name == "tuv":
            self._side = self._side_of(attributes.get("xml:lang") or attributes.get("lang") or "")
        elif name in _TEXTS:
            self._text, self._size = [], 0
            if name != "seg":
                self._side = self._named.get(name)
            if name == "target" and attributes.get("state", self._state) in _NOT_TRANSLATED:
                self._side = None
        elif name in _CODES or name in _OTHERS:
            self._code_depth = self._depth
            self._code = [] if name == "ph" and self._keeps_placeholders else None

    def _end(self, name):
        name = name.rpartition(":")[2]
        if self._depth == self._code_depth:
            self._code_depth, code, self._code = None, "".join(self._code or ()), None
            if protected(code) == [(0, len(code), HIDDEN)]:
                self._add(code)
        self._depth -= 1
        if self._code_depth is not None:
            return
        if name in _TEXTS:
            if self._side is not None and self._unit[self._side] is None:
                self._unit[self._side] = "".join(self._text)
            self._text = None
        elif name in _UNITS:
            self.pairs.append(self._unit)

    def _add(self, text):
        if self._text is not None and self._code_depth is None:
            self._text.append(text)
            self._size += len(text)
            if self._size > _MOST:
                raise self.too_long("a text")
        elif self._code is not None:
            self._code.append(text)

    def _side_of(self, tag):
        if tag not in self._sides:
            matches = [is_language(tag, language) for language in self._languages]
            self._sides[tag] = matches.index(True) if True in matches else None
        return self._sides[tag]

    def _refuse(self, *_):
        raise ValueError(f"{self._path} declares entities of XML: write out what they stand for.")
