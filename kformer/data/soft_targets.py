"""The classes that teachers predict at each target token of a prepared corpus."""

import contextlib
import hashlib
import json
import pathlib

import numpy as np

from kformer.data.corpus import ID_TYPES, pad_sequences
from kformer.data.flat_files import open_file, read_meta
from kformer.utils.checksums import file_checksum, with_checksum

FORMAT_VERSION = 1
PROBABILITY_TYPE = np.dtype("<f2")
_REMEDY = "make them with kformer.distillation.soft_targets"
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
        meta = read_meta(self.folder, "soft targets", _REMEDY, FORMAT_VERSION, _is_complete)
        self.num_classes = meta["num_classes"]
        if meta.get("corpus") != corpus_fingerprint(corpus):
            raise ValueError(
                f"The soft targets in '{folder}' were made for another text than that of "
                f"'{corpus.folder}': make them again."
            )
        self.corpus = corpus
        types = {"ids": ID_TYPES[meta["id_type"]], "probabilities": PROBABILITY_TYPE}
        count = corpus.num_target_tokens * self.num_classes
        self._files = {
            name: open_file(self.folder, file, types[name], count, meta, _REMEDY)
            for name, file in _FILES.items()
        }

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
            values = self._files[name].read(spans).reshape(-1, width)
            if name == "probabilities":
                # Rounded to 16 bits they may sum to more than one, and no loss would be the least.
                values = values.astype(dtype)
                values /= np.maximum(values.sum(axis=1, keepdims=True), 1.0)
            arrays[key] = pad_sequences(values, lengths, shape, counts, 0, dtype)
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


def _is_complete(meta):
    return meta.get("id_type") in ID_TYPES and type(meta.get("num_classes")) is int


def corpus_fingerprint(corpus):
    """A digest of all ids and offsets of a prepared corpus, str."""
    digest = hashlib.sha256()
    for name in ("source.ids", "source.offsets", "target.ids", "target.offsets"):
        with open(corpus.folder / name, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:32]
