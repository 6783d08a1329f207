"""Chooses the options of a search on a validation set, at the end of a training."""

import dataclasses

import numpy as np

from kformer.evaluation.scores import corpus_bleu, is_better, length_ratio, suitable_tokenizer
from kformer.utils.checks import check_texts
from kformer_options.search import SearchOptions
from kformer_options.text_files import check_same_length

# The length penalties that are compared. The first search is made with the middle one, so that its
# hypotheses are good ones for all.
LENGTH_PENALTIES = tuple(round(0.2 * i, 1) for i in range(11))
MIDDLE_PENALTY = 1.0
# The penalty that is tried has at least this share of the greatest gain.
_SHARE_OF_GAIN = 0.5
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
        length_ratio: float. The words of the validation set's translations with these options for
            each word of the references.
    """

    options: SearchOptions
    bleu: float
    default_bleu: float
    reason: str
    length_ratio: float


def length_limits(source_lengths, target_lengths):
    """Returns the limits of a translation's length that let almost all training pairs through.

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

    The penalty is 1.0 unless another is better by more than chance:

    1. A search with 1.0 keeps all hypotheses of the beam. Each length penalty of a grid ranks them,
       which gives its BLEU; the mean with its two neighbours counts.
    2. The penalty nearest to 1.0 with at least half of the greatest gain is the candidate.
    3. If its BLEU is better than that of 1.0 by more than chance, the set is translated with it. If
       that BLEU is better by more than chance, too, the candidate is taken.
    4. The set is translated with the limits of `length_limits`, which are taken unless they cost
       BLEU.

    Step 3 keeps the translator's own limits, which are wide. A high penalty finds hypotheses that
    the first search did not, some of which repeat themselves; low limits would hide that.

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
    sources, references = check_texts(sources), check_texts(references)
    check_same_length("the sources", len(sources), "the references", len(references))
    if not sources:
        raise ValueError("There is nothing to choose a search on: the text has no sentences.")
    before = translator.options
    if before.mode != "kformer":
        raise ValueError(
            f"The search has the mode {before.mode!r}, whose options are those of a published "
            "model: only those of the mode 'kformer' are chosen."
        )
    tokenize = tokenize or suitable_tokenizer(references)

    def search(**options):
        return translator.translate(sources, batch_size=batch_size, progress=progress, **options)

    n_best = {"n_best": before.beam_size} if before.beam_size > 1 else {}
    # The hypotheses that each length penalty ranks first.
    by_penalty = [[] for _ in LENGTH_PENALTIES]
    penalized = [dataclasses.replace(before, length_penalty=each) for each in LENGTH_PENALTIES]
    for translation in search(length_penalty=MIDDLE_PENALTY, **n_best):
        for best, options in zip(by_penalty, penalized, strict=True):
            ranks = [each.score / options.penalty(len(each.ids)) for each in translation.hypotheses]
            best.append(translation.hypotheses[np.argmax(ranks)].text)
    scores = [corpus_bleu(texts, references, tokenize) for texts in by_penalty]
    middle = LENGTH_PENALTIES.index(MIDDLE_PENALTY)
    penalty, texts, bleu = MIDDLE_PENALTY, by_penalty[middle], scores[middle]
    candidate = _candidate(scores)
    if candidate != middle and is_better(by_penalty[candidate], texts, references, tokenize):
        new_texts = [each.text for each in search(length_penalty=LENGTH_PENALTIES[candidate])]
        if is_better(new_texts, texts, references, tokenize):
            penalty, texts = LENGTH_PENALTIES[candidate], new_texts
            bleu = corpus_bleu(texts, references, tokenize)
    options = dataclasses.replace(before, length_penalty=penalty)
    if lengths is not None:
        limits = dict(zip(("length_ratio", "length_offset"), length_limits(*lengths), strict=True))
        new_texts = [each.text for each in search(length_penalty=penalty, **limits)]
        limited = corpus_bleu(new_texts, references, tokenize)
        if limited >= bleu:
            options, bleu, texts = dataclasses.replace(options, **limits), limited, new_texts
    default_bleu = float(np.interp(before.length_penalty, LENGTH_PENALTIES, scores))
    why = "no other is better by more than chance" if penalty == MIDDLE_PENALTY else "better than 1"
    reason = (
        f"search: length penalty {penalty:g} ({why}), at most {options.length_ratio:g} times the "
        f"source's tokens and {options.length_offset}: a BLEU of {bleu:.2f} on {len(sources):,} "
        f"validation sentences (about {default_bleu:.2f} with a length penalty of "
        f"{before.length_penalty:g})"
    )
    ratio = length_ratio(texts, references, tokenize)
    return SearchChoice(options, bleu, default_bleu, reason, ratio)


def _candidate(scores):
    """Returns the index of the penalty to try, by the BLEU of each penalty."""
    middle = LENGTH_PENALTIES.index(MIDDLE_PENALTY)
    # The mean of each value and its neighbours, so that chance decides less.
    smooth = np.convolve(np.pad(scores, 1, mode="edge"), np.ones(3) / 3, mode="valid")
    gains = smooth - smooth[middle]
    high = [i for i, gain in enumerate(gains) if gain >= _SHARE_OF_GAIN * max(gains)]
    return min(high, key=lambda i: abs(i - middle))
