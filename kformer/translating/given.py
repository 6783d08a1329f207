"""What a translator says about given translations: scores, attention, alignment, confidence."""

from kformer.models import Ensemble
from kformer.translating.attention import attention_map
from kformer.translating.confidence import (
    CONFIDENCE,
    calibrate_texts,
    confidence_of_rows,
    confidence_of_texts,
)
from kformer.translating.scores import score_texts
from kformer.translating.translation import AnnotatedTranslation, AttentionMap, Confidence, Score
from kformer.translating.word_alignment import (
    ALIGNMENT,
    WordPairs,
    align_texts,
    choose_source,
    stored_source,
)
from kformer.utils.checks import check_texts


def without_calibration(config):
    """A run's config without what `calibrate` found, which is true of one model alone.

    Args:
        config: dict.

    Returns:
        dict.
    """
    # A head that guided alignment trained stays, and has no measured error.
    is_measured = "error" in config.get(ALIGNMENT, {})
    names = {CONFIDENCE, ALIGNMENT} if is_measured else {CONFIDENCE}
    return {name: value for name, value in config.items() if name not in names}


class GivenTranslations:
    """The base class of `kformer.Translator`: what it says about translations that exist."""

    def score(self, sources, targets, *, batch_size=32, progress=None) -> list[Score]:
        """The log-probability of given translations.

        Args:
            sources, targets: lists of str of one length.
            batch_size: int, default 32. The pairs that are scored at once.
            progress: function, default `None`. It is called after each batch with the number of
                pairs done.

        Returns:
            List of `Score`, which are floats: the sum of the log-probabilities (natural logarithm)
            of each target's tokens and its end token, given the source. The token of a target
            language does not count. The sum equals the `score` of a search that found the same
            tokens, unless the search changes probabilities: by `renormalize`, a shortlist, a
            forced prefix, the `repetition_penalty` of a beam, or an end that is forced at no cost
            (mode "huggingface"). The attribute `truncated` of a score is `True` where the source
            was longer than the model's limit and was cut.

        Raises:
            ValueError: the sides differ in length, or a target is longer than the model's limit.
        """
        return score_texts(self, sources, targets, batch_size, progress)

    def align(self, sources, targets, *, batch_size=32, progress=None) -> list[list]:
        """Which source word each word of given translations came from.

        It reads the cross-attention that `calibrate` chose, or else the mean of the heads of the
        last layer (of 4 layers and more, of the last but one). Words are what stands between
        spaces, and each Chinese or Japanese character.

        Args:
            sources, targets: lists of str of one length.
            batch_size: int, default 32. The pairs that are read at once.
            progress: function, default `None`. It is called after each batch with the number of
                pairs done.

        Returns:
            List with a list for each pair of texts: the pairs (source index, target index) of
            words, counted from 0, sorted.

        Raises:
            ValueError: as `score`; or the translator has an ensemble.
        """
        self._check_single("asked for alignments")
        return align_texts(self, check_texts(sources), check_texts(targets), batch_size, progress)

    def confidence(self, sources, targets, *, batch_size=32, progress=None) -> list[Confidence]:
        """How sure the model is of given translations and of each of their words.

        Log-probabilities are divided by the temperature that `calibrate` fitted.

        Args:
            sources, targets: lists of str of one length.
            batch_size: int, default 32. The pairs that are read at once.
            progress: function, default `None`. It is called after each batch with the number of
                pairs done.

        Returns:
            List of `kformer.translating.translation.Confidence`.

        Raises:
            ValueError: as `score`.
        """
        targets = check_texts(targets)
        return confidence_of_texts(self, sources, targets, batch_size, progress)

    def calibrate(self, sources, targets, *, alignments=None, batch_size=32) -> dict:
        """Fits the temperature of `confidence`, and chooses the attention of `align`.

        `save` keeps both; `kformer calibrate` writes them into a run.

        Args:
            sources, targets: lists of str, such as a validation set.
            alignments: list with an alignment of words for each pair, default `None`; `None` for
                those that a statistical aligner finds in these texts.
            batch_size: int, default 32. The pairs that are read at once.

        Returns:
            Dict: `confidence`, with `temperature`, `error_before` and `error`, the expected
            calibration errors without and with it, and `tokens`; and, except for an ensemble,
            `alignment`, with `layer`, `head`, `after` and `error`, its alignment error rate.

        Raises:
            ValueError: as `score`; or there is no token, or not an alignment for each pair.
        """
        sources, targets = check_texts(sources), check_texts(targets)
        found = {CONFIDENCE: calibrate_texts(self, sources, targets, batch_size)}
        if not isinstance(self.model, Ensemble):
            found[ALIGNMENT] = choose_source(self, sources, targets, alignments, batch_size)
        self.config.update(found)
        return found

    def attention(self, source, target=None, **options) -> AttentionMap:
        """The cross-attention of every layer and head, computed in one forward pass.

        Args:
            source: str.
            target: str, default `None`. Its translation; `None` for the one that the search finds.
            **options: fields of `SearchOptions` for that search.

        Returns:
            `AttentionMap`.

        Raises:
            ValueError: the translator has an ensemble, which has no attention of its own.
        """
        self._check_single("looked into")
        return attention_map(self, source, target, options)

    def annotated(self, texts, results, *, alignment=False, confidence=False, batch_size=32):
        """The best translations with their words.

        Args:
            texts: list of str, the sources.
            results: list of `Translation` of these texts.
            alignment: bool, default `False`. Whether to align the words.
            confidence: bool, default `False`. Whether to compute the confidence.
            batch_size: int, default 32. The pairs that are read at once.

        Returns:
            List of `kformer.translating.translation.AnnotatedTranslation`.

        Raises:
            ValueError: alignments are wanted of an ensemble.
        """
        if alignment:
            self._check_single("asked for alignments")
        texts = check_texts(texts)
        rows, _ = self._source_rows(texts, keep_empty=True)
        labels = [result.hypotheses[0].ids for result in results]
        targets = [result.text for result in results]
        pairs = WordPairs(self, texts, targets, rows, labels)
        aligned = sure = [None] * len(texts)
        if alignment:
            aligned = pairs.align(stored_source(self), batch_size)
        if confidence:
            sure = confidence_of_rows(self, targets, rows, labels, batch_size)
        parts = zip(targets, pairs.words, aligned, sure, strict=True)
        return [AnnotatedTranslation(text, *words, *others) for text, words, *others in parts]
