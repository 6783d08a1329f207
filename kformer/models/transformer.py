"""The encoder-decoder Transformer."""

import zlib
from dataclasses import dataclass, field

import keras
from keras import ops

from kformer.models.config import TransformerArguments, TransformerConfig, check_packing, describes
from kformer.models.guided_alignment import guided_recording
from kformer.models.network import DecoderCache, Network
from kformer.models.presets import PRESETS
from kformer.models.sequence_model import SequenceModel
from kformer.models.token_tables import add_rows, with_tables
from kformer.utils.signatures import takes


@dataclass(frozen=True, kw_only=True)
class _Preset:
    preset: str = field(kw_only=False)


@dataclass(frozen=True, kw_only=True)
class PresetArguments(TransformerArguments, _Preset):
    """The arguments of `Transformer.from_preset`."""


@describes(TransformerConfig)
@keras.saving.register_keras_serializable(package="kformer")
class Transformer(SequenceModel):
    """The encoder-decoder Transformer of "Attention is all you need".

    A functional Keras model over `{"source_ids": [B, S], "target_ids": [B, T]}` with the output
    `[B, T, V]`. The target ids start with the start token and lack the end token (`kformer.data`
    shifts them). Tokens equal to `pad_id` are padding. In the source it is masked. In the target
    the causal mask hides it from the tokens before it, and the loss ignores it.

    Rows may hold several pairs one after the other, as `kformer.data.ParallelDataset(packed=True)`
    makes them. Then the inputs also have `source_segments` and `target_segments`. Attention stays
    within a pair and positions are counted within each pair, so that a pair has the same logits as
    in a row of its own. The model itself keeps nothing of this.

    Training, scoring and cached decoding run the same layers: `model(inputs)` runs `encode` and
    then the decoder over all target positions; `decode_step` runs the decoder over new positions
    only. For speed, searches on TensorFlow and PyTorch may use a second implementation of the
    decoder, `kformer/decoding/fast/`, which `tests/decoding/fast/test_decoder.py` compares with the
    layers.

    Args:
        vocabulary_size: int. V of the source, and of the target unless `target_vocabulary_size` is
            given.
        {options}
        dtype: str or Keras dtype policy, default the global policy. The policy of the layers.
        name: str, default "transformer".
        trainable: bool, default True. Whether training changes the weights.

    Call arguments:
        inputs: dict of integer tensors `source_ids` `[B, S]` and `target_ids` `[B, T]`; for packed
            rows also `source_segments` `[B, S]` and `target_segments` `[B, T]`, the pair that each
            token belongs to (0 for padding).
        training: bool, default `None`. Whether dropout is applied.

    Returns:
        Logits, float tensor `[B, T, V]`. Those at position t predict the token after
        `target_ids[:, t]`.

    Raises:
        ValueError: an option is unknown or has a bad value, or inputs have wrong shapes or lack the
            segments of one side.

    Example:
    ```python
    model = kformer.Transformer.from_preset("tiny", vocabulary_size=8000)
    ids = np.ones((64, 20), "int32")
    model({"source_ids": ids, "target_ids": ids}).shape  # (64, 20, 8000)
    ```

    References:
        Vaswani et al. 2017, "Attention is all you need".
    """

    token_inputs = ("source_ids", "target_ids")

    @takes(TransformerArguments)
    def __init__(
        self, vocabulary_size, *, dtype=None, name="transformer", trainable=True, **options
    ):
        config = TransformerConfig.of({"vocabulary_size": vocabulary_size, **options})
        policy = keras.dtype_policies.get(dtype)
        network = Network(config, policy)
        inputs = {
            name: keras.Input((None,), dtype="int32", name=name) for name in self.token_inputs
        }
        logits = network.decode(inputs["target_ids"], *network.encode(inputs["source_ids"]))
        arguments = {"inputs": inputs, "outputs": logits, "name": name, "trainable": trainable}
        super().__init__(config, network, policy, **arguments)
        self.pad_id, self.start_id, self.end_id = config.pad_id, config.start_id, config.end_id
        self.vocabulary_size = config.vocabulary_size
        self.target_vocabulary_size = config.target_vocabulary_size or config.vocabulary_size

    @classmethod
    @takes(PresetArguments)
    def from_preset(cls, preset, vocabulary_size=None, **options) -> "Transformer":
        """Creates a model of recommended size with new, random weights.

        For trained weights, use `kformer.Translator.load` or `kformer.Translator.from_pretrained`.

        Args:
            preset: str. `"tiny"`, `"small"`, `"base"` or `"big"`, which have norms before the
                sub-layers and rotary positions; `"paper_base"` or `"paper_big"`, the models of
                "Attention is all you need". `kformer.models.PRESETS` has their options and sources.
            vocabulary_size: int. V, which has no default.
            **options: other arguments of `Transformer`, which override the preset's.

        Returns:
            `Transformer`.

        Raises:
            ValueError: the preset is unknown, or a value is bad.

        Example:
        ```python
        model = kformer.Transformer.from_preset("tiny", vocabulary_size=8000, dropout=0.1)
        ```
        """
        if preset not in PRESETS:
            raise ValueError(
                f"preset must be one of {', '.join(PRESETS)}, but {preset!r} was given: presets "
                "have new weights, and kformer.Translator.from_pretrained(name) reads trained ones."
            )
        return cls(vocabulary_size, **{**PRESETS[preset].config, **options})

    def with_more_tokens(self, vocabulary_size, target_vocabulary_size=None, *, seed=0):
        """Copies the model with further tokens, such as those of `Tokenizer.with_languages`.

        The logits of the old tokens stay as they are. The rows of new tokens, in embeddings and
        the output projection, are random numbers with the mean of the old rows and half their
        deviation, so that new tokens take little probability from the old ones.

        Args:
            vocabulary_size: int. V of the source, and of the target unless the next is given.
            target_vocabulary_size: int or `None`, default `None`. V of the target.
            seed: int, default 0. The seed of the new rows.

        Returns:
            `Transformer`, not compiled.

        Raises:
            ValueError: a size is smaller than that of the model, or two sizes are given to a model
                whose sides share a table.

        Example:
        ```python
        model = kformer.Transformer(1000)
        larger = model.with_more_tokens(1200)
        ```
        """
        target_vocabulary_size = target_vocabulary_size or vocabulary_size
        sizes = {"source": vocabulary_size, "target": target_vocabulary_size}
        old_sizes = {"source": self.vocabulary_size, "target": self.target_vocabulary_size}
        for side, size in sizes.items():
            if size < old_sizes[side]:
                raise ValueError(
                    f"The model has {old_sizes[side]:,} {side} tokens, more than {size:,}: give a "
                    "size that is larger (kformer trim makes one smaller)."
                )
        if self.config.share_embeddings and vocabulary_size != target_vocabulary_size:
            raise ValueError(
                f"Both sides of the model share one table of tokens: give one size, not "
                f"{vocabulary_size:,} and {target_vocabulary_size:,}."
            )

        def edit(table, side, name):
            return add_rows(table, sizes[side], [seed, zlib.crc32(name.encode())])

        changes = {
            "vocabulary_size": vocabulary_size,
            "target_vocabulary_size": target_vocabulary_size,
        }
        return with_tables(self, changes, edit)

    # Search.

    def encode(self, source_ids):
        """Encodes source sentences.

        Args:
            source_ids: integer tensor `[B, S]`, padded with `pad_id`.

        Returns:
            The encoder's output `[B, S, D]` and the mask of real tokens, boolean `[B, S]`.
        """
        return self.network.encode(source_ids, training=False)

    def init_cache(self, encoded, source_mask, rows=None, max_length=None, shortlist=None):
        """Makes the cache that a search begins with: no target tokens yet.

        It has the keys and values of the source.

        Args:
            encoded: float tensor `[B, S, D]`, from `encode`.
            source_mask: boolean tensor `[B, S]`, from `encode`.
            rows: int or scalar tensor, default `None`. R, the rows of the decoder's batch, a
                multiple of B (the beams of a sentence are neighbours); `None` for B.
            max_length: int, default `None`. The capacity in tokens of a static cache, which JAX and
                XLA need; `None` for a growing cache.
            shortlist: int array `[C]`, default `None`. Ids of the target vocabulary: each step
                returns the logits of these tokens only, in this order. `None` for all tokens.

        Returns:
            `DecoderCache`.
        """
        layers = self.network.decoder.init_caches(encoded, rows, max_length)
        output = self.network.output
        kernel, bias = output.kernel(shortlist), output.bias_of(shortlist)
        return DecoderCache(layers, source_mask, kernel, bias)

    def decode_step(self, target_ids, cache, index):
        """Runs the decoder over new target tokens.

        Args:
            target_ids: integer tensor `[R, T]`. The T tokens (usually one) that follow those in the
                cache.
            cache: `DecoderCache`, from `init_cache` or an earlier step.
            index: int or scalar tensor. The number of tokens in the cache.

        Returns:
            Logits `[R, T, V]` (with a shortlist `[R, T, C]`), and the cache with the new tokens.
        """
        return self.network.decode(
            target_ids, None, cache.source_mask, training=False, cache=cache, start_index=index
        )

    def inspect(self, inputs):
        """Runs one forward pass and returns the hidden states and attention of every layer.

        The model does not change.

        Args:
            inputs: dict of integer tensors or arrays, as for a call.

        Returns:
            Dict with `logits` `[B, T, V]` and lists with an entry per layer:
            `encoder_hidden_states` `[B, S, D]` and `decoder_hidden_states` `[B, T, D]` (with one
            more entry at the front, the embeddings), `encoder_attention_scores` `[B, N, S, S]`,
            `decoder_attention_scores` `[B, N, T, T]` (not of an SSRU), `cross_attention_scores`
            `[B, N, T, S]`.
        """
        record = {}
        source_ids, target_ids = (
            ops.convert_to_tensor(inputs[key], dtype="int32") for key in self.token_inputs
        )
        source_segments, segments = self._segments(inputs)
        options = {"training": False, "record": record}
        encoded = self.network.encode(source_ids, **options, segments=source_segments)
        logits = self.network.decode(target_ids, *encoded, **options, segments=segments)
        return {"logits": logits, **record}

    def call(self, inputs, training=None, mask=None):
        if not isinstance(inputs, dict) or not set(self.token_inputs) <= inputs.keys():
            return super().call(inputs, training=training, mask=mask)
        # The functional graph may embed the target before the source. But the source must be first,
        # since each use of a shared embedding advances the random numbers of its dropout.
        source_ids, target_ids = (ops.cast(inputs[key], "int32") for key in self.token_inputs)
        source_segments, segments = self._segments(inputs)
        encoded = self.network.encode(source_ids, training=training, segments=source_segments)
        options = guided_recording(self) if training and "alignment" in inputs else {}
        options |= {"project": not self.skips_logits, "segments": segments}
        return self.network.decode(target_ids, *encoded, training=training, **options)

    def output_table(self):
        return self.network.output.table()

    def _segments(self, inputs):
        """Returns (source segments, both), or `(None, None)` for unpacked rows."""
        names = [name for name in ("source_segments", "target_segments") if name in inputs]
        if not names:
            return None, None
        if len(names) == 1:
            raise ValueError(
                "Packed rows need the segments of both sides: give source_segments and "
                "target_segments, or neither."
            )
        check_packing(self.config.to_dict())
        segments = tuple(ops.cast(inputs[name], "int32") for name in names)
        return segments[0], segments
