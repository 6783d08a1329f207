"""DOCX, PPTX and ODT: only text changes, and runs, fields, notes and nested paragraphs stay."""

import html
import io
import re
import time
import xml.etree.ElementTree as ET
import zipfile

import pytest

from kformer.documents import Glossary, Problem, office, translate_document
from tests.documents.fakes import Fake, reverse, scrambled

pytestmark = pytest.mark.any_backend
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
NAMESPACES = {
    "docx": f'xmlns:w="{WORD}" xmlns:r="r" xmlns:m="m"',
    "pptx": 'xmlns:a="a" xmlns:p="p"',
    "odt": 'xmlns:text="text" xmlns:office="office" xmlns:draw="draw"',
}
MEMBERS = {"docx": "word/document.xml", "pptx": "ppt/slides/slide1.xml", "odt": "content.xml"}


def archive(format, body, members=()):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr(zipfile.ZipInfo("mimetype"), "a kind")
        page = f'<?xml version="1.0" encoding="UTF-8"?>\n<x {NAMESPACES[format]}>{body}</x>'
        out.writestr(MEMBERS[format], page)
        for name, content in dict(members).items():
            out.writestr(name, content)
    return file.getvalue()


def members(content):
    with zipfile.ZipFile(io.BytesIO(content)) as source:
        return {name: source.read(name) for name in source.namelist()}


def translated(format, body, function=str.upper, **options):
    """The body of a document's translation, which another parser reads."""
    source = archive(format, body)
    found = translate_document(Fake(function), source, format, **options).text
    before, after = members(source), members(found)
    assert [*before] == [*after] and before["mimetype"] == after["mimetype"]
    page = after[MEMBERS[format]]
    ET.fromstring(page)
    return re.fullmatch(r".*?<x [^>]*>(.*)</x>", page.decode(), re.S)[1]


def run(text, properties=""):
    return f'<w:r>{properties}<w:t xml:space="preserve">{text}</w:t></w:r>'


BOLD, RED = "<w:rPr><w:b/></w:rPr>", '<w:rPr><w:color w:val="f00"/></w:rPr>'
NOTE = '<w:r><w:rPr><w:i/></w:rPr><w:footnoteReference w:id="2"/></w:r>'
FIELD = (
    '<w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:instrText> {} </w:instrText></w:r>'
    '<w:r><w:fldChar w:fldCharType="separate"/></w:r>{}<w:r><w:fldChar w:fldCharType="end"/></w:r>'
)


@pytest.mark.parametrize(
    "body",
    [
        run("one ") + run("two", BOLD) + run(" three ") + run("four", RED) + run("."),
        run("H") + run("2", BOLD) + run("O, ") + NOTE + run("one"),
        run("a note") + NOTE + run(", and on"),
        run("the ") + f'<w:hyperlink r:id="1">{run("link", RED)}</w:hyperlink>' + run(" here"),
        run("it ") + f"<w:ins>{run('was put')}</w:ins>" + run(" in"),
        run("it <w:del/>".replace("<w:del/>", "")) + "<w:del><w:r><w:delText>gone</w:delText></w:r>"
        "</w:del>" + run("is"),
        f'<w:bookmarkStart w:id="1"/>{run("all")}<w:bookmarkEnd w:id="1"/>{run(" of it")}',
        f"<w:sdt><w:sdtPr/><w:sdtContent>{run('a', BOLD)}</w:sdtContent></w:sdt>{run(' long box')}",
        run("on page ") + FIELD.format("PAGE", run("7")) + run(" of it"),
        run("this ") + FIELD.format('HYPERLINK "x"', run("link", RED)) + run(" of it"),
        run("the area ") + "<m:oMath><m:r><m:t>x</m:t></m:r></m:oMath>" + run(" of it"),
        "<w:r><w:t>Name:</w:t><w:tab/><w:t>a man</w:t><w:br/><w:t>Town</w:t></w:r>",
        '<w:commentRangeStart w:id="0"/>' + run("one") + '<w:commentRangeEnd w:id="0"/><w:r>'
        '<w:commentReference w:id="0"/></w:r>' + run(" two"),
        run("one ")
        + "".join(
            f'<w:bookmark{side} w:id="{number}"/>' + run(word)
            for side, number, word in (
                *(("Start", 1, "two "), ("Start", 2, "three ")),
                *(("End", 1, "four"), ("End", 2, " five")),
            )
        ),
    ],
)
def test_runs_stay_around_their_words(body):
    """A translator that changes no order leaves all where it is."""
    body = f"<w:p><w:pPr/>{body}</w:p>"
    kept = ("7", "x", "gone")
    expected = [(p, t if t in kept else t and t.upper()) for p, t in shown(body)]
    assert shown(translated("docx", body)) == expected
    assert shown(translated("docx", body, str)) == shown(body)
    tags = r"<w:(?!r>|rPr|t[> ]|b/|i/|color)[^>]*>|</?m:.*?>"
    for function in (reverse, scrambled, lambda text: "word"):
        found = translated("docx", body, function)
        assert sorted(re.findall(tags, found)) == sorted(re.findall(tags, body))
        # A mark of a pair comes before the other, and a field is whole.
        order = 'begin|separate|"end"|Start|End'
        assert re.findall(order, found) == re.findall(order, body)
        for number in ("1", "2") if 'End w:id="2"' in body else ():
            assert found.index(f'Start w:id="{number}"') < found.index(f'End w:id="{number}"')


def shown(body):
    """The texts and marks of a paragraph, with the names of the elements around them and how they
    look; texts that look equal are one.
    """
    rows = []

    def visit(element, path):
        properties = element.find(f"{{{WORD}}}rPr")
        if properties is not None:
            path = (*path, *(each.tag for each in properties))
        name = element.tag.rpartition("}")[2]
        if name in ("t", "delText") and rows and rows[-1][0] == path and rows[-1][1]:
            rows[-1] = (path, rows[-1][1] + element.text)
        elif name in ("t", "delText"):
            rows.append((path, element.text))
        elif name != "rPr":
            rows.extend([] if name in ("r", "p") else [((*path, name), None)])
            for child in element:
                visit(child, path if name == "r" else (*path, name))

    visit(ET.fromstring(f"<w:p {NAMESPACES['docx']}>{body}</w:p>"), ())
    return rows


def test_paragraphs_within_paragraphs():
    box = f"<w:p>{run('in a box')}</w:p>"
    body = f"<w:p>{run('before ')}<w:r><w:pict>{box}<v>{box}</v></w:pict></w:r>{run('after')}</w:p>"
    assert translated("docx", body, reverse).count("box a in") == 2
    upper = body.replace("in a box", "IN A BOX").replace("before", "BEFORE")
    assert translated("docx", body) == upper.replace("after", "AFTER")


@pytest.mark.parametrize("rest", ["", run("b", BOLD)])
def test_text_of_several_pieces(rest):
    for text, expected in (
        ("one<!-- c --> two", "ONE TWO"),
        ("one<!-- one -->", "ONE"),
        ("<!-- > one</w:t> -->one", "ONE"),
        ("one <![CDATA[< two]]> &amp; 3", "ONE &lt; TWO &amp; 3"),
        ("<?pi one?>one", "ONE"),
    ):
        found = translated("docx", f"<w:p>{run(text)}{rest}</w:p>")
        assert [text for _, text in shown(found)][:1] == [html.unescape(expected)]


def test_fields_in_fields_take_linear_time():
    def field(inner):
        return FIELD.format('HYPERLINK "x"', inner)

    assert (
        translated("docx", f"<w:p>{field(field(run('one')) + run(' two'))}</w:p>").count("ONE") == 1
    )
    side, count = '<w:r><w:fldChar w:fldCharType="{}"/></w:r>', 4000
    fields = side.format("begin") * count + run("one") + side.format("end") * count
    start = time.process_time()
    assert translated("docx", f"<w:p>{fields}{run('two')}</w:p>").endswith(f"{run('TWO')}</w:p>")
    # A look at all inner fields for each takes four times as long.
    assert time.process_time() - start < 4


def test_runs_that_look_equal_are_one_text():
    language = '<w:rPr><w:lang w:val="de"/></w:rPr>'
    body = f"<w:p>{run('hou')}<w:proofErr/>{run('ses', language)}{run(' are', '<w:rPr/>')}</w:p>"
    fake = Fake(str.upper)
    translate_document(fake, archive("docx", body), "docx")
    assert fake.asked == ["houses are"]


def test_slides():
    def body(word):
        field = "<a:fld><a:rPr/><a:t>7</a:t></a:fld>"
        first = f'<a:rPr lang="en"/><a:t>{word("one")} </a:t></a:r><a:r><a:rPr b="1"/>'
        return (
            f"<a:p><a:pPr/><a:r>{first}<a:t>{word('two')}</a:t></a:r><a:br/><a:r>"
            f'<a:rPr lang="en"/><a:t>{word("page")} </a:t></a:r>{field}<a:endParaRPr/></a:p>'
        )

    assert translated("pptx", body(str)) == body(str.upper)


def test_open_document():
    def body(word):
        note = f"<text:note><n>1</n><b><text:p>{word('a note')}</text:p></b></text:note>"
        return (
            "<text:tracked-changes><text:p>gone</text:p></text:tracked-changes>"
            f"<text:h>{word('title')}</text:h><text:p>{word('one')} <text:span c='b'>{word('two')}"
            f"</text:span>{note} <text:a>{word('link')}</text:a><text:tab/>{word('new')}"
            f"<office:annotation><text:p>stays</text:p></office:annotation> &lt; {word('old')} "
            f"<text:date>1 May</text:date>.<draw:frame><text:p/><text:p>{word('box')}<draw:g>"
            f"<text:p>{word('inner')}</text:p></draw:g></text:p></draw:frame></text:p>"
        )

    assert translated("odt", body(str), str) == body(str)
    assert translated("odt", body(str)) == body(str.upper)
    note = "<office:annotation><text:p>c</text:p></office:annotation>"
    gone = f"<text:tracked-changes><text:p>gone{note}</text:p></text:tracked-changes>"
    assert translated("odt", f"{gone}<text:p>a</text:p>") == f"{gone}<text:p>A</text:p>"
    found = translated("odt", body(str), scrambled)
    tags = [sorted(re.findall("<[^>]*>", text)) for text in (body(str), found)]
    assert tags[0] == tags[1]


def test_terms_and_signs():
    body = f"<w:p>{run('a house')}</w:p>"
    found = translated("docx", body, glossary=Glossary({"house": "H&M"}))
    assert found == f"<w:p>{run('A H&amp;M')}</w:p>"
    assert translated("docx", body, lambda text: "a\0\1<b>\3") == f"<w:p>{run('a&lt;b&gt;')}</w:p>"


def test_doubtful_sentences_are_told_by_paragraph():
    source = archive("docx", f"<w:p>{run('One.')}</w:p><w:p>{run('Call 555 now.')}</w:p>")
    fake = Fake(lambda text: text.replace("555", "five"))
    first, _ = translate_document(fake, source, "docx", coverage=True).report.coverage
    assert first.coverage.is_doubtful and (first.member, first.line) == ("word/document.xml", 2)
    row = first.as_dict()
    assert (row["member"], row["paragraph"]) == ("word/document.xml", 2) and "line" not in row


def test_members_without_text_stay():
    others = {"word/comments.xml": f"<w:p>{run('a')}</w:p>", "word/media/a.png": bytes(range(256))}
    page = f"<y {NAMESPACES['docx']}><w:p>{run('at top')}</w:p></y>"
    source = archive("docx", f"<w:p>{run('a')}</w:p>", {**others, "word/header1.xml": page})
    found = translate_document(Fake(str.upper), source, "docx")
    after = members(found.text)
    assert after["word/header1.xml"].decode() == page.replace("at top", "AT TOP")
    assert all(after[name] == members(source)[name] for name in others)
    assert found.report.segments == 2


def test_what_a_member_says_of_its_encoding():
    for encoding in ("us-ascii", "iso-8859-1"):
        page = (
            f'<?xml version="1.0" encoding="{encoding}"?><x xmlns:text="t"><text:p>Zoé</text:p></x>'
        )
        page = page.replace("é", "e") if encoding == "us-ascii" else page
        source = archive("odt", "", {"styles.xml": page.encode(encoding)})
        found = translate_document(Fake(lambda text: "水é"), source, "odt").text
        page = ET.fromstring(members(found)["styles.xml"])
        assert page[0].text == "水é"


def test_diagrams_and_the_comment_of_an_archive():
    page = '<y xmlns:a="a"><a:p><a:r><a:t>{}</a:t></a:r></a:p></y>'
    source = archive("docx", "", {"word/diagrams/data1.xml": page.format("one")})
    file = io.BytesIO(source)
    with zipfile.ZipFile(file, "a") as out:
        out.comment = b"a comment"
    found = translate_document(Fake(str.upper), file.getvalue(), "docx").text
    assert members(found)["word/diagrams/data1.xml"].decode() == page.format("ONE")
    assert zipfile.ZipFile(io.BytesIO(found)).comment == b"a comment"


def test_what_is_said_of_macros_and_signatures():
    extra = {"word/vbaProject.bin": b"", "_xmlsignatures/sig1.xml": b""}
    source = archive("docx", f"<w:p>{run('a')}</w:p>", extra)
    with pytest.warns(UserWarning, match="has macros") as warned:
        translate_document(Fake(str.upper), source, "docx")
    assert any("sign it again" in str(each.message) for each in warned)


def test_archives_that_are_none(monkeypatch):
    source = archive("docx", f"<w:p>{run('a')}</w:p>", {"a.bin": bytes(1 << 21)})
    with pytest.warns(UserWarning, match="Duplicate"):
        twice = archive("docx", f"<w:p>{run('a')}</w:p>", {MEMBERS["docx"]: "<x/>"})
    damaged = bytearray(archive("docx", f"<w:p>{run('a')}</w:p>", {"a.bin": b"b"}))
    damaged[damaged.rfind(b"PK\1\2") + 16] ^= 255
    for content, message in (
        (source, "times what it has when packed"),
        (b"PK\3\4", "The document is damaged"),
        (b"\xd0\xcf\x11\xe0", "has a password, or is of an old kind"),
        (twice, "has two files of the name 'word/document.xml'"),
        (bytes(damaged), r"not what its name says \(a.bin\)"),
        (archive("docx", "<b>" * 400 + "</b>" * 400), "has more than 300 elements in one another"),
        ("a", "is bytes: read the file"),
        (archive("odt", ""), "has no text of the format 'docx'"),
        (archive("docx", "<a>"), "word/document.xml of the document is not valid XML"),
    ):
        with pytest.raises(ValueError, match=message):
            translate_document(Fake(str), content, "docx")
    monkeypatch.setattr(office, "_MOST_BYTES", 10)
    with pytest.raises(ValueError, match="bytes when unpacked"):
        translate_document(Fake(str), archive("docx", ""), "docx")


def test_a_problem_names_its_part_and_paragraph():
    box = f"<w:r><w:pict><w:p>{run('lost &amp; ')}{run('found', BOLD)}</w:p></w:pict></w:r>"
    body = f"<w:p/><w:p>{run('a')}</w:p><w:p>{run('b')}{box}</w:p><w:p>{run('lost')}</w:p>"
    notes = f"<y {NAMESPACES['docx']}><w:p>{run('kept')}</w:p>\n<w:p>{run('lost 2')}</w:p></y>"
    source = archive("docx", body, {"word/footnotes.xml": notes})
    fake = Fake(lambda text: "" if "lost" in text else text)
    reason = "the model returned nothing"
    assert translate_document(fake, source, "docx").report.problems == [
        Problem(4, "lost & found", reason, "word/document.xml"),
        Problem(5, "lost", reason, "word/document.xml"),
        Problem(2, "lost 2", reason, "word/footnotes.xml"),
    ]


@pytest.mark.parametrize(
    ("format", "before", "german", "chinese"),
    [
        (
            "docx",
            '<w:lang w:val="en-US" w:eastAsia="en-US"/>',
            '<w:lang w:val="de" w:eastAsia="en-US"/>',
            '<w:lang w:val="en-US" w:eastAsia="zh-CN"/>',
        ),
        ("pptx", '<a:endParaRPr lang="en-US" b="1"/>', '<a:endParaRPr lang="de" b="1"/>', "zh-CN"),
        (
            "odt",
            '<style:text-properties fo:language="en" fo:country="US" style:language-asian="ja" '
            'style:country-asian="JP"/>',
            '<style:text-properties fo:language="de" fo:country="none" style:language-asian="ja" '
            'style:country-asian="JP"/>',
            '<style:text-properties fo:language="en" fo:country="US" style:language-asian="zh" '
            'style:country-asian="CN"/>',
        ),
    ],
)
def test_the_language_of_text(format, before, german, chinese):
    other = {"docx": '<w:lang w:val="fr-FR"/>', "pptx": '<a:rPr lang="fr"/>', "odt": ""}[format]
    space = ' xmlns:style="style" xmlns:fo="fo"' if format == "odt" else ""
    body = f"<y{space}>{before}{other}</y>"
    both = {"source_language": "en_XX"}
    assert translated(format, body, **both, target_language="deu_Latn") == body.replace(
        before, german
    )
    if format == "pptx":
        chinese = german.replace("de", "zh-CN")
    assert translated(format, body, **both, target_language="zh_CN") == body.replace(
        before, chinese
    )
    # A document in a third language says nothing else, nor does one whose target is not known.
    for options in ({"source_language": "es", "target_language": "de"}, both):
        assert translated(format, body, **options) == body


def test_the_language_of_styles():
    style = f'<y {NAMESPACES["docx"]}><w:lang w:val="en-GB"/></y>'
    source = archive("docx", f"<w:p>{run('a')}</w:p>", {"word/styles.xml": style})
    pair = {"source_language": "en", "target_language": "de"}
    found = members(translate_document(Fake(str), source, "docx", **pair).text)
    assert found["word/styles.xml"].decode() == style.replace("en-GB", "de")
