"""One shard of the batch job: a worker translates it and writes it, whole or not at all.

The file of a shard is a line of JSON, which describes it, and its part of the output.
"""

import hashlib
import json

from kformer.translating import streaming
from kformer.utils import files
from kformer_options.names import command_line_names

# The translator of this process: a worker has many shards, one after the other.
_opened = {}


def translate_shard(records_format, index, first, records, folder, are_flags):
    """Translates a shard and writes its file. Runs in a worker.

    Args:
        records_format: an object of `kformer.serving.batch.formats`, with the job's options.
        index: int. The shard's index, from 0.
        first: int. The number of records before it.
        records: the shard, as the format reads it.
        folder: `pathlib.Path`. The folder of shards.
        are_flags: bool. Whether messages name options as on the command line.

    Returns:
        The number of records, int.
    """
    options = records_format.options
    with command_line_names(are_flags):
        texts = records_format.texts(records, first)
        translator, search = _open(options)
        results = translator.translate(
            [text or "" for text in texts],
            batch_size=options.batch_size,
            first_index=first,
            **search,
        )
    results = [
        None if text is None else result for text, result in zip(texts, results, strict=True)
    ]
    cut = [first + i for i, result in enumerate(results, 1) if result and result.truncated]
    write_shard(folder, index, cut, records_format.payload(records, results))
    return len(results)


def _open(options):
    """The translator of some options, and the keyword arguments of its `translate`."""
    languages = options.source_language, options.target_language
    key = options.model, *languages, options.ensemble, options.dtype, None, options.trust_models
    if key not in _opened:
        _opened.clear()
        _opened[key] = streaming.open_translator(*key)
    translator, search = _opened[key], dict(options.search)
    if not search.get("sampling"):
        beam_size = search.get("beam_size")
        search["beam_size"] = streaming.wide_enough(translator, beam_size, options.n_best)
    return translator, streaming.search_options(translator, **search, n_best=options.n_best)


def shard_path(folder, index):
    """The path of a shard's file."""
    return folder / f"{index:08d}"


def write_shard(folder, index, cut, payload):
    """Writes a shard's file under a name of this writer, and renames it.

    Workers of a killed job may write the same shard at the same time, with the same content.

    Args:
        folder: `pathlib.Path`. The folder of shards.
        index: int.
        cut: list of int. The numbers of the records that were longer than the model's limit.
        payload: bytes. Its part of the output.
    """
    head = {"truncated": cut, "bytes": len(payload), "digest": _digest(payload)}
    with files.replacing(shard_path(folder, index), own_name=True) as aside:
        aside.write_bytes(json.dumps(head).encode() + b"\n" + payload)


def read_shard(folder, index):
    """Reads a shard's file.

    Args:
        folder: `pathlib.Path`. The folder of shards.
        index: int.

    Returns:
        The numbers of its records that were cut, and its payload as bytes; or `None` if it is not
        there or damaged.
    """
    try:
        with open(shard_path(folder, index), "rb") as file:
            head, payload = json.loads(file.readline()), file.read()
        is_whole = head["bytes"] == len(payload) and head["digest"] == _digest(payload)
        return (head["truncated"], payload) if is_whole else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _digest(payload):
    return hashlib.blake2b(payload, digest_size=16).hexdigest()
