"""Inside a command's process: counts its file operations, kills it at one, or records them all.

An operation is what a power cut or a kill may come before: a file opened for writing, a write, an
fsync, a rename, a removal, a folder made. Only those below one folder count. Python's own functions
are wrapped, so a write by a library in C is none; the operations around it are.
"""

import builtins
import functools
import io
import os
import signal

_WITH_TARGET = ("rename", "replace")
_WITH_PATH = ("unlink", "remove", "rmdir", "mkdir")


def install(root, kill_at=None, half=False, record=None):
    """Wraps the file functions of this process.

    Args:
        root: path. Operations below it count.
        kill_at: int, default None. The number (from 1) of the operation before which the process
            kills itself with SIGKILL.
        half: bool, default False. Whether that is in the middle of the operation, if it is a write.
        record: path, default None. A folder that takes a record of all operations, see `recorder`.

    Returns:
        List of str, the names of the operations, which grows.
    """
    root = os.path.realpath(root)
    recorder = None
    if record is not None:
        from benchmarks.reliability_parts.recorder import Recorder

        recorder = Recorder(root, record)
    operations = _Operations(root, kill_at, half, recorder)
    for name in (*_WITH_TARGET, *_WITH_PATH):
        setattr(os, name, _wrapped(getattr(os, name), name, operations))
    os.fsync = _wrapped_fsync(os.fsync, operations)
    builtins.open = io.open = _wrapped_open(io.open, operations)
    return operations.names


class _Operations:
    def __init__(self, root, kill_at, half, recorder):
        self.names, self.recorder = [], recorder
        self._root, self._kill_at, self._half = root, kill_at, half
        self._is_busy = False

    def covers(self, path):
        path = os.path.abspath(os.fspath(path))
        return path == self._root or path.startswith(self._root + os.sep)

    def _record(self, *operation):
        if self.recorder is not None:
            self._is_busy = True  # The record itself is no operation.
            try:
                if operation:
                    self.recorder.add(*operation)
                self.recorder.look()
            finally:
                self._is_busy = False

    def happened(self, name, *paths):
        """Called after an operation."""
        if not self._is_busy and any(map(self.covers, paths)):
            self._record(name, *paths)

    def happens(self, name, *paths, half=None):
        """Called before an operation on absolute paths."""
        if self._is_busy or not any(map(self.covers, paths)):
            return
        self.names.append(name)
        self._record()
        if len(self.names) == self._kill_at:
            if self._half and half is not None:
                half()
            os.kill(os.getpid(), signal.SIGKILL)


def _path_of(path, folder=None):
    path = os.fsdecode(path)
    if folder is not None and not os.path.isabs(path):
        path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
    # The folder's links are followed, the entry itself is what the operation is about.
    head, tail = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(head), tail)


def _wrapped(function, name, operations):
    if name in _WITH_TARGET:

        @functools.wraps(function)
        def with_target(source, target, **options):
            paths = _path_of(source), _path_of(target)
            operations.happens(name, *paths)
            function(source, target, **options)
            operations.happened("rename", *paths)

        return with_target

    @functools.wraps(function)
    def with_path(path, *arguments, dir_fd=None, **options):
        path_of_it = _path_of(path, dir_fd)
        operations.happens(name, path_of_it)
        function(path, *arguments, dir_fd=dir_fd, **options)
        if name != "mkdir":
            operations.happened("remove", path_of_it)

    return with_path


def _wrapped_fsync(function, operations):
    @functools.wraps(function)
    def fsync(file):
        number = file if isinstance(file, int) else file.fileno()
        path = os.readlink(f"/proc/self/fd/{number}")
        operations.happens("fsync", path)
        function(number)
        operations.happened("fsync", path)

    return fsync


def _wrapped_open(function, operations):
    class CountedFile(io.FileIO):
        """A file whose writes count."""

        def write(self, data):
            data = memoryview(data).cast("B")
            first = data[: len(data) // 2]
            operations.happens(
                "write", os.path.realpath(self.name), half=lambda: io.FileIO.write(self, first)
            )
            return super().write(data)

    @functools.wraps(function)
    def open(path, mode="r", buffering=-1, encoding=None, errors=None, newline=None, *others, **o):
        writes = set(mode) & set("wax+")
        if not writes or isinstance(path, int) or others or o or not operations.covers(path):
            return function(path, mode, buffering, encoding, errors, newline, *others, **o)
        operations.happens("open", _path_of(path))
        file = CountedFile(os.fspath(path), mode.replace("b", "").replace("t", ""))
        if buffering == 0:
            return file
        wrap = io.BufferedRandom if "+" in mode else io.BufferedWriter
        file = wrap(file, buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE)
        if "b" in mode:
            return file
        file = io.TextIOWrapper(file, encoding, errors, newline, line_buffering=buffering == 1)
        file.mode = mode
        return file

    return open
