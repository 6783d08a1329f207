"""Generated pairs: English dates, times, numbers and amounts of money with their Chinese.

`kformer quickstart` trains on these pairs, since they need no download, are exactly right, and
never run out:

    Saturday, the 3rd of May 2031, half past four in the afternoon      2031年5月3日星期六下午四点半
    twelve thousand three hundred and five dollars                      一万二千三百零五美元

The English is chosen among the many spellings in use (`english_dates`, `english_numbers`), the
Chinese is the one canonical form of the value (`chinese_forms`), so the target is a function of the
source. Forms that mean two values, such as 03/05/2031 or the bare "¥", are not generated.

Held-out values. Each value belongs to exactly one split, by a hash of the value alone (neither of
its spelling nor of a seed), 5 in 100 to "valid" and 5 in 100 to "test":

- a date, with or without its weekday;
- a time on the clock's face: 4:30 am, 4:30 pm and a bare "half past four" belong together;
- a quantity: 12305 belongs to the same split as a number, an ordinal, a percentage or an amount of
  any currency; and so does 12.5 with 12.50.

A date with a time takes both from its split, so that neither a held-out date nor a held-out time
occurs in training, alone or combined. The words that make up values are always in training:
quantities with a single digit other than 0 (seven, half a million), whole ones below one
hundred, and twelve o'clock (noon, midnight).

A small model copies digits readily only if each digit is a token of its own: train the tokenizer
with digits split (the `split_digits` of SentencePiece)."""

import datetime
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import blake2b
from itertools import islice
from random import Random
from typing import NamedTuple

from kformer.examples import chinese_forms as chinese
from kformer.examples import english_dates, english_numbers
from kformer.examples.english_dates import DIGITAL, FACE, SPOKEN
from kformer.examples.english_numbers import CURRENCIES, pick
from kformer.utils.checks import check_choice, check_whole

SPLITS = ("train", "valid", "test")
FIRST_DATE = datetime.date(1900, 1, 1)
LAST_DATE = datetime.date(2099, 12, 31)


class Pair(NamedTuple):
    """A generated pair.

    Attributes:
        source: str. The English text.
        target: str. The Chinese text.
        category: str. One of `CATEGORIES`.
    """

    source: str
    target: str
    category: str


def split_of(value: datetime.date | datetime.time | int | str) -> str:
    """The split that a value belongs to.

    Args:
        value: date, time of day, or quantity: an int, or a decimal number in digits such as
            `"12.50"`.

    Returns:
        str: `"train"`, `"valid"` or `"test"`.
    """
    is_always_trained = False
    if isinstance(value, datetime.date):
        key = "date " + value.isoformat()
    elif isinstance(value, datetime.time):
        hour = value.hour % 12
        is_always_trained = not (hour or value.minute)
        key = f"time {hour}:{value.minute:02d}"
    else:
        digits = str(value)
        if "." in digits:
            digits = digits.rstrip("0").rstrip(".")
        is_below_hundred = len(digits) <= 2 and "." not in digits
        num_significant = len(digits.replace("0", "").replace(".", ""))
        is_always_trained = is_below_hundred or num_significant <= 1
        key = "quantity " + digits
    if is_always_trained:
        return "train"
    number = int.from_bytes(blake2b(key.encode(), digest_size=4).digest(), "little") % 100
    return "valid" if number < 5 else "test" if number < 10 else "train"


@cache
def _dates(split):
    days = range(FIRST_DATE.toordinal(), LAST_DATE.toordinal() + 1)
    return [date for date in map(datetime.date.fromordinal, days) if split_of(date) == split]


@cache
def _times(split):
    times = (datetime.time(minute // 60, minute % 60) for minute in range(24 * 60))
    return [(time.hour, time.minute) for time in times if split_of(time) == split]


def _random_time(random, split):
    """A random time. Half of them are multiples of five minutes, as in everyday speech."""
    while True:
        hour, minute = pick(_times(split), random)
        if minute % 5 == 0 or random() < 0.25:
            return hour, minute


def _date_pair(random, split):
    date = pick(_dates(split), random)
    weekday = random() < 0.4
    source = english_dates.spell_date(date, random, weekday=weekday)
    return "on " + source if random() < 0.06 else source, chinese.spell_date(date, weekday=weekday)


def _time_pair(random, split):
    hour, minute = _random_time(random, split)
    chance = random()
    family = DIGITAL if chance < 0.4 else SPOKEN if chance < 0.85 else FACE
    source = english_dates.spell_time(hour, minute, random, family=family)
    source = "at " + source if random() < 0.06 else source
    return source, chinese.spell_time(hour, minute, part_of_day=family != FACE)


def _datetime_pair(random, split):
    date, (hour, minute) = pick(_dates(split), random), _random_time(random, split)
    weekday = random() < 0.4
    family = DIGITAL if random() < 0.5 else SPOKEN
    date_text = english_dates.spell_date(date, random, weekday=weekday)
    time_text = english_dates.spell_time(hour, minute, random, family=family)
    source = english_dates.join_date_and_time(date_text, time_text, random, family=family)
    return source, chinese.spell_date(date, weekday=weekday) + chinese.spell_time(hour, minute)


# How many digits an integer has: all magnitudes, the everyday ones more often.
_LENGTHS = tuple(
    length for length, share in enumerate((3, 4, 8, 9, 9, 8, 5, 5, 5), 1) for _ in range(share)
)


def _integer(random, lengths=_LENGTHS):
    """A random integer from 1 to 999,999,999, or a round one below 10**12."""
    low = 10 ** (pick(lengths, random) - 1)
    number = low + int(random() * 9 * low)
    chance = random()
    if chance < 0.6 or number < 100:
        return number
    if chance < 0.8:  # Zeros inside, for which Chinese numerals have rules of their own.
        first, *digits = str(number)
        return int(first + "".join(digit if random() < 0.5 else "0" for digit in digits))
    # Round: one to three digits and zeros.
    unit = low // pick((1, 10, 10, 100), random)
    number = number // unit * unit
    return number * 1000 if chance > 0.92 and low >= 10**6 else number


def _quantity(random, split, make):
    """The first quantity from `make` that belongs to the split."""
    while True:
        quantity = make(random)
        if split_of(quantity) == split:
            return quantity


def _decimal(random):
    scale = 10 ** pick((1, 1, 1, 1, 2, 2, 2, 2, 3), random)
    whole = 0 if random() < 0.15 else _integer(random, (1, 1, 2, 2, 3, 4))
    fraction = str(scale + int(random() * scale))[1:]
    if scale == 1000:
        fraction = fraction.rstrip("0") or "5"
    return f"{whole}.{fraction}"


def _percentage(random):
    return _decimal(random) if random() < 0.5 else str(_integer(random, (1, 2, 2, 2, 3, 3, 4)))


def _number_pair(random, split):
    kind = random()
    if kind < 0.66:
        number = _quantity(random, split, _integer)
        source = english_numbers.spell_integer(number, random)
        target = chinese.spell_integer(number)
        if kind <= 0.62:
            return source, target
        signs = ("minus ", "minus ", "negative ")
        signs = ("-", "-", "minus ") if source[0].isdigit() else signs
        return pick(signs, random) + source, "负" + target
    if kind < 0.78:
        number = _quantity(random, split, lambda random: _integer(random, (1, 2, 2, 3, 3, 4)))
        return english_numbers.spell_ordinal(number, random), chinese.spell_ordinal(number)
    if kind < 0.9:
        number = _quantity(random, split, _decimal)
        return english_numbers.spell_decimal(number, random), chinese.spell_decimal(number)
    number = _quantity(random, split, _percentage)
    return english_numbers.spell_percent(number, random), chinese.spell_percent(number)


_CURRENCIES = tuple(currency for currency in CURRENCIES for _ in range(currency.share))


def _price(random):
    """A random amount with hundredths, from 0.01 to 99,999.99."""
    whole = 0 if random() < 0.12 else _integer(random, (1, 2, 2, 3, 3, 4, 5))
    subunits = 5 + 5 * int(random() * 19) if random() < 0.4 else 1 + int(random() * 99)
    return f"{whole}.{subunits:02d}"


def _money_pair(random, split):
    currency = pick(_CURRENCIES, random)
    if currency.subunit and random() < 0.4:
        units, subunits = map(int, _quantity(random, split, _price).split("."))
    else:
        units, subunits = _quantity(random, split, _integer), 0
    source = english_numbers.spell_money(units, subunits, currency, random)
    return source, chinese.spell_money(units, subunits, currency.unit, currency.subunit)


# The function of each category, and how often it is chosen: more often where there is more to
# learn.
_CATEGORIES = {
    "date": (_date_pair, 20),
    "time": (_time_pair, 10),
    "datetime": (_datetime_pair, 20),
    "number": (_number_pair, 22),
    "money": (_money_pair, 28),
}
CATEGORIES = tuple(_CATEGORIES)


def iterate_pairs(
    *, seed: int = 0, split: str = "train", categories: Sequence[str] | None = None
) -> Iterator[Pair]:
    """Generates pairs without end.

    Args:
        seed, split, categories: see `generate_pairs`.

    Returns:
        iterator of `Pair`. It uses only `random()` of Python's Mersenne Twister, so the same
        arguments give the same pairs on every machine.

    Raises:
        ValueError: the split or a category is unknown.

    Example:
    ```python
    pair = next(kformer.examples.iterate_pairs(categories="money"))
    ```
    """
    check_choice("split", split, SPLITS)
    names = CATEGORIES if categories is None else categories
    names = (names,) if isinstance(names, str) else tuple(names)
    for name in names or [""]:
        check_choice("category", name, CATEGORIES)
    return _endless_pairs(Random(f"kformer embedded corpus {split} {seed}").random, split, names)


def _endless_pairs(random, split, names):
    names = [name for name in names for _ in range(_CATEGORIES[name][1])]
    while True:
        name = pick(names, random)
        source, target = _CATEGORIES[name][0](random, split)
        chance = random()
        if chance < 0.12:
            source = source[0].upper() + source[1:]
        elif chance < 0.16:
            source = source.lower()
        yield Pair(source, target, name)


def generate_pairs(
    count: int, *, seed: int = 0, split: str = "train", categories: Sequence[str] | None = None
) -> list[Pair]:
    """Generates pairs of English and Chinese.

    A source may occur more than once (times do in the held-out splits, which have few of them).

    Args:
        count: int. The number of pairs.
        seed: int, default 0. Another seed gives other pairs of the same split.
        split: str, default "train". `"train"`, `"valid"` or `"test"`. No value of one split occurs
            in another, for any seeds.
        categories: list of str, str or `None`, default `None`. Some of `CATEGORIES`; `None` for
            all, in the shares that are best for training.

    Returns:
        list of `count` `Pair`s. A longer list with the same arguments begins with the shorter one.

    Raises:
        ValueError: the count is negative, or the split or a category is unknown.

    Example:
    ```python
    pairs = kformer.examples.generate_pairs(1000, seed=1, categories=["time", "money"])
    sources, targets, categories = zip(*pairs)
    ```
    """
    check_whole("count", count, least=0)
    return list(islice(iterate_pairs(seed=seed, split=split, categories=categories), count))
