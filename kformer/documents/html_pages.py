"""HTML, edited at offsets: tags, attributes, comments and spaces stay as they are."""

import codecs
import collections
import contextlib
import functools
import html
import re

from kformer.documents.format import BOUNDARY, BREAK, Edit, Format, Kept, Mark, Segment, Tag, Text
from kformer.documents.html_tokens import ATTRIBUTE, Token, html_tokens, unescaped
from kformer.documents.plain_text import reads_on
from kformer.documents.sentences import language_tag, two_letters
from kformer.documents.words import has_letters
from kformer.documents.xml_pieces import XML_ENCODING

# Elements within a sentence. All others end it.
_INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite data del dfn em font i ins mark nobr q rb s small span "
    "strike strong sub sup time tt u".split()
)
# Elements whose text is no prose: they stand in a sentence as they are.
_KEPT = frozenset("code kbd samp var math tt".split())
# Elements without text for a translator: within a sentence, or between sentences.
_OPAQUE_INLINE = frozenset("script style svg noembed object canvas audio video map".split())
_OPAQUE = frozenset("pre textarea template xmp plaintext listing iframe noframes".split())
_VOID = frozenset(
    "area base br col embed hr img input link meta param source track wbr basefont frame".split()
)
_VOID_INLINE = frozenset("img wbr input embed".split())
_BLOCKS = frozenset(
    "article aside blockquote center details dialog dl fieldset figcaption figure footer form h1 "
    "h2 h3 h4 h5 h6 header hgroup main menu nav ol pre section summary table ul".split()
)
_GROUPS = ("tbody", "thead", "tfoot")
# The start of one of these ends an open element of each group, whose end tag may be missing.
_IMPLIED = {
    **dict.fromkeys([*_BLOCKS, "address", "div", "hr", "p"], [("p",)]),
    "li": [("li",)],
    **dict.fromkeys(("dt", "dd"), [("dt", "dd")]),
    **dict.fromkeys(("td", "th"), [("td", "th")]),
    "tr": [("tr",)],
    **dict.fromkeys(_GROUPS, [("tr",), _GROUPS]),
    "option": [("option",)],
}
# What is open around one of these stays open: around a table for its parts, around a block for all
# others.
_TABLE_PARTS = frozenset(("td", "th", "tr", *_GROUPS))
_BARRIERS = _BLOCKS | {"td", "th", "caption", "button"}
_NOT_TRANSLATED = re.compile(r"\bnotranslate\b")
_CHARSET = re.compile(rb"<meta[^>]{1,300}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_.:-]{2,40})", re.I)
# Browsers take these labels for a larger encoding: Python's codec for a label that Python lacks, or
# for that of the label.
_WEB = {
    **dict.fromkeys(("ascii", "iso8859-1"), "cp1252"),
    **dict.fromkeys(("iso8859-9", "iso88599"), "cp1254"),
    **dict.fromkeys(("iso8859-11", "tis-620", "windows-874", "dos-874"), "cp874"),
    **dict.fromkeys(("gb2312", "gbk", "gb_2312", "gb_2312-80", "csgb2312"), "gb18030"),
    **dict.fromkeys(("shift_jis", "sjis", "windows-31j"), "cp932"),
    **dict.fromkeys(("euc_kr", "windows-949", "ks_c_5601-1989", "ksc_5601"), "cp949"),
    **dict.fromkeys(("big5", "cn-big5"), "cp950"),
    **dict.fromkeys(("iso-8859-8-i", "logical", "visual"), "iso8859-8"),
    "koi8-ru": "koi8_u",
}
_LANGUAGE = frozenset(("lang", "xml:lang"))
_REFERENCES = "kformer.references"


class HTML(Format):
    """HTML pages and fragments."""

    name = "html"
    endings = (".html", ".htm", ".xhtml")
    escapes = (functools.partial(html.escape, quote=False),)

    def segments(self, text):
        return segments_of(text)

    def encoded(self, text, encoding):
        return text.encode(encoding, _REFERENCES)

    def encoding(self, content):
        match = XML_ENCODING.match(content[:200]) or _CHARSET.search(content[:4096])
        if match is None:
            return None
        label = match[1].decode("ascii").lower().removeprefix("x-")
        with contextlib.suppress(LookupError):
            name = codecs.lookup(_WEB.get(label, label)).name
            return _WEB.get(name, name)

    def language_edits(self, text, source, target):
        """Elements in another language than the page's keep it, as do those that stay."""
        tag = None if target is None else html.escape(language_tag(target))
        known, has_page = {two_letters(source)} if source else set(), False
        for token, _, is_whole, is_translated in _walk(list(html_tokens(text))):
            if token.kind != "start" or is_whole or not is_translated:
                continue
            values = {name: token.attributes[name] for name in _LANGUAGE & {*token.attributes}}
            if any("{" in value for value in values.values()):
                continue  # A template fills it in.
            codes = {value and two_letters(value) for value in values.values()}
            is_page = token.name == "html" and not has_page
            if is_page or not known:
                known |= codes - {""}
            if is_page:
                has_page = True
                if tag and not values:
                    start = token.start + len("<html")
                    yield Edit(start, start, f' lang="{tag}"')
            elif token.name == "meta":
                if token.attributes.get("http-equiv", "").lower() != "content-language":
                    continue
                values = ("content",)
            elif token.name in _VOID or not codes <= known:
                continue
            start = token.start + 1 + len(token.name)
            for match in ATTRIBUTE.finditer(text, start, token.end - 1):
                first = match.start()
                if (match[1] or "").lower() not in values:
                    continue
                while tag is None and text[first - 1].isspace():
                    first -= 1
                yield Edit(first, match.end(), "" if tag is None else f'{match[1]}="{tag}"')


def _reference(error):
    """Returns a reference for what an encoding lacks, the byte for what could not be read."""
    is_byte = "\udc80" <= error.object[error.start] <= "\udcff"
    error.end = error.start + 1
    return codecs.lookup_error("surrogateescape" if is_byte else "xmlcharrefreplace")(error)


codecs.register_error(_REFERENCES, _reference)


def segments_of(text, offset=0):
    """Yields the segments of a page or fragment.

    Args:
        text: str.
        offset: int, default 0. Its position in a document of another format.
    """
    yield from filter(None, (_segment(text, run, offset) for run in _runs(text)))


def _runs(text):
    """Yields lists of slices with their kinds, between the ends of sentences that elements make.

    A kind is "text", "kept", "mark", "line", or a `Token` of an inline element.
    """
    run = []
    for token, stop, is_whole, is_translated in _walk(list(html_tokens(text))):
        kind = _kind(token, is_whole)
        if kind is not None and (is_translated or is_whole):
            run.append((token.start, stop, kind))
        else:
            yield run
            run = []
    yield run


class _Open:
    """The elements that are open, and whether the text in them is translated."""

    def __init__(self):
        self._stack, self._counts = [], collections.Counter()
        self._tables = self._barriers = 0

    def is_translated(self):
        """Returns whether the text in the innermost is translated."""
        return not self._stack or self._stack[-1][1]

    def add(self, token):
        """Opens an element, of its start tag."""
        keys = (token.name, self._key(token.name))
        self._stack.append((token.name, _is_translated(token, self.is_translated()), keys))
        self._change(token.name, keys, 1)

    def _change(self, name, keys, by):
        for key in keys:
            self._counts[key] += by
        self._tables += by * (name == "table")
        self._barriers += by * (name in _BARRIERS)

    def _key(self, name):
        return name, self._tables if name in _TABLE_PARTS else self._barriers

    def close(self, names, is_implied=False):
        """Closes the innermost of some elements, and all in it."""
        keys = map(self._key, names) if is_implied else names
        if not any(self._counts[key] for key in keys):
            return  # Known at once, however many elements are open.
        name = None
        while name not in names:
            name, _, keys = self._stack.pop()
            self._change(name, keys, -1)


def _walk(tokens):
    """Yields each token with the end of its slice, whether this is a whole element that is passed
    over, and whether the text there is translated.
    """
    # For the index of each start tag that has an end tag, the index after this.
    ends, starts = {}, collections.defaultdict(list)
    for index, token in enumerate(tokens):
        if token.kind == "start" and token.name not in _VOID and "/" not in token.attributes:
            starts[token.name].append(index)
        elif token.kind == "end" and starts[token.name]:
            ends[starts[token.name].pop()] = index + 1
    opened, position = _Open(), 0
    while position < len(tokens):
        token = tokens[position]
        end = position + 1
        if _is_opaque(token):
            end = ends.get(position, len(tokens) if token.name in _OPAQUE else end)
        is_whole = end > position + 1
        for names in _IMPLIED.get(token.name, ()) if token.kind == "start" else ():
            opened.close(names, is_implied=True)
        if token.kind == "start" and token.name not in _VOID and not is_whole:
            opened.add(token)
        yield token, tokens[end - 1].end, is_whole, opened.is_translated()
        if token.kind == "end":
            opened.close((token.name,))
        position = end


def _is_translated(token, is_around):
    """Returns whether the text of an element is translated, by its attributes and those around."""
    value = (token.attributes.get("translate") or "").lower()
    if value in ("yes", "no"):
        return value == "yes"
    return is_around and not _NOT_TRANSLATED.search(token.attributes.get("class") or "")


def _is_opaque(token):
    """Returns whether an element is passed over as a whole."""
    if token.kind != "start" or token.name in _VOID or "/" in token.attributes:
        return False
    is_inline = token.name in _INLINE
    is_kept = is_inline and not _is_translated(token, True)
    return is_kept or token.name in _KEPT | _OPAQUE_INLINE | _OPAQUE


def _kind(token, is_whole):
    if token.kind == "text":
        return "text"
    if token.name == "br":
        return "line"
    is_picture = token.name in _VOID_INLINE and token.attributes.get("type") != "submit"
    if token.kind == "other" or is_picture or (is_whole and token.name in _OPAQUE_INLINE):
        return "mark"
    if is_whole:
        return None if token.name in _OPAQUE else "kept"
    return token if token.name in _INLINE | _KEPT else None


def _segment(text, run, offset):
    """Returns the `Segment` of a run, without what stands around its text; `None` without text."""
    raws = [text[start:end] for start, end, _ in run]
    first, pieces = pieces_of(raws, [kind for _, _, kind in run])
    if pieces:
        last = first + len(pieces) - 1
        return Segment(run[first][0] + offset, run[last][1] + offset, pieces)


def pieces_of(raws, kinds):
    """Returns the pieces of a segment, without what stands around its text.

    Args:
        raws: list of str. Slices of a document.
        kinds: list of their kinds: "text", "kept", "mark", "line", `BOUNDARY`, or the `Token` of a
            tag within a sentence.

    Returns:
        The index of the first slice, and the list of pieces; it is empty if there is no text.
    """
    texts = {i: _shown(raw) for i, raw in enumerate(raws) if kinds[i] == "text"}
    if not any(map(has_letters, texts.values())):
        return 0, []
    first, last = _bounds(kinds, texts)
    line_kinds, before, lines = {}, "", []
    for index in range(first, last + 1):
        if kinds[index] == "line":
            lines.append((index, before))
        elif kinds[index] == "text":
            after = texts[index]
            for line, before in lines:
                # A sentence may go on after `<br>`.
                is_one = before.strip() and after.lstrip()[:1].islower() and reads_on(before, after)
                line_kinds[line] = BREAK if is_one else BOUNDARY
            before, lines = after, []
    pieces = []
    for index in range(first, last + 1):
        raw, kind = raws[index], kinds[index]
        if kind == "text":
            pieces.append(Text(texts[index]))
        elif kind == "kept":
            pieces.append(Kept(raw))
        elif kind in ("line", BOUNDARY):
            pieces.append(Mark(raw, line_kinds.get(index, BOUNDARY)))
        elif kind == "mark":
            pieces.append(Mark(raw))
        else:
            pieces.append(Tag(raw, kind.name, kind.kind == "start"))
    return first, pieces


def _shown(raw):
    """Returns the text that a slice of a page shows."""
    return raw[9:-3] if raw.startswith("<![CDATA[") else unescaped(raw)


def _bounds(kinds, texts):
    """Returns the first and last index of a run's text, with the other side of each tag in it."""
    shown = [i for i, kind in enumerate(kinds) if kind == "kept" or texts.get(i, "").strip()]
    first, last = shown[0], shown[-1]
    partners, opened = {}, []
    for i, kind in enumerate(kinds):
        if isinstance(kind, Token) and kind.kind == "start":
            opened.append(i)
        elif isinstance(kind, Token) and opened and kinds[opened[-1]].name == kind.name:
            partners[i] = opened.pop()
            partners[partners[i]] = i
    pending = list(range(first, last + 1))
    while pending:
        partner = partners.get(pending.pop(), first)
        pending += [*range(partner, first), *range(last + 1, partner + 1)]
        first, last = min(first, partner), max(last, partner)
    return first, last
