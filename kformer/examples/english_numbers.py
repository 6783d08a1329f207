"""English spellings of numbers and of amounts of money, chosen at random among those in use.

These are the source side of the generated pairs (`kformer.examples`). Every function that
chooses takes `random`, a function without arguments that returns floats in [0, 1) (such as
`random.Random(0).random`). It uses nothing else, so the same random numbers give the same text on
every machine.

No spelling is generated that could mean two values: the bare sign "¥", for one, is both yuan and
yen."""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "CURRENCIES",
    "Currency",
    "integer_words",
    "ordinal_digits",
    "ordinal_words",
    "pick",
    "spell_decimal",
    "spell_integer",
    "spell_money",
    "spell_ordinal",
    "spell_percent",
]

ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen"),
    *("eighteen", "nineteen"),
)
TENS = ("zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
IRREGULAR_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
SCALES = ((10**9, "billion"), (10**6, "million"), (10**3, "thousand"))


def pick(options, random):
    """A random option. One that the tuple repeats is chosen more often."""
    return options[int(random() * len(options))]


def _below_thousand(number, joiner, hyphen):
    hundreds, rest = divmod(number, 100)
    parts = [ONES[hundreds] + " hundred"] if hundreds else []
    if rest:
        tens, ones = divmod(rest, 10)
        if rest < 20:
            parts.append(ONES[rest])
        else:
            parts.append(TENS[tens] + (hyphen + ONES[ones] if ones else ""))
    return joiner.join(parts)


# The words of 0..999, by whether "and" follows the hundreds and by what joins tens and ones.
_BELOW_THOUSAND = {
    (british, hyphen): tuple(
        _below_thousand(number, " and " if british else " ", hyphen) for number in range(1000)
    )
    for british in (False, True)
    for hyphen in ("-", " ")
}


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
    below_thousand = _BELOW_THOUSAND[british, hyphen]
    if number < 1000:
        return below_thousand[number] or "zero"
    text = ""
    separator = ", " if commas else " "
    for scale, name in SCALES:
        if number >= scale:
            group, number = divmod(number, scale)
            text += (separator if text else "") + below_thousand[group] + " " + name
    if number:
        # A comma comes only before hundreds: "ten thousand, six hundred", but "ten thousand six".
        before = separator if number >= 100 else " and " if british else " "
        text += before + below_thousand[number]
    return text


def ordinal_words(number: int, *, british: bool = False, hyphen: str = "-") -> str:
    """Spells an ordinal in words: 23 is "twenty-third"."""
    words = integer_words(number, british=british, hyphen=hyphen)
    start = max(words.rfind(" "), words.rfind("-")) + 1
    last = words[start:]
    if last in IRREGULAR_ORDINALS:
        last = IRREGULAR_ORDINALS[last]
    elif last.endswith("y"):
        last = last[:-1] + "ieth"
    else:
        last += "th"
    return words[:start] + last


def ordinal_digits(number: int) -> str:
    """Writes an ordinal in digits: 23 is "23rd", 1012 is "1,012th"."""
    suffix = (
        "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    )
    return f"{number:,}{suffix}"


def _digits(number, random):
    """Digits with commas; four to six digits may lack them."""
    bare = number < 10**6 and random() < (0.45 if number < 10_000 else 0.2)
    return str(number) if bare else f"{number:,}"


def _style(random):
    """Random keyword arguments of `integer_words`, since people write numbers differently."""
    chance = random()
    return {
        "british": random() < 0.5,
        "commas": chance < 0.15,
        "hyphen": " " if chance > 0.9 else "-",
    }


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
    whole, rest = divmod(number, scale)
    hundredths, beyond = divmod(rest, scale // 100)
    if beyond:
        return None
    decimal = f"{whole}.{hundredths:02d}".rstrip("0").rstrip(".")
    in_words = random() < 0.3 and (whole < 100 or not rest)
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
    if number >= 1000 and not number % 100 and random() < 0.4:
        scaled = _scaled(number, random)
        if scaled is not None:
            return scaled
    return _words(number, random) if random() < words else _digits(number, random)


def spell_ordinal(number: int, random) -> str:
    """A random spelling of an ordinal: "23rd", "the 23rd", "twenty-third"."""
    chance = random()
    if chance < 0.4:
        text = ordinal_digits(number)
    else:
        text = ordinal_words(number, british=chance < 0.7, hyphen=" " if chance > 0.94 else "-")
    return "the " + text if random() < 0.4 else text


def _decimal_words(number, random):
    whole, point, fraction = number.partition(".")
    words = integer_words(int(whole), **_style(random))
    if not point:
        return words
    zero = "oh" if random() < 0.2 else "zero"
    return (
        words
        + " point "
        + " ".join(zero if digit == "0" else ONES[int(digit)] for digit in fraction)
    )


def _decimal_digits(number, random):
    whole, point, fraction = number.partition(".")
    return _digits(int(whole), random) + point + fraction


def spell_decimal(number: str, random) -> str:
    """A random spelling of a decimal number given in digits: "3.14", "three point one four"."""
    return _decimal_digits(number, random) if random() < 0.5 else _decimal_words(number, random)


_PERCENT = (" percent", " percent", " per cent")


def spell_percent(number: str, random) -> str:
    """A random spelling of a percentage given in digits: "12.5%", "twelve point five percent"."""
    if random() < 0.5:
        return _decimal_digits(number, random) + pick(("%", "%", "%", " %", *_PERCENT), random)
    return _decimal_words(number, random) + pick(_PERCENT, random)


class Currency(NamedTuple):
    """How a currency is written, in English and in Chinese.

    Attributes:
        code: ISO 4217 code.
        names: pairs of singular and plural; a repeated name is chosen more often.
        whole_names: more such names, for whole amounts only.
        symbols: the symbols right before the digits.
        codes: the codes before or after the digits, with a space.
        subunits: pairs of singular and plural of the hundredth, after the units; empty if it has
            none in use.
        lone_subunits: the same without units before it.
        subunit_sign: the sign right after the digits of a lone subunit, or empty.
        unit: the currency in Chinese.
        subunit: its hundredth in Chinese, or `None`.
        share: how often it is chosen, relative to the others.
    """

    code: str
    names: tuple
    whole_names: tuple
    symbols: tuple
    codes: tuple
    subunits: tuple
    lone_subunits: tuple
    subunit_sign: str
    unit: str
    subunit: str | None
    share: int


def _without_subunit(code, names, symbols, codes, unit, share):
    return Currency(code, names, (), symbols, codes, (), (), "", unit, None, share)


_CENT = (("cent", "cents"),)
_PENNY = (("penny", "pence"),)
_DOLLAR = ("dollar", "dollars")
_POUND = ("pound", "pounds")
CURRENCIES = (
    Currency(
        "USD",
        (_DOLLAR, _DOLLAR, _DOLLAR, _DOLLAR, ("US dollar", "US dollars")),
        (("buck", "bucks"),),
        ("$", "$", "$", "$", "US$"),
        ("USD",),
        _CENT,
        _CENT,
        "¢",
        "美元",
        "美分",
        8,
    ),
    Currency(
        "EUR",
        (("euro", "euros"),),
        (),
        ("€",),
        ("EUR",),
        _CENT,
        (("euro cent", "euro cents"),),
        "",
        "欧元",
        "欧分",
        4,
    ),
    Currency(
        "GBP",
        (
            _POUND,
            _POUND,
            _POUND,
            ("British pound", "British pounds"),
            ("pound sterling", "pounds sterling"),
        ),
        (("quid", "quid"),),
        ("£",),
        ("GBP",),
        _PENNY,
        _PENNY,
        "p",
        "英镑",
        "便士",
        4,
    ),
    # Yuan's jiao and fen are spelled in `_yuan`.
    Currency("CNY", (("yuan", "yuan"),), (), ("CN¥",), ("CNY", "RMB"), (), (), "", "元", "分", 4),
    _without_subunit(
        "JPY",
        (("yen", "yen"), ("yen", "yen"), ("Japanese yen",) * 2),
        ("JP¥",),
        ("JPY",),
        "日元",
        3,
    ),
    _without_subunit(
        "CAD", (("Canadian dollar", "Canadian dollars"),), ("C$", "CA$"), ("CAD",), "加元", 1
    ),
    _without_subunit(
        "AUD", (("Australian dollar", "Australian dollars"),), ("A$",), ("AUD",), "澳元", 1
    ),
    _without_subunit(
        "HKD", (("Hong Kong dollar", "Hong Kong dollars"),), ("HK$",), ("HKD",), "港元", 1
    ),
    _without_subunit("CHF", (("Swiss franc", "Swiss francs"),), (), ("CHF",), "瑞士法郎", 1),
    _without_subunit(
        "KRW", (("won", "won"), ("South Korean won",) * 2), ("₩",), ("KRW",), "韩元", 1
    ),
)


def _beside_digits(digits, currency, random):
    """Digits with a symbol or a code beside them: "$12", "USD 12", "12 USD"."""
    if currency.symbols and random() < 0.7:
        return pick(currency.symbols, random) + digits
    code = pick(currency.codes, random)
    return f"{code} {digits}" if random() < 0.5 else f"{digits} {code}"


def _whole_money(units, currency, random):
    chance = random()
    if chance < 0.4:
        if units >= 10**6 and chance < 0.2:
            scaled = _scaled(units, random)
            if scaled is not None and currency.symbols and scaled[0].isdigit():
                return pick(currency.symbols, random) + scaled
        digits = _digits(units, random)
        return _beside_digits(
            digits + ".00" if chance > 0.36 and currency.subunit else digits, currency, random
        )
    singular, plural = pick(currency.names + currency.whole_names, random)
    if units == 1 and chance < 0.5:
        return "a " + singular
    return spell_integer(units, random, words=0.6) + " " + (singular if units == 1 else plural)


def _counted(number, names, random, *, in_words):
    singular, plural = pick(names, random)
    count = _words(number, random) if in_words else _digits(number, random)
    return count + " " + (singular if number == 1 else plural)


def _yuan(units, subunits, random):
    in_words = random() < 0.6
    tenths, hundredths = divmod(subunits, 10)
    counts = ((units, "yuan"), (tenths, "jiao"), (hundredths, "fen"))
    parts = [
        _counted(count, ((name, name),), random, in_words=in_words)
        for count, name in counts
        if count
    ]
    return (
        " ".join(parts)
        if len(parts) == 1 or random() < 0.5
        else " ".join(parts[:-1]) + " and " + parts[-1]
    )


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
        return digits + " " + pick(currency.names, random)[1]
    if currency.code == "CNY":
        return _yuan(units, subunits, random)
    in_words = random() < 0.65
    if units:
        joiner = pick((" and ", " and ", " and ", " ", ", "), random)
        counted = _counted(units, currency.names, random, in_words=in_words)
        return counted + joiner + _counted(subunits, currency.subunits, random, in_words=in_words)
    if currency.subunit_sign and not in_words and random() < 0.5:
        return f"{subunits}{currency.subunit_sign}"
    return _counted(subunits, currency.lone_subunits, random, in_words=in_words)
