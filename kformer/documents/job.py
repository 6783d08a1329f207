"""The translation of one sentence, or of a part of one, in as many attempts as it takes.

An attempt is a request to a model. Its answer is checked: what must be kept occurs, and nothing was
cut. Otherwise the next attempt asks for less:

1. Numbers and terms of the glossary are in the text, and the search is forced to write them.
2. Words such as "X1" stand for all that is kept.
3. What stands between the kept slices is translated alone, which cannot fail.

A sentence that is too long is translated in two parts, at a clause.
"""

import dataclasses
import re
import unicodedata

from kformer.documents.flattened import TERM
from kformer.documents.protected import HIDDEN
from kformer.documents.words import SPACELESS_SIGN, has_letters, tokens, valid, word_pattern

SHOWN, MASKED, APART = 0, 1, 2
_MORE_WORDS = 10
_CLAUSES = tuple(
    re.compile(pattern)
    for pattern in (
        r"[.!?…:;][\"'”’»)]*\s+|[。！？；：…]+[”’」』）]*",
        r",\s+|\s[–—-]\s|[，、]|[)\]）]\s?",
        r"\s(?=(?:and|or|but|because|which|that|und|oder|aber|weil|dass|et|ou|mais|que|qui)\s)",
        r"\s+",
    )
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
        kept: list of tuples of start, end and `Item`: slices of `target`, in their order.
    """

    start: int
    end: int
    source: str
    offsets: list
    target: str
    kept: list


class Job:
    """The translation of a slice.

    Args:
        flat: `Flattened`.
        start, end: int. The slice, which begins and ends with no white space.
        abilities: object with `forces(terms)`, whether a search can be told to write all of them.
        level: int, default 0. The first attempt.

    Attributes:
        request: `Request`, or `None` if there is nothing to translate.
        parts: list of `Job` and `Chunk`, which together are the slice, once `take` has been called.
        is_cut, is_kept: bool. Whether a part was lost because nothing shorter could be asked for;
            whether the source stands for a translation that is empty.
    """

    def __init__(self, flat, start, end, abilities, level=SHOWN):
        self.flat, self.start, self.end = flat, start, end
        self.abilities, self.level = abilities, level
        self.items = flat.items_in(start, end)
        self.parts, self.is_cut, self.is_kept = [], False, False
        self._masks, self._shown = {}, []
        self.request = self._request()

    def _request(self):
        if not has_letters(self._text_without_items()):
            self.parts = self._terms()
            return None
        masked = [item for item in self.items if self.level > SHOWN or item.kind == HIDDEN]
        shown = [item for item in self.items if item not in masked]
        wanted = self._wanted(masked, shown)
        if any(item.kind == TERM for item in shown) and not self._forces(wanted):
            masked = [item for item in self.items if item in masked or item.kind == TERM]
            shown = [item for item in shown if item.kind != TERM]
            wanted = self._wanted(masked, shown)
        self._masks = dict(zip(self._mask_words(len(masked)), masked, strict=True))
        self._shown = shown
        self.source, self.offsets = self._masked_text()
        return Request(valid(self.source), wanted if wanted and self._forces(wanted) else ())

    def _terms(self):
        """The terms of the glossary as chunks, which need no model."""
        return [
            Chunk(i.start, i.end, "X", [0] * (i.end - i.start) + [1], "X", [(0, 1, i)])
            for i in self.items
            if i.kind == TERM
        ]

    def _forces(self, terms):
        return self.abilities.forces(terms)

    def _text_without_items(self):
        text, position = "", self.start
        for item in self.items:
            text += self.flat.text[position : item.start]
            position = item.end
        return text + self.flat.text[position : self.end]

    def _wanted(self, masked, shown):
        words = [(word,) for word in self._mask_words(len(masked))]
        forms = [forms_of(item, self.flat.text) for item in shown]
        return tuple(dict.fromkeys([*words, *forms]))

    def _mask_words(self, count):
        letters = next(
            letter
            for letter in ("X", "Q", "Z", "XQ", "QX", "ZX", "XZQ", "QZXQ")
            if letter == "QZXQ" or letter not in self.flat.text
        )
        return [f"{letters}{number}" for number in range(1, count + 1)]

    def _masked_text(self):
        """What the model is given, and the offset of each position in it."""
        text, offsets = "", []
        word_at = {item.start: (word, item) for word, item in self._masks.items()}
        position = self.start
        while position < self.end:
            if position in word_at:
                word, item = word_at[position]
                offsets += [len(text)] * (item.end - item.start)
                text += word
                position = item.end
                continue
            sign = self.flat.text[position]
            offsets.append(len(text))
            if not sign.isspace():
                text += sign
            elif not text.endswith(" "):
                text += " "
            position += 1
        return text, [*offsets, len(text)]

    def take(self, answer):
        """Takes the answer to the request.

        Args:
            answer: `Answer`.

        Returns:
            List of `Job`, what is to be asked now.
        """
        if answer.is_cut or answer.is_at_limit:
            middle = split_position(self.flat, self.start, self.end)
            if middle is not None and (answer.is_cut or not self._is_in_word(middle)):
                return self._go_on([(self.start, middle), (middle, self.end)], self.level)
            self.is_cut = True
        if not answer.text.strip():
            if self.items:
                return self._apart()
            self.is_kept = True
            return []
        kept = self._kept(answer.text)
        if kept is not None:
            chunk = Chunk(self.start, self.end, self.source, self.offsets, answer.text, kept)
            self.parts = [chunk]
            return []
        if self.level == SHOWN and len(self._masks) < len(self.items):
            return self._go_on([(self.start, self.end)], MASKED)
        return self._apart()

    def _is_in_word(self, position):
        """Parts of a word are translated to what it does not mean, so none is parted in vain."""
        sign = self.flat.text[position - 1]
        return sign.isalnum() and not SPACELESS_SIGN.match(sign)

    def _go_on(self, slices, level):
        slices = [self.flat.trimmed(start, end) for start, end in slices]
        slices = [each for each in slices if each[0] < each[1]]
        jobs = [Job(self.flat, *each, self.abilities, level) for each in slices]
        self.parts = jobs
        return [job for job in jobs if job.request is not None]

    def _apart(self):
        """What stands between the items, one by one."""
        slices, position = [], self.start
        for item in [*self.items, None]:
            end = self.end if item is None else item.start
            slices.append(self.flat.trimmed(position, end))
            if item is not None:
                position = item.end
        jobs = [Job(self.flat, a, b, self.abilities, APART) for a, b in slices if a < b]
        self.parts = sorted([*jobs, *self._terms()], key=lambda part: part.start)
        return [job for job in jobs if job.request is not None]

    def _kept(self, target):
        """The slices of a translation that the items have; `None` if one is missing."""
        found = []
        if self._masks and len(tokens(target)) > 2 * len(tokens(self.source)) + _MORE_WORDS:
            return None  # The model has lost its way at a word that it does not know.
        for word, item in self._masks.items():
            pattern = rf"(?<![A-Za-z0-9]){word}(?![A-Za-z0-9])"
            matches = list(re.finditer(pattern, target))
            if len(matches) != 1:
                return None
            found.append((*matches[0].span(), item))
        texts = {}
        for item in self._shown:
            texts.setdefault(forms_of(item, self.flat.text), []).append(item)
        for forms, items in texts.items():
            taken = [span[:2] for span in found]
            spans = [
                (start, end)
                for start, end in spans_of(forms, target)
                if not any(a < end and start < b for a, b in taken)
            ]
            if len(spans) < len(items):
                return None
            found += [(*span, item) for span, item in zip(spans, items, strict=False)]
        return sorted(found, key=lambda each: each[0])

    def chunks(self):
        """The `Chunk` of the slice, in order; what has none stays as it is."""
        for part in self.parts:
            if isinstance(part, Chunk):
                yield part
            else:
                yield from part.chunks()

    def all_jobs(self):
        """The job and those that it was divided into."""
        yield self
        for part in self.parts:
            if isinstance(part, Job):
                yield from part.all_jobs()


def forms_of(item, text):
    """The forms in which an item may occur in a translation: a tuple of str."""
    found = text[item.start : item.end]
    if item.kind != TERM or not item.entry.target:
        return (" ".join(found.split()),)
    forms = item.entry.target
    if found[:1].isupper() and not item.entry.source[0][:1].isupper():
        forms = (*(form[:1].upper() + form[1:] for form in forms), *forms)
    return tuple(dict.fromkeys(forms))


def spans_of(forms, text):
    """Where forms occur as words, in their order, without overlaps."""
    found = []
    for form in forms:
        for each in {form, unicodedata.normalize("NFKC", form)}:
            found += [match.span() for match in re.finditer(word_pattern(each), text)]
    found.sort(key=lambda span: (span[0], -span[1]))
    kept = []
    for span in found:
        if not kept or span[0] >= kept[-1][1]:
            kept.append(span)
    return kept


def split_position(flat, start, end):
    """Where a slice is best parted: after a clause, near its middle, and within no item.

    Returns:
        An int, or `None` if the slice is one character or one item.
    """
    items = flat.items_in(start, end)
    middle, size = (start + end) // 2, end - start

    def is_free(position):
        return start < position < end and not any(i.start < position < i.end for i in items)

    for pattern in _CLAUSES:
        found = [m.end() for m in pattern.finditer(flat.text, start, end) if is_free(m.end())]
        near = [position for position in found if abs(position - middle) <= 0.35 * size]
        if near:
            return min(near, key=lambda position: abs(position - middle))
    found = [m.end() for m in _CLAUSES[-1].finditer(flat.text, start, end) if is_free(m.end())]
    found = found or [position for position in range(start + 1, end) if is_free(position)]
    found = [p for p in found if not unicodedata.combining(flat.text[p])] or found
    return min(found, key=lambda position: abs(position - middle), default=None)
