"""Pairs of sentences from the files that people have."""

import codecs
import contextlib
import csv
import io
import itertools
import pathlib
import zipfile

from kformer.data.corpora.units import unit_pairs
from kformer.utils.checks import shown
from kformer.utils.compressed import (
    check_compression,
    naming_archive,
    naming_damage,
    open_binary,
    plain_name,
)
from kformer.utils.files import inside, parse_json, read_json
from kformer.utils.gettext import charset, read_catalogue
from kformer.utils.languages import is_language
from kformer.utils.lines import decode_lines, one_line, proper
from kformer.utils.tables import check_text_type
from kformer_options.installed import check_extra
from kformer_options.text_files import check_same_length
from kformer_options.wording import counted

# What one chunk has at the most. One pair may have more characters.
_CHUNK_PAIRS, _CHUNK_CHARACTERS = 10_000, 4 << 20
# The most bytes of a line, and the most characters of a text.
_MOST = 1 << 20
_BLOCK_BYTES = 1 << 18
# polib holds a whole catalogue in memory; the largest that people publish have some 5 MB.
_MOST_CATALOGUE_BYTES = 32 << 20
# Rows of a table that are held at once: each may have a text of the greatest length.
_ROWS = 32


def check_format(path, what, columns):
    """Checks that a file has a format that can be read, and that its packages are installed.

    Args:
        path: path of a file or folder that exists.
        what: str. What names it, for messages, such as "the corpus 'ui'".
        columns: two int, two str or `None`. What the corpus says of its columns.

    Raises:
        ImportError: a package that the format needs is not installed.
        ValueError: the end of its name says no known format, or the format has no such columns.
    """
    path = pathlib.Path(path)
    check_compression(path)
    if path.is_dir():
        _check_folder(path, what)
    elif _ending(path) not in _READERS:
        raise ValueError(
            f"{what} names {path}, whose name ends in none of {', '.join(_READERS)}: rename it, or "
            "give source and target if it has one side."
        )
    elif _ending(path) in _PACKAGES:
        check_extra(f"The file {path} of {what}", "corpora", (_PACKAGES[_ending(path)],))
    reader = _reader(path)
    if columns is not None and reader in _WITHOUT_COLUMNS:
        raise ValueError(f"{what} has columns, but {path} has none: leave them out.")
    if columns is not None and isinstance(columns[0], int) and reader in _WITH_NAMES:
        raise ValueError(
            f"{what} numbers its columns, but {path} has names: name them, such as translation.en."
        )


def read_pairs(corpus):
    """Yields the pairs of a corpus in chunks, which depend on its files alone.

    A line break in a text becomes a space. A record without one of the two texts has "" there.

    Args:
        corpus: `kformer.data.corpora.description.Corpus`.

    Yields:
        Two lists of str of equal length, at most 10,000: sources and targets.

    Raises:
        ImportError: a package that a file needs is not installed.
        OSError: a file cannot be read.
        ValueError: a file is damaged, or has other columns or languages than the corpus says.
    """
    if corpus.pairs is not None:
        yield from _chunks(_checked(corpus.pairs), "the list of pairs")
    elif corpus.source is not None:
        for source, target in zip(corpus.source, corpus.target, strict=True):
            yield from _chunks(_two_files(source, target), source)
    else:
        for path in corpus.files:
            yield from _chunks(_reader(path)(path, corpus), path, _sides(corpus))


def _ending(path):
    return plain_name(path).suffix.lower()


def _reader(path):
    return _dataset if path.is_dir() else _READERS[_ending(path)]


def _sides(corpus):
    """Returns what the two texts of a record are called in messages."""
    if corpus.columns is not None:
        return [f"column {column!r}" for column in corpus.columns]
    return [f"text in {language!r}" for language in corpus.languages]


def _chunks(pairs, path, sides=None):
    """Yields chunks of pairs of which each text is one line.

    Args:
        pairs: iterable of two texts, `None` for one that a record does not have.
        path: path or str. What they are from, for messages.
        sides: two str, default `None`. What the texts are, if the first records must have them.
    """
    number = 0
    for chunk in _cut(pairs):
        texts = [*zip(*chunk, strict=True)]
        if number == 0 and sides:
            for side, name in zip(texts, sides, strict=True):
                if all(text is None for text in side):
                    raise ValueError(
                        f"{path} has no {name} in its first {counted(len(side), 'record')}: "
                        "correct languages or columns of the corpus."
                    )
        yield tuple(_one_lines(side, path, number) for side in texts)
        number += len(chunk)


def _cut(pairs):
    chunk, size = [], 0
    for pair in pairs:
        chunk.append(pair)
        size += len(pair[0] or "") + len(pair[1] or "")
        if len(chunk) == _CHUNK_PAIRS or size >= _CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _one_lines(texts, path, number):
    texts = [text or "" for text in texts]
    longest = max(texts, key=len)
    if len(longest) > _MOST:
        raise ValueError(
            f"Record {number + texts.index(longest) + 1:,} of {path} has a text of "
            f"{len(longest):,} characters, more than {_MOST:,}: split it, or remove it."
        )
    # One look at the whole chunk is faster than one at each text.
    joined = "".join(texts)
    if "\n" in joined or "\r" in joined:
        texts = list(map(one_line, texts))
    if not joined.isascii():
        try:
            joined.encode()
        except UnicodeEncodeError:
            texts = list(map(proper, texts))
    return texts


def _checked(pairs):
    for number, pair in enumerate(pairs, 1):
        is_pair = isinstance(pair, list | tuple) and len(pair) == 2
        if not is_pair or not all(isinstance(text, str) for text in pair):
            raise ValueError(f"Pair {number:,} must be two texts, but it is {shown(pair)}.")
        yield pair


# Lines.


def _lines(file, path):
    """Yields the texts of the lines of a binary file, as `read_chunks` of `kformer.utils.lines`."""
    number, rest, is_whole = 0, b"", False
    while not is_whole:
        block = file.read(_BLOCK_BYTES)
        is_whole = not block
        content = rest + block
        first = content.find(b"\n")
        if (len(content) if first < 0 else first) > _MOST:
            raise ValueError(
                f"Line {number + 1:,} of {path} has more than {_MOST:,} bytes: split it, or remove "
                "it."
            )
        end = len(content) if is_whole else content.rfind(b"\n") + 1
        rest, content = content[end:], content[:end]
        if number == 0:
            content = content.removeprefix(codecs.BOM_UTF8)
        if content:
            lines = decode_lines([content], path, number)
            yield from lines
            number += len(lines)


def _two_files(source, target):
    with open_binary(source) as source_file, open_binary(target) as target_file:
        yield from _aligned((source_file, target_file), (source, target))


def _aligned(files, names):
    sides = [_lines(file, name) for file, name in zip(files, names, strict=True)]
    for number, pair in enumerate(itertools.zip_longest(*sides)):
        if None in pair:
            lengths = [number, number]
            longer = pair.index(None) ^ 1
            lengths[longer] += 1 + sum(1 for _ in sides[longer])
            check_same_length(f"'{names[0]}'", lengths[0], f"'{names[1]}'", lengths[1])
        yield pair


def _moses(path, corpus):
    with naming_archive(path), zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        # What macOS adds for each file is no text.
        names = [name for name in names if not name.startswith("__MACOSX/")]
        ends = [f".{language}" for language in corpus.languages]
        stems = [
            sorted(name.removesuffix(end) for name in names if name.endswith(end)) for end in ends
        ]
        if not stems[0] or stems[0] != stems[1]:
            raise ValueError(
                f"{path} must have files that end in {ends[0]} and {ends[1]}, two for each name, "
                f"but it has {shown(names)}: correct the languages of the corpus."
            )
        for stem in stems[0]:
            members = [f"{stem}{end}" for end in ends]
            with contextlib.ExitStack() as stack:
                files = [stack.enter_context(archive.open(member)) for member in members]
                buffered = [io.BufferedReader(file, _BLOCK_BYTES) for file in files]
                yield from _aligned(buffered, [f"{path}/{member}" for member in members])


# Lines with columns.


def _tab_separated(path, corpus):
    with open_binary(path) as file:
        yield from _columns((line.split("\t") for line in _lines(file, path)), corpus, path)


def _comma_separated(path, corpus):
    with open_binary(path) as file:
        # A field in quotes may have line breaks.
        rows = csv.reader((f"{line}\n" for line in _lines(file, path)), strict=True)
        try:
            yield from _columns(filter(None, rows), corpus, path)
        except csv.Error as error:
            raise ValueError(
                f"Line {rows.line_num:,} of {path} is not CSV ({error}): mend its quotes, or name "
                "the file .tsv if it has tabs."
            ) from None


def _columns(rows, corpus, path):
    columns = corpus.columns or (1, 2)
    if isinstance(columns[0], str):
        header = next(rows, [])
        for column in columns:
            if column not in header:
                raise ValueError(
                    f"{path} has no column {column!r} in its first line, {shown(header)}: correct "
                    "columns of the corpus, or give numbers."
                )
        columns = [header.index(column) + 1 for column in columns]
    first, second = (column - 1 for column in columns)
    least = max(first, second)
    for row in rows:
        if len(row) > least:
            yield row[first], row[second]
        else:
            yield [row[column] if column < len(row) else None for column in (first, second)]


def _json_lines(path, corpus):
    ways = _ways(corpus)
    with open_binary(path) as file:
        for number, line in enumerate(_lines(file, path), 1):
            if line.strip():
                where = f"Line {number:,} of {path}"
                record = parse_json(line, where, remedy="mend the line, or remove it")
                yield [_text_at(record, side, where) for side in ways]


def _ways(corpus):
    """Returns for each side the ways to its text: tuples of names, one inside the other."""
    if corpus.columns is None:
        return [[("translation", language), (language,)] for language in corpus.languages]
    return [[(column,), tuple(column.split("."))] for column in corpus.columns]


def _text_at(record, ways, where):
    for way in ways:
        value = record
        for name in way:
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, str):
            return value
        if value is not None:
            raise ValueError(
                f"{where} has {shown(value)} at {'.'.join(way)!r}, not a text: correct columns of "
                "the corpus."
            )
    return None


# Tables.


def _parquet(path, corpus):
    check_extra("A Parquet file", "corpora", ("pyarrow",))
    import pyarrow.parquet

    with naming_damage(path), pyarrow.parquet.ParquetFile(path, buffer_size=1 << 16) as file:
        ways = [_way(file.schema_arrow, side, path) for side in _ways(corpus)]
        columns = list(map(".".join, ways))
        yield from _table_pairs(file.iter_batches(_ROWS, columns=columns), ways)


def _check_folder(path, what):
    check_extra(f"The folder {path} of {what}", "corpora", ("pyarrow",))
    if (path / "dataset_dict.json").is_file():
        raise ValueError(
            f"{what} names {path}, which has several datasets: name the folder of one, such as "
            f"{path / 'train'}."
        )
    if not (path / "state.json").is_file():
        raise ValueError(
            f"{what} names the folder {path}, which has no state.json: give a folder that "
            "save_to_disk of the library datasets wrote, or files."
        )


def _dataset(path, corpus):
    check_extra("A folder of datasets", "corpora", ("pyarrow",))
    import pyarrow

    state = read_json(path / "state.json")
    try:
        names = [file["filename"] for file in state["_data_files"]]
        files = [inside(path, name) for name in names]
        is_whole = not state.get("_indices_data_files")
    except (KeyError, TypeError):
        is_whole = False
    if not is_whole:
        raise ValueError(f"{path / 'state.json'} names no whole data: save the dataset again.")
    for file in files:
        with naming_damage(file), pyarrow.memory_map(str(file)) as content:
            batches = pyarrow.ipc.open_stream(content)
            ways = [_way(batches.schema, side, path) for side in _ways(corpus)]
            yield from _table_pairs(_checked_batches(batches), ways)


def _checked_batches(batches):
    for batch in batches:
        batch.validate(full=True)  # Nothing else checks the offsets of texts.
        for begin in range(0, batch.num_rows, _ROWS):
            yield batch.slice(begin, _ROWS)


def _way(schema, ways, path):
    """Returns the first of some ways that a table has."""
    import pyarrow

    for way in ways:
        names, kind = schema.names, None
        for name in way:
            if names.count(name) != 1:
                break
            kind = schema.field(name).type if kind is None else kind.field(name).type
            is_struct = pyarrow.types.is_struct(kind)
            names = [kind.field(i).name for i in range(kind.num_fields)] if is_struct else []
        else:
            check_text_type(kind, ".".join(way), path)
            return way
    raise ValueError(
        f"{path} has not one column {'.'.join(ways[0])!r} among {shown(schema.names)}: name both "
        "by columns of the corpus."
    )


def _table_pairs(batches, ways):
    import pyarrow.compute

    for batch in batches:
        sides = []
        for first, *others in ways:
            column = batch.column(first)
            column = pyarrow.compute.struct_field(column, others) if others else column
            sides.append(column.to_pylist())
        yield from zip(*sides, strict=True)


# Catalogues.


def _catalogue(path, corpus):
    with open_binary(path) as file:
        content = file.read(_MOST_CATALOGUE_BYTES + 1)
    if len(content) > _MOST_CATALOGUE_BYTES:
        raise ValueError(f"{path} has more than {_MOST_CATALOGUE_BYTES:,} bytes: split it.")
    encoding = charset(content) or "utf-8"
    try:
        text = content.decode(encoding)
    except (UnicodeError, LookupError):
        raise ValueError(f"{path} is not text in {encoding}: correct its header.") from None
    catalogue = read_catalogue(text, path, "corpora")
    source, target = corpus.languages
    language = catalogue.metadata.get("Language", "")
    is_swapped = is_language(language, source) and not is_language(language, target)
    if language and not is_swapped and not is_language(language, target):
        raise ValueError(
            f"{path} is in {shown(language)} by its header, and the corpus in {source} and "
            f"{target}: correct the languages of the corpus, or the header."
        )
    for entry in catalogue.translated_entries():
        pair = entry.msgid, entry.msgstr
        if entry.msgid_plural:  # The last form is that of many things in most languages.
            pair = entry.msgid_plural, entry.msgstr_plural[max(entry.msgstr_plural)]
        yield pair[::-1] if is_swapped else pair


_READERS = {
    ".tsv": _tab_separated,
    ".csv": _comma_separated,
    ".tmx": unit_pairs,
    ".xlf": unit_pairs,
    ".xliff": unit_pairs,
    ".zip": _moses,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".parquet": _parquet,
    ".po": _catalogue,
}
# Whose columns have no numbers, or who have no columns.
_WITH_NAMES = (_json_lines, _parquet, _dataset)
_WITHOUT_COLUMNS = (unit_pairs, _moses, _catalogue)
_PACKAGES = {".parquet": "pyarrow", ".po": "polib"}
