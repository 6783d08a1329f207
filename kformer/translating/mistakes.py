"""Mistakes of a translation that show without a model: numbers, addresses, repetition, copies."""

import collections
import functools
import re
from typing import NamedTuple

import numpy as np

from kformer.data.corpora.languages import LanguageScores, base_code
from kformer.text.numerals import numbers_of
from kformer.text.protected import HIDDEN, protected, without_overlaps
from kformer.text.scripts import CHINESE_JAPANESE, is_of
from kformer.text.words import split_words
from kformer_options.installed import is_installed

# The probability of what is not there at all, such as a number.
_SURE = 0.95
_LEAST_NUMBER = 10
# The digits of a number whose groups may differ, such as that of a phone.
_LONG = 7
_LONG_NUMBER = re.compile(r"\d[\d ()/\u00a0-]*\d")
# What `protected` leaves to the model: /usr/bin, C:\\x.txt, example.org, @name.
_PATH = re.compile(
    r"(?<![\w./])(?:~|\.{1,2})?(?:/[\w.-]*\w){2,}|\b[A-Za-z]:(?:\\[\w.-]*\w)+|(?<![\w.@])@\w{2,}"
    r"|(?<![\w.@/-])(?:[A-Za-z0-9-]+\.)+(?:com|org|net|edu|gov|info)\b(?![.@\w])",
    re.ASCII,
)
# The words that a part repeats at least, and that a part has which comes again later. Chinese and
# Japanese words are single characters, which are often doubled.
_REPEATED, _REPEATED_CHARACTERS, _AGAIN = 2, 4, 5
# Repeated within a word, as where a language has no spaces.
_WITHIN = re.compile(r"(?=\S{,18}[^\W\d_])(\S{2,20}?)\1{3}")
# A copy has at least so many words in small letters, and this share of its words.
_COPIED_WORDS, _COPIED = 4, 0.75
# A language is certain from so many bytes on, and if it is so much likelier (as a logarithm).
_LEAST_BYTES, _LEAST_MARGIN = 40, 15.0


class Span(NamedTuple):
    """A part of a text that was left out of its translation, or of a translation without a source.

    Attributes:
        start, stop: int. Its characters.
        text: str.
        probability: float.
        kind: str. "words", "number", "address" (or a placeholder or code), "repetition", "copy" or
            "language".
    """

    start: int
    stop: int
    text: str
    probability: float
    kind: str = "words"


def find_mistakes(source, target, is_other_language=False, has_words=False):
    """Returns what of a source is not in its translation, and the other way round.

    Numbers below 10 do not count, and a number in words is as good as one in digits.

    Args:
        source, target: str.
        is_other_language: bool, default `False`. Whether the translation is in another language
            than it should be, by `are_in_other_language`.
        has_words: bool, default `False`. Whether the words for numbers of both languages are known,
            so that numbers in words count, too.

    Returns:
        Tuple of two lists of `Span`, of the source and of the translation.
    """
    numbers = numbers_of(source), numbers_of(target)
    missing = _unmatched(source, target, *numbers, has_words)
    added = _unmatched(target, source, *numbers[::-1], has_words)
    words, others = split_words(target), split_words(source)
    spans = word_spans(target, words)
    for start, stop in repetitions(words, others):
        added.append(_span(target, spans[start][0], spans[stop - 1][1], "repetition"))
    if _is_copy(words, others):
        added.append(_span(target, 0, len(target), "copy"))
    elif is_other_language:
        added.append(_span(target, 0, len(target), "language"))
    return missing, added


def word_spans(text, words):
    """Returns where words stand in their text: a list of pairs (start, stop)."""
    spans, position = [], 0
    for word in words:
        start = text.index(word, position)
        position = start + len(word)
        spans.append((start, position))
    return spans


def repetitions(words, source=()):
    """Returns the words that repeat what stands right before them, or a long part further back.

    Args:
        words: list of str.
        source: list of str, default `()`. Where the source repeats itself, a translation may.

    Returns:
        List of pairs (start, stop) of indices.
    """
    words, source = ([word.casefold() for word in side] for side in (words, source))
    found = _repetitions(words) or _within(words)
    return found if found and not (_repetitions(source) or _within(source)) else []


def _within(words):
    # Most words are too short.
    return [(i, i + 1) for i, w in enumerate(words) if len(w) > 7 and _WITHIN.search(w)]


def _repetitions(words):
    count, found, position = len(words), [], 0
    while position < count:
        for size in range(1, (count - position) // 2 + 1):
            stop = position + size
            # Both ends first: a long text would take long else.
            if words[stop] != words[position] or words[stop + size - 1] != words[stop - 1]:
                continue
            part = words[position:stop]
            while words[stop : stop + size] == part:
                stop += size
            is_characters = all(is_of(word[0], CHINESE_JAPANESE) for word in part)
            least = _REPEATED_CHARACTERS if is_characters else _REPEATED
            if stop - position - size >= least and any(map(str.isalnum, "".join(part))):
                found.append((position + size, stop))
                position = stop - 1
                break
        position += 1
    if found or any(is_of(word[0], CHINESE_JAPANESE) for word in words):
        return found
    places = {}
    for i in range(count - _AGAIN + 1):
        first = places.setdefault(tuple(words[i : i + _AGAIN]), i)
        if first + _AGAIN <= i:
            return [(i, i + _AGAIN)]
    return []


def _span(text, start, stop, kind):
    return Span(start, stop, text[start:stop], _SURE, kind)


def _unmatched(text, other, numbers, others, has_words):
    """The numbers, addresses and placeholders of a text that another has less often."""
    addresses = [(start, stop) for start, stop, kind in protected(text) if kind == HIDDEN]
    addresses = without_overlaps(sorted([*addresses, *(m.span() for m in _PATH.finditer(text))]))
    spans, counts = [], collections.Counter()
    for start, stop in addresses:
        address = text[start:stop]
        counts[address] += 1
        if counts[address] > other.count(address):
            spans.append(_span(text, start, stop, "address"))
    # The groups of a long number may differ.
    long = {digits for digits, _ in _long_numbers(other)}
    known = addresses + [span for digits, span in _long_numbers(text) if digits in long]
    counts = collections.Counter(value for each in others for value in each.values)
    for number in numbers:
        start, stop, values, _ = number
        if not _counts(number, text, has_words) or any(a <= start < b for a, b in known):
            continue
        value = max(values, key=counts.__getitem__)
        counts[value] -= 1
        if counts[value] < 0:
            spans.append(_span(text, start, stop, "number"))
    return spans


def _counts(number, text, has_words):
    """Whether a number must be in the translation, too."""
    if number.is_spelled:  # A hundred and a dozen are often not meant so.
        value = min(number.values)
        return has_words and value > 12 and str(value).strip("0") != "1"
    digits = "".join(filter(str.isdecimal, text[number.start : number.stop]))
    return max(number.values) >= _LEAST_NUMBER or len(digits.lstrip("0")) > 1


def _long_numbers(text):
    """Yields the digits and the span of what may be the number of a phone or an account."""
    for match in _LONG_NUMBER.finditer(text):
        digits = "".join(filter(str.isdecimal, match[0].replace("(0)", "")))
        if len(digits) >= _LONG:
            yield digits, match.span()


def _is_copy(words, source):
    if words == source and sum(is_of(word[0], CHINESE_JAPANESE) for word in words) > _COPIED_WORDS:
        return True
    source = {word.strip(".,;:!?") for word in source}
    words = [word for word in (word.strip(".,;:!?") for word in words) if word.isalpha()]
    copied = [word for word in words if word in source and word.islower() and len(word) > 1]
    return len(set(copied)) >= _COPIED_WORDS and len(copied) >= _COPIED * len(words)


def languages_of(sources, targets):
    """Returns the language that most of each side's texts are in: two codes, or `None` without
    py3langid.
    """
    if not is_installed("py3langid"):
        return None
    scores = _language_scores(())
    columns = (scores(side).argmax(axis=1) for side in (sources, targets))
    return [scores.languages[np.bincount(column).argmax()] for column in columns]


@functools.cache
def _language_scores(languages):
    return LanguageScores(languages)


def are_in_other_language(texts, code):
    """Returns which texts are in another language, as far as it is certain: a list of bool.

    Args:
        texts: list of str.
        code: str, the language that they should be in; or `None`, and nothing is certain.
    """
    code = code and base_code(code)
    if code is None or not is_installed("py3langid"):
        return [False] * len(texts)
    scores = _language_scores((code,))
    if code not in scores.languages:
        return [False] * len(texts)
    values = scores(texts)
    margins = values.max(axis=1) - values[:, scores.languages.index(code)]
    pairs = zip(texts, margins, strict=True)
    return [len(t.encode()) >= _LEAST_BYTES and bool(m > _LEAST_MARGIN) for t, m in pairs]
