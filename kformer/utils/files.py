"""Files and folders that are whole or not there, and locks of folders.

What is written is written aside, synced to the disk, and renamed last. So a reader, or a process
that starts after a power cut, finds the old content or the new one, and never a part.
"""

import contextlib
import errno
import json
import os
import pathlib
import re
import shutil
import socket
import tempfile
import time
import uuid
import warnings

# The lock file of a folder; it holds the process id of the writer and the name of its host.
LOCK_FILE = ".lock"
# The JSON files of this package are far smaller. Parsed, a file takes up to 25 times its bytes.
MOST_JSON_BYTES = 16 << 20
_PARTIAL = ".partial-"
# The names under which this module writes and removes.
_WRITTEN_ASIDE = re.compile(r"\.partial-.*|\..+\.partial(\.[^.]*)?|\..+-removed")
_SECONDS_TO_TAKE_A_LOCK = 600
# Windows locks bytes, and a locked byte cannot be read: this one lies after the process id.
_LOCKED_BYTE = 1 << 30
_IS_LOCKED = {errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK}
# A full disk, a full quota, a file above the largest size that the process may write.
_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class LockedError(ValueError):
    """Another process holds the lock of a folder."""


class NewerFormatError(ValueError):
    """What was to be read was written by a newer version of this package."""


def sync_to_disk(path):
    """Waits until a file's bytes, or a folder's entries, are on the disk and not only in memory."""
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0)
    with contextlib.suppress(PermissionError):  # Windows cannot open a folder.
        descriptor = os.open(path, flags)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def naming_full_disk(path):
    """Makes the error of a full disk name what was to be written there.

    Writing to an open file raises an OSError without the file's name, and libraries raise errors of
    their own.

    Args:
        path: path of the file or folder.

    Raises:
        OSError: the disk is full. Other errors stay as they are.
    """
    try:
        yield
    except Exception as error:
        number = getattr(error, "errno", None)
        codes = [code for code in _IS_FULL if number == code or os.strerror(code) in str(error)]
        if not codes or (isinstance(error, OSError) and error.filename is not None):
            raise
        reason = f"{os.strerror(codes[0])} (free some, or write elsewhere)"
        raise OSError(codes[0], reason, os.fspath(path)) from error


@contextlib.contextmanager
def replacing(path, *, own_name=False):
    """Writes a file under another name, and renames it when it is whole.

    After an exception the old file is still there.

    Args:
        path: path of the file to make or replace. Its folder exists.
        own_name: bool, default `False`. Whether several may write the file at the same time.

    Yields:
        The path to write to, in the same folder and with the same ending.

    Example:
        ```python
        from kformer.utils.files import replacing

        with replacing("notes.txt") as aside:
            aside.write_text("a whole note")
        ```
    """
    path = pathlib.Path(path)
    # A fixed name, if possible: the next writer overwrites what a killed process left there.
    name = f"{path.stem}.{uuid.uuid4().hex}" if own_name else path.stem
    aside = path.with_name(f".{name}.partial{path.suffix}")
    try:
        with naming_full_disk(path):
            yield aside
            sync_to_disk(aside)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    sync_to_disk(path.parent)


@contextlib.contextmanager
def new_folder(path, *, replaces=False):
    """Writes a folder under another name, and renames it when it is whole.

    After an exception nothing is left. What a killed process left is removed by the next call for
    the same parent folder.

    Args:
        path: path of the folder to make. The folders above it are made too.
        replaces: bool, default `False`. Whether a folder that stands at `path` is replaced.
            Otherwise it is an error at the end, unless that folder is empty.

    Yields:
        The path of an empty folder to write in.

    Raises:
        OSError: the folder cannot be written, or `path` is taken.

    Example:
        ```python
        from kformer.utils.files import new_folder

        with new_folder("exports/en-de") as folder:
            (folder / "notes.txt").write_text("a whole note")
        ```
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_remains(path.parent)
    # The outer folder is for this user alone, as temporary folders are.
    aside = pathlib.Path(tempfile.mkdtemp(dir=path.parent, prefix=_PARTIAL))
    lock = None
    try:
        # The lock is how others know that the writer lives. Without locks they remove nothing.
        with contextlib.suppress(OSError):
            lock = _lock(aside / LOCK_FILE)
        folder = aside / "new"
        folder.mkdir()
        with naming_full_disk(path):
            yield folder
            for part in (*folder.rglob("*"), folder):
                sync_to_disk(part)
        try:
            os.rename(folder, path)
        except OSError:
            if not (replaces and path.is_dir()):
                raise
            with contextlib.suppress(FileNotFoundError):  # Another process may do the same.
                os.rename(path, aside / "old")
            os.rename(folder, path)
        sync_to_disk(path.parent)
    finally:
        if lock is not None:
            lock.close()
        shutil.rmtree(aside, ignore_errors=True)


def entries(folder):
    """Returns the names in a folder, sorted, except locks and what killed writers left.

    Args:
        folder: path of a folder. A missing one has no names.
    """
    folder = pathlib.Path(folder)
    names = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    return [name for name in names if name != LOCK_FILE and not _WRITTEN_ASIDE.fullmatch(name)]


def remove_remains(parent):
    """Removes what killed calls of `new_folder` left in the folder `parent`.

    A living writer holds the lock of its folder. A folder without a process id in its lock file is
    left alone for a while: its writer may be about to take the lock. (After a power cut the id may
    be missing, and after a kill the file.) On a file system without locks nothing is removed.
    """
    for aside in parent.glob(f"{_PARTIAL}*"):
        with contextlib.suppress(OSError, LockedError):
            entries = {entry.name for entry in aside.iterdir()}
            if aside.is_symlink() or not entries <= {LOCK_FILE, "new", "old"}:
                continue
            has_id = LOCK_FILE in entries and (aside / LOCK_FILE).stat().st_size
            if has_id or time.time() - aside.stat().st_mtime > _SECONDS_TO_TAKE_A_LOCK:
                with _lock(aside / LOCK_FILE):
                    shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def locked(folder):
    """Holds the exclusive lock of a folder, so that one process at a time writes there.

    The operating system frees the lock when its process ends, also when it is killed. On a file
    system without locks there is a warning, and no lock.

    Args:
        folder: path of the folder. It is made if it is missing, and removed again if it is still
            empty at the end.

    Raises:
        LockedError: another process holds the lock; the message has its process id.
        NotADirectoryError: `folder` is a file.

    Example:
        ```python
        from kformer.utils.files import locked

        with locked("runs/fr-en"):
            pass  # No other process that asks for the lock writes to runs/fr-en here.
        ```
    """
    folder = pathlib.Path(folder)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file, so no folder can be made there.")
    made = [part for part in (folder, *folder.parents) if not part.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    file, lock = folder / LOCK_FILE, None
    try:
        try:
            lock = _lock(file)
        except OSError as error:
            if error.errno not in {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}:
                raise
            warnings.warn(
                f"The file system of {folder} has no locks ({error.strerror}): make sure yourself "
                "that no other process writes there.",
                stacklevel=3,
            )
        yield
    finally:
        if lock is not None:
            # Before the lock is freed, or another's file may go. Windows removes no open file.
            with contextlib.suppress(OSError):
                file.unlink()
            lock.close()
        for part in made:
            with contextlib.suppress(OSError):
                part.rmdir()


def _lock(path):
    """Locks a file, which is made if it is missing, and writes this process's id into it.

    Returns:
        The open file, which holds the lock until it is closed.

    Raises:
        LockedError: another process holds the lock.
        OSError: the file cannot be written, or the file system has no locks.
    """
    while True:
        file = open(path, "a+b", buffering=0)  # noqa: SIM115
        try:
            _lock_open_file(file)
            # The holder before us may have removed the file between our opening and locking it.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                    file.truncate(0)
                    file.write(f"{os.getpid()} {socket.gethostname()}\n".encode())
                    return file
            file.close()
        except OSError as error:
            if error.errno not in _IS_LOCKED:
                file.close()
                path.unlink(missing_ok=True)
                raise
            file.seek(0)
            pid, _, host = file.read(1000).decode(errors="replace").strip().partition(" ")
            file.close()
            where = f" on {host}" if host and host != socket.gethostname() else ""
            raise LockedError(
                f"Process {pid or '(unknown)'}{where} is writing to {path.parent}: wait until it "
                "has ended, or stop it."
            ) from None


def _lock_open_file(file):
    try:
        import fcntl
    except ImportError:
        import msvcrt

        file.seek(_LOCKED_BYTE)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        file.seek(0)
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def write_json(path, value, indent=2):
    """Writes a value as JSON, atomically.

    Args:
        path: path of the file.
        value: a value of JSON types.
        indent: int or `None`, default 2. As of `json.dump`; `None` for one line, which is a third
            as large where it is numbers.

    Raises:
        ValueError: JSON cannot hold the value. The old file is still there.
    """
    with replacing(path) as aside, open(aside, "w", encoding="utf-8") as file:
        try:
            # Part by part: the whole text of a large vocabulary takes much memory.
            json.dump(value, file, indent=indent, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            name = pathlib.Path(path).name
            raise ValueError(f"{name} takes JSON values alone: {error}.") from error
        file.write("\n")


def read_json(path, kind=dict, *, remedy="the file is damaged", most=MOST_JSON_BYTES):
    """Reads a JSON object or list from a file.

    Args:
        path: path of the file.
        kind: type, default `dict`. What the file should hold: `dict` or `list`.
        remedy: str, default "the file is damaged". The end of an error message.
        most: int, default `MOST_JSON_BYTES`. The most bytes that are read.

    Returns:
        A dict or a list.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is larger, is not valid JSON, or holds another kind of value.
    """
    return parse_json(read_bytes(path, most, remedy=remedy), path, kind, remedy=remedy)


def parse_json(content, path, kind=dict, *, remedy="the file is damaged"):
    """Returns the JSON object or list in the content of a file.

    Args:
        content: bytes or str.
        path: path of the file, for messages.
        kind, remedy: as for `read_json`.

    Raises:
        ValueError: it is not valid JSON, or holds another kind of value.
    """
    try:
        value = json.loads(content)
    # JSONDecodeError and UnicodeDecodeError are both ValueErrors.
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ValueError(f"{path} is not valid JSON ({reason}): {remedy}.") from None
    if not isinstance(value, kind):
        wanted = {dict: "a JSON object", list: "a JSON list"}[kind]
        raise ValueError(f"{path} holds {type(value).__name__} where {wanted} should be: {remedy}.")
    return value


def read_bytes(path, most, *, remedy="the file is damaged"):
    """Reads a whole file of a limited size.

    Args:
        path: path of the file.
        most: int. The most bytes that are read.
        remedy: str, default "the file is damaged". The end of an error message.

    Returns:
        bytes.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is larger.
    """
    with open(path, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(
            f"{path} has more than {most:,} bytes, which is more than such a file needs: {remedy}."
        )
    return content


def inside(folder, *parts):
    """Returns the path of something in a folder, and follows no symbolic link out of the folder.

    Args:
        folder: path of the folder.
        *parts: str. The names below it.

    Raises:
        ValueError: the path, with links followed, lies outside the folder.
    """
    folder = pathlib.Path(folder)
    path = folder.joinpath(*parts)
    # `Path.resolve` fails at a loop of links.
    if not pathlib.Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise ValueError(f"{path} is a link that leads out of {folder}, and is not followed.")
    return path


def check_format_version(value, newest, path, kind):
    """Checks the `format_version` of a file's content.

    Args:
        value: dict, the content.
        newest: int. The newest version that this code reads.
        path: path of the file, for the message.
        kind: str. What the file belongs to, for the message.

    Raises:
        NewerFormatError: the version is newer.
        ValueError: there is no format version.
    """
    version = value.get("format_version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise ValueError(f"{path} is not the file of a {kind}: its format_version is {version!r}.")
    if version > newest:
        raise NewerFormatError(
            f"{path} has format version {version}, and this kformer reads format versions up to "
            f"{newest} of a {kind}: install a newer kformer."
        )


def remove_tree(path):
    """Removes a folder; it is renamed first, so that nobody reads it half removed."""
    path = pathlib.Path(path)
    doomed = path.with_name(f".{path.name}-removed")
    shutil.rmtree(doomed, ignore_errors=True)
    os.rename(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)
