"""Subtitles (SRT and WebVTT): numbers and times stay as they are."""

import functools
import html
import re

from kformer.documents.format import BREAK, Edit, Format, Mark, Segment, Tag, Text
from kformer.documents.plain_text import reads_on
from kformer.documents.sentences import language_tag
from kformer.documents.words import has_letters, split, trimmed

# WebVTT may leave the hours out.
_TIME = r"(?:\d{1,4}:\d{1,2}:\d{1,2}(?:[,.:]\d{1,3})?|\d{1,2}:\d{2}\.\d{3})"
_HEAD = re.compile(
    rf"^[ \t]*(?:\d+[ \t]*(?:\r\n|\r|\n)[ \t]*)?{_TIME}[ \t]*-->[ \t]*{_TIME}"
    r"[^\r\n]*(?:\r\n|\r|\n|$)",
    re.M,
)
_LANGUAGE = re.compile(
    r"\A\ufeff?WEBVTT[^\r\n]*(?:(?:\r\n|\r|\n)[^\r\n]+)*?(?P<line>(?:\r\n|\r|\n)"
    r"(?P<name>Language:[ \t]*)[^\r\n]*)"
)
_LINE = re.compile(r"[^\r\n]+")
_BLANK = re.compile(r"(?:\r\n?+|\n)[ \t]*(?:\r\n?+|\n)")
# The second kind is a time in a subtitle of WebVTT.
_TAG = re.compile(r"</?([A-Za-z][A-Za-z0-9]*)(?:[\s.][^<>\r\n]*)?>|<[\d:.]+>|\{\\[^{}\r\n]*\}")
_ENDS = '.!?…:"”»。！？♪'
_SPEAKER = re.compile(r"(?:[-–—]\s*|[A-Z][A-Z .]{1,20}:\s+)")


class Subtitles(Format):
    """SRT files.

    A sentence may go on in the next line and in the next subtitle: it is translated as one, and
    its translation is shared out.
    """

    name = "srt"
    endings = (".srt",)
    # SRT has no escapes: what looks like a tag in a translation is left out.
    escapes = (str, lambda text: _TAG.sub("", text).replace("-->", "→"))
    unescaped = staticmethod(str)
    ends_at_blank_line = False

    def segments(self, text):
        starts = [match.span() for match in _HEAD.finditer(text)]
        stops = [start for start, _ in starts[1:]] + [len(text)]
        pending = []
        for (_, begin), stop in zip(starts, stops, strict=False):
            if self.ends_at_blank_line and (blank := _BLANK.search(text, begin - 1, stop)):
                stop = blank.start() + 1
            for match in _LINE.finditer(text, begin, stop):
                start, end = trimmed(text, *match.span())
                speaker = _SPEAKER.match(text, start, end)
                start = speaker.end() if speaker else start
                line = _TAG.sub("", text[start:end])
                if not has_letters(line):
                    continue
                if pending:
                    before = _TAG.sub("", text[slice(*pending[-1])])
                    # Lines of subtitles are short: one that does not end a sentence goes on.
                    goes_on = reads_on(before, line) or before.rstrip()[-1:] not in _ENDS
                    if speaker or not goes_on:
                        yield _segment(text, pending, self.unescaped)
                        pending = []
                pending.append((start, end))
        if pending:
            yield _segment(text, pending, self.unescaped)

    def language_edits(self, text, source, target):
        match = _LANGUAGE.match(text)
        if match and target is None:
            yield Edit(*match.span("line"), "")
        elif match:
            yield Edit(match.end("name"), match.end("line"), language_tag(target))

    def is_sound(self, source, target):
        """Whether there are the same times and tags, and no line of a subtitle is empty."""
        return _shape(source) == _shape(target)


class WebVTT(Subtitles):
    """WebVTT files: notes, styles, regions, and the names and settings of subtitles stay."""

    name = "vtt"
    endings = (".vtt",)
    escapes = (functools.partial(html.escape, quote=False),)
    unescaped = staticmethod(html.unescape)
    ends_at_blank_line = True


def _shape(text):
    blanks = len(re.findall(r"(?:\r\n|\r|\n)[ \t]*(?=[\r\n])", text))
    heads = [match[0] for match in _HEAD.finditer(text)]
    tags = sorted(match[0] for match in _TAG.finditer(text))
    lines = [line for line in _LINE.findall(text) if _TAG.sub("", line).strip()]
    return heads, blanks, tags, len(lines)


def _segment(text, slices, unescaped):
    """Returns the segment of slices of lines, and of what stands between them."""
    pieces, position = [], None
    for start, end in slices:
        if position is not None:
            pieces.append(Mark(text[position:start], BREAK))
        for piece in split(_TAG, text, start, end):
            if isinstance(piece, str):
                pieces.append(Text(unescaped(piece)))
            elif piece[1]:
                pieces.append(Tag(piece[0], piece[1].lower(), not piece[0].startswith("</")))
            else:
                pieces.append(Mark(piece[0]))
        position = end
    return Segment(slices[0][0], slices[-1][1], pieces)
