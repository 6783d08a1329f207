"""The encoder-decoder Transformer."""

import keras
from keras import ops

from kformer.layers.counter_hash import drawn_seed
from kformer.models.architecture import check_heads, check_packing, check_sizes
from kformer.models.network import DecoderCache, Network
from kformer.models.presets import PRESETS
from kformer.models.sequence_model import SequenceModel
from kformer.models.variants import VARIANTS
from kformer.utils.checks import check_choice


@keras.saving.register_keras_serializable(package="kformer")
class Transformer(SequenceModel):
    """The Transformer of "Attention is all you need": ids of a source and of the target so far in,
    logits out.

    A functional Keras model over `{"source_ids": [B, S], "target_ids": [B, T]}` with the output
    `[B, T, V]`. The target ids start with the start token and lack the end token (`kformer.data`
    shifts them). Padding is told by `pad_id`: in the source it is masked; in the target the causal
    mask hides it from what stands before, and the loss leaves it out.

    Rows may hold several pairs behind each other, as `kformer.data.ParallelDataset(packed=True)`
    makes them. Then the inputs also have `source_segments` and `target_segments`: attention stays
    inside a pair, positions begin anew with each, and the logits of a pair are those that it has in
    a row of its own. Nothing of this is kept in the model.

    Training, scoring and cached decoding run the same layers: `model(inputs)` is one pass of
    `encode` and of the decoder over all target positions; `decode_step` is that decoder over the
    positions that are new.

    Args:
        vocabulary_size: V of the source, and of the target unless `target_vocabulary_size` is
            given.
        num_encoder_layers, num_decoder_layers: layers of the two stacks.
        hidden_dim: D, the width of the residual stream.
        intermediate_dim: width of the feed-forward networks.
        num_heads: attention heads; they must divide `hidden_dim`.
        dropout: rate on sub-layer outputs and on the embedding sum (the paper's places).
        attention_dropout: rate on attention probabilities.
        activation_dropout: rate inside the feed-forward networks.
        stochastic_depth: rate at which the sub-layers of the last layer are left out for a
            sequence; it grows evenly up to there.
        activation: `"relu"`, `"gelu"`, `"gelu_tanh"` or `"silu"`.
        gated: gated feed-forward networks: GeGLU with gelu, SwiGLU with silu.
        normalize_first: pre-norm; `False` is the paper's post-norm.
        final_norm: whether a norm follows the last layer of each stack; `None` for pre-norm alone,
            which needs it.
        normalization: `"layer_norm"` or `"rms_norm"`.
        layer_norm_epsilon: added to the variance (or to the mean square) in every norm.
        use_bias: whether the linear maps of the layers add a bias.
        head_dim: size of a head; `None` for D / N.
        num_key_value_heads: heads of keys and values, which several heads of queries share
            (grouped-query attention); `None` for N.
        attention_scale: what scores are multiplied by; `None` for 1 / sqrt(H).
        position_encoding: `"sinusoidal"`, `"learned"` or `None`; `"sinusoidal_halves"` and
            `"sinusoidal_fairseq"` are the fixed vectors as published Marian and fairseq models have
            them. Not added to the embeddings, but seen by self-attention are `"rope"` (rotary
            positions), `"alibi"` (scores fall with the distance) and `"t5"` (a learned bias for
            each distance).
        rotary_base, rotary_interleaved: `base` and `interleaved` of
            `kformer.layers.rotate_positions`.
        relative_buckets, relative_max_distance: `num_buckets` and `max_distance` of
            `kformer.layers.RelativePositionBias`.
        attention_kind, attention_window, attention_dilation, global_tokens: `kind` (`"full"`,
            `"local"` or `"linear"`), `window`, `dilation` and `global_tokens` of the
            self-attentions, as in `kformer.layers.MultiHeadAttention`.
        max_length: the longest sequence in tokens that searches and training data should use; with
            learned positions also the size of their table.
        target_vocabulary_size: V of the target if it differs from the source's; then nothing is
            shared between the sides. (Two vocabularies of one size need `share_embeddings=False`.)
        share_embeddings: source and target use one embedding table (joint vocabulary).
        share_output: the output projection uses the target's embedding table.
        scale_embeddings: token vectors are multiplied by sqrt(D), as in the paper.
        scale_output: what is projected to the vocabulary is divided by sqrt(D), as in T5.
        position_offset: the position of a sequence's first token; fairseq's models count from 2.
        normalize_embeddings: as in BART, each side has positions of its own and a layer norm behind
            them.
        output_bias: logits have a bias, as Marian's.
        pad_id, start_id, end_id: ids of the padding, start and end token.
        seed: int, for the initial weights and the dropout; each layer derives its own from it.
            `None` draws one.

    Call arguments:
        inputs: dict of integer tensors `source_ids` `[B, S]` and `target_ids` `[B, T]`; for packed
            rows also `source_segments` `[B, S]` and `target_segments` `[B, T]`, the pair that each
            token belongs to (0 for padding).
        training: bool.

    Returns:
        Logits `[B, T, V]`; position t is the prediction of what follows `target_ids[:, t]`.

    Example:
        >>> model = kformer.Transformer.from_preset("tiny", vocabulary_size=8000)
        >>> model({"source_ids": source_ids, "target_ids": target_ids}).shape
        (64, 20, 8000)

    References:
        Vaswani et al. 2017, "Attention is all you need".
    """

    token_inputs = ("source_ids", "target_ids")

    def __init__(
        self,
        vocabulary_size,
        *,
        num_encoder_layers=6,
        num_decoder_layers=6,
        hidden_dim=512,
        intermediate_dim=2048,
        num_heads=8,
        dropout=0.1,
        attention_dropout=0.0,
        activation_dropout=0.0,
        stochastic_depth=0.0,
        activation="relu",
        gated=False,
        normalize_first=False,
        final_norm=None,
        normalization="layer_norm",
        layer_norm_epsilon=1e-5,
        use_bias=True,
        head_dim=None,
        num_key_value_heads=None,
        attention_scale=None,
        position_encoding="sinusoidal",
        rotary_base=10_000.0,
        rotary_interleaved=False,
        relative_buckets=32,
        relative_max_distance=128,
        attention_kind="full",
        attention_window=None,
        attention_dilation=1,
        global_tokens=0,
        max_length=256,
        target_vocabulary_size=None,
        share_embeddings=True,
        share_output=True,
        scale_embeddings=True,
        scale_output=False,
        position_offset=0,
        normalize_embeddings=False,
        output_bias=False,
        pad_id=0,
        start_id=2,
        end_id=3,
        seed=0,
        dtype=None,
        name="transformer",
        **kwargs,
    ):
        check_sizes(
            vocabulary_size=vocabulary_size,
            target_vocabulary_size=vocabulary_size
            if target_vocabulary_size is None
            else target_vocabulary_size,
            hidden_dim=hidden_dim,
            intermediate_dim=intermediate_dim,
            num_heads=num_heads,
            num_encoder_layers=num_encoder_layers,
            num_decoder_layers=num_decoder_layers,
            max_length=max_length,
        )
        check_heads(hidden_dim, num_heads, head_dim)
        if target_vocabulary_size in (None, vocabulary_size):
            target_vocabulary_size = None
        else:
            share_embeddings = False
        seed = drawn_seed(seed)
        policy = keras.dtype_policies.get(keras.config.dtype_policy() if dtype is None else dtype)
        config = {
            "num_encoder_layers": num_encoder_layers,
            "num_decoder_layers": num_decoder_layers,
            "hidden_dim": hidden_dim,
            "intermediate_dim": intermediate_dim,
            "num_heads": num_heads,
            "dropout": dropout,
            "attention_dropout": attention_dropout,
            "activation_dropout": activation_dropout,
            "stochastic_depth": stochastic_depth,
            "activation": activation,
            "gated": gated,
            "normalize_first": normalize_first,
            "final_norm": final_norm,
            "normalization": normalization,
            "layer_norm_epsilon": layer_norm_epsilon,
            "use_bias": use_bias,
            "head_dim": head_dim,
            "num_key_value_heads": num_key_value_heads,
            "attention_scale": attention_scale,
            "position_encoding": position_encoding,
            "rotary_base": rotary_base,
            "rotary_interleaved": rotary_interleaved,
            "relative_buckets": relative_buckets,
            "relative_max_distance": relative_max_distance,
            "attention_kind": attention_kind,
            "attention_window": attention_window,
            "attention_dilation": attention_dilation,
            "global_tokens": global_tokens,
            "max_length": max_length,
            "target_vocabulary_size": target_vocabulary_size,
            "share_embeddings": share_embeddings,
            "share_output": share_output,
            "scale_embeddings": scale_embeddings,
            "scale_output": scale_output,
            "position_offset": position_offset,
            "normalize_embeddings": normalize_embeddings,
            "output_bias": output_bias,
            "pad_id": pad_id,
            "seed": seed,
        }
        network = Network(vocabulary_size, policy=policy, **config)
        source_ids = keras.Input((None,), dtype="int32", name="source_ids")
        target_ids = keras.Input((None,), dtype="int32", name="target_ids")
        encoded, source_mask = network.encode(source_ids)
        logits = network.decode(target_ids, encoded, source_mask)
        super().__init__(
            inputs={"source_ids": source_ids, "target_ids": target_ids},
            outputs=logits,
            name=name,
            **kwargs,
        )
        self.pad_id, self.start_id, self.end_id = pad_id, start_id, end_id
        self.hidden_dim = hidden_dim
        self.vocabulary_size = vocabulary_size
        self.target_vocabulary_size = target_vocabulary_size or vocabulary_size
        self.max_length = max_length
        self.policy_name = policy.name
        self.network = network
        # Options that came later stand in a file only where they are in use, so that older versions
        # read what they can.
        config = {name: value for name, value in config.items() if value != VARIANTS.get(name, ...)}
        self._config = {
            "vocabulary_size": vocabulary_size,
            **config,
            "start_id": start_id,
            "end_id": end_id,
        }

    @classmethod
    def from_preset(cls, preset, vocabulary_size, **kwargs):
        """A model of a published size.

        Args:
            preset: `"tiny"`, `"small"`, `"base"` or `"big"`; `kformer.models.PRESETS` has their
                sizes and sources.
            vocabulary_size: V.
            **kwargs: any other argument of `Transformer`; it overrides the preset's.
        """
        check_choice("preset", preset, PRESETS)
        return cls(vocabulary_size, **{**PRESETS[preset].config, **kwargs})

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
        """The cache of a search that has not begun: no target tokens, the source's keys and values
        computed.

        Args:
            encoded, source_mask: what `encode` returned.
            rows: rows of the decoder's batch, a multiple of B (beams of one sentence next to each
                other); `None` for B.
            max_length: number of tokens that a static cache has room for, which JAX and XLA need;
                `None` for a growing one.
            shortlist: int array `[C]`, ids of the target vocabulary: the logits of a step are those
                of these tokens alone, in this order. `None` for all.

        Returns:
            `DecoderCache`.
        """
        layers = (
            layer.init_cache(encoded, rows=rows, max_length=max_length)
            for layer in self.network.decoder_layers
        )
        network = self.network
        return DecoderCache(
            tuple(layers),
            source_mask,
            network.output.kernel(shortlist),
            network.output.bias_of(shortlist),
        )

    def decode_step(self, target_ids, cache, index):
        """Runs the decoder over new target tokens.

        Args:
            target_ids: integer tensor `[R, T]`, the T tokens (usually one) that follow those in the
                cache.
            cache: `DecoderCache` from `init_cache` or an earlier step.
            index: int or scalar tensor, the number of tokens in the cache.

        Returns:
            Logits `[R, T, V]` and the cache with the new tokens.
        """
        return self.network.decode(
            target_ids, None, cache.source_mask, training=False, cache=cache, start_index=index
        )

    def inspect(self, inputs):
        """One forward pass that also returns what every layer saw; the model stays as it is.

        Args:
            inputs: as for a call, integer tensors or arrays.

        Returns:
            Dict with `logits` `[B, T, V]` and lists with an entry per layer:
            `encoder_hidden_states` `[B, S, D]` and `decoder_hidden_states` `[B, T, D]` (one more
            entry each: the embeddings come first), `encoder_attention_scores` `[B, N, S, S]`,
            `decoder_attention_scores` `[B, N, T, T]`, `cross_attention_scores` `[B, N, T, S]`.
        """
        record = {}
        source_ids, target_ids = (
            ops.convert_to_tensor(inputs[key], dtype="int32")
            for key in ("source_ids", "target_ids")
        )
        source_segments, segments = self._segments(inputs)
        encoded, source_mask = self.network.encode(
            source_ids, training=False, record=record, segments=source_segments
        )
        logits = self.network.decode(
            target_ids, encoded, source_mask, training=False, record=record, segments=segments
        )
        return {"logits": logits, **record}

    def call(self, inputs, training=None, mask=None):
        if not isinstance(inputs, dict) or not {"source_ids", "target_ids"} <= inputs.keys():
            return super().call(inputs, training=training, mask=mask)
        # Not by the functional graph, whose order of the two embeddings is another one: shared,
        # they draw their dropout in turn.
        source_ids, target_ids = (
            ops.cast(inputs[key], "int32") for key in ("source_ids", "target_ids")
        )
        source_segments, segments = self._segments(inputs)
        encoded, source_mask = self.network.encode(
            source_ids, training=training, segments=source_segments
        )
        return self.network.decode(
            target_ids,
            encoded,
            source_mask,
            training=training,
            project=not self.skips_logits,
            segments=segments,
        )

    def output_table(self):
        return self.network.output.table()

    def _segments(self, inputs):
        """The source's segments of a packed batch, and those of both sides as a pair; `None` twice
        for other batches.
        """
        given = [inputs[key] for key in ("source_segments", "target_segments") if key in inputs]
        if not given:
            return None, None
        if len(given) == 1:
            raise ValueError(
                "Packed rows need the segments of both sides: give source_segments and target_segments, or neither."
            )
        check_packing(self._config)
        pair = tuple(ops.cast(part, "int32") for part in given)
        return pair[0], pair
