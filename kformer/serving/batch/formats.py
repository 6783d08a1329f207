"""The files of the batch job: lines of text, JSON lines and Parquet, read shard by shard.

Each format has the same four functions, as methods of one class: records are read in shards, have
texts, become the payload of a shard with their translations, and payloads become the output.
"""

import contextlib
import io
import itertools
import json
import pathlib
import shutil

from kformer.translating import streaming
from kformer.utils.checks import shown
from kformer.utils.compressed import create_binary, naming_damage, open_binary, plain_name
from kformer.utils.lines import proper
from kformer.utils.tables import check_text_type
from kformer_options.installed import check_extra

# A shard ends after so many bytes of lines, however few lines they are.
_MOST_SHARD_BYTES = 4 << 20


def format_of(path):
    """The format of a file, by the end of its name.

    Args:
        path: path. `.parquet`; `.jsonl` or `.ndjson`; anything else is lines of text. The last two
            may be followed by `.gz`, `.bz2`, `.xz` or `.zst`.

    Returns:
        `TextLines`, `JsonLines` or `Parquet`.
    """
    path = pathlib.Path(path)
    if path.suffix == ".parquet":
        return Parquet
    return JsonLines if plain_name(path).suffix in (".jsonl", ".ndjson") else TextLines


def _pyarrow():
    check_extra("Parquet", "cluster", ("pyarrow",))
    import pyarrow
    import pyarrow.parquet

    return pyarrow


class TextLines:
    """Lines of text, one line out for each line in.

    Args:
        path: `pathlib.Path`. The input.
        options: `kformer.serving.batch.BatchOptions`.
    """

    name = "lines of text"

    def __init__(self, path, options):
        self.path, self.options = path, options
        self._names = [options.output_field]  # Of the fields or columns that are added.
        if options.scores:
            self._names.append(f"{options.output_field}_score")

    def count(self):
        """The number of records, int."""
        with open_binary(self.path) as file:
            return sum(1 for _ in file)

    def shards(self, most):
        """Yields lists of at most `most` records, which depend on the input alone."""
        with open_binary(self.path) as file:
            shard, size = [], 0
            for line in file:
                shard.append(line)
                size += len(line)
                if len(shard) == most or size >= _MOST_SHARD_BYTES:
                    yield shard
                    shard, size = [], 0
            if shard:
                yield shard

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
        options = {"n_best": self.options.n_best, "scores": self.options.scores}
        lines = (streaming.format_line(result, **options) for result in results)
        return "".join(f"{line}\n" for line in lines).encode()

    def merge(self, path, payloads):
        """Writes the output.

        Args:
            path: path to write to.
            payloads: iterable of binary files, the shards' payloads in order.
        """
        with create_binary(path) as out:
            for payload in payloads:
                shutil.copyfileobj(payload, out, 1 << 20)

    def values(self, result):
        """What fields and columns hold for one `Translation`: dict of name to value."""
        if result is None:
            return dict.fromkeys(self._names)
        best = result.hypotheses[: self.options.n_best]
        columns = [each.text for each in best], [round(each.score, 6) for each in best]
        if self.options.n_best == 1:
            columns = [column[0] for column in columns]
        return dict(zip(self._names, columns, strict=False))

    def _check_names(self, names, kind, where):
        """Checks the names of the fields of a record, or of the columns."""
        field = self.options.field
        if field not in names:
            raise ValueError(
                f"{where} has no {kind} {field!r} among {shown([*names])}: name the {kind} with "
                "the text by --field."
            )
        for name in set(names).intersection(self._names):
            raise ValueError(
                f"{where} has a {kind} {name!r} already: name another by --output-field."
            )


class JsonLines(TextLines):
    """One JSON object in each line, with the text in a field; the translation is added to it.

    A blank line stays blank. Arguments are those of `TextLines`.
    """

    name = "JSON lines"

    def texts(self, records, first):
        lines = enumerate(super().texts(records, first), first + 1)
        return [self._text(line, f"Line {number} of {self.path}") for number, line in lines]

    def _text(self, line, where):
        if not line.strip():
            return None
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where} is not JSON ({error}).") from None
        if not isinstance(value, dict):
            raise ValueError(f"{where} is not a JSON object: {shown(value)}.")
        self._check_names(value, "field", where)
        field, text = self.options.field, value[self.options.field]
        if text is not None and not isinstance(text, str):
            raise ValueError(f"{where} has a field {field!r} that is not a text: {shown(text)}.")
        return text and proper(text)  # JSON can hold half a surrogate pair.

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
            schema = file.schema_arrow
            self._check_names(schema.names, "column", self.path)
            field = self.options.field
            check_text_type(schema.field(field).type, field, self.path)
            batches = (batch for batch in file.iter_batches(batch_size=most) if batch.num_rows)
            tables = (_pyarrow().Table.from_batches([batch]) for batch in batches)
            # Without rows the output has the columns, and a translation of each of none.
            yield next(tables, schema.empty_table())
            yield from tables

    @contextlib.contextmanager
    def _parquet(self):
        pyarrow = _pyarrow()
        with naming_damage(self.path), pyarrow.parquet.ParquetFile(self.path) as file:
            yield file

    def texts(self, records, first):
        return records.column(self.options.field).to_pylist()

    def payload(self, records, results):
        pyarrow = _pyarrow()
        kinds = [pyarrow.string(), pyarrow.float64()]
        values = [self.values(result) for result in results]
        for name, kind in zip(self._names, kinds, strict=False):
            kind = kind if self.options.n_best == 1 else pyarrow.list_(kind)
            column = pyarrow.array([value[name] for value in values], kind)
            records = records.append_column(name, column)
        sink = io.BytesIO()
        with pyarrow.ipc.new_stream(sink, records.schema) as stream:
            stream.write_table(records)
        return sink.getvalue()

    def merge(self, path, payloads):
        pyarrow = _pyarrow()
        tables = (pyarrow.ipc.open_stream(payload).read_all() for payload in payloads)
        first = next(tables)
        with pyarrow.parquet.ParquetWriter(path, first.schema, compression="zstd") as writer:
            for table in itertools.chain([first], tables):
                writer.write_table(table)
