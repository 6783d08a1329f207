"""The states that a disk may be in after a power cut, from a record of what a process did.

The model is weaker than common file systems, so that what survives here survives there:

- the content of a file is on the disk as it was when the file was last synced. What was written
  since may be there, or not, or a part of it, or as many zeros; a file that was never synced may be
  empty though its name is there;
- names (made, renamed, removed) are on the disk once their folder was synced. Since then, each
  folder's changes reach the disk in their order, but those of one folder may be there when earlier
  ones of another are not. A rename is there or not, in both folders at once.

`Disk(record)` reads a record of `recorder`; `write(count, how, rng, folder)` writes the state after
a cut behind the first `count` events.
"""

import json
import pathlib

HOW = ("nothing more", "everything", "names alone", "at random")


class _File:
    def __init__(self):
        self.now, self.synced = b"", None


class _Folder:
    def __init__(self):
        self.entries = {}  # as the running system sees them


class _Change:
    """A change of names: entries of folders that are set, or removed (None)."""

    def __init__(self, folder, entries):
        self.folder, self.entries, self.is_synced = folder, entries, False


class Disk:
    """A record, replayed.

    Args:
        record: path of the record's folder.

    Attributes:
        events: list of the events after the beginning.
    """

    def __init__(self, record):
        record = pathlib.Path(record)
        lines = (record / "events.jsonl").read_text(encoding="utf-8").splitlines()
        events = [json.loads(line) for line in lines]
        begin = events.index(["begin"])
        self._before, self.events = events[:begin], events[begin + 1 :]
        self._blobs = record / "blobs"

    def write(self, count, how, rng, folder):
        """Writes a state to a folder, which must not exist.

        Args:
            count: int. How many events happened before the cut.
            how: one of `HOW`: what reached the disk of what was not synced.
            rng: numpy generator.
            folder: path.
        """
        self._root, self._changes = _Folder(), []
        for event in self._before:
            self._apply(event)
        for change in self._changes:
            change.is_synced = True
        for file in self._all_files(self._root):
            file.synced = file.now
        for event in self.events[:count]:
            self._apply(event)
        entries = {}
        for change in self._reached(how, rng):
            for holder, name, node in change.entries:
                entries.setdefault(holder, {})[name] = node
        self._write(self._root, entries, how, rng, pathlib.Path(folder))

    def _all_files(self, folder):
        for node in folder.entries.values():
            if isinstance(node, _Folder):
                yield from self._all_files(node)
            else:
                yield node

    def _at(self, path):
        """(folder, name) of a path."""
        *parents, name = pathlib.PurePosixPath(path).parts
        folder = self._root
        for part in parents:
            folder = folder.entries[part]
        return folder, name

    def _change(self, *entries):
        for folder, name, node in entries:
            if node is None:
                folder.entries.pop(name, None)
            else:
                folder.entries[name] = node
        self._changes.append(_Change(entries[0][0], entries))

    def _apply(self, event):
        name, path = event[:2]
        if path == ".":
            if name == "fsync":
                self._sync(self._root)
            return
        folder, last = self._at(path)
        if name in ("create", "mkdir"):
            self._change((folder, last, _File() if name == "create" else _Folder()))
        elif name == "data":
            folder.entries[last].now = (self._blobs / event[2]).read_bytes()
        elif name == "remove":
            self._change((folder, last, None))
        elif name == "rename":
            self._change((*self._at(event[2]), folder.entries[last]), (folder, last, None))
        elif name == "fsync" and last in folder.entries:
            self._sync(folder.entries[last])

    def _sync(self, node):
        if isinstance(node, _File):
            node.synced = node.now
            return
        for change in self._changes:
            if any(folder is node for folder, *_ in change.entries):
                change.is_synced = True

    def _reached(self, how, rng):
        """The changes of names that reached the disk, in their order."""
        if how in ("everything", "names alone"):
            return self._changes
        if how == "nothing more":
            return [change for change in self._changes if change.is_synced]
        waiting = {}
        for change in self._changes:
            if not change.is_synced:
                waiting.setdefault(change.folder, []).append(change)
        lost = {
            change
            for changes in waiting.values()
            for change in changes[int(rng.integers(len(changes) + 1)) :]
        }
        return [change for change in self._changes if change not in lost]

    def _write(self, node, entries, how, rng, path):
        path.mkdir(parents=True)
        for name, child in entries.get(node, {}).items():
            if isinstance(child, _Folder):
                self._write(child, entries, how, rng, path / name)
            elif child is not None:
                (path / name).write_bytes(_content(child, how, rng))


def _content(file, how, rng):
    """What of a file is on the disk."""
    if how == "everything" or file.synced == file.now:
        return file.now
    synced = b"" if file.synced is None else file.synced
    if how == "nothing more":
        return synced
    kept = len(synced) if file.now.startswith(synced) else 0
    cut = int(rng.integers(kept, len(file.now) + 1))
    zeros = file.now[:kept] + bytes(len(file.now) - kept)
    states = [synced, file.now[:cut], zeros, *([] if how == "names alone" else [file.now])]
    return states[int(rng.integers(len(states)))]
