"""Chinese numerals, dates, times and amounts of money, each in one canonical form.

These are the target side of the generated pairs (`kformer.examples`). Where Chinese allows
several spellings, one is fixed here, so that a value has exactly one target:

- Numerals group by 万 (10**4) and 亿 (10**8). Zeros inside a group, and zeros between a group and a
  lower group with leading zeros, are read as one 零: 12305 一万二千三百零五, 100001234
  一亿零一千二百三十四. A group without leading zeros follows without 零: 1203000 一百二十万三千.
- A numeral that begins with ten has 十, not 一十: 12 十二, 100000 十万. Inside a numeral it is
  一十: 110 一百一十.
- Two is 二 in every numeral (二百, 二千, 二万). It is 两 only when it stands alone
  before an hour or a unit of money, where 二 would be wrong: 两点, 两美元, 两角.
- A date is written in digits, 2031年5月3日, and a weekday follows it, 星期一 to 星期六, 星期日.
- A time is written in numerals on the twelve-hour clock with the part of the day: 凌晨 (0-5 h),
  早上 (6-8), 上午 (9-11), 中午 (12), 下午 (13-17), 晚上 (18-23). Midnight is 凌晨零点. Thirty
  minutes are 半; minutes below ten take 零.
- Money takes its unit and subunit: 三美元五十美分. Yuan split into 角 and 分: 三元五角, 三元零五分.
"""

import datetime
from functools import cache

DIGITS = "零一二三四五六七八九"
WEEKDAYS = ("星期一", "星期二", "星期三", "星期四", "星期五", "星期六", "星期日")

_PARTS_OF_DAY = ["凌晨"] * 6 + ["早上"] * 3 + ["上午"] * 3 + ["中午"] + ["下午"] * 5 + ["晚上"] * 6
_UNITS = ((10**8, "亿"), (10**4, "万"), (1000, "千"), (100, "百"), (10, "十"))


@cache
def _inner(number):
    """The numeral as it stands inside a longer one: 10 is 一十, 0 is empty."""
    if number < 10:
        return DIGITS[number] if number else ""
    power, unit = next(pair for pair in _UNITS if number >= pair[0])
    high, low = divmod(number, power)
    zero = "零" if 0 < low < power // 10 else ""
    return _inner(high) + unit + zero + _inner(low)


def spell_integer(number: int) -> str:
    """Spells an integer in Chinese numerals.

    Args:
        number: int from 0 to 999,999,999,999.

    Returns:
        str. The numeral, for example `"一万二千三百零五"` for 12305.
    """
    text = _inner(number) or DIGITS[0]
    return text[1:] if text.startswith("一十") else text


def spell_decimal(number: str) -> str:
    """Spells a decimal number given in digits: `"3.14"` is 三点一四."""
    whole, point, fraction = number.partition(".")
    text = spell_integer(int(whole))
    return text + "点" + "".join(DIGITS[int(digit)] for digit in fraction) if point else text


def spell_ordinal(number: int) -> str:
    """Spells an ordinal: 23 is 第二十三."""
    return "第" + spell_integer(number)


def spell_percent(number: str) -> str:
    """Spells a percentage, given in digits: `"12.5"` is 百分之十二点五."""
    return "百分之" + spell_decimal(number)


def _counted(number):
    """A numeral that counts the unit after it: a lone two is 两."""
    return "两" if number == 2 else spell_integer(number)


def spell_date(date: datetime.date, *, weekday: bool = False) -> str:
    """Writes a date, and its weekday if asked: 2031年5月3日星期六."""
    text = f"{date.year}年{date.month}月{date.day}日"
    return text + WEEKDAYS[date.weekday()] if weekday else text


def spell_time(hour: int, minute: int, *, part_of_day: bool = True) -> str:
    """Writes a time of day.

    Args:
        hour: int from 0 to 23.
        minute: int from 0 to 59.
        part_of_day: bool, default True. Whether to begin with the part of the day. Without it
            the time is that of a clock face, from 一点 to 十二点 ("half past four" is 四点半).

    Returns:
        str. The time, for example `"下午四点半"` for 16, 30.
    """
    text = _counted(0 if hour == 0 and part_of_day else hour % 12 or 12) + "点"
    if minute == 30:
        text += "半"
    elif minute:
        text += ("零" if minute < 10 else "") + spell_integer(minute) + "分"
    return _PARTS_OF_DAY[hour] + text if part_of_day else text


def spell_money(units: int, subunits: int, unit: str, subunit: str | None) -> str:
    """Writes an amount of money.

    Args:
        units: int. The whole units.
        subunits: int from 0 to 99. The hundredths.
        unit: str. The currency in Chinese, for example `"美元"`.
        subunit: str or `None`. Its hundredth, for example `"美分"`; `"分"` (yuan) is split into 角
            and 分. `None` for a currency without hundredths, whose `subunits` are 0.

    Returns:
        str. The amount, for example `"五美元五十美分"`. A part that is 0 is left out, unless
        both are.
    """
    text = _counted(units) + unit if units or not subunits else ""
    if not subunits:
        return text
    if subunit != "分":
        return text + _counted(subunits) + subunit
    tenths, hundredths = divmod(subunits, 10)
    if tenths:
        text += _counted(tenths) + "角"
    elif text:
        text += "零"
    return text + _counted(hundredths) + "分" if hundredths else text
