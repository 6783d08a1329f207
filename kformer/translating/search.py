"""Searches the translations of texts."""

import functools

from kformer.decoding import RowConstraints, Searcher
from kformer.decoding.batching import batches_by_length
from kformer.decoding.fast.decoder import ops_in
from kformer.decoding.repetition import NO_TOKEN
from kformer.text.text_bound import source_rows
from kformer.text.word_pieces import word_joins
from kformer.translating.translation import Hypothesis, Translation, hypotheses_of
from kformer.utils.recent import Recent
from kformer.utils.rows import pad_rows


class TextSearch:
    """Searches the translations of texts with a model.

    Args:
        model: `kformer.Transformer`, or a `kformer.models.Ensemble`.
        tokenizer: `kformer.Tokenizer`.
        dtype: str, default `None`. As for `kformer.Translator`.

    Call arguments:
        texts: list of str.
        constraints: `kformer.text.text_constraints.TextConstraints` of these texts.
        options: `SearchOptions`.
        batch_size, batch_tokens, progress: as for `Translator.translate`.
        indices: sequence of int, default `None`. The index of each text in the whole input, on
            which its random numbers depend; `None` for its index here.

    Attributes:
        token_lists: `kformer.data.TokenLists`, or `None`, the default, for all tokens.
        searchers: `Recent`. The compiled searchers of the last options.

    Returns:
        List of `Translation`.
    """

    def __init__(self, model, tokenizer, dtype=None):
        self.model, self.tokenizer, self.token_lists = model, tokenizer, None
        self._fast_ops = ops_in(model, dtype)
        self.searchers = Recent()

    def __call__(
        self, texts, constraints, options, batch_size, batch_tokens, indices=None, progress=None
    ):
        indices = range(len(texts)) if indices is None else indices
        # One compiled searcher serves all options that have the same `compiled_part`.
        part, model = options.compiled_part, self.model
        searcher = self.searchers.get_or_make(part, lambda: Searcher(model, part, self._fast_ops))
        rows, truncated = self.source_rows(texts, options)
        empty = [Hypothesis("", 0.0, 0.0, []) for _ in range(options.n_best)]
        results = [Translation(empty, was_cut) for was_cut in truncated]
        lengths = [len(row) for row in rows]
        constraints.check_fit([i for i, row in enumerate(rows) if row], options)
        done = lengths.count(0)
        for batch in batches_by_length(lengths, batch_size, batch_tokens, model.max_length):
            # The random numbers repeat after 2**31 texts: the searches count in int32.
            numbers = [indices[i] % 2**31 for i in batch]
            limits, row_constraints = None, constraints.rows(batch)
            if row_constraints is not None:
                limits = constraints.limits(batch, [lengths[i] for i in batch], options)
                searcher.joins = self._joins
            if self.token_lists is not None:
                listed = pad_rows([self.token_lists(rows[i]) for i in batch], NO_TOKEN)
                row_constraints = (row_constraints or RowConstraints())._replace(listed=listed)
            source_ids = pad_rows([rows[i] for i in batch], model.pad_id)
            result = searcher(source_ids, numbers, options, limits, row_constraints)
            for i, *hypotheses in zip(batch, result.ids, result.scores, result.ranks, strict=True):
                best = hypotheses_of(self.tokenizer, model.pad_id, *hypotheses)
                results[i] = Translation(best, truncated[i])
            done += len(batch)
            if progress is not None:
                progress(done)
        return results

    @functools.cached_property
    def _joins(self):
        size = self.model.target_vocabulary_size
        return word_joins(self.tokenizer.vocabulary("target"), size)

    def source_rows(self, texts, options):
        """Returns the source ids of texts, empty for an empty text, and which texts were cut."""
        limits = (self.model.max_length, options.max_text_bytes)
        return source_rows(self.tokenizer, texts, *limits)
