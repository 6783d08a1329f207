"""The target tokens that the source tokens of a sentence may be translated by."""

import json
import zlib

import numpy as np

from kformer.data.word_alignment import translation_probabilities
from kformer.text.frequent_tokens import frequent_tokens
from kformer.utils import files
from kformer.utils.checks import check_whole
from kformer.utils.checksums import check_unedited, with_checksum
from kformer_options.text_files import check_same_length

FILE_NAME = "shortlist.json"
FORMAT_VERSION = 1
# Of 64,000 source tokens with 500 each.
_MOST_BYTES = 256 << 20
_REMEDY = "remove it, and make it again (kformer shortlist)"


class TokenLists:
    """For each source token the most probable target tokens, and those that any sentence may need.

    Args:
        always: sequence of int. Target tokens that are in the list of every sentence.
        lists: list with a list of int for each source token. The target tokens, most probable
            first.

    Call arguments:
        source_ids: iterable of int. The tokens of a source sentence.

    Returns:
        List of int, sorted: the target tokens that its translation may need.

    Example:
        ```python
        from kformer.data import TokenLists

        lists = TokenLists(always=[3], lists=[[], [5, 7], [6]])
        lists([1, 2])  # [3, 5, 6, 7]
        ```
    """

    def __init__(self, always, lists):
        self.always, self.lists = sorted(set(always)), lists

    @classmethod
    def build(cls, tokenizer, sources, targets, candidates=200, frequent=200):
        """Builds the lists from parallel texts, such as those of a training.

        The tokens are aligned as words are by `align_words`. A source token's list has the target
        tokens that it is most probably translated by, and with a joint vocabulary the token itself,
        since names are copied.

        Args:
            tokenizer: `kformer.Tokenizer`.
            sources, targets: lists of str of one length.
            candidates: int, default 200. The most target tokens of a source token.
            frequent: int, default 200. The most frequent target tokens, which are in the list of
                every sentence. Those of single bytes are, too, and so is the end token.

        Returns:
            `TokenLists`.

        Raises:
            ValueError: the sides differ in length, or the targets have no token.
        """
        return next(cls.of_sizes(tokenizer, sources, targets, [(candidates, frequent)]))

    @classmethod
    def of_sizes(cls, tokenizer, sources, targets, sizes):
        """Yields what `build` returns for each of some pairs of `candidates` and `frequent`."""
        check_same_length("the sources", len(sources), "the targets", len(targets))
        # A language's tag is a source token like any other.
        rows = (
            tokenizer.tokenize(texts, side=side, special_tokens=is_source)
            for texts, side, is_source in ((sources, "source", True), (targets, "target", False))
        )
        source, target, probability = translation_probabilities(*rows)
        # By source token, then from the most probable target token on; of equal ones by id.
        order = np.lexsort((target, -probability, source))
        source, target = source[order], target[order]
        size = tokenizer.vocabulary_size
        ends = np.searchsorted(source, np.arange(size + 1)).tolist()
        special = {*tokenizer.special_ids.values(), *tokenizer.languages.values()}
        for candidates, frequent in sizes:
            candidates = check_whole("candidates", candidates)
            lists = [
                target[start : min(start + candidates, end)].tolist()
                for start, end in zip(ends, ends[1:], strict=False)
            ]
            for token, row in enumerate(lists if tokenizer.joint else ()):
                if token not in special and token not in row:
                    row.append(token)
            always = frequent_tokens(tokenizer, targets, frequent)
            yield cls([*always, tokenizer.end_id], lists)

    def __call__(self, source_ids):
        return sorted({*self.always, *(i for token in set(source_ids) for i in self.lists[token])})

    def save(self, path, tokenizer):
        """Writes the lists as a JSON file; a reader finds the old file or the new one.

        Args:
            path: path of the file.
            tokenizer: `kformer.Tokenizer` whose tokens they are.
        """
        value = {"format_version": FORMAT_VERSION, "pieces": _checksum(tokenizer)}
        value |= {"always": self.always, "lists": self.lists}
        files.write_json(path, with_checksum(value), indent=None)

    @classmethod
    def load(cls, path, tokenizer):
        """Reads the lists that `save` wrote.

        Args:
            path: path of the file.
            tokenizer: `kformer.Tokenizer`.

        Returns:
            `TokenLists`; `None` for lists of another tokenizer, such as that of the run whose
            place a new training took.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file is of a newer version, or damaged.
        """
        value = files.read_json(path, remedy=_REMEDY, most=_MOST_BYTES)
        files.check_format_version(value, FORMAT_VERSION, path, "file of lists")
        check_unedited(value, path, _REMEDY)
        if value.get("pieces") != _checksum(tokenizer):
            return None
        always, lists = value.get("always"), value.get("lists")
        rows, size = [always, *(lists or ())], tokenizer.target_vocabulary_size
        if len(rows) != tokenizer.vocabulary_size + 1 or not all(
            isinstance(row, list) and all(type(i) is int and 0 <= i < size for i in row)
            for row in rows
        ):
            raise ValueError(f"{path} has no lists of tokens: {_REMEDY}.")
        return cls(always, lists)


def _checksum(tokenizer):
    """The CRC-32 of the pieces of both sides, int."""
    pieces = [list(tokenizer.vocabulary(side).pieces) for side in ("source", "target")]
    return zlib.crc32(json.dumps(pieces).encode())
