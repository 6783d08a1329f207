"""From the Markdown of a docstring to the reStructuredText that Sphinx reads.

A docstring has paragraphs, lists, tables, fenced and indented code, and sections such as `Args:`,
whose entries are `name: text`.
"""

import re
import textwrap

_ENTRIES = ("Args", "Call arguments", "Attributes", "Raises")
_SECTION = re.compile(r"[A-Z][\w ]*:$")
_SPAN = re.compile(r"(`[^`]+`)")


def to_rst(lines):
    """The lines of a docstring as lines of reStructuredText."""
    return list(_blocks(list(lines)))


def _blocks(lines):
    rest = list(lines)
    while rest:
        line = rest[0]
        if not line.strip():
            rest.pop(0)
        elif line.startswith("```"):
            yield from _fenced(rest)
        elif line.startswith("|"):
            yield from _table(_take(rest, lambda line: line.startswith("|")))
        elif line.startswith("    "):
            code = textwrap.dedent("\n".join(_take(rest, _is_indented))).strip("\n")
            yield from ("::", "", *_indented(code.splitlines()), "")
        elif _SECTION.match(line) and len(rest) > 1 and re.match("    |```", rest[1]):
            yield from _section(rest)
        else:
            yield from (*_text(_take(rest, _is_text)), "")


def _is_indented(line):
    return not line.strip() or line.startswith("    ")


def _is_text(line):
    return bool(line.strip()) and not line.startswith(("```", "|"))


def _take(rest, belongs):
    """Removes and returns the first lines that belong together."""
    taken = []
    while rest and belongs(rest[0]) and not (taken and _SECTION.match(rest[0]) and rest[1:]):
        taken.append(rest.pop(0))
    return taken


def _indented(lines):
    return [f"   {line}" if line else "" for line in lines]


def _fenced(rest):
    language = rest.pop(0).strip("`") or "text"
    code = []
    while rest and not rest[0].startswith("```"):
        code.append(rest.pop(0))
    del rest[:1]
    return [f".. code-block:: {language}", "", *_indented(code), ""]


def _section(rest):
    name = rest.pop(0).rstrip(":")
    yield from (f".. rubric:: {name}", "")
    if not _is_indented(rest[0]):
        return  # An example, whose fence follows.
    body = textwrap.dedent("\n".join(_take(rest, _is_indented))).splitlines()
    if name not in _ENTRIES:
        yield from _blocks(body)
        return
    for entry in _entries(body):
        names, separator, text = "\n".join(entry).partition(": ")
        if not separator:
            yield from _blocks(entry)
            continue
        names = " ".join(names.split()).strip("`")
        yield from (f"``{names}``", *_indented(list(_blocks(_hanging(text)))), "")


def _entries(body):
    """The lines of each entry: its first line, and those that are indented or blank after it."""
    entry = []
    for line in body:
        goes_on = not line or line.startswith(" ")
        # The names of an entry may need a second line.
        if entry and not goes_on:
            yield entry
            entry = []
        entry.append(line)
    if entry:
        yield entry


def _hanging(text):
    first, _, others = text.partition("\n")
    return [first, *textwrap.dedent(others).splitlines()]


def _table(rows):
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    cells = [row for row in cells if any(cell.strip("-: ") for cell in row)]
    yield from (".. list-table::", "   :header-rows: 1", "")
    for row in cells:
        for number, cell in enumerate(row):
            yield f"   {'* -' if number == 0 else '  -'} {' '.join(_text([cell]))}"
    yield ""


def _text(lines):
    """Text with its code in double backticks, and without other markup."""
    parts = _SPAN.split("\n".join(lines))
    for number, part in enumerate(parts):
        if number % 2:
            # The escaped space ends the code, also before a letter; it is not shown.
            parts[number] = f"``{part[1:-1]}``\\ "
        else:
            parts[number] = re.sub(r"([\\*|]|_\b)", r"\\\1", part)
    return re.sub(r"\\ (?=\s|$)", "", "".join(parts)).splitlines()
