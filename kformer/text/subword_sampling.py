"""Subword regularisation: the same text in other pieces each time, as a pure function of a key.

SentencePiece can sample, too, but its random numbers belong to a thread and cannot be set anew, so
that no sentence could be drawn a second time, in another process or after an interruption.

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
from kformer.text.unigram_scores import message_fields

UNIGRAM, BPE = 1, 2
# Draws that are kept of a word. They are made when they are first asked for; after some epochs most
# of them are.
_DRAWS = 32
# Draws are kept of words up to this number of pieces (Chinese sentences are one word), and of so
# many words.
_LONGEST_KEPT, _MOST_KEPT = 32, 1_000_000
# Where in SentencePiece's ModelProto the model type stands: the trainer's settings, and the type in
# them.
_TRAINER_FIELD, _TYPE_FIELD = 2, 3


class SubwordSampler:
    """Draws other pieces for the words of a text that is tokenized already.

    A word is what stands between two spaces, as SentencePiece cuts it; what a text writes stays the
    same. Where a unigram model has the probabilities `p(x)` of the ways to cut a word, a cut is
    drawn from `p(x)^strength`, normalised (Kudo 2018, equation 9, over all cuts). With BPE each
    merge of two pieces that could be made is left out with the probability `strength` (Provilkov et
    al. 2020, algorithm 1). Words with anything but ordinary pieces of the model (bytes, unknown and
    special tokens) stay as they are.

    Of each word there are 32 draws, from which each occurrence takes one.

    Args:
        vocabulary: `kformer.text.vocabulary.Vocabulary`, one side of a tokenizer.
        strength: float. With a unigram model alpha, above 0: the smaller, the more random; 0.1 to
            0.5 is usual. With BPE the probability in [0, 1): the larger, the more random; 0.1 is
            usual.
        seed: int.

    Raises:
        ValueError: the strength is out of range, or the model is neither unigram nor BPE.

    Example:
        >>> sampler = SubwordSampler(tokenizer.vocabulary("source"), 0.1)
        >>> tokenizer.tokens(sampler([tokenizer.tokenize("A man rides.")], keys=[0])[0])
        ['▁A', '▁m', 'an', '▁ri', 'de', 's', '.']
    """

    def __init__(self, vocabulary, strength, seed=0):
        kind = model_type(vocabulary.model)
        if kind not in (UNIGRAM, BPE):
            raise ValueError(
                "Pieces can be drawn from a unigram or a BPE model of SentencePiece; this one has words or characters."
            )
        if (
            isinstance(strength, bool)
            or not (0 < strength < math.inf)
            or (kind == BPE and strength >= 1)
        ):
            what = (
                "a probability below 1, as 0.1, with a BPE model"
                if kind == BPE
                else "an exponent above 0, as 0.3, with a unigram model"
            )
            raise ValueError(
                f"The strength of subword sampling must be {what}, but {strength!r} was given."
            )
        self.kind, self.strength, self.seed = kind, float(strength), int(seed)
        self._pieces = _ordinary_pieces(vocabulary)
        self._texts = {token: piece for piece, (token, _) in self._pieces.items()}
        self._longest = max(map(len, self._pieces), default=1)
        self._begins = np.array([piece.startswith(SPACE_SIGN) for piece in vocabulary.pieces])
        self._words = {}

    def __call__(self, rows, keys):
        """Draws the pieces of some texts.

        Args:
            rows: list of arrays or lists of ids, as the tokenizer gives them, with special tokens
                or without.
            keys: int array, for each text its key: where the key and the text are the same, the
                draw is.

        Returns:
            List of int32 arrays.
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
        draws = (
            _hash(np.asarray(keys, np.uint64)[row_of], begins - row_begins[row_of], self.seed)
            % _DRAWS
        )
        found, words = [[] for _ in rows], self._words
        edges = [*begins.tolist(), len(ids)]
        for number, (row, draw) in enumerate(zip(row_of.tolist(), draws.tolist(), strict=True)):
            word = ids[edges[number] : edges[number + 1]].tobytes()
            known = words.get(word)
            if known is None:
                known = self._open(np.frombuffer(word, np.int32).tolist())
                if len(word) <= 4 * _LONGEST_KEPT:
                    if len(words) >= _MOST_KEPT:
                        words.clear()
                    words[word] = known
            cut = known[draw if len(known) > 1 else 0]
            if cut is None:
                cut = known[draw] = self._draw(known[_DRAWS], draw)
            found[row] += cut
        return [np.array(row, np.int32) for row in found]

    def _open(self, ids):
        """What is kept of a word: its draws so far and its text; or its ids alone, where there is
        nothing to draw.
        """
        # What stands behind the last ordinary piece is an end token, say; before the first, a
        # language.
        first = next((i for i, token in enumerate(ids) if token in self._texts), len(ids))
        last = next((i for i in range(len(ids), first, -1) if ids[i - 1] in self._texts), first)
        inner = ids[first:last]
        text = "".join(self._texts.get(token, "") for token in inner)
        if len(text) < 2 or not all(token in self._texts for token in inner):
            return [ids]
        return [*[None] * _DRAWS, (text, ids[:first], inner, ids[last:])]

    def _draw(self, word, number):
        text, before, inner, behind = word
        # Python keeps the numbers that a string as a seed gives.
        generator = random.Random(f"{self.seed}/{number}/{text}")
        pieces = (
            self._draw_unigram(text, generator)
            if self.kind == UNIGRAM
            else self._draw_bpe(text, generator)
        )
        ids = (
            [self._pieces[piece][0] for piece in pieces]
            if all(piece in self._pieces for piece in pieces)
            else inner
        )
        return before + ids + behind

    def _draw_unigram(self, text, generator):
        """Forward sums, then a path drawn from the end."""
        sums = [0.0, *[-math.inf] * len(text)]
        ways = [[] for _ in sums]
        for end in range(1, len(sums)):
            for begin in range(max(0, end - self._longest), end):
                known = self._pieces.get(text[begin:end])
                if known is not None and sums[begin] > -math.inf:
                    ways[end].append((begin, sums[begin] + self.strength * known[1]))
            if ways[end]:
                highest = max(score for _, score in ways[end])
                sums[end] = highest + math.log(
                    sum(math.exp(score - highest) for _, score in ways[end])
                )
        pieces, end = [], len(text)
        while end:
            if not ways[end]:  # A character that is no piece by itself: the word cannot be written.
                return [text]
            begins, scores = zip(*ways[end], strict=True)
            weights = [math.exp(score - sums[end]) for score in scores]
            (begin,) = generator.choices(begins, weights)
            pieces.append(text[begin:end])
            end = begin
        return pieces[::-1]

    def _draw_bpe(self, text, generator):
        """Merges the pair of the best score of those that are not left out this time, until there
        is none.
        """
        symbols = list(text)
        while True:
            best, place = -math.inf, None
            for i in range(len(symbols) - 1):
                known = self._pieces.get(symbols[i] + symbols[i + 1])
                if known is not None and generator.random() >= self.strength and known[1] > best:
                    best, place = known[1], i
            if place is None:
                return symbols
            symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]


def model_type(model):
    """The number of a SentencePiece model's type in its settings: 1 unigram, 2 BPE, 3 words, 4
    characters.

    Args:
        model: bytes, a serialised SentencePiece model.
    """
    for field, _, start, end in message_fields(model, 0, len(model)):
        if field == _TRAINER_FIELD:
            for inner, _, inner_start, _ in message_fields(model, start, end):
                if inner == _TYPE_FIELD:
                    return model[inner_start]
    return UNIGRAM  # The protocol's default, which is not written.


def _ordinary_pieces(vocabulary):
    """dict of the text of each piece that is neither special nor a byte to its id and score."""
    processor, id_map = vocabulary.processor, vocabulary.id_map
    special, pieces = {vocabulary.unknown_id, *vocabulary.control_ids}, {}
    for number in range(len(processor)):
        kinds = (processor.is_control, processor.is_unknown, processor.is_byte, processor.is_unused)
        token = number if id_map is None else id_map[number]
        if token not in special and not any(kind(number) for kind in kinds):
            pieces[processor.id_to_piece(number)] = token, processor.get_score(number)
    return pieces


def _hash(keys, places, seed):
    """Random 32-bit numbers of keys and places, int64 arrays; the constants are those of
    MurmurHash3's 64-bit finaliser.
    """
    with np.errstate(over="ignore"):
        bits = keys + np.uint64(zlib.crc32(str(seed).encode())) * np.uint64(0x9E3779B97F4A7C15)
        for number in (np.uint64(0), places.astype(np.uint64)):
            bits = (bits + number) * np.uint64(0x9E3779B97F4A7C15)
            bits = (bits ^ (bits >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
            bits = (bits ^ (bits >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
            bits ^= bits >> np.uint64(33)
    return (bits >> np.uint64(32)).astype(np.int64)
