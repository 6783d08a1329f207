"""A parallel corpus as flat arrays of token ids on disk."""

import hashlib
import json

import numpy as np

from kformer.data.flat_files import FlatFolder
from kformer.utils.files import entries

FORMAT_VERSION = 1
_REMEDY = "prepare the text with kformer.data.prepare"
CHUNK_PAIRS = 1 << 20
SIDES = ("source", "target")
# The languages of a corpus of several directions.
MIXED = "mixed"
# A closed list: nothing in a folder chooses how its bytes are read beyond these two.
ID_TYPES = {"uint16": np.dtype("<u2"), "int32": np.dtype("<i4")}
OFFSET_TYPE = np.dtype("<u8")
# The keys of meta.json that are attributes of a corpus.
_ATTRIBUTES = (
    "num_pairs num_lines num_too_long num_empty too_long_examples empty_examples num_source_tokens "
    "num_target_tokens max_length pad_id start_id end_id vocabulary_size target_vocabulary_size"
).split()
# The files of a folder that `prepare` wrote, beside its meta.json.
FILES = [f"{side}.{kind}" for side in SIDES for kind in ("ids", "offsets")]
_CONTENT = {"meta.json", *FILES}


class PreparedCorpus:
    """Token ids of both sides of a corpus, read from a folder that `prepare` wrote.

    The folder has `meta.json` and, for each side, `SIDE.ids` (the ids of all pairs, one after the
    other) and `SIDE.offsets` (the begin of each pair, and the end of the last). The ids are those
    of the tokenizer, with its special tokens; the shift between decoder input and labels happens
    when a batch is made. The ids are not kept in memory, so a corpus may be far larger than it.

    Args:
        folder: path of the folder. Use `PreparedCorpus.load`.

    Attributes:
        num_pairs: int. The pairs that were kept, which are those that training sees.
        num_lines: int. The pairs of lines that were read.
        num_too_long, num_empty: int. The pairs that were left out because a side has more than
            `max_length` tokens, or none.
        too_long_examples, empty_examples: lists of int. The first line numbers of these, from 1.
        num_source_tokens, num_target_tokens: int. The tokens of each side, special tokens included.
        longer_side: int. The tokens of the side that has more of them.
        max_length, pad_id, start_id, end_id, vocabulary_size, target_vocabulary_size: int, as
            prepared.
        joint: bool. Whether one vocabulary served both sides.

    Example:
    ```python
    tokenizer = kformer.Tokenizer.train(["train.en", "train.de"], vocabulary_size=400)
    kformer.data.prepare("train.en", "train.de", tokenizer, "prepared")
    corpus = kformer.data.PreparedCorpus.load("prepared")
    corpus.num_pairs, corpus.num_too_long  # (300, 0)
    corpus.ids("target", 0)  # the first pair's target tokens: array([12, 87, 9, 3], dtype=uint16)
    ```
    """

    def __init__(self, folder):
        folder = _open_folder(folder)
        self.folder, meta = folder.path, folder.meta
        for name in _ATTRIBUTES:
            setattr(self, name, meta[name])
        self._vocabulary, self._languages = meta["vocabulary"], meta["languages"]
        self.joint = meta["joint"]
        self.longer_side = max(self.num_source_tokens, self.num_target_tokens)
        self._ids, self._offsets = {}, {}
        for side in SIDES:
            id_type, count = ID_TYPES[meta[f"{side}_id_type"]], meta[f"num_{side}_tokens"]
            self._ids[side] = folder.open(f"{side}.ids", id_type, count)
            self._offsets[side] = folder.open(f"{side}.offsets", OFFSET_TYPE, self.num_pairs + 1)
            # Damaged offsets could take any amount of memory, or make empty batches.
            last = 0
            for begin, offsets in self._offset_parts(side):
                if (begin == 0 and offsets[0]) or not (offsets[1:] > offsets[:-1]).all():
                    raise folder.damaged(f"the offsets in its file '{side}.offsets' do not rise")
                last = int(offsets[-1])
            if last != count:
                raise folder.damaged(f"'{side}.offsets' ends at {last} instead of {count}")

    @classmethod
    def load(cls, folder):
        """Opens a folder that `prepare` wrote.

        Args:
            folder: path.

        Returns:
            `PreparedCorpus`.

        Raises:
            FileNotFoundError: the folder has no prepared corpus.
            ValueError: a newer version wrote the folder, or a file is damaged.
        """
        return cls(folder)

    def check_tokenizer(self, tokenizer):
        """Checks that the corpus was prepared with this tokenizer, as far as is known.

        Args:
            tokenizer: `kformer.Tokenizer`.

        Raises:
            ValueError: the tokenizer has other pieces, or is for other languages.
        """
        pieces, languages = vocabulary_fingerprint(tokenizer), languages_of(tokenizer)
        if None not in (pieces, self._vocabulary) and pieces != self._vocabulary:
            raise ValueError(
                f"'{self.folder}' was prepared with another tokenizer than the one given: prepare "
                "it again with this one."
            )
        if self._languages not in (languages, MIXED):
            names = (
                " and ".join(filter(None, each)) or "no language"
                for each in (self._languages, languages)
            )
            raise ValueError(
                "'{}' was prepared for {}, and the tokenizer is for {}: choose by for_languages."
                "".format(self.folder, *names)
            )

    def __len__(self):
        return self.num_pairs

    @property
    def stored(self):
        """The corpus whose pairs `in_epoch` returns, to which soft targets and alignments belong:
        this one, if it is no mixture.
        """
        return self

    @property
    def folders(self):
        """The folders of the text, list of `pathlib.Path`."""
        return [self.folder]

    def ids(self, side, index):
        """The token ids of a pair on one side, special tokens included, int array [L].

        Args:
            side: `"source"` or `"target"`.
            index: int. The index of the pair.

        Raises:
            IndexError: there is no such pair.
        """
        if not 0 <= index < self.num_pairs:
            raise IndexError(f"Pair {index} is not in a corpus of {self.num_pairs} pairs.")
        begins, lengths = self.spans(side, np.array([index]))
        return self._ids[side].read([(int(begins[0]), int(lengths[0]))])

    def lengths(self, side):
        """Number of tokens of every pair on `side`, special tokens included: uint32 array
        [num_pairs].
        """
        lengths = np.empty(self.num_pairs, np.uint32)
        for begin, offsets in self._offset_parts(side):
            lengths[begin : begin + len(offsets) - 1] = np.diff(offsets)
        return lengths

    def planned_lengths(self, side):
        """Returns the most tokens of each pair on `side` in any epoch, uint32 array [num_pairs]."""
        return self.lengths(side)

    def in_epoch(self, pairs, epoch):
        """Maps planned pairs to this epoch's pairs. Here: unchanged.

        Args:
            pairs: int array [n] of indices below `num_pairs`.
            epoch: int.

        Returns:
            int array [n] of pair indices.
        """
        return pairs

    def _offset_parts(self, side):
        """Yields offsets chunk by chunk, each with the index of its first pair."""
        for begin in range(0, self.num_pairs, CHUNK_PAIRS):
            count = min(CHUNK_PAIRS, self.num_pairs - begin)
            yield begin, self._offsets[side].read([(begin, count + 1)])

    def spans(self, side, pairs):
        """Returns where pairs begin in `SIDE.ids`, and their lengths: two int64 arrays [n].

        Args:
            side: `"source"` or `"target"`.
            pairs: int array [n] of pair indices.
        """
        offsets = self._offsets[side].read([(pair, 2) for pair in pairs.tolist()]).astype(np.int64)
        begins, ends = offsets.reshape(-1, 2).T
        return begins, ends - begins

    def gather(self, side, pairs, shape, counts=None):
        """Returns the token ids of pairs as the rows of one padded array.

        Args:
            side: `"source"` or `"target"`.
            pairs: int array [n] of pair indices, n at most `shape[0]`.
            shape: `(rows, length)` of the result. The longest pair must fit.
            counts: int array or `None`, default `None`. The number of pairs in each row, one after
                the other; `None` for one.

        Returns:
            Tuple of an int32 array [rows, length], padded with `pad_id` at the end of each row and
            in the rows after the last pair; and the numbers of tokens, int array [n].
        """
        begins, lengths = self.spans(side, pairs)
        ids = self._ids[side].read(zip(begins.tolist(), lengths.tolist(), strict=True))
        return pad_sequences(ids, lengths, shape, counts, self.pad_id), lengths


def check_fits(name, part, corpus, subword_sampling):
    """Checks that something made for the tokens of a corpus fits its batches.

    Args:
        name: str. What it is, for messages, such as "Soft targets".
        part: `SoftTargets`, `TokenAlignments` or `None`, which always fits.
        corpus: `PreparedCorpus`.
        subword_sampling: float or `None`.

    Raises:
        ValueError: it was made for another corpus, or the segmentation is resampled.
    """
    if part is None:
        return
    if subword_sampling:
        remedy = "leave them out, or subword_sampling"
        raise ValueError(f"{name} belong to one segmentation of the text: {remedy}.")
    folder, stored = part.corpus.folder, corpus.stored.folder
    if folder.resolve() != stored.resolve():
        raise ValueError(f"{name} were made for the corpus '{folder}', not for '{stored}'.")


def pad_sequences(ids, lengths, shape, counts, pad_id, dtype=np.int32):
    """Returns concatenated sequences as the rows of one padded array.

    Args:
        ids: array [total, ...]. All sequences, one after the other.
        lengths: int array [n]. The length of each sequence.
        shape, counts: as for `PreparedCorpus.gather`.
        pad_id: int.
        dtype: NumPy dtype, default int32.

    Returns:
        Array [rows, length, ...].
    """
    rows = np.full((*shape, *ids.shape[1:]), pad_id, dtype)
    totals = lengths
    if counts is not None:
        ends, row_ends = np.concatenate([[0], np.cumsum(lengths)]), np.cumsum(counts)
        totals = ends[row_ends] - ends[row_ends - counts]
    rows[: len(totals)][np.arange(shape[1]) < totals[:, None]] = ids
    return rows


def vocabulary_fingerprint(tokenizer):
    """A digest of a tokenizer's pieces, str; `None` for a tokenizer of another package."""
    if not hasattr(tokenizer, "vocabulary"):
        return None
    pieces = [tokenizer.vocabulary(side).pieces for side in SIDES]
    return hashlib.sha256(json.dumps(pieces).encode()).hexdigest()[:32]


def languages_of(tokenizer):
    """Returns the languages that a tokenizer is for: of source and target, `None` where it reads
    none.
    """
    return [getattr(tokenizer, f"{side}_language", None) for side in SIDES]


def check_replaceable(path):
    """Checks that a path, a `pathlib.Path`, has nothing, or a prepared corpus and nothing else."""
    if not path.exists():
        return
    names = entries(path) if path.is_dir() else []
    foreign = [name for name in names if name not in _CONTENT]
    if names == ["meta.json"]:  # A damaged corpus, or a file of something else.
        try:
            _open_folder(path)
        except ValueError:
            foreign = names
    if foreign or not path.is_dir():
        content = f" (it has {foreign[0]})" if foreign else ""
        raise ValueError(
            f"'{path}' exists and is not a prepared corpus{content}; remove it or choose another "
            "folder, so that nothing of it is overwritten."
        )


def id_type_for(vocabulary_size):
    """Returns the name in `ID_TYPES` of the smallest type that holds the ids of a vocabulary."""
    return "uint16" if vocabulary_size <= 1 << 16 else "int32"


def _open_folder(folder):
    return FlatFolder(folder, "prepared corpus", _REMEDY, FORMAT_VERSION, _is_complete)


def _is_complete(meta):
    numbers = [meta.get(name) for name in _ATTRIBUTES if not name.endswith("_examples")]
    return (
        all(type(number) is int and number >= 0 for number in numbers)
        and {meta.get(f"{side}_id_type") for side in SIDES} <= ID_TYPES.keys()
        and {"joint", "vocabulary", "languages"} <= meta.keys()
    )
