"""The numbers of a text: in digits, in Roman numerals, and in the words of some languages."""

import functools
import itertools
import re
import unicodedata
from fractions import Fraction
from typing import NamedTuple

# The languages whose number words are known as a whole.
SPELLED = ("de", "en", "es", "fr", "zh")
# Python reads 4,300 digits at most.
_MOST_DIGITS = 4000
# Of a number whose parts can be read in several ways.
_MOST_READINGS = 64

# Number words without accents: English, German, French, Spanish.
_FROM_ONE = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen",
    "ein zwei drei vier funf sechs sieben acht neun zehn elf zwolf dreizehn vierzehn funfzehn "
    "sechzehn siebzehn achtzehn neunzehn",
    "un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize",
    "uno dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce quince dieciseis "
    "diecisiete dieciocho diecinueve",
)
_FROM_TWENTY = (
    "twenty thirty forty fifty sixty seventy eighty ninety",
    "zwanzig dreissig vierzig funfzig sechzig siebzig achtzig neunzig",
    "vingt trente quarante cinquante soixante septante huitante nonante",
    "veinte treinta cuarenta cincuenta sesenta setenta ochenta noventa",
)
_OTHERS = {
    1: "eins una first",
    2: "zwo",
    3: "third",
    5: "fifth",
    8: "eighth",
    9: "ninth",
    10: "october oktober octobre octubre",
    11: "november novembre noviembre",
    12: "december dezember decembre diciembre twelfth",
    20: "veinti",
    21: "veintiun",
    80: "octante",
    500: "quinientos quinientas",
    700: "setecientos setecientas",
    900: "novecientos novecientas",
}
# Words that multiply what stands before them; "vingt" does so after "quatre" alone.
_SCALES = {
    12: "dozen dozens dutzend dutzende douzaine douzaines docena docenas",
    20: "vingt vingts",
    100: "hundred hundreds hundert hunderte cien ciento cientos cientas",
    10**3: "thousand thousands tausend tausende mille mil mila duizend tusen tusind tuhat tisic "
    "tysiac tysiace tysiecy тысяча тысячи тысяч тыс",
    10**6: "million millions millionen mio mln mn millon millones milione milioni milhao milhoes "
    "miljoen miljon miljoner millioner milion miliony milionow milyon миллион миллиона миллионов "
    "млн",
    10**9: "milliarde milliarden milliard milliards mrd mld bn miliardo miliardi miljard miljarder "
    "milliarder miliard miliardy miliardow milyar bilhao bilhoes миллиард миллиарда миллиардов "
    "млрд",
    10**12: "billionen billones billon",
}
# What may stand for several numbers: a half is 50 in percent and 30 in minutes, a cent no number.
_SEVERAL = {
    (Fraction(1, 2), 30, 50): "half halb halbe halber halbes halben demi demie media medio mitad "
    "moitie halfte",
    (
        Fraction(1, 4),
        Fraction(3, 4),
        15,
        25,
        45,
        75,
    ): "quarter quarters viertel viertelstunde quart quarts cuarto cuartos",
    (Fraction(3, 2), 90): "anderthalb eineinhalb",
}
_SEVERAL_SCALES = {
    (100, 0): "cent cents",
    (10**9, 10**12): "billion billions",
    (10**12, 10**18): "trillion trillions",
}
_HAN = "〇零一二三四五六七八九十百千万亿萬億兩廿卅壹贰貳叁參肆伍陆陸柒捌玖拾佰仟两만억천백"
_HAN_VALUES = {"两": 2, "打": 12, "백": 100, "천": 1000, "만": 10**4, "억": 10**8}
_ZEROS = "〇零"
_PARTS = {
    "半": (Fraction(1, 2), 30, 50),
    "一刻": (Fraction(1, 4), 15),
    "三刻": (Fraction(3, 4), 45),
}
# What joins the parts of a number: "and" after hundreds alone, "et" after tens, too.
_JOINS = {"": "", "a": "", "and": "and", "and a": "and", "und": "and", "et": "et", "y": "et"}

_SPACE = " \u00a0\u202f"
_LETTERS = "(?:[^\\W\\d_\u2e80-\u9fff\uac00-\ud7ff\uf900-\ufaff]+|[\u0300-\u036f]+)+"
_TOKEN = re.compile(
    rf"(?P<digits>(?<!\d)\d{{1,3}}(?:[{_SPACE}]\d{{3}})+(?:[.,]\d+)?(?!\d)"  # 1 000,50
    r"|(?:(?<![\w.])\.)?\d+(?:[.,:'’٫٬．：]\d+)*)(?P<fraction>[¼½¾])?"
    r"|(?P<part>[¼½¾半]|[一三]刻)|[万萬]一(?![百千])"  # In case.
    rf"|(?P<han>(?:(?!千[米克瓦卡])[{_HAN}])+打?)|(?P<word>{_LETTERS})"
)
_ROMAN = re.compile("(?=..)(X{0,3})(IX|IV|V?I{0,3})(?:e|er|ème)?")
_ROMAN_UNITS = ["", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"]
_DATE = re.compile(r"\d\d?\.\d\d?\.(\d\d|\d{4})")
_CLOCK = re.compile(r"[:：]\d\d|\s?(?:Uhr|heures|o.clock|[點点時时]|h(?![a-z])|[ap]\.?m\b)")
_YEARS = re.compile("['’]?s|er|年代")
# 10k, $2M, £3bn; and 5 m, which are no millions.
_SHORT = re.compile(r"\s?(?:(k)|(m)|(b))(?!\w)", re.I)


class Number(NamedTuple):
    """A number in a text.

    Attributes:
        start, stop: int. Its characters.
        values: frozenset of int and `Fraction`. What it may stand for.
        is_spelled: bool. Whether it stands there in words alone.
    """

    start: int
    stop: int
    values: frozenset
    is_spelled: bool


class _Atom(NamedTuple):
    """A part of a number. A scale multiplies what stands before it."""

    values: tuple
    kind: str = "word"  # Or "digits", "roman" or "han".
    is_scale: bool = False
    is_joined: bool = False  # By "und" within a word.
    start: int = 0
    stop: int = 0


def numbers_of(text):
    """Returns the numbers of a text: a list of `Number`.

    Words are those of English, German, French, Spanish and Chinese; of some more languages words
    such as "million" are known. A time, a date and a list are several numbers.

    Args:
        text: str.
    """
    numbers, chain = [], []
    for atom in itertools.chain(_atoms(text), [None]):
        if chain and (atom is None or _gap(text, chain[-1], atom) is None):
            numbers += _read(text, chain)
            chain = []
        chain.append(atom)
    return numbers


def _atoms(text):
    for match in _TOKEN.finditer(text):
        start, stop = match.span()
        if match["digits"]:
            yield from _digit_atoms(text, match)
        elif match["part"]:
            values = _PARTS.get(match[0]) or (Fraction(unicodedata.numeric(match[0])),)
            yield _Atom(values, "han", start=start, stop=stop)
        elif match["han"]:
            yield from _han_atoms(match[0], start)
        elif roman := _ROMAN.fullmatch(match[0]):
            value = 10 * len(roman[1]) + _ROMAN_UNITS.index(roman[2])
            yield _Atom((value,), "roman", start=start, stop=stop)
        elif match["word"]:
            yield from (each._replace(start=start, stop=stop) for each in _word_atoms(match[0]))


def _digit_atoms(text, match):
    for piece in re.finditer("[^:：]+", match["digits"]):
        start, stop = (match.start() + position for position in piece.span())
        is_time = bool(_CLOCK.match(text, stop))
        values = None if is_time and re.fullmatch(r"\d\d?\.\d\d", piece[0]) else _values(piece[0])
        parts = [(start, stop, values)]
        if values is None:
            parts = [(*part.span(), _values(part[0])) for part in re.finditer(r"\d+", piece[0])]
            parts = [(start + first, start + last, values) for first, last, values in parts]
        for start, stop, values in parts:
            value = values[0]
            if is_time and 12 < value <= 24:
                values += (value - 12,)
            if 1000 <= value < 2100 and value % 10 == 0 and _YEARS.match(text, stop):
                values += (value % 100, value // 100 + 1)
            if (short := _SHORT.match(text, stop)) is not None:
                values += tuple(each * 1000**short.lastindex for each in values)
            if match["fraction"]:
                stop, values = match.end(), (value + Fraction(unicodedata.numeric(match[0][-1])),)
            yield _Atom(values, "digits", start=start, stop=stop)


def _values(piece):
    """What digits with signs between them may stand for; `None` if they are several numbers."""
    parts, signs = re.split(r"\D", piece), re.findall(r"\D", piece)
    whole = int("".join(parts)[:_MOST_DIGITS])
    if not signs:
        return (whole,)
    *others, last = signs
    values = (whole,) if len(set(signs)) == 1 and _are_groups(parts) else ()
    has_groups = not others or (len(set(others)) == 1 and _are_groups(parts[:-1]))
    if last in ".,٫．" and last not in others and has_groups:
        before, decimals = ("".join(each)[:_MOST_DIGITS] for each in (parts[:-1], parts[-1]))
        values += (Fraction(f"{before or 0}.{decimals}"),)
    is_address = set(signs) == {"."} and not _DATE.fullmatch(piece)
    return values or ((whole,) if is_address else None)


def _are_groups(parts):
    """Whether parts are groups of three digits, or of two before the last, as in India."""
    first, *middle, last = map(len, parts)
    return 0 < first <= 3 == last and len({3, *middle}) <= 2 and set(middle) <= {2, 3}


def _han_atoms(text, start):
    spans = {"kind": "han", "start": start, "stop": start + len(text)}
    digits = [int(unicodedata.numeric(c)) if c in _HAN[:11] else None for c in text]
    if len(text) > 1 and None not in digits:  # 二零二四
        value = int("".join(map(str, digits))[:_MOST_DIGITS])
        yield _Atom((value, *digits) if len(digits) == 2 else (value,), **spans)  # Three or four.
        return
    unit = None
    for index, character in enumerate(text):
        value = _HAN_VALUES.get(character) or int(unicodedata.numeric(character))
        is_scale, values = value >= 10 and character not in "廿卅", (value,)
        if unit and unit >= 100 and index == len(text) - 1 and not is_scale:
            values += (value * unit // 10,)  # 三千五 is 3,500, too.
        unit = value if is_scale else None
        if character not in _ZEROS:
            spans = {"start": start + index, "stop": start + index + 1}
            yield _Atom(values, "han", is_scale, **spans)


def _gap(text, atom, other):
    """What joins two atoms, of `_JOINS`; `None` if they belong to two numbers."""
    gap = text[atom.stop : other.start].strip(f"{_SPACE}-‐").casefold()
    kinds = atom.kind, other.kind
    if other.start == atom.start and "word" in kinds:
        return ""
    if "roman" in kinds:
        return None
    if other.kind == "digits":  # 3万5千
        return "" if atom.is_scale and atom.kind == "han" and not gap else None
    if atom.kind == "digits":
        is_scale = other.is_scale and (other.kind == "han" or other.values[0] not in (20, 100))
        return "" if is_scale and not gap else None
    gap = gap.strip(_ZEROS) if other.kind == "han" else " ".join(gap.split())
    return _JOINS.get(gap)


def _read(text, chain):
    """Yields the numbers that joined atoms are."""
    found = {}
    readings = itertools.product(*(atom.values for atom in chain))
    for reading in itertools.islice(readings, _MOST_READINGS):
        for is_year in (False, True):
            for first, last, value in _parsed(text, chain, reading, is_year):
                found.setdefault((first, last), set()).add(value)
    merged = []
    for (first, last), values in sorted(found.items()):
        if merged and first <= merged[-1][1]:  # 1984, or 19 and 84.
            before, end, others = merged.pop()
            first, last, values = before, max(end, last), values | others
        merged.append((first, last, values))
    for first, last, values in merged:
        is_spelled = all(each.kind in ("word", "han") for each in chain[first : last + 1])
        yield Number(chain[first].start, chain[last].stop, frozenset(values), is_spelled)


def _parsed(text, chain, reading, is_year):
    """Yields the indices of the first and the last atom of each number, and its value.

    Args:
        text: str.
        chain: list of `_Atom`.
        reading: tuple with a value of each.
        is_year: bool. Whether nineteen eighty-four is one number.
    """
    stack = []  # Values that are added, with the index of the first atom of each.
    for i, (atom, value) in enumerate(zip(chain, reading, strict=True)):
        start, before = i, stack[-1][0] if stack else None
        if atom.is_scale and (value != 20 or before == 4):
            factor = 0
            while stack and (stack[-1][0] < value or chain[start - 1].kind == "digits"):
                part, start = stack.pop()
                factor += part
            value *= factor or 1
        elif atom.is_joined and stack and before < 10 and value in range(20, 100, 10):
            start, value = stack.pop()[1], value + before  # Five and twenty.
        elif is_year and len(stack) == 1 and 10 < before < 100 and 9 < value < 100:
            stack = [(100 * before, stack[0][1])]
        gap = _gap(text, chain[start - 1], chain[start]) if start else ""
        if stack and not _takes(stack[-1][0], value, gap):
            yield stack[0][1], start - 1, sum(part for part, _ in stack)
            stack = []
        stack.append((value, start))
    yield stack[0][1], len(chain) - 1, sum(part for part, _ in stack)


def _takes(before, value, gap):
    """Whether a value is added to the one before it: 20 + 5 and 100 + 25, but not 5 + 20."""
    if gap == "and" and before < 100 and value >= 1:
        return False
    if before in (60, 80) and 10 <= value < 20:  # In French.
        return True
    size = 1
    while before and before % (10 * size) == 0:
        size *= 10
    return value < size


@functools.lru_cache(4096)
def _word_atoms(word):
    """The atoms of a word, such as those of "fünfundzwanzig" or "twentieth"."""
    word = word.casefold()
    if not word.isascii():
        word = "".join(
            each for each in unicodedata.normalize("NFD", word) if not unicodedata.combining(each)
        )
    if word in _WORDS:
        return [_WORDS[word]]
    match = _COMPOUND.match(word)
    if match is None:
        return []
    number, rest = match[0], word[match.end() :]
    # A long word may begin another one, as in "fünfzigjährige"; an ordinal may be short.
    if rest and len(number) < 5 and not _ORDINAL.fullmatch(rest):
        return []
    names, atoms = _PART.findall(number), []
    for before, name in itertools.pairwise(["", *names]):
        if name != "und":
            atom = _WORDS[name]._replace(is_joined=before == "und")
            # 10 millionaires are not 10 million.
            atoms.append(atom._replace(is_scale=atom.is_scale and not rest))
    return atoms


def _words():
    """Dict of number words without accents to their atoms."""
    words = {name: (value,) for value, names in _OTHERS.items() for name in names.split()}
    for names in _FROM_ONE:
        words |= {name: (value,) for value, name in enumerate(names.split(), 1)}
    for names in _FROM_TWENTY:
        words |= {name: (10 * value,) for value, name in enumerate(names.split(), 2)}
    for value, name in enumerate(_FROM_TWENTY[0].split(), 2):
        words |= dict.fromkeys((f"{name[:-1]}ies", f"{name[:-1]}ieth"), (10 * value,))
    for name in f"{_FROM_ONE[2]} {_FROM_TWENTY[2]}".split():
        words[name.removesuffix("e") + "ieme"] = words[name]
    words |= {name: values for values, names in _SEVERAL.items() for name in names.split()}
    atoms = {name: _Atom(values) for name, values in words.items()}
    scales = {(value,): names for value, names in _SCALES.items()} | _SEVERAL_SCALES
    for values, names in scales.items():
        atoms |= {name: _Atom(values, is_scale=True) for name in names.split()}
    return atoms


_WORDS = _words()
_NAMES = sorted(
    (name for name, atom in _WORDS.items() if len(name) > 2 and atom.values not in _SEVERAL),
    key=len,
    reverse=True,
)
_PART = re.compile("|".join(["und", *_NAMES]))
_COMPOUND = re.compile(f"(?!und)(?:{_PART.pattern})+")
_ORDINAL = re.compile("s?te[nrsm]?|th|s")
