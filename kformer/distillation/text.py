"""Sequence-level knowledge distillation: a training text as teachers translate it, in one or both
directions.
"""

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
    teachers = [
        list(side) if isinstance(side, list | tuple) else [side] for side in (translator, backward)
    ]
    if not sources:
        raise ValueError("There is nothing to distill: the training text has no sentences.")
    if not any(teachers):
        raise ValueError("There is nobody to translate: give at least one teacher.")
    if references is None and (teachers[1] or closest or keep_original):
        raise ValueError(
            "backward, closest and keep_original need the target side of the training text: "
            "give references."
        )
    if references is not None:
        check_same_length("the sources", len(sources), "the references", len(references))
    if round_trips and not all(teachers):
        raise ValueError(
            "round_trips go back and forth: give teachers of both directions, those of the "
            "other one by backward."
        )
    distillation = _Distillation(batch_size, progress, closest, options)
    functions = [
        [functools.partial(distillation.translate, each) for each in side] for side in teachers
    ]
    pairs = taught_pairs(sources, references, *functions, round_trips=round_trips)
    if keep_original:
        pairs.add(sources, references)
    return DistilledText(*pairs.sides(), distillation.num_empty, distillation.num_truncated)


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
        `TaughtPairs`.
    """
    pairs = TaughtPairs()
    for translate in forward:
        pairs.add(sources, translate(sources, references))
    new_sources = [translate(references, sources) for translate in backward]
    for texts in new_sources:
        pairs.add(texts, references)
    if round_trips:
        known = {None, *sources}
        for index, texts in enumerate(new_sources):
            new = [text for text in dict.fromkeys(texts) if text not in known]
            known.update(new)
            # In the opposite order: runs of both directions are often listed by their seeds, and
            # two runs of one seed began with the same weights.
            translate = forward[(len(new_sources) - 1 - index) % len(forward)]
            pairs.add(new, translate(new, None))
    return pairs


class TaughtPairs:
    """Pairs without those that lack a side and those that were added before."""

    def __init__(self):
        self._pairs, self._known = [], set()

    def add(self, sources, targets):
        """Adds pairs; a text that has a pair twice keeps it twice.

        Args:
            sources, targets: lists of str or `None`, of one length.
        """
        pairs = zip(sources, targets, strict=True)
        new = [pair for pair in pairs if None not in pair and pair not in self._known]
        self._pairs += new
        self._known.update(new)

    def sides(self):
        """Returns the list of sources and the list of targets."""
        return tuple([pair[side] for pair in self._pairs] for side in (0, 1))


class _Distillation:
    """Translates by teachers, and counts what was left out."""

    def __init__(self, batch_size, progress, closest, options):
        self._batch_size, self._progress, self._closest = batch_size, progress, closest
        self._options = {"beam_size": 5, **options}
        if closest:
            self._options["n_best"] = self._options["beam_size"]
        self._done = self.num_empty = self.num_truncated = 0

    def translate(self, teacher, texts, references):
        """Returns a teacher's translation of each text; `None` if it is empty or the text was cut.

        With `closest` it is the hypothesis most like the text of the other side, in
        `references`, which is `None` for a round trip.
        """
        if not texts:
            return []
        advance = self._progress and (lambda done, before=self._done: self._progress(before + done))
        options = dict(self._options)
        if options.get("sampling"):
            # A teacher that is asked again must not use the same random numbers again.
            options["first_index"] = self._done
        results = teacher.translate(texts, batch_size=self._batch_size, progress=advance, **options)
        self._done += len(texts)
        translations = []
        for index, result in enumerate(results):
            text = result.text
            if self._closest and references is not None:
                text = _closest([each.text for each in result.hypotheses], references[index])
            is_empty = not text.strip()
            self.num_truncated += result.truncated
            self.num_empty += is_empty and not result.truncated
            translations.append(None if is_empty or result.truncated else text)
        return translations


def _closest(texts, reference):
    """Returns the text of a list that is most like another, by BLEU."""
    from sacrebleu.metrics import BLEU

    metric = BLEU(tokenize=suitable_tokenizer([reference]), effective_order=True)
    # `max` takes the first of equals, the hypothesis that the teacher ranks highest.
    return max(texts, key=lambda text: metric.sentence_score(text, [reference]).score)
