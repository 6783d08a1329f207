"""The numbers of a text, in digits, and how some languages write them in words."""

import functools
import re
from typing import NamedTuple

# Groups of three digits after spaces, or digits with signs between them: 1 000, 1,000.50, 7:30.
_NUMBER = re.compile(
    r"(?<!\d)\d{1,3}(?: \d{3})+(?!\d)|\d+(?:[.,:'’\u00a0\u202f]\d+)*",
)
# Python reads 4,300 digits at most, and a word of scale adds twelve.
_MOST_DIGITS = 4000
# Words that multiply the number before them: the exponents of ten that they may stand for.
_SCALES = {
    "thousand": (3,),
    "tausend": (3,),
    "mille": (3,),
    "mil": (3,),
    "million": (6,),
    "millions": (6,),
    "millionen": (6,),
    "millón": (6,),
    "millones": (6,),
    "milliarde": (9,),
    "milliarden": (9,),
    "milliard": (9,),
    "milliards": (9,),
    "billion": (9, 12),
    "billions": (9, 12),
    "billionen": (12,),
    "千": (3,),
    "万": (4,),
    "萬": (4,),
    "亿": (8,),
    "億": (8,),
}
_SCALE = re.compile(rf"\s?({'|'.join(sorted(_SCALES, key=len, reverse=True))})(?![a-zé])", re.I)

_ENGLISH = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
).split()
_ENGLISH_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_GERMAN = (
    "ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn "
    "sechzehn siebzehn achtzehn neunzehn"
).split()
_GERMAN_TENS = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()
_FRENCH = (
    "un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize "
    "dix-sept dix-huit dix-neuf"
).split()
_FRENCH_TENS = "vingt trente quarante cinquante soixante soixante quatre-vingt quatre-vingt".split()
_SPANISH = (
    "uno dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce quince dieciséis "
    "diecisiete dieciocho diecinueve"
).split()
_SPANISH_TENS = "veinte treinta cuarenta cincuenta sesenta setenta ochenta noventa".split()
_CHINESE = "零一二三四五六七八九"
_DOZEN = ("dozen", "dutzend", "douzaine", "docena", "一打")


class Number(NamedTuple):
    """A number in a text.

    Attributes:
        start, stop: int. Its characters.
        values: frozenset of int. What it may stand for: its digits without the signs between them,
            which languages use differently, and with a word behind it the product.
    """

    start: int
    stop: int
    values: frozenset


def numbers_of(text):
    """Returns the numbers of a text that are written in digits: a list of `Number`."""
    numbers = []
    for match in _NUMBER.finditer(text):
        values = {int("".join(filter(str.isdecimal, match[0]))[:_MOST_DIGITS])}
        if scale := _SCALE.match(text, match.end()):
            parts = re.split(r"[.,]", match[0])
            decimals = len(parts[-1]) if len(parts) == 2 and len(parts[-1]) < 3 else 0
            exponents = _SCALES[scale[1].lower()]
            values |= {max(values) * 10 ** (exponent - decimals) for exponent in exponents}
        numbers.append(Number(*match.span(), frozenset(values)))
    return numbers


def is_spelled(value, text):
    """Returns whether a text has a number in words.

    Args:
        value: int.
        text: str in lower case.
    """
    for form in spelled(value):
        position = text.find(form)
        while position >= 0:
            before, after = text[:position][-1:], text[position + len(form) :][:1]
            # A long word may begin another one, as in "fünfzigjährige".
            is_open = len(form) > 4 or not after.isalpha()
            if not form.isascii() and form[0] > "\u3000" or is_open and not before.isalpha():
                return True
            position = text.find(form, position + 1)
    return False


@functools.lru_cache(4096)
def spelled(value):
    """Returns how a number is written in words.

    Args:
        value: int.

    Returns:
        Frozenset of str in lower case: English, German, French, Spanish and Chinese forms of a
        number below 100, of its hundreds and thousands, and Chinese ones of all below 100 million.
    """
    forms = set()
    if 0 < value < 10**8:
        forms |= _chinese(value)
    if value < 100:
        forms |= _below_hundred(value)
    for size, words in (
        (100, (" hundred", "hundert", " cent", " cents", "cientos")),
        (1000, (" thousand", "tausend", " mille", " mil")),
    ):
        count, rest = divmod(value, size)
        if rest == 0 and 0 < count < 100:
            forms |= {form + word for form in _below_hundred(count) for word in words}
            forms |= {word.strip() for word in words} if count == 1 else set()
    if value == 100:
        forms |= {"cien", "ciento"}
    return frozenset(forms)


def _below_hundred(value):
    tens, unit = divmod(value, 10)
    if value < 20:
        rows = (_ENGLISH, _GERMAN, _FRENCH, _SPANISH)
        forms = {words[value - 1] for words in rows} if value else set()
        return forms | set(_DOZEN) if value == 12 else forms
    english, german, spanish = (
        words[tens - 2] for words in (_ENGLISH_TENS, _GERMAN_TENS, _SPANISH_TENS)
    )
    french, of_french = _FRENCH_TENS[tens - 2], unit + 10 * (tens in (7, 9))
    forms = {french, french + "s"} if not of_french else set()
    if unit == 0:
        forms |= {english, german, german.replace("ß", "ss"), spanish}
    else:
        forms |= {f"{english}{sign}{_ENGLISH[unit - 1]}" for sign in "- "}
        forms |= {f"{_GERMAN[unit - 1]}und{tens}" for tens in (german, german.replace("ß", "ss"))}
        word = _SPANISH[unit - 1]
        forms |= {f"{spanish} y {word}"} | ({f"{spanish} y un"} if unit == 1 else set())
        forms |= {f"veinti{word}"} if tens == 2 else set()
    if of_french:
        forms |= {f"{french}{sign}{_FRENCH[of_french - 1]}" for sign in ("-", " ", " et ", "-et-")}
    return forms


def _chinese(value):
    """The forms of a number below 100 million, with 二 and with 两."""
    high, low = divmod(value, 10**4)
    text = (_chinese_group(high) + "万" if high else "") + (
        ("零" if high and low < 1000 else "") + _chinese_group(low) if low else ""
    )
    forms = {text, "".join(_CHINESE[int(digit)] for digit in str(value))}
    if text.startswith("一十"):
        forms.add(text[1:])
    forms |= {form.replace("零", "〇") for form in forms}
    return forms | {re.sub("二(?=[百千万])", "两", form) for form in forms}


def _chinese_group(value):
    text, gap = "", False
    for size, unit in ((1000, "千"), (100, "百"), (10, "十"), (1, "")):
        digit, value = divmod(value, size)
        if digit:
            text += ("零" if gap and text else "") + _CHINESE[digit] + unit
        gap = not digit
    return text
