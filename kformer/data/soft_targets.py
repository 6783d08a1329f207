"""The classes that teachers predict at each target token of a prepared corpus."""

import hashlib

import numpy as np

from kformer.data.corpus import FILES, ID_TYPES, id_type_for, pad_sequences
from kformer.data.flat_files import FlatFolder, FlatFolderWriter

FORMAT_VERSION = 1
PROBABILITY_TYPE = np.dtype("<f2")
_REMEDY = "make them with kformer.distillation.soft_targets"
_FILES = ["classes.ids", "classes.probabilities"]


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
        folder = FlatFolder(folder, "soft targets", _REMEDY, FORMAT_VERSION, _is_complete)
        self.folder, self.num_classes = folder.path, folder.meta["num_classes"]
        if folder.meta.get("corpus") != corpus_fingerprint(corpus):
            raise ValueError(
                f"The soft targets in '{self.folder}' were made for another text than that of "
                f"'{corpus.folder}': make them again."
            )
        self.corpus = corpus
        types = ID_TYPES[folder.meta["id_type"]], PROBABILITY_TYPE
        count = corpus.num_target_tokens * self.num_classes
        files = zip(_FILES, types, strict=True)
        self._files = [folder.open(name, dtype, count) for name, dtype in files]

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
        ids, probabilities = (file.read(spans).reshape(-1, width) for file in self._files)
        # Rounded to 16 bits they may sum to more than one, and no loss would be the least.
        probabilities = probabilities.astype(np.float32)
        probabilities /= np.maximum(probabilities.sum(axis=1, keepdims=True), 1.0)
        rows = lengths, shape, counts, 0
        return {
            "soft_target_ids": pad_sequences(ids, *rows),
            "soft_targets": pad_sequences(probabilities, *rows, np.float32),
        }


class SoftTargetWriter(FlatFolderWriter):
    """Writes soft targets of a corpus into an empty folder, pair by pair in any order.

    It is a context. `meta.json` is written at its end, after all pairs.

    Args:
        folder: path of an existing folder.
        corpus: `PreparedCorpus`.
        num_classes: int. K.
    """

    def __init__(self, folder, corpus, num_classes):
        super().__init__(folder, _FILES)
        self._corpus, self._num_classes = corpus, num_classes
        self._id_type = id_type_for(corpus.target_vocabulary_size)

    def __exit__(self, kind, *rest):
        super().__exit__(kind, *rest)
        if kind is None:
            meta = {"format_version": FORMAT_VERSION, "corpus": corpus_fingerprint(self._corpus)}
            self.write_meta({**meta, "num_classes": self._num_classes, "id_type": self._id_type})

    def write(self, pairs, ids, probabilities):
        """Writes the classes and probabilities of some pairs.

        Args:
            pairs: int array [n] of pair indices.
            ids, probabilities: arrays `[rows, length, K]` with at least n rows.
        """
        begins, lengths = self._corpus.spans("target", pairs)
        types = ID_TYPES[self._id_type], PROBABILITY_TYPE
        for file, values, dtype in zip(
            self._files.values(), (ids, probabilities), types, strict=True
        ):
            for row, begin, length in zip(values, begins.tolist(), lengths.tolist(), strict=False):
                file.seek(begin * self._num_classes * dtype.itemsize)
                file.write(np.asarray(row[:length], dtype).tobytes())


def _is_complete(meta):
    return meta.get("id_type") in ID_TYPES and type(meta.get("num_classes")) is int


def corpus_fingerprint(corpus):
    """A digest of all ids and offsets of a prepared corpus, str."""
    digest = hashlib.sha256()
    for path in (folder / name for folder in corpus.folders for name in FILES):
        with open(path, "rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()[:32]
