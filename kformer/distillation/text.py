"""Knowledge distillation: a training text as teachers would translate it, forwards and backwards,
and what they expect at each token.
"""

from typing import NamedTuple

from kformer.distillation.soft_targets import soft_targets
from kformer.utils.checks import check_same_length

__all__ = ["DistilledText", "distill", "soft_targets"]


class DistilledText(NamedTuple):
    """What `distill` made.

    Attributes:
        sources, targets: lists of strings, the pairs to train a student on.
        num_empty: sentences that are left out, as their translation is empty.
        num_truncated: sentences that were longer than a teacher's limit and are left out, too.
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
    """Translates a training text by a teacher, for a student to be trained on.

    What a teacher writes is simpler than what people write, and says where the teacher was unsure:
    a small model learns more of it. The teacher may be one larger model or an ensemble
    (`Translator.load` of several runs), trained on the same text; and a student may teach the next
    one. Of a list of teachers each translates by itself: what they have different is more to learn.
    Teachers of the other direction translate the target side, which then stands beside what they
    made of it.

    Args:
        translator: `kformer.Translator`, or a list of them.
        sources: list of strings, the source side of the training text.
        references: list of strings, its target side, which `backward`, `closest` and
            `keep_original` need.
        backward: `kformer.Translator` from the target's language to the source's, or a list of
            them.
        round_trips: whether a teacher translates, too, what those of the other direction made:
            sentences that are new on both sides, the likeliest of each beam. The first text is
            translated by the last teacher that comes in turn, and so on backwards.
        closest: whether to take, of all hypotheses of the beam, the one most like the given
            sentence (by its BLEU) in place of the best.
        keep_original: whether the given pairs come along, behind the new ones.
        batch_size: as in `Translator.translate`.
        progress: function that is called with the number of sentences done by all teachers after
            each batch, of as many as there are sources for each teacher, and at most as many for
            each text of `round_trips`.
        **options: fields of `kformer.decoding.SearchOptions`; a beam of 5 by default.

    Returns:
        `DistilledText`: teacher by teacher, and of a pair that an earlier one has made already
            nothing more.

    Raises:
        ValueError: there are no sources or no teachers (for `round_trips`, of a direction), or no
            references where they are needed, or not as many.

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
        neural machine translation" (several teachers, both ways).
    """
    sources = list(sources)
    references = None if references is None else list(references)
    if not sources:
        raise ValueError("There is nothing to distill: the training text has no sentences.")
    forward, backward = (
        list(part) if isinstance(part, list | tuple) else [part] for part in (translator, backward)
    )
    if not forward and not backward:
        raise ValueError("There is nobody to translate: give at least one teacher.")
    if references is None and (backward or closest or keep_original):
        raise ValueError(
            "backward, closest and keep_original need the target side of the training text: "
            "give references."
        )
    if references is not None:
        check_same_length("the sources", len(sources), "the references", len(references))
    if round_trips and not (forward and backward):
        raise ValueError(
            "round_trips go back and forth: give teachers of both directions, those of the "
            "other one by backward."
        )
    options = {"beam_size": 5, **options}
    if closest:
        options["n_best"] = options["beam_size"]
    pairs, known, begun, num_empty, num_truncated = [], set(), 0, 0, 0

    def add(new):
        new = [pair for pair in new if None not in pair and pair not in known]
        pairs.extend(new)
        known.update(new)

    def ask(teacher, texts, others=None):
        """What a teacher says to each text, or of its beam what is most like the other text; `None`
        where that is of no use.
        """
        nonlocal begun, num_empty, num_truncated
        advance = progress and (lambda done, begun=begun: progress(begun + done))
        results = teacher.translate(texts, batch_size=batch_size, progress=advance, **options)
        begun += len(texts)
        said = []
        for index, result in enumerate(results):
            found = [hypothesis.text for hypothesis in result.hypotheses]
            chosen = found[0] if others is None else _closest(found, others[index])
            num_truncated += result.truncated
            num_empty += not (result.truncated or chosen.strip())
            said.append(None if result.truncated or not chosen.strip() else chosen)
        return said

    for teacher in forward:
        add(zip(sources, ask(teacher, sources, references if closest else None), strict=True))
    made = []
    for teacher in backward:
        made.append(ask(teacher, references, sources if closest else None))
        add(zip(made[-1], references, strict=True))
    if round_trips:
        known_sources = {None, *sources}
        for number, said in enumerate(made):
            new = [text for text in dict.fromkeys(said) if text not in known_sources]
            known_sources.update(new)
            # From the last on: runs of both directions are often given by their seeds, and those of
            # one seed began alike.
            teacher = forward[(len(made) - 1 - number) % len(forward)]
            add(zip(new, ask(teacher, new) if new else [], strict=True))
    if keep_original:
        add(zip(sources, references, strict=True))
    return DistilledText(
        [source for source, _ in pairs], [target for _, target in pairs], num_empty, num_truncated
    )


def _closest(texts, reference):
    from sacrebleu.metrics import BLEU

    from kformer.evaluation.scores import suitable_tokenizer

    metric = BLEU(tokenize=suitable_tokenizer([reference]), effective_order=True)
    # Of equals the first, the teacher's favourite.
    return max(texts, key=lambda text: metric.sentence_score(text, [reference]).score)
