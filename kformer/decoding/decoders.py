"""The interface between a search and a model.

A search never sees a model. It takes a step function, and the state that the function carries from
step to step; both come from a `Decoder`.
"""

import abc
from typing import Any, NamedTuple

from keras import ops

from kformer.decoding.constraints import SpecialTokens
from kformer.decoding.repetition import NO_TOKEN
from kformer.layers.shapes import align_right
from kformer.models.ensemble import mean_logits
from kformer.utils import backend
from kformer.utils.backend import take


class Decoder(abc.ABC):
    """A model as a search sees it: the beginning of a batch, and one step at a time.

    `begin` encodes a batch of B sources and returns a step function and its first state, with
    R = B K rows: K rows per sentence (beams or samples), which are neighbours.

    The step function, `step(ids, state)`, takes the newest token of each row, int32 `[R]` (the
    start token at first), and returns logits `[R, V]` for the next token and the new state. The
    logits are of any float dtype, and may differ from log-probabilities by a number per row. With a
    shortlist of C tokens they are `[R, C]`, in the order of the list.

    The state is a nested structure (dict, list, tuple, `NamedTuple`) of tensors with rows first.
    Any other object in it has a method `reorder(rows)`, and a method `select(sentences, rows)` if
    it also keeps tensors with another first axis, such as one entry per sentence. `reorder` and
    `select` of this module treat a whole state. Structure and dtypes never change. Of the shapes
    only the first axis may change, and the third of a tensor of rank 4 (see
    `kformer.utils.backend.while_loop`).

    A search may assume:

    - The logits of a row depend on its sentence and on its own tokens alone.
    - Row i may become what row j of the same sentence was (`reorder`), and whole sentences may be
      dropped (`select`); the rows that remain are not affected.
    - A row that is done may be fed any token. Its logits are ignored.

    A decoder may assume:

    - It is asked for at most `steps` steps.
    - Rows stay with their sentence, and each sentence keeps all its K rows.
    - The weights do not change during the search.

    Attributes:
        name: str. `"layers"`, `"fast"` or `"ensemble"`.
        reason: str or `None`. Why the fast decoder is not used; `None` where it is.
        special: `SpecialTokens` of the model.
        vocabulary_size: int. V. A search over lists of tokens needs it.

    Example:
        ```python
        translator = kformer.Translator.load("runs/en-de")
        searcher = kformer.decoding.Searcher(translator.model, kformer.decoding.SearchOptions())
        searcher.decoder.name  # "fast" on TensorFlow and PyTorch, "layers" on JAX
        searcher.decoder.reason  # None, or why it is not the fast one
        ```
    """

    name = "decoder"
    reason = None
    special = SpecialTokens()
    vocabulary_size = None

    @abc.abstractmethod
    def begin(self, source_ids, width, steps, shortlist=None):
        """Encodes the sources; returns the step function and its first state.

        Args:
            source_ids: int32 tensor `[B, S]`, padded.
            width: int. K, rows per sentence.
            steps: int or scalar tensor. The most steps that will follow.
            shortlist: int array `[C]`, default `None`. The tokens whose logits are computed, in
                this order; `None` for all.

        Returns:
            The step function for R = B K rows, and its state.
        """

    def begin_changed(self, change, *arguments):
        """As `begin`, with a change of the logits; an ensemble changes those of each model.

        Args:
            change: function of a step function and its first state, which returns others.
            arguments: those of `begin`.

        Returns:
            As `begin`.
        """
        return change(*self.begin(*arguments))

    def prompt(self, source_ids):
        """Returns the tokens before each hypothesis, which a penalty on repetition counts.

        Args:
            source_ids: int32 tensor `[B, S]`, padded.

        Returns:
            int32 tensor `[B, P]`: the start token; for a language model the tokens that it
            continues, right-aligned, with `NO_TOKEN` in front.
        """
        return ops.full((ops.shape(source_ids)[0], 1), self.special.start_id, dtype="int32")

    def __repr__(self):
        return f"{type(self).__name__}(name={self.name!r}, reason={self.reason!r})"


class DecoderState(NamedTuple):
    """The state of one model's decoder, carried from step to step."""

    cache: Any  # an object with `reorder` and `select`, as kformer.models.DecoderCache
    index: Any  # int32 scalar: the number of tokens in the cache

    def reorder(self, rows):
        """Returns the state with its rows reordered: row i is the former row `rows[i]`."""
        return DecoderState(self.cache.reorder(rows), self.index)

    def select(self, sentences, rows):
        """Returns the state of some sentences alone; their rows are `rows`."""
        return DecoderState(self.cache.select(sentences, rows), self.index)


class LayerDecoder(Decoder):
    """Runs a model's own layers. It suits every model, on every backend.

    Args:
        model: a `Transformer`, a `TransformerDecoder`, or any object with their methods `encode`,
            `init_cache` and `decode_step`.
        reason: str, default `None`. Why the fast decoder is not used.
    """

    name = "layers"

    def __init__(self, model, reason=None):
        self.model, self.reason, self.special = model, reason, SpecialTokens.of(model)
        self.vocabulary_size = getattr(model, "target_vocabulary_size", None)

    def begin(self, source_ids, width, steps, shortlist=None):
        encoded, source_mask = self.model.encode(source_ids)
        cache = self.model.init_cache(
            encoded,
            source_mask,
            rows=ops.shape(source_ids)[0] * width,
            max_length=steps if backend.uses_static_shapes() else None,
            shortlist=shortlist,
        )
        return self.step, DecoderState(cache, ops.zeros((), dtype="int32"))

    def prompt(self, source_ids):
        if getattr(self.model, "continues_source", False):
            lengths = ops.sum(ops.cast(source_ids != self.special.pad_id, "int32"), axis=1)
            return align_right(source_ids, lengths, NO_TOKEN)[0]
        return super().prompt(source_ids)

    def step(self, ids, state):
        """Returns logits `[R, V]` after the tokens `ids` `[R]`, and the new `DecoderState`."""
        logits, cache = self.model.decode_step(ops.expand_dims(ids, 1), state.cache, state.index)
        return logits[:, 0], DecoderState(cache, state.index + 1)


class EnsembleDecoder(Decoder):
    """Several decoders of one vocabulary, whose probabilities are averaged.

    Its state is the tuple of their states.

    Args:
        decoders: list of `Decoder`.
    """

    name = "ensemble"

    def __init__(self, decoders):
        self.decoders = list(decoders)
        self.special = self.decoders[0].special
        self.vocabulary_size = self.decoders[0].vocabulary_size
        reasons = (decoder.reason for decoder in self.decoders)
        self.reason = "; ".join(dict.fromkeys(filter(None, reasons))) or None

    def begin(self, source_ids, width, steps, shortlist=None):
        return self.begin_changed(lambda *start: start, source_ids, width, steps, shortlist)

    def begin_changed(self, change, *arguments):
        starts = [decoder.begin_changed(change, *arguments) for decoder in self.decoders]
        functions, states = zip(*starts, strict=True)

        def step(ids, states):
            pairs = [run(ids, state) for run, state in zip(functions, states, strict=True)]
            logits, states = zip(*pairs, strict=True)
            return mean_logits(logits), states

        return step, states


class PrefixState(NamedTuple):
    """The state of a decoder whose rows begin with tokens of their own."""

    decoder: Any  # the state of the step function
    prefix: Any  # int32 [R, P]
    index: Any  # int32 scalar: the number of tokens so far

    def reorder(self, rows):
        """Returns the state with its rows reordered: row i is the former row `rows[i]`."""
        return PrefixState(reorder(self.decoder, rows), take(self.prefix, rows), self.index)

    def select(self, sentences, rows):
        """Returns the state of some sentences alone; their rows are `rows`."""
        decoder = select(self.decoder, sentences, rows)
        return PrefixState(decoder, take(self.prefix, rows), self.index)


def with_prefix(step, state, prefix):
    """Returns a step function, and its state, that let each row begin with its prefix alone.

    Args:
        step: step function, as of `Decoder`.
        state: its state.
        prefix: int32 tensor `[R, P]`, filled up with `NO_TOKEN`. Its tokens have the
            log-probability 0, so a search must not forbid them.
    """

    def forced(logits, state):
        token = take(state.prefix, state.index, axis=1)[:, None]
        is_token = ops.arange(ops.shape(logits)[-1], dtype="int32") == token
        only = ops.cast(ops.where(is_token, 0.0, float("-inf")), logits.dtype)
        return ops.where(token == NO_TOKEN, logits, only)

    def prefixed(ids, state):
        logits, decoder = step(ids, state.decoder)
        # After the prefix it costs nothing.
        is_within = state.index < prefix.shape[1]
        logits = ops.cond(is_within, lambda: forced(logits, state), lambda: logits)
        return logits, PrefixState(decoder, state.prefix, state.index + 1)

    return prefixed, PrefixState(state, prefix, ops.zeros((), dtype="int32"))


def reorder(state, rows):
    """Returns the state with its rows reordered: row i is the former row `rows[i]`.

    Args:
        state: an object with a `reorder` method, or a nested structure of tensors with rows first.
        rows: int32 tensor `[R]`.

    Returns:
        A state of the same structure.
    """
    if hasattr(state, "reorder"):
        return state.reorder(rows)
    return _map_values(state, lambda x: reorder(x, rows), lambda x: take(x, rows))


def select(state, sentences, rows):
    """Returns the state of some sentences alone.

    Args:
        state: as for `reorder`. An object that also keeps tensors with another first axis has a
            method `select`, too.
        sentences: int32 tensor `[C]`. The indices of the sentences.
        rows: int32 tensor `[R]`. The indices of their rows.

    Returns:
        A state of the same structure.
    """
    if hasattr(state, "reorder"):  # `select` alone is no sign: PyTorch's tensors have another one.
        return state.select(sentences, rows) if hasattr(state, "select") else state.reorder(rows)
    return _map_values(state, lambda x: select(x, sentences, rows), lambda x: take(x, rows))


def _map_values(state, of_value, of_tensor):
    """Applies `of_value` to each value of a structure, or `of_tensor` to a tensor."""
    if isinstance(state, dict):
        return {key: of_value(value) for key, value in state.items()}
    if hasattr(state, "_fields"):  # A NamedTuple takes its values one by one.
        return type(state)(*map(of_value, state))
    if isinstance(state, tuple | list):
        return type(state)(map(of_value, state))
    return of_tensor(state)
