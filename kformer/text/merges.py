"""Merges of BPE: pieces that become a longer one, and merges that are learned from text.

References:
    Sennrich et al. (2016), Neural Machine Translation of Rare Words with Subword Units (BPE),
    https://arxiv.org/abs/1508.07909.
"""

import heapq
import itertools
from collections import Counter, defaultdict

# The most characters of a piece, as in SentencePiece's training.
_LONGEST = 16


def merge_pieces(pieces, scores):
    """Merges pieces as a BPE model does: again and again the pair with the highest score.

    Args:
        pieces: list of str. Becomes the list of the pieces after the merges.
        scores: dict of str to float. The score of each piece of the model.

    Returns:
        List of str: what each merge makes.
    """
    merges = []
    while True:
        pairs = [first + second for first, second in itertools.pairwise(pieces)]
        ranked = [(scores[pair], -i, pair) for i, pair in enumerate(pairs) if pair in scores]
        if not ranked:
            return merges
        _, i, pair = max(ranked)
        pieces[-i : 2 - i] = [pair]
        merges.append(pair)


def pairs_of(pieces):
    """Returns what two neighbours each of some pieces would make; too long ones are left out."""
    pairs = [first + second for first, second in itertools.pairwise(pieces)]
    return [pair for pair in pairs if len(pair) <= _LONGEST]


def learn_merges(words, scores, count, min_occurrences, excluded=()):
    """Learns further merges of a BPE model from text that it has segmented.

    A new merge comes after all earlier ones, so text without its pair is segmented as before.

    Args:
        words: dict of tuple of str to int. The pieces within which merges are possible, such as
            those of a word, and how often they occur.
        scores: dict of str to float. The score of each piece of the model. It gets the new ones.
        count: int. The most merges.
        min_occurrences: int. How often a pair occurs at least.
        excluded: container of str, default empty. Pieces that are not made.

    Returns:
        dict of piece to score, in the order of the merges.

    References:
        Purason et al. (2025), Teaching Old Tokenizers New Words, https://arxiv.org/abs/2512.03989.
    """
    lowest, learned = min(scores.values()), {}
    words = [(list(pieces), number) for pieces, number in words.items()]
    counts, indices = Counter(), defaultdict(set)
    for i, (pieces, number) in enumerate(words):
        for pair in pairs_of(pieces):
            counts[pair] += number
            indices[pair].add(i)
    heap = [(-number, pair) for pair, number in counts.items()]
    heapq.heapify(heap)
    while heap and len(learned) < count:
        number, best = heapq.heappop(heap)
        if -number < min_occurrences:
            break
        # The count of a pair may have changed since it was put there; its last one is there, too.
        if -number != counts[best] or best in scores or best in excluded:
            continue
        scores[best] = learned[best] = lowest - 1 - len(learned)
        changes = Counter()
        for i in indices.pop(best):
            pieces, number = words[i]
            for pair in pairs_of(pieces):
                changes[pair] -= number
            merge_pieces(pieces, scores)
            for pair in pairs_of(pieces):
                changes[pair] += number
                indices[pair].add(i)
        for pair, change in changes.items():
            if change:
                counts[pair] += change
                heapq.heappush(heap, (-counts[pair], pair))
    return learned
