"""From two files of text to flat files of token ids."""

import hashlib
import itertools
import json
import os
import pathlib
import shutil
import tempfile
import uuid
import warnings

import numpy as np

from kformer.data.corpus import (
    FORMAT_VERSION,
    ID_TYPES,
    OFFSET_TYPE,
    SIDES,
    PreparedCorpus,
    is_prepared,
    vocabulary_fingerprint,
)
from kformer.utils.checks import check_same_length, check_whole
from kformer.utils.lines import check_readable, count_lines, describe, is_path, read_chunks

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
    r"""Tokenizes a parallel corpus once and writes the ids into a folder, from which training reads
    them.

    The corpus streams through in chunks, so its size is bounded by the disk alone. The folder is
    written aside and renamed when it is complete: a folder named `output` is never half written.

    Line n of the source belongs to line n of the target. A line ends at `"\n"` only (U+2028 and the
    like stay inside it); one `"\r"` before the newline and a byte order mark at the file's start
    are dropped.

    Two kinds of pairs are left out, counted and reported in one sentence each, never silently:
    those with more than `max_length` tokens on a side (special tokens counted), and those with no
    token on a side beside the special ones (an empty line, or white space alone).

    Args:
        source: path of a UTF-8 text file with one sentence per line, or an iterable of strings.
        target: the same for the other side, with as many lines.
        tokenizer: a `kformer.Tokenizer`, or anything with its `tokenize(texts, side,
            special_tokens)`, `vocabulary_size`, `target_vocabulary_size`, `pad_id`, `start_id` and
            `end_id`.
        output: path of the folder to write. An older prepared corpus of that name is replaced.
        max_length: int. Most tokens on either side of a pair.
        num_threads: int. Passed on to the tokenizer; `None` leaves it to choose. The result does
            not depend on it.
        progress: callable `(lines_done, lines_in_all)`, called after every chunk; `lines_in_all` is
            `None` when the source is an iterator.
        report: callable that takes each sentence about pairs left out. By default it is a Python
            warning.

    Returns:
        A `PreparedCorpus`.

    Raises:
        FileNotFoundError: when a file does not exist.
        ValueError: when a side is empty, the sides differ in length, a line is not valid UTF-8, no
            pair is left, or `output` is a folder of something else.

    Example:

    >>> corpus = kformer.data.prepare("train.en", "train.de", tokenizer, "data/train", max_length=128)
    >>> train = kformer.data.ParallelDataset.from_prepared(corpus, batch_tokens=4096)
    """
    check_whole("max_length", max_length, least=2)
    for texts, side in zip((source, target), SIDES, strict=True):
        check_readable(texts, side)
    total = _check_counts(source, target)
    output = pathlib.Path(output)
    if output.exists() and not (
        output.is_dir() and (is_prepared(output) or not any(output.iterdir()))
    ):
        raise ValueError(
            f"'{output}' exists and is not a prepared corpus; remove it or choose another folder, so that nothing of "
            "it is overwritten."
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.parent / f".{output.name}.{uuid.uuid4().hex}.partial"
    partial.mkdir()
    try:
        meta = _write(source, target, tokenizer, partial, max_length, num_threads, progress, total)
        (partial / "meta.json").write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")
        for sentence in _left_out(meta):
            if report is not None:
                report(sentence)
            else:
                warnings.warn(sentence, stacklevel=2)
        _rename(partial, output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return PreparedCorpus.load(output)


def prepare_cached(source, target, tokenizer, cache_dir, *, max_length=256, **options):
    """Like `prepare`, into a subfolder of `cache_dir` named by a fingerprint; prepares nothing if
    it stands there.

    The fingerprint is made of the texts' bytes, the tokenizer's saved files and `max_length`, so an
    edited file or a newly trained tokenizer is noticed, while a copied or touched file is not
    prepared again.

    Raises:
        ValueError: additionally, when a side is an iterator (it can be read only once).
    """
    check_whole("max_length", max_length, least=2)
    for texts, side in zip((source, target), SIDES, strict=True):
        check_readable(texts, side)
        if count_lines(texts) is None:
            raise ValueError(
                f"cache_dir needs {describe(texts, side)} twice, but an iterator is read once; give a list."
            )
    folder = (
        pathlib.Path(cache_dir) / f"pairs-{_fingerprint(source, target, tokenizer, max_length)}"
    )
    if is_prepared(folder):
        return PreparedCorpus.load(folder)
    return prepare(source, target, tokenizer, folder, max_length=max_length, **options)


def _check_counts(source, target):
    """Number of lines of both sides; known before the long work starts, unless a side is an
    iterator.
    """
    counts = [count_lines(source), count_lines(target)]
    for texts, side, count in zip((source, target), SIDES, counts, strict=True):
        if count == 0:
            raise ValueError(f"The corpus is empty: {describe(texts, side)} has no lines.")
    if None not in counts:
        _check_same_length(source, target, *counts)
    return counts[0]


def _check_same_length(source, target, num_source, num_target):
    names = describe(source, "source"), describe(target, "target")
    check_same_length(names[0], num_source, names[1], num_target)


def _write(source, target, tokenizer, folder, max_length, num_threads, progress, total):
    """Writes ids and offsets of both sides into `folder`; returns what `meta.json` says."""
    threads = {} if num_threads is None else {"num_threads": num_threads}

    def tokenize(texts, side):
        return tokenizer.tokenize(texts, side=side, special_tokens=True, **threads)

    vocabulary = {
        "source": int(tokenizer.vocabulary_size),
        "target": int(tokenizer.target_vocabulary_size),
    }
    kinds = {side: "uint16" if vocabulary[side] <= 1 << 16 else "int32" for side in SIDES}
    # What the special tokens alone come to: a side with no more than that has no text.
    bare = {side: len(tokenize([""], side)[0]) for side in SIDES}
    num_lines, num_pairs = 0, 0
    left_out = {"too_long": 0, "empty": 0}
    examples = {"too_long": [], "empty": []}
    sizes = dict.fromkeys(SIDES, 0)
    files = {}
    try:
        for side in SIDES:
            files[side] = open(folder / f"{side}.ids", "wb"), open(folder / f"{side}.offsets", "wb")  # noqa: SIM115
            np.zeros(1, OFFSET_TYPE).tofile(files[side][1])

        for chunk in _pairs(source, target):
            tokens = [
                _flatten(tokenize(chunk[side], side), vocabulary[side], side, kinds[side])
                for side in SIDES
            ]
            lengths = [part[1] for part in tokens]
            empty = (lengths[0] <= bare["source"]) | (lengths[1] <= bare["target"])
            too_long = ~empty & (np.maximum(*lengths) > max_length)
            for name, which in (("empty", empty), ("too_long", too_long)):
                left_out[name] += int(which.sum())
                room = NUM_EXAMPLES - len(examples[name])
                examples[name] += (np.flatnonzero(which)[:room] + num_lines + 1).tolist()
            keep = ~(empty | too_long)
            for side, (ids, length) in zip(SIDES, tokens, strict=True):
                ids[np.repeat(keep, length)].tofile(files[side][0])
                ends = np.cumsum(length[keep], dtype=np.uint64) + np.uint64(sizes[side])
                ends.astype(OFFSET_TYPE).tofile(files[side][1])
                sizes[side] += int(length[keep].sum())
            num_lines += len(keep)
            num_pairs += int(keep.sum())
            if progress is not None:
                progress(num_lines, total)
    finally:
        for pair in files.values():
            for file in pair:
                file.close()
    if num_lines == 0:
        raise ValueError(f"The corpus is empty: {describe(source, 'source')} has no lines.")
    if num_pairs == 0:
        raise ValueError(
            f"No pair is left to train on: of {num_lines} pairs, {left_out['empty']} have an empty side and "
            f"{left_out['too_long']} have more than max_length={max_length} tokens on a side; check the files or raise "
            "max_length."
        )
    return {
        "format_version": FORMAT_VERSION,
        "num_lines": num_lines, "num_pairs": num_pairs,
        "num_too_long": left_out["too_long"], "too_long_examples": examples["too_long"],
        "num_empty": left_out["empty"], "empty_examples": examples["empty"],
        "num_source_tokens": sizes["source"], "num_target_tokens": sizes["target"],
        "source_id_type": kinds["source"], "target_id_type": kinds["target"],
        "max_length": int(max_length),
        "vocabulary_size": vocabulary["source"], "target_vocabulary_size": vocabulary["target"],
        "vocabulary": vocabulary_fingerprint(tokenizer),
        "pad_id": int(tokenizer.pad_id), "start_id": int(tokenizer.start_id), "end_id": int(tokenizer.end_id),
    }  # fmt: skip


def _pairs(source, target):
    """Chunks of both sides, line for line; a side that ends early is an error that says both
    lengths.
    """
    chunks = [
        read_chunks(texts, side, CHUNK_LINES)
        for texts, side in zip((source, target), SIDES, strict=True)
    ]
    counts = [0, 0]
    for pair in itertools.zip_longest(*chunks, fillvalue=[]):
        counts = [count + len(chunk) for count, chunk in zip(counts, pair, strict=True)]
        if counts[0] != counts[1]:
            rest = [sum(len(chunk) for chunk in chunks[i]) for i in range(2)]
            _check_same_length(source, target, counts[0] + rest[0], counts[1] + rest[1])
        yield dict(zip(SIDES, pair, strict=True))


def _flatten(ids, vocabulary_size, side, kind):
    """Lists of token ids as one flat array, and the length of each."""
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    flat = np.fromiter(itertools.chain.from_iterable(ids), np.int64, int(lengths.sum()))
    if len(flat) and not 0 <= flat.min() <= flat.max() < vocabulary_size:
        raise ValueError(
            f"The tokenizer gave the {side} id {flat.min() if flat.min() < 0 else flat.max()}, outside its vocabulary "
            f"of {vocabulary_size}; load the tokenizer that belongs to these models."
        )
    return flat.astype(ID_TYPES[kind]), lengths


def _left_out(meta):
    """One sentence for each reason for which pairs were left out."""
    reasons = {
        "too_long": f"have more than max_length={meta['max_length']} tokens on a side",
        "empty": "have an empty side",
    }
    remedies = {"too_long": "; raise max_length to keep them", "empty": ""}
    for name, reason in reasons.items():
        if count := meta[f"num_{name}"]:
            numbers = ", ".join(map(str, meta[f"{name}_examples"]))
            more = ", ..." if count > len(meta[f"{name}_examples"]) else ""
            yield (
                f"{count:,} of {meta['num_lines']:,} pairs {reason} and are left out "
                f"(line{'s' if count > 1 else ''} {numbers}{more})"
                f"{remedies[name]}."
            )


def _rename(partial, output):
    if is_prepared(output):
        old = partial.with_suffix(".old")
        os.rename(output, old)
        os.rename(partial, output)
        shutil.rmtree(old, ignore_errors=True)
        return
    try:
        os.rename(partial, output)
    except OSError:
        if not is_prepared(
            output
        ):  # another process prepared the same folder meanwhile: its work is as good
            raise


def _fingerprint(source, target, tokenizer, max_length):
    digest = hashlib.sha256(f"kformer pairs {FORMAT_VERSION} {int(max_length)}".encode())
    for texts in (source, target):
        digest.update(b"side")
        if is_path(texts):
            digest.update(os.path.getsize(texts).to_bytes(8, "little"))
            with open(texts, "rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        else:
            for text in texts:
                data = str(text).encode("utf-8", "surrogatepass")
                digest.update(len(data).to_bytes(8, "little") + data)
    with tempfile.TemporaryDirectory() as folder:
        saved = pathlib.Path(folder) / "tokenizer"
        tokenizer.save(saved)
        for path in sorted(saved.rglob("*")):
            if path.is_file():
                digest.update(
                    f"file {path.relative_to(saved).as_posix()}".encode() + path.read_bytes()
                )
    return digest.hexdigest()[:32]
