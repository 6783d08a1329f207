"""The tokens that a search may generate, as it numbers them.

A search over a shortlist knows no other token: its logits have a column per token of the list, and
the tokens are numbered by their columns. What is fed to the decoder and what is returned are ids of
the vocabulary again.

Shape letters: R rows, V vocabulary, C columns of the logits.
"""

import numpy as np
from keras import ops

from kformer.decoding.constraints import Constraints, SpecialTokens
from kformer.decoding.repetition import Repetition


class Columns:
    """Numbers of the tokens in a search, and its constraints in these numbers.

    Args:
        special: `SpecialTokens` of the model.
        options: `SearchOptions`.

    Attributes:
        tokens: int32 array `[C]`, the id of each column; `None` where all ids of the vocabulary are
            columns.
        constraints: `Constraints` of the options. In the mode "kformer" the start and the padding
            token are forbidden, too.
    """

    def __init__(self, special, options):
        forbidden = set(options.forbidden_ids)
        if options.mode == "kformer":
            forbidden |= {special.start_id, special.pad_id} - {special.end_id}
        prefix, self.tokens = options.prefix_ids, None
        if options.shortlist:
            # Sorted by id, so that of equal logits the same token comes first. The prefix must
            # have columns to be forced.
            allowed = {*options.shortlist, special.end_id} - (forbidden - {special.end_id})
            tokens = sorted(allowed | set(prefix))
            column = {token: number for number, token in enumerate(tokens)}
            self.tokens = np.array(tokens, "int32")
            # Start and padding are read and written, but have no column.
            self.table = np.array([*tokens, special.start_id, special.pad_id], "int32")
            prefix = tuple(column[token] for token in prefix)
            forbidden = {column[i] for i in tokens if i not in allowed or i in forbidden}
            special = SpecialTokens(len(tokens) + 1, len(tokens), column[special.end_id])
        at_limit = "end"
        if options.mode == "huggingface":
            at_limit = "free_end" if options.forced_end else "any"
        self.constraints = Constraints(
            special,
            prefix=prefix,
            forbidden=frozenset(forbidden),
            min_length=options.min_length,
            renormalize=options.renormalize,
            at_limit=at_limit,
            repetition=Repetition(options.repetition_penalty, options.no_repeat_ngram_size),
        )

    def ids(self, numbers):
        """Ids of the vocabulary for a tensor of the search's numbers."""
        if self.tokens is None:
            return numbers
        return ops.take(ops.convert_to_tensor(self.table), numbers, axis=0)

    def numbers(self, ids):
        """The search's numbers for a tensor of ids.

        A token without column has a number of its own; negative numbers stay.
        """
        if self.tokens is None:
            return ids
        tokens = ops.convert_to_tensor(self.tokens)
        flat = ops.reshape(ids, (-1,))  # TensorFlow looks up a vector alone.
        columns = ops.minimum(ops.searchsorted(tokens, flat), len(self.tokens) - 1)
        unlisted = ops.where(flat < 0, flat, flat + len(self.tokens) + 2)
        numbers = ops.where(ops.take(tokens, columns, axis=0) == flat, columns, unlisted)
        return ops.reshape(ops.cast(numbers, "int32"), ops.shape(ids))

    def step(self, step):
        """The step function that takes these numbers `[R]`, for one that takes ids."""
        if self.tokens is None:
            return step
        return lambda numbers, state: step(self.ids(numbers), state)
