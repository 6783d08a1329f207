"""The files of the batch job: lines of text, JSON lines and Parquet, read shard by shard.

Each format has the same four functions, as methods of one class: records are read in shards, have
texts, become the payload of a shard with their translations, and payloads become the output.
"""

import contextlib
import gzip
import io
import itertools
import json
import pathlib
import shutil
import zlib

from kformer.translating import streaming
from kformer.utils.checks import shown
from kformer_options.installed import check_extra

# A shard ends after so many bytes of lines, however few lines they are.
_MOST_SHARD_BYTES = 4 << 20


def format_of(path):
    """The format of a file, by the end of its name.

    Args:
        path: path. `.parquet`; `.jsonl` or `.ndjson`; anything else is lines of text. The last two
            may be followed by `.gz` or `.zst`.

    Returns:
        `TextLines`, `JsonLines` or `Parquet`.
    """
    path = pathlib.Path(path)
    if path.suffix == ".parquet":
        return Parquet
    name = pathlib.Path(path.stem) if path.suffix in (".gz", ".zst") else path
    return JsonLines if name.suffix in (".jsonl", ".ndjson") else TextLines


def _pyarrow():
    check_extra("Parquet or .zst", "cluster", ("pyarrow",))
    import pyarrow
    import pyarrow.parquet

    return pyarrow


@contextlib.contextmanager
def naming_damage(path):
    """Makes the errors of decompressors and Parquet readers one sentence that names the file.

    Args:
        path: path of the input.

    Raises:
        ValueError: the file is damaged.
    """
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is damaged or not compressed by gzip ({error}).") from error
    except OSError as error:  # pyarrow's own have no errno.
        if error.errno is not None:
            raise
        raise ValueError(f"{path} is damaged ({error}).") from error
    except Exception as error:
        if not type(error).__module__.startswith("pyarrow"):
            raise
        raise ValueError(f"{path} is damaged, or no Parquet file ({error}).") from error


class TextLines:
    """Lines of text, one line out for each line in.

    Args:
        path: path of the input.
        field, output_field: str. Not used here.
        n_best: int. Translations of each record.
        scores: bool. Whether each translation has its log-probability beside it.
    """

    name = "lines of text"

    def __init__(self, path, *, field, output_field, n_best, scores):
        self.path, self.field, self.output_field = path, field, output_field
        self.n_best, self.scores = n_best, scores

    def count(self):
        """The number of records, int."""
        with self._open() as file:
            return sum(1 for _ in file)

    def shards(self, most):
        """Yields lists of at most `most` records, which depend on the input alone."""
        with self._open() as file:
            shard, size = [], 0
            for line in file:
                shard.append(line)
                size += len(line)
                if len(shard) == most or size >= _MOST_SHARD_BYTES:
                    yield shard
                    shard, size = [], 0
            if shard:
                yield shard

    @contextlib.contextmanager
    def _open(self):
        suffix = pathlib.Path(self.path).suffix
        with naming_damage(self.path), contextlib.ExitStack() as stack:
            if suffix == ".gz":
                yield stack.enter_context(gzip.open(self.path))
            elif suffix == ".zst":
                stream = _pyarrow().input_stream(str(self.path), compression="zstd")
                yield stack.enter_context(io.BufferedReader(stream, 1 << 20))
            else:
                yield stack.enter_context(open(self.path, "rb"))

    def texts(self, records, first):
        """The text of each record, `None` for one without.

        Args:
            records: a shard.
            first: int. The number of records before it.

        Raises:
            ValueError: a record has no text; the message has its number.
        """
        return [streaming.decode_line(line, first=first + i == 0) for i, line in enumerate(records)]

    def payload(self, records, results):
        """The bytes of a shard's part of the output.

        Args:
            records: the shard.
            results: list of `kformer.translating.translation.Translation`, `None` for a record
                without text.
        """
        options = {"n_best": self.n_best, "scores": self.scores}
        lines = (streaming.format_line(result, **options) for result in results)
        return "".join(f"{line}\n" for line in lines).encode()

    def merge(self, path, payloads):
        """Writes the output.

        Args:
            path: path to write to.
            payloads: iterable of binary files, the shards' payloads in order.
        """
        with contextlib.ExitStack() as stack:
            out = stack.enter_context(open(path, "wb"))
            if path.suffix == ".gz":  # No name and time in it: the same bytes each time.
                out = stack.enter_context(gzip.GzipFile("", "wb", 6, out, mtime=0))
            elif path.suffix == ".zst":
                out = stack.enter_context(_pyarrow().CompressedOutputStream(out, "zstd"))
            for payload in payloads:
                shutil.copyfileobj(payload, out, 1 << 20)

    def values(self, result):
        """What fields and columns hold for one `Translation`: dict of name to value."""
        if result is None:
            texts = scores = None
        else:
            best = result.hypotheses[: self.n_best]
            texts, scores = [each.text for each in best], [round(each.score, 6) for each in best]
            if self.n_best == 1:
                (texts,), (scores,) = texts, scores
        return {name: texts if i == 0 else scores for i, name in enumerate(self._names())}

    def _names(self):
        return [self.output_field, *([f"{self.output_field}_score"] if self.scores else [])]


class JsonLines(TextLines):
    """One JSON object in each line, with the text in a field; the translation is added to it.

    A blank line stays blank. Arguments are those of `TextLines`.
    """

    name = "JSON lines"

    def texts(self, records, first):
        return [self._text(line, number) for number, line in enumerate(records, first + 1)]

    def _text(self, line, number):
        line = streaming.decode_line(line, first=number == 1)
        if not line.strip():
            return None
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"Line {number} of {self.path} is not JSON ({error}).") from None
        if not isinstance(value, dict):
            raise ValueError(f"Line {number} of {self.path} is not a JSON object: {shown(value)}.")
        if self.field not in value:
            raise ValueError(
                f"Line {number} of {self.path} has no field {self.field!r}: name the field with "
                "the text by --field."
            )
        for name in self._names():
            if name in value:
                raise ValueError(
                    f"Line {number} of {self.path} has a field {name!r} already: name another by "
                    "--output-field."
                )
        text = value[self.field]
        if text is not None and not isinstance(text, str):
            raise ValueError(
                f"The field {self.field!r} in line {number} of {self.path} is not a text: "
                f"{shown(text)}."
            )
        # JSON can hold half a surrogate pair, which is not a character.
        return text and text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def payload(self, records, results):
        lines = []
        for line, result in zip(records, results, strict=True):
            line = streaming.decode_line(line).removeprefix("\ufeff").rstrip()
            if line:
                added = json.dumps(self.values(result), ensure_ascii=False)
                # The object stays as it is written: no number changes its form.
                start = line[:-1].rstrip()
                line = f"{start}{'' if start.endswith('{') else ', '}{added[1:]}"
            lines.append(f"{line}\n")
        return "".join(lines).encode()


class Parquet(TextLines):
    """A Parquet file with the text in a column; the translations are columns after the others.

    Arguments are those of `TextLines`.
    """

    name = "Parquet"

    def count(self):
        with self._parquet() as file:
            return file.metadata.num_rows

    def shards(self, most):
        with self._parquet() as file:
            self._check_columns(file.schema_arrow)
            batches = file.iter_batches(batch_size=most)
            pyarrow = _pyarrow()
            yield from (pyarrow.Table.from_batches([batch]) for batch in batches if batch.num_rows)

    @contextlib.contextmanager
    def _parquet(self):
        pyarrow = _pyarrow()
        with naming_damage(self.path), pyarrow.parquet.ParquetFile(self.path) as file:
            yield file

    def _check_columns(self, schema):
        types = _pyarrow().types
        if self.field not in schema.names:
            raise ValueError(
                f"{self.path} has no column {self.field!r}, but {', '.join(schema.names)}: name "
                "the column with the text by --field."
            )
        for name in self._names():
            if name in schema.names:
                raise ValueError(
                    f"{self.path} has a column {name!r} already: name another by --output-field."
                )
        kind = schema.field(self.field).type
        if types.is_dictionary(kind):
            kind = kind.value_type
        if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
            raise ValueError(f"The column {self.field!r} of {self.path} holds {kind}, not text.")

    def texts(self, records, first):
        return records.column(self.field).to_pylist()

    def payload(self, records, results):
        pyarrow = _pyarrow()
        kinds = [pyarrow.string(), pyarrow.float64()]
        values = [self.values(result) for result in results]
        for name, kind in zip(self._names(), kinds, strict=False):
            column = [value[name] for value in values]
            kind = kind if self.n_best == 1 else pyarrow.list_(kind)
            records = records.append_column(name, pyarrow.array(column, kind))
        sink = io.BytesIO()
        with pyarrow.ipc.new_stream(sink, records.schema) as stream:
            stream.write_table(records)
        return sink.getvalue()

    def merge(self, path, payloads):
        pyarrow = _pyarrow()
        tables = (pyarrow.ipc.open_stream(payload).read_all() for payload in payloads)
        first = next(tables, None)
        if first is None:  # No rows: the columns, and a translation of each of none.
            with self._parquet() as file:
                self._check_columns(file.schema_arrow)
                empty = file.schema_arrow.empty_table()
            first = pyarrow.ipc.open_stream(self.payload(empty, [])).read_all()
        with pyarrow.parquet.ParquetWriter(path, first.schema, compression="zstd") as writer:
            for table in itertools.chain([first], tables):
                writer.write_table(table)
