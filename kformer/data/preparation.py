"""From two files of text to flat files of token ids."""

import hashlib
import itertools
import os
import pathlib
import tempfile
import warnings

import numpy as np

from kformer.data.corpus import (
    FILES,
    FORMAT_VERSION,
    ID_TYPES,
    OFFSET_TYPE,
    SIDES,
    PreparedCorpus,
    check_replaceable,
    id_type_for,
    languages_of,
    vocabulary_fingerprint,
)
from kformer.data.flat_files import FlatFolderWriter
from kformer.utils.checks import check_whole
from kformer.utils.files import new_folder
from kformer.utils.lines import describe, read_chunks
from kformer_options.names import named
from kformer_options.text_files import check_readable, check_same_length, count_lines, is_path
from kformer_options.wording import counted

CHUNK_LINES = 20_000
NUM_EXAMPLES = 10


def prepare(
    source,
    target,
    tokenizer,
    output,
    *,
    max_length=256,
    num_threads=None,
    progress=None,
    report=None,
):
    r"""Tokenizes a parallel corpus once and writes the ids into a folder, for training to read.

    The corpus is read in chunks, so only the disk limits its size. The folder is written aside and
    renamed when it is complete: a folder named `output` is never incomplete.

    Line n of the source belongs to line n of the target. Only `"\n"` ends a line (U+2028 and the
    like do not). One `"\r"` before the newline is dropped, and so is a byte order mark at the start
    of the file.

    Two kinds of pairs are left out, counted and reported in one sentence each: those with more than
    `max_length` tokens on a side (special tokens included), and those with nothing but special
    tokens on a side (an empty line, or white space only).

    Args:
        source: path of a UTF-8 text file with one sentence per line, which may be compressed (gzip,
            bzip2, xz, zstd), or iterable of str.
        target: the same for the other side, with as many lines.
        tokenizer: `kformer.Tokenizer`, or any object with its `tokenize(texts, side,
            special_tokens)`, `vocabulary_size`, `target_vocabulary_size`, `pad_id`, `start_id` and
            `end_id`.
        output: path of the folder to write. An older prepared corpus at this path is replaced.
        max_length: int, default 256. The most tokens on either side of a pair.
        num_threads: int or `None`, default `None`. Passed to the tokenizer; `None` lets it choose.
            The result does not depend on it.
        progress: callable or `None`, default `None`. Called as `progress(lines_done, lines_in_all)`
            after every chunk; `lines_in_all` is `None` if the source is an iterator.
        report: callable or `None`, default `None`. Called with each sentence about pairs that were
            left out; `None` emits Python warnings.

    Returns:
        `PreparedCorpus`.

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: a side is empty, the sides differ in length, a line is not valid UTF-8, no pair
            is left, or `output` is a folder of something else.

    Example:
    ```python
    tokenizer = kformer.Tokenizer.train(["train.en", "train.de"], vocabulary_size=400)
    corpus = kformer.data.prepare("train.en", "train.de", tokenizer, "prepared", max_length=128)
    train = kformer.data.ParallelDataset.from_prepared(corpus, batch_tokens=512)
    ```
    """
    total, _ = _check_texts(source, target, max_length)
    output = pathlib.Path(output)
    check_replaceable(output)
    with new_folder(output, replaces=True) as folder:
        with _Writer(tokenizer, folder, max_length, num_threads) as writer:
            for chunk in _pairs(source, target):
                writer.add(chunk)
                if progress is not None:
                    progress(writer.counts["num_lines"], total)
        counts = writer.counts
        if counts["num_lines"] == 0:
            raise ValueError(f"The corpus is empty: {describe(source, 'source')} has no lines.")
        if counts["num_pairs"] == 0:
            raise ValueError(
                f"No pair is left to train on: of {counted(counts['num_lines'], 'pair')}, "
                f"{counts['num_empty']} with an empty side and {counts['num_too_long']} with more "
                f"than {named('max_length')}={max_length} tokens on a side; check the files or "
                f"raise {named('max_length')}."
            )
        writer.finish()
        for sentence in _left_out(counts, max_length):
            _report(sentence, report)
    return PreparedCorpus.load(output)


def prepare_cached(source, target, tokenizer, cache_dir, *, max_length=256, **options):
    """Like `prepare`, into a subfolder of `cache_dir`, unless it is prepared there already.

    The name of the subfolder is a fingerprint of the texts' bytes, the tokenizer's saved files and
    `max_length`. So an edited file or another tokenizer is noticed, and a copied file is not
    prepared again. A damaged folder is prepared again, with a report.

    Args:
        source, target, tokenizer, max_length: see `prepare`.
        cache_dir: path.
        **options: the other options of `prepare`.

    Returns:
        `PreparedCorpus`.

    Raises:
        FileNotFoundError: as for `prepare`.
        ValueError: as for `prepare`, or a side is an iterator, which can be read only once.
    """
    counts = _check_texts(source, target, max_length)
    for texts, side, count in zip((source, target), SIDES, counts, strict=True):
        if count is None and not (is_path(texts) and os.path.isfile(texts)):
            raise ValueError(
                f"cache_dir needs {describe(texts, side)} twice, but an iterator or a pipe is read "
                "once; give a list, or a file."
            )
    folder = pathlib.Path(cache_dir) / prepared_name(source, target, tokenizer, max_length)
    if folder.exists():
        try:
            return PreparedCorpus.load(folder)
        except (ValueError, FileNotFoundError) as error:
            fault = str(error).partition(";")[0]
            _report(f"{fault}; the text is prepared again.", options.get("report"))
    return prepare(source, target, tokenizer, folder, max_length=max_length, **options)


def _report(sentence, report):
    if report is not None:
        report(sentence)
    else:
        warnings.warn(sentence, stacklevel=3)


def _check_texts(source, target, max_length):
    """Checks both sides before the long work, and returns their numbers of lines, as
    `count_lines` does.
    """
    check_whole("max_length", max_length, least=2)
    for texts, side in zip((source, target), SIDES, strict=True):
        check_readable(texts, side, may_be_compressed=True)
    counts = [count_lines(source), count_lines(target)]
    for texts, side, count in zip((source, target), SIDES, counts, strict=True):
        if count == 0:
            raise ValueError(f"The corpus is empty: {describe(texts, side)} has no lines.")
    if None not in counts:
        _check_same_length(source, target, counts)
    return counts


def _check_same_length(source, target, counts):
    check_same_length(describe(source, "source"), counts[0], describe(target, "target"), counts[1])


class _Writer(FlatFolderWriter):
    """Writes the ids and offsets of both sides into a folder, chunk by chunk.

    Args:
        tokenizer, max_length, num_threads: see `prepare`.
        folder: path of an existing folder.
    """

    def __init__(self, tokenizer, folder, max_length, num_threads):
        super().__init__(folder, FILES)
        self._tokenizer, self._max_length = tokenizer, max_length
        self._threads = {} if num_threads is None else {"num_threads": num_threads}
        sizes = tokenizer.vocabulary_size, tokenizer.target_vocabulary_size
        self._vocabulary = dict(zip(SIDES, map(int, sizes), strict=True))
        self._id_types = {side: id_type_for(size) for side, size in self._vocabulary.items()}
        # The number of special tokens of each side: a text with no more tokens is empty.
        self._bare = {side: len(self._tokenize([""], side)[0]) for side in SIDES}
        # By the keys of meta.json.
        numbers = "num_lines num_pairs num_too_long num_empty num_source_tokens num_target_tokens"
        self.counts = dict.fromkeys(numbers.split(), 0)
        self.counts |= {"too_long_examples": [], "empty_examples": []}

    def add(self, chunk):
        """Adds pairs: a dict of side to texts."""
        flat = {side: self._flatten(self._tokenize(chunk[side], side), side) for side in SIDES}
        lengths = [length for _, length in flat.values()]
        empty = np.logical_or(*(flat[side][1] <= self._bare[side] for side in SIDES))
        too_long = ~empty & (np.maximum(*lengths) > self._max_length)
        counts = self.counts
        for name, which in (("empty", empty), ("too_long", too_long)):
            counts[f"num_{name}"] += int(which.sum())
            numbers = (np.flatnonzero(which) + counts["num_lines"] + 1).tolist()
            examples = [*counts[f"{name}_examples"], *numbers]
            counts[f"{name}_examples"] = examples[:NUM_EXAMPLES]
        keep = ~(empty | too_long)
        for side, (ids, length) in flat.items():
            ids[np.repeat(keep, length)].tofile(self._files[f"{side}.ids"])
            begin, offsets = np.uint64(counts[f"num_{side}_tokens"]), self._files[f"{side}.offsets"]
            if not offsets.tell():
                np.zeros(1, OFFSET_TYPE).tofile(offsets)
            ends = np.cumsum(length[keep], dtype=np.uint64) + begin
            ends.astype(OFFSET_TYPE).tofile(offsets)
            counts[f"num_{side}_tokens"] += int(length[keep].sum())
        counts["num_lines"] += len(keep)
        counts["num_pairs"] += int(keep.sum())

    def finish(self):
        """Writes `meta.json`."""
        tokenizer = self._tokenizer
        meta = {
            "format_version": FORMAT_VERSION,
            **self.counts,
            "source_id_type": self._id_types["source"],
            "target_id_type": self._id_types["target"],
            "max_length": int(self._max_length),
            "vocabulary_size": self._vocabulary["source"],
            "target_vocabulary_size": self._vocabulary["target"],
            "vocabulary": vocabulary_fingerprint(tokenizer),
            "languages": languages_of(tokenizer),
            "joint": getattr(tokenizer, "joint", len(set(self._vocabulary.values())) == 1),
        }
        special = {name: int(getattr(tokenizer, name)) for name in ("pad_id", "start_id", "end_id")}
        self.write_meta(meta | special)

    def _tokenize(self, texts, side):
        return self._tokenizer.tokenize(texts, side=side, special_tokens=True, **self._threads)

    def _flatten(self, ids, side):
        """Lists of token ids as one flat array, and the length of each."""
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        flat = np.fromiter(itertools.chain.from_iterable(ids), np.int64, int(lengths.sum()))
        size = self._vocabulary[side]
        if len(flat) and not 0 <= flat.min() <= flat.max() < size:
            raise ValueError(
                f"The tokenizer gave the {side} id {flat.min() if flat.min() < 0 else flat.max()}, "
                f"outside its vocabulary of {size}; load the tokenizer that belongs to these "
                "models."
            )
        return flat.astype(ID_TYPES[self._id_types[side]]), lengths


def _pairs(source, target):
    """Chunks of both sides, line by line. A side that ends early is an error."""
    sides = zip((source, target), SIDES, strict=True)
    chunks = [read_chunks(texts, side, CHUNK_LINES) for texts, side in sides]
    counts = [0, 0]
    for pair in itertools.zip_longest(*chunks, fillvalue=[]):
        counts = [count + len(chunk) for count, chunk in zip(counts, pair, strict=True)]
        if counts[0] != counts[1]:
            more = [sum(map(len, rest)) for rest in chunks]
            _check_same_length(source, target, np.add(counts, more).tolist())
        yield dict(zip(SIDES, pair, strict=True))


def _left_out(counts, max_length):
    """A sentence for each reason why pairs were left out."""
    limit = named("max_length")
    too_long = f"more than {limit}={max_length} tokens on a side"
    for name, reason, remedy in (
        ("too_long", too_long, f"; raise {limit} to keep them"),
        ("empty", "an empty side", ""),
    ):
        if count := counts[f"num_{name}"]:
            numbers = ", ".join(map(str, counts[f"{name}_examples"]))
            more = ", ..." if count > len(counts[f"{name}_examples"]) else ""
            have, are, lines = ("has", "is", "line") if count == 1 else ("have", "are", "lines")
            yield (
                f"{count:,} of {counted(counts['num_lines'], 'pair')} {have} {reason} and {are} "
                f"left out ({lines} {numbers}{more}){remedy}."
            )


def prepared_name(source, target, tokenizer, max_length):
    """The name of the folder of `prepare_cached`: a digest of texts, tokenizer and `max_length`.

    Args:
        source, target, tokenizer, max_length: see `prepare`.

    Returns:
        str.
    """
    digest = hashlib.sha256(f"kformer pairs {FORMAT_VERSION} {int(max_length)}".encode())
    for texts in (source, target):
        digest.update(b"side")
        if is_path(texts):
            digest.update(os.path.getsize(texts).to_bytes(8, "little"))
            with open(texts, "rb") as file:
                hashlib.file_digest(file, lambda: digest)
        else:
            for text in texts:
                data = str(text).encode("utf-8", "surrogatepass")
                digest.update(len(data).to_bytes(8, "little") + data)
    with tempfile.TemporaryDirectory() as folder:
        saved = pathlib.Path(folder) / "tokenizer"
        tokenizer.save(saved)
        for path in sorted(path for path in saved.rglob("*") if path.is_file()):
            digest.update(f"file {path.relative_to(saved)}".encode() + path.read_bytes())
    return f"pairs-{digest.hexdigest()[:32]}"
