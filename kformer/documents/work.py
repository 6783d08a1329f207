"""Translates a document, without knowing the model: it asks for translations and is given them.

`translated` is a generator, so that a program that waits for a model and one that serves many
clients drive the same code.
"""

import bisect
import dataclasses
import itertools

from kformer.documents.assembling import Assembly
from kformer.documents.flattened import TERM, Flattened
from kformer.documents.format import Edit, edited, moved_back
from kformer.documents.job import Job, Request

# Segments that are translated together: it bounds the memory.
_WINDOW = 256
_MOST_ITEMS = 20


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
class Report:
    """What was done to a document.

    Attributes:
        segments, sentences: int. How many there were to translate.
        parted: int. Sentences that were translated in parts, since they were too long, or since
            what is kept had not come out.
        cut: int. Parts that the model cut, as nothing shorter could be asked for.
        cut_at: list of int. Where the segments of such parts begin in the document.
        untranslated: int. Parts for which the model returned nothing, and segments whose
            translation would have broken the document or that could not be read; they stand as they
            were.
        terms: list of `TermUse`, in the order in which they were found.
    """

    segments: int = 0
    sentences: int = 0
    parted: int = 0
    cut: int = 0
    cut_at: list = dataclasses.field(default_factory=list)
    untranslated: int = 0
    terms: list = dataclasses.field(default_factory=list)

    def add(self, other):
        """Adds the numbers of another report; the positions of what was cut stay apart."""
        for name in ("segments", "sentences", "parted", "cut", "untranslated"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for use in other.terms:
            self._add_use(use.source, use.target, use.found, use.used)

    def add_term(self, entry, found, used):
        """Counts occurrences of an entry of the glossary."""
        self._add_use(entry.source[0], entry.target, found, used)

    def _add_use(self, source, target, found, used):
        use = next((use for use in self.terms if use.source == source), None)
        if use is None:
            use = TermUse(source, target)
            self.terms.append(use)
        use.found += found
        use.used += used


def translated(text, format, abilities, *, source_language, target_language=None, glossary=None):
    """A generator that translates a document.

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
    text, report, edits = edited(text, marks), Report(), []
    segments = iter(format.segments(text))
    while window := list(itertools.islice(segments, _WINDOW)):
        work = _Window(text, format, abilities, source_language, glossary, report)
        edits += yield from work.run(window)
    report.cut_at = [moved_back(position, marks) for position in report.cut_at]
    return edited(text, edits), report


class _Window:
    def __init__(self, text, format, abilities, language, glossary, report):
        self.text, self.format, self.abilities = text, format, abilities
        self.language, self.glossary, self.report = language, glossary, report

    def run(self, segments):
        """Translates segments; returns a list of `Edit`."""
        self.report.untranslated += sum(not segment.parts for segment in segments)
        segments = [segment for segment in segments if segment.parts]
        flats = [Flattened(segment, self.glossary) for segment in segments]
        slices = [flat.sentences(self.language) for flat in flats]
        jobs = [self._jobs(*each) for each in zip(flats, slices, strict=True)]
        yield from self._ask([job for row in jobs for job in row])
        edits, unsound = [], []
        works = [Assembly(flat, _chunks(row)) for flat, row in zip(flats, jobs, strict=True)]
        yield from self._find_phrases(works)
        for number, work in enumerate(works):
            found = self._sound(work)
            if found is None:
                unsound.append(number)
            else:
                edits.append(found)
                self._count(jobs[number], work)
        if unsound:
            # What stands between tags is translated alone: no tag can move.
            rows = [self._jobs(flats[i], self._runs(flats[i], slices[i])) for i in unsound]
            yield from self._ask([job for row in rows for job in row])
            for i, row in zip(unsound, rows, strict=True):
                work = Assembly(flats[i], _chunks(row))
                found = self._sound(work)
                if found is None:
                    self.report.untranslated += 1
                else:
                    edits.append(found)
                    self._count(row, work)
        return edits

    def _jobs(self, flat, slices):
        jobs = []
        for start, end in slices:
            # No model keeps so many words that it does not know.
            is_crowded = len(flat.items_in(start, end)) > _MOST_ITEMS
            parts = flat.divided(start, end) if is_crowded else [(start, end)]
            jobs += [Job(flat, *part, self.abilities) for part in parts]
        return jobs

    def _runs(self, flat, slices):
        """The slices of sentences, parted where a tag or mark stands."""
        found = []
        positions = sorted({position for position, _ in flat.events})
        for start, end in slices:
            low, high = bisect.bisect_right(positions, start), bisect.bisect_left(positions, end)
            cuts = positions[low:high]
            for a, b in itertools.pairwise([start, *cuts, end]):
                a, b = flat.trimmed(a, b)
                if a < b:
                    found.append((a, b))
        return found

    def _ask(self, jobs):
        pending = [job for job in jobs if job.request is not None]
        while pending:
            answers = yield [job.request for job in pending]
            pending = [
                other
                for job, answer in zip(pending, answers, strict=True)
                for other in job.take(answer)
            ]

    def _find_phrases(self, works):
        """Asks for what stands within tags alone, which tells where it is in the sentence."""
        spans = [pair for work in works for pair in work.phrases()]
        if spans:
            answers = yield [Request(text) for _, text in spans]
            for (span, _), answer in zip(spans, answers, strict=True):
                span.phrase = answer.text.strip().rstrip(".。")

    def _sound(self, work):
        """The `Edit` of a segment; `None` if its translation would break the document."""
        segment = work.flat.segment
        source = self.text[segment.start : segment.end]
        format = segment.format or self.format
        for escape in format.escapes():
            target = work.write(escape)
            if work.is_complete and format.is_sound(source, target):
                return Edit(segment.start, segment.end, target)
        return None

    def _count(self, jobs, work):
        report = self.report
        report.segments += 1
        report.sentences += sum(job.request is not None for job in jobs)
        for job in jobs:
            every = list(job.all_jobs())
            report.parted += len(every) > 2
            if any(each.is_cut for each in every):
                report.cut += sum(each.is_cut for each in every)
                report.cut_at.append(work.flat.segment.start)
            report.untranslated += sum(each.is_kept for each in every)
        for item in work.flat.items:
            if item.kind == TERM:
                report.add_term(item.entry, 1, item in work.used)


def _chunks(jobs):
    return [chunk for job in jobs for chunk in job.chunks()]
