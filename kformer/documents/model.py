"""A translator, as a document needs it."""

import re

from kformer.documents.job import Answer
from kformer.documents.words import tokens

# Texts above this length are parted before a model has seen them, where no tokenizer is at hand.
_MOST_CHARACTERS = 2000
_BREAKS = re.compile("[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]+")


class Model:
    """A translator and the options of its search.

    Args:
        translator: `kformer.Translator` or `kformer.export.SavedModelTranslator`.
        options: dict of keyword arguments of its `translate`.
    """

    def __init__(self, translator, options):
        self._translator, self._options = translator, options
        self._tokenizer = getattr(translator, "tokenizer", None)
        self._forces = {}
        self._is_forcible = self._can_force()

    def _can_force(self):
        if self._tokenizer is None:
            return self._translator.takes_terms
        options = self._options
        if options.get("mbr") or options.get("alternatives"):
            return False
        names = ("beam_size", "sampling", "shortlist")
        own = self._translator.options
        beam, sampling, shortlist = (options.get(name, getattr(own, name)) for name in names)
        return beam > 1 and not sampling and not shortlist

    def forces(self, terms):
        """Whether the search can be told to write terms: a tuple of tuples of forms."""
        if not self._is_forcible or not terms:
            return self._is_forcible
        if self._tokenizer is None:
            return True
        most = min(self._translator.model.max_length, self._most_tokens)
        most -= len(self._translator.options.prefix_ids)
        return sum(self._size(forms) for forms in terms) <= most // 2

    @property
    def _most_tokens(self):
        """The most tokens that a translation has before its end."""
        return self._options.get("max_length", self._translator.options.max_length)

    def _size(self, forms):
        """The tokens of a term; too many if the vocabulary lacks one."""
        if forms not in self._forces:
            vocabulary = self._tokenizer.vocabulary("target")
            rows = vocabulary.encode(list(forms))
            is_written = all(row and vocabulary.unknown_id not in row for row in rows)
            self._forces[forms] = max(map(len, rows)) if is_written else 10**9
        return self._forces[forms]

    def translate(self, requests):
        """The `Answer` to each `Request`, in their order. Equal requests are translated once."""
        answers, pending = {}, []
        for request in dict.fromkeys(requests):
            if self._is_too_long(request.text):
                answers[request] = Answer(" ", True)
            else:
                pending.append(request)
        for has_terms in (False, True):
            chosen = [request for request in pending if bool(request.terms) == has_terms]
            answers.update(zip(chosen, self._translated(chosen, has_terms), strict=True))
        return [answers[request] for request in requests]

    def _translated(self, requests, has_terms):
        if not requests:
            return []
        more = {}
        if has_terms:
            more["terms"] = [self._terms(request.terms) for request in requests]
            if self._tokenizer is None:
                more["require_terms"] = False  # What is missing is put in later, and reported.
        texts = [request.text for request in requests]
        results = self._translator.translate(texts, **more, **self._options)
        pairs = zip(results, texts, strict=True)
        return [
            Answer(one_line(result.text), result.truncated, self._is_at_limit(result, text))
            for result, text in pairs
        ]

    def _terms(self, terms):
        # A SavedModel takes one form of each.
        return list(terms) if self._tokenizer is not None else [forms[0] for forms in terms]

    def _is_too_long(self, text):
        if self._tokenizer is None:
            return len(text) > _MOST_CHARACTERS
        most = self._translator.model.max_length
        # A token has a few characters at most: the longest texts are not tokenized to know it.
        return len(text) > 64 * most or (
            len(text) > most // 4
            and len(self._tokenizer.tokenize([text], special_tokens=True)[0]) > most
        )

    def _is_at_limit(self, result, text):
        ids = result.hypotheses[0].ids
        if self._tokenizer is None or not ids:
            return False
        # The limit of the search cut what has no end, or has it at the limit.
        if ids[-1] == self._tokenizer.end_id and len(ids) <= self._most_tokens:
            return False
        # A few words do not need so many tokens: there the model has lost its way.
        words = len(tokens(text))
        return words >= 8 or self._most_tokens <= 4 * words


def one_line(text):
    """A text without line breaks, which would move what follows."""
    return _BREAKS.sub(" ", text)
