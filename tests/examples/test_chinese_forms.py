"""The Chinese of the embedded corpus: another way to the numerals, and tables by hand."""

import datetime
import random
import re

import pytest

from kformer.examples import chinese_forms as chinese

pytestmark = pytest.mark.any_backend


def numeral_by_rewriting(number):
    """Another way to the numeral: every digit with its unit, then the rules of 零 as rewriting of
    the text.
    """
    units = ["", "十", "百", "千", "万", "十", "百", "千", "亿", "十", "百", "千"]
    digits = str(number)
    text = "".join(
        "零一二三四五六七八九"[int(d)] + units[len(digits) - 1 - i] for i, d in enumerate(digits)
    )
    text = re.sub("零[千百十]", "零", text)
    text = re.sub("亿零+万", "亿零", text)
    text = re.sub("零+(?=[万亿])", "", text)
    text = re.sub("零+", "零", text)
    text = text.rstrip("零") or "零"
    return re.sub("^一十", "十", text)


def test_numerals_agree_with_rewriting():
    generator = random.Random(1)
    numbers = [
        *range(11_000),
        *(generator.randrange(10 ** generator.randrange(1, 13)) for _ in range(20_000)),
    ]
    for _ in range(20_000):  # zeros in every place
        numbers.append(
            int(
                "".join(
                    generator.choice("00" + generator.choice("123456789"))
                    for _ in range(generator.randrange(1, 13))
                )
            )
        )
    for number in numbers:
        assert chinese.spell_integer(number) == numeral_by_rewriting(number)


@pytest.mark.parametrize(
    "number, numeral",
    [
        (0, "零"),
        (2, "二"),
        (10, "十"),
        (12, "十二"),
        (20, "二十"),
        (100, "一百"),
        (101, "一百零一"),
        (110, "一百一十"),
        (111, "一百一十一"),
        (200, "二百"),
        (1001, "一千零一"),
        (1010, "一千零一十"),
        (1100, "一千一百"),
        (2222, "二千二百二十二"),
        (10_000, "一万"),
        (10_001, "一万零一"),
        (10_010, "一万零一十"),
        (12_305, "一万二千三百零五"),
        (20_500, "二万零五百"),
        (100_000, "十万"),
        (100_010, "十万零一十"),
        (110_000, "十一万"),
        (1_001_000, "一百万一千"),
        (1_203_000, "一百二十万三千"),
        (10_200_300, "一千零二十万零三百"),
        (100_000_005, "一亿零五"),
        (100_001_234, "一亿零一千二百三十四"),
        (101_234_567, "一亿零一百二十三万四千五百六十七"),
        (1_000_000_000, "十亿"),
        (1_200_050_000, "十二亿零五万"),
        (100_000_000_000, "一千亿"),
    ],
)
def test_numerals_by_hand(number, numeral):
    assert chinese.spell_integer(number) == numeral


def test_chinese_forms_by_hand():
    saturday = datetime.date(2031, 5, 3)
    assert (
        chinese.spell_date(saturday, weekday=True) + chinese.spell_time(16, 30)
        == "2031年5月3日星期六下午四点半"
    )
    assert chinese.spell_date(datetime.date(2031, 5, 4), weekday=True) == "2031年5月4日星期日"
    assert chinese.spell_date(datetime.date(1999, 12, 31)) == "1999年12月31日"
    assert chinese.spell_time(0, 0) == "凌晨零点"
    assert chinese.spell_time(0, 5) == "凌晨零点零五分"
    assert chinese.spell_time(2, 2) == "凌晨两点零二分"
    assert chinese.spell_time(7, 10) == "早上七点十分"
    assert chinese.spell_time(11, 45) == "上午十一点四十五分"
    assert chinese.spell_time(12, 30) == "中午十二点半"
    assert chinese.spell_time(14, 20) == "下午两点二十分"
    assert chinese.spell_time(22, 0) == "晚上十点"
    assert chinese.spell_time(16, 30, part_of_day=False) == "四点半"
    assert chinese.spell_time(0, 30, part_of_day=False) == "十二点半"
    assert chinese.spell_money(12_305, 0, "美元", "美分") == "一万二千三百零五美元"
    assert chinese.spell_money(2, 2, "美元", "美分") == "两美元两美分"
    assert chinese.spell_money(22, 12, "欧元", "欧分") == "二十二欧元十二欧分"
    assert chinese.spell_money(0, 50, "英镑", "便士") == "五十便士"
    assert chinese.spell_money(12, 50, "元", "分") == "十二元五角"
    assert chinese.spell_money(12, 5, "元", "分") == "十二元零五分"
    assert chinese.spell_money(0, 5, "元", "分") == "五分"
    assert chinese.spell_money(3, 22, "元", "分") == "三元两角两分"
    assert chinese.spell_money(500, 0, "日元", None) == "五百日元"
    assert chinese.spell_decimal("3.14") == "三点一四"
    assert chinese.spell_decimal("10.05") == "十点零五"
    assert chinese.spell_percent("12.5") == "百分之十二点五"
    assert chinese.spell_ordinal(112) == "第一百一十二"
