"""The rules on examples, and the duplicates."""

import itertools

import numpy as np
import pytest

from benchmarks.corpora import clean, with_dirt
from kformer.data.corpora.languages import LanguageScores
from kformer.data.corpora.rules import LEVELS, RULES, Cleaner
from kformer.data.corpora.seen import Seen

pytestmark = pytest.mark.any_backend

GERMAN = "Die Katze schläft heute auf dem Sofa."
ENGLISH = "The cat sleeps on the sofa today."


def reason(source, target, rules=LEVELS["strict"], languages=("en", "de"), **options):
    _, _, reasons, _ = Cleaner(rules, languages, **options)([source], [target])
    return None if reasons[0] < 0 else RULES[reasons[0]]


def test_a_clean_pair_stays_as_it_is():
    texts = [ENGLISH, 'The answer (42) is "yes".'], [GERMAN, "Die Antwort (42) ist „ja“."]
    sources, targets, reasons, repairs = Cleaner(LEVELS["strict"], ("en", "de"))(*texts)
    assert (sources, targets) == texts
    assert reasons.dtype == np.int8 and reasons.tolist() == [-1, -1]
    assert {rule: changes.tolist() for rule, changes in repairs.items()} == {
        "mojibake": [False, False],
        "html": [False, False],
    }


@pytest.mark.parametrize(
    ("rule", "source", "target"),
    [
        ("mojibake", ENGLISH, "Die Katze schl\ufffdft heute auf dem Sofa."),
        ("empty", "", GERMAN),
        ("empty", ENGLISH, "\u00a0 "),
        ("empty", ENGLISH, "<br/>"),
        ("too_long", "word " * 201, "Wort " * 201),
        ("too_long", "See " + "x" * 101, "Siehe " + "x" * 101),
        ("identical", ENGLISH, ENGLISH.upper().rstrip(".")),
        ("identical", "2019", "2019"),
        ("letters", "----------", "=========="),
        ("letters", "12.05.2019", "5/12/2019"),
        ("letters", "https://example.com/a/cat", "https://beispiel.de/eine/katze"),
        ("length_ratio", "The cat sleeps.", "Die Katze schläft heute auf dem alten roten Sofa."),
        ("script", ENGLISH, "Кошка спит на диване."),
        ("script", ENGLISH, "我们必须走了，因为很晚了。"),
        ("language", GERMAN, ENGLISH),
        ("language", ENGLISH, "The cat is sleeping on a sofa."),
        ("language", ENGLISH, "Le chat dort sur le canapé aujourd'hui."),
        ("untranslated", ENGLISH, "Die Katze schläft sleeps on the sofa today."),
        ("repetition", ENGLISH, "Die Katze die Katze die Katze die Katze"),
        ("repetition", "We go and we go and we go and we go.", GERMAN),
        ("numbers", "The cat sleeps 12 hours.", "Die Katze schläft 21 Stunden."),
        ("numbers", "It was founded in 1912.", "Sie wurde vor langer Zeit gegründet."),
    ],
)
def test_the_rule_that_leaves_a_pair_out(rule, source, target):
    assert reason(source, target) == rule
    assert reason(source, target, rules=[r for r in RULES if r != rule]) != rule


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("Hello Peter!", "Hallo Peter!"),
        ("Thank you.", "Vielen Dank."),
        ("I paid 1,234.50 euros.", "Ich habe 1.234,50 Euro bezahlt."),
        ("Chapters 10 and 12.", "Kapitel 12 und 10."),
        ("Ten minutes and six hundred days.", "10 Minuten und 600 Tage."),
        ("See www.example.com for more about it.", "Mehr darüber steht auf www.example.com."),
        ("It begins at 3:00.", "Es beginnt um 3 Uhr."),
        ("I have 2 dogs.", "Ich habe zwei Hunde."),
        ("We go and we go and we go and go.", "Wir gehen und gehen und wir gehen und gehen."),
        ("The Bellingham High School Band plays.", "Die Bellingham High School Band spielt."),
        ("Press <enter> when 3 < 5.", "Drücken Sie <enter>, wenn 3 < 5 ist."),
    ],
)
def test_pairs_that_stay(source, target):
    assert reason(source, target) is None


@pytest.mark.parametrize(
    ("source", "target", "rule"),
    [
        ("I was born in 1988.", "我生于1988年。", None),
        ("I have a Facebook account.", "我有一个Facebook的帐号。", None),
        ("Tom swims.", "Tom游泳。", None),
        ("We must go now, because it is late.", "我们必须走了，因为已经很晚了。", None),
        ("We must go now, because it is late.", "我们。", "length_ratio"),
        ("We must go now, because it is late.", "We have to go because of the hour.", "script"),
        ("We must go now, because it is late.", "我们必须走了，因为已经 it is late.", None),
        ("We must go now, because it is late.", "もう遅いので行かなければなりません。", "script"),
        ("A cat. " * 100, "一只猫在沙发上睡觉。" * 20, None),
        ("git-rebase-todo is missing.", "git-rebase-todo 丢失。", None),
        ("git-rebase-todo is missing.", "git-rebase-todo is 丢 from this place.", "script"),
    ],
)
def test_chinese(source, target, rule):
    assert reason(source, target, languages=("eng_Latn", "zh_CN")) == rule


@pytest.mark.parametrize(
    ("rule", "source", "target", "is_out"),
    [
        ("untranslated", "a b c d e", "a b c d xxxxxxxx", True),  # 4 of 16 characters.
        ("untranslated", "a b c d e", "a b c d xxxxxxxxx", False),
        ("untranslated", "a b c e d", "a b c d xxx", False),
        ("untranslated", "a b c d e", "", False),
        ("repetition", "a b c d e f", "x y z X Y Z", True),
        ("repetition", "a b c d e f", "x y z X Y v", False),
        ("repetition", "a b c d e f", "x y x y x", False),
    ],
)
def test_the_bounds_of_a_rule_alone(rule, source, target, is_out):
    assert reason(source, target, rules=[rule]) == (rule if is_out else None)


def test_codes_that_nobody_knows_leave_scripts_and_languages_alone():
    assert reason(GERMAN, "Кошка спит сегодня на диване.", languages=("xx", "tlh")) is None


def test_codes_of_three_letters_are_those_of_two():
    assert Cleaner(["language"], ("swh_Latn", "kat_Geor")).unknown == []
    assert reason(ENGLISH, "Кошка спит сегодня.", languages=("eng_Latn", "xxx_Geor")) == "script"


@pytest.mark.parametrize("code", ["sr", "sr@latin", "sr_Cyrl", "be@latin", "uz@cyrillic"])
def test_languages_of_two_scripts(code):
    latin, cyrillic = "Mačka danas spava na našem divanu.", "Мачка данас спава на нашем дивану."
    is_cyrillic = code in ("sr_Cyrl", "uz@cyrillic")
    if code != "uz@cyrillic":
        assert reason(ENGLISH, cyrillic if is_cyrillic else latin, languages=("en", code)) is None
    if code != "sr":
        other = latin if is_cyrillic else cyrillic
        assert reason(ENGLISH, other, languages=("en", code)) == "script"


@pytest.mark.parametrize(
    ("text", "repaired", "rule"),
    [
        ("Die Katze schlÃ¤ft.", "Die Katze schläft.", "mojibake"),
        ("Die StraÃŸe fÃ¼hrt zum CafÃ©.", "Die Straße führt zum Café.", "mojibake"),
        ("Das ist â€žgutâ€œ\u00e2\u0080\u00a8so.", "Das ist „gut“ so.", "mojibake"),
        ("Die\x00 Katze\x1f\x00 schläft\ufeff.", "Die Katze schläft.", "mojibake"),
        ("Die\x0bKat\x7fze.", "Die Katze.", "mojibake"),
        ("Die\tKatze.", "Die\tKatze.", None),
        ("Katzen &amp; Hunde&nbsp;schlafen", "Katzen & Hunde schlafen", "html"),
        ("<p class='x'>Die <b>Kat</b>ze</p><br>schläft", "Die Katze schläft", "html"),
        ("&amp;lt;i&amp;gt;Katze&amp;lt;/i&amp;gt; schläft", "Katze schläft", "html"),
        ("<A\nHREF=x>Die</A > <img src=a/>Katze<br /> schläft", "Die Katze schläft", "html"),
        ("<style>b {x: y}</style>Die Katze<!-- a --> schläft", "Die Katze schläft", "html"),
        ("a <b und c> d", "a <b und c> d", None),
        ("git add <address> <Option> schläft", "git add <address> <Option> schläft", None),
        ("<option>Kat<code>z</code>e</option> schläft", "Katze schläft", "html"),
        ("AT&T &c. a<b?x=1&copy=2 <name>", "AT&T &c. a<b?x=1&copy=2 <name>", None),
        ("Ａ　ｂ ﬁ “x” …", "Ａ　ｂ ﬁ “x” …", None),
    ],
)
def test_repairs(text, repaired, rule):
    _, targets, _, repairs = Cleaner(LEVELS["usual"], ("en", "de"))([ENGLISH], [text])
    assert targets == [repaired]
    assert [name for name, changes in repairs.items() if changes[0]] == ([rule] if rule else [])
    _, targets, _, repairs = Cleaner((), ("en", "de"))([ENGLISH], [text])
    assert targets == [text] and repairs == {}


def test_a_huge_text_of_tags_does_not_take_long():
    text = "<style>" * 100_000
    assert reason(text, text, rules=["html", "too_long"]) == "too_long"


def test_the_first_rule_is_the_reason():
    assert reason("", "") == "empty"
    assert reason("12.05.2019", "12.05.2019") == "identical"
    assert reason("12.05.2019", "12.05.2019", rules=["letters"]) == "letters"


def test_overlap():
    excluded = [ENGLISH, "Hello!", "Hallo!", "今天早上他打开门。"]
    assert reason(ENGLISH.upper(), "Etwas anderes steht hier.", excluded=excluded) == "overlap"
    assert reason("Something else stands here.", ENGLISH, excluded=excluded) == "overlap"
    assert reason("hello", "hallo", excluded=excluded) == "overlap"
    assert reason("Hello!", "Guten Tag!", excluded=excluded) is None
    chinese = reason("Something.", "今天早上他打开门", languages=("en", "zh"), excluded=excluded)
    assert chinese == "overlap"


def repeats(seen, pairs):
    exact, near = seen(Seen.hashes_of(*zip(*pairs, strict=True)))
    return ["exact" if e else "near" if n else "" for e, n in zip(exact, near, strict=True)]


PAIRS = [
    ("A cat.", "Eine Katze."),
    ("A cat!", "eine Katze"),
    ("A cat!", "eine Katze"),
    ("A cat.", "Eine Katze."),
    ("A cat.", "Die Katze."),
    ("Chapter 1", "Kapitel 1"),
    ("Chapter 2", "Kapitel 2"),
    ("1", "1"),
    ("2", "2"),
]


@pytest.mark.parametrize("size", [1, 2, 9])
def test_duplicates_do_not_depend_on_the_chunks(size):
    expected = ["", "near", "near", "exact", "", "", "near", "", ""]
    seen = Seen(RULES)
    chunks = [PAIRS[start : start + size] for start in range(0, len(PAIRS), size)]
    assert [value for chunk in chunks for value in repeats(seen, chunk)] == expected
    # The pairs that were not left out make the same state again.
    again = Seen(RULES)
    repeats(again, [pair for pair, value in zip(PAIRS, expected, strict=True) if not value])
    more = [*PAIRS, ("A dog.", "Ein Hund.")]
    assert repeats(again, more) == repeats(seen, more)
    exact = Seen(["duplicates"])
    values = [value for chunk in chunks for value in repeats(exact, chunk)]
    assert values == ["", "", "exact", "exact", "", "", "", "", ""]
    assert set(repeats(Seen([]), PAIRS)) == {""}
    near = Seen(["near_duplicates"])
    values = [value for chunk in chunks for value in repeats(near, chunk)]
    assert values == ["near" if value else "" for value in expected]


def test_many_hashes():
    generator, seen, before = np.random.default_rng(1), Seen(RULES), set()
    for _ in range(40):
        hashes = generator.integers(0, 3000, 100, "uint64")
        exact, near = seen(np.stack([hashes, hashes], axis=1))
        for value, is_repeat in zip(hashes.tolist(), exact.tolist(), strict=True):
            assert is_repeat == (value in before)
            before.add(value)
        assert not near.any()


def test_hashes_are_the_same_in_every_process():
    hashes = Seen.hashes_of(["A cat \ud800", "1"], ["Straße 我", ""])
    assert hashes.tolist() == [
        [11597833983122674932, 16236853542945993054],
        [12428692834488689708, 15098779707408634213],
    ]


def test_language_scores_are_those_of_py3langid():
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    scores = LanguageScores(["en", "de_AT", "xx"])
    assert scores.languages[:2] == ["en", "de"] and "xx" not in scores.languages
    model = LanguageIdentifier.from_model_file(MODEL_FILE)
    model.set_languages(scores.languages)
    texts = [GERMAN, ENGLISH, "", "我们走了 2", "ALLES KLAR", "a a a a a", "é" * 10]
    for text, row in zip(texts, scores(texts), strict=True):
        if text:
            expected = dict(model.rank(text))
            np.testing.assert_allclose(row, [expected[c] for c in scores.languages], atol=0.05)
    assert scores([]).shape == (0, len(scores.languages))


def phrases(*parts):
    return ["".join(words) for words in itertools.product(*(part.split("|") for part in parts))]


def test_planted_dirt():
    english = phrases(
        "A man|A woman|The old teacher|The little girl|Two children|My neighbour|The tall driver",
        " sits in the garden| is waiting for the train| reads a long letter| buys fresh bread"
        "| opens the heavy door| is looking for a key| sings a beautiful song",
        " today.| in the evening.| before the rain comes.| and laughs loudly.| with some friends.",
    )
    german = phrases(
        "Ein Mann|Eine Frau|Der alte Lehrer|Das kleine Mädchen|Zwei Kinder|Mein Nachbar|Der große "
        "Fahrer",
        " sitzen im Garten| warten auf den Zug| lesen einen langen Brief| kaufen frisches Brot"
        "| öffnen die schwere Tür| suchen nach einem Schlüssel| singen ein schönes Lied",
        " heute.| am Abend.| bevor der Regen kommt.| und lachen laut.| mit einigen Freunden.",
    )
    order = np.random.default_rng(3).permutation(len(english))
    english, german = ([side[i] for i in order] for side in (english, german))
    sources, targets, kinds, expected = with_dirt(english, german, ("en", "de"), 0.4, 1)
    kinds = np.array([kind or "clean" for kind in kinds])
    is_out = {}
    for level in ("usual", "strict"):
        *texts, reasons = clean(LEVELS[level], sources, targets, ("en", "de"), [])
        is_out[level] = reasons >= 0
    is_right = np.array([a == b for a, b in zip(zip(*texts, strict=True), expected, strict=True)])
    for kind in ("clean", "html", "mojibake"):
        assert is_right[kinds == kind].all()
        assert is_out["usual"][kinds == kind].mean() <= (0 if kind == "clean" else 0.2), kind
    gone = "copies other_language repeated numbers_only swapped symbols empty_side links"
    for kind in gone.split():
        assert is_out["usual"][kinds == kind].mean() >= 0.8, kind
    for kind in ("shifted", "truncated", "other_numbers"):
        assert is_out["strict"][kinds == kind].mean() >= 0.7, kind
    assert is_out["strict"][kinds == "clean"].mean() < 0.03


def test_no_pairs():
    sources, targets, reasons, repairs = Cleaner(LEVELS["strict"], ("en", "de"))([], [])
    assert (sources, targets, reasons.tolist()) == ([], [], [])
    assert all(len(changes) == 0 for changes in repairs.values())
