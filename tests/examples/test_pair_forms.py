"""The English and the Chinese of the embedded corpus, against readers written for these tests
alone.

Each pair is read twice, its English by regular expressions and word lists, its Chinese likewise,
and both must give the same value. Tables by hand fix the English forms; `test_embedded_chinese.py`
has those of the Chinese."""

import datetime
import random
import re

import pytest

from kformer.examples import chinese_forms as chinese
from kformer.examples.english_dates import FACE, SPOKEN, time_spellings, year_words
from kformer.examples.english_numbers import integer_words, ordinal_digits, ordinal_words
from kformer.examples.pairs import SPLITS, generate_pairs

pytestmark = pytest.mark.any_backend


# Chinese, read back.
DIGIT = {character: value for value, character in enumerate("零一二三四五六七八九")} | {"两": 2}


def read_numeral(text):
    for unit, power in (("亿", 10**8), ("万", 10**4), ("千", 1000), ("百", 100), ("十", 10)):
        if unit in text:
            high, low = text.split(unit, 1)
            return (read_numeral(high) if high else 1) * power + (read_numeral(low) if low else 0)
    digit, *more = text.lstrip("零") or "零"
    assert not more, text
    return DIGIT[digit]


def read_chinese_date(text):
    year, month, day, weekday = re.fullmatch(
        r"(\d{4})年(\d{1,2})月(\d{1,2})日(?:星期(.))?", text
    ).groups()
    return datetime.date(int(year), int(month), int(day)), weekday and "一二三四五六日".index(
        weekday
    )


def read_chinese_time(text):
    part, hour, minute, half = re.fullmatch(
        r"([凌早上中下晚][晨午上])?(.+)点(?:(.+)分|(半))?", text
    ).groups()
    hour, minute = read_numeral(hour), 30 if half else read_numeral(minute) if minute else 0
    if part is None:
        return hour % 12, minute, "face"
    hour = hour % 12 + (12 if part in ("中午", "下午", "晚上") else 0)
    assert part == next(p for p, last in PARTS_OF_DAY if hour <= last)
    return hour, minute, "day"


PARTS_OF_DAY = (("凌晨", 5), ("早上", 8), ("上午", 11), ("中午", 12), ("下午", 17), ("晚上", 23))


def read_chinese_decimal(text):
    whole, _, fraction = text.partition("点")
    return read_numeral(whole) + sum(DIGIT[d] * 10.0 ** -(i + 1) for i, d in enumerate(fraction))


CHINESE_UNITS = {
    "美元": "dollar",
    "欧元": "euro",
    "英镑": "pound",
    "日元": "yen",
    "加元": "canadian dollar",
    "澳元": "australian dollar",
    "港元": "hong kong dollar",
    "瑞士法郎": "swiss franc",
    "韩元": "won",
    "元": "yuan",
}
CHINESE_SUBUNITS = {"美分": "dollar", "欧分": "euro", "便士": "pound"}


def read_chinese_money(text):
    amount, currency = 0.0, None
    for unit, name in CHINESE_UNITS.items():
        if unit in text and currency is None:
            numeral, text = text.split(unit, 1)
            amount, currency = read_numeral(numeral), name
    for unit, name in CHINESE_SUBUNITS.items():
        if text.endswith(unit):
            assert currency in (None, name)
            return name, amount + read_numeral(text.removesuffix(unit)) / 100
    if text:
        assert currency in (None, "yuan")
        jiao, fen = re.fullmatch(r"(?:(.)角)?零?(?:(.)分)?", text).groups()
        return "yuan", amount + (DIGIT[jiao] / 10 if jiao else 0) + (DIGIT[fen] / 100 if fen else 0)
    return currency, amount


# English, read back. Sources are lowered first.
def words_of(text):
    return text.split()


SMALL = {
    word: value
    for value, word in enumerate(words_of("zero one two three four five six seven eight nine ten"))
}
TEENS = words_of("eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen")
SMALL |= {word: value for value, word in enumerate(TEENS, 11)}
TENS = words_of("twenty thirty forty fifty sixty seventy eighty ninety")
SMALL |= {word: 10 * value for value, word in enumerate(TENS, 2)}
SCALE = {"thousand": 10**3, "million": 10**6, "billion": 10**9}


def read_words(text):
    """An integer in words."""
    total = group = 0
    words = text.replace("-", " ").replace(",", "").split()
    assert words
    for index, word in enumerate(words):
        if word == "hundred":
            group *= 100
        elif word in SCALE:
            total, group = total + group * SCALE[word], 0
        elif word == "and":
            assert 0 < index < len(words) - 1
        else:
            group += 1 if word == "a" and index == 0 else SMALL[word]
    return total + group


def read_number(text):
    """A number in digits, in words, or with its scale apart."""
    if text == "half a million":
        return 500_000
    if match := re.fullmatch(r"([\d,]*\d(?:\.\d+)?)(?: (thousand|million|billion))?", text):
        digits, scale = match.groups()
        assert re.fullmatch(r"\d{1,3}(,\d{3})*(\.\d+)?|\d+(\.\d+)?", digits), text
        return round(float(digits.replace(",", "")) * SCALE.get(scale, 1), 4)
    if match := re.fullmatch(r"(.+) and a half (million|billion)", text):
        return (read_words(match[1]) + 0.5) * SCALE[match[2]]
    if match := re.fullmatch(r"(.+) point ([a-z ]+?)(?: (thousand|million|billion))?", text):
        fraction = "".join(
            str(SMALL["zero" if word == "oh" else word]) for word in match[2].split()
        )
        return round(float(f"{read_words(match[1])}.{fraction}") * SCALE.get(match[3], 1), 4)
    return read_words(text)


ORDINALS = words_of(
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth "
    "thirteenth fourteenth "
    "fifteenth sixteenth seventeenth eighteenth nineteenth twentieth twenty-first "
    "twenty-second twenty-third "
    "twenty-fourth twenty-fifth twenty-sixth twenty-seventh twenty-eighth twenty-ninth "
    "thirtieth thirty-first"
)
ORDINAL_ENDINGS = dict(zip(ORDINALS[:20], range(1, 21), strict=True)) | {
    "thirtieth": 30,
    "fortieth": 40,
    "fiftieth": 50,
    "sixtieth": 60,
    "seventieth": 70,
    "eightieth": 80,
    "ninetieth": 90,
}


def read_ordinal(text):
    text = text.removeprefix("the ")
    if match := re.fullmatch(r"([\d,]+)(st|nd|rd|th)", text):
        number = int(match[1].replace(",", ""))
        ending = (
            "th" if 10 < number % 100 < 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
        )
        assert match[2] == ending, text
        return number
    before, last = re.fullmatch(r"(.*?)([a-z]+)", text).groups()
    if last in ("hundredth", "thousandth"):
        return read_words(before + last.removesuffix("th"))
    value = ORDINAL_ENDINGS[last]
    before = before.strip(" -").removesuffix(" and")
    return read_words(before) + value if before else value


def read_english_number(text):
    if match := re.fullmatch(r"(?:minus |negative |-)(.+)", text):
        return "integer", -read_number(match[1])
    if match := re.fullmatch(r"(.+?)(?: ?%| percent| per cent)", text):
        return "percent", read_number(match[1])
    if re.search(r"(st|rd|th|second|\dnd)$", text):
        return "ordinal", read_ordinal(text)
    return "integer", read_number(text)


def read_chinese_number(text):
    for prefix, kind in (("负", "minus"), ("第", "ordinal"), ("百分之", "percent")):
        if text.startswith(prefix):
            value = read_chinese_decimal(text.removeprefix(prefix))
            return ("integer", -value) if kind == "minus" else (kind, value)
    return "integer", read_chinese_decimal(text)


SIGNS = {
    **{
        "us$": "dollar",
        "hk$": "hong kong dollar",
        "ca$": "canadian dollar",
        "c$": "canadian dollar",
    },
    **{
        "a$": "australian dollar",
        "$": "dollar",
        "€": "euro",
        "£": "pound",
        "cn¥": "yuan",
        "jp¥": "yen",
        "₩": "won",
    },
}
CODES = {
    **{
        "usd": "dollar",
        "eur": "euro",
        "gbp": "pound",
        "cny": "yuan",
        "rmb": "yuan",
        "jpy": "yen",
        "krw": "won",
    },
    **{
        "cad": "canadian dollar",
        "aud": "australian dollar",
        "hkd": "hong kong dollar",
        "chf": "swiss franc",
    },
}
NAMES = {
    **{
        "us dollar": "dollar",
        "buck": "dollar",
        "dollar": "dollar",
        "euro": "euro",
        "pounds sterling": "pound",
    },
    **{
        "pound sterling": "pound",
        "british pound": "pound",
        "pound": "pound",
        "quid": "pound",
        "yuan": "yuan",
    },
    **{
        "japanese yen": "yen",
        "yen": "yen",
        "south korean won": "won",
        "won": "won",
        "swiss franc": "swiss franc",
    },
    **{name: name for name in ("canadian dollar", "australian dollar", "hong kong dollar")},
}
NAMED = "|".join(sorted(NAMES, key=len, reverse=True))
SUBUNITS = {
    "cent": "dollar",
    "¢": "dollar",
    "euro cent": "euro",
    "pence": "pound",
    "penny": "pound",
    "p": "pound",
}


def read_english_money(text):
    for table, pattern in ((SIGNS, "{name}(.+)"), (CODES, "{name} (.+)"), (CODES, "(.+) {name}")):
        for name, currency in table.items():
            if match := re.fullmatch(pattern.format(name=re.escape(name)), text):
                return currency, read_number(match[1])
    lone = re.fullmatch(r"(.+?) ?(euro cents?|cents?|penny|pence|¢|p)", text)
    if lone and not re.search(rf"\b({NAMED})s?\b", lone[1]):
        count, name = read_number(lone[1]), lone[2]
        assert name in ("¢", "p") or (count == 1) == (name in ("cent", "euro cent", "penny")), text
        return SUBUNITS[name.removesuffix("s")], count / 100
    if match := re.fullmatch(
        r"(?:(.+?) (yuan)(?:(?:,| and)? )?)?(?:(\w+) jiao(?: and)? ?)?(?:(\w+) fen)?", text
    ):
        yuan, unit, jiao, fen = match.groups()
        if jiao or fen:
            assert yuan is None or unit
            counts = [read_number(count) if count else 0 for count in (yuan, jiao, fen)]
            return "yuan", counts[0] + counts[1] / 10 + counts[2] / 100
    units, name, plural, subunits = re.fullmatch(
        rf"(.+?) ({NAMED})(s?)(?:(?:,| and|) (.+) (?:cents?|pence|penny))?", text
    ).groups()
    amount = 1 if units == "a" else read_number(units)
    if name.split()[-1] in ("dollar", "buck", "euro", "franc") or name in (
        "pound",
        "british pound",
    ):
        assert (amount == 1) == (not plural), text
    return NAMES[name], amount + (read_number(subunits) / 100 if subunits else 0)


WEEKDAY = r"(?P<{0}>mon|tue|wed|thu|fri|sat|sun)(?:day|s|sday|nesday|rs|rsday|urday)?\.?"
MONTH = (
    r"(?P<month>jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)"
    r"(?:uary|ruary|ch|il|e|y|ust|t|tember|ober|ember)?\.?"
)
DAY = r"(?:(?P<day>\d\d?)(?P<suffix>st|nd|rd|th)?|(?P<ordinal>[a-z]+(?:-[a-z]+)?))"
YEAR = r"(?P<year>\d{4}|[a-z]+(?:[ -][a-z]+)*)"
BEFORE, INSIDE, AFTER = map(WEEKDAY.format, ("before", "inside", "after"))
DATE_SHAPES = [
    re.compile(rf"(?:{BEFORE},? )?{shape}(?: \({INSIDE}\)|, {AFTER})?")
    for shape in (
        rf"(?:the )?{DAY}(?: of)? {MONTH},? {YEAR}",
        rf"{MONTH} (?:the )?{DAY},? {YEAR}",
        r"(?P<year>\d{4})(?P<mark>[-/])(?P<number>\d\d)(?P=mark)(?P<day>\d\d)",
        rf"(?P<day>\d\d?)-{MONTH}-(?P<year>\d{{4}})",
    )
]
MONTHS = words_of("jan feb mar apr may jun jul aug sep oct nov dec")
DAYS = words_of("mon tue wed thu fri sat sun")


def read_year(text):
    if text.isdigit():
        return int(text)
    if text.startswith(("two thousand", "nineteen hundred")):
        return read_words(text)
    century, _, rest = text.replace("-", " ").partition(" ")
    assert century in ("nineteen", "twenty")
    return SMALL[century] * 100 + read_words(rest.removeprefix("oh "))


def read_english_date(text):
    """(date, weekday or None), or None where the text is not a date and nothing else."""
    for shape in DATE_SHAPES:
        if match := shape.fullmatch(text):
            found = match.groupdict()
            try:
                month = (
                    int(found["number"])
                    if found.get("number")
                    else MONTHS.index(found["month"]) + 1
                )
                day = (
                    int(found["day"]) if found.get("day") else ORDINALS.index(found["ordinal"]) + 1
                )
                date = datetime.date(read_year(found["year"]), month, day)
            except (AssertionError, KeyError, ValueError):
                continue
            if found.get("suffix"):
                read_ordinal(found["day"] + found["suffix"])
            weekday = found["before"] or found["inside"] or found["after"]
            return date, weekday and DAYS.index(weekday)
    return None


PART = (
    r"(?: ?(?P<part>[ap])\.?m\.?"
    r"| (?P<said>in the morning|in the afternoon|in the evening|at night|noon))?"
)
COUNT = r"(\d\d?|[a-z]+(?:-[a-z]+)?)"
MINUTES = "(?: minutes?)?"
TIME_SHAPES = [
    (re.compile(shape + PART), reader)
    for shape, reader in (
        (r"(?P<h>\d\d?)[:.](?P<m>\d\d)", lambda f: (int(f["h"]), int(f["m"]))),
        (rf"(?P<h>{COUNT})(?: o'clock)?", lambda f: (read_number(f["h"]), 0)),
        (rf"(?P<h>{COUNT}) oh (?P<m>[a-z]+)", lambda f: (read_number(f["h"]), read_number(f["m"]))),
        (
            r"(?P<h>[a-z]+) (?P<m>[a-z]+(?:-[a-z]+)?)",
            lambda f: (read_number(f["h"]), read_number(f["m"])),
        ),
        (rf"half past (?P<h>{COUNT})", lambda f: (read_hour(f["h"]), 30)),
        (rf"(?:a )?quarter (?:past|after) (?P<h>{COUNT})", lambda f: (read_hour(f["h"]), 15)),
        (rf"(?:a )?quarter (?:to|till) (?P<h>{COUNT})", lambda f: (read_hour(f["h"]) - 1, 45)),
        (
            rf"(?P<m>{COUNT}){MINUTES} (?:past|after) (?P<h>{COUNT})",
            lambda f: (read_hour(f["h"]), read_number(f["m"])),
        ),
        (
            rf"(?P<m>{COUNT}){MINUTES} (?:to|till) (?P<h>{COUNT})",
            lambda f: (read_hour(f["h"]) - 1, 60 - read_number(f["m"])),
        ),
    )
]


def read_hour(text):
    return {"noon": 12, "midnight": 24}.get(text) or read_number(text)


def read_english_time(text):
    """(hour, minute, "day"), or on the face alone (hour, minute, "face"), or None where the text is
    no time.
    """
    if text in ("noon", "midday", "12 noon", "twelve noon"):
        return 12, 0, "day"
    if text in ("midnight", "12 midnight", "twelve midnight"):
        return 0, 0, "day"
    for shape, reader in TIME_SHAPES:
        if match := shape.fullmatch(text):
            found = match.groupdict()
            try:
                hour, minute = reader(found)
            except (AssertionError, KeyError):
                continue
            half, said = found["part"], found["said"]
            if not half and not said:
                if text.endswith(("noon", "midnight")) or re.fullmatch(r"\d\d:\d\d", text):
                    return hour % 24, minute, "day"
                return hour % 12, minute, "face"
            if not 0 <= hour <= 12 or not 0 <= minute < 60:
                return None
            hour %= 12
            late = half == "p" or said in ("in the afternoon", "in the evening", "noon")
            late |= said == "at night" and hour >= 6
            return hour + 12 * late, minute, "day"
    return None


def read_english_datetime(text):
    """Every (date, weekday, hour, minute) that the text can be split into."""
    found = set()
    for space in re.finditer(" ", text):
        left, right = text[: space.start()].removesuffix(","), text[space.end() :]
        for date, time in (
            (left, right.removeprefix("at ")),
            (right.removeprefix("on "), left.removeprefix("at ")),
        ):
            read_date, read_time = read_english_date(date), read_english_time(time)
            if read_date and read_time and read_time[2] == "day":
                found.add((*read_date, *read_time[:2]))
    return found


def lowered(category, count=15_000):
    """Pairs of all splits, the English lowered and without a leading "on" or "at"."""
    pairs = [
        pair
        for split in SPLITS
        for pair in generate_pairs(count // 3, seed=21, split=split, categories=category)
    ]
    return [(re.sub("^(on|at) ", "", pair.source.lower()), pair.target) for pair in pairs]


def test_dates_say_the_same_in_both_languages():
    for source, target in lowered("date"):
        date, weekday = read_english_date(source)
        assert (date, weekday) == read_chinese_date(target), source
        assert weekday in (None, date.weekday()), source


def test_times_say_the_same_in_both_languages():
    for source, target in lowered("time"):
        assert read_english_time(source) == read_chinese_time(target), source


def test_dates_with_times_say_the_same_and_can_be_read_in_one_way_only():
    for source, target in lowered("datetime", 9000):
        date, time = re.fullmatch(r"(.+日(?:星期.)?)(.+)", target).groups()
        expected = (*read_chinese_date(date), *read_chinese_time(time)[:2])
        assert read_english_datetime(source) == {expected}, source


def test_numbers_say_the_same_in_both_languages():
    for source, target in lowered("number"):
        kind, value = read_english_number(source)
        chinese_kind, chinese_value = read_chinese_number(target)
        assert kind == chinese_kind and value == pytest.approx(chinese_value, rel=1e-12), source


def test_money_says_the_same_in_both_languages():
    for source, target in lowered("money"):
        currency, amount = read_english_money(source)
        chinese_currency, chinese_amount = read_chinese_money(target)
        assert currency == chinese_currency and amount == pytest.approx(
            chinese_amount, rel=1e-12
        ), source


def test_chinese_numerals_are_read_back():
    generator = random.Random(1)
    for _ in range(20_000):
        number = generator.randrange(10 ** generator.randrange(1, 13))
        assert read_numeral(chinese.spell_integer(number)) == number


def test_english_words_are_read_back():
    generator = random.Random(2)
    for _ in range(20_000):
        number = generator.randrange(10 ** generator.randrange(1, 13))
        words = integer_words(
            number,
            british=generator.random() < 0.5,
            commas=generator.random() < 0.5,
            hyphen=generator.choice("- "),
        )
        assert read_words(words) == number


def test_english_words_by_hand():
    assert integer_words(0) == "zero"
    assert integer_words(40) == "forty"
    assert integer_words(94) == "ninety-four"
    assert integer_words(112) == "one hundred twelve"
    assert integer_words(112, british=True) == "one hundred and twelve"
    assert integer_words(12_305, british=True) == "twelve thousand three hundred and five"
    assert integer_words(12_305, commas=True) == "twelve thousand, three hundred five"
    assert integer_words(12_005, british=True, commas=True) == "twelve thousand and five"
    assert integer_words(1_000_001) == "one million one"
    assert integer_words(21, hyphen=" ") == "twenty one"
    ordinals = {
        1: "first",
        12: "twelfth",
        20: "twentieth",
        21: "twenty-first",
        40: "fortieth",
        100: "one hundredth",
    }
    assert {number: ordinal_words(number) for number in ordinals} == ordinals
    assert [ordinal_words(day) for day in range(1, 32)] == ORDINALS
    digits = {
        1: "1st",
        2: "2nd",
        3: "3rd",
        11: "11th",
        12: "12th",
        13: "13th",
        22: "22nd",
        111: "111th",
    }
    digits |= {1023: "1,023rd"}
    assert {number: ordinal_digits(number) for number in digits} == digits


def test_years_by_hand():
    assert set(year_words(1900)) == {"nineteen hundred"}
    assert set(year_words(1905)) == {"nineteen oh five", "nineteen hundred and five"}
    assert set(year_words(1984)) == {"nineteen eighty-four"}
    assert set(year_words(2000)) == {"two thousand"}
    assert set(year_words(2005)) == {"two thousand five", "two thousand and five", "twenty oh five"}
    assert set(year_words(2031)) == {
        "twenty thirty-one",
        "two thousand thirty-one",
        "two thousand and thirty-one",
    }
    for year in range(1900, 2100):
        assert {read_year(words) for words in year_words(year)} == {year}


def test_times_by_hand():
    spoken = set(time_spellings(16, 30)[SPOKEN])
    assert {"half past four in the afternoon", "four thirty pm", "4:30 in the afternoon"} <= spoken
    assert set(time_spellings(16, 45)[FACE]) >= {
        "a quarter to five",
        "quarter to five",
        "four forty-five",
    }
    assert {"noon", "12 noon"} <= set(time_spellings(12, 0)[SPOKEN])
    assert {"midnight"} <= set(time_spellings(0, 0)[SPOKEN])
    assert "ten to noon" in time_spellings(11, 50)[SPOKEN]
    assert "a quarter past midnight" in time_spellings(0, 15)[SPOKEN]
    assert "quarter to one at night" in time_spellings(0, 45)[SPOKEN]
    assert time_spellings(4, 5)[0][0] == "04:05"
    for hour in range(24):
        for minute in range(60):
            *of_day, face = time_spellings(hour, minute)
            lower = [text.lower() for texts in of_day for text in texts]
            assert {read_english_time(text) for text in lower} == {(hour, minute, "day")}
            assert {read_english_time(text) for text in face} == {(hour % 12, minute, "face")}
