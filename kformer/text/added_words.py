"""Words that were added to a published tokenizer: they are found before SentencePiece reads a text.

The parts between them are segmented each by itself. Where words overlap, the first one counts, and
of those that begin together the longest."""

import re

from kformer.text.normalization import SPACE_SIGN

# A normalized text keeps its outer spaces between two of these, which no normalization changes.
FENCE = "0"


class AddedWords:
    """The added words of a vocabulary.

    Args:
        settings: dict with lists of words: "raw" are found in the text as it is, and "normalized"
            in the rest after SentencePiece's normalization; before "lstrip" and after "rstrip" no
            space is written. "keeps_spaces" is whether a space before a word is a piece.
        numbers: dict of piece to id.
        processor: `SentencePieceProcessor`.

    Attributes:
        ids: dict of word to id.
        words: dict of "raw" and "normalized" to their words, without those that have none.
        patterns: dict of "raw" and "normalized" to a regular expression, without those that have no
            words. Python and the graph read it alike.

    Raises:
        ValueError: a word is no piece, or a normalized one is never found.
    """

    def __init__(self, settings, numbers, processor):
        self._processor = processor
        self.keeps_spaces = settings["keeps_spaces"]
        words = {name: settings[name] for name in ("raw", "normalized")}
        self.ids = {}
        for word in (*words["raw"], *words["normalized"]):
            if not word or word not in numbers:
                raise ValueError(f"The added word {word!r} is not in the vocabulary.")
            self.ids[word] = numbers[word]
        self.lstrip, self.rstrip = (
            frozenset(self.ids[word] for word in settings[name] if word in self.ids)
            for name in ("lstrip", "rstrip")
        )
        for word in words["normalized"]:
            if self.normalize(word) != word:
                raise ValueError(
                    f"The added word {word!r} is to be found in normalized text, which has "
                    f"{self.normalize(word)!r} for it: add it with normalized=False."
                )
        # The longest first, so that it is found where several begin.
        self.words = {n: sorted(each, key=len, reverse=True) for n, each in words.items() if each}
        self.patterns = {
            name: f"({'|'.join(map(re.escape, each))})" for name, each in self.words.items()
        }
        self._compiled = {name: re.compile(pattern) for name, pattern in self.patterns.items()}

    def normalize(self, text):
        """Returns a text as SentencePiece normalizes it, with its outer spaces."""
        text = self._processor.normalize(FENCE + text + FENCE).replace(SPACE_SIGN, " ")
        return text.strip(" ")[len(FENCE) : -len(FENCE)]

    def split(self, text):
        """Returns the parts of a text: a str, or the id of an added word."""
        parts = self._split(text, "raw")
        if "normalized" in self.patterns:
            parts = [
                piece
                for part in parts
                for piece in (self._split_normalized(part) if isinstance(part, str) else [part])
            ]
        return parts

    def _split(self, text, name):
        if name not in self.patterns:
            return [text]
        parts = self._compiled[name].split(text)
        return [self.ids[part] if i % 2 else part for i, part in enumerate(parts)]

    def _split_normalized(self, text):
        parts = self._split(self.normalize(text), "normalized")
        return parts if len(parts) > 1 else [text]

    def writes_space(self, parts, index):
        """Returns whether a part of text ends with a space that is a piece of its own."""
        follower = parts[index + 1] if index + 1 < len(parts) else None
        if not self.keeps_spaces or follower is None or follower in self.lstrip:
            return False
        text = self.normalize(parts[index])
        is_stripped = index and parts[index - 1] in self.rstrip and not text.strip(" ")
        return text.endswith(" ") and not is_stripped
