"""What the formats of applications write in signs of their own: escapes, spaces and branches."""

import json
import re
import time

import javaproperties
import pyicumessageformat
import pytest

from kformer.documents import translate_document
from tests.documents.fakes import Fake, reverse

pytestmark = pytest.mark.any_backend
ICU = pyicumessageformat.Parser({"allow_tags": False})
UNREADABLE = "it could not be read"
CHOICE = "{0,choice,0#no files|1#one file|1<{0,number,integer} files}"


def translated(text, format, function=str.upper):
    return translate_document(Fake(function), text, format)


def mirrored(text):
    """The letters of each word from the last to the first."""
    return " ".join(word[::-1] if word.isalpha() else word for word in text.split())


def apostrophes(text):
    return f"l'{text}'"


ANDROID = '<resources><string name="a">{}</string></resources>'


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        # The end of a line is white space, unless it is written.
        ("line one\n     line two", "LINE ONE\n     LINE TWO"),
        ("line one.\n     Line two.", "LINE ONE.\n     LINE TWO."),
        ("one&#10;two", "ONE&#10;TWO"),
        ("<b>one</b>\n  two", "<b>ONE</b>\n  TWO"),
        (r"one\n\t &#10; two", r"ONE\n\t &#10; TWO"),
        (r"C:\\new", r"C:\\NEW"),
        ('<![CDATA[<a\n href="x">it</a>]]>', '<![CDATA[<a\n href="x">IT</a>]]>'),
        # Two escapes are one character.
        (r"\uD83D\uDE00 smile", "\U0001f600 SMILE"),
        (r"Name:\u0020", r"NAME:\u0020"),
        (r"name:\\\u0020", r"NAME:\\\u0020"),
        (r" \u0020and\u0020more", r" \u0020AND MORE"),
        ("at &app; &amp;nbsp; now &amp; then", "AT &app; &amp;nbsp; NOW &amp; THEN"),
        ("<![CDATA[a &amp; b&nbsp;c]]>", "<![CDATA[A &amp; B&nbsp;C]]>"),
        (
            "<![CDATA[one]]> and <![CDATA[<b>two</b>]]>",
            "<![CDATA[ONE]]> AND <![CDATA[<b>TWO</b>]]>",
        ),
        ('see <x:g id="a">one</x:g> now', 'SEE <x:g id="a">one</x:g> NOW'),
    ],
)
def test_android(source, expected):
    assert translated(ANDROID.format(source), "android").text == ANDROID.format(expected)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (r"b=\u0020 start", r"b=\u0020 START"),
        ("k\\\n ey=value", "k\\\n ey=VALUE"),
        ("k \\\n = \\\n value", "k \\\n = \\\n VALUE"),
        ("a=one \\\n  \\u0020two", "a=ONE \\\n  \\u0020TWO"),
        ("a=one.\\n\\\n  Two", "a=ONE.\\n\\\n  TWO"),
        ("a=one\\ \\\n  two", "a=ONE\\ \\\n  TWO"),
        (r"a=\ud83d\ude00 smile", "a=\U0001f600 SMILE"),
        (f"f={CHOICE}", "f={0,choice,0#NO FILES|1#ONE FILE|1<{0,number,integer} FILES}"),
    ],
)
def test_properties(source, expected):
    found = translated(source, "properties").text
    assert found == expected
    # As another reader has them: keys, and values with their spaces.
    for (key, value), (same, target) in zip(
        javaproperties.loads(source).items(), javaproperties.loads(found).items(), strict=True
    ):
        assert key == same and (CHOICE in value or value.upper() == target)


def test_arguments_with_spaces():
    text = '{"a": "see { name } of { n , number } and {{ x }}"}'
    expected = '{"a": "ees { name } fo { n , number } dna {{ x }}"}'
    assert translated(text, "json", mirrored).text == expected


def test_a_space_where_a_line_of_properties_goes_on():
    found = translated(
        "a=一二三四\\\n  五六七八", "properties", lambda text: "one two three four"
    ).text
    assert found == "a=one two\\\n  \\ three four"


def test_strings():
    source = '"a" = "\\Ud83d\\Ude00 smile at %#@files@ and %1$#@n@";'
    expected = '"a" = "\U0001f600 SMILE AT %#@files@ AND %1$#@n@";'
    assert translated(source, "strings").text == expected


MESSAGES = [
    "{n, plural, offset:1 =0 {no birds} one {# bird at {place}} other {# birds}} here",
    "{who, select, me {my {n, selectordinal, one {#st} other {#th}} bird} other {a bird}}",
    "l''arbre {n, plural, other {'{'brace'}' it''s}}",
]


def structure(node):
    """A parsed message without its texts; arguments may stand in another order."""
    if isinstance(node, dict):
        return [(key, structure(value)) for key, value in node.items()]
    if isinstance(node, list):
        return sorted((structure(each) for each in node if not isinstance(each, str)), key=str)
    return node


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("function", [str.upper, reverse, mirrored, apostrophes])
def test_branches_of_icu(message, function):
    found = json.loads(translated(json.dumps({"a": message}), "json", function).text)["a"]
    assert found != message or function is not str.upper
    assert structure(ICU.parse(found)) == structure(ICU.parse(message))


def test_an_apostrophe_before_a_brace_beside_quoted_braces():
    found = translated(
        "{\"a\": \"'{'x'}' see {b}\"}", "json", lambda text: text.replace("see ", "l'")
    )
    assert found.text == "{\"a\": \"'{'x'}' l’{b}\"}"


@pytest.mark.parametrize("format", ["properties", "json"])
def test_branches_of_a_choice(format):
    def value(text):
        return json.loads(text)["f"] if format == "json" else text.removeprefix("f=")

    source = json.dumps({"f": CHOICE}) if format == "json" else f"f={CHOICE}"
    found = translated(source, format, mirrored).text
    assert value(found) == "{0,choice,0#on selif|1#eno elif|1<{0,number,integer} selif}"
    # Java reads a branch with an argument twice, and its apostrophes, too.
    assert "'" not in value(translated(source, format, apostrophes).text)
    for sign in "#<|":
        result = translated(source, format, lambda text, sign=sign: f"{text} {sign} b")
        assert value(result.text) == CHOICE and result.report.untranslated == 1


@pytest.mark.parametrize(
    ("format", "source"),
    [
        ("json", '{"a": "{n, plural, one {a bird}"}'),
        ("properties", "a={0,choice,no files|one file}"),
        ("strings", '"a" = "{n, plural, one {a bird}";'),
        ("po", 'msgid "{n, plural, one {a bird}"\nmsgstr ""\n'),
        ("android", ANDROID.format("{n, plural, one {a bird} other {# birds}}")),
    ],
)
def test_branches_that_cannot_be_read_are_reported(format, source):
    result = translated(source, format, mirrored)
    assert result.text == source
    assert [problem.reason for problem in result.report.problems] == [UNREADABLE]


XLIFF = {
    "1.2": '<xliff version="1.2"><file><trans-unit id="a"><source>{}</source></trans-unit></file>'
    "</xliff>",
    "2": '<xliff version="2.0"><file><unit id="a"><segment><source>{}</source></segment></unit>'
    "</file></xliff>",
}
# As Angular writes it.
UNIT = '{VAR_PLURAL, plural, =1 {one} other {<x id="I"/> minutes &amp; <x id="J"/>}}'


def target_of(text):
    return re.search("<target.*?>(.*)</target>", text, re.S)[1]


@pytest.mark.parametrize("version", XLIFF)
def test_branches_of_xliff(version):
    page = XLIFF[version].format(UNIT)
    found = translated(page, "xliff").text
    expected = UNIT.replace("one", "ONE").replace("minutes", "MINUTES")
    assert target_of(found) == expected and page.split("<source>")[0][:20] in found
    wrapped = UNIT.replace(" =1", "\n  =1").replace("minutes", "long\n minutes")
    found = translated(XLIFF[version].format(wrapped), "xliff", mirrored).text
    expected = wrapped.replace("one", "eno").replace("minutes", "setunim").replace("long", "gnol")
    assert target_of(found) == expected
    assert "’" in target_of(translated(page, "xliff", apostrophes).text)
    plain = XLIFF[version].format("{name} is there")
    assert target_of(translated(plain, "xliff", apostrophes).text).startswith("l’{name}")
    for text in (UNIT.replace("<x", "{<x"), UNIT[:-1]):
        page = XLIFF[version].format(text)
        result = translated(page, "xliff")
        assert result.text == page
        assert [problem.reason for problem in result.report.problems] == [UNREADABLE]
    # A sign of the syntax that the model writes.
    result = translated(XLIFF[version].format(UNIT), "xliff", lambda text: f"{text} #")
    assert "#" not in result.text and result.report.untranslated == 1


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("strings", "/* " * 20_000),
        ("strings", "a" * 50_000),
        ("strings", '"' + '\\"' * 50_000),
        ("properties", f"a=b{' ' * 50_000}c"),
        ("properties", "a=b" + "\\n" * 20_000 + "c"),
        ("android", ANDROID.format(f"a{' ' * 50_000}b")),
        ("json", json.dumps({"a": "{n, plural, other {a" + " " * 50_000 + "b}}"})),
    ],
)
def test_long_values_are_read_in_linear_time(format, text):
    begin = time.process_time()
    translated(text, format)
    assert time.process_time() - begin < 3
