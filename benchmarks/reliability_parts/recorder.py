"""Records what a process does to the files below a folder: names, contents and syncs, in order.

The folder is read before and after each of Python's file operations (see `hook`). So writes by a
library in C are seen too, though several at once. The record is a file `events.jsonl`:

    ["create", PATH], ["mkdir", PATH], ["data", PATH, BLOB], ["rename", PATH, PATH],
    ["remove", PATH], ["fsync", PATH]

in which paths are relative to the folder, and BLOB names a file in `blobs/` with the content.
"""

import hashlib
import json
import os
import pathlib


class Recorder:
    """Writes the record.

    Args:
        root: path of the folder.
        record: path of the folder for the record, which lies elsewhere.
    """

    def __init__(self, root, record):
        self._root, self._record = root, pathlib.Path(record)
        os.makedirs(self._record / "blobs", exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._events = os.open(self._record / "events.jsonl", flags, 0o600)
        self._seen = {}
        self.look()
        self._write("begin")

    def look(self):
        """Records what has changed since the last look."""
        now = self._tree()
        for path in sorted(set(self._seen) - set(now), reverse=True):
            self._write("remove", path)
        for path in sorted(now):  # A folder comes before what is in it.
            old, (number, blob) = self._seen.get(path), now[path]
            if old is None or old[0] != number:
                if old is not None:
                    self._write("remove", path)
                self._write("mkdir" if blob is None else "create", path)
            if blob is not None and (old is None or old != (number, blob)):
                self._write("data", path, blob)
        self._seen = now

    def add(self, name, *paths):
        """Records an operation that has just happened."""
        paths = [os.path.relpath(path, self._root) for path in paths]
        if any(path.startswith("..") for path in paths):
            return
        self._write(name, *paths)
        if name == "remove":
            self._seen.pop(paths[0], None)
        elif name == "rename":
            source, target = paths
            moved = {
                path: value
                for path, value in self._seen.items()
                if path == source or path.startswith(source + os.sep)
            }
            for path in moved:
                del self._seen[path]
            self._seen |= {target + path[len(source) :]: value for path, value in moved.items()}

    def _write(self, *event):
        os.write(self._events, (json.dumps(event) + "\n").encode())

    def _tree(self):
        """Relative path to (inode, name of the content), which is None for a folder."""
        found = {}
        for folder, folders, names in os.walk(self._root):
            for name in folders:
                path = os.path.join(folder, name)
                found[os.path.relpath(path, self._root)] = os.lstat(path).st_ino, None
            for name in names:
                path = os.path.join(folder, name)
                file = os.open(path, os.O_RDONLY)
                try:
                    data = os.read(file, os.fstat(file).st_size + 1)
                    found[os.path.relpath(path, self._root)] = (
                        os.fstat(file).st_ino,
                        self._kept(data),
                    )
                finally:
                    os.close(file)
        return found

    def _kept(self, data):
        blob = hashlib.blake2b(data, digest_size=12).hexdigest()
        path = self._record / "blobs" / blob
        if not os.path.exists(path):
            file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
            os.close(file)
        return blob
