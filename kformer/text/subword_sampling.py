"""Subword regularization: a random segmentation of a text, as a pure function of a key.

SentencePiece can sample, too. But its random numbers belong to a thread and cannot be seeded again,
so no segmentation could be repeated in another process or after an interruption.

References:
    Kudo 2018, "Subword Regularization: Improving Neural Network Translation Models with Multiple
    Subword Candidates". Provilkov et al. 2020, "BPE-Dropout: Simple and Effective Subword
    Regularization".
"""

import math
import random
import zlib

import numpy as np

from kformer.text.normalization import SPACE_SIGN
from kformer.text.protobuf import message_fields

UNIGRAM, BPE, WORD = 1, 2, 3
# The segmentations of a word. Each is sampled when it is first needed, and kept.
_SAMPLES = 32
# They are kept for words of up to so many pieces (a Chinese sentence is one word), and for so many
# words.
_LONGEST_KEPT, _MOST_KEPT = 32, 1_000_000
# Field numbers in SentencePiece's ModelProto: the trainer's settings, and the model type in them.
_TRAINER_FIELD, _TYPE_FIELD = 2, 3


class SubwordSampler:
    """Resamples the segmentation of texts that are already tokenized; their decoding is the same.

    A unigram model gives each segmentation x of a word a probability `p(x)`; one is sampled in
    proportion to `p(x)^strength` (Kudo 2018, equation 9, over all segmentations). With BPE each
    possible merge of two pieces is skipped with the probability `strength` (Provilkov et al. 2020,
    algorithm 1). Words with bytes, unknown or special tokens stay as they are.

    Each word has 32 sampled segmentations, and each occurrence gets one of them.

    Args:
        vocabulary: `kformer.text.vocabulary.Vocabulary`. One side of a tokenizer.
        strength: float. With a unigram model alpha, above 0: smaller is more random, and 0.1 to 0.5
            is usual. With BPE the probability in (0, 1): larger is more random, and 0.1 is usual.
        seed: int, default 0.

    Raises:
        ValueError: the strength is out of range, or the model is neither unigram nor BPE.

    Example:
    ```python
    tokenizer = kformer.Tokenizer.train(["train.en", "train.de"], vocabulary_size=400)
    sampler = kformer.text.SubwordSampler(tokenizer.vocabulary("source"), 0.1)
    ids = tokenizer.tokenize("half past four")
    tokenizer.tokens(sampler([ids], keys=[0])[0])  # ["▁h", "alf", "▁past", "▁f", "our"]
    ```
    """

    def __init__(self, vocabulary, strength, seed=0):
        kind = model_type(vocabulary.model)
        if kind not in (UNIGRAM, BPE):
            raise ValueError("Subword sampling needs a unigram or a BPE model of SentencePiece.")
        most, meaning = {
            BPE: (1, "a probability below 1, as 0.1, with a BPE model"),
            UNIGRAM: (math.inf, "an exponent above 0, as 0.3, with a unigram model"),
        }[kind]
        if isinstance(strength, bool) or not 0 < strength < most:
            raise ValueError(
                f"The strength of subword sampling must be {meaning}, but {strength!r} was given."
            )
        self.kind, self.strength, self.seed = kind, float(strength), int(seed)
        # Piece to (id, score), of all pieces that are neither special nor a byte.
        self._pieces, processor = {}, vocabulary.processor
        special = {vocabulary.unknown_id, *vocabulary.control_ids}
        if vocabulary.added_words is not None:
            special |= {*vocabulary.added_words.ids.values()}
        names = ("is_control", "is_unknown", "is_byte", "is_unused")
        checks = [getattr(processor, name) for name in names]
        for number in range(len(processor)):
            token = number if vocabulary.id_map is None else vocabulary.id_map[number]
            if token not in special and not any(check(number) for check in checks):
                piece = processor.id_to_piece(number)
                self._pieces[piece] = token, processor.get_score(number)
        self._texts = {token: piece for piece, (token, _) in self._pieces.items()}
        self._longest = max(map(len, self._pieces), default=1)
        self._begins = np.array([piece.startswith(SPACE_SIGN) for piece in vocabulary.pieces])
        self._words = {}

    def __call__(self, rows, keys):
        """Samples a segmentation of some texts.

        Args:
            rows: list of arrays or lists of int. The ids from the tokenizer, with or without
                special tokens.
            keys: int array. A key for each text: the same key and text give the same result.

        Returns:
            list of int32 arrays.
        """
        lengths = np.array([len(row) for row in rows], np.int64)
        if not len(lengths) or not lengths.sum():
            return [np.asarray(row, np.int32) for row in rows]
        ids = np.concatenate([np.asarray(row, np.int32) for row in rows])
        row_begins = np.cumsum(lengths) - lengths
        is_begin = self._begins[ids]
        is_begin[row_begins[lengths > 0]] = True
        begins = np.flatnonzero(is_begin)
        row_of = np.searchsorted(row_begins, begins, side="right") - 1
        keys = np.asarray(keys, np.uint64)[row_of]
        numbers = _hash(keys, begins - row_begins[row_of], self.seed) % _SAMPLES
        results, words = [[] for _ in rows], self._words
        edges = [*begins.tolist(), len(ids)]
        for index, (row, number) in enumerate(zip(row_of.tolist(), numbers.tolist(), strict=True)):
            word = ids[edges[index] : edges[index + 1]].tobytes()
            entry = words.get(word)
            if entry is None:
                entry = self._entry(np.frombuffer(word, np.int32).tolist())
                if len(word) <= 4 * _LONGEST_KEPT:
                    if len(words) >= _MOST_KEPT:
                        words.clear()
                    words[word] = entry
            segmentation = entry[number if len(entry) > 1 else 0]
            if segmentation is None:
                segmentation = entry[number] = self._sample(entry[_SAMPLES], number)
            results[row] += segmentation
        return [np.array(row, np.int32) for row in results]

    def _entry(self, ids):
        """Returns the cache entry of a word: its segmentations, to be sampled, and its parts; or
        only its ids, if there is nothing to sample.
        """
        # Special tokens may come before the first ordinary piece (a language) or after the last.
        ordinary = [i for i, token in enumerate(ids) if token in self._texts]
        first, last = (ordinary[0], ordinary[-1] + 1) if ordinary else (0, 0)
        inner = ids[first:last]
        text = "".join(self._texts.get(token, "") for token in inner)
        if len(text) < 2 or len(ordinary) < len(inner):
            return [ids]
        return [*[None] * _SAMPLES, (text, ids[:first], inner, ids[last:])]

    def _sample(self, word, number):
        text, before, inner, behind = word
        # The random numbers of a string seed are the same in all versions of Python.
        generator = random.Random(f"{self.seed}/{number}/{text}")
        sample = self._sample_unigram if self.kind == UNIGRAM else self._sample_bpe
        pieces = sample(text, generator)
        if all(piece in self._pieces for piece in pieces):
            inner = [self._pieces[piece][0] for piece in pieces]
        return before + inner + behind

    def _sample_unigram(self, text, generator):
        """Forward sums, then a path sampled from the end."""
        sums = [0.0, *[-math.inf] * len(text)]
        ways = [[] for _ in sums]
        for end in range(1, len(sums)):
            for begin in range(max(0, end - self._longest), end):
                entry = self._pieces.get(text[begin:end])
                if entry is not None and sums[begin] > -math.inf:
                    ways[end].append((begin, sums[begin] + self.strength * entry[1]))
            if ways[end]:
                highest = max(score for _, score in ways[end])
                total = sum(math.exp(score - highest) for _, score in ways[end])
                sums[end] = highest + math.log(total)
        pieces, end = [], len(text)
        while end:
            if not ways[end]:  # A character without a piece of its own: the word stays as it is.
                return [text]
            begins, scores = zip(*ways[end], strict=True)
            weights = [math.exp(score - sums[end]) for score in scores]
            (begin,) = generator.choices(begins, weights)
            pieces.append(text[begin:end])
            end = begin
        return pieces[::-1]

    def _sample_bpe(self, text, generator):
        """Merges the pair with the best score that is not skipped, until there is none."""
        symbols = list(text)
        while True:
            best, index = -math.inf, None
            for i in range(len(symbols) - 1):
                entry = self._pieces.get(symbols[i] + symbols[i + 1])
                if entry is not None and generator.random() >= self.strength and entry[1] > best:
                    best, index = entry[1], i
            if index is None:
                return symbols
            symbols[index : index + 2] = [symbols[index] + symbols[index + 1]]


def model_type(model):
    """Returns the type of a SentencePiece model: 1 unigram, 2 BPE, 3 words, 4 characters.

    Args:
        model: bytes. A serialized SentencePiece model.
    """
    for field, _, start, end in message_fields(model, 0, len(model)):
        if field == _TRAINER_FIELD:
            for inner, _, inner_start, _ in message_fields(model, start, end):
                if inner == _TYPE_FIELD:
                    return model[inner_start]
    return UNIGRAM  # The protocol's default, which is not written.


def _hash(keys, positions, seed):
    """Returns random 32-bit numbers for keys and positions, int64 arrays, with the constants of
    MurmurHash3's 64-bit finalizer.
    """
    with np.errstate(over="ignore"):
        bits = keys + np.uint64(zlib.crc32(str(seed).encode())) * np.uint64(0x9E3779B97F4A7C15)
        for number in (np.uint64(0), positions.astype(np.uint64)):
            bits = (bits + number) * np.uint64(0x9E3779B97F4A7C15)
            bits = (bits ^ (bits >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
            bits = (bits ^ (bits >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
            bits ^= bits >> np.uint64(33)
    return (bits >> np.uint64(32)).astype(np.int64)
