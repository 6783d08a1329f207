"""A tokenizer of characters and a small corpus for the tests of kformer.data."""

import pathlib
import types

import numpy as np
import pytest


class CharacterTokenizer:
    """One token per character, with ids other than the usual ones, so that nothing may count on
    those.
    """

    pad_id, unknown_id, start_id, end_id = 3, 0, 5, 7
    vocabulary_size = target_vocabulary_size = 1 << 11

    def __init__(self, first=10):
        self.first = first
        self.texts_seen = 0

    def tokenize(self, texts, side="source", special_tokens=False, num_threads=None):
        self.texts_seen += len(texts)
        suffix = [self.end_id] if special_tokens else []
        return [[self._id(character) for character in text.strip(" ")] + suffix for text in texts]

    def _id(self, character):
        return min(self.first + ord(character), self.vocabulary_size - 1)

    def detokenize(self, ids):
        ids = [int(i) for i in ids if i not in (self.pad_id, self.start_id, self.end_id)]
        return "".join(chr(i - self.first) for i in ids)

    def save(self, folder):
        pathlib.Path(folder).mkdir(parents=True)
        (pathlib.Path(folder) / "tokenizer.json").write_text(str(self.first))


def toy_pairs(num_pairs, seed=0, longest=40):
    """Pairs of unlike texts of correlated lengths; every source text occurs once."""
    random = np.random.default_rng(seed)
    lengths = np.clip(random.lognormal(2.3, 0.6, num_pairs).astype(int), 1, longest - 6)
    sources, targets = [], []
    for i, length in enumerate(lengths):
        sources.append(f"{i:05d}" + "".join(chr(c) for c in random.integers(97, 123, length)))
        targets.append(
            "".join(
                chr(c) for c in random.integers(65, 91, max(1, length + random.integers(-3, 4)))
            )
        )
    return sources, targets


def pairs_of(batch, tokenizer):
    """The pairs of texts in a batch, without its rows of padding."""
    inputs, labels = batch
    rows = zip(np.asarray(inputs["source_ids"]), np.asarray(labels), strict=True)
    texts = [
        (tokenizer.detokenize(source), tokenizer.detokenize(target)) for source, target in rows
    ]
    return [pair for pair in texts if pair != ("", "")]


@pytest.fixture
def toy():
    """What stands above, since test modules cannot import one another."""
    return types.SimpleNamespace(
        CharacterTokenizer=CharacterTokenizer, pairs=toy_pairs, pairs_of=pairs_of
    )
