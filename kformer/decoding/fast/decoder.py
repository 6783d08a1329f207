"""The fast decoder: a second form of the mathematics of a `Transformer`, for search alone.

The layers of `kformer.layers` serve every use: training, masks of any rank, scores, several new
tokens at once. A search needs one token per row and no mask but the source's. So tensors here are
matrices `[R, D]`, constants of a search are computed once, and padding of the source takes part in
attention alone. A change of a layer's mathematics has to be made here, too.
`tests/decoding/fast/test_decoder.py` compares the two for every option of a model that
`eligibility.py` accepts.

Shape letters: B sentences, S source length, P real tokens of all sources, R rows (sentences times K
beams), D hidden size, N heads, H head size, T tokens so far, V vocabulary.
"""

import math
from typing import Any, NamedTuple

import keras
from keras import ops

from kformer.decoding.constraints import SpecialTokens
from kformer.decoding.decoders import Decoder, DecoderState
from kformer.decoding.fast.eligibility import why_not_fast
from kformer.decoding.fast.ops_stored import DTYPES, NO_INT8_PRODUCTS, has_int8_products
from kformer.decoding.fast.weights import bind_weights
from kformer.layers import padding_mask
from kformer.layers.full_attention import MASKED
from kformer.layers.relative_positions import rotary_factors
from kformer.utils.backend import take
from kformer.utils.checks import check_choice


def backend_ops(dtype=None):
    """`FastOps` of the backend in use.

    Args:
        dtype: str, default `None`. How they store and multiply matrices, one of
            `kformer.decoding.fast.ops_stored.DTYPES`; `None` for the variables' own.
    """
    if keras.backend.backend() == "tensorflow":
        from kformer.decoding.fast.ops_stored import stored_ops
        from kformer.decoding.fast.ops_tensorflow import TensorFlowOps

        return TensorFlowOps() if dtype is None else stored_ops(dtype)
    from kformer.decoding.fast.ops_torch import TorchOps
    from kformer.decoding.fast.ops_torch_stored import Bfloat16TorchOps, Int8TorchOps

    return {"bfloat16": Bfloat16TorchOps, "int8": Int8TorchOps}.get(dtype, TorchOps)()


def ops_in(model, dtype):
    """The operations that run a model with its matrices in another dtype.

    Args:
        model: a `Transformer`, or an `Ensemble` of them.
        dtype: str or `None`. `"bfloat16"`, `"int8"`, or `"float32"` or `None` for the usual ones.

    Returns:
        `FastOps`; `None` for the usual ones.

    Raises:
        ValueError: the dtype is unknown, or the model does not run by `FastDecoder`.
        RuntimeError: this build of TensorFlow or PyTorch has no int8 products, or PyTorch has the
            weights on another device than the CPU.
    """
    if dtype is None:
        return None
    check_choice("The dtype of a translation", dtype, DTYPES)
    if dtype == "float32":
        return None
    models = getattr(model, "models", [model])
    for each in models:
        reason = why_not_fast(each)
        if reason is not None:
            raise ValueError(
                f"The model cannot translate in {dtype}: {reason}. Translate without a dtype."
            )
    missing = _why_no_int8(models) if dtype == "int8" else None
    if missing is not None:
        raise RuntimeError(missing + " translate with the dtype float32 or bfloat16.")
    return backend_ops(dtype)


def _why_no_int8(models):
    """Why there are no int8 products, in words that end in a colon, or `None`."""
    if keras.backend.backend() == "tensorflow":
        return None if has_int8_products() else NO_INT8_PRODUCTS
    devices = {weight.value.device.type for model in models for weight in model.weights} - {"cpu"}
    if devices:
        return f"PyTorch's int8 products are for the CPU, but weights are on {min(devices)}:"
    try:
        backend_ops("int8")  # It computes a product.
    except (AttributeError, RuntimeError):
        return "This build of PyTorch has no int8 products, which its builds with oneDNN have:"
    return None


class FastDecoder(Decoder):
    """Runs a `Transformer` by `FastNetwork`, in fewer operations than its layers.

    Args:
        model: a `Transformer` for which `why_not_fast` returns `None`.
        ops: `FastOps`, default `None`. They may hold the weights in another form; `None` for the
            backend's.
    """

    name = "fast"

    def __init__(self, model, ops=None):
        self.model, self.ops, self.special = model, ops, SpecialTokens.of(model)

    def begin(self, source_ids, width, steps, shortlist=None):
        network = FastNetwork(self.model, width, self.ops, shortlist)

        def step(ids, state):
            logits, cache = network.step(ids, state.cache, state.index)
            return logits, DecoderState(cache, state.index + 1)

        cache = network.init_cache(network.encode(source_ids), steps)
        return step, DecoderState(cache, ops.zeros((), dtype="int32"))


class Encoded(NamedTuple):
    """The encoder's output, without padding."""

    rows: Any  # [P, D]
    indices: Any  # int32 [B S]: the row of each position; any row at padding
    mask: Any  # bool [B, S]: real tokens


class FastCache(NamedTuple):
    """The decoder's state, carried from step to step."""

    keys: Any  # of each layer, [R, N, T, H]
    values: Any
    cross: Any  # [2 layers, B, N, S, H]: of the source, as `arrange_source` returns it
    bias: Any  # float [B, 1, 1, S]: added to the scores, very small at padding
    # [steps, D], with rotary positions [steps, 2 H]: cosines and sines. A model without has (),
    # which loops pass over, unlike None.
    positions: Any
    projection: Any  # [D, V], or () if it is not carried

    def reorder(self, rows):
        """The cache in which row i is what row `rows[i]` was; rows stay with their sentence."""
        keys, values = (
            tuple(take(array, rows) for array in arrays) for arrays in (self.keys, self.values)
        )
        return self._replace(keys=keys, values=values)

    def select(self, sentences, rows):
        """The cache of some sentences `[C]`, whose rows are `rows` `[R]`."""
        cross, bias = take(self.cross, sentences, axis=1), take(self.bias, sentences)
        return self.reorder(rows)._replace(cross=cross, bias=bias)


class Heads(NamedTuple):
    """The heads of the attentions of encoder or decoder."""

    count: int  # N
    size: int  # H
    scale: float  # of the scores
    rotary: Any  # dict, the options of rotary positions, or `None`

    @classmethod
    def of(cls, attention):
        size = attention.head_size
        return cls(attention.num_heads, size, size**-0.5, attention.rotary)

    def rotary_factors(self, length):
        """Cosines and sines `[length, H]` of rotary positions; `None` without them."""
        if self.rotary is None:
            return None
        return rotary_factors(ops.arange(length, dtype="int32"), self.size, **self.rotary)


class FastNetwork:
    """Encoder, and decoder of one token per row at a time, of one search.

    Args:
        model: a `Transformer` for which `why_not_fast` returns `None`.
        width: int. K, rows per sentence.
        ops: `FastOps`, default `None`. `None` for the backend's.
        shortlist: int array `[C]`, default `None`. The tokens whose logits are computed, in this
            order; `None` for all.
    """

    def __init__(self, model, width, ops=None, shortlist=None):
        network, self._fast = model.network, ops or backend_ops()
        self._weights = bind_weights(network, self._fast, shortlist)
        self._width, self._pad_id, self._hidden_dim = width, model.pad_id, model.hidden_dim
        first = network.decoder_layers[0]
        self._normalize_first = first.normalize_first
        self._encoder_heads = Heads.of(network.encoder_layers[0].self_attention)
        self._heads = Heads.of(first.self_attention)
        self._source_embedding = network.source_embedding
        self._target_embedding = network.target_embedding
        # The layers that hold the positions of each side.
        self._source_positions = network.source_positions or network.source_embedding
        self._target_positions = network.target_positions or network.target_embedding

    def encode(self, source_ids):
        """`Encoded` for padded ids `[B, S]`."""
        fast, weights, mask = self._fast, self._weights, padding_mask(source_ids, self._pad_id)
        sentences, length = ops.shape(source_ids)
        # The first position is always computed, so that padding has a row to refer to.
        is_computed = ops.logical_or(
            fast.reshape(mask, (-1,)), ops.arange(sentences * length, dtype="int32") < 1
        )
        computed, indices = fast.pack(is_computed)  # [P], [B S]
        bias = self._bias(mask)
        x = self._embed_source(take(fast.reshape(source_ids, (-1,)), computed), computed, length)
        heads = self._encoder_heads
        factors = heads.rotary_factors(length)
        for layer in weights.encoder:
            attention = layer.self_attention
            inputs = Encoded(self._sublayer_input(attention, x), indices, mask)
            projected = self._by_head(inputs, attention.inputs, 3, heads)
            query, key, value = fast.unstack(projected, 3)
            query, key = self._rotate(query, factors), self._rotate(key, factors)
            context = fast.attend(query, key, value, heads.scale, bias)  # [B, N, S, H]
            context = fast.transpose(context, (0, 2, 1, 3))
            context = take(fast.reshape(context, (-1, heads.count * heads.size)), computed)
            x = self._add(attention, x, fast.product(context, *attention.output))
            x = self._feed_forward(layer.feed_forward, x)
        return Encoded(self._normalize(x, weights.encoder_norm), indices, mask)

    def init_cache(self, encoded, steps):
        """The cache before the first step.

        Args:
            encoded: `Encoded`, from `encode`.
            steps: int or scalar tensor. The most tokens.

        Returns:
            `FastCache`.
        """
        fast, mask = self._fast, encoded.mask
        # An attention without any key returns the mean of the values; it must be zero.
        is_source = ops.cast(ops.any(mask, axis=1), "float32")
        factors = ops.stack([is_source * self._heads.scale, is_source])
        factors = fast.reshape(factors, (2, -1, 1, 1, 1))
        cross = [
            self._by_head(encoded, layer.cross_attention.source, 2, self._heads) * factors
            for layer in self._weights.decoder
        ]
        rows = ops.shape(mask)[0] * self._width
        empty = (fast.empty_cache(rows, self._heads.count, steps, self._heads.size),)
        empty *= len(self._weights.decoder)
        return FastCache(
            keys=empty,
            values=empty,
            cross=fast.arrange_source(ops.concatenate(cross), self._width),
            bias=self._bias(mask),
            positions=self._positions(steps),
            projection=fast.begin_projection(self._weights.projection),
        )

    def step(self, ids, cache, index):
        """One token per row.

        Args:
            ids: int32 tensor `[R]`. The tokens at position `index`.
            cache: `FastCache`, from `init_cache` or an earlier step.
            index: int or scalar tensor. The number of tokens in the cache.

        Returns:
            Logits `[R, V]` and the cache with the tokens.
        """
        fast, weights = self._fast, self._weights
        x, factors = self._embed_target(ids, cache.positions, index)
        scale, cross = self._heads.scale, fast.unstack(cache.cross, 2 * len(weights.decoder))
        keys, values = list(cache.keys), list(cache.values)
        for number, layer in enumerate(weights.decoder):
            attention = layer.self_attention
            query, key, value = self._heads_of_tokens(
                self._sublayer_input(attention, x), attention.inputs
            )
            query, key = self._rotate(query, factors), self._rotate(key, factors)
            keys[number] = fast.extend(keys[number], key, index)
            values[number] = fast.extend(values[number], value, index)
            context = fast.attend_cache(query, keys[number], values[number], scale, index)
            x = self._add(attention, x, fast.product(context, *attention.output))

            attention = layer.cross_attention
            query = fast.product(self._sublayer_input(attention, x), *attention.inputs)
            key, value = cross[2 * number : 2 * number + 2]
            context = fast.attend_source(query, key, value, cache.bias, self._width)
            x = self._add(attention, x, fast.product(context, *attention.output))
            x = self._feed_forward(layer.feed_forward, x)
        x = self._normalize(x, weights.decoder_norm)
        logits = fast.project(x, weights.projection, cache.projection, weights.output_bias)
        return logits, cache._replace(keys=tuple(keys), values=tuple(values))

    def source_attention(self, source_ids, target_ids):
        """The cross-attention of given translations.

        Args:
            source_ids: int32 `[B, S]`, padded.
            target_ids: int32 `[B, T]`. The decoder's inputs: the start token, and the tokens
                before the last one.

        Returns:
            float32 `[B, layers, N, T, S]`, the probabilities of the cross-attention. K does not
            count.
        """
        fast, heads, encoded = self._fast, self._heads, self.encode(source_ids)
        sentences, length = ops.shape(target_ids)
        indices = ops.arange(sentences * length, dtype="int32")
        is_seen = ops.arange(length)[:, None] >= ops.arange(length)
        causal, bias = ops.where(is_seen, 0.0, MASKED), self._bias(encoded.mask)
        tokens = Encoded(None, indices, ops.ones_like(target_ids, dtype="bool"))
        x, factors = self._embed_tokens(fast.reshape(target_ids, (-1,)), indices, length)
        probabilities = []
        for layer in self._weights.decoder:
            attention = layer.self_attention
            rows = tokens._replace(rows=self._sublayer_input(attention, x))
            query, key, value = fast.unstack(self._by_head(rows, attention.inputs, 3, heads), 3)
            query, key = self._rotate(query, factors), self._rotate(key, factors)
            x = self._attended(attention, x, query, key, value, causal)
            attention = layer.cross_attention
            rows = tokens._replace(rows=self._sublayer_input(attention, x))
            (query,) = fast.unstack(self._by_head(rows, attention.inputs, 1, heads), 1)
            key, value = fast.unstack(self._by_head(encoded, attention.source, 2, heads), 2)
            scores = ops.matmul(query * heads.scale, ops.transpose(key, (0, 1, 3, 2)))
            probabilities.append(ops.softmax(scores + bias))
            x = self._attended(attention, x, query, key, value, bias)
            x = self._feed_forward(layer.feed_forward, x)
        return ops.stack(probabilities, axis=1)

    def _attended(self, weights, x, query, key, value, bias):
        """An attention sub-layer after its heads' queries, keys and values `[B, N, T, H]`."""
        context = self._fast.attend(query, key, value, self._heads.scale, bias)
        context = self._fast.transpose(context, (0, 2, 1, 3))
        rows = self._fast.reshape(context, (-1, self._heads.count * self._heads.size))
        return self._add(weights, x, self._fast.product(rows, *weights.output))

    # Embeddings and positions.

    def _embed_tokens(self, ids, indices, length):
        """Vectors `[B T, D]` of whole sentences of a length, and their rotary factors."""
        x = self._embed(ids, self._weights.target_table, self._target_embedding)
        factors, positions = self._heads.rotary_factors(length), self._positions(length)
        if factors is None and not isinstance(positions, tuple):
            x = x + take(positions, indices % length)
        return self._normalize(x, self._weights.target_norm), factors

    def _embed_source(self, ids, computed, length):
        """Vectors `[P, D]` of the ids `[P]` at the indices `computed` `[P]` of all positions."""
        x = self._embed(ids, self._weights.source_table, self._source_embedding)
        if self._source_positions.position_encoding is not None:
            vectors = self._source_positions.position_vectors(length, self._hidden_dim, 0)
            x = x + take(vectors, computed % length)
        return self._normalize(x, self._weights.source_norm)

    def _embed_target(self, ids, positions, index):
        """Vectors `[R, D]` of ids `[R]` at a position, and its rotary factors or `None`."""
        x, factors = self._embed(ids, self._weights.target_table, self._target_embedding), None
        if not isinstance(positions, tuple):
            position = self._fast.gather(positions, index)
            if self._heads.rotary is None:
                x = x + position
            else:
                factors = self._fast.split(position, 2)
        return self._normalize(x, self._weights.target_norm), factors

    def _embed(self, ids, table, embedding):
        vectors = self._fast.gather(table, ids)
        return vectors * math.sqrt(embedding.hidden_dim) if embedding.scale else vectors

    def _positions(self, steps):
        """`FastCache.positions` of at most `steps` tokens."""
        layer = self._target_positions
        if layer.position_encoding == "learned":
            return ops.convert_to_tensor(layer.position_embeddings)
        if layer.position_encoding is not None:
            return layer.position_vectors(steps, self._hidden_dim, 0)
        factors = self._heads.rotary_factors(steps)
        return () if factors is None else ops.concatenate(factors, axis=-1)

    def _rotate(self, x, factors):
        """Queries or keys `[..., H]`, rotated by `rotary_factors` if there are any."""
        if factors is None:
            return x
        cosines, sines = factors
        return x * cosines + self._fast.swap(x, self._heads.rotary["interleaved"]) * sines

    # Parts of a layer.

    def _normalize(self, x, norm):
        return x if norm is None else self._fast.layer_norm(x, *norm)

    def _sublayer_input(self, weights, x):
        """The input of a sub-layer."""
        return self._fast.layer_norm(x, *weights.norm) if self._normalize_first else x

    def _add(self, weights, x, output):
        """The residual connection after a sub-layer."""
        x = x + output
        return x if self._normalize_first else self._fast.layer_norm(x, *weights.norm)

    def _feed_forward(self, weights, x):
        hidden = self._fast.product(self._sublayer_input(weights, x), *weights.intermediate)
        hidden = self._fast.activate(hidden, weights.activation)
        is_positive = weights.activation == "relu"
        return self._add(weights, x, self._fast.product(hidden, *weights.output, is_positive))

    def _heads_of_tokens(self, x, linear):
        """Queries, keys and values `[R, N, 1, H]` of one token per row `[R, D]`."""
        shape = (-1, 3 * self._heads.count, 1, self._heads.size)
        return self._fast.split(self._fast.reshape(self._fast.product(x, *linear), shape), 3, 1)

    def _by_head(self, encoded, linear, parts, heads):
        """Source tokens, projected to queries, keys or values: `[parts, B, N, S, H]`.

        The values at padding are meaningless but finite.
        """
        fast = self._fast
        sentences, length = ops.shape(encoded.mask)
        projected = take(fast.product(encoded.rows, *linear), encoded.indices)  # [B S, parts N H]
        by_head = fast.reshape(projected, (sentences, length, parts, heads.count, heads.size))
        return fast.transpose(by_head, (2, 0, 3, 1, 4))

    def _bias(self, mask):
        """What is added to scores `[B, N, T, S]`, `[B, 1, 1, S]`."""
        shape = (ops.shape(mask)[0], 1, 1, ops.shape(mask)[1])
        return self._fast.reshape(ops.where(mask, 0.0, MASKED), shape)
