"""`Searcher`: the search of one model with its options, compiled where the backend compiles."""

import numpy as np
from keras import ops

from kformer.decoding.batching import padded_length, padded_rows
from kformer.decoding.repetition import NO_TOKEN
from kformer.decoding.row_constraints import RowConstraints, is_empty
from kformer.decoding.run_search import SearchResult, decoder_for, search
from kformer.utils import backend
from kformer.utils.rows import round_up
from kformer_options.search import TOKEN_LISTS

# Where shapes are static, the first search has this many more steps than the source has tokens. Few
# translations need more.
_SPARE_STEPS = 32


def check_options(model, options):
    """Checks that a model can search with some options.

    Args:
        model: a `Transformer`, `TransformerDecoder` or `Ensemble`.
        options: `SearchOptions`.

    Raises:
        ValueError: the options name a token that the model's vocabulary lacks, or allow more tokens
            than there are learned positions, or the end token is in `prefix_ids`.
    """
    size = model.target_vocabulary_size
    for name in TOKEN_LISTS:
        largest = max(getattr(options, name), default=-1)
        if largest >= size:
            raise ValueError(
                f"{name} holds {largest}, but the model's target vocabulary ends at {size - 1}; "
                "give ids of that vocabulary."
            )
    if model.end_id in options.prefix_ids:
        raise ValueError(
            f"prefix_ids holds {model.end_id}, the end token, which nothing follows; leave it out."
        )
    # Beyond its table a learned position has no vector: the backends would fail with an obscure
    # error, or go on with NaN.
    models = getattr(model, "models", [model])
    learned = any(each.config.position_encoding == "learned" for each in models)
    if learned and options.max_length >= model.max_length:
        raise ValueError(
            f"The model has {model.max_length} learned positions, which hold the start token and "
            f"{model.max_length - 1} more, but max_length is {options.max_length}; set it to at "
            f"most {model.max_length - 1}."
        )


class Searcher:
    """Searches with a model and options, compiled where the backend compiles.

    Args:
        model: a `Transformer`, a `TransformerDecoder`, or an `Ensemble`.
        options: `SearchOptions`.
        fast_ops: `FastOps`, default `None`. The operations of a `FastDecoder`, which may store the
            weights in another dtype; `None` for the backend's.
        joins: `Joins`, default `None`. Which tokens write no whole word, for `rows`.

    Call arguments:
        source_ids: integer array `[B, S]`, padded with the model's `pad_id`.
        row_numbers: integer array `[B]`, default `None`. A number for each sentence, on which its
            random numbers depend; `None` for 0, 1, 2 and so on.
        options: `SearchOptions`, default `None`. The options of this call, which must have the same
            `compiled_part`; `None` for the searcher's.
        limits: integer array `[B]`, default `None`. The most tokens of each row's hypotheses, at
            most `max_length`; `None` for the limits of the options.
        rows: `RowConstraints` of integer arrays, default `None`. Constraints of single sentences.
            A limit must be at least the sentence's
            `kformer.decoding.row_constraints.num_tokens`.

    Returns:
        `SearchResult` of NumPy arrays.

    Raises:
        ValueError: the options do not suit the model (see `check_options`) or the rows (see
            `search`), or the options of a call have another `compiled_part`.

    Example:
        ```python
        from kformer.decoding import Searcher, SearchOptions

        model = kformer.Transformer.from_preset("tiny", vocabulary_size=100)
        searcher = Searcher(model, SearchOptions(beam_size=2, max_length=5))
        searcher.decoder.name  # "fast" on TensorFlow and PyTorch, "layers" on JAX
        searcher(np.array([[5, 6, 7], [8, 9, 0]])).ids.shape  # (2, 1, at most 6)
        ```
    """

    def __init__(self, model, options, fast_ops=None, joins=None):
        check_options(model, options)
        self.model, self.options, self.joins = model, options, joins
        self._fast_ops = fast_ops
        # By the names of the row constraints that a call has: the function compiled for them.
        self._compiled = {}

    @property
    def decoder(self):
        """The `Decoder` that runs the model, chosen by `decoder_for`.

        Its `name` is `"fast"`, `"layers"` or `"ensemble"`. Layers take longer on TensorFlow and
        PyTorch; `reason` then names the cause, such as a layer of the user's own class. PyTorch
        chooses at each call; a compiled search keeps the decoder of its first call.
        """
        return decoder_for(self.model, self._fast_ops)

    def _run(self, source_ids, limits, row_numbers, seed, rows, **static):
        """Runs the compiled search; returns `SearchResult` and which sentences are done."""
        fields = {name: array for name, array in rows._asdict().items() if not is_empty(array)}
        names = tuple(fields)

        def run(source_ids, limits, row_numbers, seed, *constraints, steps=None):
            steps = ops.max(limits, initial=0) + 1 if steps is None else steps
            rows = RowConstraints(**dict(zip(names, constraints, strict=True))) if names else None
            decoder, settings = self.decoder, {"options": self.options, "joins": self.joins}
            arrays = (source_ids, limits, row_numbers)
            return search(decoder, *arrays, steps=steps, seed=seed, rows=rows, **settings)

        if names not in self._compiled:
            self._compiled[names] = backend.compile_function(run, self.model, ("steps",))
        arrays = (source_ids, limits, row_numbers, seed, *fields.values())
        return self._compiled[names](*arrays, **static)

    def __call__(self, source_ids, row_numbers=None, options=None, limits=None, rows=None):
        if options is None:
            options = self.options
        else:
            check_options(self.model, options)
            compiled, requested = vars(self.options.compiled_part), vars(options.compiled_part)
            changed = [name for name in compiled if compiled[name] != requested[name]]
            if changed:
                raise ValueError(
                    f"A call cannot change {', '.join(changed)}, which a search is compiled for: "
                    "make a Searcher with these options."
                )
        source_ids = np.asarray(source_ids, dtype="int32")
        if row_numbers is None:
            row_numbers = np.arange(len(source_ids))
        row_numbers = np.asarray(row_numbers, dtype="int32")
        lengths = (source_ids != self.model.pad_id).sum(axis=1)
        limits = (options.limits(lengths) if limits is None else limits).astype("int32")
        rows = RowConstraints() if rows is None else rows
        if not len(source_ids):
            empty = np.zeros((0, options.n_best), dtype="float32")
            return SearchResult(np.zeros((0, options.n_best, 1), dtype="int32"), empty, empty)
        seed = np.int32(options.seed)
        if not backend.uses_static_shapes():
            return self._run(source_ids, limits, row_numbers, seed, rows)[0]
        # Each shape is compiled once, so there must be few: sources are padded to one of a few
        # lengths, and the steps follow from that length.
        length = padded_length(source_ids.shape[1], self.model.max_length)
        padding = ((0, 0), (0, length - source_ids.shape[1]))
        source_ids = np.pad(source_ids, padding, constant_values=self.model.pad_id)
        longest = max(int(options.limits(np.array([length]))[0]), int(limits.max()))
        max_steps = round_up(longest + 1, 16)
        # A longer cache makes each step slower. So the few sentences that need more steps are
        # searched again, with a longer cache.
        steps = min(max_steps, round_up(max(length + _SPARE_STEPS, options.min_length + 16), 16))
        arrays = (source_ids, limits, row_numbers)
        result, is_done = self._search_padded(*arrays, rows, seed, steps)
        if is_done.all():
            return result
        open_rows = np.flatnonzero(~is_done)
        arrays = (array[open_rows] for array in arrays)
        rows = RowConstraints(*(array if is_empty(array) else array[open_rows] for array in rows))
        second_result, _ = self._search_padded(*arrays, rows, seed, max_steps)
        padding = ((0, 0), (0, 0), (0, max_steps - steps))
        ids = np.pad(result.ids, padding, constant_values=self.model.pad_id)
        result = SearchResult(ids, result.scores.copy(), result.ranks.copy())
        for array, replacement in zip(result, second_result, strict=True):
            array[open_rows] = replacement
        return result

    def _search_padded(self, source_ids, limits, row_numbers, rows, seed, steps):
        """Runs the search with a padded number of rows; returns what `_run` returns."""
        count = len(source_ids)
        padding = padded_rows(count) - count
        source_ids = np.pad(source_ids, ((0, padding), (0, 0)), constant_values=self.model.pad_id)
        # A row of padding has the limit 0 and ends at once, so the others do not wait for it.
        limits, row_numbers = (np.pad(numbers, (0, padding)) for numbers in (limits, row_numbers))
        rows = RowConstraints(*map(_padded, rows))
        result, is_done = self._run(source_ids, limits, row_numbers, seed, rows, steps=steps)
        return SearchResult(*(array[:count] for array in result)), is_done[:count]


def _padded(constraints):
    """Returns a field of `RowConstraints` padded to powers of two, so that there are few shapes."""
    if is_empty(constraints):
        return constraints
    widths = [(0, padded_rows(size) - size) for size in constraints.shape]
    return np.pad(constraints, widths, constant_values=NO_TOKEN)
