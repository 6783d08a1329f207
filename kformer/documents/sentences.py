"""Splits text into sentences: `sentencex`, and exceptions of our own."""

import configparser
import functools
import itertools
import pathlib
import re

from kformer.documents.words import SPACELESS_SIGN, valid
from kformer_options.installed import check_extra

_ABBREVIATIONS = configparser.ConfigParser()
_ABBREVIATIONS.read(pathlib.Path(__file__).with_name("abbreviations.ini"), encoding="utf-8")
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
_END = re.compile(r"[.!?…][\"'”’»)]*\s+(?=[\"'„“«(¡¿]*([^\W\d_][\w'’]*))")
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
    """Returns where sentences end, with the white space after them: a list of int, the last is the
    length.

    Args:
        text, language: those of `split_sentences`.
    """
    if not text:
        return []
    check_extra("A document", "documents", ("sentencex",))
    import sentencex

    language = two_letters(language)
    chinese_ends = [match.end() for match in _CHINESE_END.finditer(text)]
    # A long text is divided before the splitter reads it.
    starts = [0]
    for end in chinese_ends:
        if end - starts[-1] >= _MOST_AT_ONCE:
            starts.append(end)
    ends = set(chinese_ends)
    for start, stop in itertools.pairwise([*starts, len(text)]):
        boundaries = sentencex.get_sentence_boundaries(language, valid(text[start:stop]))
        ends |= {start + boundary["end_index"] for boundary in boundaries}
    ends |= set(_missed(text, language))
    begin = len(text) - len(text.lstrip())
    ends = [end for end in sorted(ends) if begin < end < len(text)]
    return [*(end for end in ends if not _is_within(text, end, language)), len(text)]


def two_letters(code):
    """Returns the code of a language in two letters, if there is one: "de" for "deu_Latn"."""
    code = (code or "en").replace("-", "_").split("_")[0].lower()
    return _TWO_LETTERS.get(code, code)


def language_tag(code):
    """Returns the code of a language as on web pages: "de" for "deu_Latn", "zh-CN" for "zh_CN"."""
    first, *others = code.replace("_", "-").split("-")
    short = two_letters(first) if first != "yue" else first
    # What goes without saying: the script of most, and no country of mBART.
    return "-".join([short, *(part for part in others if part not in ("Latn", "XX"))])


_CODES = (
    "eng:en deu:de ger:de fra:fr fre:fr zho:zh chi:zh cmn:zh yue:zh spa:es ita:it por:pt nld:nl "
    "jpn:ja kor:ko rus:ru pol:pl ces:cs swe:sv dan:da fin:fi nob:nb tur:tr ara:ar hin:hi ukr:uk"
)
_TWO_LETTERS = dict(pair.split(":") for pair in _CODES.split())


@functools.lru_cache(maxsize=64)
def _words(table, language):
    words = _ABBREVIATIONS[table]
    return frozenset(f"{words.get('all', '')} {words.get(language, words['en'])}".split())


def _abbreviation(text):
    """Returns the abbreviation that a text ends with, without its last period and spaces."""
    match = _LAST_WORD.search(text.rstrip(), max(0, len(text) - 60))
    if not match or not match[0].endswith("."):
        return ""
    return re.sub(r"[ \u00a0]", "", match[0][:-1])


def _missed(text, language):
    """Yields ends that the splitter missed: after an abbreviation, before a word that begins a
    sentence.
    """
    for match in _END.finditer(text):
        word = re.split("['’]", match[1])[0]
        before = text[max(0, match.start() - _CONTEXT) : match.start() + 1]
        if not word[0].isupper():
            continue
        opened = before.rfind("(")
        is_apart = opened == 0 or before[:opened].rstrip()[-1:] in tuple(".!?")
        is_end = ")" in match[0] and opened >= 0 and is_apart
        short = _abbreviation(before[-80:])
        is_sure = short in _words("ending", language) and not text[match.end()].isalpha()
        is_sure = is_sure or (short in ("etc", "usw") and language != "de")
        is_start = word in _words("starters", language)
        if text[match.start()] == ".":
            is_start = is_sure or (is_start and _ends_sentence(before, language))
        if is_end or is_start:
            yield match.end()


def _ends_sentence(before, language):
    """Returns whether a period after an abbreviation, or another word, may end a sentence."""
    short = _abbreviation(before[-80:])
    # The abbreviation, and what follows a period in it.
    tails = [short, *(short[i + 1 :] for i, sign in enumerate(short) if sign == ".")]
    if not _words("ending", language).isdisjoint(tails):
        return True
    # Any other word: a sentence ends there, if it is neither an abbreviation nor an initial.
    last = tails[-1]
    return "." not in short and len(last) > 3 and last not in _words("before", language)


def _is_within(text, end, language):
    """Returns whether an end is within a sentence."""
    whole = text[max(0, end - _CONTEXT) : end]
    before, after = whole.rstrip(), text[end : end + _CONTEXT].lstrip()
    if "\n\n" in whole[len(before) :]:
        return False
    if language in ("zh", "ja") or SPACELESS_SIGN.match(before[-1:]):
        if _LATIN_INITIAL.search(before[-6:]):
            return True
        if before.endswith("."):
            return _is_abbreviated(before, after, "en")
        if before[-1:] in '”」』"' and before[-2:-1] in "。！？…":
            is_speech = not _OPENED_ZH.search(before[-200:]) and _SPEECH_ZH.match(after[:24])
            return bool(is_speech or _GOES_ON_ZH.match(after))
        return before.endswith("…") and after[:1] not in ("“", "「")
    if before.rstrip(_CLOSERS)[-1:] in "!?…" and _LOWER_AFTER.match(after):
        return True
    return before.endswith(".") and _is_abbreviated(before, after, language)


def _is_abbreviated(before, after, language):
    """Returns whether this full stop does not end a sentence (an abbreviation, for instance)."""
    next_word = re.match(r"[\"'„“«(]*([^\W_]*)", after)[1]
    short = _abbreviation(before[-80:])
    last = short.split(".")[-1].split("-")[-1]
    is_start = next_word in _words("starters", language)
    if is_start and _ends_sentence(before, language):
        return False
    if not _words("before", language).isdisjoint((short, last, short[:1].lower() + short[1:])):
        # "No." is also an answer.
        return next_word[:1].isdigit() or last not in _ALSO_WORDS
    if next_word[:1].islower():
        return True
    if _INITIALS.search(before[-20:]) and not is_start:
        return not (last == "I" and language == "en")
    is_ordinal = language in ("de", "da", "nb", "cs", "pl") and _ORDINAL.search(before[-6:])
    return bool(is_ordinal) and next_word in _GERMAN_DATE.split()
