"""Translates a document, without knowing the model: it requests translations and takes answers.

`translated` is a generator, so that a program that waits for a model and one that serves many
clients drive the same code.
"""

import bisect
import collections
import dataclasses
import itertools
import re

from kformer.documents.assembling import Assembly
from kformer.documents.flattened import TERM, Flattened
from kformer.documents.format import Edit, edited, moved_back
from kformer.documents.job import Job, Request

# Segments that are translated together: it bounds the memory.
_WINDOW = 256
_MOST_ITEMS = 20
# So much of a source is told.
_NOTED = 60
_IN_NUMBER = re.compile(r"(?<=\d)[.,'’\s](?=\d)")
_NUMBER = re.compile(r"(?<![^\W\d_])\d{1,30}")


@dataclasses.dataclass
class TermUse:
    """A term of the glossary in a document.

    Attributes:
        source: str. The term.
        target: tuple of str. The forms of its translation; empty if it is not translated.
        found, used: int. How often it occurs, and how often the document has its translation.
    """

    source: str
    target: tuple
    found: int = 0
    used: int = 0


@dataclasses.dataclass
class Problem:
    """A place of a document that its reader should look at.

    Attributes:
        line: int. Its number in the document, from 1; in an office file that of the paragraph.
        text: str. The begin of the source there, as a reader sees it.
        reason: str. What happened.
        member: str, default `None`. The part of an office file, such as "word/footnotes.xml", in
            which the paragraph is.
    """

    line: int
    text: str
    reason: str
    member: str | None = None


@dataclasses.dataclass
class SentenceCoverage:
    """What the translation of a sentence, or of a part of one, left out or added.

    Attributes:
        line: int. Its number in the document, from 1; in an office file that of the paragraph.
        source, translation: str. What the model was given, and what it returned.
        coverage: `kformer.translating.translation.Coverage`, default `None`.
        member: str, default `None`. The part of an office file in which the paragraph is.
    """

    line: int
    source: str
    translation: str
    coverage: object = None
    member: str | None = None

    def as_dict(self):
        """The same as a dict of JSON values."""
        place = (
            {"line": self.line}
            if self.member is None
            else {"member": self.member, "paragraph": self.line}
        )
        found = {} if self.coverage is None else self.coverage.as_dict()
        return {**place, "source": self.source, "translation": self.translation, **found}


@dataclasses.dataclass
class Report:
    """What was done to a document.

    Attributes:
        segments, sentences: int. How many there were to translate.
        parted: int. Sentences that were translated in parts, since they were too long, or since
            what is kept had not come out.
        cut: int. Parts that the model cut, as nothing shorter could be asked for.
        cut_at: list of int. Where the segments of such parts begin in the document.
        untranslated: int. Parts for which the model returned nothing, and segments whose
            translation would have broken the document or that could not be read; they stay as they
            were.
        unreadable: int. Bytes that are not in the document's encoding.
        problems: list of `Problem`: what was not translated, and numbers that a translation lacks.
        terms: list of `TermUse`, in the order in which they were found.
        translations: list of `SentenceCoverage` in the order of the document, without coverage.
        coverage: list of `SentenceCoverage`, the most doubtful first, if it was asked for.
    """

    segments: int = 0
    sentences: int = 0
    parted: int = 0
    cut: int = 0
    cut_at: list = dataclasses.field(default_factory=list)
    untranslated: int = 0
    unreadable: int = 0
    problems: list = dataclasses.field(default_factory=list)
    terms: list = dataclasses.field(default_factory=list)
    translations: list = dataclasses.field(default_factory=list)
    coverage: list = dataclasses.field(default_factory=list)

    def add(self, report):
        """Adds the numbers of another report; the positions of what was cut stay apart."""
        for name in ("segments", "sentences", "parted", "cut", "untranslated", "problems"):
            setattr(self, name, getattr(self, name) + getattr(report, name))
        for use in report.terms:
            self.add_term(use.source, use.target, use.found, use.used)

    def add_term(self, source, target, found, used):
        """Adds occurrences of a term; arguments are those of `TermUse`."""
        use = next((use for use in self.terms if use.source == source), None)
        if use is None:
            self.terms.append(use := TermUse(source, target))
        use.found += found
        use.used += used


def translated(text, format, abilities, *, source_language, target_language=None, glossary=None):
    """Translates a document, as a generator.

    Args:
        text: str.
        format: `Format`.
        abilities: as for `kformer.documents.job.Job`.
        source_language: str or `None`. The code of the text's language, for the ends of sentences;
            `None` for English.
        target_language: str, default `None`. The code that the document is marked with; `None`
            takes the marks of its language away.
        glossary: `Glossary`, default `None`.

    Yields:
        Lists of `Request`. It is sent a list of `Answer` for each.

    Returns:
        The translation, a str, and a `Report`.
    """
    marks = list(format.language_edits(text, source_language, target_language))
    text, report, parts, end = edited(text, marks), Report(), [], 0
    segments = iter(format.segments(text))
    while window := list(itertools.islice(segments, _WINDOW)):
        options = (format, abilities, source_language, glossary, report)
        edits = yield from _Window(text, *options).run(window)
        # A table's cell that could not be read stands where its row begins, before other cells.
        stop = max(segment.end for segment in window)
        parts.append(edited(text, edits, end, stop))
        end = stop
    report.cut_at = [moved_back(position, marks) for position in report.cut_at]
    ends = [match.start() for match in re.finditer("\n", text)]

    def line(position):
        return bisect.bisect_left(ends, position) + 1

    def place(segment):
        return segment.place or (None, line(segment.start))

    problems, report.problems = report.problems, []
    for segment, reason in sorted(problems, key=lambda each: (each[0].start, each[1])):
        member, number = place(segment)
        report.problems.append(Problem(number, _begin(segment, text), reason, member))
    report.translations.sort(key=lambda row: row[0].start)
    for i, (segment, *texts) in enumerate(report.translations):
        member, number = place(segment)
        report.translations[i] = SentenceCoverage(number, *texts, member=member)
    return "".join([*parts, text[end:]]), report


def _begin(segment, text):
    """Returns the begin of a segment without its tags and escapes."""
    shown = Flattened(segment).text if segment.pieces else text[segment.start :].partition("\n")[0]
    return " ".join(shown[: 2 * _NOTED].split())[:_NOTED]


class _Window:
    """The segments that are translated together."""

    def __init__(self, text, format, abilities, language, glossary, report):
        self.text, self.format, self.abilities = text, format, abilities
        self.language, self.glossary, self.report = language, glossary, report
        self._sentences = {} if glossary is None else glossary.sentences

    def run(self, segments):
        """Translates segments; returns a list of `Edit`."""
        for segment in segments:
            if not segment.pieces:
                self._fail(segment, "it could not be read")
        flats = [Flattened(each, self.glossary) for each in segments if each.pieces]
        slices = [flat.sentences(self.language) for flat in flats]
        edits, refused = yield from self._translate(flats, slices, has_phrases=True)
        for has_items in (False, True):
            if not refused:
                return edits
            # What stands between tags, and then items, is translated alone: none can move.
            flats, slices = ([each[i] for i in refused] for each in (flats, slices))
            slices = [self._between(*pair, has_items) for pair in zip(flats, slices, strict=True)]
            more, refused = yield from self._translate(flats, slices)
            edits += more
        for number in refused:
            self._fail(flats[number].segment, "its translation would have broken the document")
        return edits

    def _fail(self, segment, reason):
        self.report.untranslated += 1
        self._note(segment, reason)

    def _note(self, segment, reason):
        self.report.problems.append((segment, reason))

    def _translate(self, flats, slices, has_phrases=False):
        """Translates slices of segments; returns a list of `Edit`, and the indices of the segments
        whose translation would break the document.
        """
        rows = [self._jobs(*pair) for pair in zip(flats, slices, strict=True)]
        pending = [job for jobs in rows for job in jobs if job.request is not None]
        while pending:
            # Sentences of the glossary need no model.
            known = self._sentences
            pending = [job for job in pending if not job.take_known(known.get(job.sentence))]
            answers = (yield [job.request for job in pending]) if pending else ()
            pairs = zip(pending, answers, strict=True)
            pending = [new for job, answer in pairs for new in job.take(answer)]
        chunks = [[chunk for job in jobs for chunk in job.chunks()] for jobs in rows]
        assemblies = list(map(Assembly, flats, chunks))
        # What stands within tags is also translated alone, which tells where it is in the sentence.
        spans = [span for each in assemblies for span in each.phrases() if has_phrases]
        if spans:
            answers = yield [Request(text) for _, text in spans]
            for (span, _), answer in zip(spans, answers, strict=True):
                span.phrase = answer.text.strip().rstrip(".。")
        edits, refused = [], []
        for number, (assembly, jobs) in enumerate(zip(assemblies, rows, strict=True)):
            edit = self._edit(assembly)
            if edit is None:
                refused.append(number)
            else:
                edits.append(edit)
                self._count(jobs, assembly)
        return edits, refused

    def _jobs(self, flat, slices):
        jobs = []
        for start, end in slices:
            if " ".join(flat.text[start:end].split()) in self._sentences:
                flat.drop_terms(start, end)
            # No model keeps so many words that it does not know.
            is_crowded = len(flat.items_in(start, end)) > _MOST_ITEMS
            pairs = flat.divided(start, end) if is_crowded else [(start, end)]
            jobs += [Job(flat, *pair, self.abilities) for pair in pairs]
        return jobs

    def _between(self, flat, slices, has_items):
        """Returns the slices of sentences, divided where a tag, a mark or an item stands."""
        pairs = []
        positions = {position for position, _ in flat.events}
        if has_items:
            positions |= {edge for item in flat.items for edge in (item.start, item.end)}
        positions = sorted(positions)
        for start, end in slices:
            low, high = bisect.bisect_right(positions, start), bisect.bisect_left(positions, end)
            pairs += itertools.pairwise([start, *positions[low:high], end])
        return flat.trimmed(pairs)

    def _edit(self, assembly):
        """Returns the `Edit` of a segment; `None` if its translation would break the document."""
        segment = assembly.flat.segment
        source = self.text[segment.start : segment.end]
        format = segment.format or self.format
        for escape in format.escapes:
            target = segment.written(assembly.write(escape))
            if assembly.is_complete and format.is_sound(source, target):
                return Edit(segment.start, segment.end, target)
        return None

    def _count(self, jobs, assembly):
        report = self.report
        report.segments += 1
        report.sentences += sum(job.request is not None for job in jobs)
        for job in jobs:
            attempts = list(job.all_jobs())
            report.parted += len(attempts) > 2
            report.cut += (num_cut := sum(attempt.is_cut for attempt in attempts))
            report.cut_at += [assembly.flat.segment.start] * bool(num_cut)
            for _ in range(sum(attempt.is_source for attempt in attempts)):
                self._fail(assembly.flat.segment, "the model returned nothing")
        lost = {}
        for chunk in assembly.chunks:
            lost |= dict.fromkeys(_numbers(chunk.source) - _numbers(chunk.target))
            report.translations.append((assembly.flat.segment, chunk.source, chunk.target))
        if lost:
            numbers = ", ".join(map(str, lost))
            self._note(assembly.flat.segment, f"the translation lacks {numbers}")
        for item in assembly.flat.items:
            if item.kind == TERM:
                entry = item.entry
                report.add_term(entry.source[0], entry.target, 1, item in assembly.used)


def _numbers(text):
    """Returns the numbers of a text, in whatever digits, without the signs in them."""
    return collections.Counter(map(int, _NUMBER.findall(_IN_NUMBER.sub("", text))))
