"""The decoder-only Transformer: a language model."""

import dataclasses
import operator
import reprlib
import warnings
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from kformer.layers import padding_mask, segment_mask, segment_positions
from kformer.layers.shapes import align_right
from kformer.models.config import DecoderArguments, DecoderConfig, check_packing, describes
from kformer.models.output import TokenOutput
from kformer.models.sequence_model import SequenceModel
from kformer.models.stacks import DecoderStack, token_embedding
from kformer.utils.checks import check_whole
from kformer.utils.recent import Recent
from kformer.utils.rows import pad_rows, up_to_end
from kformer.utils.signatures import takes


class PromptCache(NamedTuple):
    """A language model's state between two steps of a search, for R rows of B prompts."""

    layers: Any  # a DecoderLayerCache per layer
    left_padding: Any  # int32 [R], padding in front of each row's prompt
    last_token: Any  # int32 [R], the prompt's last token, the input of the first step
    prompt_length: Any  # int32 scalar, padding included
    output_kernel: Any = None  # as in DecoderCache
    output_bias: Any = ()

    def reorder(self, rows):
        """Returns the cache with its rows reordered: row i is the former row `rows[i]`."""
        return self._replace(
            layers=tuple(layer.reorder(rows) for layer in self.layers),
            left_padding=ops.take(self.left_padding, rows, axis=0),
            last_token=ops.take(self.last_token, rows, axis=0),
        )

    def select(self, sentences, rows):
        """The cache of some prompts, whose rows are `rows`."""
        return self.reorder(rows)


@describes(DecoderConfig)
@keras.saving.register_keras_serializable(package="kformer")
class TransformerDecoder(SequenceModel):
    """A causal language model, which predicts the next token at each position.

    A functional Keras model over `{"token_ids": [B, T]}` with the output `[B, T, V]`. A sequence
    starts with the start token. Its labels are the same tokens shifted by one position, and then
    the end token. Padding is at the end of a row, where the causal mask hides it.

    Args:
        {options}
        dtype: str or Keras dtype policy, default the global policy. The policy of the layers.
        name: str, default "transformer_decoder".
        trainable: bool, default True. Whether training changes the weights.

    Call arguments:
        inputs: dict of `token_ids`, integer `[B, T]`; for packed rows also `segments` `[B, T]`, the
            sequence that each token belongs to (0 for padding).
        training: bool, default `None`. Whether dropout is applied.

    Returns:
        Logits `[B, T, V]`.

    Raises:
        ValueError: an option is unknown or has a bad value, or inputs have a wrong shape.

    Example:
    ```python
    sizes = {"num_layers": 2, "hidden_dim": 64, "num_heads": 4}
    model = kformer.TransformerDecoder(8000, position_encoding="rope", **sizes)
    model.compile("adam", kformer.MaskedCrossentropy())
    ids = np.full((8, 6), 17)
    model.fit({"token_ids": ids[:, :-1]}, ids[:, 1:], verbose=0)
    model.generate([[2, 17, 99]], max_new_tokens=4, beam_size=4)
    ```

    References:
        Vaswani et al. 2017, "Attention is all you need"; Radford et al. 2018, "Improving language
        understanding by generative pre-training".
    """

    token_inputs = ("token_ids",)
    continues_source = True  # A search passes a prompt as its source.

    @takes(DecoderArguments)
    def __init__(
        self, vocabulary_size, *, dtype=None, name="transformer_decoder", trainable=True, **options
    ):
        config = DecoderConfig.of({"vocabulary_size": vocabulary_size, **options})
        policy = keras.dtype_policies.get(dtype)
        network = LanguageNetwork(config, policy)
        inputs = {"token_ids": keras.Input((None,), dtype="int32", name="token_ids")}
        logits = network.output.project(network.hidden(inputs["token_ids"]))
        arguments = {"inputs": inputs, "outputs": logits, "name": name, "trainable": trainable}
        super().__init__(config, network, policy, **arguments)
        self.pad_id, self.start_id, self.end_id = config.pad_id, config.start_id, config.end_id
        self.vocabulary_size = self.target_vocabulary_size = config.vocabulary_size
        is_learned = config.position_encoding == "learned"
        self._last_position = config.max_length - 1 if is_learned else 2**31 - 1
        self._searchers = Recent()

    def call(self, inputs, training=None, mask=None):
        if not isinstance(inputs, dict) or "token_ids" not in inputs:
            return super().call(inputs, training=training, mask=mask)
        token_ids, segments = ops.cast(inputs["token_ids"], "int32"), self._segments(inputs)
        hidden = self.network.hidden(token_ids, training=training, segments=segments)
        output = self.network.output
        return (output.before_projection if self.skips_logits else output.project)(hidden)

    def output_table(self):
        return self.network.output.table()

    def _segments(self, inputs):
        if "segments" not in inputs:
            return None
        check_packing(self.config.to_dict())
        return ops.cast(inputs["segments"], "int32")

    def inspect(self, inputs):
        """Runs one forward pass and returns the hidden states and attention of every layer.

        Args:
            inputs: dict, as for a call.

        Returns:
            Dict with `logits` `[B, T, V]` and lists with an entry per layer:
            `decoder_hidden_states` `[B, T, D]` (one more at the front, the embeddings) and
            `decoder_attention_scores` `[B, N, T, T]`.
        """
        record = {}
        token_ids = ops.convert_to_tensor(inputs["token_ids"], dtype="int32")
        segments = self._segments(inputs)
        hidden = self.network.hidden(token_ids, training=False, record=record, segments=segments)
        return {"logits": self.network.output.project(hidden), **record}

    # Search.

    def generate(self, prompts, *, max_new_tokens=64, **options):
        """Continues prompts.

        Args:
            prompts: list of lists of int. Token ids without the start token, which is put in front
                of each; a prompt may be empty.
            max_new_tokens: int, default 64. The most tokens of a continuation, without the end
                token. It also ends at the model's `max_length`. The limit of a prompt does not
                depend on the others. A prompt that is too long for a continuation loses its
                beginning, with a warning, as in an exported SavedModel.
            **options: fields of `kformer.decoding.SearchOptions`, such as `sampling`, `top_p` or
                `seed`. `beam_size` is 1 by default, which is greedy search.

        Returns:
            For each prompt the list of the ids that follow it, without the end token; with `n_best`
            above 1 a list of such lists, best first.

        Raises:
            ValueError: a prompt has an id that the vocabulary lacks, or a value is bad.
            TypeError: there is no such search option.

        Example:
        ```python
        sizes = {"num_layers": 2, "hidden_dim": 64, "num_heads": 4}
        model = kformer.TransformerDecoder(8000, **sizes)
        model.generate([[17, 99], []], max_new_tokens=20, sampling=True, top_p=0.9, seed=1)
        ```
        """
        # Not at the top of the module: kformer.decoding imports kformer.models.
        from kformer.decoding import Searcher

        check_whole("max_new_tokens", max_new_tokens)
        settings = self.continuation_options(min(max_new_tokens, self.max_length - 1), options)
        prompts = self._checked_prompts(prompts, settings)
        limits = self.continuation_limits(np.array([len(row) for row in prompts]), settings)
        key = settings.compiled_part
        searcher = self._searchers.get_or_make(key, lambda: Searcher(self, key))
        ids = pad_rows([[self.start_id, *prompt] for prompt in prompts], self.pad_id)
        ids = searcher(ids, options=settings, limits=limits).ids.tolist()
        end = {"end_id": self.end_id, "pad_id": self.pad_id, "with_end": False}
        continuations = [[up_to_end(row, **end) for row in rows] for rows in ids]
        return [rows[0] for rows in continuations] if settings.n_best == 1 else continuations

    def _checked_prompts(self, prompts, settings):
        """The prompts as lists of int, cut where too long. Raises a ValueError for a bad token."""
        try:
            prompts = [[operator.index(token) for token in prompt] for prompt in prompts]
        except TypeError:
            raise ValueError(
                "Prompts are lists of token ids, one list for each, such as [[5, 6]], but "
                f"{reprlib.repr(prompts)} was given."
            ) from None
        size = self.vocabulary_size
        for token in (token for prompt in prompts for token in prompt):
            if not 0 <= token < size or token == self.pad_id:
                raise ValueError(
                    f"A prompt holds {token}, which is not a token of this vocabulary of {size}."
                )
        longest, cut_length = self.prompt_lengths(settings)
        for index, prompt in enumerate(prompts):
            if len(prompt) > longest:
                warnings.warn(
                    f"Prompt {index} has {len(prompt)} tokens, but the model's max_length of "
                    f"{self.max_length} allows {longest}: only its last {cut_length} are read.",
                    stacklevel=3,
                )
                prompts[index] = prompt[len(prompt) - cut_length :]
        return prompts

    def prompt_lengths(self, settings):
        """Returns how many tokens a prompt may have, and to how many a longer one is cut.

        A prompt must leave capacity for the shortest continuation. A longer prompt is cut so that
        half of `max_length` is left, or the length of the longest continuation if that is less.

        Args:
            settings: `SearchOptions`, from `continuation_options`.

        Returns:
            Two int, which do not count the start token.
        """
        capacity, shortest = self._capacity(settings), settings.least_limit
        usual = max(shortest, min(settings.max_length, self.max_length // 2))
        return max(capacity - shortest, 0), max(capacity - usual, 0)

    def continuation_limits(self, lengths, settings):
        """Returns the most tokens that may follow each prompt, as a search takes them.

        Args:
            lengths: integer array or tensor `[B]`. The number of tokens of each prompt without the
                start token, at most `prompt_lengths(settings)[0]`.
            settings: `SearchOptions`, from `continuation_options`.

        Returns:
            Integer array or tensor `[B]`.
        """
        minimum = np.minimum if isinstance(lengths, np.ndarray) else ops.minimum
        return minimum(self._capacity(settings) - lengths, settings.max_length)

    def _capacity(self, settings):
        """Tokens that fit after the start token; "huggingface" counts the end token too."""
        return self.max_length - 1 - (settings.mode == "huggingface")

    def continuation_options(self, max_new_tokens, options):
        """Returns the `SearchOptions` for continuing prompts.

        Args:
            max_new_tokens: int. The most tokens of a continuation, without the end token.
            options: dict. Fields of `SearchOptions`; `beam_size` is 1 by default.

        Raises:
            ValueError: a value is bad, or a field is given that `max_new_tokens` sets.
            TypeError: there is no such field.
        """
        from kformer.decoding import SearchOptions

        limits = ", ".join(sorted(options.keys() & {"max_length", "length_ratio", "length_offset"}))
        if limits:
            raise ValueError(f"{limits}: max_new_tokens limits a continuation; leave this out.")
        names = {field.name for field in dataclasses.fields(SearchOptions)}
        if unknown := ", ".join(sorted(options.keys() - names)):
            message = f"Unknown search option {unknown}; kformer.decoding.SearchOptions lists them."
            raise TypeError(message)
        # The library of that mode counts the end token.
        limit = max_new_tokens - (options.get("mode") == "huggingface")
        options = {"beam_size": 1, **options, "length_ratio": 0.0, "length_offset": limit}
        return SearchOptions(**options, max_length=limit)

    def encode(self, source_ids):
        """Returns the prompts and the mask of their real tokens, with which a search begins.

        Args:
            source_ids: integer tensor `[B, S]`. Prompts, padded with `pad_id`.

        Returns:
            The same tensor, and a boolean tensor `[B, S]`.
        """
        return source_ids, padding_mask(source_ids, self.pad_id)

    def init_cache(self, encoded, source_mask, rows=None, max_length=None, shortlist=None):
        """Makes the cache of a search, with all tokens of the prompts except the last of each.

        Args:
            encoded, source_mask: tensors `[B, S]`, from `encode`.
            rows: int or scalar tensor, default `None`. R, the rows of the decoder's batch, a
                multiple of B (the beams of a prompt are neighbours); `None` for B.
            max_length: int, default `None`. The capacity of a static cache in new tokens; `None`
                for a growing cache.
            shortlist: int array `[C]`, default `None`. Tokens whose logits are computed; `None`
                for all.

        Returns:
            `PromptCache`.
        """
        sentences, length = ops.shape(encoded)
        # The prompts are aligned to the right, so that all end at one index.
        lengths = ops.sum(ops.cast(source_mask, "int32"), axis=1)
        prompts, positions = align_right(encoded, lengths, self.pad_id)
        left_padding = length - lengths
        slots = None if max_length is None else length - 1 + max_length
        layers = self.network.stack.init_caches(None, sentences, slots)
        positions = ops.maximum(positions[:, :-1], 0)
        _, layers = self.network.run(prompts[:, :-1], layers, left_padding, positions)
        output = self.network.output
        kernel, bias = output.kernel(shortlist), output.bias_of(shortlist)
        last_token, length = prompts[:, -1], ops.cast(length, "int32")
        cache = PromptCache(layers, left_padding, last_token, length, kernel, bias)
        if rows is None:
            return cache
        width = rows // ops.maximum(sentences, 1)  # A batch may be empty.
        return cache.reorder(ops.arange(rows, dtype="int32") // width)

    def decode_step(self, target_ids, cache, index):
        """Runs the decoder over new tokens.

        Args:
            target_ids: integer tensor `[R, T]`. The T tokens (usually one) that follow those in the
                cache. At index 0 the prompt's last token replaces the first of them, for which a
                search passes the start token.
            cache: `PromptCache`, from `init_cache` or an earlier step.
            index: int or scalar tensor. The number of tokens after the prompt.

        Returns:
            Logits `[R, T, V]` and the cache with the new tokens.
        """
        target_ids = ops.cast(target_ids, "int32")
        first = ops.where(ops.equal(index, 0), cache.last_token, target_ids[:, 0])
        target_ids = ops.concatenate([ops.expand_dims(first, 1), target_ids[:, 1:]], axis=1)
        slots = cache.prompt_length - 1 + ops.cast(index, "int32")
        slots = slots + ops.arange(ops.shape(target_ids)[1], dtype="int32")
        # A finished row runs on beside longer ones, but within the table of learned positions.
        positions = ops.clip(slots - ops.expand_dims(cache.left_padding, 1), 0, self._last_position)
        hidden, layers = self.network.run(target_ids, cache.layers, cache.left_padding, positions)
        logits = self.network.output.project(hidden, cache.output_kernel, cache.output_bias)
        return logits, cache._replace(layers=layers)


class LanguageNetwork:
    """The layers of a `TransformerDecoder`, in a plain object like `Network`."""

    def __init__(self, config, policy):
        self.embedding = token_embedding(config, policy)
        self.stack = DecoderStack(config, config.num_layers, policy, cross_attention=False)
        self.output = TokenOutput(config, config.vocabulary_size, self.embedding, policy)

    def hidden(self, token_ids, training=None, record=None, segments=None):
        """Returns the input `[B, T, D]` of the projection for ids `[B, T]`."""
        masks, positions = {}, {}
        if segments is not None:
            masks = {"attention_mask": segment_mask(segments, segments)}
            positions = {"positions": segment_positions(segments)}
        x = self.embedding(token_ids, **positions, training=training)
        return self.stack(x, None, masks, training=training, record=record)[0]

    def run(self, token_ids, caches, left_padding, positions):
        """Runs ids `[R, T]` after those in the caches. Returns `[R, T, D]` and the new caches."""
        x = self.embedding(token_ids, positions=positions, training=False)
        return self.stack(x, None, {"left_padding": left_padding}, training=False, caches=caches)
