"""HTML, Markdown, SRT and PO: the structure stays, every tag and time stands once, and nothing is
left without a translation. Parsers of others read both sides.
"""

import types

import html5lib
import polib
import pytest

from kformer.decoding import SearchOptions
from kformer.documents import Glossary, format_of, translate_document
from kformer.documents.gettext_catalogue import unescaped
from kformer.translating.translation import Hypothesis, Translation
from tests.documents.fakes import Fake, scrambled
from tests.documents.generated import Function, Generator, compare, reverse, structure

pytestmark = pytest.mark.any_backend
FORMATS = ("html", "srt", "po", "markdown")


def translated(text, format, function=str.upper, **options):
    return translate_document(Fake(function), text, format, **options).text


@pytest.mark.parametrize("function", [str.upper, reverse])
@pytest.mark.parametrize("name", FORMATS)
def test_generated_documents(name, function):
    maker = Generator(name, seed=1)
    for _ in range(8):
        text = maker.document()
        assert compare(name, text, Function(function))[0] == [], text


@pytest.mark.parametrize("name", FORMATS)
def test_a_model_that_loses_what_it_does_not_know(name):
    """Every translation is one word: nothing but the sentences may change."""
    maker = Generator(name, seed=2)
    for _ in range(4):
        text = maker.document()
        found = translated(text, name, lambda text: "word")
        assert structure(name, found) == structure(name, text)


@pytest.mark.parametrize("name", FORMATS)
def test_a_model_that_scrambles_words(name):
    """What comes out as it went in stays within the tags in which it stood, and no others."""
    maker = Generator(name, seed=4)
    for _ in range(20):
        text = maker.document()
        found = translate_document(Fake(scrambled), text, name)
        assert structure(name, found.text) == structure(name, text)


@pytest.mark.parametrize("name", FORMATS)
def test_signs_of_the_format_in_a_translation(name):
    """What a model writes is text, whatever it looks like."""
    wild = '# <b>*a* [x](y) `z` "q" \\ &amp; --> 1. | _u_'
    text = Generator(name, seed=3).document()
    found = translated(text, name, lambda text: wild)
    assert structure(name, found) == structure(name, text)


HTML = """<!doctype html><html lang=en><head><title>A page</title>
<script>let a = "Not me";</script></head><body class='b'>
<p title="Not me">A <b>big <i>dog</i></b> runs.   It <a href="?a=1&amp;b=2">barks</a>!
<div translate="no">Not me <p translate=yes>But me</p></div>
<p>Type <kbd>Ctrl-C</kbd> or <span class="notranslate">Not me</span>.<br>Next<br>line<img src=i>
<pre>Not me</pre><li>One<li>Two &lt; 3 &copy; <b>unclosed
</body></html>
"""


def test_html():
    found = translated(HTML, "html", target_language="de")
    assert found.count("Not me") == HTML.count("Not me")
    assert 'A <b>BIG <i>DOG</i></b> RUNS.   IT <a href="?a=1&amp;b=2">BARKS</a>!' in found
    assert '<html lang="de">' in found and "<title>A PAGE</title>" in found
    assert "<p translate=yes>BUT ME</p>" in found
    assert 'TYPE <kbd>Ctrl-C</kbd> OR <span class="notranslate">Not me</span>.<br>NEXT' in found
    assert "<li>TWO &lt; 3 © <b>UNCLOSED\n</body>" in found
    assert structure("html", found) == structure("html", HTML)


@pytest.mark.parametrize("mark", ["<![x]>", "<![foo[x]]>", "<![", "<![&]> b", "<![if x]> b"])
def test_html_that_is_broken(mark):
    for name in ("html", "markdown"):
        found = translated(f"<p>house</p>\n{mark}", name)
        assert found == f"<p>HOUSE</p>\n{mark}".replace(" b", " B")
    assert translated(f"{mark}<p>house</p>", "html").endswith(">HOUSE</p>") or mark == "<!["


def test_a_pair_of_tags_without_words():
    text = "<p>See <a>it</a> and <a href=2>\n <svg>x</svg>\n </a> more, <a>@me</a>'s</p>"
    found = translated(text, "html", reverse)
    assert structure("html", found) == structure("html", text)
    assert "more,</p>" not in found and found.count("<svg>x</svg>") == 1


def test_tags_follow_their_words():
    """A phrase whose translation is known tells where its tag stands."""
    words = {"the red house": "la maison rouge", "red": "rouge", "house": "maison"}
    text = "<p>the <b>red</b> <i>house</i></p>"
    found = translated(text, "html", lambda text: words.get(text, text))
    assert found == "<p>la <i>maison</i> <b>rouge</b></p>"


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("markdown", "**a**b\n"),
        ("markdown", "a_b_c *d*e*\n"),
        ("markdown", "a![p](q)b ![p](q) c  d\n"),
        ("html", "<p>a<!-- b -->c</p>"),
        ("html", '<p>a <img alt="foo"> b</p>'),
        ("html", "<p>a  <b>b</b>c<i>d</i> <b></b>\n  <u>e</u><br>f <code>g</code>h</p>"),
        ("html", "<p>12 km <b>3</b> km a{x}<b>b</b>{y}c</p>"),
        ("srt", "1\n00:00:01,000 --> 00:00:02,000\na<i>b</i>c\n{\\an8}d\n"),
    ],
)
def test_what_is_not_translated_stays_where_it_is(format, text):
    assert translated(text, format, str) == text


def test_spaces_around_a_mark():
    text = '<p>a <img alt="foo"> <!-- x --> b<img><img> c <img></p>'
    assert translated(text, "html") == '<p>A <img alt="foo"> <!-- x --> B<img><img> C <img></p>'


def test_a_page_in_another_encoding():
    page = '<meta charset="iso-8859-1"><p>ä house</p>'.encode("latin-1")
    found = translate_document(Fake(lambda text: "ä → b"), page, "html").text
    assert found == '<meta charset="iso-8859-1"><p>ä &#8594; b</p>'.encode("latin-1")
    assert html5lib.parse(found, namespaceHTMLElements=False).find(".//p").text == "ä → b"


def test_the_language_of_a_page():
    page = '<html data-x="a lang=b" {}><p>c</p></html>'
    for before, after in (
        ("LANG=en xml:lang = 'en'", 'LANG="de" xml:lang="de"'),
        ("lang", 'lang="de"'),
        ('{% if a %} lang="{{ a }}"{% endif %}', '{% if a %} lang="{{ a }}"{% endif %}'),
    ):
        found = translated(page.format(before), "html", target_language="de")
        assert found == page.format(after).replace("c<", "C<")


PAGE_IN_ENGLISH = """<html lang="en-GB" xml:lang='en'>
<meta http-equiv="Content-Language" content="en"><link hreflang="en" href=x><body LANG=en>
<p lang=fr>B</p><p>B <span lang="en">B</span> <a hreflang=en lang=en href=x>B</a> <i lang="">B</i>
<p><code lang=en>b</code>
<p lang=en translate=no>b <img lang=en alt=b>
<div translate=no lang=en>b<p translate=yes lang=en>B</p></div>
"""


def test_the_language_of_what_is_translated():
    """It is that of the translation; what stays keeps its own, as does a third language."""
    source = PAGE_IN_ENGLISH.replace(">B", ">b")
    found = PAGE_IN_ENGLISH
    for old in ('<html lang="en-GB"', "xml:lang='en'", 'content="en"', "<body LANG=en"):
        found = found.replace(old, old.split("=")[0] + '="zh-CN"')
    for old in ('span lang="en"', "hreflang=en lang=en", "translate=yes lang=en"):
        found = found.replace(old, old.rpartition("=")[0] + '="zh-CN"')
    assert translated(source, "html", target_language="zh_CN") == found
    # Nothing is said where the language is not known.
    gone = found.replace(' lang="zh-CN"', "").replace(' xml:lang="zh-CN"', "")
    gone = gone.replace(' LANG="zh-CN"', "").replace(' content="zh-CN"', "")
    assert translated(source, "html") == gone
    page = "<html lang=en translate=no><p>b"
    assert translated(page, "html", target_language="de") == page
    part = "<p lang=en>b</p><p lang=fr>b</p>"
    found = translated(part, "html", source_language="fr", target_language="deu_Latn")
    assert found == '<p lang=en>B</p><p lang="de">B</p>'


def test_the_language_of_a_translator_of_several():
    fake = Fake(str.upper)
    fake.tokenizer = types.SimpleNamespace(source_language="eng_Latn", target_language="zho_Hans")
    fake.tokenizer.tokenize = lambda texts, special_tokens: [text.split() for text in texts]
    fake.model = types.SimpleNamespace(max_length=400)
    fake.options = SearchOptions(beam_size=1)
    page = translate_document(fake, '<html lang="en"><p>b', "html").text
    assert page == '<html lang="zh-Hans"><p>B'
    assert '"Language: zh_Hans\\n"' in translate_document(fake, PO, "po").text


def test_the_language_of_subtitles():
    text = (
        "WEBVTT x\r\nKind: a\r\nLanguage: en\r\n\r\n0:00:01.000 --> 0:00:02.000\r\nLanguage: b\r\n"
    )
    for options, name in (({"target_language": "de"}, "\r\nLanguage: de"), ({}, "")):
        found = text.replace("\r\nLanguage: en", name).replace("Language: b", "LANGUAGE: B")
        assert translated(text, "srt", **options) == found


def test_subtitles_of_several_lines_end_at_a_blank_line_whatever_ends_their_lines():
    text = "WEBVTT\n\n00:01.000 --> 00:02.000\na house,\nb c?\n \nNOTE d\n"
    expected = text.replace("a house", "A HOUSE").replace("b c", "B C")
    for end in ("\n", "\r\n"):
        assert translated(text.replace("\n", end), "vtt") == expected.replace("\n", end)


def test_a_last_cell_that_cannot_be_read_stays():
    text = "| a | b |\n|---|---|\n| c | d\0e |\n"
    assert translated(text, "markdown") == text.replace("a", "A").replace("b", "B").replace(
        "c", "C"
    )


def test_where_text_was_cut_is_a_place_in_the_source():
    text = f"<html lang=en><p>b</p><p>{'b' * 10}</p>"
    fake = Fake(str.upper, 0)
    fake.translate = lambda texts, **_: [
        Translation([Hypothesis(t, 0, 0, None)], True) for t in texts
    ]
    for options in ({}, {"target_language": "de"}):
        report = translate_document(fake, text, "html", **options).report
        assert report.cut_at == [text.index("b<"), text.index("bb")]


@pytest.mark.parametrize(
    ("label", "encoding", "text"),
    [
        ("gb2312", "gbk", "朱镕基 visited 北京"),
        ("x-sjis", "cp932", "①ア house"),
        ("euc-kr", "cp949", "똠방 house"),
        ("Latin1", "cp1252", "“ä” house"),
        ("utf-16", "utf-8", "ä house"),
        ("undefined", "utf-8", "ä house"),
        ("utf-7", "utf-8", "ä +AGE- house"),
        ("gb2312", "utf-8", "中 house"),
    ],
)
def test_an_encoding_is_that_of_browsers(label, encoding, text):
    page = f'<meta charset="{label}"><p>{text}</p>'
    fake = Fake(str.upper)
    found = translate_document(fake, page.encode(encoding), "html").text
    assert found == page.replace(text, text.upper()).encode(encoding)
    assert fake.asked == [text]


def test_bytes_that_an_encoding_lacks_stay():
    page = '<meta charset="euc-kr"><p>가 a</p><p>%s</p>'.encode("cp949")
    found = translated(page % b"\xff 1", "html", lambda text: text.upper() + " ä")
    assert found == page.replace(b" a", b" A &#228;") % b"\xff 1"


SRT = """1\r
00:00:01,000 --> 00:00:02,500\r
<i>Hello, my</i>\r
old friend. I am\r
\r
2\r
00:00:03,000 --> 00:00:04,000 X1:10\r
here {\\an8}again.\r
- Who?\r
"""


def test_a_sentence_over_two_subtitles():
    fake = Fake(str.upper)
    found = translate_document(fake, SRT, "srt").text
    assert found == (
        SRT.replace("Hello, my", "HELLO, MY")
        .replace("old friend. I am", "OLD FRIEND. I AM")
        .replace("here {\\an8}again.", "HERE {\\an8}AGAIN.")
        .replace("Who", "WHO")
    )
    assert "I am here again." in fake.asked


VTT = """WEBVTT - a title
Language: en

STYLE
::cue { color: red }

first one
00:01.000 --> 00:02.500 line:0 align:start
<v Ann>salt &amp; <c.red>pepper</c>
<00:01.500>go on

NOTE
not me

01:00:03.000 --> 01:00:04.000
further on.

second one
00:05.000 --> 00:06.000
[sound]
the end
"""


def test_webvtt():
    found = translated(VTT, "vtt", target_language="de")
    expected = VTT.replace("Language: en", "Language: de")
    for text in ("salt", "pepper", "go on", "further on", "[sound]", "the end"):
        expected = expected.replace(text, text.upper())
    assert found == expected
    found = translated(VTT, "vtt", lambda text: f"{text} < 1 & 2")
    assert "[sound]" in found and "< 1" not in found.replace("&lt; 1", "") and "&amp; 2" in found


PO = """msgid ""
msgstr ""
"Language: \\n"
"Content-Type: text/plain; charset=UTF-8\\n"

#, python-format
msgid "Open %(name)s in <b>\\"new\\"</b> windows"
msgstr ""

msgid "Done"
msgstr "Fertig"

msgid ""
"One line.\\n"
"\\n"
"  * item\\n"
msgstr ""

msgid "%d file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""

#~ msgid "old"
#~ msgstr ""
"""


def test_po():
    found = translated(PO, "po", target_language="fr")
    by_id = {entry.msgid: entry for entry in polib.pofile(found)}
    assert by_id['Open %(name)s in <b>"new"</b> windows'].msgstr == (
        'OPEN %(name)s IN <b>"NEW"</b> WINDOWS'
    )
    assert by_id["Done"].msgstr == "Fertig"
    assert by_id["One line.\n\n  * item\n"].msgstr == "ONE LINE.\n\n  * ITEM\n"
    assert by_id["%d file"].msgstr_plural == {0: "%d FILE", 1: "%d FILES"}
    assert by_id["old"].msgstr == "" and polib.pofile(found).metadata["Language"] == "fr"


def test_po_that_is_indented():
    text = "".join(f"\t {line}\n" for line in PO.splitlines())
    found = polib.pofile(translated(text, "po", target_language="fr"))
    plain = polib.pofile(translated(PO, "po", target_language="fr"))
    assert [(entry.msgid, entry.msgstr) for entry in found] == [
        (entry.msgid, entry.msgstr) for entry in plain
    ]
    assert found.metadata == plain.metadata


@pytest.mark.parametrize("sign", ["\f", "\x0b", "\x1c", "\x85", "\u2028", "\u2029", "\r"])
def test_po_with_a_sign_that_ends_lines_elsewhere(sign):
    text = f'# a\n{sign}\n# b{sign}c\nmsgid "one"\nmsgstr ""\n\nmsgid "two{sign}2"\nmsgstr ""\n'
    head, *values = translated(text, "po").split("msgstr ")
    assert head == text.split("msgstr")[0]
    assert values[0].startswith('"ONE"\n')
    assert unescaped(values[1]) == f"TWO{sign}2" and values[1].count("\n") == 1


def test_po_in_an_encoding_that_lacks_a_letter():
    source = PO.replace("UTF-8", "US-ASCII").encode("ascii")
    for function, encoding in ((str.upper, "US-ASCII"), (lambda text: f"Schön: {text}", "UTF-8")):
        found = translated(source, "po", function).decode(encoding)
        assert f"charset={encoding}\\n" in found
        by_id = {entry.msgid: entry.msgstr for entry in polib.pofile(found)}
        assert by_id["One line.\n\n  * item\n"].startswith(function("One line."))


def test_po_with_a_message_that_looks_like_the_header():
    text = 'msgid ""\nmsgstr ""\n"Project: a\\n"\n\nmsgid ""\n"Language: x\\n"\n"b\\n"\nmsgstr ""\n'
    text = text.replace("\n", "\r\n")
    expected = text[:-2] + '\r\n"LANGUAGE: X\\n"\r\n"B\\n"\r\n'
    assert translated(text, "po", target_language="de") == expected


MARKDOWN = """---
title: keep
---
# A *small* title

A `code` and a [link](http://x.y "t"), **bold
words**. Then <https://auto.link> and snake_case.

- [ ] a task
- [ref][1]
  goes on

> quoted
> text

| Head | B |
|---|---|
| a cell | `x` |

```
keep
```

[1]: http://ref
"""


def test_markdown():
    found = translated(MARKDOWN, "markdown")
    expected = MARKDOWN
    for part in (
        "A *small* title;A ;and a [link];**bold\nwords**. Then;and snake_case;a task;[ref];goes on;"
        "quoted;text;Head | B;a cell"
    ).split(";"):
        expected = expected.replace(part, part.upper())
    assert found == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<div>\na &lt;b&gt; &amp;lt; *c\n</div>\n", "<div>\nA &lt;B> &amp;LT; *C\n</div>\n"),
        ("> <p>a > b\n", "> <p>A > B\n"),
        ("Use &amp;lt; or \\\\* or &copy;\n", "USE \\&LT; OR \\\\* OR ©\n"),
        ("|a|\n|-|\n|b &#124; `c\\|d` $e\\|f$|\n", "|A|\n|-|\n|B \\| `c\\|d` $e\\|f$|\n"),
        ("|a|b|\n|-|-|\n|c \\| d|c | d|\n\na | b\n", "|A|B|\n|-|-|\n|C \\| D|C | d|\n\nA | B\n"),
        ("---\r---\ra\rb *d\re*\r\r\nsame\n\nx same", "---\r---\rA\rB *D\rE*\r\r\nSAME\n\nX SAME"),
    ],
)
def test_markdown_that_is_read_as_it_is_written(text, expected):
    found = translate_document(Fake(str.upper), text, "markdown")
    assert (found.text, found.report.untranslated) == (expected, 0)


def test_a_model_that_writes_pipes():
    text = "|a|b|\n|-|-|\n|c|d|\n"
    assert (
        translated(text, "markdown", lambda text: text + "|") == "|a\\||b\\||\n|-|-|\n|c\\||d\\||\n"
    )


def test_text_that_cannot_be_read_is_counted():
    found = translate_document(Fake(str.upper), "a\0b\n\nc\n", "markdown")
    assert (found.text, found.report.untranslated) == ("a\0b\n\nC\n", 1)


def test_terms_within_tags():
    glossary = Glossary([("horse", "Pferd"), ("big dog", "Hündchen")])
    found = translate_document(
        Fake(str.lower), "<p>A <b>Horse</b> and a big dog.</p>", "html", glossary=glossary
    )
    assert found.text == "<p>a <b>Pferd</b> and a Hündchen.</p>"
    assert [(use.found, use.used) for use in found.report.terms] == [(1, 1), (1, 1)]


def test_the_format_of_a_file():
    names = {
        "a.HTML": "html",
        "b.md": "markdown",
        "c.srt": "srt",
        "e.vtt": "vtt",
        "d.pot": "po",
        "README": "text",
        "values/arrays.xml": "android",
        "plurals.xml": "android",
        "a.potm": "pptx",
        "other.xml": "text",
    }
    assert {name: format_of(name) for name in names} == names


def test_the_format_of_xml_follows_from_its_begin():
    head = b'\xef\xbb\xbf<?xml version="1.0"?>\n<!-- <a> -->\n<!DOCTYPE b>\n'
    for root, name in (("resources", "android"), ("x:xliff", "xliff"), ("html", "html")):
        content = f'<{root} a="b">c</{root}>'
        for each in (head + content.encode(), content.encode("utf-16"), content.encode()):
            assert format_of("a.xml", each) == format_of("a.sdlxliff", each) == name
    assert format_of("README", b"<p>One") == format_of("a", b"One <html>") == "text"
    assert format_of("a.md", head) == "markdown"
    with pytest.raises(ValueError, match="'a.xml' is XML that no format reads .it begins with <b>"):
        format_of("a.xml", b"<b/>")
    with pytest.raises(ValueError, match="begins with <b>"):
        format_of("a.docbook", head + b"<b/>")


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"PK\3\4", "a ZIP archive: name its format"),
        (b"%PDF-1.7", "a PDF"),
        (b"\xd0\xcf\x11\xe0", "of an old kind of Office"),
        (b"\x1f\x8b", "compressed by gzip"),
    ],
)
def test_what_is_no_text_is_refused(content, kind):
    with pytest.raises(ValueError, match=f"The document is {kind}"):
        translate_document(Fake(str), content + b" a man", format_of("a.xlsx", content))


@pytest.mark.parametrize(
    "text",
    "%m %*d %.*s %'d %I64d %@ %1$@ %1% %<name>s %n %L1 %-5d %%|{n, number}|%H:%M|{d, date, short}|"
    "%5.2f%% %(name)s {0} {name!r:>5} %1$s %1".split("|"),
)
def test_placeholders(text):
    fake = Fake(str.upper)
    source = " and ".join(f"set {each}" for each in ([text] if "," in text else text.split()))
    translate_document(fake, source)
    assert not any(sign in asked for asked in fake.asked for sign in "%{"), fake.asked
