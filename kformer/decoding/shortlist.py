"""The tokens that a search may generate, as it numbers them.

A search over a shortlist knows no other token: its logits have a column per token of the list, and
the tokens are numbered by their columns. What is fed to the decoder and what is returned are ids of
the vocabulary again. So it is with the lists of sentences: the columns are the union of a batch's
lists, of which each row has its own list alone, so that no sentence depends on the others.

Shape letters: B sentences, R rows, V vocabulary, C columns of the logits, X tokens of a list.
"""

from typing import Any, NamedTuple

import numpy as np
from keras import ops

from kformer.decoding.constraints import IMPOSSIBLE, Constraints, SpecialTokens
from kformer.decoding.decoders import reorder, select
from kformer.decoding.repetition import NO_TOKEN, Repetition
from kformer.decoding.row_constraints import Joins, is_empty
from kformer.utils import backend
from kformer.utils.backend import GROUP, take

# A search looks at the best tokens of a row: at twice its beam, and at some more.
_SPARE = 10


class Columns:
    """Numbers of the tokens in a search, and its constraints in these numbers.

    Args:
        special: `SpecialTokens` of the model.
        options: `SearchOptions`.
        union: int32 tensor `[C]`, default `None`. The tokens of the lists of some sentences, after
            those of `fixed_tokens`; `None` for no such lists.

    Attributes:
        tokens: int32 array or tensor `[C]`, the id of each column; `None` where all ids of the
            vocabulary are columns.
        constraints: `Constraints` of the options. In the mode "kformer" the start and the padding
            token are forbidden, too.
    """

    def __init__(self, special, options, union=None):
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
        elif union is not None:
            self.tokens = self.table = union
            column = {token: i for i, token in enumerate(fixed_tokens(special, options))}
            prefix = tuple(column[token] for token in prefix)
            forbidden = {column[token] for token in forbidden}
            special = SpecialTokens(*(column[token] for token in special))
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
        order, count = ops.argsort(tokens), ops.shape(tokens)[0]
        flat = ops.reshape(ids, (-1,))  # TensorFlow looks up a vector alone.
        indices = ops.minimum(ops.searchsorted(take(tokens, order), flat), count - 1)
        columns = ops.cast(take(order, indices), "int32")
        unlisted = ops.where(flat < 0, flat, flat + count + 2)
        numbers = ops.where(take(tokens, columns) == flat, columns, unlisted)
        return ops.reshape(numbers, ops.shape(ids))

    def rows(self, rows, joins):
        """`RowConstraints` and `Joins` (or `None`) in the search's numbers."""
        if self.tokens is None:
            return rows, joins
        if joins is not None:
            joins = Joins(*(take(ops.convert_to_tensor(of), self.tokens) for of in joins))
        return type(rows)(*(x if is_empty(x) else self.numbers(x) for x in rows)), joins

    def step(self, step):
        """The step function that takes these numbers `[R]`, for one that takes ids."""
        if self.tokens is None:
            return step
        return lambda numbers, state: step(self.ids(numbers), state)


def fixed_tokens(special, options):
    """The tokens that are the first columns of every union of lists, sorted.

    They have numbers before a union is known, and are enough for `stable_top_k`.
    """
    tokens = {*special, *options.prefix_ids, *options.forbidden_ids}
    return sorted(tokens.union(range(GROUP * (2 * options.beam_size + _SPARE))))


class Lists:
    """The lists of a batch of sentences.

    Args:
        tokens: list of int32 tensors `[B, ...]`. The tokens of each sentence's list, among
            `NO_TOKEN`. The end token and the options' prefix are in every list.
        special: `SpecialTokens` of the model.
        options: `SearchOptions`.
        size: int. V.

    Attributes:
        union: int32 tensor `[C]`, as `Columns` takes it. It is `None` where shapes are static or
            the vocabulary is small: all logits are computed then, for the same result.
    """

    def __init__(self, tokens, special, options, size):
        sentences = ops.shape(tokens[0])[0]
        always = ops.convert_to_tensor([[special.end_id, *options.prefix_ids]], dtype="int32")
        always = ops.repeat(always, sentences, axis=0)
        tokens = [always, *(ops.reshape(each, (sentences, -1)) for each in tokens)]
        tokens = ops.concatenate(tokens, axis=1)  # [B, X]
        tokens = ops.where(tokens == NO_TOKEN, special.end_id, tokens)
        row = ops.expand_dims(ops.arange(sentences, dtype="int32"), 1)
        indices = ops.reshape(row * size + tokens, (-1, 1))
        barrier = ops.full((sentences * size,), IMPOSSIBLE, dtype="float32")
        barrier = ops.scatter_update(barrier, indices, ops.zeros_like(indices[:, 0], "float32"))
        self._barrier, self.union = ops.reshape(barrier, (sentences, size)), None
        fixed = fixed_tokens(special, options)
        if backend.uses_static_shapes() or fixed[-1] >= size:
            return
        is_listed = np.ones(size, "bool")
        is_listed[fixed] = False
        is_listed = ops.logical_and(ops.any(self._barrier > IMPOSSIBLE, axis=0), is_listed)
        others = ops.cast(ops.nonzero(is_listed)[0], "int32")
        fixed = ops.convert_to_tensor(fixed, dtype="int32")
        union = ops.concatenate([fixed, others])
        # Columns that no row may have fill the last group.
        size = -ops.shape(union)[0] % GROUP
        self.union = ops.concatenate([union, ops.full((size,), special.pad_id, dtype="int32")])
        blocked = ops.full((sentences, size), IMPOSSIBLE, dtype="float32")
        self._barrier = ops.concatenate([take(self._barrier, union, axis=1), blocked], axis=1)

    def limit(self, step, state, width):
        """A step function whose rows, `width` per sentence, have the tokens of their lists alone;
        and its state.
        """

        def limited(numbers, state):
            logits, decoder = step(numbers, state.decoder)
            barrier = ops.cast(state.barrier, logits.dtype)
            return logits + barrier, ListedState(decoder, state.barrier)

        return limited, ListedState(state, ops.repeat(self._barrier, width, axis=0))


class ListedState(NamedTuple):
    """The state of a decoder whose rows have tokens of their own."""

    decoder: Any  # the state of the step function
    barrier: Any  # float32 [R, C]: 0 at the tokens of a row, else minus infinity

    def reorder(self, rows):
        """Returns the state with row i from the former row `rows[i]`, of the same sentence."""
        return ListedState(reorder(self.decoder, rows), self.barrier)

    def select(self, sentences, rows):
        """Returns the state of some sentences alone; their rows are `rows`."""
        return ListedState(select(self.decoder, sentences, rows), take(self.barrier, rows))
