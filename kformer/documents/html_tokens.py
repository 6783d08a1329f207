"""The pieces of an HTML page, in time that grows with its length alone.

`html.parser` looks through the rest of a page again for each tag or comment that never ends, and
its answers differ between versions of Python.
"""

import collections.abc
import dataclasses
import html
import re
import sys
import types

# Quotes count after "=" alone. Nothing here is tried twice, so a tag that never ends costs one
# look at the rest of the page.
_TAG = re.compile(
    r"<(/?)([a-zA-Z][^\s/>]*+)"
    r"""((?:[^>=]++|=\s*+(?:"[^"]*+"|'[^']*+'|(?!["'])[^\s>]*+))*+)>""",
    re.A,
)
_TAG_WITHOUT_QUOTES = re.compile(r"<(/?)([a-zA-Z][^\s/>]*+)([^>]*+)>", re.A)
_TAG_START = re.compile(r"</?[a-zA-Z]")
ATTRIBUTE = re.compile(r"""([^\s/][^\s/=]*+)(?:\s*+=\s*+("[^"]*+"|'[^']*+'|[^\s]*+))?+|/\Z""", re.A)
_COMMENT = re.compile(r"<!--(?:-?>|.*?--!?>)", re.S)
_XML = re.compile(r"<\?xml\b|xhtml", re.I)
# Most tokens have no attributes: a page of a megabyte has 100,000 of them.
_NONE = types.MappingProxyType({})
_FOREIGN = ("svg", "math")
_LONG_NUMBER = re.compile(r"&#\d{1000,};?")
_RAW_ENDS = {name: re.compile(rf"</{name}(?=[\s/>])", re.A | re.I) for name in ("script", "style")}


@dataclasses.dataclass(slots=True)
class Token:
    """A piece of a page.

    Attributes:
        kind: str. "start", "end", "text" or "other".
        start, end: int. Its slice.
        name: str. The element.
        attributes: mapping. An attribute "/" stands for the slash at the end of a tag: in HTML it
            means nothing, but within SVG, MathML and XHTML it ends the element.
    """

    kind: str
    start: int
    end: int
    name: str = ""
    attributes: collections.abc.Mapping = dataclasses.field(default_factory=lambda: _NONE)


def html_tokens(text, is_xml=None):
    """Yields the `Token` of a page or fragment, which together are all of it.

    What never ends goes on to the end of the page, as in browsers, if it is a comment. A tag is
    text where no `>` follows, and ends at the first `>` where a quote in it is never closed; then
    the quotes of later tags do not count either.

    Args:
        text: str.
        is_xml: bool, default `None`. Whether it is XML; `None` if its begin says so.
    """
    begin = position = num_foreign = 0
    if is_xml is None:
        is_xml = _XML.search(text, 0, 1000) is not None
    last, pattern = text.rfind(">"), _TAG
    while (start := text.find("<", position)) >= 0:
        if not _TAG_START.match(text, start):
            stop = _end_of_other(text, start, last, is_xml)
            tokens = [] if stop is None else [Token("other", start, stop)]
        elif start > last:
            break
        else:
            tag = pattern.match(text, start)
            if tag is None:
                pattern = _TAG_WITHOUT_QUOTES
                tag = pattern.match(text, start)
            tokens = list(_of_tag(text, tag, last, is_xml or num_foreign > 0))
            if tokens[0].name in _FOREIGN and "/" not in tokens[0].attributes:
                num_foreign = max(0, num_foreign + (1 if tokens[0].kind == "start" else -1))
        if not tokens:
            position = start + 1
            continue
        if start > begin:
            yield Token("text", begin, start)
        yield from tokens
        begin = position = tokens[-1].end
    if begin < len(text):
        yield Token("text", begin, len(text))


def _of_tag(text, tag, last, slash_ends):
    """Yields the token of a tag, and a script's or style's text up to its end tag."""
    kind, name = "end" if tag[1] else "start", sys.intern(tag[2].lower())
    attributes = {} if tag[3] else _NONE
    for match in ATTRIBUTE.finditer(tag[3]):
        value = match[2] or ""
        if len(value) > 1 and value[0] in "\"'" and value[0] == value[-1]:
            value = value[1:-1]
        attributes[(match[1] or "/").lower()] = unescaped(value)
    if not slash_ends and name in _RAW_ENDS and "/" in attributes:
        del attributes["/"]
    if kind == "end" or name not in _RAW_ENDS or "/" in attributes:
        yield Token(kind, tag.start(), tag.end(), name, attributes)
        return
    stop = _RAW_ENDS[name].search(text, tag.end())
    is_ended = stop is not None and stop.start() < last
    yield Token(kind, tag.start(), tag.end() if is_ended else len(text), name, attributes)
    if is_ended and stop.start() > tag.end():
        yield Token("text", tag.end(), stop.start())


def _end_of_other(text, start, last, is_xml):
    """Returns where a comment, declaration or instruction ends; `None` if it is none of these."""
    if text.startswith("<!--", start):
        match = _COMMENT.match(text, start)
        return match.end() if match else len(text)
    if text[start + 1 : start + 2] not in ("!", "?") and not (
        text.startswith("</", start) and start < last
    ):
        return None
    sign = "]]>" if text.startswith("<![CDATA[", start) else ">"
    if is_xml and text.startswith("<?", start):
        sign = "?>"
    end = text.find(sign, start)
    return end + len(sign) if end >= 0 else len(text)


def unescaped(text):
    """Returns a text with the characters that its references stand for.

    Args:
        text: str.
    """
    # Python reads no number of thousands of digits.
    return html.unescape(_LONG_NUMBER.sub("\ufffd", text))
