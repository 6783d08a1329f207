"""XLIFF 1.2 and 2: targets get the codes of their sources, and all else stays."""

import copy
import re
import xml.etree.ElementTree as ET

import pytest

from kformer.documents import translate_document
from tests.documents.fakes import Fake, reverse, scrambled

pytestmark = pytest.mark.any_backend
SOURCES = {
    "1.2": [
        "one house",
        'a <g id="1">big <x id="2"/> man</g> here',
        'an <bpt id="1">&lt;b&gt;</bpt>old<ept id="1">&lt;/b&gt;</ept> tree &amp; <bx id="2"/>all'
        '<ex id="2"/>',
        'it <mrk mtype="protected">Stays</mrk>.<x id="3" ctype="lb"/>Next line',
        '<g id="4"> in all </g>',
        "<![CDATA[a < b & c]]>",
    ],
    "2.0": [
        "one house",
        'a <pc id="1">big <ph id="2"/> man</pc> here',
        'an <sc id="1"/>old<ec startRef="1"/> tree <mrk id="m" translate="no">Stays</mrk>',
    ],
}


def unit(version, number, source, target="", attributes=""):
    if version == "1.2":
        return (
            f'   <trans-unit id="{number}"{attributes}>\n    <source>{source}</source>{target}\n'
            "    <note>Not me</note></trans-unit>\n"
        )
    return (
        f'   <unit id="{number}"{attributes}><segment>\n    <source>{source}</source>{target}\n'
        "   </segment></unit>\n"
    )


def document(version, *units, attributes=""):
    head = (
        '<xliff version="1.2"><file source-language="en" original="a">'
        if version == "1.2"
        else '<xliff version="2.0" srcLang="en"><file id="f">'
    )
    body = "".join(units)
    return f'<?xml version="1.0"?>\n{head}<group{attributes}>\n{body}</group></file></xliff>\n'


def translated(text, function=str.upper, **options):
    return translate_document(Fake(function), text, "xliff", **options).text


def sides(text):
    """The sources and targets, as another parser has them."""
    root = ET.fromstring(text)
    return [
        [unit.find("source"), unit.find("target")]
        for name in ("trans-unit", "segment")
        for unit in root.iter(name)
    ]


def codes(element):
    return sorted(
        (code.tag, sorted(code.attrib.items())) for child in element for code in child.iter()
    )


@pytest.mark.parametrize("version", SOURCES)
@pytest.mark.parametrize("function", [str, str.upper, reverse, scrambled])
def test_targets_have_the_codes_of_their_sources(version, function):
    text = document(version, *(unit(version, *pair) for pair in enumerate(SOURCES[version])))
    found = translated(text, function)
    for source, target in sides(found):
        assert codes(source) == codes(target)
        if function in (str, str.upper):
            expected = copy.deepcopy(source)
            for each in expected.iter():
                is_kept = each.tag in ("bpt", "ept") or "Stays" in (each.text or "")
                each.text = each.text if is_kept else function(each.text or "")
                each.tail = function(each.tail or "")
            assert "".join(expected.itertext()) == "".join(target.itertext())
    # What is new is all that is new.
    without = re.sub(r'\s*<target[ >].*?</target>| state="translated"', "", found)
    assert without == text


def test_states_of_targets():
    cases = {
        "<target/>": "<target {}>A</target>",
        "<target></target>": "<target {}>A</target>",
        '<target state="new" xml:lang="de">b</target>': '<target {} xml:lang="de">A</target>',
        "<target>b</target>": "<target>b</target>",
        '<target state="final">b</target>': '<target state="final">b</target>',
    }
    new = 'state="needs-review-translation" state-qualifier="mt-suggestion"'
    for before, after in cases.items():
        text = document("1.2", unit("1.2", 0, "a", before))
        found = translated(text)
        if "xml:lang" in before:
            after = '<target {} xml:lang="de" {}>A</target>'.format(*new.split())
        assert found == text.replace(before, after.format(new))


def test_segments_with_a_state():
    text = document("2.0", unit("2.0", 0, "a", "\n    <target>b</target>"), unit("2.0", 1, "c"))
    first, second = sides(translated(text))
    assert (first[1].text, second[1].text) == ("b", "C")
    initial = text.replace("<segment>", '<segment id="x" state="initial">')
    found = translated(initial)
    assert [side[1].text for side in sides(found)] == ["A", "C"]
    assert found.count('<segment id="x" state="translated">') == 2


def test_what_is_not_translated():
    no, yes = (f' translate="{value}"' for value in ("no", "yes"))
    text = document(
        "1.2", unit("1.2", 0, "a", attributes=yes), unit("1.2", 1, "b"), attributes=no
    ).replace("<note>", "<alt-trans><source>d</source></alt-trans><note>")
    assert [target is not None for _, target in sides(translated(text))] == [True, False]


def test_sentences_that_another_tool_has_found():
    marks = '<mrk mtype="seg" mid="1">One. Two</mrk> <mrk mtype="seg" mid="2">three</mrk>'
    text = document("1.2", unit("1.2", 0, "One. Two three", f"\n<seg-source>{marks}</seg-source>"))
    ((_, target),) = sides(translated(text, reverse))
    assert [mark.text for mark in target] == ["One. Two", "three"]


def target_of(source, function=str.upper, attributes=""):
    text = translated(document("1.2", unit("1.2", 0, source, attributes=attributes)), function)
    ET.fromstring(text)
    return re.search(r"<target [^>]*>(.*)</target>", text, re.S)[1]


def test_characters_that_the_encoding_lacks_are_references():
    text = document("1.2", unit("1.2", 0, "a")).replace("?>", ' encoding="us-ascii"?>')
    found = translate_document(Fake(lambda text: "水é"), text.encode(), "xliff").text
    assert b">&#27700;&#233;</target>" in found
    assert [target.text for _, target in sides(found)] == ["水é"]


def test_lines_where_white_space_is_preserved():
    lines = "Line one\n  and more\r\n\nline two"
    preserve = ' xml:space="preserve"'
    for function in (str.upper, reverse):
        found = target_of(lines, function, preserve).replace("\r", "")
        assert re.findall(r"\s*\n\s*", found) == ["\n  ", "\n\n"]
    assert target_of("one <x id='1'/>\ntwo", attributes=preserve) == "ONE <x id='1'/>\nTWO"
    assert target_of("One.&#10;Two&#xA;three") == "ONE.&#10;TWO&#xA;THREE"
    assert target_of("one\ntwo") == "ONE TWO"


@pytest.mark.parametrize("function", [str.upper, reverse, scrambled])
def test_codes_beside_each_other(function):
    found = target_of('<g id="1"><g id="2"/>word</g> and <g id="3">more<g id="4"/></g>', function)
    assert re.search(r'<g id="1">(?:(?!</g>).)*<g id="2"/>', found)
    assert re.search(r'<g id="3">(?:(?!</g>).)*<g id="4"/></g>', found)
    assert "<?pi x > y?>" in target_of("one <?pi x > y?> two", function)
    pairs = 'one <bpt id="1"/>two <bpt id="2"/>three <ept id="1"/>four<ept id="2"/> five'
    found = target_of(pairs, function)
    assert all(found.index(f'<bpt id="{i}"') < found.index(f'<ept id="{i}"') for i in (1, 2))
    assert function is not str.upper or found == re.sub(
        "[a-z]+ ?(?=<)|five", lambda match: match[0].upper(), pairs
    )


def test_the_language_of_targets():
    for version, name in (("1.2", "target-language"), ("2.0", "trgLang")):
        text = document(version, unit(version, 0, "a"))
        found = translated(text, target_language="deu_Latn")
        assert found.count(f' {name}="de"') == 1 and name not in translated(text)
        assert translated(found.replace('"de"', '"fr"'), target_language="de").count('="fr"') == 1


def test_documents_that_are_none():
    for text, message in (
        ("<xliff><a></xliff>", "The document is not valid XML"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><xliff/>', "declares entities"),
    ):
        with pytest.raises(ValueError, match=message):
            translated(text)
