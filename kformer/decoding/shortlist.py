"""The tokens that a search may generate, as it numbers them.

A search over a shortlist knows no other token: its logits have a column per token of the list, and
the tokens are numbered by their columns. What is fed to the decoder and what is returned are ids of
the vocabulary again.

Shape letters: R rows, V vocabulary, C columns of the logits.
"""

import numpy as np
from keras import ops


class Columns:
    """Numbering of the tokens of a search.

    Args:
        model: a `Transformer`.
        options: `SearchOptions`.

    Attributes:
        tokens: int32 array `[C]`, the id of each column; `None` where all ids of the vocabulary are
            columns.
        special: dict with `start_id`, `end_id` and `pad_id` as the search numbers them.
        prefix, forbidden: the options' tokens in these numbers; in the mode "kformer" start and
            padding token are forbidden, too.
    """

    def __init__(self, model, options):
        forbidden = set(options.forbidden_ids)
        if options.mode == "kformer":
            forbidden |= {model.start_id, model.pad_id} - {model.end_id}
        if not options.shortlist:
            self.tokens = None
            self.special = {
                "start_id": model.start_id,
                "end_id": model.end_id,
                "pad_id": model.pad_id,
            }
            self.prefix, self.forbidden = options.prefix_ids, forbidden
            return
        # In the order of their ids, so that of equal tokens the same one comes first. The prefix
        # must have columns to be forced in.
        allowed = {*options.shortlist, model.end_id} - (forbidden - {model.end_id})
        tokens = sorted(allowed | set(options.prefix_ids))
        column = {token: number for number, token in enumerate(tokens)}
        self.tokens = np.array(tokens, "int32")
        # Start and padding are read and written, but stand in no column.
        self.special = {
            "start_id": len(tokens),
            "end_id": column[model.end_id],
            "pad_id": len(tokens) + 1,
        }
        self._table = np.array([*tokens, model.start_id, model.pad_id], "int32")
        self.prefix = tuple(column[token] for token in options.prefix_ids)
        self.forbidden = {
            column[token] for token in tokens if token not in allowed or token in forbidden
        }

    def ids(self, numbers):
        """Ids of the vocabulary for a tensor of the search's numbers."""
        return (
            numbers
            if self.tokens is None
            else ops.take(ops.convert_to_tensor(self._table), numbers, axis=0)
        )

    def step(self, step):
        """A step function that takes these numbers, from one that takes ids `[R]` and returns
        logits `[R, C]`.
        """
        return (
            step if self.tokens is None else lambda numbers, state: step(self.ids(numbers), state)
        )
