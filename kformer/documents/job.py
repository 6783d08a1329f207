"""The translation of one sentence, or of a part of one, in as many attempts as it takes.

An attempt is a request to a model. Its answer is checked: what must be kept occurs, and nothing was
cut. Otherwise the next attempt asks for less:

1. Numbers and terms of the glossary are in the text, and the search is forced to write them.
2. Words such as "X1" stand for all that is kept.
3. What stands between the kept slices is translated alone, which cannot fail.

A sentence that is too long is translated in two parts, at a clause.
"""

import collections
import dataclasses
import re
import unicodedata

from kformer.documents.flattened import TERM
from kformer.documents.words import SPACELESS_SIGN, has_letters, tokens, valid, word_pattern
from kformer.text.protected import HIDDEN, without_overlaps

SHOWN, MASKED, APART = 0, 1, 2
_MORE_WORDS = 10
_CLAUSES = (
    r"[.!?…:;][\"'”’»)]*\s+|[。！？；：…]+[”’」』）]*",
    r",\s+|\s[–—-]\s|[，、]|[)\]）]\s?",
    r"\s(?=(?:and|or|but|because|which|that|und|oder|aber|weil|dass|et|ou|mais|que|qui)\s)",
    r"\s+",
)


@dataclasses.dataclass(frozen=True)
class Request:
    """A text for a model, and what its translation must contain: tuples of forms."""

    text: str
    terms: tuple = ()


@dataclasses.dataclass(frozen=True)
class Answer:
    """A translation, and whether a part of the source was cut, or of the translation."""

    text: str
    is_cut: bool = False
    is_at_limit: bool = False


@dataclasses.dataclass
class Chunk:
    """A translated slice.

    Attributes:
        start, end: int. The slice of the flattened segment.
        source: str. What the model was given.
        offsets: list of int. For each position of the slice, and its end, that in `source`.
        target: str. What it returned.
        items: list of tuples of start, end and `Item`: slices of `target`, in their order.
    """

    start: int
    end: int
    source: str
    offsets: list
    target: str
    items: list


class Job:
    """The translation of a slice.

    Args:
        flat: `Flattened`.
        start, end: int. The slice, which begins and ends with no white space.
        abilities: object with `forces(terms)`, whether a search can be told to write all of them.
        level: int, default 0. The first attempt.

    Attributes:
        request: `Request`, or `None` if there is nothing to translate.
        results: list of `Job` and `Chunk`, which together are the slice, once `take` has been
            called.
        is_cut: bool. Whether a part was lost because nothing shorter could be asked for.
        is_source: bool. Whether the source stands for a translation that is empty.
    """

    def __init__(self, flat, start, end, abilities, level=SHOWN):
        self.flat, self.start, self.end = flat, start, end
        self.abilities, self.level = abilities, level
        self.items = flat.items_in(start, end)
        self.results, self.is_cut, self.is_source = [], False, False
        self._masks, self._shown = {}, []
        self.request = self._request()

    @property
    def sentence(self):
        """The slice with single spaces, as a glossary has sentences."""
        return " ".join(self.flat.text[self.start : self.end].split())

    def _request(self):
        if not any(has_letters(self.flat.text[slice(*gap)]) for gap in self._gaps()):
            self.results = self._terms()
            return None
        masked = [item for item in self.items if self.level > SHOWN or item.kind == HIDDEN]
        requested = self._mask(masked)
        if any(item.kind == TERM for item in self._shown) and not self.abilities.forces(requested):
            masked = [item for item in self.items if item in masked or item.kind == TERM]
            requested = self._mask(masked)
        self.source, self.offsets = self._masked_text()
        is_forced = requested and self.abilities.forces(requested)
        return Request(valid(self.source), requested if is_forced else ())

    def _mask(self, masked):
        """Chooses words for masked items; returns the terms that a translation must contain."""
        choices = ("X", "Q", "Z", "XQ", "QX", "ZX", "XZQ")
        letters = next((word for word in choices if word not in self.flat.text), "QZXQ")
        self._masks = {f"{letters}{number}": item for number, item in enumerate(masked, 1)}
        self._shown = [item for item in self.items if item not in masked]
        words = [(word,) for word in self._masks]
        forms = [forms_of(item, self.flat.text) for item in self._shown]
        return tuple(dict.fromkeys([*words, *forms]))

    def _gaps(self):
        """Returns the slices between the items."""
        edges = [self.start, *(edge for i in self.items for edge in (i.start, i.end)), self.end]
        return list(zip(edges[::2], edges[1::2], strict=True))

    def _terms(self):
        """Returns the terms of the glossary as chunks, which need no model."""
        return [
            Chunk(i.start, i.end, "X", [0] * (i.end - i.start) + [1], "X", [(0, 1, i)])
            for i in self.items
            if i.kind == TERM
        ]

    def _masked_text(self):
        """Returns what the model is given, and the offset of each position in it."""
        text, offsets = "", []
        words = {item.start: (word, item.end) for word, item in self._masks.items()}
        position = self.start
        while position < self.end:
            sign = self.flat.text[position]
            if sign.isspace():
                sign = "" if text.endswith(" ") else " "
            sign, end = words.get(position, (sign, position + 1))
            offsets += [len(text)] * (end - position)
            text += sign
            position = end
        return text, [*offsets, len(text)]

    def take(self, answer):
        """Takes the answer to the request.

        Args:
            answer: `Answer`.

        Returns:
            List of `Job`, what is to be requested now.
        """
        if answer.is_cut or answer.is_at_limit:
            middle = split_position(self.flat, self.start, self.end)
            # Words are never split: their parts translate badly.
            sign = self.flat.text[middle - 1] if middle is not None else ""
            is_in_word = sign.isalnum() and not SPACELESS_SIGN.match(sign)
            if middle is not None and (answer.is_cut or not is_in_word):
                return self._divide([(self.start, middle), (middle, self.end)], self.level)
            self.is_cut = True
        if not answer.text.strip() and not self.items:
            self.is_source = True
            return []
        if answer.text.strip():
            spans = self._item_spans(answer.text)
            if spans is not None:
                slices = (self.start, self.end, self.source, self.offsets)
                self.results = [Chunk(*slices, answer.text, spans)]
                return []
            if self.level == SHOWN and len(self._masks) < len(self.items):
                return self._divide([(self.start, self.end)], MASKED)
        jobs = self._divide(self._gaps(), APART)
        self.results = sorted([*self.results, *self._terms()], key=lambda result: result.start)
        return jobs

    def _divide(self, slices, level):
        """Divides the slice into jobs; returns those with a request."""
        slices = self.flat.trimmed(slices)
        self.results = [Job(self.flat, *each, self.abilities, level) for each in slices]
        return [job for job in self.results if job.request is not None]

    def take_known(self, target):
        """Takes a translation that needs no model.

        Args:
            target: str or `None`.

        Returns:
            Whether there is one, with all that is kept.
        """
        if target is None:
            return False
        items, spans = collections.defaultdict(list), []
        for item in self.items:
            items[" ".join(self.flat.text[item.start : item.end].split())].append(item)
        # The longest first: one may be in another.
        patterns = map(word_pattern, sorted(items, key=len, reverse=True))
        for match in re.finditer("|".join(patterns), target) if items else ():
            if items[match[0]]:
                spans.append((*match.span(), items[match[0]].pop(0)))
        if any(items.values()):
            return False
        slices = (self.start, self.end, self.source, self.offsets)
        self.results = [Chunk(*slices, target, spans)]
        return True

    def _item_spans(self, target):
        """Returns the slices of a translation that the items have; `None` if one is missing."""
        spans = []
        if self._masks and len(tokens(target)) > 2 * len(tokens(self.source)) + _MORE_WORDS:
            return None  # The model has lost its way at a word that it does not know.
        for word, item in self._masks.items():
            pattern = rf"(?<![A-Za-z0-9]){word}(?![A-Za-z0-9])"
            matches = list(re.finditer(pattern, target))
            if len(matches) != 1:
                return None
            spans.append((*matches[0].span(), item))
        items_by_forms = collections.defaultdict(list)
        for item in self._shown:
            items_by_forms[forms_of(item, self.flat.text)].append(item)
        for forms, items in items_by_forms.items():
            free = [
                span
                for span in spans_of(forms, target)
                if not any(start < span[1] and span[0] < end for start, end, _ in spans)
            ]
            if len(free) < len(items):
                return None
            spans += [(*span, item) for span, item in zip(free, items, strict=False)]
        return sorted(spans, key=lambda span: span[0])

    def chunks(self):
        """Yields the `Chunk` of the slice, in order; what has none stays as it is."""
        for result in self.results:
            if isinstance(result, Chunk):
                yield result
            else:
                yield from result.chunks()

    def all_jobs(self):
        """Yields the job and those that it was divided into."""
        yield self
        for result in self.results:
            if isinstance(result, Job):
                yield from result.all_jobs()


def forms_of(item, text):
    """Returns the forms in which an item may occur in a translation: a tuple of str."""
    source = text[item.start : item.end]
    if item.kind != TERM or not item.entry.target:
        return (" ".join(source.split()),)
    forms = item.entry.target
    if source[:1].isupper() and not item.entry.source[0][:1].isupper():
        forms = (*(form[:1].upper() + form[1:] for form in forms), *forms)
    return tuple(dict.fromkeys(forms))


def spans_of(forms, text):
    """Returns where forms occur as words, in their order, without overlaps."""
    matches = []
    for form in forms:
        for variant in {form, unicodedata.normalize("NFKC", form)}:
            matches += [match.span() for match in re.finditer(word_pattern(variant), text)]
    matches.sort(key=lambda span: (span[0], -span[1]))
    return without_overlaps(matches)


def split_position(flat, start, end):
    """Returns where a slice is best divided: after a clause, near its middle, and within no item.

    Returns:
        An int, or `None` if the slice is one character or one item.
    """
    items = flat.items_in(start, end)
    middle, size = (start + end) // 2, end - start

    def free(positions):
        positions = [position for position in positions if start < position < end]
        return [p for p in positions if not any(item.start < p < item.end for item in items)]

    for pattern in map(re.compile, _CLAUSES):
        ends = free(match.end() for match in pattern.finditer(flat.text, start, end))
        near = [position for position in ends if abs(position - middle) <= 0.35 * size]
        if near:
            return min(near, key=lambda position: abs(position - middle))
    # `ends` has the ends of words.
    positions = ends or free(range(start + 1, end))
    positions = [p for p in positions if not unicodedata.combining(flat.text[p])] or positions
    return min(positions, key=lambda position: abs(position - middle), default=None)
