"""English spellings of dates and times of day, chosen at random among those in use.

These are the source side of the generated pairs (`kformer.examples`). Every function that
chooses takes `random`, a function without arguments that returns floats in [0, 1), as those of
`kformer.examples.english_numbers` do.

No spelling is generated that could mean two values. Dates in figures alone begin with the year
(2031-05-03), since 03/05/2031 is in May or in March; every date has four digits of its year, or
their words. Times in figures have "am" or "pm", or the part of the day, or two digits for the hour
on the 24-hour clock (04:30, never 4:30). Noon and midnight may also be "12:00 pm" and "12:00 am",
as digital clocks have it."""

from __future__ import annotations

import datetime
from functools import cache

from kformer.examples.english_numbers import integer_words, ordinal_digits, ordinal_words, pick

__all__ = [
    "DIGITAL",
    "FACE",
    "SPOKEN",
    "join_date_and_time",
    "spell_date",
    "spell_time",
    "time_spellings",
    "year_words",
]

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS_SHORT = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_WEEKDAYS_SHORT = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def _options(full, short, also):
    """The spellings of a name: mostly in full, some abbreviated, some with a full stop."""
    if full == short:
        return (full,)
    dotted = (also or short) + "."
    return (full,) * 6 + (short, short, dotted) + ((also,) if also else (dotted,))


_ALSO = {"September": "Sept", "Tuesday": "Tues", "Thursday": "Thurs"}
_MONTH_OPTIONS = tuple(
    _options(full, short, _ALSO.get(full))
    for full, short in zip(MONTHS, _MONTHS_SHORT, strict=True)
)
_WEEKDAY_OPTIONS = tuple(
    _options(full, short, _ALSO.get(full))
    for full, short in zip(WEEKDAYS, _WEEKDAYS_SHORT, strict=True)
)


@cache
def year_words(year: int) -> tuple[str, ...]:
    """The spellings of a year from 1900 to 2099 in words: "twenty thirty-one", "two thousand and
    thirty-one".
    """
    century, rest = divmod(year, 100)
    if year < 2000:
        if not rest:
            return ("nineteen hundred",)
        if rest < 10:
            last = integer_words(rest)
            return (f"nineteen oh {last}", f"nineteen hundred and {last}")
        return (f"nineteen {integer_words(rest)}",)
    thousands = (
        (integer_words(year), integer_words(year, british=True)) if rest else ("two thousand",)
    )
    if not rest:
        return thousands
    if rest < 10:
        return (*thousands, f"twenty oh {integer_words(rest)}")
    short = f"{integer_words(century)} {integer_words(rest)}"
    return (short, short, *thousands)


_DAYS_AS_ORDINAL = tuple(ordinal_digits(day) for day in range(32))
_DAYS_IN_WORDS = tuple(ordinal_words(day) for day in range(32))

# Templates of a date: {m} month, {d} day, {o} day as an ordinal in digits, {w} day in words, {y}
# year.
_DAY_IN_DIGITS = (
    *("{m} {d}, {y}",) * 5,
    *("{m} {o}, {y}",) * 3,
    *("{d} {m} {y}",) * 4,
    *("the {o} of {m} {y}",) * 3,
    *("the {o} of {m}, {y}",) * 2,
    "{m} {d} {y}",
    "{m} {o} {y}",
    "{d} {m}, {y}",
    "{o} {m} {y}",
    "{o} of {m} {y}",
    "{m} the {o}, {y}",
)
_DAY_IN_WORDS = (
    *("the {w} of {m} {y}",) * 3,
    *("the {w} of {m}, {y}",) * 3,
    *("{m} {w}, {y}",) * 2,
    *("{m} the {w}, {y}",) * 2,
    "{w} of {m} {y}",
)
_FIGURES = (
    *("{y}-{month:02d}-{d:02d}",) * 4,
    *("{y}/{month:02d}/{d:02d}",) * 2,
    "{d:02d} {short} {y}",
    "{d:02d}-{short}-{y}",
)
_WEEKDAY_FIRST = ("{a}, {b}", "{a}, {b}", "{a}, {b}", "{a} {b}")
_WEEKDAY_LAST = ("{b} ({a})", "{b} ({a})", "{b}, {a}")


def spell_date(date: datetime.date, random, *, weekday: bool = False) -> str:
    """A random spelling of a date.

    Args:
        date: `datetime.date`.
        random: function that returns floats in [0, 1).
        weekday: bool, default False. Whether the text names the weekday.

    Returns:
        str. The date: "May 3, 2031", "Saturday, the third of May, twenty thirty-one", "2031-05-03
        (Sat)".
    """
    chance = random()
    month, day, year = date.month, date.day, date.year
    if chance < 0.55:
        year = pick(year_words(year), random) if chance < 0.05 else year
        text = pick(_DAY_IN_DIGITS, random).format(
            m=pick(_MONTH_OPTIONS[month - 1], random), d=day, o=_DAYS_AS_ORDINAL[day], y=year
        )
    elif chance < 0.82:
        year = pick(year_words(year), random) if chance < 0.72 else year
        text = pick(_DAY_IN_WORDS, random).format(
            m=MONTHS[month - 1], w=_DAYS_IN_WORDS[day], y=year
        )
    else:
        text = pick(_FIGURES, random).format(
            y=year, month=month, d=day, short=_MONTHS_SHORT[month - 1]
        )
    if not weekday:
        return text
    name = pick(_WEEKDAY_OPTIONS[date.weekday()], random)
    last = random() < (0.6 if chance >= 0.82 else 0.12)
    return pick(_WEEKDAY_LAST if last else _WEEKDAY_FIRST, random).format(a=name, b=text)


# The families of spellings of a time.
DIGITAL, SPOKEN, FACE = range(3)

_PARTS_OF_DAY = (
    ("at night", "in the morning"),
    *(("in the morning",),) * 11,
    *(("in the afternoon",),) * 5,
    ("in the afternoon", "in the evening"),
    *(("in the evening",),) * 2,
    *(("in the evening", "at night"),) * 4,
)


def _spoken_on_face(hour, minute):
    """The spoken times of a clock face: "half past four", "a quarter to five"."""
    now, following = (integer_words(hours % 12 or 12) for hours in (hour, hour + 1))
    if minute == 0:
        return [f"{now} o'clock", f"{now} o'clock", f"{hour % 12 or 12} o'clock"]
    texts = [
        f"{now} oh {integer_words(minute)}" if minute < 10 else f"{now} {integer_words(minute)}"
    ]
    if minute == 30:
        return [*texts, *[f"half past {now}"] * 3]
    past, to = ("past", "after"), ("to", "to", "till")
    words, hours = (past, now) if minute < 30 else (to, following)
    distance = minute if minute < 30 else 60 - minute
    if distance == 15:
        return texts + [
            f"{article}quarter {word} {hours}" for word in words for article in ("a ", "")
        ]
    minutes = "minute" if distance == 1 else "minutes"
    texts += [f"{integer_words(distance)} {minutes} {word} {hours}" for word in words]
    if distance % 5 == 0:
        texts += [f"{integer_words(distance)} {word} {hours}" for word in words]
    return texts


def _at_twelve(hour, minute):
    """Noon and midnight by name, and the minutes around them."""
    name = "noon" if hour in (11, 12) else "midnight"
    if minute == 0 and hour in (0, 12):
        return [name, name, f"12 {name}", f"twelve {name}", *(["midday"] if hour else [])]
    if hour in (0, 12) and minute in (5, 10, 15, 20):
        return [f"{'a quarter' if minute == 15 else integer_words(minute)} past {name}"]
    if hour in (11, 23) and minute in (40, 45, 50, 55):
        return [f"{'a quarter' if minute == 45 else integer_words(60 - minute)} to {name}"]
    return []


@cache
def time_spellings(
    hour: int, minute: int
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The spellings of a time of day.

    Args:
        hour: int from 0 to 23.
        minute: int from 0 to 59.

    Returns:
        Three tuples, at the indices `DIGITAL` (figures: "4:30 pm", "16:30"), `SPOKEN` (words with
        the time of day: "half past four in the afternoon") and `FACE` (words without it: "half past
        four"). A common spelling occurs more than once.
    """
    on_face = hour % 12 or 12
    half = "ap"[hour // 12]
    marks = (
        f" {half}m",
        f" {half}m",
        f" {half}.m.",
        f"{half}m",
        f" {half.upper()}M",
        f"{half.upper()}M",
    )
    digital = [f"{hour:02d}:{minute:02d}"] * 4 + [f"{on_face}:{minute:02d}{mark}" for mark in marks]
    digital += [f"{on_face}.{minute:02d}{mark}" for mark in marks[:1] + marks[3:4]]
    face = _spoken_on_face(hour, minute)
    at_twelve = _at_twelve(hour, minute)
    parts = _PARTS_OF_DAY[hour]
    if minute == 0:
        digital += [f"{on_face}{mark}" for mark in marks]
    if minute == 0 and on_face == 12:
        # "twelve in the morning" is neither noon nor midnight.
        spoken = at_twelve + (["twelve o'clock at night"] if hour == 0 else ["twelve o'clock noon"])
    else:
        spoken = [f"{text} {part}" for text in face for part in parts]
        spoken += [f"{on_face}:{minute:02d} {part}" for part in parts]
        spoken += [f"{integer_words(on_face)} {part}" for part in parts if minute == 0]
        spoken += [f"{on_face} {part}" for part in parts if minute == 0]
        said = face[0] if minute else integer_words(on_face)
        spoken += [f"{said} {half}{dot}m{dot}" for dot in ("", ".")]
        spoken += at_twelve * 2
    return tuple(digital), tuple(spoken), tuple(face)


def spell_time(hour: int, minute: int, random, *, family: int) -> str:
    """A random spelling of a time of one family: `DIGITAL`, `SPOKEN` or `FACE`."""
    return pick(time_spellings(hour, minute)[family], random)


_JOINERS = {
    SPOKEN: (
        "{date}, {time}",
        "{date}, {time}",
        "{date} at {time}",
        "{date} at {time}",
        "{date}, at {time}",
    ),
    DIGITAL: (
        "{date}, {time}",
        "{date} {time}",
        "{date} {time}",
        "{date} at {time}",
        "{date} at {time}",
    ),
}
_TIME_FIRST = ("{time} on {date}", "{time}, {date}", "at {time} on {date}")


def join_date_and_time(date: str, time: str, random, *, family: int) -> str:
    """Joins the spellings of a date and of a time, in either order, the date first more often."""
    joiner = pick(_TIME_FIRST if random() < 0.25 else _JOINERS[family], random)
    return joiner.format(date=date, time=time)
