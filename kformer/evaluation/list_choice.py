"""Token lists that are long enough for a model, chosen on a validation set."""

from typing import NamedTuple

from kformer.data.token_lists import TokenLists
from kformer.evaluation.scores import evaluate

# Translations per source token, and most frequent tokens: longer lists of the first kind left more
# texts as they were than longer lists of the second, at equal lengths (docs/searching.md).
SIZES = tuple((candidates, 200) for candidates in (50, 100, 200, 400, 800))
_EQUAL, _BLEU = 0.99, 0.05
# So many own translations cost minutes on a CPU core.
_TRANSLATED = 20_000


class ListTrial(NamedTuple):
    """What lists of one size do to the translations of a validation set."""

    candidates: int
    frequent: int
    tokens: float  # of a sentence's list, on average
    equal: float  # the share of texts that equal those of the search among all tokens
    bleu: float
    full_bleu: float  # of the search among all tokens

    @property
    def is_enough(self):
        """Whether 99 % of the texts are equal, and BLEU within 0.05."""
        return self.equal >= _EQUAL and abs(self.bleu - self.full_bleu) <= _BLEU


def with_translations(translator, sources, targets):
    """Returns parallel texts, and after them those sources with the model's own translations.

    A model writes other words than its references: aligned with both, lists of one length left 5 to
    8 % more texts as they were. Of many sources up to 20,000 are translated, by greedy search.
    """
    step = 1 + len(sources) // _TRANSLATED
    chosen = list(sources[::step])
    return [*sources, *chosen], [*targets, *translator(chosen, beam_size=1, n_best=1)]


def choose_lists(translator, sources, targets, validation, sizes=SIZES):
    """Chooses the shortest lists with which 99 % of a validation set's translations stay the same.

    Args:
        translator: `kformer.Translator`.
        sources, targets: lists of str of one length. The texts that are aligned.
        validation: tuple of sources and references, lists of str.
        sizes: sequence of pairs of ints, shortest lists first. The `candidates` and `frequent` of
            `TokenLists.build` to try.

    Returns:
        `TokenLists`, the longest ones if none is enough; and a list of `ListTrial`, the last of
        which is theirs.
    """
    translator.token_lists = None
    full, trials = evaluate(translator, *validation), []
    rows = translator.tokenizer.tokenize(validation[0])
    for size, lists in zip(
        sizes, TokenLists.of_sizes(translator.tokenizer, sources, targets, sizes), strict=True
    ):
        translator.token_lists = lists
        result = evaluate(translator, *validation)
        pairs = zip(result.hypotheses, full.hypotheses, strict=True)
        equal = sum(ours == other for ours, other in pairs) / len(rows)
        tokens = sum(len(lists(row)) for row in rows) / len(rows)
        trials.append(ListTrial(*size, tokens, equal, result.bleu, full.bleu))
        if trials[-1].is_enough:
            break
    return lists, trials
