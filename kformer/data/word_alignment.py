"""Which word of a sentence was translated by which word of the other: a statistical aligner.

Shape letters: N words of a target sentence, M words of its source.
"""

import itertools
import re
import warnings

import numpy as np

from kformer.text.words import split_words
from kformer.utils.lines import read_lines
from kformer_options.text_files import check_same_length

# The share of target words without a source word, and how fast a source word becomes less likely
# with its distance from the diagonal: the values that fast_align begins with.
_NO_WORD, _TENSION = 0.08, 4.0
# The word pairs that are computed at once.
_CHUNK = 2**20
# The most pairs of words of one pair of sentences, such as 2,048 words with 2,048.
_MOST_WORD_PAIRS = 2**22
# Scores leave out words that are rarer than this, and count on chance by this share.
_FEWEST, _SMOOTHING = 4, 0.1
# Of the logarithms of the ratios of lengths: a corpus of equal lengths is no rule.
_LEAST_DEVIATION = 0.05
# The words of a text that scores look at.
_MOST_SCORED = 1000
# The most pairs of words that scores are fitted on: 8 bytes each.
_MOST_FITTED = 2**26
_PUNCTUATION = re.compile(
    r"[!-/:-@\[-`{-~\u00a1-\u00bf\u2010-\u2049\u3001-\u3003\u3008-\u3011\uff01-\uff1f]"
)


def align_words(sources, targets, iterations=5):
    """Aligns the words of parallel sentences, which are all that it learns from.

    A model of either direction (IBM's second, with a diagonal instead of a table of positions) is
    fitted by EM, and finds a source word or none for each target word, and the other way round.
    The two are combined by "grow-diag-final-and". It needs a few thousand pairs, and 8 bytes of
    memory for each source word with each target word of its sentence. Where these are more than
    four million, a warning names the line, which gets no alignment.

    Args:
        sources, targets: lists of str of one length. Their words are what stands between spaces,
            and each Chinese or Japanese character.
        iterations: int, default 5. Steps of EM.

    Returns:
        List with a list for each pair of sentences: the pairs (source index, target index) of
        aligned words, counted from 0, sorted.

    Raises:
        ValueError: the sides differ in length.

    Example:
        ```python
        from kformer.data import align_words

        align_words(["a house", "a dog", "the house"], ["ein Haus", "ein Hund", "das Haus"])
        # [[(0, 0), (1, 1)], [(0, 0), (1, 1)], [(0, 0), (1, 1)]]
        ```

    References:
        Dyer et al. 2013, "A simple, fast, and effective reparameterization of IBM Model 2". Koehn
        et al. 2005, "Edinburgh system description for the 2005 IWSLT speech translation
        evaluation" (the combination).
    """
    check_same_length("the sources", len(sources), "the targets", len(targets))
    sources, targets = _numbered(sources), _numbered(targets)
    for i, (source, target) in enumerate(zip(sources, targets, strict=True)):
        if len(source) * len(target) > _MOST_WORD_PAIRS:
            warnings.warn(
                f"Line {i + 1} is not aligned: {len(source):,} words with {len(target):,} are more "
                "than sentences have; split it.",
                stacklevel=2,
            )
            sources[i] = targets[i] = source[:0]
    forward = _one_way(sources, targets, iterations)
    backward = _one_way(targets, sources, iterations)
    pairs = zip(forward, backward, strict=True)
    return [_combined(there, {(i, j) for j, i in back}) for there, back in pairs]


def translation_probabilities(sources, targets, iterations=5):
    """How probably each token of a source is translated by each token of its target.

    The model is that of `align_words` in one direction. Of more than 64 million pairs of tokens
    (some 200,000 sentences) a part is read: 0.5 GiB of memory.

    Args:
        sources, targets: lists with a list of ids for each sentence, of one length.
        iterations: int, default 5. Steps of EM.

    Returns:
        Tuple (source, target, probability) of arrays of one length, for the pairs of ids that are
        aligned at all.
    """
    sides = [[np.array(row, "int64") + 1 for row in rows] for rows in (sources, targets)]
    step = 1 + sum(len(a) * len(b) for a, b in zip(*sides, strict=True)) // _MOST_FITTED
    there, back = (side[::step] for side in sides)
    _, keys, table, _ = _fitted(there, back, iterations)
    source, target = np.divmod(keys, _size(back))
    is_pair = (source > 0) & (table > 0)  # The source 0 is no token.
    return source[is_pair] - 1, target[is_pair] - 1, table[is_pair]


class AlignmentScores:
    """Scores how well two sentences fit each other, by an aligner's model and their lengths.

    `AlignmentScores.fit(sources, targets)` makes one from parallel sentences, which should be
    translations for the most part: what is often wrong in the same way looks right.

    Call arguments:
        sources, targets: lists of str of one length N. Their first 1,000 words are looked at.

    Returns:
        float array `[N]`: how much more likely a word becomes by the other sentence, as a
        logarithm, the mean over the words of both sides; less half of what the ratio of the lengths
        is away from the usual one, in standard deviations beyond the first. Sentences that have
        nothing to do with each other have 0 or less. Rare words do not count; a pair without others
        has infinity.

    Example:
        ```python
        from kformer.data.word_alignment import AlignmentScores

        sources = ["a house", "a dog", "the house", "the dog"] * 3
        targets = ["ein Haus", "ein Hund", "das Haus", "der Hund"] * 3
        scores = AlignmentScores.fit(sources, targets)
        scores(["the house", "the house"], ["das Haus", "ein Hund"])  # [0.7, -2.5]
        ```
    """

    def __init__(self, numbers, models, ratio, deviation):
        self._numbers, self._models = numbers, models
        self._ratio, self._deviation = ratio, deviation

    @classmethod
    def fit(cls, sources, targets, iterations=5):
        """Fits the model.

        Args:
            sources, targets: lists of str of one length: some ten thousand pairs. Of more than 64
                million pairs of words (some 200,000 sentences) a part is read: 0.5 GiB of memory.
            iterations: int, default 5. Steps of EM.

        Returns:
            `AlignmentScores`.

        Raises:
            ValueError: the sides differ in length.
        """
        check_same_length("the sources", len(sources), "the targets", len(targets))
        numbers = ({}, {})
        sides = [
            [words[:_MOST_SCORED] for words in _numbered(map(_plain, texts), known)]
            for texts, known in zip((sources, targets), numbers, strict=True)
        ]
        step = 1 + sum(len(a) * len(b) for a, b in zip(*sides, strict=True)) // _MOST_FITTED
        there, back = (side[::step] for side in sides)
        models = _Gains(there, back, iterations), _Gains(back, there, iterations)
        ratios = _length_ratios(sources, targets)
        ratio = np.median(ratios) if len(ratios) else 0.0
        deviations = np.abs(ratios - ratio)
        # As the standard deviation of a normal distribution, of which a few are no part.
        deviation = 1.4826 * np.median(deviations) if len(ratios) else 0.0
        return cls(numbers, models, ratio, max(deviation, _LEAST_DEVIATION))

    def __call__(self, sources, targets):
        check_same_length("the sources", len(sources), "the targets", len(targets))
        sides = [
            # An unknown word has the number 0, as no word.
            [
                np.array(
                    [n.get(word, 0) for word in split_words(_plain(t))[:_MOST_SCORED]], "int64"
                )
                for t in texts
            ]
            for texts, n in zip((sources, targets), self._numbers, strict=True)
        ]
        (there, counts), (back, more) = self._models[0](*sides), self._models[1](*sides[::-1])
        counts = counts + more
        away = np.abs(_length_ratios(sources, targets) - self._ratio) / self._deviation
        scores = (there + back) / np.maximum(counts, 1) - np.maximum(away - 1, 0) / 2
        return np.where(counts > 0, scores, np.inf)


class _Gains:
    """How much more likely the words of a target become by their source.

    Call arguments:
        sources, targets: lists of arrays of the numbers of words.

    Returns:
        Tuple (sums, counts): for each pair the sum of its words' gains, and how many have one.
    """

    def __init__(self, sources, targets, iterations):
        self._size = _size(targets)
        words = np.concatenate([np.zeros(0, "int64"), *targets])
        counts = np.bincount(words, minlength=self._size)
        self._frequencies = np.where(counts < _FEWEST, 0, counts / max(len(words), 1))
        _, keys, table, counts = _fitted(sources, targets, iterations)
        # What two words owe to a single pair of sentences says nothing about that pair.
        table = table * np.maximum(counts - 1, 0) / np.maximum(counts, 1)
        self._keys, self._table = keys[table > 0], table[table > 0]

    def __call__(self, sources, targets):
        sums, counts = [np.zeros(0)], [np.zeros(0)]
        for chunk in _chunks(sources, targets):
            pairs = _WordPairs(chunk, self._size)
            indices = np.searchsorted(self._keys, pairs.keys) % max(len(self._keys), 1)
            is_known = self._keys[indices] == pairs.keys if len(self._keys) else pairs.keys < 0
            likely = np.zeros(len(pairs.keys))
            likely[is_known] = self._table[indices[is_known]]
            frequencies = self._frequencies[np.concatenate([target for _, target in chunk])]
            rows = np.repeat(np.arange(len(chunk)), [len(target) for _, target in chunk])
            rows, frequencies, sums_of = (
                values[frequencies > 0] for values in (rows, frequencies, pairs.sums(likely))
            )
            gains = np.log((1 - _SMOOTHING) * sums_of / frequencies + _SMOOTHING)
            sums.append(np.bincount(rows, gains, len(chunk)))
            counts.append(np.bincount(rows, minlength=len(chunk)))
        return np.concatenate(sums), np.concatenate(counts)


def alignment_error_rate(found, expected):
    """The share of word pairs that are wrong: 0 for the same alignments, 1 for no common pair.

    Args:
        found, expected: lists of alignments, as `align_words` returns them.

    Returns:
        float. `1 - 2 common / (found + expected)`, in numbers of pairs.

    Raises:
        ValueError: the lists differ in length.

    Example:
        ```python
        from kformer.data import alignment_error_rate

        alignment_error_rate([[(0, 0), (1, 1)]], [[(0, 0), (1, 2)]])  # 0.5
        ```

    References:
        Och and Ney 2003, "A systematic comparison of various statistical alignment models", where
        all expected pairs are sure.
    """
    check_same_length("the first", len(found), "the second", len(expected))
    common = sum(len(set(a) & set(b)) for a, b in zip(found, expected, strict=True))
    total = sum(len(set(a)) for a in found) + sum(len(set(b)) for b in expected)
    return 1 - 2 * common / total if total else 0.0


def pharaoh(alignment):
    """An alignment as a line of text: `"0-0 1-2"`, source index before target index."""
    return " ".join(f"{source}-{target}" for source, target in alignment)


def read_pharaoh(path, sources=None, targets=None):
    """Reads the alignments in a file in Pharaoh's format, a line for each pair of sentences.

    Args:
        path: path of the file.
        sources, targets: lists of str, default `None`. The sentences, to check the indices by.

    Returns:
        List of alignments, as of `align_words`. A possible pair, `1p2`, counts as any other.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: a line is in no such format, there is not a line for each sentence, or an index
            is beyond the words of its sentence.
    """
    lines = read_lines(path, "alignment")
    if sources is not None:
        check_same_length("the text", len(sources), f"'{path}'", len(lines))
    alignments = []
    for number, line in enumerate(lines, 1):
        matches = [re.fullmatch(r"(\d{1,9})[-p](\d{1,9})", text, re.ASCII) for text in line.split()]
        if None in matches:
            raise ValueError(
                f"Line {number} of the alignment file '{path}' is not in Pharaoh's format, such as "
                "'0-0 1-2': the index of a source word and that of a target word, from 0."
            )
        alignments.append(sorted({tuple(map(int, match.groups())) for match in matches}))
        if sources is not None and alignments[-1]:
            sizes = len(split_words(sources[number - 1])), len(split_words(targets[number - 1]))
            ends = [max(pair[side] for pair in alignments[-1]) for side in (0, 1)]
            if ends[0] >= sizes[0] or ends[1] >= sizes[1]:
                raise ValueError(
                    f"Line {number} of the alignment file '{path}' names the words "
                    f"{ends[0]}-{ends[1]}, but its sentences have {sizes[0]} and {sizes[1]} words, "
                    "counted from 0; align this text, split at spaces."
                )
    return alignments


def _length_ratios(sources, targets):
    """The logarithms of the ratios of lengths in bytes, both with eight more.

    In bytes a Chinese character is as long as the letters that it replaces.
    """
    lengths = [
        [len(text.encode("utf-8", "surrogatepass")) for text in texts]
        for texts in (sources, targets)
    ]
    return np.diff(np.log(np.array(lengths, "float64") + 8), axis=0)[0]


def _plain(text):
    """A text without regard to case, its punctuation apart: more of its words are known."""
    return _PUNCTUATION.sub(r" \g<0> ", text.casefold())


def _numbered(texts, numbers=None):
    """Texts as arrays of the numbers of their words, from 1; 0 is left for no word."""
    numbers = {} if numbers is None else numbers

    def number(word):
        return numbers.setdefault(word, len(numbers) + 1)

    return [np.array([*map(number, split_words(text))], "int64") for text in texts]


def _one_way(sources, targets, iterations):
    """For each sentence a list of pairs (source index, target index), one at most for a target
    word.
    """
    chunks, _, table, _ = _fitted(sources, targets, iterations)
    if not chunks:
        return [[] for _ in sources]
    return [pairs for chunk in chunks for pairs in chunk.best(table)]


def _fitted(sources, targets, iterations):
    """Fits a model of one direction: its chunks, the keys of the different word pairs, their
    probabilities, and how often they are aligned.
    """
    size = _size(targets)
    chunks = [_WordPairs(chunk, size) for chunk in _chunks(sources, targets)]
    if not chunks:
        return [], np.zeros(0, "int64"), np.zeros(0), np.zeros(0)
    keys = np.unique(np.concatenate([np.unique(chunk.keys) for chunk in chunks]))
    for chunk in chunks:
        chunk.number(keys)
    source_words = keys // size
    table = np.ones(len(keys))
    for _ in range(iterations):
        counts = np.zeros(len(keys))
        for chunk in chunks:
            counts += chunk.expected_counts(table)
        table = counts / np.maximum(np.bincount(source_words, counts)[source_words], 1e-300)
    return chunks, keys, table, counts


def _size(sentences):
    """One more than the greatest number of a word."""
    return 1 + max((int(words.max()) for words in sentences if len(words)), default=0)


def _chunks(sources, targets):
    """Yields lists of pairs of sentences with about `_CHUNK` pairs of words."""
    chunk, size = [], 0
    for source, target in zip(sources, targets, strict=True):
        chunk.append((source, target))
        size += (len(source) + 1) * len(target)
        if size >= _CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class _WordPairs:
    """All pairs of a source word, or none, and a target word of some sentences.

    The pairs of one target word are neighbours: none first, then the source words in order.
    """

    def __init__(self, sentences, size):
        self._lengths = [(len(source), len(target)) for source, target in sentences]
        keys = [np.zeros(0, "int64")]
        for source, target in sentences:
            with_none = np.concatenate([[0], source])
            keys.append((with_none * size + target[:, None]).ravel())  # [N (M + 1)]
        self.keys = np.concatenate(keys)
        self._widths = np.concatenate([np.full(n, m + 1) for m, n in self._lengths])
        self._starts = np.cumsum(self._widths) - self._widths  # where each target word begins

    def number(self, keys):
        """Puts the indices of the pairs among all different ones in the place of their keys."""
        self.keys = np.searchsorted(keys, self.keys).astype("int32")
        # Only now, so that a pair never takes more than 8 bytes.
        self._prior = self._priors()

    def _priors(self):
        return np.concatenate([_prior(*lengths).ravel() for lengths in self._lengths])

    def sums(self, values):
        """For each target word the sum of its pairs' values by their prior probabilities."""
        return np.add.reduceat(self._priors() * values, self._starts)

    def expected_counts(self, table):
        """How often each different pair is aligned, as the table expects."""
        if not len(self._starts):
            return 0
        values = self._prior * table[self.keys]
        totals = np.repeat(np.add.reduceat(values, self._starts), self._widths)
        return np.bincount(self.keys, values / np.maximum(totals, 1e-300), len(table))

    def best(self, table):
        """For each sentence the most probable pairs, without the words that have none."""
        if not len(self._starts):
            return [[] for _ in self._lengths]
        values = self._prior * table[self.keys]
        most = np.repeat(np.maximum.reduceat(values, self._starts), self._widths)
        best = np.flatnonzero(values == most)
        first = np.searchsorted(best, self._starts)  # of each target word
        chosen = (best[first] - self._starts).tolist()  # 0 is none
        spans = itertools.pairwise(np.cumsum([0] + [n for _, n in self._lengths]))
        targets = (chosen[start:end] for start, end in spans)  # of each sentence
        return [[(i - 1, j) for j, i in enumerate(words) if i] for words in targets]


def _prior(num_source, num_target):
    """The probabilities `[N, M + 1]` of the source words of each target word, none first."""
    source = (np.arange(num_source) + 1) / max(num_source, 1)
    target = (np.arange(num_target) + 1) / max(num_target, 1)
    near = np.exp(-_TENSION * np.abs(source - target[:, None]))
    near *= (1 - _NO_WORD) / np.maximum(near.sum(axis=1, keepdims=True), 1e-300)
    return np.concatenate([np.full((num_target, 1), _NO_WORD), near], axis=1).astype("float32")


def _combined(forward, backward):
    """Two sets of pairs as one sorted list: "grow-diag-final-and"."""
    forward, backward = set(forward), set(backward)
    links, union = forward & backward, forward | backward
    sources, targets = ({pair[side] for pair in links} for side in (0, 1))

    def add(pair):
        links.add(pair)
        sources.add(pair[0])
        targets.add(pair[1])

    steps = [(-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)]
    unseen = sorted(links)
    while unseen:
        neighbours = []
        for (i, j), (down, right) in itertools.product(unseen, steps):
            pair = (i + down, j + right)
            is_free = pair[0] not in sources or pair[1] not in targets
            if pair in union and pair not in links and is_free:
                add(pair)
                neighbours.append(pair)
        unseen = neighbours
    for direction in (forward, backward):
        for pair in sorted(direction):
            if pair[0] not in sources and pair[1] not in targets:
                add(pair)
    return sorted(links)
