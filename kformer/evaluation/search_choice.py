"""Chooses the options of a search on a validation set, at the end of a training."""

import dataclasses

import numpy as np

from kformer.decoding.options import SearchOptions
from kformer.evaluation.scores import corpus_bleu, evaluate, suitable_tokenizer
from kformer_cli.text_files import check_same_length

# The length penalties that are compared. The first search is made with the middle one, so that its
# hypotheses are good ones for all.
LENGTH_PENALTIES = tuple(round(0.2 * i, 1) for i in range(11))
_MIDDLE = 1.0
# A search that is so much worse than the hypotheses of the first promised has found others.
_SHORTFALL = 0.3
# The limits let this share of the training pairs through.
_SHARE = 0.999
_LENGTH_RATIOS = tuple(round(0.5 + 0.1 * i, 1) for i in range(36))
# Fewer sentences say too little about a penalty.
LEAST_SENTENCES = 200


@dataclasses.dataclass(frozen=True)
class SearchChoice:
    """The search that `choose_search` chose, and why.

    Attributes:
        options: `kformer.decoding.SearchOptions`.
        bleu: float. BLEU of the validation set with these options.
        default_bleu: float. BLEU with the length penalty and the limits that the translator had,
            estimated from the hypotheses of the first search.
        reason: str. One sentence for people.
    """

    options: SearchOptions
    bleu: float
    default_bleu: float
    reason: str


def length_limits(source_lengths, target_lengths):
    """The limits of a translation's length that let almost all training pairs through.

    Of all limits `ratio * source tokens + offset` that 99.9 % of the pairs keep to, these are the
    lowest in the mean over the pairs: the more even the lengths of a pair of languages, the
    earlier a hypothesis that repeats itself is ended.

    Args:
        source_lengths, target_lengths: int arrays `[pairs]`. Tokens of each side, without the end
            token of the target.

    Returns:
        `(ratio, offset)`, float and int.

    Example:
    ```python
    source, target = np.array([5, 10, 20]), np.array([6, 11, 21])
    kformer.evaluation.length_limits(source, target)  # (1.0, 1)
    ```
    """
    source, target = np.asarray(source_lengths), np.asarray(target_lengths)
    if not len(source):
        raise ValueError("There are no pairs whose lengths could be compared.")
    limits = []
    for ratio in _LENGTH_RATIOS:
        offset = max(1, int(np.ceil(np.quantile(target - np.floor(ratio * source), _SHARE))))
        limits.append((ratio * source.mean() + offset, ratio, offset))
    _, ratio, offset = min(limits)
    return ratio, offset


def choose_search(
    translator, sources, references, *, lengths=None, tokenize=None, batch_size=64, progress=None
):
    """Chooses length penalty and limits of a translator's search on a validation set, by BLEU.

    One search keeps the hypotheses of the whole beam, of which each length penalty of a grid
    chooses its best; the penalty counts whose BLEU, in the mean with its two neighbours, is
    highest. Then the set is translated with that penalty and the limits of `length_limits`. What
    follows depends on its BLEU. If it is as good as the hypotheses promised, the set is translated
    with that penalty and the translator's limits. If not, since a search with a high penalty finds
    hypotheses that the first did not, the set is translated with a penalty halfway to that of the
    first search. Of all searches that were made, the one with the highest BLEU wins, and the lower
    limits a tie.

    Args:
        translator: a `kformer.Translator` whose search has the mode "kformer".
        sources, references: lists of str. The validation set.
        lengths: pair of int arrays, default `None`. As the arguments of `length_limits`, of the
            training pairs; `None` to leave the limits as they are.
        tokenize: str, default `None`. As for `kformer.evaluation.evaluate`; `None` for the one
            that suits the references' script.
        batch_size: int, default 64. As for `kformer.Translator.translate`.
        progress: function, default `None`. It is called with a number of sentences, after each
            batch of each search.

    Returns:
        `SearchChoice`.

    Raises:
        ValueError: the sides differ in length, there are no sentences, or the mode is another.

    Example:
    ```python
    translator = kformer.Translator.load("runs/en-de")
    valid = [open(f"val.{side}").read().splitlines()[:8] for side in ("en", "de")]
    choice = kformer.evaluation.choose_search(translator, *valid)
    translator.options = choice.options
    ```
    """
    check_same_length("the sources", len(sources), "the references", len(references))
    before = translator.options
    if before.mode != "kformer":
        raise ValueError(
            f"The search has the mode {before.mode!r}, whose options are those of a published "
            "model: only those of the mode 'kformer' are chosen."
        )
    tokenize = tokenize or suitable_tokenizer(references)

    def measure(options):
        return evaluate(
            translator,
            sources,
            references,
            tokenize=tokenize,
            batch_size=batch_size,
            progress=progress,
            **_changed(options, before),
        ).bleu

    first = dataclasses.replace(before, length_penalty=_MIDDLE, n_best=before.beam_size)
    found = translator.translate(
        sources, batch_size=batch_size, progress=progress, **_changed(first, before)
    )
    by_penalty = _by_penalty(found, references, tokenize)
    penalty = LENGTH_PENALTIES[int(np.argmax(_smooth(by_penalty)))]
    promised = by_penalty[LENGTH_PENALTIES.index(penalty)]
    limits = {}
    if lengths is not None:
        limits = dict(zip(("length_ratio", "length_offset"), length_limits(*lengths), strict=True))
    chosen = dataclasses.replace(before, length_penalty=penalty, **limits)
    measured = {chosen: measure(chosen)}
    if measured[chosen] < promised - _SHORTFALL:
        other = dataclasses.replace(chosen, length_penalty=round((penalty + _MIDDLE) / 2, 2))
    else:
        other = dataclasses.replace(before, length_penalty=penalty)
    middle = dataclasses.replace(before, length_penalty=_MIDDLE)
    if other not in (chosen, middle):
        measured[other] = measure(other)
    measured.setdefault(middle, by_penalty[LENGTH_PENALTIES.index(_MIDDLE)])
    options = max(measured, key=measured.get)  # Of equal ones the first.
    default_bleu = float(np.interp(before.length_penalty, LENGTH_PENALTIES, by_penalty))
    reason = (
        f"search: length penalty {options.length_penalty:g}, at most {options.length_ratio:g} "
        f"times the source's tokens and {options.length_offset}, with which the BLEU of "
        f"{len(sources):,} validation sentences is highest ({measured[options]:.2f}; about "
        f"{default_bleu:.2f} with a length penalty of {before.length_penalty:g})"
    )
    return SearchChoice(options, measured[options], default_bleu, reason)


def _changed(options, before):
    """The fields of `options` that differ from those of `before`."""
    names = [field.name for field in dataclasses.fields(options)]
    values = {name: getattr(options, name) for name in names}
    return {name: value for name, value in values.items() if value != getattr(before, name)}


def _by_penalty(translations, references, tokenize):
    """BLEU of the hypotheses that each length penalty ranks first: a list of floats."""
    scores = []
    for penalty in LENGTH_PENALTIES:
        best = [
            max(translation.hypotheses, key=lambda each: _rank(each, penalty)).text  # noqa: B023
            for translation in translations
        ]
        scores.append(corpus_bleu(best, references, tokenize))
    return scores


def _rank(hypothesis, penalty):
    """The score by which a search with this length penalty compares a hypothesis."""
    return hypothesis.score / ((5 + len(hypothesis.ids)) / 6) ** penalty


def _smooth(values):
    """The mean of each value and its neighbours, so that chance decides less."""
    padded = np.pad(values, 1, mode="edge")
    return np.convolve(padded, np.ones(3) / 3, mode="valid")
