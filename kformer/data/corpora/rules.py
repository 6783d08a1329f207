"""The rules by which pairs are repaired and left out, in the order in which they apply.

What each leaves out, which share of 10,000 clean pairs it loses (of Multi30k English-German and
Tatoeba English-Chinese), and CPU seconds per million pairs (`benchmarks/corpora.py rules`):

| rule | leaves out a pair | lost | s |
|---|---|---|---|
| `mojibake` | with a lost character (U+FFFD), after repairs by ftfy | 0; 0 | 15 |
| `html` | none; it strips HTML's elements and entities | 0; 0 | 1 |
| `empty` | with an empty side | 0; 0 | 1 |
| `too_long` | with a side of over 1,000 characters, or a word of over 100 | 0; 0 | 1 |
| `overlap` | that stands in a validation set, or a side of four words or more does | 1; 1 | 8 |
| `identical` | whose sides have the same letters | 0; 0 | 5 |
| `letters` | with a side of which under half are letters, or most is a link | 1; 1 | 3 |
| `length_ratio` | with a side over twice as long (characters + 8; a Chinese one is 3) | 2; 12 | 2 |
| `script` | with a side in another script (Latin letters count a quarter) | 0; 0 | 2 |
| `language` | with a side of four words or more in another language (py3langid) | 0; 0 | 32 |
| `untranslated` | with a fourth of the target word for word in the source | 0; 0 | 21 |
| `repetition` | with a side that says the same again and again | 0; 0 | 29 |
| `numbers` | with numbers from 10 on that differ | 0; 3 | 9 |
| `duplicates` | that stood there before | 0; 9 | 6 |
| `near_duplicates` | whose letters stood there before | 1; 18 | 6 |
| `alignment` | whose words or lengths do not fit each other (`AlignmentScores`) | 34; 118 | 650 |
"""

import collections
import functools
import html
import re

import numpy as np

from kformer.data.corpora.characters import (
    LETTER,
    NO_LETTER,
    SPACE,
    class_counts,
    class_weights,
    script_class,
)
from kformer.data.corpora.languages import LanguageScores, base_code, scripts_of
from kformer.data.corpora.seen import hash_bytes, letters
from kformer.text.words import split_words
from kformer_options.installed import check_extra

# The first two repair, and `mojibake` leaves out what it cannot; the others leave out. The
# duplicates come after what looks at one pair alone: a near duplicate of a pair that is left out is
# no duplicate.
RULES = (
    *("mojibake", "html", "empty", "too_long", "overlap", "identical", "letters", "length_ratio"),
    *("script", "language", "untranslated", "repetition", "numbers"),
    *("duplicates", "near_duplicates", "alignment"),
)
LEVELS = {
    "none": (),
    "usual": tuple(rule for rule in RULES if rule not in ("numbers", "alignment")),
    "strict": RULES,
}
# The package that a rule needs.
_PACKAGES = {"mojibake": "ftfy", "language": "py3langid"}

# The longest text, and the longest word of a language that writes spaces, in characters.
_LONGEST, _LONGEST_WORD = 1000, 100
_UNSPACED = r"\u0e00-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef"
_LONG_WORD = re.compile(rf"[^\s{_UNSPACED}]{{{_LONGEST_WORD + 1}}}")
# The longest text that is repaired: a pattern may look at all that follows, again and again.
_LONGEST_REPAIRED = 10_000
# The fewest words of a text that says something by itself, and whose language shows.
_FEWEST_WORDS = 4
# How many times as many characters the longer side may have, both with so many more.
_RATIO, _MORE_CHARACTERS = 2, 8
# The fewest words that are copied in one go, and the fewest of a side that repeats itself.
_FEWEST_COPIED, _FEWEST_REPEATED = 4, 6
# By how much another language must be more likely: a difference of logarithms.
_LANGUAGE_MARGIN = 10
# The lowest score of `kformer.data.word_alignment.AlignmentScores` that the rule `alignment` takes.
LOWEST_SCORE = -0.3

_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});")
# Elements of HTML alone: "<file>" and "<name>" stand for words.
_HIDDEN = re.compile(r"(?is)<(script|style)\b[^<>]*>.*?</\1\s*>|<!--.*?-->")
_INLINE = "a abbr b big cite code em font i kbd mark q s small span strike strong sub sup tt u var"
_BLOCK = (
    "address article aside blockquote body br button center dd div dl dt footer form h1 h2 h3 h4 "
    "h5 h6 head header hr html iframe img input label li link main meta nav ol option p pre "
    "section select table tbody td textarea tfoot th thead title tr ul"
)


def _tags(names):
    # Without "=" they are no attributes: "a <b and c> d".
    return re.compile(rf"(?i)</?(?:{'|'.join(names.split())})(?:\s[^<>=]*=[^<>]*)?\s*/?>")


_INLINE_TAG, _BLOCK_TAG = _tags(_INLINE), _tags(_BLOCK)
# Elements that stand for words, too, if nothing closes them: "git fetch <option>".
_PLACEHOLDER = re.compile(
    r"(?i)<(address|article|body|button|code|footer|form|head|header|input|label|link|main|menu"
    r"|meta|option|section|select|small|table|time|title|var)>(?!.*</\1\s*>)"
)
_LINK = re.compile(r"\w+://\S+|www\.\S+")
_GROUPS = re.compile(r"(?<=\d)[.,'’\s](?=\d{3}(?!\d))")
_NUMBER = re.compile(r"\d{2,100}")


def check_packages(rules, what):
    """Checks that the packages that rules need are installed.

    Args:
        rules: iterable of str.
        what: str. What has the rules: the subject of the message.

    Raises:
        ImportError: one is not.
    """
    if packages := tuple(_PACKAGES[rule] for rule in rules if rule in _PACKAGES):
        check_extra(what, "corpora", packages)


class Cleaner:
    """Repairs pairs of one direction, and finds those that a rule leaves out.

    It looks at each pair by itself: the rules `duplicates` and `near_duplicates` are for `Seen`,
    and `alignment` for `AlignmentScores`.

    Args:
        rules: collection of str, of `RULES`. Others than the cleaner's own are ignored.
        languages: tuple of two str. The codes of the source and the target language.
        excluded: iterable of str, default empty. Sentences of either language that no pair may
            have: the rule `overlap`.

    Attributes:
        unknown: list of the codes, of `languages`, that the rule `language` was asked for and does
            not know. It lets their texts pass.

    Call arguments:
        sources, targets: lists of str of one length N.

    Returns:
        Tuple (sources, targets, reasons, repairs): the texts as they were repaired; int8 array
        `[N]`, the index in `RULES` of the first rule that leaves a pair out, or -1; and a dict of
        the rules that repair, each with a bool array `[N]`, true where it changed a text.
    """

    def __init__(self, rules, languages, excluded=()):
        self._rules = [rule for rule in RULES if rule in rules]
        self._languages = languages
        self._excluded = np.zeros(0, "uint64")
        if "overlap" in rules and excluded:
            self._excluded = np.unique(hash_bytes(letters(list(excluded))))
        self.unknown = []
        if "language" in rules:
            self._scores = LanguageScores(languages)
            self.unknown = [code for code in languages if not self._is_known(code)]

    def __call__(self, sources, targets):
        sides, repairs = [sources, targets], {}
        for rule, repair in (("mojibake", _without_mojibake), ("html", _without_html)):
            if rule in self._rules:
                repaired = [
                    [repair(text) if len(text) <= _LONGEST_REPAIRED else text for text in texts]
                    for texts in sides
                ]
                changes = [_differences(*texts) for texts in zip(sides, repaired, strict=True)]
                repairs[rule], sides = changes[0] | changes[1], repaired
        reasons = np.full(len(sources), -1, "int8")
        remaining = np.arange(len(sources))
        pairs = _Pairs(*sides)
        for rule in self._rules:
            if (faults := getattr(self, f"_{rule}", None)) is None or not len(remaining):
                continue
            is_faulty = faults(pairs)
            reasons[remaining[is_faulty]] = RULES.index(rule)
            remaining = remaining[~is_faulty]
            pairs = pairs[~is_faulty]
        return *sides, reasons, repairs

    def _mojibake(self, pairs):
        """A character was lost before."""
        return np.array(["\ufffd" in a or "\ufffd" in b for a, b in pairs], bool)

    def _empty(self, pairs):
        return np.array([not (a.strip() and b.strip()) for a, b in pairs], bool)

    def _too_long(self, pairs):
        return np.array([_is_too_long(a) or _is_too_long(b) for a, b in pairs], bool)

    def _overlap(self, pairs):
        """A side of four words or more is excluded, or both sides are."""
        first, second = (np.isin(hash_bytes(side.letters), self._excluded) for side in pairs.sides)
        long_first, long_second = (side.num_words >= _FEWEST_WORDS for side in pairs.sides)
        return (first & (second | long_first)) | (second & long_second)

    def _identical(self, pairs):
        return ~_differences(*(side.letters for side in pairs.sides))

    def _letters(self, pairs):
        """Under half of a side are letters. Those of links do not count."""
        is_faulty = np.array([_is_link(a) or _is_link(b) for a, b in pairs], bool)
        for side in pairs.sides:
            is_faulty |= side.weights[:, LETTER:].sum(axis=1) < side.weights[:, NO_LETTER]
        return is_faulty

    def _length_ratio(self, pairs):
        lengths = [side.weights.sum(axis=1) + _MORE_CHARACTERS for side in pairs.sides]
        return np.maximum(*lengths) > _RATIO * np.minimum(*lengths)

    def _script(self, pairs):
        """More of a side's letters are of other scripts than of its language's.

        Latin ones count a quarter: names and commands are written in them in all languages.
        """
        is_faulty = np.zeros(len(pairs), bool)
        for side, code in zip(pairs.sides, self._languages, strict=True):
            if scripts := scripts_of(code):
                weights = side.weights * 4
                weights[:, script_class("LATIN")] //= 1 if "LATIN" in scripts else 4
                classes = [script_class(script) for script in scripts]
                totals = weights[:, LETTER:].sum(axis=1)
                is_faulty |= weights[:, classes].sum(axis=1) * 2 < totals
        return is_faulty

    def _language(self, pairs):
        """A side of four words or more is more likely in another language."""
        is_faulty = np.zeros(len(pairs), bool)
        for side, code in zip(pairs.sides, self._languages, strict=True):
            if code not in self.unknown:
                rows = np.flatnonzero((side.num_words >= _FEWEST_WORDS) & ~is_faulty)
                scores = self._scores([side.texts[row] for row in rows])
                language = scores[:, self._scores.languages.index(base_code(code))]
                is_faulty[rows] = scores.max(axis=1, initial=-np.inf) > language + _LANGUAGE_MARGIN
        return is_faulty

    def _is_known(self, code):
        """Whether the model knows a language. One with a script is known in that script alone."""
        scripts = scripts_of(base_code(code))
        is_usual = scripts in ((), scripts_of(code))
        return base_code(code) in self._scores.languages and is_usual

    def _untranslated(self, pairs):
        """A fourth of the target's characters are in words that the source has in the same order,
        four or more in a row. Names, which begin with capitals, do not count.
        """
        words = zip(*(side.words for side in pairs.sides), strict=True)
        copied = np.array([_copied_characters(*each) for each in words], int)
        return 4 * copied >= np.maximum(pairs.sides[1].weights.sum(axis=1), 1)

    def _repetition(self, pairs):
        """At most half of one side's words are different ones, and the other side's are."""
        first, second = (np.array(list(map(_repeats, side.words)), bool) for side in pairs.sides)
        return first != second

    def _numbers(self, pairs):
        """Either side has a number from 10 on that the other lacks, or one has a long number."""
        return np.array([_have_other_numbers(a, b) for a, b in pairs], bool)


class _Side:
    """The texts of one side, and what several rules look at."""

    def __init__(self, texts):
        self.texts = texts

    @functools.cached_property
    def counts(self):
        return class_counts(self.texts)

    @functools.cached_property
    def weights(self):
        """The counts, where a Chinese character counts as the three letters that it replaces."""
        return self.counts * class_weights()

    @functools.cached_property
    def num_words(self):
        """Spaces and one more. Languages without spaces have about two characters to a word."""
        unspaced = ("CJK", "HIRAGANA", "KATAKANA", "KHMER", "LAO", "MYANMAR", "THAI", "TIBETAN")
        classes = [script_class(script) for script in unspaced]
        return self.counts[:, SPACE] + 1 + self.counts[:, classes].sum(axis=1) // 2

    @functools.cached_property
    def words(self):
        return [split_words(text) for text in self.texts]

    @functools.cached_property
    def letters(self):
        return letters(self.texts)

    def __getitem__(self, selection):
        side = _Side([self.texts[row] for row in np.flatnonzero(selection)])
        for name in self.__dict__.keys() - {"texts"}:
            value = getattr(self, name)
            if isinstance(value, list):
                value = [value[row] for row in np.flatnonzero(selection)]
            else:
                value = value[selection]
            side.__dict__[name] = value
        return side


class _Pairs:
    """Pairs of texts: what a rule looks at."""

    def __init__(self, sources, targets):
        self.sides = (_Side(sources), _Side(targets))

    def __len__(self):
        return len(self.sides[0].texts)

    def __iter__(self):
        return zip(*(side.texts for side in self.sides), strict=True)

    def __getitem__(self, selection):
        pairs = _Pairs([], [])
        pairs.sides = tuple(side[selection] for side in self.sides)
        return pairs


def _differences(texts, others):
    """Where two lists differ."""
    return np.array([a != b for a, b in zip(texts, others, strict=True)], bool)


def _without_mojibake(text):
    if text.isascii() and text.isprintable():
        return text
    from ftfy import fix_encoding
    from ftfy.fixes import remove_control_chars

    repaired = fix_encoding(text)
    if text == repaired == remove_control_chars(repaired):
        return text
    # A repair may bring characters that break lines; others, such as U+000B, separate words.
    return " ".join(remove_control_chars(re.sub(r"\s", " ", repaired)).split())


def _without_html(text):
    plain = text
    for _ in range(3):  # "&amp;lt;b&amp;gt;" is a tag, too.
        if "&" not in plain or (unescaped := _ENTITY.sub(_character, plain)) == plain:
            break
        plain = unescaped
    if "<" in plain:
        plain = _HIDDEN.sub(" ", plain)
        words = {match[0] for match in _PLACEHOLDER.finditer(plain)}
        for tag, space in ((_INLINE_TAG, ""), (_BLOCK_TAG, " ")):
            plain = tag.sub(lambda match, s=space: match[0] if match[0] in words else s, plain)
    return text if plain == text else " ".join(plain.split())


def _character(match):
    return html.unescape(match[0])


def _is_too_long(text):
    return len(text) > _LONGEST or (
        len(text) > _LONGEST_WORD and _LONG_WORD.search(text) is not None
    )


def _is_link(text):
    """Whether most of a text is links."""
    if "://" not in text and "www." not in text:
        return False
    return 2 * sum(map(len, _LINK.findall(text))) > len(text)


def _copied_characters(words, others):
    runs, others_runs = (
        zip(*(side[i:] for i in range(_FEWEST_COPIED)), strict=False) for side in (words, others)
    )
    runs = set(runs)
    starts = [start for start, run in enumerate(others_runs) if run in runs]
    copied = {start + i for start in starts for i in range(_FEWEST_COPIED)}
    found = (others[i] for i in copied)
    return sum(len(word) for word in found if word[0].isalpha() and not word[0].isupper())


def _repeats(words):
    return len(words) >= _FEWEST_REPEATED and 2 * len({*map(str.casefold, words)}) <= len(words)


def _have_other_numbers(source, target):
    first, second = (
        collections.Counter(map(int, _NUMBER.findall(_GROUPS.sub("", text))))
        for text in (source, target)
    )
    if first == second:
        return False
    differences = [
        [number for number in difference if number >= 10]
        for difference in (first - second, second - first)
    ]
    # The other side may have it in words: "ten", "six hundred".
    is_long = any(number > 100 and number % 100 for numbers in differences for number in numbers)
    return all(differences) or is_long
