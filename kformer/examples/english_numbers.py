"""English spellings of numbers and of amounts of money, chosen at random among those in use.

These are the source side of the generated pairs (`kformer.examples`). Every function that
chooses takes `random`, a function without arguments that returns floats in [0, 1) (such as
`random.Random(0).random`). It uses nothing else, so the same random numbers give the same text on
every machine.

No spelling is generated that could mean two values: the bare sign "¥", for one, is both yuan and
yen."""

from functools import cache
from typing import NamedTuple

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
).split()
TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()
IRREGULAR_ORDINALS = {
    **{"one": "first", "two": "second", "three": "third"},
    **{"five": "fifth", "eight": "eighth", "nine": "ninth", "twelve": "twelfth"},
}
SCALES = ((10**9, "billion"), (10**6, "million"), (10**3, "thousand"))


def pick(options, random):
    """A random option. One that the tuple repeats is chosen more often."""
    return options[int(random() * len(options))]


@cache
def options(text):
    """The options in `"3*$ | US$"`: `"$"` three times, then `"US$"`."""
    pairs = [item.rpartition("*") for item in text.split(" | ")] if text else []
    return tuple(option for count, _, option in pairs for _ in range(int(count or 1)))


@cache
def _below_thousand(number, british, hyphen):
    (hundreds, rest), (tens, ones) = divmod(number, 100), divmod(number % 100, 10)
    words = [ONES[hundreds] + " hundred"] if hundreds else []
    if rest >= 20:
        words.append(TENS[tens] + (hyphen + ONES[ones] if ones else ""))
    elif rest or not hundreds:
        words.append(ONES[rest])
    return (" and " if british else " ").join(words)


def integer_words(
    number: int, *, british: bool = False, commas: bool = False, hyphen: str = "-"
) -> str:
    """Spells an integer from 0 to 999,999,999,999 in words.

    Args:
        number: int.
        british: bool, default False. Whether "and" comes before the last two digits
            ("three hundred and five").
        commas: bool, default False. Whether a comma follows a thousand, a million and a billion
            ("twelve thousand, three hundred").
        hyphen: str, default "-". What joins tens and ones: `"-"` or `" "`.

    Returns:
        str.
    """
    if number < 1000:
        return _below_thousand(number, british, hyphen)
    groups, separator = [], ", " if commas else " "
    for scale, name in SCALES:
        if number >= scale:
            group, number = divmod(number, scale)
            groups.append(f"{_below_thousand(group, british, hyphen)} {name}")
    text = separator.join(groups)
    if number:
        # A comma comes only before hundreds: "ten thousand, six hundred", but "ten thousand six".
        before = separator if number >= 100 else " and " if british else " "
        text += before + _below_thousand(number, british, hyphen)
    return text


def ordinal_words(number: int, *, british: bool = False, hyphen: str = "-") -> str:
    """Spells an ordinal in words: 23 is "twenty-third"."""
    words = integer_words(number, british=british, hyphen=hyphen)
    start = max(words.rfind(" "), words.rfind("-")) + 1
    last = words[start:]
    regular = last[:-1] + "ieth" if last.endswith("y") else last + "th"
    return words[:start] + IRREGULAR_ORDINALS.get(last, regular)


def ordinal_digits(number: int) -> str:
    """Writes an ordinal in digits: 23 is "23rd", 1012 is "1,012th"."""
    ending = 0 if number % 100 in (11, 12, 13) else number % 10
    return f"{number:,}" + {1: "st", 2: "nd", 3: "rd"}.get(ending, "th")


def _digits(number, random):
    """Digits with commas; four to six digits may lack them."""
    bare = number < 10**6 and random() < (0.45 if number < 10_000 else 0.2)
    return str(number) if bare else f"{number:,}"


def _style(random):
    """Random keyword arguments of `integer_words`, since people write numbers differently."""
    chance, british = random(), random() < 0.5
    return {"british": british, "commas": chance < 0.15, "hyphen": " " if chance > 0.9 else "-"}


def _words(number, random):
    words = integer_words(number, **_style(random))
    if number >= 100 and words.startswith("one ") and random() < 0.35:
        words = "a " + words[4:]
    return words


def _scaled(number, random):
    """A spelling with the scale as a word of its own ("3.5 million", "twelve hundred"); `None` if
    the number has none.
    """
    if number % 100 or number < 1000:
        return None
    if 1100 <= number < 10_000 and number % 1000:
        return integer_words(number // 100, hyphen=pick("--- ", random)) + " hundred"
    scale, name = next((scale, name) for scale, name in SCALES if number >= scale or scale == 1000)
    if scale > 1000 and number % scale == scale // 2 and number < 20 * scale and random() < 0.5:
        return f"{integer_words(number // scale)} and a half {name}"
    if number == 500_000 and random() < 0.4:
        return "half a million"
    if scale == 1000 and number % 1000:
        return None
    whole, remainder = divmod(number, scale)
    hundredths, thousandths = divmod(remainder, scale // 100)
    if thousandths:
        return None
    decimal = f"{whole}.{hundredths:02d}".rstrip("0").rstrip(".")
    in_words = random() < 0.3 and (whole < 100 or not remainder)
    return (_decimal_words(decimal, random) if in_words else decimal) + " " + name


def spell_integer(number: int, random, *, words: float = 0.6) -> str:
    """A random spelling of an integer from 0 to 999,999,999,999.

    Args:
        number: int.
        random: function that returns floats in [0, 1).
        words: float, default 0.6. The probability of words; otherwise the number is in digits. A
            round number may also become "3.5 million" or the like.

    Returns:
        str.
    """
    is_round = number >= 1000 and not number % 100
    if is_round and random() < 0.4 and (scaled := _scaled(number, random)):
        return scaled
    return _words(number, random) if random() < words else _digits(number, random)


def spell_ordinal(number: int, random) -> str:
    """A random spelling of an ordinal: "23rd", "the 23rd", "twenty-third"."""
    chance = random()
    text = ordinal_words(number, british=chance < 0.7, hyphen=" " if chance > 0.94 else "-")
    if chance < 0.4:
        text = ordinal_digits(number)
    return "the " + text if random() < 0.4 else text


def _decimal_words(number, random):
    whole, point, fraction = number.partition(".")
    words = integer_words(int(whole), **_style(random))
    if not point:
        return words
    digits = ("oh" if random() < 0.2 else "zero", *ONES[1:])
    return f"{words} point {' '.join(digits[int(digit)] for digit in fraction)}"


def _decimal_digits(number, random):
    whole, point, fraction = number.partition(".")
    return _digits(int(whole), random) + point + fraction


def spell_decimal(number: str, random) -> str:
    """A random spelling of a decimal number given in digits: "3.14", "three point one four"."""
    return _decimal_digits(number, random) if random() < 0.5 else _decimal_words(number, random)


def spell_percent(number: str, random) -> str:
    """A random spelling of a percentage given in digits: "12.5%", "twelve point five percent"."""
    words = (" percent", " percent", " per cent")
    if random() < 0.5:
        return _decimal_digits(number, random) + pick(("%", "%", "%", " %", *words), random)
    return _decimal_words(number, random) + pick(words, random)


class Currency(NamedTuple):
    """How a currency is written, in English and in Chinese.

    Texts with several options are in the form that `options` reads; a name is `"singular/plural"`.

    Attributes:
        code: ISO 4217 code.
        unit: the currency in Chinese.
        subunit: its hundredth in Chinese, or `None`.
        share: how often it is chosen, relative to the others.
        names: names in English.
        symbols: symbols right before the digits.
        subunits: names of the hundredths; empty if it has none in use.
        whole_names: further names, for whole amounts only.
        lone_subunits: names of the hundredths without units before them, if they differ.
        subunit_sign: the sign right after the digits of a lone subunit, or empty.
        codes: codes before or after the digits, with a space, if they differ from `code`.
    """

    code: str
    unit: str
    subunit: str | None
    share: int
    names: str
    symbols: str = ""
    subunits: str = ""
    whole_names: str = ""
    lone_subunits: str = ""
    subunit_sign: str = ""
    codes: str = ""


CURRENCIES = (
    Currency(
        *("USD", "美元", "美分", 8, "4*dollar/dollars | US dollar/US dollars", "4*$ | US$"),
        **{"subunits": "cent/cents", "whole_names": "buck/bucks", "subunit_sign": "¢"},
    ),
    Currency(
        *("EUR", "欧元", "欧分", 4, "euro/euros", "€", "cent/cents"),
        lone_subunits="euro cent/euro cents",
    ),
    Currency(
        *("GBP", "英镑", "便士", 4),
        "3*pound/pounds | British pound/British pounds | pound sterling/pounds sterling",
        *("£", "penny/pence", "quid/quid"),
        subunit_sign="p",
    ),
    # Yuan's jiao and fen are spelled in `_yuan`.
    Currency("CNY", "元", "分", 4, "yuan/yuan", "CN¥", codes="CNY | RMB"),
    Currency("JPY", "日元", None, 3, "2*yen/yen | Japanese yen/Japanese yen", "JP¥"),
    Currency("CAD", "加元", None, 1, "Canadian dollar/Canadian dollars", "C$ | CA$"),
    Currency("AUD", "澳元", None, 1, "Australian dollar/Australian dollars", "A$"),
    Currency("HKD", "港元", None, 1, "Hong Kong dollar/Hong Kong dollars", "HK$"),
    Currency("CHF", "瑞士法郎", None, 1, "Swiss franc/Swiss francs"),
    Currency("KRW", "韩元", None, 1, "won/won | South Korean won/South Korean won", "₩"),
)


def _beside_digits(digits, currency, random):
    """Digits with a symbol or a code beside them: "$12", "USD 12", "12 USD"."""
    if currency.symbols and random() < 0.7:
        return pick(options(currency.symbols), random) + digits
    code = pick(options(currency.codes or currency.code), random)
    return f"{code} {digits}" if random() < 0.5 else f"{digits} {code}"


def _whole_money(units, currency, random):
    chance = random()
    if chance < 0.4:
        if units >= 10**6 and chance < 0.2:
            scaled = _scaled(units, random) or ""
            if currency.symbols and scaled[:1].isdigit():
                return pick(options(currency.symbols), random) + scaled
        digits = _digits(units, random) + ".00" * bool(chance > 0.36 and currency.subunit)
        return _beside_digits(digits, currency, random)
    names = options(currency.names) + options(currency.whole_names)
    singular, plural = pick(names, random).split("/")
    if units == 1 and chance < 0.5:
        return "a " + singular
    return spell_integer(units, random) + " " + (singular if units == 1 else plural)


def _counted(number, names, random, *, in_words):
    singular, plural = pick(options(names), random).split("/")
    count = _words(number, random) if in_words else _digits(number, random)
    return count + " " + (singular if number == 1 else plural)


def _yuan(units, subunits, random):
    in_words = random() < 0.6
    tenths, hundredths = divmod(subunits, 10)
    counts = ((units, "yuan/yuan"), (tenths, "jiao/jiao"), (hundredths, "fen/fen"))
    amounts = [_counted(*pair, random, in_words=in_words) for pair in counts if pair[0]]
    if len(amounts) > 1 and random() >= 0.5:
        amounts.insert(-1, "and")
    return " ".join(amounts)


def spell_money(units: int, subunits: int, currency: Currency, random) -> str:
    """A random spelling of an amount of money.

    Args:
        units: int. The whole units.
        subunits: int from 0 to 99, the hundredths; 0 for a currency without them. Units and
            subunits must not both be 0.
        currency: `Currency`, one of `CURRENCIES`.
        random: function that returns floats in [0, 1).

    Returns:
        str. The amount: "$12,305", "twelve thousand three hundred and five dollars", "12 pounds 50
        pence", "50¢".
    """
    if not subunits:
        return _whole_money(units, currency, random)
    chance = random()
    if chance < 0.4:
        digits = f"{_digits(units, random)}.{subunits:02d}"
        if chance < 0.33:
            return _beside_digits(digits, currency, random)
        return digits + " " + pick(options(currency.names), random).split("/")[1]
    if currency.code == "CNY":
        return _yuan(units, subunits, random)
    in_words = random() < 0.65
    if units:
        joiner = pick((*(" and ",) * 3, " ", ", "), random)
        whole = _counted(units, currency.names, random, in_words=in_words)
        return whole + joiner + _counted(subunits, currency.subunits, random, in_words=in_words)
    if currency.subunit_sign and not in_words and random() < 0.5:
        return f"{subunits}{currency.subunit_sign}"
    names = currency.lone_subunits or currency.subunits
    return _counted(subunits, names, random, in_words=in_words)
