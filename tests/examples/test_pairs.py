"""The embedded corpus as a whole: its promises about splits, determinism, size and targets."""

import collections
import datetime
import random
import re

import pytest

from kformer.examples.english_dates import (
    DIGITAL,
    SPOKEN,
    join_date_and_time,
    spell_date,
    spell_time,
)
from kformer.examples.english_numbers import CURRENCIES, spell_integer, spell_money
from kformer.examples.pairs import (
    CATEGORIES,
    SPLITS,
    Pair,
    generate_pairs,
    split_of,
)

pytestmark = pytest.mark.any_backend

TRAIN_PAIRS, HELD_OUT_PAIRS = 100_000, 12_000


@pytest.fixture(scope="module")
def pairs():
    return {
        split: generate_pairs(
            TRAIN_PAIRS if split == "train" else HELD_OUT_PAIRS, seed=11, split=split
        )
        for split in SPLITS
    }


def values_of(pair):
    """The values in a pair, read from its Chinese: its date, its clock face, its quantity as a bare
    numeral.
    """
    target = pair.target
    values = set()
    date = re.match(r"\d+年\d+月\d+日", target)
    if date:
        values.add(date.group())
        target = re.sub(r"^星期.", "", target[date.end() :])
    if pair.category in ("datetime", "time"):
        values.add(re.sub("^(凌晨|早上|上午|中午|下午|晚上)", "", target).replace("零点", "十二点"))
    elif pair.category == "number":
        values.add(re.sub("^(负|第|百分之)", "", target))
    elif pair.category == "money":
        whole, hundredths = amount_of(target)
        values.add(whole + "点" + hundredths if hundredths else whole)
    return {
        re.sub("(点.*?)零+$", r"\1", value) if "点" in value and "分" not in value else value
        for value in values
    }


def amount_of(target):
    """Whole units as a numeral and hundredths as two numerals, from the Chinese of an amount of
    money.
    """
    units, _, rest = re.fullmatch(
        r"(?:([^美欧英元日加澳港瑞韩]+)(美元|欧元|英镑|元|日元|加元|澳元|港元|瑞士法郎|韩元))?(.*)",
        target,
    ).groups()
    units = {"两": "二", None: "零"}.get(units, units)
    digits = dict(zip("零一二三四五六七八九两", [*range(10), 2], strict=True))
    if "角" in rest or rest.endswith("分") and not rest.endswith(("美分", "欧分")):
        parts = re.fullmatch(r"(?:(.)角)?零?(?:(.)分)?", rest).groups()
        tenths, ones = (digits[part] if part else 0 for part in parts)
    else:
        numeral = re.sub("美分|欧分|便士", "", rest)
        tens, ten, ones = numeral.rpartition("十")
        tenths = digits[tens] if tens else int(bool(ten))
        ones = digits[ones] if ones else 0
    numerals = "零一二三四五六七八九"
    return units, (numerals[tenths] + numerals[ones]).rstrip("零") if tenths or ones else ""


def test_values_of_pairs_by_hand():
    pair = Pair
    assert values_of(pair("", "2031年5月3日星期六下午四点半", "datetime")) == {
        "2031年5月3日",
        "四点半",
    }
    assert values_of(pair("", "凌晨零点零五分", "time")) == {"十二点零五分"}
    assert values_of(pair("", "百分之十二点五零", "number")) == {"十二点五"}
    assert values_of(pair("", "十二美元五十美分", "money")) == {"十二点五"}
    assert values_of(pair("", "十二元零五分", "money")) == {"十二点零五"}
    assert values_of(pair("", "两角", "money")) == {"零点二"}
    assert values_of(pair("", "两美元", "money")) == {"二"}
    assert values_of(pair("", "十八便士", "money")) == {"零点一八"}


@pytest.mark.heavy
def test_no_value_of_a_split_occurs_in_another(pairs):
    """Read from the text alone, across categories: a date in a datetime, a number in an amount of
    money.
    """
    values = {split: set().union(*map(values_of, pairs[split])) for split in SPLITS}
    assert values["train"].isdisjoint(values["valid"])
    assert values["train"].isdisjoint(values["test"])
    assert values["valid"].isdisjoint(values["test"])
    assert len(values["valid"]) > 5000 and len(values["test"]) > 5000


def test_no_seed_gives_a_held_out_value(pairs):
    train = set().union(*map(values_of, generate_pairs(20_000, seed=12)))
    for split in ("valid", "test"):
        assert train.isdisjoint(set().union(*map(values_of, pairs[split])))


@pytest.mark.heavy
def test_no_source_has_two_targets(pairs):
    targets = {}
    more = generate_pairs(80_000, seed=13)
    times = generate_pairs(60_000, seed=14, categories="time")
    for pair in (*pairs["train"], *pairs["valid"], *pairs["test"], *more, *times):
        assert targets.setdefault(pair.source, pair.target) == pair.target, pair.source
    # Letters of another case do not change what is said either.
    lower = {}
    for source, target in targets.items():
        assert lower.setdefault(source.lower(), target) == target, source


@pytest.mark.parametrize("split", SPLITS)
def test_every_category_appears_in_every_split(pairs, split):
    shares = collections.Counter(pair.category for pair in pairs[split])
    assert set(shares) == set(CATEGORIES)
    assert min(shares.values()) > 0.05 * len(pairs[split])


def test_no_text_is_empty_or_untidy(pairs):
    for pair in pairs["train"]:
        assert pair.source == pair.source.strip() and "  " not in pair.source
        assert pair.target and not re.search(r"[\sA-Za-z]", pair.target)
        assert re.fullmatch(r"[A-Za-z0-9 ,.:/()'%$€£¥₩¢-]+", pair.source), pair.source


def test_no_ambiguous_form_is_generated(pairs):
    for pair in pairs["train"]:
        assert not re.search(r"\b\d{1,2}/\d{1,2}/\d{2,4}\b", pair.source)
        assert not re.search(r"(?<![NP])¥", pair.source.upper())
        assert pair.category not in ("time", "datetime") or not re.fullmatch(
            r"(at )?\d:\d\d", pair.source
        )


def test_pairs_are_a_function_of_the_arguments():
    pairs = generate_pairs(500, seed=3)
    assert pairs == generate_pairs(500, seed=3)
    assert pairs[:100] == generate_pairs(100, seed=3)
    assert pairs != generate_pairs(500, seed=4)
    assert pairs != generate_pairs(500, seed=3, split="valid")
    assert generate_pairs(0) == []


def test_splits_are_frozen():
    """A value must never change its split, so that what an older model was not trained on stays
    held out.
    """

    def held_out(values):
        return {
            key: split for key, value in values.items() if (split := split_of(value)) != "train"
        }

    dates = {day: datetime.date(2031, 5, day) for day in range(1, 32)}
    assert held_out(dates) == {5: "test", 18: "test", 22: "valid", 29: "valid"}
    times = {minute: datetime.time(16, minute) for minute in range(60)}
    assert held_out(times) == {
        4: "test",
        10: "valid",
        15: "test",
        34: "test",
        35: "test",
        59: "test",
    }
    numbers = {number: number for number in range(12_300, 12_340)}
    assert held_out(numbers) == {12_311: "valid", 12_321: "test", 12_334: "valid", 12_336: "valid"}


def test_split_is_of_the_value_not_of_its_form():
    for minute in range(720):
        morning, evening = (datetime.time(minute // 60 + later, minute % 60) for later in (0, 12))
        assert split_of(morning) == split_of(evening)
    for number in range(100, 2000):
        assert split_of(number) == split_of(str(number)) == split_of(f"{number}.00")
        assert split_of(f"{number}.5") == split_of(f"{number}.50")
    assert {split_of(number) for number in (*range(100), 100, 500_000, "0.5", "0.07")} == {"train"}
    assert split_of(datetime.time(0, 0)) == split_of(datetime.time(12, 0)) == "train"
    held_out = sum(split_of(number) != "train" for number in range(10_000, 40_000))
    assert 0.09 < held_out / 30_000 < 0.11


def test_ten_million_pairs_are_possible():
    """Every date of the training split with every time of it."""
    first = datetime.date(1900, 1, 1)
    dates = [split_of(first + datetime.timedelta(days)) for days in range(73_049)]
    times = [split_of(datetime.time(minute // 60, minute % 60)) for minute in range(1440)]
    assert dates.count("train") * times.count("train") >= 10_000_000


def test_few_pairs_come_twice():
    """The birthday bound: of n random pairs out of N equally likely ones, about n**2 / 2N are
    repeated.
    """
    count = 60_000
    pairs = generate_pairs(count, seed=5, categories=["datetime"])
    repeated = count - len({pair.source for pair in pairs})
    assert repeated <= count**2 / (2 * 10_000_000)


def test_the_promised_examples_are_generated():
    generator = random.Random(0).random
    dates = {spell_date(datetime.date(2031, 5, 3), generator, weekday=True) for _ in range(4000)}
    times = {
        spell_time(16, 30, generator, family=family)
        for family in (DIGITAL, SPOKEN)
        for _ in range(500)
    }
    assert {"4:30 pm", "16:30", "half past four in the afternoon", "four thirty p.m."} <= times
    assert {"Saturday, the 3rd of May 2031", "Sat, 3 May 2031", "2031-05-03 (Saturday)"} <= dates
    date, time = "Saturday, the 3rd of May 2031", "half past four in the afternoon"
    joined = {join_date_and_time(date, time, generator, family=SPOKEN) for _ in range(200)}
    assert "Saturday, the 3rd of May 2031, half past four in the afternoon" in joined
    dollars = {spell_money(12_305, 0, CURRENCIES[0], generator) for _ in range(2000)}
    assert {
        "twelve thousand three hundred and five dollars",
        "$12,305",
        "USD 12,305",
        "12305 dollars",
    } <= dollars
    millions = {spell_integer(2_500_000, generator) for _ in range(500)}
    assert {
        "2.5 million",
        "two and a half million",
        "two point five million",
        "2,500,000",
    } <= millions


@pytest.mark.parametrize(
    "arguments, names",
    [
        ({"split": "training"}, "'training'"),
        ({"categories": ["dates"]}, "'dates'"),
        ({"categories": []}, "''"),
        ({"count": -1}, "-1"),
    ],
)
def test_bad_arguments_are_named(arguments, names):
    with pytest.raises(ValueError, match=names):
        generate_pairs(**{"count": 1, **arguments})
