"""Splits text into sentences: `sentencex`, and exceptions of our own."""

import functools
import re

from kformer.documents.abbreviations import BEFORE, ENDING, STARTERS
from kformer.documents.words import SPACELESS_SIGN, valid

# So many characters around an end are looked at.
_CONTEXT = 400
# The splitter's time grows with the square of a text without spaces.
_MOST_AT_ONCE = 4000
_CLOSERS = "\"'”’»›)]}」』）】》"
_LAST_WORD = re.compile(
    r"(?:(?<![^\W\d_])[A-Za-zÀ-ʯ]{1,2}\.[- \u00a0]?){0,4}[A-Za-zÀ-ʯ\u0370-\u052f]*°?\.?$"
)
# "J.", "J.-P." and "Ph." before a name; "I." and a lone letter in a list are none.
_INITIALS = re.compile(r"(?:^|[\s(\"'«“„‚])(?:[^\W\d_a-z]\.[- ]?){1,4}$")
_LATIN_INITIAL = re.compile(r"(?:^|[^A-Za-z])[A-Z]\.$")
_ORDINAL = re.compile(r"(?:^|[\s(])\d{1,2}\.$")
# Words that look like their abbreviation, which stands before a number.
_ALSO_WORDS = ("No", "no", "So", "Art", "Min", "min", "Do", "Mi")
_GERMAN_DATE = (
    "Januar Jänner Februar März April Mai Juni Juli August September Oktober November Dezember "
    "Jahrhundert Jahrhunderts Klasse Stock Etage Platz Kapitel Mal Geburtstag Jahrestag Woche Tag "
    "FC Jan Feb Mär Apr Aug Sept Sep Okt Nov Dez Bezirk Liga Runde Weltkrieg Auflage"
)
# After a quotation that ends, the sentence goes on with who says so.
_SPEECH_ZH = re.compile(
    r"[，、；：\s]*(?:[\u4e00-\u9fff]{1,6}?|[A-Z][\w. ]{1,20}?)?(?:说|问|道|喊|叫|答|笑)"
)
_GOES_ON_ZH = re.compile(r"[，、；：]|然后|就|便|接着|于是|随后")
_OPENED_ZH = re.compile(r"[：:，,]\s*[“「『\"][^“”「」『』\"]*[”」』\"]$")
_CHINESE_END = re.compile(r"[。！？][”’」』）】》]*(?=[^。！？”’」』）】》，、；：])")
_LOWER_AFTER = re.compile(r"[\s\u2013\u2014-]*(?:\W\s*)?[a-zà-öø-ÿœ]")


def split_sentences(text, language="en"):
    """Splits a text into sentences.

    Nothing of the text is lost: the sentences, joined, are the text, and each has the white space
    after it.

    Args:
        text: str.
        language: str, default `"en"`. The code of its language, such as `"de"` or `"zh"`.

    Returns:
        List of str.

    Raises:
        ImportError: the package `sentencex` is not installed.

    Example:
    ```python
    from kformer.documents import split_sentences

    split_sentences("Dr. Smith came at 5 p.m. He left at 6.")
    # ['Dr. Smith came at 5 p.m. ', 'He left at 6.']
    ```
    """
    ends = sentence_ends(text, language)
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def sentence_ends(text, language="en"):
    """Where sentences end, with the white space after them: a list of int, the last is the length.

    Args:
        text, language: those of `split_sentences`.
    """
    if not text:
        return []
    language = two_letters(language)
    found, start = set(), 0
    for stop in [*_cuts(text), len(text)]:
        found |= {start + b["end_index"] for b in _boundaries(language, text[start:stop])}
        start = stop
    found |= _missed(text, language)
    begin = len(text) - len(text.lstrip())
    ends = [end for end in sorted(found) if begin < end < len(text)]
    kept = [end for end in ends if not _is_within(text, end, language)]
    return [*kept, len(text)]


def two_letters(code):
    """The code of a language in two letters where there is one: "de" for "de_DE" or "deu_Latn"."""
    code = (code or "en").replace("-", "_").split("_")[0].lower()
    return _TWO_LETTERS.get(code, code)


def language_tag(code):
    """The code of a language as web pages have it: "de" for "deu_Latn", "zh-CN" for "zh_CN"."""
    first, *others = code.replace("_", "-").split("-")
    short = two_letters(first) if first != "yue" else first
    # What goes without saying: the script of most, and no country of mBART.
    return "-".join([short, *(part for part in others if part not in ("Latn", "XX"))])


_TWO_LETTERS = dict(
    pair.split(":")
    for pair in (
        "eng:en deu:de ger:de fra:fr fre:fr zho:zh chi:zh cmn:zh yue:zh spa:es ita:it por:pt "
        "nld:nl jpn:ja kor:ko rus:ru pol:pl ces:cs swe:sv dan:da fin:fi nob:nb tur:tr ara:ar "
        "hin:hi ukr:uk"
    ).split()
)


def _cuts(text):
    """Where a long text is parted before the splitter reads it."""
    start = 0
    for match in _CHINESE_END.finditer(text):
        if match.end() - start >= _MOST_AT_ONCE:
            start = match.end()
            yield start


def _boundaries(language, text):
    try:
        import sentencex
    except ImportError as error:
        raise ImportError(
            "Documents are split into sentences by sentencex: run `pip install "
            '"kformer[documents]"`.'
        ) from error
    return sentencex.get_sentence_boundaries(language, valid(text))


@functools.lru_cache(maxsize=64)
def _words(table, language):
    tables = {"before": BEFORE, "ending": ENDING, "starters": STARTERS}
    return frozenset(tables[table].get(language, tables[table]["en"]).split())


def _abbreviation(text):
    """The abbreviation that a text ends with, without its last period and spaces."""
    found = _LAST_WORD.search(text.rstrip(), max(0, len(text) - 60))
    if not found or not found[0].endswith("."):
        return ""
    return re.sub(r"[ \u00a0]", "", found[0][:-1])


def _missed(text, language):
    """Ends that the splitter missed: behind an abbreviation, before what begins a sentence."""
    found = set()
    for match in re.finditer(r"[.!?…][\"'”’»)]*\s+(?=[\"'„“«(¡¿]*([^\W\d_][\w'’]*))", text):
        word = re.split("['’]", match[1])[0]
        before = text[max(0, match.start() - _CONTEXT) : match.start() + 1]
        if not word[0].isupper():
            continue
        opened = before.rfind("(")
        is_apart = opened == 0 or before[:opened].rstrip()[-1:] in tuple(".!?")
        if ")" in match[0] and opened >= 0 and is_apart:
            found.add(match.end())
        short = _abbreviation(before[-80:])
        is_sure = short in _words("ending", language) and not text[match.end()].isalpha()
        if short in ("etc", "usw") and language != "de":
            is_sure = True
        if is_sure and text[match.start()] == ".":
            found.add(match.end())
        if word not in _words("starters", language):
            continue
        if text[match.start()] != "." or _ends_sentence(before, language):
            found.add(match.end())
    found |= {match.end() for match in _CHINESE_END.finditer(text)}
    return found


def _ends_sentence(before, language):
    short = _abbreviation(before[-80:])
    tails = {short, short.split(".")[-1]} | {short[i:] for i in range(len(short))}
    ending = _words("ending", language)
    if any(tail in ending for tail in tails if short == tail or short.endswith("." + tail)):
        return True
    # Any other word: a sentence ends there, if it is neither an abbreviation nor an initial.
    last = short.split(".")[-1]
    return "." not in short and len(last) > 3 and last not in _words("before", language)


def _is_within(text, end, language):
    """Whether an end that was found stands within a sentence."""
    whole = text[max(0, end - _CONTEXT) : end]
    before, after = whole.rstrip(), text[end : end + _CONTEXT].lstrip()
    if "\n\n" in whole[len(before) :]:
        return False
    mark = before.rstrip(_CLOSERS)[-1:]
    if language in ("zh", "ja") or SPACELESS_SIGN.match(before[-1:]):
        return _is_within_chinese(before, after)
    if mark in "!?…" and _LOWER_AFTER.match(after) and not SPACELESS_SIGN.match(mark):
        return True
    if not before.endswith("."):
        return False
    return _is_abbreviated(before, after, language)


def _is_within_chinese(before, after):
    if _LATIN_INITIAL.search(before[-6:]):
        return True
    if before.endswith("."):
        return _is_abbreviated(before, after, "en")
    if before[-1:] in '”」』"' and before[-2:-1] in "。！？…":
        if _OPENED_ZH.search(before[-200:]):
            return bool(_GOES_ON_ZH.match(after))
        return bool(_SPEECH_ZH.match(after[:24]) or _GOES_ON_ZH.match(after))
    return before.endswith("…") and after[:1] not in ("“", "「") and not before.endswith("。")


def _is_abbreviated(before, after, language):
    """Whether the period that a text ends with belongs to an abbreviation, and what follows to the
    same sentence.
    """
    next_word = re.match(r"[\"'„“«(]*([^\W_]*)", after)[1]
    short = _abbreviation(before[-80:])
    last = short.split(".")[-1].split("-")[-1]
    if next_word in _words("starters", language) and _ends_sentence(before, language):
        return False
    known = _words("before", language)
    if {short, last, short[:1].lower() + short[1:]} & known:
        # "No." is also an answer.
        return next_word[:1].isdigit() or last not in _ALSO_WORDS
    if next_word[:1].islower():
        return True
    if _INITIALS.search(before[-20:]) and next_word not in _words("starters", language):
        return not (last == "I" and language == "en")
    if language in ("de", "da", "nb", "cs", "pl") and _ORDINAL.search(before[-6:]):
        return next_word in _GERMAN_DATE.split() or next_word[:1].islower()
    return False
