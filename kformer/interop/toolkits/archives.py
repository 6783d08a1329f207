"""Archives of models: zips (OPUS-MT), Argos packages, and files that are compressed."""

import contextlib
import errno
import gzip
import io
import pathlib
import stat
import struct
import tempfile
import zipfile
import zlib

from kformer.utils.checks import shown

# Published archives have some twenty members, of several gigabytes. Weights hardly compress, and
# text by a factor of ten at most.
_MOST_MEMBERS = 1000
_MOST_RATIO = 20
_FREE_BYTES = 16 << 20
_CHUNK = 1 << 20
# The list of an archive's members takes at least 46 bytes for each.
_MOST_LIST_BYTES = 2 << 20
_ENDINGS = (".zip", ".argosmodel")


@contextlib.contextmanager
def unpacked(path):
    """Unpacks an archive into a temporary folder, which is removed at the end.

    Messages of errors inside the context name the archive in place of the folder.

    Args:
        path: path of a model.

    Yields:
        `pathlib.Path` of the folder with the archive's files; `path` itself if it is no archive.

    Raises:
        ValueError: the archive is damaged, is larger than a model, or has a member that leads out
            of it.
    """
    path = pathlib.Path(path)
    if path.suffix.lower() not in _ENDINGS or not path.is_file():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="kformer-import-") as temporary:
        folder = pathlib.Path(temporary)
        try:
            _unpack(path, folder)
            while len(inside := list(folder.iterdir())) == 1 and inside[0].is_dir():
                folder = inside[0]
            yield folder
        except (ValueError, FileNotFoundError) as error:
            raise type(error)(str(error).replace(str(folder), str(path))) from None


def _unpack(path, folder):
    with reading_archive(path), open_zip(path) as archive:
        members = [member for member in archive.infolist() if not member.is_dir()]
    _check_members(members, path)
    with reading_archive(path), open_zip(path) as archive:
        for member in members:
            target = folder / member.filename
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, open(target, "xb") as file:
                remaining = member.file_size  # No more than what was checked.
                while remaining and (chunk := source.read(min(_CHUNK, remaining))):
                    file.write(chunk)
                    remaining -= len(chunk)
            if remaining:
                raise zipfile.BadZipFile(f"{member.filename} is cut short")


@contextlib.contextmanager
def reading_archive(path):
    """A context in which every error of a damaged zip becomes a ValueError.

    Args:
        path: path of the zip, for the message.
    """
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
        reason = error
    except OSError as error:  # A seek to before the file; two members of one name.
        if error.errno not in (errno.EINVAL, errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
            raise
        reason = error.strerror
    else:
        return
    raise ValueError(f"{path} is a damaged archive ({shown(str(reason))}): copy it again.")


@contextlib.contextmanager
def open_zip(path):
    """Opens a zip file, unless its list of members is too long: once read, it takes some ten times
    its bytes of memory.

    Args:
        path: path.

    Yields:
        `zipfile.ZipFile`, open for reading.

    Raises:
        ValueError: the list is too long.
        zipfile.BadZipFile: the file is damaged or no zip file.
    """
    with open(path, "rb") as file:
        try:
            size = _list_size(file)
        except (struct.error, OSError, OverflowError) as error:
            raise zipfile.BadZipFile(str(error)) from None
        if size > _MOST_LIST_BYTES:
            raise ValueError(
                f"{path} has a list of members of {size:,} bytes: it is no archive of a model."
            )
        with zipfile.ZipFile(file) as archive:
            yield archive


def _list_size(file):
    """The size of the list at the end of a zip file, in bytes, as its last record states it."""
    file.seek(max(file.seek(0, io.SEEK_END) - 2**16 - 100, 0))
    tail = file.read()
    end = tail.rfind(b"PK\5\6")
    (size,) = struct.unpack_from("<12xI", tail, end) if end >= 0 else (0,)
    locator = tail.rfind(b"PK\6\7", 0, max(end, 0))
    if size == 2**32 - 1 and locator >= 0:  # A file of more than 4 GB has a longer record.
        file.seek(struct.unpack_from("<8xQ", tail, locator)[0])
        (size,) = struct.unpack("<40xQ8x", file.read(56))
    return size


def _check_members(members, path):
    size = sum(member.file_size for member in members)
    if len(members) > _MOST_MEMBERS or size > _MOST_RATIO * path.stat().st_size + _FREE_BYTES:
        raise ValueError(
            f"{path} would unpack to {len(members):,} files of {size:,} bytes, which is no archive "
            "of a model."
        )
    for member in members:
        name = member.filename
        parts = pathlib.PureWindowsPath(name).parts  # Both kinds of separators.
        is_outside = not parts or ".." in parts or parts[0].endswith(("/", "\\", ":"))
        is_link = stat.S_ISLNK(member.external_attr >> 16)
        if is_outside or is_link or "\0" in name or len(name) > 1000:
            raise ValueError(
                f"{path} has the member {shown(name)}, which is a link or leads out of the "
                "archive: it is not unpacked."
            )


@contextlib.contextmanager
def decompressed(path):
    """Decompresses a file whose name ends in `.gz` into a temporary folder.

    Args:
        path: `pathlib.Path`.

    Yields:
        `pathlib.Path` of the decompressed file; `path` itself if its name ends otherwise.

    Raises:
        ValueError: the file is damaged, or holds more than a model's file does.
    """
    if path.suffix != ".gz":
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="kformer-import-") as temporary:
        plain = pathlib.Path(temporary) / path.stem
        try:
            plain.write_bytes(read_gzip(path))
            yield plain
        except (ValueError, FileNotFoundError) as error:
            raise type(error)(str(error).replace(str(plain), str(path))) from None


def read_gzip(path):
    """The content of a file that gzip compressed, bytes.

    Raises:
        ValueError: the file is damaged, or holds more than a model's file does.
    """
    most = _MOST_RATIO * path.stat().st_size + _FREE_BYTES
    try:
        with gzip.open(path) as file:
            content = file.read(most + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({shown(str(error))}): copy it again.") from None
    if len(content) > most:
        raise ValueError(f"{path} unpacks to more than {most:,} bytes, which is no model.")
    return content
