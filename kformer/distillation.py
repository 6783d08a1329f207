"""Sequence-level knowledge distillation: a training text as a teacher would translate it."""

from typing import NamedTuple


class DistilledText(NamedTuple):
    """What `distill` made.

    Attributes:
        sources, targets: lists of strings, the pairs to train a student on.
        num_empty: sources that are left out, as their translation is empty.
        num_truncated: sources that were longer than the teacher's limit and are left out, too.
    """

    sources: list
    targets: list
    num_empty: int
    num_truncated: int


def distill(translator, sources, references=None, *, closest=False, keep_original=False, batch_size=64, progress=None, **options):
    """Translates a training text by a teacher, for a student to be trained on.

    What a teacher writes is simpler than what people write, and says where the teacher was unsure: a small model learns more of it. The
    teacher may be one larger model or an ensemble (`Translator.load` of several runs), trained on the same text; and a student may
    teach the next one.

    Args:
        translator: `kformer.Translator`.
        sources: list of strings, the source side of the training text.
        references: list of strings, its target side, which `closest` and `keep_original` need.
        closest: whether to take, of all hypotheses of the beam, the one most like the reference (sentence BLEU) in place of the best.
        keep_original: whether the given pairs come along, behind the new ones; a pair that stands among them already only once.
        batch_size, progress: as in `Translator.translate`.
        **options: fields of `kformer.decoding.SearchOptions`; a beam of 5 by default.

    Returns:
        `DistilledText`.

    Raises:
        ValueError: there are no sources, or no references where they are needed, or not as many.

    Example:
        >>> teacher = kformer.Translator.load(["runs/1", "runs/2", "runs/3"])
        >>> text = kformer.distillation.distill(teacher, train_sources, train_targets, closest=True)
        >>> student_data = kformer.data.ParallelDataset(text.sources, text.targets, tokenizer)

    References:
        Kim and Rush 2016, "Sequence-level knowledge distillation", sections 3.2 and 3.3 (`closest` is their interpolation).
    """
    sources = list(sources)
    references = None if references is None else list(references)
    if not sources:
        raise ValueError("There is nothing to distill: the training text has no sentences.")
    if references is None and (closest or keep_original):
        raise ValueError("closest and keep_original need the target side of the training text: give references.")
    if references is not None and len(references) != len(sources):
        counts = f"{len(sources)} sources but {len(references)} references"
        raise ValueError(f"There are {counts}; line n of one belongs to line n of the other.")
    options = {"beam_size": 5, **options}
    if closest:
        options["n_best"] = options["beam_size"]
    results = translator.translate(sources, batch_size=batch_size, progress=progress, **options)
    pairs, num_empty, num_truncated = [], 0, 0
    for number, (source, result) in enumerate(zip(sources, results, strict=True)):
        texts = [hypothesis.text for hypothesis in result.hypotheses]
        text = _closest(texts, references[number]) if closest else texts[0]
        num_truncated += result.truncated
        num_empty += not (result.truncated or text.strip())
        if text.strip() and not result.truncated:
            pairs.append((source, text))
    if keep_original:
        known = set(pairs)
        pairs += [pair for pair in zip(sources, references, strict=True) if pair not in known]
    return DistilledText([source for source, _ in pairs], [target for _, target in pairs], num_empty, num_truncated)


def _closest(texts, reference):
    from sacrebleu.metrics import BLEU

    from kformer.evaluation import suitable_tokenizer

    metric = BLEU(tokenize=suitable_tokenizer([reference]), effective_order=True)
    # Of equals the first, the teacher's favourite.
    return max(texts, key=lambda text: metric.sentence_score(text, [reference]).score)
