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
                source = pathlib.Path(source)
                for part in (source, *source.rglob("*")):
                    assert self._key(part.stat()) in self._synced, f"{part} is not synced"
                call(source, target)
                self.calls.append(("rename", pathlib.Path(target)))

            return rename

        monkeypatch.setattr(os, "fsync", recorded_fsync)
        monkeypatch.setattr(os, "rename", recorded(rename))
        monkeypatch.setattr(os, "replace", recorded(replace))

    @staticmethod
    def _key(stat):
        return stat.st_ino, stat.st_mtime_ns, stat.st_size

    def check(self, *targets):
        """The targets were renamed in this order, and each one's folder was synced afterwards."""
        renames = [i for i, (name, _) in enumerate(self.calls) if name == "rename"]
        assert [self.calls[i][1] for i in renames] == list(targets)
        for i in renames:
            folder = ("fsync", self.calls[i][1].parent.stat().st_ino)
            assert folder in self.calls[i + 1 :]
