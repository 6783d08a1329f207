"""A `Transformer`'s forward pass for search: the mathematics of its layers, in the fewest
operations.

The layers serve every use: training, masks of any rank, scores, several new tokens at once. A
search needs one token per row and no mask but the source's, so its tensors are matrices `[R, D]`
here, and what does not change from step to step is computed once. Padding of the source is computed
nowhere but in attention. A test holds it equal to the layers for every option of the model. JAX,
which compiles the layers to the same, has no need of it.

Shape letters: B sentences, S source length, P tokens of all sources, R rows (sentences times K
beams), D hidden size, N heads, H head size, V vocabulary."""

import math
from typing import Any, NamedTuple

import keras
from keras import ops

from kformer.decoding.fast.ops import has_kernels, kernels
from kformer.layers import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    NormalizedPositions,
    OutputBias,
    PositionalEmbedding,
    padding_mask,
)
from kformer.layers.full_attention import MASKED
from kformer.layers.relative_positions import rotary_factors
from kformer.models import Transformer
from kformer.models.config import variants_of
from kformer.utils.backend import take


class Encoded(NamedTuple):
    """The encoder's output, without padding."""

    rows: Any  # [P, D]
    places: Any  # int32 [B S]: which row a place has; padding has any
    mask: Any  # bool [B, S]: real tokens


class InferenceCache(NamedTuple):
    """What the decoder carries from step to step."""

    keys: Any  # of each layer, [R, N, tokens so far, H]
    values: Any
    cross: Any  # [2 layers, B, N, S, H]: keys and values of the source, layer by layer, as the kernels arrange them
    bias: Any  # float [B, 1, 1, S]: added to the scores, very small at padding
    # [steps, D], with rotary positions [steps, 2 H]: cosines and sines; a model without has (),
    # which loops pass over, unlike None
    positions: Any
    projection: Any  # [D, V], or () if it is not carried

    def reorder(self, rows):
        """The cache in which row i is what row `rows[i]` was; rows stay with their sentence."""
        keys, values = (
            tuple(take(part, rows) for part in parts) for parts in (self.keys, self.values)
        )
        return self._replace(keys=keys, values=values)

    def select(self, sentences, rows):
        """The cache of some sentences `[C]`, whose rows are `rows` `[R]`."""
        cross, bias = take(self.cross, sentences, axis=1), take(self.bias, sentences)
        return self.reorder(rows)._replace(cross=cross, bias=bias)


def can_infer(model):
    """Whether `InferenceModel` computes what a model computes, and the backend gains by it.

    It does for a `Transformer` as in the paper, or as published descendants are, or with rotary
    positions, of this package's own layers in float32. A layer of another class may compute
    anything."""
    methods = ("encode", "init_cache", "decode_step")
    own = any(getattr(type(model), name) is not getattr(Transformer, name) for name in methods)
    if (
        not has_kernels()
        or own
        or model.policy_name != "float32"
        or variants_of(model.get_config(), known=("rope",))
    ):
        return False
    network = model.network
    layers = [*network.encoder_layers, *network.decoder_layers]
    attentions = [layer.self_attention for layer in layers] + [
        layer.cross_attention for layer in network.decoder_layers
    ]
    kinds = [(layer, EncoderLayer) for layer in network.encoder_layers]
    kinds += [(layer, DecoderLayer) for layer in network.decoder_layers]
    kinds += [(attention, MultiHeadAttention) for attention in attentions]
    kinds += [(layer.feed_forward, FeedForward) for layer in layers]
    kinds += [
        (embedding, PositionalEmbedding)
        for embedding in (network.source_embedding, network.target_embedding)
    ]
    kinds += [
        (positions, NormalizedPositions)
        for positions in (network.source_positions, network.target_positions)
    ]
    kinds += [(network.output_bias, OutputBias), (network.output_projection, keras.layers.Dense)]
    denses = [
        dense
        for layer in layers
        for dense in (layer.feed_forward.intermediate, layer.feed_forward.output_projection)
    ]
    # A quantized or adapted Dense is one of Keras's own, but has more to it than its kernel.
    plain = all(dense.quantization_mode is None and not dense.lora_enabled for dense in denses)
    return plain and all(layer is None or type(layer) is kind for layer, kind in kinds)


class Linear(NamedTuple):
    """`x W + b`."""

    kernel: Any
    bias: Any


class Norm(NamedTuple):
    """Layer norm."""

    gamma: Any
    beta: Any
    epsilon: float


class Attention(NamedTuple):
    """An attention's weights."""

    inputs: Linear  # of queries, keys and values; in a cross-attention of the queries alone
    source: Any  # Linear, of a cross-attention's keys and values
    output: Linear
    norm: Norm


class FeedForwardWeights(NamedTuple):
    """A feed-forward network's weights."""

    intermediate: Linear
    output: Linear
    activation: str
    norm: Norm


class InferenceModel:
    """Encoder, and decoder of one token per row at a time.

    Args:
        model: a `Transformer` that `can_infer` allows.
        width: K, rows per sentence.
        run: kernels that hold the weights in another form; `None` for the backend's plain ones.
        shortlist: int array `[C]`, the tokens whose logits are computed, in this order; `None` for
            all.
    """

    def __init__(self, model, width, run=None, shortlist=None):
        self.network, self._width, self._pad_id = model.network, width, model.pad_id
        self._run = run = run or kernels()
        first = self.network.decoder_layers[0]
        self._heads, self.head_size, self._hidden_dim = (
            first.self_attention.num_heads,
            first.self_attention.head_size,
            model.hidden_dim,
        )
        self._scale, self._normalize_first = first.self_attention._scale, first.normalize_first
        self._rotary = first.self_attention.rotary
        self._encoder = [
            (self._attention(layer, "self_attention"), self._feed_forward_of(layer))
            for layer in self.network.encoder_layers
        ]
        self._decoder = [
            (
                self._attention(layer, "self_attention"),
                self._attention(layer, "cross_attention"),
                self._feed_forward_of(layer),
            )
            for layer in self.network.decoder_layers
        ]
        norms = (self.network.encoder.norm, self.network.decoder.norm)
        self._encoder_norm, self._decoder_norm = (
            None if norm is None else self._norm_of(norm) for norm in norms
        )
        embeddings = (self.network.source_embedding, self.network.target_embedding)
        self._source_table, self._target_table = (
            run.bind_table(embedding.embeddings) for embedding in embeddings
        )
        projection = self.network.output_projection
        is_table = projection is None
        self._projection = run.bind_projection(
            embeddings[1].embeddings if is_table else projection.kernel, is_table, shortlist
        )
        self._output_bias = (
            None if self.network.output_bias is None else run.bind(self.network.output_bias.bias)
        )
        if shortlist is not None and self._output_bias is not None:
            self._output_bias = run.gather(self._output_bias, shortlist)

    def _linear(self, kernel, bias):
        return Linear(self._run.bind_kernel(kernel), None if bias is None else self._run.bind(bias))

    def _norm_of(self, norm):
        return Norm(self._run.bind(norm.gamma), self._run.bind(norm.beta), norm.epsilon)

    def _attention(self, layer, name):
        part = getattr(layer, name)
        names = (
            ("query_key_value", None, "output")
            if name == "self_attention"
            else ("query", "key_value", "output")
        )
        linears = [
            which and self._linear(getattr(part, f"{which}_kernel"), getattr(part, f"{which}_bias"))
            for which in names
        ]
        return Attention(*linears, self._norm_of(getattr(layer, f"{name}_norm")))

    def _feed_forward_of(self, layer):
        part = layer.feed_forward
        linears = [
            self._linear(dense.kernel, dense.bias)
            for dense in (part.intermediate, part.output_projection)
        ]
        return FeedForwardWeights(*linears, part.activation, self._norm_of(layer.feed_forward_norm))

    def encode(self, source_ids):
        """`Encoded` for padded ids `[B, S]`."""
        run, network = self._run, self.network
        mask = padding_mask(source_ids, self._pad_id)
        sentences, length = ops.shape(source_ids)
        # The first place in any case, so that there is a row for padding to have.
        is_computed = ops.logical_or(
            run.reshape(mask, (-1,)), ops.arange(sentences * length, dtype="int32") < 1
        )
        places, rows = run.pack(is_computed)  # [P], [B S]
        encoded = Encoded(None, rows, mask)
        bias = self._bias(mask)
        x = self._embed(
            take(run.reshape(source_ids, (-1,)), places),
            self._source_table,
            network.source_embedding,
        )  # [P, D]
        placed = network.source_positions or network.source_embedding
        if placed.position_encoding is not None:
            x = x + take(placed.position_vectors(length, self._hidden_dim, 0), places % length)
        if network.source_positions is not None:
            x = run.layer_norm(x, *self._norm_of(network.source_positions.norm))
        turned = (
            None
            if self._rotary is None
            else rotary_factors(ops.arange(length, dtype="int32"), self.head_size, **self._rotary)
        )
        for attention, feed_forward in self._encoder:
            query, key, value = self._by_head(
                encoded._replace(rows=self._before(attention, x)), attention.inputs, 3
            )
            if turned is not None:
                query, key = self._turn(query, turned), self._turn(key, turned)
            context = run.transpose(run.attend(query, key, value, self._scale, bias), (0, 2, 1, 3))
            context = take(run.reshape(context, (-1, self._heads * self.head_size)), places)
            x = self._after(attention, x, run.product(context, *attention.output))
            x = self._feed_forward(feed_forward, x)
        if self._encoder_norm is not None:
            x = run.layer_norm(x, *self._encoder_norm)
        return encoded._replace(rows=x)

    def init_cache(self, encoded, steps):
        """The cache before the first step, for what `encode` returned, and at most `steps` tokens."""
        run, network, mask = self._run, self.network, encoded.mask
        # Over no key at all an attention gives the mean of the values; it must be zero.
        is_source = run.reshape(ops.cast(ops.any(mask, axis=1), "float32"), (-1, 1, 1, 1))
        cross = []
        for _, attention, _ in self._decoder:
            key, value = self._by_head(encoded, attention.source, 2)
            cross += [key, value * is_source]
        rows = ops.shape(mask)[0] * self._width
        nothing = run.empty_cache(rows, self._heads, steps, self.head_size)
        empty = (nothing,) * len(self._decoder)
        placed = network.target_positions or network.target_embedding
        positions = ()
        if placed.position_encoding == "learned":
            positions = ops.convert_to_tensor(placed.position_embeddings)
        elif placed.position_encoding is not None:
            positions = placed.position_vectors(steps, self._hidden_dim, 0)
        elif self._rotary is not None:
            factors = rotary_factors(
                ops.arange(steps, dtype="int32"), self.head_size, **self._rotary
            )
            positions = ops.concatenate(factors, axis=-1)
        carried = run.begin_projection(self._projection)
        cross = run.arrange_source(ops.stack(cross), self._width)
        return InferenceCache(empty, empty, cross, self._bias(mask), positions, carried)

    def step(self, ids, cache, index):
        """Logits `[R, V]` after the tokens `ids` `[R]`, which stand at place `index`, and the cache
        with them.
        """
        run, network = self._run, self.network
        x = self._embed(ids, self._target_table, network.target_embedding)
        placed = None if isinstance(cache.positions, tuple) else run.gather(cache.positions, index)
        if placed is not None and self._rotary is None:
            x = x + placed
        turned = None if self._rotary is None else run.split(placed, 2)
        if network.target_positions is not None:
            x = run.layer_norm(x, *self._norm_of(network.target_positions.norm))
        cross = run.unstack(cache.cross, 2 * len(self._decoder))
        keys, values = list(cache.keys), list(cache.values)
        for number, (attention, cross_attention, feed_forward) in enumerate(self._decoder):
            parts = run.reshape(
                run.product(self._before(attention, x), *attention.inputs),
                (-1, 3 * self._heads, 1, self.head_size),
            )
            query, key, value = run.split(parts, 3, 1)
            if turned is not None:
                query, key = self._turn(query, turned), self._turn(key, turned)
            keys[number], values[number] = (
                run.extend(keys[number], key, index),
                run.extend(values[number], value, index),
            )
            context = run.attend_cache(query, keys[number], values[number], self._scale, index)
            x = self._after(attention, x, run.product(context, *attention.output))

            query = run.product(self._before(cross_attention, x), *cross_attention.inputs)
            key, value = cross[2 * number : 2 * number + 2]
            context = run.attend_source(query, key, value, self._scale, cache.bias, self._width)
            x = self._after(cross_attention, x, run.product(context, *cross_attention.output))
            x = self._feed_forward(feed_forward, x)
        if self._decoder_norm is not None:
            x = run.layer_norm(x, *self._decoder_norm)
        logits = run.project(x, self._projection, cache.projection, self._output_bias)
        return logits, cache._replace(keys=tuple(keys), values=tuple(values))

    def _bias(self, mask):
        return self._run.reshape(
            ops.where(mask, 0.0, MASKED), (ops.shape(mask)[0], 1, 1, ops.shape(mask)[1])
        )

    def _turn(self, x, factors):
        """Queries or keys `[..., H]` turned by `rotary_factors`."""
        cosines, sines = factors
        return x * cosines + self._run.swap(x, self._rotary["interleaved"]) * sines

    def _embed(self, ids, table, embedding):
        vectors = self._run.gather(table, ids)
        return vectors * math.sqrt(embedding.hidden_dim) if embedding.scale else vectors

    def _feed_forward(self, weights, x):
        hidden = self._run.product(self._before(weights, x), *weights.intermediate)
        return self._after(
            weights,
            x,
            self._run.product(self._run.activate(hidden, weights.activation), *weights.output),
        )

    def _before(self, weights, x):
        return self._run.layer_norm(x, *weights.norm) if self._normalize_first else x

    def _after(self, weights, x, output):
        x = x + output
        return x if self._normalize_first else self._run.layer_norm(x, *weights.norm)

    def _by_head(self, encoded, linear, parts):
        """Real tokens, projected: parts times `[B, N, S, H]`; what padding has is of no account,
        but finite.
        """
        run = self._run
        sentences, length = ops.shape(encoded.mask)
        projected = run.split(take(run.product(encoded.rows, *linear), encoded.places), parts)
        return [
            run.transpose(
                run.reshape(part, (sentences, length, self._heads, self.head_size)), (0, 2, 1, 3)
            )
            for part in projected
        ]
