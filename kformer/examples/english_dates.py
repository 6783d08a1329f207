"""English spellings of dates and times of day, chosen at random among those in use.

These are the source side of the generated pairs (`kformer.examples`). Every function that
chooses takes `random`, a function without arguments that returns floats in [0, 1), as those of
`kformer.examples.english_numbers` do.

No spelling is generated that could mean two values. Dates in figures alone begin with the year
(2031-05-03), since 03/05/2031 is in May or in March; every date has four digits of its year, or
their words. Times in figures have "am" or "pm", or the part of the day, or two digits for the hour
on the 24-hour clock (04:30, never 4:30). Noon and midnight may also be "12:00 pm" and "12:00 am",
as digital clocks have it."""

import datetime
from functools import cache

from kformer.examples import english_numbers as numbers
from kformer.examples.english_numbers import integer_words, options, pick

MONTHS = (
    "January February March April May June July August September October November December"
).split()
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_ALSO = {"September": "Sept", "Tuesday": "Tues", "Thursday": "Thurs"}


@cache
def _spellings(name):
    """The spellings of a name: mostly in full, some abbreviated, some with a full stop."""
    short, also = name[:3], _ALSO.get(name)
    if name == short:
        return (name,)
    dotted = (also or short) + "."
    return (name,) * 6 + (short, short, dotted, also or dotted)


@cache
def year_words(year: int) -> tuple[str, ...]:
    """The spellings of a year from 1900 to 2099 in words: "twenty thirty-one", "two thousand and
    thirty-one".
    """
    if year == 2000:
        return ("two thousand",)
    in_century = year % 100
    last = integer_words(in_century)
    if year == 1900:
        return ("nineteen hundred",)
    if year < 1910:
        return (f"nineteen oh {last}", f"nineteen hundred and {last}")
    if year < 2000:
        return (f"nineteen {last}",)
    thousands = (integer_words(year), integer_words(year, british=True))
    if in_century < 10:
        return (*thousands, f"twenty oh {last}")
    return (f"twenty {last}",) * 2 + thousands


# Templates of a date: {m} month, {d} day, {o} day as an ordinal in digits, {w} day in words, {y}
# year.
_DAY_IN_DIGITS = (
    "5*{m} {d}, {y} | 3*{m} {o}, {y} | 4*{d} {m} {y} | 3*the {o} of {m} {y} | 2*the {o} of {m}, {y}"
    " | {m} {d} {y} | {m} {o} {y} | {d} {m}, {y} | {o} {m} {y} | {o} of {m} {y} | {m} the {o}, {y}"
)
_DAY_IN_WORDS = (
    "3*the {w} of {m} {y} | 3*the {w} of {m}, {y} | 2*{m} {w}, {y} | 2*{m} the {w}, {y}"
    " | {w} of {m} {y}"
)
_FIGURES = (
    "4*{y}-{month:02d}-{d:02d} | 2*{y}/{month:02d}/{d:02d} | {d:02d} {short} {y}"
    " | {d:02d}-{short}-{y}"
)
_WEEKDAY_FIRST = "3*{a}, {b} | {a} {b}"
_WEEKDAY_LAST = "2*{b} ({a}) | {b}, {a}"


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
    year, name = date.year, MONTHS[date.month - 1]
    if chance < 0.05 or 0.55 <= chance < 0.72:
        year = pick(year_words(year), random)
    in_digits, in_words = chance < 0.55, chance < 0.82
    templates = _DAY_IN_DIGITS if in_digits else _DAY_IN_WORDS if in_words else _FIGURES
    template = pick(options(templates), random)
    text = template.format(
        m=pick(_spellings(name), random) if in_digits else name,
        d=date.day,
        o=numbers.ordinal_digits(date.day),
        w=numbers.ordinal_words(date.day),
        y=year,
        month=date.month,
        short=name[:3],
    )
    if not weekday:
        return text
    name = pick(_spellings(WEEKDAYS[date.weekday()]), random)
    last = random() < (0.12 if in_words else 0.6)
    templates = _WEEKDAY_LAST if last else _WEEKDAY_FIRST
    return pick(options(templates), random).format(a=name, b=text)


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
    texts = [f"{now} {'oh ' if minute < 10 else ''}{integer_words(minute)}"]
    if minute == 30:
        return [*texts, *[f"half past {now}"] * 3]
    past, to = ("past", "after"), ("to", "to", "till")
    words, hours = (past, now) if minute < 30 else (to, following)
    distance = minute if minute < 30 else 60 - minute
    if distance == 15:
        quarters = ("a quarter", "quarter")
        return texts + [f"{quarter} {word} {hours}" for word in words for quarter in quarters]
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
def time_spellings(hour: int, minute: int) -> tuple[tuple[str, ...], ...]:
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
    half, upper = ("a", "A") if hour < 12 else ("p", "P")
    marks = (f" {half}m", f" {half}m", f" {half}.m.", f"{half}m", f" {upper}M", f"{upper}M")
    digital = [f"{hour:02d}:{minute:02d}"] * 4 + [f"{on_face}:{minute:02d}{mark}" for mark in marks]
    digital += [f"{on_face}.{minute:02d}{mark}" for mark in (marks[0], marks[3])]
    face = _spoken_on_face(hour, minute)
    at_twelve = _at_twelve(hour, minute)
    times_of_day = _PARTS_OF_DAY[hour]
    if minute == 0:
        digital += [f"{on_face}{mark}" for mark in marks]
    if minute == 0 and on_face == 12:
        # "twelve in the morning" is neither noon nor midnight.
        spoken = at_twelve + (["twelve o'clock at night"] if hour == 0 else ["twelve o'clock noon"])
    else:
        starts = [*face, f"{on_face}:{minute:02d}"]
        starts += [] if minute else [integer_words(on_face), str(on_face)]
        spoken = [f"{start} {time_of_day}" for start in starts for time_of_day in times_of_day]
        said = face[0] if minute else integer_words(on_face)
        spoken += [f"{said} {half}{dot}m{dot}" for dot in ("", ".")]
        spoken += at_twelve * 2
    return tuple(digital), tuple(spoken), tuple(face)


def spell_time(hour: int, minute: int, random, *, family: int) -> str:
    """A random spelling of a time of one family: `DIGITAL`, `SPOKEN` or `FACE`."""
    return pick(time_spellings(hour, minute)[family], random)


_JOINERS = {
    SPOKEN: "2*{date}, {time} | 2*{date} at {time} | {date}, at {time}",
    DIGITAL: "{date}, {time} | 2*{date} {time} | 2*{date} at {time}",
}
_TIME_FIRST = "{time} on {date} | {time}, {date} | at {time} on {date}"


def join_date_and_time(date: str, time: str, random, *, family: int) -> str:
    """Joins the spellings of a date and of a time, in either order, the date first more often."""
    joiner = pick(options(_TIME_FIRST if random() < 0.25 else _JOINERS[family]), random)
    return joiner.format(date=date, time=time)
