"""Texts of applications: JSON and ARB, Java's properties, strings of Apple and of Android."""

import codecs
import itertools
import json
import re

from kformer.documents.format import BOUNDARY, BREAK, INLINE, Edit, Kept, Mark, Segment, Tag
from kformer.documents.html_pages import HTML
from kformer.documents.html_tokens import html_tokens, unescaped
from kformer.documents.messages import Messages, branches, is_translatable
from kformer.documents.sentences import language_tag
from kformer.documents.words import split
from kformer.documents.xml_pieces import xml_encoding
from kformer.text.protected import PLACEHOLDERS

_JSON = re.compile(r'"((?:[^"\\]|\\.)*+)"|[{}\[\]:,]', re.S)
_UNICODE = "kformer.unicode_escapes"


class JSON(Messages):
    """JSON with texts as values, and ARB: all strings but keys, and what has a key that begins with
    `@`.
    """

    name = "json"
    endings = (".json", ".arb")

    def segments(self, text):
        for start, end, message, path in _json_values(text):
            is_data = any(key.startswith("@") for key in path)
            if not is_data and (segment := self.segment(start, end, message)):
                yield segment

    def escaped(self, text):
        return json.dumps(text, ensure_ascii=False)[1:-1]

    def unescaped(self, raw):
        return _joined(json.loads(f'"{raw}"', strict=False))

    def language_edits(self, text, source, target):
        for start, end, _, path in _json_values(text):
            if path == ["@@locale"] and target is not None:
                yield Edit(start, end, language_tag(target).replace("-", "_"))


def _json_values(text):
    """Yields the start, end and text of each string of a document, and the keys around it."""
    try:
        json.loads(text.removeprefix("\ufeff"), strict=False)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The document is not valid JSON: {error}.") from None
    path, is_object, key = [], [], ""
    is_key = False
    for match in _JSON.finditer(text):
        sign = match[0]
        if sign in "{[":
            path.append(key)
            is_object.append(sign == "{")
            is_key, key = sign == "{", ""
        elif sign in "}]":
            key = path.pop()
            is_object.pop()
        elif sign == ",":
            is_key = is_object[-1]
        elif sign == ":":
            is_key = False
        elif is_key:
            key = json.loads(sign, strict=False)
        else:
            keys = [each for each in [*path, key if is_object and is_object[-1] else ""] if each]
            yield *match.span(1), _joined(json.loads(sign, strict=False)), keys


_GOES_ON = r"\\(?:\r\n?|\n)[ \t\f]*"
_BLANK = rf"(?:[ \t\f]|{_GOES_ON})*+"
_PROPERTY = re.compile(
    rf"^[ \t\f]*(?:[#!][^\r\n]*|(?:{_GOES_ON}|\\.|[^\\\s=:])++{_BLANK}(?:[=:]{_BLANK})?"
    r"(?P<value>(?:\\(?:\r\n|.|\Z)|[^\\\r\n])*+))",
    re.M | re.S,
)
# The end of a line that goes on, with the ends of lines of the text and the spaces at its sides.
_LINE = re.compile(
    r"(?:(?<!\\)(?<!\\n)(?P<ends>(?:\\n)++))?"
    r"(?<![ \t])(?!(?<=\\)[ \t])(?P<space>(?:\\?[ \t])*+)"
    rf"{_GOES_ON}(?P<indent>(?:\\(?:[ t]|u+0020))*)"
)
# A space after this is written as an escape: Java drops those at the begin of a line.
_LINE_BEGIN = "\0"
_ESCAPE = re.compile(r"\\(?:(?:\r\n|\r|\n)[ \t\f]*|u+([0-9A-Fa-f]{4})|(.))", re.S)
_SIGNS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_PROPERTY_ESCAPES = str.maketrans({"\\": "\\\\", **{v: f"\\{k}" for k, v in _SIGNS.items()}})
# The white space at the begin of a value.
_LEADING = re.compile(r"(?:\\(?:[ tnrf]|u+0020))*")
_SLOT = re.compile(r"\{\s*\d")


def _joined(text):
    """Returns a text whose escapes were the two halves of a character, with the character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Properties(Messages):
    """Java's properties, whose values may be messages of `java.text.MessageFormat`."""

    name = "properties"
    endings = (".properties",)

    def segments(self, text):
        for match in _PROPERTY.finditer(text):
            if match["value"] is None:
                continue
            start, end = _LEADING.match(text, *match.span("value")).end(), match.end("value")
            raw = text[start:end]
            message = self.unescaped(raw)
            is_slotted = _SLOT.search(message)
            format = _MESSAGES[bool(is_slotted) and "'" not in message.replace("''", "")]
            # Branches are read as one: their line goes on no more.
            has_branches = branches(message) is not None
            pieces = format.pieces(message) if has_branches else []
            for piece in () if has_branches else split(_LINE, raw):
                if isinstance(piece, str):
                    pieces += format.pieces(self.unescaped(piece))
                else:
                    has_space = piece["space"] or piece["indent"]
                    kind = BOUNDARY if piece["ends"] else BREAK if has_space else INLINE
                    pieces.append(Mark(piece[0] + _LINE_BEGIN * (kind == INLINE), kind))
            if raw and is_translatable(pieces):
                yield Segment(start, end, pieces, format, _with_lines)

    def escaped(self, text):
        return text.translate(_PROPERTY_ESCAPES)

    def unescaped(self, raw):
        return _joined(
            _ESCAPE.sub(lambda m: chr(int(m[1], 16)) if m[1] else _SIGNS.get(m[2], m[2] or ""), raw)
        )

    def encoding(self, content):
        # Java reads UTF-8 since version 9, and ISO 8859-1 before; both have ASCII.
        try:
            return "ascii" if content.isascii() else content.decode() and None
        except UnicodeDecodeError:
            return "iso8859-1"

    def encoded(self, text, encoding):
        return text.encode(encoding, _UNICODE)


def _with_lines(text):
    return text.replace(f"{_LINE_BEGIN} ", "\\ ").replace(_LINE_BEGIN, "")


_MESSAGES = (Properties(), Properties(("java-format",), True))


def _unicode_escapes(error):
    """Returns the escapes of Java for what an encoding lacks."""
    signs = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return re.sub("(....)", r"\\u\1", signs.hex().upper()), error.end


codecs.register_error(_UNICODE, _unicode_escapes)

_STRING = re.compile(
    r'/\*.*?(?:\*/|\Z)|//[^\r\n]*|(?:"(?:[^"\\]|\\.)*+"|(?<![\w.-])[\w.-]++)\s*=\s*'
    r'"(?P<value>(?:[^"\\]|\\.)*+)"\s*;|"(?:[^"\\]|\\.)*+',
    re.S,
)
_STRING_ESCAPE = re.compile(r"\\(?:[Uu]([0-9A-Fa-f]{4})|([0-7]{1,3})|(.))", re.S)


class Strings(Messages):
    """Apple's Localizable.strings."""

    name = "strings"
    endings = (".strings",)

    def __init__(self):
        super().__init__(("printf",))

    def segments(self, text):
        for match in _STRING.finditer(text):
            message = self.unescaped(match["value"] or "")
            if segment := self.segment(*match.span("value"), message):
                yield segment

    def escaped(self, text):
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    def unescaped(self, raw):
        def sign(match):
            if match[3]:
                return _SIGNS.get(match[3], match[3])
            return chr(int(match[1], 16) if match[1] else int(match[2], 8))

        return _joined(_STRING_ESCAPE.sub(sign, raw))


_ARRAYS = ("string-array", "plurals")
# Lines and tabs that are written, or the white space of a wrapped text.
_LINE_END = r"[\n\r]|&#(?:10|13|x0*[aAdD]);"
_LINES = re.compile(
    rf"(?<!\s)\s*+(?<!\\)(?:\\\\)*+(?P<ends>(?:\\[nt](?:\s|{_LINE_END})*+)+)"
    rf"|(?<!\s)\s*(?:{_LINE_END})(?:\s|{_LINE_END})*+"
)
# Android drops white space at the ends of a text that is no escape.
_BEGIN, _END = (
    re.compile(r"(?:\s*\\u0020)*"),
    re.compile(r"(?<![\s\\])(?<!\\u0020)(?:\\\\)*+(?:\s*\\u0020)+\s*\Z"),
)
_IS_REFERENCE = re.compile(r"\s*[@?](?:\+?[\w.]+:)?[\w.]+(?:/[\w.]+)?\s*")
_ANDROID_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.S)
# A tag may be written with references.
_ANDROID_TAG = re.compile(
    r"(?:<|&lt;)(/?)([A-Za-z0-9][A-Za-z0-9:-]*)(?:\s(?:(?!&[lg]t;)[^<>])*?)?(/?)(?:>|&gt;)"
)
_CDATA = "<![CDATA["
# Placeholders, entities of the file and of HTML in it; and those in a CDATA section.
_PLACEHOLDERS, _PLACEHOLDERS_IN_CDATA = (
    re.compile(f"{PLACEHOLDERS['printf'].pattern}|{references}")
    for references in (r"&amp;#?\w+;|&(?!(?:amp|lt|gt|quot|apos);)[^\W\d][\w.:-]*;", r"&#?\w+;")
)
_NOT_ESCAPED = re.compile(r"(?<!\\)(?:\\\\)*'")
# A value in quotes keeps its spaces and apostrophes; nobody sees the quotes.
_QUOTED = re.compile(r'(\s*")((?:[^"\\<]|\\.)*)("\s*)', re.S)


class Android(Messages):
    """Android's strings.xml: strings, arrays and plurals without `translatable="false"`."""

    name = "android"
    endings = ()
    tags = _ANDROID_TAG

    def __init__(self, has_references=True, has_quotes=False):
        super().__init__()
        self._placeholders = _PLACEHOLDERS if has_references else _PLACEHOLDERS_IN_CDATA
        self._has_references, self._has_quotes = has_references, has_quotes

    def encoding(self, content):
        return xml_encoding(content)

    encoded = HTML.encoded

    def segments(self, text):
        arrays, begin = [], None
        tokens = []
        for token in html_tokens(text, is_xml=True):
            name, opens = token.name, token.kind == "start" and "/" not in token.attributes
            is_item = name == "string" or (name == "item" and arrays)
            if begin is None and opens and name in _ARRAYS:
                arrays.append(token)
            elif begin is None and token.kind == "end" and name in _ARRAYS:
                arrays.clear()
            elif begin is None and opens and is_item:
                if all(e.attributes.get("translatable") != "false" for e in [*arrays, token]):
                    begin, tokens = token, []
            elif begin is not None and token.kind == "end" and name == begin.name:
                if not _IS_REFERENCE.fullmatch(text, begin.end, token.start):
                    yield from self._segments(text, tokens)
                begin = None
            elif begin is not None:
                tokens.append(token)

    def _segments(self, text, tokens):
        """Yields the segments of a value: each CDATA section, and what stands between them."""

        def is_section(token):
            return text.startswith(_CDATA, token.start)

        for is_cdata, group in itertools.groupby(tokens, is_section):
            group = list(group)
            for part in [[token] for token in group] if is_cdata else [group]:
                start, end = part[0].start, part[-1].end
                if is_cdata:
                    start, end = start + len(_CDATA), end - len("]]>")
                if segment := self._segment(text, start, end, part, is_cdata):
                    yield segment

    def _segment(self, text, start, end, tokens, is_cdata):
        quoted = _QUOTED.fullmatch(text, start, end)
        if quoted:
            start, end = quoted.span(2)
        else:
            start = _BEGIN.match(text, start, end).end()
            last = _END.search(text, start, end)
            end = last.start() if last else end
        raw = text[start:end]
        format = Android(not is_cdata, bool(quoted or _NOT_ESCAPED.search(raw)))
        if branches(raw) is not None:
            pieces = []
        else:
            pieces = format._text(raw) if is_cdata else format._pieces(text, start, end, tokens)
        return Segment(start, end, pieces, format) if raw and is_translatable(pieces) else None

    def _pieces(self, text, start, end, tokens):
        pieces, kept = [], None
        for token in tokens:
            raw = text[max(start, token.start) : min(end, token.end)]
            if kept is not None:
                if token.kind == "end" and token.name.endswith(":g"):
                    pieces.append(Kept(text[kept : token.end]))
                    kept = None
            elif token.kind == "text":
                pieces += self._text(raw)
            elif token.kind == "other" or "/" in token.attributes:
                pieces.append(Mark(raw))
            elif token.kind == "start" and token.name.endswith(":g"):
                kept = token.start
            else:
                pieces.append(Tag(raw, token.name, token.kind == "start"))
        return pieces

    def _text(self, raw):
        pieces = []
        for part in split(self.tags, raw):
            if not isinstance(part, str):
                pieces += self.inline(part[0])
                continue
            for piece in split(_LINES, part):
                if isinstance(piece, str):
                    pieces += self.inline(piece)
                else:
                    pieces.append(Mark(piece[0], BOUNDARY if piece["ends"] else BREAK))
        return pieces

    def read(self, text):
        return self.unescaped(text)

    def raw(self, part):
        return part

    def escaped(self, text):
        text = text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
        text = text if self._has_quotes else text.replace("'", "\\'")
        if self._has_references:
            text = text.replace("&", "&amp;").replace("<", "&lt;")
        text = text.replace("]]>", "]]&gt;" if self._has_references else "]] >")
        return f"\\{text}" if text[:1] in "@?" and text else text

    def unescaped(self, raw):
        text = unescaped(raw) if self._has_references else raw
        return _joined(
            _ANDROID_ESCAPE.sub(
                lambda m: chr(int(m[1], 16)) if m[1] else _SIGNS.get(m[2], m[2]), text
            )
        )
