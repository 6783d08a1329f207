"""The manifest of a batch job: its options, and the sizes and digests of the files that it reads.

A job that is started again continues only if its manifest is the same.
"""

import dataclasses
import hashlib
import json
import pathlib
from importlib import metadata

from kformer.translating import streaming
from kformer.utils import files
from kformer.utils.checks import shown
from kformer.utils.checksums import is_damaged, with_checksum, without_checksum
from kformer_options.names import named

MANIFEST_FILE = "manifest.json"
_FORMAT_VERSION = 1
_RUN_FILES = ("config.json", "model.keras", "tokenizer/*")


def model_paths(options):
    """The folders of a job's models, a SavedModel's with its version.

    Args:
        options: `kformer.serving.batch.BatchOptions`.

    Returns:
        List of `pathlib.Path`, absolute.

    Raises:
        FileNotFoundError: there is no model.
    """
    paths = []
    for path in (options.model, *options.ensemble):
        if not streaming.is_run(path):
            from kformer.export.saved_model.folder import find_version

            path = find_version(path)
        paths.append(pathlib.Path(path).resolve())
    return paths


def make_manifest(records_format, models):
    """The manifest of a job.

    Args:
        records_format: an object of `kformer.serving.batch.formats`, with the job's options.
        models: list of `pathlib.Path`, the folders of the models.

    Returns:
        dict of JSON values.

    Raises:
        ValueError: the input is damaged.
    """
    path, values = records_format.path, dataclasses.asdict(records_format.options)
    search = values.pop("search")
    del values["model"], values["ensemble"]  # They may have moved.
    return {
        "format_version": _FORMAT_VERSION,
        "kformer": metadata.version("kformer"),
        "options": {**values, **search},
        "input": {
            "bytes": path.stat().st_size,
            "digest": _digest([path]),
            "records": records_format.count(),
        },
        "models": [_digest(_files_of(folder)) for folder in models],
    }


def check_or_write(folder, manifest):
    """Compares the manifest with the one in a job's folder; writes it if there is none.

    A job without a finished shard is no reason to refuse another one.

    Args:
        folder: `pathlib.Path`. The folder of the job.
        manifest: dict, from `make_manifest`.

    Raises:
        ValueError: the job there is another one; the message names what has changed.
    """
    path = folder / MANIFEST_FILE
    if not path.exists() or not has_shards(folder):
        remove_job(folder)
        files.write_json(path, with_checksum(manifest))
        return
    remedy = f"remove {folder} to begin again"
    written = files.read_json(path, remedy=remedy)
    files.check_format_version(written, _FORMAT_VERSION, path, "batch job")
    if is_damaged(written):
        raise ValueError(f"{path} is damaged: {remedy}.")
    changes = list(_changes(without_checksum(written), manifest))
    if changes:
        raise ValueError(
            f"{folder} holds an unfinished job, and since it began {', and '.join(changes)}: give "
            f"what it began with, or {remedy}."
        )


def shards_folder(folder, manifest):
    """Returns the folder of a job's shards.

    Its name depends on the whole manifest: a worker of an earlier job with another one, which may
    still run, writes to another folder.
    """
    text = json.dumps(manifest, sort_keys=True)
    return folder / f"shards-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


def has_shards(folder):
    """Whether a job's folder has a finished shard."""
    return any(files.entries(shards) for shards in folder.glob("shards-*"))


def remove_job(folder):
    """Empties a job's folder, except its lock."""
    for shards in folder.glob("shards-*"):
        files.remove_tree(shards)
    (folder / MANIFEST_FILE).unlink(missing_ok=True)


def _changes(old, new):
    """Yields a phrase for each difference between two manifests."""
    if old.get("input") != new["input"]:
        yield "the input has changed"
    if old.get("models") != new["models"]:
        yield "the model has changed"
    if old.get("kformer") != new["kformer"]:
        yield f"kformer was {shown(old.get('kformer'))} and is {new['kformer']!r} now"
    before, now = old.get("options", {}), new["options"]
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            yield f"{named(name)} was {shown(before.get(name))} and is {shown(now.get(name))} now"


def _files_of(folder):
    patterns = _RUN_FILES if (folder / "config.json").is_file() else ("**/*",)
    return sorted(path for pattern in patterns for path in folder.glob(pattern) if path.is_file())


def _digest(paths):
    """Returns the digest of the bytes of files, one after the other."""
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        with open(path, "rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()
