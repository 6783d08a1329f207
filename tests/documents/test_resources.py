"""Messages of programs: JSON, ARB, properties, strings of Apple and Android, and catalogues."""

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest

from kformer.documents import format_of, translate_document
from tests.documents.fakes import Fake, reverse

pytestmark = pytest.mark.any_backend
ICU = (
    "Hi {name}, you have {n, plural, offset:1 =0 {no birds} one {# bird at {place}} other {# big "
    "birds, {who, select, me {mine} other {'{'theirs'}'}}}} in {d, date, short}."
)


def translated(text, format, function=str.upper, **options):
    return translate_document(Fake(function), text, format, **options)


def test_json():
    text = """{"a b": "Some <b>{{name}}</b> text \\u0026 \\"more\\"\\nNext", "n": [1, null, "x y"],
  "@@locale": "en_GB", "key": "one", "@key": {"description": "not me"}, "e": "", "b": {"c": "d"}}
"""
    found = translated(text, "json", target_language="de").text
    expected = text.replace("Some", "SOME").replace(" text", " TEXT").replace("more", "MORE")
    expected = expected.replace("Next", "NEXT").replace("x y", "X Y").replace(r"\u0026", "&")
    expected = expected.replace('"one"', '"ONE"').replace('"d"', '"D"').replace("en_GB", "de")
    assert found == expected and json.loads(found)["@key"] == {"description": "not me"}
    wild = 'a "b" \\ \n {x} <i>'
    found = json.loads(translated(text, "json", lambda text: wild).text)
    assert found.keys() == json.loads(text).keys() and found["e"] == ""
    with pytest.raises(ValueError, match="not valid JSON"):
        translated('{"a": b}', "json")


def test_json_of_objects_in_an_array_and_half_a_character():
    text = '[{"a": "b", "@type": "T"}, {"a": "c", "@type": "T"}, "d"]'
    expected = text.replace('"b"', '"B"').replace('"c"', '"C"').replace('"d"', '"D"')
    assert translated(text, "json").text == expected
    found = translated(b'{"a": "b\\n\\ud83d\\nc"}', "json").text
    assert json.loads(found) == {"a": "B\n\ufffd\nC"}


@pytest.mark.parametrize("function", [str.upper, reverse, lambda text: f"l'{text}'"])
def test_branches_of_icu(function):
    found = json.loads(translated(json.dumps({"a": ICU}), "json", function).text)["a"]
    for part in ("{name}", "{n, plural, offset:1 =0 {", "one {", "} other {", "{d, date, short}"):
        assert part in found
    assert (
        found.count("#") == 2 and found.count("{") == ICU.count("{") and "birds" not in found[:40]
    )
    # An apostrophe before a brace would quote it.
    assert translated('{"a": "{b} c"}', "json", lambda text: f"l'{text}").text == '{"a": "l’{b} c"}'
    assert not re.search(r"'(?=[{}])", found.replace("'{'", "").replace("'}'", ""))
    if function is str.upper:
        for part in ("NO BIRDS", "# BIRD AT {place}", "BIG BIRDS", "MINE", "'{'THEIRS'}'", "IN {d"):
            assert part in found


PROPERTIES = r"""# a comment = not me
! nor me \
key.one = Some text \
    that goes on.\n\
    Next line
a\ key:With {0} it''s not
 other   l'arbre \u00e9t\u00e9
empty=
slot={0} of {1}
"""


def test_properties():
    found = translated(PROPERTIES, "properties").text
    assert found == PROPERTIES.replace("Some text", "SOME TEXT").replace(
        "that goes on", "THAT GOES ON"
    ).replace("Next line", "NEXT LINE").replace("With {0} it''s not", "WITH {0} IT''S NOT").replace(
        r"l'arbre \u00e9t\u00e9", "L'ARBRE ÉTÉ"
    ).replace("{0} of", "{0} OF")
    # Java before version 9 reads bytes as ISO 8859-1.
    found = translated(PROPERTIES.encode(), "properties", lambda text: "水 ü 𝄞").text
    assert found.isascii() and rb"other   \u6C34 \u00FC \uD834\uDD1E" in found
    found = translated("a=é b".encode("latin-1"), "properties", lambda text: "ü 水").text
    assert found == b"a=\xfc \\u6C34"
    assert translated("a=é b".encode(), "properties").text == "a=É B".encode()
    # The apostrophe of a message is written twice, if it has slots.
    found = translated("a=Do {0} now\nb=Do now", "properties", lambda text: f"l'{text}").text
    assert "a=l''Do {0}" in found and "b=l'Do" in found


STRINGS = """/* "a" = "not me"; */
"key one" = "Some \\"text\\" for %1$@ and %d";
// "b" = "nor me";
key2="a\\nb";
"""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_strings(encoding):
    found = translated(STRINGS.encode(encoding), "strings").text.decode(encoding)
    assert found == STRINGS.replace("Some", "SOME").replace("text", "TEXT").replace(
        " for", " FOR"
    ).replace("and", "AND").replace("a\\nb", "A\\nB")
    assert '"l\\"x"' in translated('"k" = "a";', "strings", lambda text: 'l"x').text


ANDROID = """<?xml version="1.0" encoding="utf-8"?>
<resources xmlns:xliff="urn:oasis:names:tc:xliff:document:1.2">
    <!-- <string name="x">not me</string> -->
    <string name="a">Don\\'t see <b>it</b>, <xliff:g id="n">%1$s</xliff:g> &amp; it\\nNext</string>
    <string name="b" translatable="false">not me</string>
    <string name="c"><![CDATA[See <a href="x">it</a> & more]]></string>
    <string name="d">@string/a</string><string name="e"/>
    <string-array name="f" translatable="false"><item>not me</item></string-array>
    <string-array name="g"><item>one</item><item>two</item></string-array>
    <plurals name="h"><item quantity="one">%d bird</item><item quantity="other">%d birds</item>
    </plurals><integer-array name="i"><item>not me</item></integer-array>
    <style name="j"><item name="k">not me</item></style>
    <string name="l">It is &lt;b>100%&lt;/b> sure</string>
</resources>
"""


def test_android():
    found = translated(ANDROID, "android").text
    expected = ANDROID
    for part in ("Don\\'t see", ">it<", "& it", "See", "more", "one<", "two", "%d bird<", "Next"):
        expected = expected.replace(part, part.upper().replace("%D", "%d"))
    expected = expected.replace("%d birds", "%d BIRDS").replace("&amp; it", "&amp; IT")
    expected = expected.replace("It is &lt;b>100%&lt;/b> sure", "IT IS &lt;b>100%&lt;/b> SURE")
    assert found == expected
    found = translated(ANDROID, "android", lambda text: f"@l'<{text}\" \\").text
    rows = {e.get("name"): "".join(e.itertext()) for e in ElementTree.fromstring(found)}
    assert rows["b"] == "not me" and rows["d"] == "@string/a"
    assert rows["c"].startswith("\\@l\\'<See <a") and rows["a"].startswith("\\@l\\'<Don\\'t")


CATALOGUE = r"""msgid ""
msgstr "Content-Type: text/plain; charset=CHARSET\n"

#, c-format
msgid "%s is %d%% of %-5.*f, 1920x%dx%u"
msgstr ""

#, python-brace-format
msgid "{a!r:>{b}} and {{c}}"
msgstr ""

#, qt-format
msgid "%1 of %L2 and %n bird(s)"
msgstr ""

msgid "\033[1mbold\x41\a\f\v\b \\033"
msgstr ""
"""


@pytest.mark.skipif(shutil.which("msgfmt") is None, reason="gettext is not installed")
@pytest.mark.parametrize("function", [str.upper, reverse, lambda text: f"水{text}的"])
def test_placeholders_of_a_catalogue_by_its_flags(function):
    found = translated(CATALOGUE, "po", function)
    command = ["msgfmt", "-c", "-o", "/dev/null", "-"]
    result = subprocess.run(command, input=found.text.encode(), capture_output=True)
    assert result.returncode == 0, result.stderr.decode()
    assert found.report.untranslated == 0 and "charset=UTF-8" in found.text
    # The arguments of a sentence keep their order.
    assert [found.text.rindex(each) for each in ("%s", "%d%%", "%-5.*f")] == sorted(
        found.text.rindex(each) for each in ("%s", "%d%%", "%-5.*f")
    )
    if function is str.upper:
        assert r"\033[1MBOLDA\a\f\v\b \\033" in found.text


def test_the_formats_of_files():
    names = {
        "a.json": "json",
        "b.arb": "json",
        "c.properties": "properties",
        "d.strings": "strings",
    }
    names |= {"values/strings.xml": "android", "other.xml": "text"}
    assert {name: format_of(name) for name in names} == names


def test_android_in_the_encoding_that_it_says():
    declared = '<?xml version="1.0" encoding="iso-8859-1"?>'
    text = declared + '<resources><string name="a">{}</string></resources>'
    found = translated(text.format("é").encode("latin-1"), "android", lambda text: "→ä").text
    assert found == text.format("&#8594;ä").encode("latin-1")


def test_a_value_of_android_in_quotes():
    page = '<resources><string name="a">{}</string></resources>'
    for source in ('"  Don\'t go "', ' "It\'s \\"mine\\" &amp; \\n yours"\n'):
        found = translated(page.format(source), "android").text
        assert found == page.format(source.upper().replace("&AMP;", "&amp;").replace("\\N", "\\n"))


def test_a_placeholder_before_a_letter_of_chinese():
    text = '"a" = "共%ld张照片，%1$d个，%n年%1項，%H:%M時，$NAME先生";\n'
    assert all(translated(text, "strings", case).text == text for case in (str.upper, str.lower))
