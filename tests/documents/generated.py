"""Generated documents, and comparisons of a document with its translation by parsers of others."""

import collections
import html
import random
import re

import html5lib
import markdown_it
import polib

from kformer.documents import translate_document
from kformer.translating.translation import Hypothesis, Translation

_WORDS = (
    "time year people way day thing man world life hand part child eye woman place work week case "
    "point house water river green small large early young old walks reads writes takes gives "
    "finds keeps under over near the a this every some between without slowly often again"
).split()
_KEPT = {
    "html": ("<code>x = {0}</code>", "https://example.org/a?b={0}", "me{0}@example.org", "{0} km"),
    "srt": ("https://example.org/{0}", "{0} kg"),
    "po": ("%(name{0})s", "%s", "{{count{0}}}", "https://example.org/{0}", "{0} MB", "``code{0}``"),
    "markdown": ("`code{0}`", "https://example.org/{0}", "{0} °C", "%(n{0})s"),
}


class Function:
    """A translator that is a function of a sentence; sentences of over 300 characters are cut."""

    takes_terms = False

    def __init__(self, function):
        self._function = function

    def translate(self, texts, **options):
        return [
            Translation([Hypothesis(self._function(text), 0.0, None, None)], len(text) > 300)
            for text in texts
        ]


def reverse(text):
    """The words of a sentence from the last to the first."""
    return " ".join(reversed(text.split()))


class Generator:
    """Makes documents of one format.

    Args:
        name: str. The format.
        seed: int.
    """

    def __init__(self, name, seed):
        self.rng, self.name = random.Random(f"{name} {seed}"), name

    def document(self):
        """A document, a str."""
        return getattr(self, f"_{self.name}")()

    def words(self, low=2, high=9):
        chosen = self.rng.choices(_WORDS, k=self.rng.randint(low, high))
        if self.rng.random() < 0.3:
            kept = self.rng.choice(_KEPT[self.name]).format(self.rng.randint(1, 99))
            chosen.insert(self.rng.randint(0, len(chosen)), kept)
        return chosen

    def sentence(self, wrap):
        """Words with markup around some; `wrap` is a function of a list of words to that."""
        words = self.words()
        words[0] = words[0].capitalize() if words[0].isalpha() else words[0]
        if self.rng.random() < 0.6:
            low = self.rng.randrange(len(words))
            high = self.rng.randint(low + 1, len(words))
            words[low:high] = [wrap(words[low:high])]
        return " ".join(words) + self.rng.choice(".!?")

    def _html(self):
        rng = self.rng
        body = []
        for number in range(rng.randint(3, 10)):
            kind = rng.choice(("p", "li", "h2", "div", "table", "pre", "no", "script", "comment"))
            text = rng.choice((" ", "\n   ")).join(
                self.sentence(self._inline) for _ in range(rng.randint(1, 4))
            )
            body.append(
                {
                    "table": f"<table><tr><td>{text}</td><td>{number}</td></tr></table>",
                    "li": f"<ul>\n <li>{text}\n <li class='x'>{text}</ul>",
                    "pre": f"<pre>  keep {number}\n this</pre>",
                    "no": f'<p translate="no">Keep {number} this.</p>',
                    "script": f"<script>var a = '<b>{number}';</script>",
                    "comment": f"<!-- keep {number} <b> -->",
                }.get(kind, f'<{kind} title="Keep &amp; {number}">{text}</{kind}>')
            )
        inner = "\n".join(body)
        return (
            f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>'
            f"{' '.join(rng.choices(_WORDS, k=3))}</title></head>\n<body>\n{inner}\n</body>\n"
            "</html>\n"
        )

    def _inline(self, words):
        tag = self.rng.choice(("b", "i", 'a href="x?a=1&amp;b=2"', 'span class="y"', "em"))
        inner = " ".join(words)
        if len(words) > 2 and self.rng.random() < 0.4:
            inner = f"{words[0]} <u>{' '.join(words[1:])}</u>"
        if self.rng.random() < 0.2:
            inner += '<img src="i.png" alt="Keep">'
        return f"<{tag}>{inner}</{tag.split()[0]}>"

    def _srt(self):
        cues, at = [], 0
        for number in range(1, self.rng.randint(4, 20)):
            at += self.rng.randint(500, 5000)
            lines = [self.sentence(lambda words: f"<i>{' '.join(words)}</i>")]
            if self.rng.random() < 0.5:
                lines.append(" ".join(self.words(3, 8)) + self.rng.choice((".", "", ",")))
            if self.rng.random() < 0.2:
                lines = [f"- {line}" for line in lines]
            cues.append(f"{number}\n{_clock(at)} --> {_clock(at + 400)}\n" + "\n".join(lines))
        return "\n\n".join(cues) + "\n"

    def _po(self):
        entries = [
            'msgid ""\nmsgstr ""\n"Language: \\n"\n"Content-Type: text/plain; charset=UTF-8\\n"\n'
            '"Plural-Forms: nplurals=2; plural=(n != 1);\\n"'
        ]
        for number in range(self.rng.randint(4, 20)):
            text = self.sentence(lambda words: f"<b>{' '.join(words)}</b>").rstrip("?")
            text = f"{text} n{number}"
            kind = self.rng.choice(("plain", "plural", "lines", "done", "obsolete", "quote"))
            head = f"#. A note\n#: file.py:{number}\n"
            entries.append(
                {
                    "plural": f'{head}msgid "{text}"\nmsgid_plural "{text} s"\n'
                    'msgstr[0] ""\nmsgstr[1] ""',
                    "lines": f'{head}msgid ""\n"{text}\\n"\n"\\n"\n" * {text}\\n"\nmsgstr ""',
                    "done": f'{head}#, fuzzy\nmsgid "{text}"\nmsgstr "Fertig"',
                    "obsolete": f'#~ msgid "{text}"\n#~ msgstr ""',
                    "quote": f'{head}msgctxt "menu"\nmsgid "\\"{text}\\""\nmsgstr ""',
                }.get(kind, f'{head}msgid "{text}"\nmsgstr ""')
            )
        return "\n\n".join(entries) + "\n"

    def _markdown(self):
        blocks = ["---\ntitle: keep\n---"] if self.rng.random() < 0.3 else []
        for number in range(self.rng.randint(3, 12)):
            text = [self.sentence(self._emphasis) for _ in range(3)]
            blocks.append(
                self.rng.choice(
                    (
                        f"{'#' * self.rng.randint(1, 4)} {text[0]}",
                        " ".join(text),
                        "\n".join(text),
                        f"- {text[0]}\n- [ ] {text[1]}\n  {text[2]}",
                        f"> {text[0]}\n> {text[1]}",
                        f"{number}. {text[0]}\n{number + 1}. {text[1]}",
                        f"```python\nkeep = {number}\n```",
                        f"| A head | Other |\n|---|---|\n| {text[0]} | `x` |",
                        f'<div align="center">\n<b>{" ".join(self.words(2, 4))}</b>\n</div>',
                        f"![keep](i{number}.png) {text[0]}\\\n{text[1]}",
                    )
                )
            )
        return "\n\n".join([*blocks, "[ref]: https://example.org/ref"]) + "\n"

    def _emphasis(self, words):
        inner = " ".join(words)
        kinds = ("*{}*", "**{}**", '[{}](https://example.org "Keep")', "[{}][ref]", "~~{}~~")
        return self.rng.choice(kinds).format(inner)


def _clock(ms):
    return f"{ms // 3600000:02}:{ms // 60000 % 60:02}:{ms // 1000 % 60:02},{ms % 1000:03}"


def structure(name, text):
    """What must be equal on both sides, as another parser than kformer's has it."""
    return {"html": _tree, "srt": _cues, "po": _entries, "markdown": _blocks}[name](text)


def _tree(text):
    root = html5lib.parse(text, treebuilder="etree", namespaceHTMLElements=False)
    found = []

    def visit(node, path):
        if not isinstance(node.tag, str):
            found.append((path, "comment", node.text))
            return
        attributes = {k: v for k, v in node.attrib.items() if k not in ("lang", "xml:lang")}
        kept = node.text if node.tag in ("pre", "code", "script", "style", "textarea") else None
        found.append((path, node.tag, tuple(sorted(attributes.items())), kept))
        for child in node:
            visit(child, f"{path}/{node.tag}")

    visit(root, "")
    # Tags within a sentence may change their order, as its words do.
    return sorted(map(repr, found))


def _cues(text):
    cues = re.findall(r"(\d+)\n([\d:,]+ --> [\d:,]+)[^\n]*\n((?:[^\n]+\n?)+)", text)
    tags = collections.Counter(re.findall(r"</?\w+>", text))
    return [(number, times, body.count("\n")) for number, times, body in cues], tags


def _entries(text):
    found = polib.pofile(text)
    return [
        (
            entry.msgid,
            entry.msgid_plural,
            entry.msgctxt,
            entry.comment,
            entry.occurrences,
            entry.flags,
            entry.obsolete,
            sorted(entry.msgstr_plural),
            entry.msgstr if entry.obsolete or entry.fuzzy else None,
        )
        for entry in found
    ]


def untranslated(source, text):
    """The entries that had no translation, and have none now, or one with other tags or lines;
    those without a word to translate stay empty.
    """
    bad, kept = [], re.compile(r"%\(\w+\)s|%\w|&#?\w+;|<[^>]*>")
    for before, entry in zip(polib.pofile(source), polib.pofile(text), strict=True):
        if before.obsolete or before.msgstr or any(before.msgstr_plural.values()):
            continue
        for value in [entry.msgstr] if not entry.msgid_plural else entry.msgstr_plural.values():
            same = value.count("\n") == entry.msgid.count("\n")
            tags = [sorted(re.findall(r"</?\w+>", side)) for side in (value, entry.msgid)]
            is_changed = not same or tags[0] != tags[1]
            has_words = re.search(r"[^\W\d_]", kept.sub("", entry.msgid))
            if is_changed if value.strip() else has_words:
                bad.append(entry.msgid)
    return bad


def _blocks(text):
    parser = markdown_it.MarkdownIt("commonmark").enable(["table", "strikethrough"])
    blocks, inline = [], []
    for token in parser.parse(text):
        content = token.content if token.type in ("fence", "code_block") else ""
        blocks.append((token.type, token.tag, token.level, content))
        for child in token.children or ():
            if child.type != "text":
                kept = child.content if child.type == "code_inline" else ""
                inline.append((len(blocks), child.type, str(child.attrs), kept))
    return blocks, sorted(inline)


# A translation says another language.
_LANGUAGE = re.compile(r"""\s(?:xml:)?lang\s*=\s*(?:"[^"]*"|'[^']*'|[^\s>]*)""", re.I)
_FIXED = re.compile(
    r"https?://[\w./?=&;-]*\w|[\w.]+@example\.org|%\(\w+\)s|%s|\{count\d+\}|\d+ (?:km|kg|MB|°C)\b"
)


def words_of(name, text):
    """How often each word occurs, without regard to case, and what must be kept."""
    if name == "html":
        text = _LANGUAGE.sub("", html.unescape(text))
    text = text.replace("\\", "")
    fixed = collections.Counter(_FIXED.findall(text))
    return collections.Counter(re.findall(r"\w+", text.lower())), fixed


def compare(name, text, translator):
    """Translates a document; returns the names of what differs, and the report."""
    found = translate_document(translator, text, name)
    differing = []
    if structure(name, text) != structure(name, found.text):
        differing.append("structure")
    words, fixed = words_of(name, text)
    now, now_fixed = words_of(name, found.text)
    if isinstance(translator, Function):
        lost = fixed != now_fixed
    else:  # A pattern does not find "20 km" where Chinese follows at once.
        text_now = found.text.replace("\\", "")
        lost = any(text_now.count(part) < number for part, number in fixed.items())
    if name != "po" and lost:
        differing.append("kept")
    if isinstance(translator, Function):
        if name == "po":
            differing += ["words"] if untranslated(text, found.text) else []
        elif words != now:
            differing.append("words")
    if found.report.cut:
        differing.append("cut")
    return differing, found.report
