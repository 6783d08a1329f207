"""Sequence-level knowledge distillation: a training text as teachers translate it, in one or both
directions.
"""

import collections
import functools
from typing import NamedTuple

from kformer.evaluation.scores import suitable_tokenizer
from kformer_options.text_files import check_same_length


class DistilledText(NamedTuple):
    """The result of `distill`.

    Attributes:
        sources, targets: lists of str. The pairs to train a student on.
        num_empty: int. Sentences that were left out because their translation is empty.
        num_truncated: int. Sentences that were left out because they were longer than a teacher's
            limit.
    """

    sources: list
    targets: list
    num_empty: int
    num_truncated: int


def distill(
    translator,
    sources,
    references=None,
    *,
    backward=(),
    round_trips=False,
    closest=False,
    keep_original=False,
    batch_size=64,
    progress=None,
    **options,
):
    """Translates a training text by teachers, for a student to be trained on.

    A teacher's translations are simpler than people's and show where the teacher was unsure, so a
    small model learns more from them. A teacher may be one larger model or an ensemble
    (`Translator.load` of several runs), trained on the same text; and a student may teach the next
    one. Each teacher of a list translates by itself; where their translations differ, the student
    has more to learn from. Teachers of the other direction translate the target side, and each
    target is then paired with its translation.

    Args:
        translator: `kformer.Translator`, or a list of them. The teachers.
        sources: list of str. The source side of the training text.
        references: list of str, default `None`. Its target side, which `backward`, `closest` and
            `keep_original` need.
        backward: `kformer.Translator`, or a list of them, default `()`. Teachers from the target's
            language to the source's.
        round_trips: bool, default `False`. Whether the sources that the backward teachers made are
            translated by a forward teacher, too: pairs that are new on both sides. The sources of
            the last backward teacher go to the first forward teacher, those of the last but one to
            the second, and so on, beginning again after the last.
        closest: bool, default `False`. Whether the hypothesis of the beam that is most like the
            given sentence (by BLEU) is taken instead of the best one.
        keep_original: bool, default `False`. Whether the given pairs follow the new ones.
        batch_size: int, default 64. As in `Translator.translate`.
        progress: function, default `None`. It is called after each batch with the number of
            sentences that all teachers have translated so far.
        **options: fields of `kformer.decoding.SearchOptions`; a beam of 5 by default.

    Returns:
        `DistilledText`: the pairs of one teacher after those of another. A pair that an earlier
        teacher made is not repeated.

    Raises:
        ValueError: there are no sources or no teachers (with `round_trips`, in either direction);
            or references are needed and missing, or there are not as many as sources.

    Example:
    ```python
    teacher = kformer.Translator.load(["runs/1", "runs/2", "runs/3"])
    sources, targets = (open(f"train.{side}").read().splitlines()[:8] for side in ("en", "de"))
    text = kformer.distillation.distill(teacher, sources, targets, closest=True)
    student_data = kformer.data.ParallelDataset(text.sources, text.targets, teacher.tokenizer)
    ```

    References:
        Kim and Rush 2016, "Sequence-level knowledge distillation", sections 3.2 and 3.3 (`closest`
        is their interpolation). Nguyen et al. 2020, "Data diversification: a simple strategy for
        neural machine translation" (several teachers, both directions).
    """
    sources = list(sources)
    references = None if references is None else list(references)
    sides = (translator, backward)
    teachers = [list(side) if isinstance(side, list | tuple) else [side] for side in sides]
    if not sources:
        raise ValueError("There is nothing to distill: the training text has no sentences.")
    if not any(teachers):
        raise ValueError("There is nobody to translate: give at least one teacher.")
    if references is not None:
        check_same_length("the sources", len(sources), "the references", len(references))
    elif teachers[1] or closest or keep_original:
        raise ValueError(
            "backward, closest and keep_original need the target side of the training text."
        )
    if round_trips and not all(teachers):
        raise ValueError("round_trips go back and forth: give teachers of both directions.")
    options = {"beam_size": 5, "batch_size": batch_size, **options}
    if closest:
        options["n_best"] = options["beam_size"]
    counts = collections.Counter()

    def translate(teacher, texts, opposite):
        """The translation of each text; `None` if it is empty or the text was cut. With `closest`
        it is the one most like the text of the other side; a round trip has none.
        """
        if not texts:
            return []
        before = counts["done"]
        # A teacher that samples again must not use the same random numbers again.
        first = {"first_index": before} if options.get("sampling") else {}
        advance = progress and (lambda done: progress(before + done))
        results = teacher.translate(texts, progress=advance, **{**options, **first})
        translations = []
        for index, result in enumerate(results):
            text = result.text
            if closest and opposite is not None:
                text = _closest([each.text for each in result.hypotheses], opposite[index])
            is_empty = not text.strip()
            counts["truncated"] += result.truncated
            counts["empty"] += is_empty and not result.truncated
            translations.append(None if is_empty or result.truncated else text)
        counts["done"] += len(texts)
        return translations

    functions = [[functools.partial(translate, each) for each in side] for side in teachers]
    pairs = taught_pairs(sources, references, *functions, round_trips=round_trips)
    if keep_original:
        add_pairs(pairs, sources, references)
    sides = ([pair[side] for pair in pairs] for side in (0, 1))
    return DistilledText(*sides, counts["empty"], counts["truncated"])


def taught_pairs(sources, references, forward, backward=(), *, round_trips=False):
    """Returns the pairs that teachers of one or both directions make of a training text.

    Args:
        sources, references: lists of str. The sides of the text; `references` may be `None` without
            teachers of the other direction.
        forward, backward: lists of functions, the teachers. Each takes a list of texts and a list
            with the given text of the other side of each, or `None`, and returns the translations;
            one may be `None`.
        round_trips: bool, default `False`. As in `distill`.

    Returns:
        List of pairs of str.
    """
    pairs = []
    for translate in forward:
        add_pairs(pairs, sources, translate(sources, references))
    new_sources = [translate(references, sources) for translate in backward]
    for texts in new_sources:
        add_pairs(pairs, texts, references)
    if round_trips:
        known = {None, *sources}
        for index, texts in enumerate(new_sources):
            new = [text for text in dict.fromkeys(texts) if text not in known]
            known.update(new)
            # In the opposite order: runs of both directions are often listed by their seeds, and
            # two runs of one seed began with the same weights.
            translate = forward[(len(new_sources) - 1 - index) % len(forward)]
            add_pairs(pairs, new, translate(new, None))
    return pairs


def add_pairs(pairs, sources, targets):
    """Adds pairs to a list, without those that lack a side and those that were added before; a text
    that has a pair twice keeps it twice.

    Args:
        pairs: list of pairs of str.
        sources, targets: lists of str or `None`, of one length.
    """
    known = set(pairs)
    new = zip(sources, targets, strict=True)
    pairs += [pair for pair in new if None not in pair and pair not in known]


def _closest(texts, reference):
    """Returns the text of a list that is most like another, by BLEU."""
    from sacrebleu.metrics import BLEU

    metric = BLEU(tokenize=suitable_tokenizer([reference]), effective_order=True)
    # `max` takes the first of equals, the hypothesis that the teacher ranks highest.
    return max(texts, key=lambda text: metric.sentence_score(text, [reference]).score)
