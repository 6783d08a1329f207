"""The quality of translations: BLEU and chrF, by sacreBLEU."""

import dataclasses
from collections.abc import Sequence

from kformer.text.scripts import HAN, KANA, THAI_LAO_BURMESE_KHMER, is_of
from kformer.utils.checks import check_choice, check_texts
from kformer.utils.types import Progress
from kformer_options.names import named
from kformer_options.text_files import check_same_length

_SIGNIFICANT = 0.05
# Outside of these ratios of lengths, translations lack much or have too much.
_LEAST_RATIO, _MOST_RATIO = 0.8, 1.25


@dataclasses.dataclass(frozen=True)
class EvaluationResult:
    """The result of `evaluate`.

    Attributes:
        bleu, chrf: float. The scores of the whole corpus, from 0 to 100. chrF is chrF2: recall
            counts twice.
        bleu_signature, chrf_signature: str. sacreBLEU's signatures. Publish them with the scores:
            only scores of equal signatures can be compared.
        bleu_details: str. BLEU's precisions, brevity penalty and lengths.
        hypotheses: list of str. The translations.
        truncated: list of int. The indices of the sources that were longer than the model's limit
            and were cut.
        length_ratio: float. The words of the translations, as BLEU splits them, for each word of
            the references.
    """

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str
    bleu_details: str
    hypotheses: list
    truncated: list
    length_ratio: float

    @property
    def length_remark(self):
        """A sentence about translations that are far shorter or longer than their references, with
        the likely reason; `None` for others.
        """
        return length_remark(self.length_ratio)

    def as_dict(self):
        """Returns the scores and their signatures as a dict of JSON values."""
        values = dict(vars(self))
        del values["hypotheses"], values["truncated"]
        return {**values, "sentences": len(self.hypotheses), "truncated": len(self.truncated)}


def evaluate(
    translator,
    sources: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    *,
    tokenize: str | None = None,
    lowercase: bool = False,
    batch_size: int = 64,
    progress: Progress | None = None,
    **options,
) -> EvaluationResult:
    """Translates a test set and compares the translations with its references.

    Args:
        translator: a `kformer.Translator`, or a `kformer.export.SavedModelTranslator`.
        sources: list of str.
        references: list of str, one for each source; or a list of such lists, where every source
            has several references.
        tokenize: str, default `None`. How BLEU splits sentences into words, one of
            `bleu_tokenizers()`: `"13a"` for European languages as they are written, `"zh"` for
            Chinese, `"none"` for text that is tokenized already. `None` takes what suits the script
            of the references (`suitable_tokenizer`). (chrF needs no words.)
        lowercase: bool, default `False`. Whether upper and lower case count as equal.
        batch_size: int, default 64. As in `Translator.translate`.
        progress: function, default `None`. As in `Translator.translate`.
        **options: fields of `kformer.decoding.SearchOptions` that differ from the translator's,
            such as `beam_size=5`.

    Returns:
        `EvaluationResult`.

    Raises:
        ValueError: there are no sources, there are not as many references as sources, or
            `tokenize` is unknown.

    Example:
    ```python
    translator = kformer.Translator.load("runs/en-de")
    sources, references = (open(f"test.{side}").read().splitlines() for side in ("en", "de"))
    kformer.evaluation.evaluate(translator, sources[:8], references[:8]).bleu
    ```

    References:
        Papineni et al. 2002, "BLEU: a method for automatic evaluation of machine translation".
        Popović 2015, "chrF: character n-gram F-score for automatic MT evaluation".
        Post 2018, "A call for clarity in reporting BLEU scores" (sacreBLEU and its signatures).
    """
    if isinstance(references, str | bytes):
        check_texts(references)  # It says that one text is not a list.
    sources, references = check_texts(sources), list(references)
    if references and isinstance(references[0], str):
        references = [references]
    if not sources:
        raise ValueError("There is nothing to evaluate: the test set has no sentences.")
    for texts in references or [[]]:
        check_same_length("the sources", len(sources), "the references", len(texts))
    tokenize = tokenize or suitable_tokenizer(references[0])
    metrics = _metrics(tokenize, lowercase)  # An unknown name must fail before the long work.
    results = translator.translate(sources, batch_size=batch_size, progress=progress, **options)
    hypotheses = [result.text for result in results]
    scores = [metric.corpus_score(hypotheses, references) for metric in metrics]
    return EvaluationResult(
        bleu=float(scores[0].score),
        chrf=float(scores[1].score),
        bleu_signature=str(metrics[0].get_signature()),
        chrf_signature=str(metrics[1].get_signature()),
        bleu_details=scores[0].format(width=2),
        hypotheses=hypotheses,
        truncated=[i for i, result in enumerate(results) if result.truncated],
        length_ratio=float(scores[0].ratio),
    )


def evaluate_directions(translator, sets, **options) -> dict[str, EvaluationResult]:
    """Translates a test set of each direction of a model, and compares them with the references.

    Args:
        translator: as for `evaluate`. A model of one direction, such as one of several that are
            compared with this one, translates all sets.
        sets: dict of direction, such as `("en", "de")`, to a tuple of sources and references.
        **options: those of `evaluate`.

    Returns:
        Dict of the direction's name, such as `"en-de"`, to its `EvaluationResult`.

    Raises:
        ValueError: as `evaluate`; there is no set; or the model has no such language.

    Example:
    ```python
    translator = kformer.Translator.load("runs/en-de")
    texts = [open(f"test.{side}").read().splitlines()[:8] for side in ("en", "de")]
    kformer.evaluation.evaluate_directions(translator, {("en", "de"): texts})["en-de"].bleu
    ```
    """
    if not sets:
        raise ValueError("There is nothing to evaluate: give a test set for a direction at least.")
    translators = {direction: translator.for_direction(*direction) for direction in sets}
    return {
        "-".join(direction): evaluate(translators[direction], *texts, **options)
        for direction, texts in sets.items()
    }


def length_ratio(hypotheses, references, tokenize="13a"):
    """Returns the words of translations for each word of the references, a float.

    Arguments are those of `corpus_bleu`.
    """
    bleu, _ = _metrics(tokenize, lowercase=False)
    return float(bleu.corpus_score(hypotheses, [references]).ratio)


def length_remark(ratio):
    """Returns a sentence about translations that are far shorter or longer than their references,
    below 0.8 or above 1.25 times the words; `None` for others.

    Args:
        ratio: float. The words of the translations for each word of the references.
    """
    if _LEAST_RATIO <= ratio <= _MOST_RATIO:
        return None
    size, fault = ("shorter", "ends its sentences early")
    remedy = f"a higher {named('length_penalty')}"
    if ratio > 1:
        size, fault = ("longer", "repeats itself")
        remedy = f"a lower {named('length_ratio')} or {named('length_penalty')}"
    return (
        f"The translations are much {size} than their references ({ratio:.2f} times the words). A "
        f"model that was trained too little {fault}: train it for more epochs or on more pairs, or "
        f"translate with {remedy}."
    )


def corpus_bleu(hypotheses, references, tokenize="13a"):
    """Returns the BLEU of translations with one reference each.

    Args:
        hypotheses, references: lists of str of one length.
        tokenize: str, default `"13a"`. One of `bleu_tokenizers()`.

    Returns:
        float, from 0 to 100.
    """
    bleu, _ = _metrics(tokenize, lowercase=False)
    return float(bleu.corpus_score(hypotheses, [references]).score)


def is_better(hypotheses, others, references, tokenize="13a"):
    """Returns whether translations have a higher BLEU than others, by more than chance.

    Args:
        hypotheses, others, references: lists of str of one length.
        tokenize: str, default `"13a"`. One of `bleu_tokenizers()`.

    Returns:
        bool: whether BLEU is higher, and a paired bootstrap over the sentences has a p-value below
        0.05.

    References:
        Koehn 2004, "Statistical significance tests for machine translation evaluation".
    """
    from sacrebleu.significance import PairedTest

    bleu, _ = _metrics(tokenize, lowercase=False)
    systems = [("others", others), ("hypotheses", hypotheses)]
    _, results = PairedTest(systems, {"BLEU": bleu}, [references], test_type="bs")()
    before, after = results["BLEU"]
    return bool(after.score > before.score and after.p_value < _SIGNIFICANT)


def bleu_tokenizers():
    """Returns the names that `tokenize` may have, a list of str.

    Some download a model (`flores200`) or need a package (`ja-mecab`).
    """
    from sacrebleu.metrics import BLEU

    return sorted(BLEU.TOKENIZERS)


def suitable_tokenizer(texts):
    """Returns the `tokenize` that suits the script of some texts.

    Args:
        texts: list of str.

    Returns:
        `"13a"`, `"zh"` or `"char"`.
    """
    letters = "".join(texts)
    scripts = (HAN, KANA + THAI_LAO_BURMESE_KHMER)
    han, others = (sum(is_of(letter, script) for letter in letters) for script in scripts)
    if (han + others) * 3 < len(letters):
        return "13a"
    return "char" if others * 10 > han else "zh"


def _metrics(tokenize, lowercase):
    """Returns sacreBLEU's BLEU and chrF."""
    from sacrebleu.metrics import BLEU, CHRF

    check_choice("tokenize", tokenize, bleu_tokenizers())
    try:
        # `force` only silences a warning about hypotheses that look tokenized, which with "none"
        # they are.
        return BLEU(tokenize=tokenize, lowercase=lowercase, force=True), CHRF(lowercase=lowercase)
    except (ImportError, RuntimeError) as error:
        raise ValueError(f"The tokenization '{tokenize}' cannot be used here: {error}") from error
