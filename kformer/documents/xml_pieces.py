"""What documents in XML have in common: elements, inline codes and pairs of marks."""

import codecs
import collections
import contextlib
import functools
import html
import re
from typing import NamedTuple
from xml.parsers import expat

from kformer.documents.format import BOUNDARY
from kformer.documents.html_tokens import Token, html_tokens

_MOST_DEPTH = 300
_ILLEGAL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
# Two empty elements that stand around text, by the name of the first and that of the second.
_PAIRS = {"bpt": "ept", "bx": "ex", "sc": "ec", "sm": "em"}
_FIRSTS = {second: first for first, second in _PAIRS.items()}
_PAIR = re.compile(r"(.+?)-?(start|end)")
XML_ENCODING = re.compile(rb"^\s*<\?xml[^>]{1,100}encoding\s*=\s*[\"']([A-Za-z0-9_.:-]{2,40})")
_REFERENCES = ("startref", "rid", "id", "name", "change-id")


class Names(NamedTuple):
    """The elements within a paragraph, by their names without a prefix.

    Attributes:
        pairs: frozenset of str. Those whose text is translated.
        lines: frozenset of str. Those that end a line.
        ends: frozenset of str. Those that end a sentence.
        words: frozenset of str. Those that count as a word; `None` for those with nothing but text.
    """

    pairs: frozenset
    lines: frozenset = frozenset()
    ends: frozenset = frozenset()
    words: frozenset | None = None


def escaped(text):
    """Returns a text as XML has it, without signs that XML does not allow."""
    return html.escape(_ILLEGAL.sub("", text), quote=False)


def xml_encoding(content):
    """Returns the name of the codec for what XML says of its encoding; `None` if it says nothing
    or nothing that is known.

    Args:
        content: bytes.
    """
    if match := XML_ENCODING.match(content[:200]):
        with contextlib.suppress(LookupError):
            return codecs.lookup(match[1].decode("ascii")).name
    return None


def keeps_pairs(text):
    """Returns whether of two marks of a pair in a translation the first comes before the second.

    Args:
        text: str.
    """
    marks = [mark_of_pair(token) for token in html_tokens(text, True) if token.kind == "start"]
    pending = collections.Counter(mark.name for mark in marks if mark and mark.kind == "start")
    opened = collections.Counter()
    for mark in filter(None, marks):
        if mark.kind == "start":
            opened[mark.name] += 1
            pending[mark.name] -= 1
        elif opened[mark.name]:
            opened[mark.name] -= 1
        elif pending[mark.name]:
            return False
    return True


def check_xml(text, name):
    """Checks that a text is well-formed XML, not too deep, and declares no entities.

    Args:
        text: str.
        name: str. What it is, for messages.

    Raises:
        ValueError: it is not.
    """

    def refuse(*_):
        raise ValueError(f"{name} declares entities of XML: write out what they stand for.")

    depth = 0

    def start(*_):
        nonlocal depth
        depth += 1
        if depth > _MOST_DEPTH:
            raise ValueError(
                f"{name} has more than {_MOST_DEPTH} elements in one another: save it again."
            )

    def end(_):
        nonlocal depth
        depth -= 1

    # What the text says of its encoding held for its bytes.
    parser = expat.ParserCreate("utf-8")
    parser.EntityDeclHandler = refuse
    parser.StartElementHandler, parser.EndElementHandler = start, end
    try:
        parser.Parse(text.encode("utf-8", "replace"), True)
    except expat.ExpatError as error:
        raise ValueError(f"{name} is not valid XML ({error}): save it again.") from None


@functools.lru_cache(maxsize=1000)
def local(name):
    """Returns the name of an element or attribute without its prefix, in lower case."""
    return name.rpartition(":")[2].lower()


def values(token):
    """Returns the attributes of an element, by their names without a prefix."""
    return {local(name): value for name, value in token.attributes.items()}


def holds(token):
    """Returns whether a token is a start tag that has an end tag."""
    return token.kind == "start" and "/" not in token.attributes


def elements(tokens):
    """Yields what stands side by side: a token, the list of those in its element, and its end."""
    position = 0
    while position < len(tokens):
        token, last = tokens[position], position
        depth = int(holds(token))
        while depth:
            last += 1
            depth += holds(tokens[last]) - (tokens[last].kind == "end")
        yield token, tokens[position + 1 : last], tokens[last].end
        position = last + 1


def runs(text, tokens, names):
    """Yields the slices of a paragraph and their kinds, as `kformer.documents.html_pages` has them.

    Args:
        text: str.
        tokens: list of `Token`. The content of the paragraph.
        names: `Names`.
    """
    for token, inner, end in elements(tokens):
        name, attributes = local(token.name), values(token)
        is_kept = attributes.get("translate") == "no" or attributes.get("mtype") == "protected"
        pair = mark_of_pair(token)
        if token.kind == "text" or text.startswith("<![CDATA[", token.start):
            yield token.start, end, "text"
        elif name in names.pairs and inner and not is_kept:
            # A sentence that another tool has found.
            is_sentence = attributes.get("mtype") == "seg"
            yield token.start, token.end, BOUNDARY if is_sentence else token
            yield from runs(text, inner, names)
            last = Token("end", inner[-1].end, end, token.name)
            yield last.start, end, BOUNDARY if is_sentence else last
        elif pair is not None:
            yield token.start, end, pair
        elif name in names.lines or any(
            attributes.get(each, "").endswith(("lb", "-br")) for each in ("ctype", "subtype")
        ):
            yield token.start, end, "line"
        elif name in names.ends:
            yield token.start, end, BOUNDARY
        else:
            is_text = bool(inner) and all(each.kind == "text" for each in inner)
            is_word = is_text if names.words is None else name in names.words
            yield token.start, end, "kept" if is_kept or is_word else "mark"


def mark_of_pair(token):
    """Returns the `Token` of a pair of tags that one of two marks, such as those around a bookmark,
    stands for; `None` if an element is none.
    """
    name, attributes = local(token.name), values(token)
    if name in _PAIRS or name in _FIRSTS:
        stem, opens = _FIRSTS.get(name, name), name in _PAIRS
    elif match := _PAIR.fullmatch(name):
        stem, opens = match[1], match[2] == "start"
    else:
        return None
    number = next((attributes[each] for each in _REFERENCES if each in attributes), "")
    kind = "start" if opens else "end"
    return Token(kind, token.start, token.end, f"{stem} {number}")


def without_overlaps(kinds):
    """Returns kinds of slices in which a mark of a pair that is alone, or of a pair that overlaps
    an element, is a mark.
    """
    kinds, opened = list(kinds), []
    for index, kind in enumerate(kinds):
        if not isinstance(kind, Token):
            continue
        if kind.kind == "start":
            opened.append(index)
        elif opened and kinds[opened[-1]].name == kind.name:
            opened.pop()
        elif " " in kind.name:
            others = [other for other in opened if kinds[other].name == kind.name]
            for other in [index, *others]:
                kinds[other] = "mark"
            opened = [other for other in opened if other not in others]
        else:
            while kinds[opened[-1]].name != kind.name:
                kinds[opened.pop()] = "mark"
            opened.pop()
    for index in opened:
        kinds[index] = "mark"
    return kinds
