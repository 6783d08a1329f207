"""Published models by name: files of a model hub, through `huggingface_hub` and its cache.

The library takes any bytes of the right length, and what is in its cache at all. So every file is
verified here, cached ones included: the name of a file in the cache is the digest of its content,
SHA-256 for large files and git's for small ones. The hub itself may lie, as a mirror in
`HF_ENDPOINT` can: its answers are checked before they become paths.
"""

import contextlib
import functools
import hashlib
import os
import pathlib
import re
import threading

from kformer.utils.checks import shown
from kformer_options.model_folders import check_hub

_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
# What a translation model's folder is read from; other files stay at the hub.
_SMALL = re.compile(r"[\w.-]{1,100}\.(json|model|spm|bpe)|vocab[\w.-]{0,100}|merges\.txt", re.A)
_MOST_FILES = 1000
# Of an answer that is no file: the names of some 100,000 files.
_MOST_ANSWER_BYTES = 2**24
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
# The library's functions are replaced for all threads.
_CHECKING = threading.Lock()


class HubFolder:
    """A model's files, downloaded and verified.

    Args:
        path: `pathlib.Path` of the folder in the cache.
        name: str. The model's name.
        revision: str. The commit.
    """

    def __init__(self, path, name, revision):
        self.path, self.name, self.revision = path, name, revision


def fetch(name, revision=None):
    """Downloads a published model into the library's cache, or finds it there, and verifies it.

    `HF_ENDPOINT`, `HF_HOME`, `HF_TOKEN` and `HF_HUB_OFFLINE` count as in every program that uses
    the library.

    Args:
        name: str, such as "Helsinki-NLP/opus-mt-en-de".
        revision: str or `None`, default `None`. A branch, tag or commit; `None` for the main one.

    Returns:
        `HubFolder`.

    Raises:
        FileNotFoundError: the hub has no such model or revision, or it is not in the cache while
            the hub cannot be reached.
        OSError: a download failed, or the hub's answers are none that a model hub gives.
        ValueError: a file has other content than its digest says.
        ImportError: huggingface_hub is not installed.
    """
    check_hub(name)
    import huggingface_hub
    from huggingface_hub import errors, file_download

    revision = revision or "main"
    try:
        commit, files = _listed(huggingface_hub, name, revision)
        with _checked_answers(file_download):
            paths = [
                huggingface_hub.hf_hub_download(name, each, revision=revision) for each in files
            ]
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        is_revision = isinstance(error, errors.RevisionNotFoundError)
        what = f"revision {revision} of" if is_revision else "model"
        raise FileNotFoundError(
            f"The hub has no {what} {name} that you may read, and "
            "there is no folder of that name: check the name, or log in by `hf auth login`."
        ) from None
    except FileNotFoundError:
        raise
    except errors.HfHubHTTPError as error:
        raise OSError(f"The hub did not give {name}: {_first_line(error)}") from None
    except Exception as error:
        # Of the HTTP client, whose package differs between the library's versions.
        is_broken = isinstance(error, (OSError, *errors.HfHubHTTPError.__bases__))
        if is_broken and not isinstance(error, errors.FileMetadataError | ValueError):
            raise OSError(
                f"The download of {name} broke off ({_first_line(error)}): give the same command "
                "again, and it goes on where it stopped."
            ) from None
        # The library raises anything for an odd answer.
        raise OSError(
            f"The hub answers about {name} as no model hub does ({_first_line(error)}): check the "
            "address in HF_ENDPOINT."
        ) from None
    paths = [pathlib.Path(path) for path in paths]
    folder = paths[0].parent
    if any(path.parent.name != commit for path in paths):
        raise ValueError(f"The model {name} changed during the download: give the command again.")
    for path in paths:
        verify(path)
    return HubFolder(folder, name, folder.name)


def _listed(library, name, revision):
    """The commit and the names of the files to read, from the hub, or from the cache."""
    from huggingface_hub import constants, errors

    if not constants.HF_HUB_OFFLINE:
        with _bounded_answers(_MOST_ANSWER_BYTES):
            info = library.HfApi().model_info(name, revision=revision)
        _check_answer("commit", info.sha, _COMMIT)
        return info.sha, _needed(name, [file.rfilename for file in info.siblings or ()])
    try:
        folder = library.snapshot_download(name, revision=revision, local_files_only=True)
    except errors.LocalEntryNotFoundError:
        raise FileNotFoundError(
            f"{name} (revision {revision}) is not in the cache, and HF_HUB_OFFLINE is set: unset "
            "it to download the model."
        ) from None
    return pathlib.Path(folder).name, _needed(name, sorted(os.listdir(folder)))


@contextlib.contextmanager
def _bounded_answers(most):
    """Reads no answer of the hub beyond so many bytes: the library reads all that comes, also of
    redirections and errors, which have a bound of their own.
    """
    from huggingface_hub.utils import get_session

    def read(chunks, most, *args, **options):
        size = 0
        for chunk in chunks(*args, **options):
            size += len(chunk)
            if size > most:
                raise ValueError(f"an answer has more than {most:,} bytes")
            yield chunk

    def bound(response):
        limit = most if response.is_success else _MOST_ANSWER_BYTES
        response.iter_bytes = functools.partial(read, response.iter_bytes, limit)

    hooks = get_session().event_hooks["response"]
    hooks.append(bound)
    try:
        yield
    finally:
        hooks.remove(bound)


@contextlib.contextmanager
def _checked_answers(file_download):
    """Checks all that the hub answers about files, since the library makes paths of it unchecked.

    The library offers no such check, and asks again for each file, so an answer to us says nothing
    about the next. Its functions that ask and that download are replaced meanwhile.
    """
    ask, download = file_download.get_hf_file_metadata, file_download.http_get

    def checked(*args, **options):
        try:
            answer = ask(*args, **options)
        except Exception as error:
            # The library notes in its cache that a file is missing, too.
            headers = getattr(getattr(error, "response", None), "headers", {})
            if named := headers.get("X-Repo-Commit"):
                _check_answer("commit", named, _COMMIT)
            raise
        _check_answer("commit", answer.commit_hash, _COMMIT)
        _check_answer("ETag", answer.etag, _DIGEST)
        return answer

    def bounded(*args, expected_size, **options):
        with _bounded_answers(expected_size):
            return download(*args, expected_size=expected_size, **options)

    with _CHECKING:
        file_download.get_hf_file_metadata, file_download.http_get = checked, bounded
        try:
            yield
        finally:
            file_download.get_hf_file_metadata, file_download.http_get = ask, download


def _check_answer(what, value, pattern):
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"its {what} is {shown(value)}, which is no digest")


def _needed(name, files):
    """The files that a model is read from, of the weights in one format alone."""
    for weights, other in (_WEIGHTS, reversed(_WEIGHTS)):
        shard = re.compile(weights.replace(".", r"-[0-9]{1,9}-of-[0-9]{1,9}\."))
        shards = [weights] if weights in files else list(filter(shard.fullmatch, files))
        if shards:
            small = {file for file in files if _SMALL.fullmatch(file)} - {f"{other}.index.json"}
            return sorted({*small, *shards})[:_MOST_FILES]
    raise FileNotFoundError(f"{name} has no weights in safetensors or PyTorch's format.")


def verify(path):
    """Compares a file of the library's cache with the digest that is its name there.

    Args:
        path: `pathlib.Path` of the file, in the cache's folder `snapshots`.

    Raises:
        ValueError: it is another content, which is then removed from the cache; or the cache has no
            digest of it.
    """
    blob = path.resolve()
    root = cache_root(path.parent)
    if root is None or not blob.is_relative_to(root / "blobs"):
        raise ValueError(
            f"{path} is not in a cache of links, so its content cannot be verified: download the "
            "model's folder by `hf download --local-dir`, and import that."
        )
    digest = hashlib.sha256()
    if re.fullmatch(r"[0-9a-f]{40}", blob.name):
        digest = hashlib.sha1(f"blob {blob.stat().st_size}\0".encode(), usedforsecurity=False)
    with open(blob, "rb") as file:
        hashlib.file_digest(file, lambda: digest)
    if digest.hexdigest() != blob.name:
        blob.unlink()
        path.unlink(missing_ok=True)
        raise ValueError(
            f"{path.name} of {root.name.removeprefix('models--').replace('--', '/')} is damaged: "
            f"its content is not that of the digest {blob.name}. It was removed from the cache: "
            "give the same command again."
        )


def cache_root(folder):
    """The folder of one model in the library's cache, whose links lead from its `snapshots` to its
    `blobs`.

    Args:
        folder: `pathlib.Path` of a folder of files.

    Returns:
        `pathlib.Path`, or `None` if the folder is not a snapshot in such a cache.
    """
    root = folder.resolve().parent.parent
    is_snapshot = folder.resolve().parent.name == "snapshots" and (root / "blobs").is_dir()
    return root if is_snapshot else None


def _first_line(error):
    # It may hold words of the hub: escape sequences, and of any length.
    return shown(next(iter(str(error).strip().splitlines()), type(error).__name__))[1:-1]
