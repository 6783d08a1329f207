"""The order of the calls that put files on the disk."""

import os
import pathlib


class DiskCalls:
    """Records what was synced, and holds each rename to what it vouches for."""

    def __init__(self, monkeypatch):
        self.calls, self._synced = [], set()
        fsync, rename, replace = os.fsync, os.rename, os.replace

        def recorded_fsync(descriptor):
            self._synced.add(self._key(os.fstat(descriptor)))
            self.calls.append(("fsync", os.fstat(descriptor).st_ino))
            fsync(descriptor)

        def recorded(call):
            def rename(source, target):
                source, target = pathlib.Path(source), pathlib.Path(target)
                if target.name.endswith("-removed") or target.name == "old":
                    call(source, target)  # It vouches for nothing.
                    return
                for part in (source, *source.rglob("*")):
                    assert self._key(part.stat()) in self._synced, f"{part} is not synced"
                call(source, target)
                self.calls.append(("rename", target))

            return rename

        monkeypatch.setattr(os, "fsync", recorded_fsync)
        monkeypatch.setattr(os, "rename", recorded(rename))
        monkeypatch.setattr(os, "replace", recorded(replace))

    @staticmethod
    def _key(stat):
        return stat.st_ino, stat.st_mtime_ns, stat.st_size

    def check_folders(self):
        """Something was renamed; and each folder that it was renamed in was synced afterwards.

        A folder aside, which is gone by now, needs no sync.
        """
        renames = [i for i, (name, _) in enumerate(self.calls) if name == "rename"]
        assert renames
        for i in renames:
            parent = self.calls[i][1].parent
            if parent.exists():
                assert ("fsync", parent.stat().st_ino) in self.calls[i + 1 :], self.calls[i][1]

    def check(self, *targets):
        """The targets were renamed in this order, and each one's folder was synced afterwards."""
        renames = [i for i, (name, _) in enumerate(self.calls) if name == "rename"]
        assert [self.calls[i][1] for i in renames] == list(targets)
        for i in renames:
            folder = ("fsync", self.calls[i][1].parent.stat().st_ino)
            assert folder in self.calls[i + 1 :]
