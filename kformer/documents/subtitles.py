"""SubRip subtitles (SRT): numbers and times stay as they are."""

import re

from kformer.documents.format import BREAK, Edit, Format, Mark, Segment, Tag, Text, paired
from kformer.documents.plain_text import reads_on, trimmed
from kformer.documents.sentences import language_tag
from kformer.documents.words import has_letters

_TIME = r"\d{1,4}:\d{1,2}:\d{1,2}(?:[,.:]\d{1,3})?"
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
_TAG = re.compile(r"</?([A-Za-z][A-Za-z0-9]*)(?:\s[^<>\r\n]*)?>|\{\\[^{}\r\n]*\}")
_SPEAKER = re.compile(r"(?:[-–—]\s*|[A-Z][A-Z .]{1,20}:\s+)")


class Subtitles(Format):
    """SRT files.

    A sentence may go on in the next line and in the next subtitle: it is translated as one, and
    its translation is shared out.
    """

    name = "srt"
    endings = (".srt",)

    def segments(self, text):
        heads = list(_HEAD.finditer(text))
        pending = []
        for head, following in zip(heads, [*heads[1:], None], strict=False):
            stop = len(text) if following is None else following.start()
            for match in _LINE.finditer(text, head.end(), stop):
                start, end = trimmed(text, *match.span())
                speaker = _SPEAKER.match(text, start, end)
                start = speaker.end() if speaker else start
                plain = _TAG.sub("", text[start:end])
                if not has_letters(plain):
                    continue
                if pending and (speaker or not self._goes_on(text, pending[-1], plain)):
                    yield _segment(text, pending)
                    pending = []
                pending.append((start, end))
        if pending:
            yield _segment(text, pending)

    def language_edits(self, text, source, target):
        found = _LANGUAGE.match(text)
        if found and target is None:
            yield Edit(*found.span("line"), "")
        elif found:
            yield Edit(found.end("name"), found.end("line"), language_tag(target))

    def _goes_on(self, text, before, plain):
        said = _TAG.sub("", text[slice(*before)])
        # Lines of subtitles are short: a line that does not end a sentence goes on.
        return reads_on(said, plain) or said.rstrip()[-1:] not in '.!?…:"”»。！？♪'

    def escapes(self):
        # SRT has no escapes: what looks like a tag in a translation is left out.
        return str, lambda text: _TAG.sub("", text).replace("-->", "→")

    def is_sound(self, source, target):
        """Whether there are the same times and tags, and no line of a subtitle is empty."""
        return _shape(source) == _shape(target)


def _shape(text):
    blanks = len(re.findall(r"(?:\r\n|\r|\n)[ \t]*(?=[\r\n])", text))
    heads = [match[0] for match in _HEAD.finditer(text)]
    tags = sorted(match[0] for match in _TAG.finditer(text))
    lines = [line for line in _LINE.findall(text) if _TAG.sub("", line).strip()]
    return heads, blanks, tags, len(lines)


def _segment(text, slices):
    """A segment of slices of lines, and of what stands between them."""
    parts, names, position = [], {}, None
    for start, end in slices:
        if position is not None:
            between = text[position:start]
            parts.append(Mark(between, BREAK))
        position = start
        for match in [*_TAG.finditer(text, start, end), None]:
            stop = end if match is None else match.start()
            if stop > position:
                parts.append(Text(text[position:stop]))
            if match is None:
                break
            if match[1]:
                names[len(parts)] = (match[1].lower(), not match[0].startswith("</"))
                parts.append(Tag(match[0], -1))
            else:
                parts.append(Mark(match[0]))
            position = match.end()
        position = end
    return Segment(slices[0][0], slices[-1][1], paired(parts, names))
