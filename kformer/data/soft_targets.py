"""The classes that teachers predict at each target token of a prepared corpus."""

import contextlib
import hashlib
import json
import pathlib

import numpy as np

from kformer.data.corpus import ID_TYPES, FlatFile, padded_rows
from kformer.utils.checksums import file_checksum, is_damaged, with_checksum
from kformer.utils.files import read_json

FORMAT_VERSION = 1
PROBABILITY_TYPE = np.dtype("<f2")
_REMEDY = "remove the folder and make them again"
_FILES = {"ids": "classes.ids", "probabilities": "classes.probabilities"}


class SoftTargets:
    """Distributions over the vocabulary at each target token of a corpus, read from a folder.

    `kformer.distillation.soft_targets` makes them. For each token there are K classes with their
    probabilities: the token itself, then the most probable others. The rest of the probability is
    spread over the whole vocabulary. The folder has `classes.ids` and `classes.probabilities`
    (float16), with K values for each target token of the corpus in its order, and `meta.json`.

    Args:
        folder: path.
        corpus: `PreparedCorpus`. The corpus that they were made for.

    Attributes:
        corpus: `PreparedCorpus`.
        num_classes: int. K.

    Raises:
        FileNotFoundError: the folder has no soft targets.
        ValueError: they are damaged, newer than this code, or belong to another corpus.
    """

    def __init__(self, folder, corpus):
        self.folder = pathlib.Path(folder)
        path = self.folder / "meta.json"
        if not path.is_file():
            raise FileNotFoundError(
                f"'{folder}' holds no soft targets (no meta.json): make them by "
                "kformer.distillation.soft_targets."
            )
        damaged = ValueError(
            f"'{path}' is damaged, or is not the meta.json of soft targets: {_REMEDY}."
        )
        try:
            meta = read_json(path)
            version, kind, self.num_classes = (
                int(meta["format_version"]),
                ID_TYPES[meta["id_type"]],
                int(meta["num_classes"]),
            )
            fingerprint = str(meta["corpus"])
        except (ValueError, KeyError, TypeError):
            raise damaged from None
        if version > FORMAT_VERSION:
            raise ValueError(
                f"The soft targets in '{folder}' have format version {version}, but this kformer "
                f"reads up to {FORMAT_VERSION}: upgrade kformer or make them again."
            )
        if not {"checksums", "checksum"} <= meta.keys() or is_damaged(meta):
            raise damaged
        if fingerprint != corpus_fingerprint(corpus):
            raise ValueError(
                f"The soft targets in '{folder}' were made for another text than that of "
                f"'{corpus.folder}': make them again."
            )
        self.corpus = corpus
        types = {"ids": kind, "probabilities": PROBABILITY_TYPE}
        self._parts = {}
        for name, file in _FILES.items():
            path, expected = (
                self.folder / file,
                corpus.num_target_tokens * self.num_classes * types[name].itemsize,
            )
            size = path.stat().st_size if path.is_file() else -1
            what = None
            if size != expected:
                what = "is missing" if size < 0 else f"has {size} bytes instead of {expected}"
            elif meta["checksums"].get(file) != file_checksum(path):
                what = "has a wrong checksum"
            if what is not None:
                raise ValueError(
                    f"The soft targets in '{folder}' are damaged: '{file}' {what}; {_REMEDY}."
                )
            self._parts[name] = FlatFile(path, types[name])

    def gather(self, pairs, shape, counts=None):
        """The soft targets of some pairs, padded as `PreparedCorpus.gather` pads the labels.

        Args:
            pairs, shape, counts: as there.

        Returns:
            dict with `soft_target_ids`, int32 `[rows, length, K]`, and `soft_targets`, their
            probabilities, float32 of the same shape.
        """
        begins, lengths = self.corpus.spans("target", pairs)
        width = self.num_classes
        spans = list(zip((begins * width).tolist(), (lengths * width).tolist(), strict=True))
        arrays = {}
        for key, name, dtype in (
            ("soft_target_ids", "ids", np.int32),
            ("soft_targets", "probabilities", np.float32),
        ):
            values = self._parts[name].read(spans).reshape(-1, width)
            if name == "probabilities":
                # Rounded to 16 bits they may sum to more than one, and no loss would be the least.
                values = values.astype(dtype)
                values /= np.maximum(values.sum(axis=1, keepdims=True), 1.0)
            arrays[key] = padded_rows(values, lengths, shape, counts, 0, dtype)
        return arrays


class SoftTargetWriter:
    """Writes soft targets of a corpus into an empty folder, pair by pair in any order.

    It is a context. `meta.json` is written at its end, after all pairs.

    Args:
        folder: path of an existing folder.
        corpus: `PreparedCorpus`.
        num_classes: int. K.
    """

    def __init__(self, folder, corpus, num_classes):
        self._folder, self._corpus, self._num_classes = pathlib.Path(folder), corpus, num_classes
        self._id_type = "uint16" if corpus.target_vocabulary_size <= 1 << 16 else "int32"
        self._types = {"ids": ID_TYPES[self._id_type], "probabilities": PROBABILITY_TYPE}

    def __enter__(self):
        # Not memory maps: writing to one ends the process, without an error, if the disk is full.
        with contextlib.ExitStack() as stack:
            self._files = {
                name: stack.enter_context(open(self._folder / file, "wb"))
                for name, file in _FILES.items()
            }
            self._open = stack.pop_all()
        return self

    def __exit__(self, kind, *_):
        self._open.close()
        if kind is None:
            self._write_meta()

    def write(self, pairs, ids, probabilities):
        """Writes the classes and probabilities of some pairs.

        Args:
            pairs: int array [n] of pair indices.
            ids, probabilities: arrays `[rows, length, K]` with at least n rows.
        """
        begins, lengths = self._corpus.spans("target", pairs)
        for row, (begin, length) in enumerate(zip(begins.tolist(), lengths.tolist(), strict=True)):
            for name, values in (("ids", ids), ("probabilities", probabilities)):
                file, dtype = self._files[name], self._types[name]
                file.seek(begin * self._num_classes * dtype.itemsize)
                file.write(np.asarray(values[row, :length], dtype).tobytes())

    def _write_meta(self):
        meta = {
            "format_version": FORMAT_VERSION,
            "corpus": corpus_fingerprint(self._corpus),
            "num_classes": self._num_classes,
            "id_type": self._id_type,
            "checksums": {file: file_checksum(self._folder / file) for file in _FILES.values()},
        }
        text = json.dumps(with_checksum(meta), indent=1) + "\n"
        (self._folder / "meta.json").write_text(text, encoding="utf-8")


def corpus_fingerprint(corpus):
    """A digest of all ids and offsets of a prepared corpus, str."""
    digest = hashlib.sha256()
    for name in ("source.ids", "source.offsets", "target.ids", "target.offsets"):
        with open(corpus.folder / name, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:32]
