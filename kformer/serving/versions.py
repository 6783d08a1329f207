"""The version folders of a model: which are whole, and which is to be served."""

import hashlib

from kformer.export import ctranslate2
from kformer.export.saved_model import folder as saved_model
from kformer_options.model_folders import MODEL_FILES

_TOKENIZER = "tokenizer/tokenizer.json"
# What makes a version whole, by the file that tells its kind.
NEEDED = {
    saved_model.GRAPH_FILE: ("variables/variables.index", saved_model.METADATA_FILE),
    MODEL_FILES["torch"]: ("config.json", _TOKENIZER),
    MODEL_FILES["ctranslate2"]: (ctranslate2.METADATA_FILE, _TOKENIZER),
}


def version_folders(path):
    """The versions of a model, as `kformer.export.saved_model.folder.version_folders` has them.

    Args:
        path: path. A model's folder, or one version's: of a SavedModel, a run or a folder for
            CTranslate2.

    Returns:
        Dict of version number to `pathlib.Path`.
    """
    return saved_model.version_folders(path, NEEDED)


def fingerprint(folder):
    """A value that changes with any file of a version, or `None` while files are missing.

    Args:
        folder: `pathlib.Path`. The version's folder.
    """
    try:
        kinds = [(name, *others) for name, others in NEEDED.items() if (folder / name).is_file()]
        if not kinds or not all((folder / name).is_file() for name in kinds[0]):
            return None
        digest = hashlib.blake2b(digest_size=16)
        for file in sorted(folder.rglob("*")):
            status = file.stat()
            digest.update(f"{file.name} {status.st_size} {status.st_mtime_ns}\n".encode())
        return digest.hexdigest()
    except OSError:  # A file vanished in between.
        return None


class VersionWatch:
    """Which version of a model to load next.

    A folder that is copied becomes whole bit by bit, so a version is taken when two looks one after
    the other find the same files. One that could not be loaded is tried again when its files have
    changed.

    Args:
        path: path. The model's folder.
    """

    def __init__(self, path):
        self._path = path
        self._seen, self._refused = {}, {}

    def refuse(self, version, content):
        """Notes that a version could not be loaded.

        Args:
            version: int.
            content: str. Its fingerprint.
        """
        self._refused[version] = content

    def forgotten(self):
        """Versions that were refused, and whose folders are gone or have changed since."""
        refused = self._refused.items()
        gone = [version for version, content in refused if self._seen.get(version) != content]
        for version in gone:
            del self._refused[version]
        return gone

    def look(self, served=()):
        """Looks at the folders.

        Args:
            served: collection of int, default none. The versions that are loaded. While the folder
                of one is there, no lower version takes its place, whatever happens to its files.

        Returns:
            The highest version that is whole and was not refused, as (version, `pathlib.Path`,
            fingerprint), or `None`.
        """
        before, self._seen = self._seen, {}
        folders = version_folders(self._path)
        lowest = max((version for version in served if version in folders), default=0)
        best = None
        for version, folder in sorted(folders.items()):
            content = fingerprint(folder)
            self._seen[version] = content
            is_whole = content is not None and before.get(version) == content
            if version >= lowest and is_whole and self._refused.get(version) != content:
                best = version, folder, content
        return best
