"""Pages that no writer meant: read in time that grows with their length, and nothing is lost."""

import gc
import time

import pytest

from kformer.documents import translate_document
from kformer.documents.html_tokens import html_tokens
from tests.documents.fakes import Fake

pytestmark = pytest.mark.any_backend


def translated(text, format="html"):
    return translate_document(Fake(str.upper, 10**9), text, format).text


def seconds(text, format):
    """The CPU time of a translation, without what other processes and the collector add."""
    times = []
    for _ in range(2):
        gc.collect()
        gc.disable()
        begin = time.process_time()
        translated(text, format)
        times.append(time.process_time() - begin)
        gc.enable()
    return min(times)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("format", "pattern"),
    [
        ("html", "<div>"),
        ("html", "<b>a</i>"),
        ("html", '<a href="'),
        ("html", '<a b=">"'),
        ("html", "<!--a>"),
        ("html", "<br>a "),
        ("html", "<table><tr><td>x"),
        ("html", "<p><li><table><div>x"),
        ("html", "a <b>b</b> "),
        ("html", "a <code>b</code> "),
        ("markdown", "a <b>b</b> "),
        ("text", "http://a.b/))))))))))))))))))))"),
    ],
)
def test_time_grows_with_the_text(format, pattern):
    """Eight times the text takes some eight times as long; squared, it would be 64 times."""
    translated("a <b>b</b>", format)  # Imports and tables that are made once.
    short, long = (pattern * (size // len(pattern)) for size in (2_000, 16_000))
    assert seconds(long, format) < 16 * seconds(short, format) + 0.05


def test_an_address_that_ends_in_brackets():
    begin = time.process_time()
    translated("See http://a.b/" + ")" * 100_000, "text")
    assert time.process_time() - begin < 2


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ('<a href="x>y</a> <p>z</p>', '<a href="x>Y</a> <p>Z</p>'),
        ("a <b", "A &lt;B"),
        ("a<!-- b > c", "A<!-- b > c"),
        ("<p>a<p><!-- b > c --!><p>d", "<p>A<p><!-- b > c --!><p>D"),
        ("a<p><!--><p>b<p><!---><p>c", "A<p><!--><p>B<p><!---><p>C"),
        ("a<p></ b><p>c", "A<p></ b><p>C"),
        ("<p>a &#; b &#; c</p><p>d</p>", "<p>A &amp;#; B &amp;#; C</p><p>D</p>"),
        ("a<p><script>b</p></script ><p>c", "A<p><script>b</p></script ><p>C"),
        ("a<script>b</script", "A<script>b</script"),
        ("a<p><script src='b'/>c</script>d", "A<p><script src='b'/>c</script>D"),
        ("<svg><style/></svg><p>a", "<svg><style/></svg><p>A"),
        ("<?xml?><script/><p>a", "<?xml?><script/><p>A"),
        (
            "<p>a <b translate=no> b <i translate=yes>c",
            "<p>A <b translate=no> b <i translate=yes>C",
        ),
        (f"a&#{'1' * 5000};b", "A\ufffdB"),
    ],
)
def test_a_page_that_is_broken(page, expected):
    assert translated(page) == expected
    tokens = list(html_tokens(page))
    assert [token.start for token in tokens] == [0, *(token.end for token in tokens[:-1])]
    assert tokens[-1].end == len(page)


@pytest.mark.parametrize(
    "page",
    [
        '<ul><li>x<ul translate="no"><li>Not me</li></ul></li></ul>',
        "<table><tr><td>x<table translate=no><tr><td>Not me</td></tr></table></td></tr></table>",
        "<dl><dd>x<dl translate=no><dt>Not me</dl><dd>x</dl>",
        "<p>x<blockquote translate=no><p>Not me</p></blockquote><p>x",
        "<p>x<table translate=no><tr><td><p>Not me</table>x",
        "<ul><li translate=no>Not me<li>x<li translate=no><ul><li>Not me</ul>Not me</ul>x",
        "<table><tr translate=no><td>Not me<tr><td>x<tbody translate=no><tr><td>Not me<tbody>x",
    ],
)
def test_elements_without_end_tags(page):
    """An element ends where another begins, but not beyond the list or table around it."""
    assert translated(page) == page.replace("x", "X")


def test_tags_within_a_thousand_others():
    page = "<p>" + "<b>a " * 1000 + "</b>" * 1000 + "</p>"
    assert translated(page) == page.replace("a", "A")


def test_attributes():
    tag = """<A href=x/ b='>' translate = "no" c="a&amp;b" d/>"""
    (token,) = html_tokens(tag)
    expected = {"href": "x/", "b": ">", "translate": "no", "c": "a&b", "d": "", "/": ""}
    assert (token.name, token.attributes) == ("a", expected)
