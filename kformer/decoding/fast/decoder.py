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

from typing import Any, NamedTuple

import keras
from keras import ops

from kformer.decoding.constraints import SpecialTokens
from kformer.decoding.decoders import Decoder, DecoderState
from kformer.decoding.fast import ops_stored
from kformer.decoding.fast.eligibility import why_not_fast
from kformer.decoding.fast.weights import bind_weights
from kformer.layers import linear_recurrence, padding_mask
from kformer.layers.full_attention import MASKED
from kformer.layers.relative_positions import distances, rotary_factors
from kformer.utils.backend import take
from kformer.utils.checks import check_choice


def backend_ops(dtype=None):
    """Returns the `FastOps` of the backend in use.

    Args:
        dtype: str, default `None`. The dtype in which they store and multiply matrices, one of
            `kformer.decoding.fast.ops_stored.DTYPES`; `None` for the dtype of the variables.
    """
    if keras.backend.backend() == "tensorflow":
        return ops_stored.stored_ops(dtype)
    from kformer.decoding.fast.ops_torch import TorchOps
    from kformer.decoding.fast.ops_torch_stored import Bfloat16TorchOps, Int8TorchOps

    return {"bfloat16": Bfloat16TorchOps, "int8": Int8TorchOps}.get(dtype, TorchOps)()


def ops_in(model, dtype):
    """Returns the operations that run a model with its matrices in another dtype.

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
    check_choice("The dtype of a translation", dtype, ops_stored.DTYPES)
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
    """Returns the reason why there are no int8 products, which ends in a colon, or `None`."""
    if keras.backend.backend() == "tensorflow":
        return None if ops_stored.has_int8_products() else ops_stored.NO_INT8_PRODUCTS
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
        ops: `FastOps`, default `None`. The operations, which may store the weights in another
            dtype; `None` for the backend's.
    """

    name = "fast"

    def __init__(self, model, ops=None):
        self.model, self.ops, self.special = model, ops, SpecialTokens.of(model)
        self.vocabulary_size = model.target_vocabulary_size

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

    keys: Any  # tuple with [R, N, T, H] of each layer
    values: Any  # tuple with [R, N, T, H] of each layer
    states: Any  # tuple with [R, D] of each layer with an SSRU, which has no keys and values
    # [2 layers, B, N, S, H]: keys and values of the source, as `arrange_source` returns them
    cross: Any
    bias: Any  # float [B, 1, 1, S], which is added to the scores: `MASKED` at padding, else 0
    # Vectors [steps, D], or cosines and sines [steps, 2 H] of rotary positions. A model without
    # positions has (), since loops carry no None.
    positions: Any
    projection: Any  # [D, V], or () if it is not carried

    def reorder(self, rows):
        """Returns the cache with row i from the former row `rows[i]`, of the same sentence."""
        own = {"keys": self.keys, "values": self.values, "states": self.states}
        own = {name: tuple(take(array, rows) for array in arrays) for name, arrays in own.items()}
        return self._replace(**own)

    def select(self, sentences, rows):
        """Returns the cache of the sentences `[C]` alone; their rows are `rows` `[R]`."""
        cross, bias = take(self.cross, sentences, axis=1), take(self.bias, sentences)
        return self.reorder(rows)._replace(cross=cross, bias=bias)


class FastNetwork:
    """The encoder and the decoder of one search; a step of the decoder takes one token per row.

    Args:
        model: a `Transformer` for which `why_not_fast` returns `None`.
        width: int. K, rows per sentence.
        ops: `FastOps`, default `None`. The operations; `None` for the backend's.
        shortlist: int array `[C]`, default `None`. The tokens whose logits are computed, in this
            order; `None` for all.
    """

    def __init__(self, model, width, ops=None, shortlist=None):
        network, self._fast = model.network, ops or backend_ops()
        self._weights = bind_weights(network, self._fast, shortlist)
        self._width, self._pad_id, self._hidden_dim = width, model.pad_id, model.hidden_dim
        first = network.decoder_layers[0]
        self._is_recurrent = network.is_recurrent
        # All decoder layers have the same number and size of heads.
        self._heads = first.cross_attention if self._is_recurrent else first.self_attention
        # Of both sides; a decoder with an SSRU rotates nothing.
        self._interleaved = (network.encoder_layers[0].self_attention.rotary or {}).get(
            "interleaved"
        )
        self._network = network

    def encode(self, source_ids):
        """Returns the `Encoded` of padded ids `[B, S]`."""
        fast, weights, mask = self._fast, self._weights, padding_mask(source_ids, self._pad_id)
        sentences, length = ops.shape(source_ids)
        # The first position is always computed, so that padding has a row to refer to.
        is_first = ops.arange(sentences * length, dtype="int32") < 1
        is_computed = ops.logical_or(fast.reshape(mask, (-1,)), is_first)
        computed, indices = fast.pack(is_computed)  # [P], [B S]
        bias, vectors = self._bias(mask), None
        positions = self._network.source_positions or self._network.source_embedding
        if positions.position_encoding is not None:
            vectors = positions.position_vectors(length, self._hidden_dim, 0)
            vectors = take(vectors, computed % length)
        x = self._embed(take(fast.reshape(source_ids, (-1,)), computed), weights.source, vectors)
        tokens = Encoded(x, indices, mask)
        heads = self._network.encoder_layers[0].self_attention
        factors = _rotary_factors(heads, length)
        for layer in weights.encoder:
            x = self._attend_self(layer.self_attention, tokens, heads, factors, bias, computed)
            tokens = tokens._replace(rows=self._feed_forward(layer.feed_forward, x))
        return tokens._replace(rows=self._normalize(tokens.rows, weights.encoder_norm))

    def init_cache(self, encoded, steps):
        """Returns the cache before the first step.

        Args:
            encoded: `Encoded`, from `encode`.
            steps: int or scalar tensor. The most tokens.

        Returns:
            `FastCache`.
        """
        fast, mask = self._fast, encoded.mask
        # Attention to no key at all returns the mean of the values. These factors make it zero.
        is_source = ops.cast(ops.any(mask, axis=1), "float32")
        factors = ops.stack([is_source * self._heads.head_size**-0.5, is_source])
        factors = fast.reshape(factors, (2, -1, 1, 1, 1))
        cross = [
            self._by_head(encoded, layer.cross_attention.source, 2, self._heads) * factors
            for layer in self._weights.decoder
        ]
        rows, layers = ops.shape(mask)[0] * self._width, len(self._weights.decoder)
        empty = states = ()
        if self._is_recurrent:
            states = (ops.zeros((rows, self._hidden_dim), dtype="float32"),) * layers
        else:
            heads, size = self._heads.num_heads, self._heads.head_size
            empty = (fast.empty_cache(rows, heads, steps, size),) * layers
        return FastCache(
            keys=empty,
            values=empty,
            states=states,
            cross=fast.arrange_source(ops.concatenate(cross), self._width),
            bias=self._bias(mask),
            positions=self._positions(steps),
            projection=fast.begin_projection(self._weights.projection),
        )

    def step(self, ids, cache, index):
        """Runs the decoder for one token per row.

        Args:
            ids: int32 tensor `[R]`. The tokens at position `index`.
            cache: `FastCache`, from `init_cache` or an earlier step.
            index: int or scalar tensor. The number of tokens in the cache.

        Returns:
            Logits `[R, V]` and the cache with the tokens.
        """
        fast, weights = self._fast, self._weights
        factors = vectors = None
        if not isinstance(cache.positions, tuple):
            vectors = fast.gather(cache.positions, index)
            if self._heads.rotary is not None:
                factors, vectors = fast.split(vectors, 2, -1), None
        x = self._embed(ids, weights.target, vectors)
        cross = fast.unstack(cache.cross, 2 * len(weights.decoder))
        count, size = self._heads.num_heads, self._heads.head_size
        keys, values, states = list(cache.keys), list(cache.values), list(cache.states)
        for number, layer in enumerate(weights.decoder):
            if self._is_recurrent:
                cell, forget = self._cell_and_forget(layer.self_attention, x)
                states[number] = cell + forget * (states[number] - cell)
                x = self._add(layer.self_attention, x, fast.activate(states[number], "relu"))
            else:
                attention = layer.self_attention
                heads = fast.product(self._sublayer_input(attention, x), *attention.inputs)
                query, key, value = fast.split(fast.reshape(heads, (-1, 3 * count, 1, size)), 3, 1)
                query, key = self._rotate(query, factors), self._rotate(key, factors)
                keys[number] = fast.extend(keys[number], key, index)
                values[number] = fast.extend(values[number], value, index)
                key, value = keys[number], values[number]
                if attention.relative is not None:
                    distance = ops.arange(ops.shape(key)[2], dtype="int32") - index
                    relative = self._relative(attention, distance)
                    # The one query has one vector for each key and value.
                    key, value = key + relative[0], value + relative[1]
                context = fast.attend_cache(query, key, value, size**-0.5, index)
                x = self._add(attention, x, fast.product(context, *attention.output))

            attention = layer.cross_attention
            query = fast.product(self._sublayer_input(attention, x), *attention.inputs)
            key, value = cross[2 * number : 2 * number + 2]
            context = fast.attend_source(query, key, value, cache.bias, self._width)
            x = self._add(attention, x, fast.product(context, *attention.output))
            x = self._feed_forward(layer.feed_forward, x)
        x = self._normalize(x, weights.decoder_norm)
        logits = fast.project(x, weights.projection, cache.projection, weights.output_bias)
        own = {"keys": tuple(keys), "values": tuple(values), "states": tuple(states)}
        return logits, cache._replace(**own)

    def source_attention(self, source_ids, target_ids):
        """Computes the cross-attention of given translations.

        Args:
            source_ids: int32 `[B, S]`, padded.
            target_ids: int32 `[B, T]`. The decoder's inputs: the start token, and the tokens
                before the last one.

        Returns:
            float32 `[B, layers, N, T, S]`, the probabilities of the cross-attention. `width` has no
            effect on them.
        """
        fast, heads, encoded = self._fast, self._heads, self.encode(source_ids)
        sentences, length = ops.shape(target_ids)
        indices = ops.arange(sentences * length, dtype="int32")
        is_seen = ops.arange(length)[:, None] >= ops.arange(length)
        causal, bias = ops.where(is_seen, 0.0, MASKED), self._bias(encoded.mask)
        factors, positions = _rotary_factors(heads, length), self._positions(length)
        vectors = None
        if factors is None and not isinstance(positions, tuple):
            vectors = take(positions, indices % length)
        x = self._embed(fast.reshape(target_ids, (-1,)), self._weights.target, vectors)
        tokens = Encoded(x, indices, ops.ones_like(target_ids, dtype="bool"))
        probabilities = []
        for layer in self._weights.decoder:
            if self._is_recurrent:
                cell, forget = self._cell_and_forget(layer.self_attention, tokens.rows)
                shape = (sentences, length, self._hidden_dim)
                update, forget = (fast.reshape(x, shape) for x in (cell - forget * cell, forget))
                states = fast.reshape(linear_recurrence(forget, update), (-1, self._hidden_dim))
                x = self._add(layer.self_attention, tokens.rows, fast.activate(states, "relu"))
            else:
                x = self._attend_self(layer.self_attention, tokens, heads, factors, causal)
            attention = layer.cross_attention
            inputs = tokens._replace(rows=self._sublayer_input(attention, x))
            (query,) = fast.unstack(self._by_head(inputs, attention.inputs, 1, heads), 1)
            key, value = fast.unstack(self._by_head(encoded, attention.source, 2, heads), 2)
            scores = ops.matmul(query * heads.head_size**-0.5, ops.transpose(key, (0, 1, 3, 2)))
            probabilities.append(ops.softmax(scores + bias))
            x = self._attend(attention, x, query, key, value, bias)
            tokens = tokens._replace(rows=self._feed_forward(layer.feed_forward, x))
        return ops.stack(probabilities, axis=1)

    # Embeddings and positions.

    def _embed(self, ids, weights, vectors):
        """Returns embeddings `[..., D]` of ids, plus the `vectors` of their positions, if any."""
        x = self._fast.gather(weights.table, ids)
        x = x if weights.scale is None else x * weights.scale
        return self._normalize(x if vectors is None else x + vectors, weights.norm)

    def _positions(self, steps):
        """Returns `FastCache.positions` for at most `steps` tokens."""
        layer = self._network.target_positions or self._network.target_embedding
        if layer.position_encoding == "learned":
            return ops.convert_to_tensor(layer.position_embeddings)
        if layer.position_encoding is not None:
            return layer.position_vectors(steps, self._hidden_dim, 0)
        factors = _rotary_factors(self._heads, steps)
        return () if factors is None else ops.concatenate(factors, axis=-1)

    def _rotate(self, x, factors):
        """Rotates queries or keys `[..., H]` by rotary factors, if there are any."""
        if factors is None:
            return x
        cosines, sines = factors
        return x * cosines + self._fast.swap(x, self._interleaved) * sines

    def _relative(self, weights, distance):
        """Returns the vectors `[..., H]` of distances `[...]`, of keys and of values."""
        most = weights.relative[0].shape[0] // 2
        indices = ops.clip(distance, -most, most) + most
        return tuple(self._fast.gather(table, indices) for table in weights.relative)

    # Parts of a layer.

    def _normalize(self, x, norm):
        return x if norm is None else self._fast.layer_norm(x, *norm)

    def _sublayer_input(self, weights, x):
        """Returns the input of a sub-layer, which pre-norm normalises."""
        return self._fast.layer_norm(x, *weights.norm) if weights.normalize_first else x

    def _add(self, weights, x, output):
        """Adds the output of a sub-layer to the residual stream, which post-norm normalises."""
        x = x + output
        return x if weights.normalize_first else self._fast.layer_norm(x, *weights.norm)

    def _feed_forward(self, weights, x):
        hidden = self._fast.product(self._sublayer_input(weights, x), *weights.intermediate)
        hidden = self._fast.activate(hidden, weights.activation)
        is_positive = weights.activation == "relu"
        return self._add(weights, x, self._fast.product(hidden, *weights.output, is_positive))

    def _cell_and_forget(self, weights, x):
        """Returns what an SSRU adds, and the share `[R, D]` of its state that it keeps."""
        inputs = self._sublayer_input(weights, x)
        cell, gate = self._fast.split(self._fast.product(inputs, *weights.inputs), 2, -1)
        gate = gate if weights.forget_bias is None else gate + weights.forget_bias
        return cell, self._fast.activate(gate, "sigmoid")

    def _attend_self(self, weights, tokens, heads, factors, bias, computed=None):
        """Runs a self-attention sub-layer on whole sentences, whose rows are `tokens.rows`."""
        inputs = tokens._replace(rows=self._sublayer_input(weights, tokens.rows))
        projected = self._by_head(inputs, weights.inputs, 3, heads)
        query, key, value = self._fast.unstack(projected, 3)
        query, key = self._rotate(query, factors), self._rotate(key, factors)
        relative = None
        if weights.relative is not None:
            length = ops.shape(tokens.mask)[1]
            relative = self._relative(weights, distances(length, length))
        return self._attend(weights, tokens.rows, query, key, value, bias, computed, relative)

    def _attend(self, weights, x, query, key, value, bias, computed=None, relative=None):
        """Runs an attention sub-layer from its queries, keys and values `[B, N, T, H]` on.

        With `computed` `[P]` only these rows go on. `relative` are the vectors `[T, S, H]` that
        keys and values have for each query.
        """
        fast, (_, heads, _, size) = self._fast, query.shape
        if relative is None:
            context = fast.attend(query, key, value, size**-0.5, bias)
        else:
            query = query * size**-0.5
            scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))) + bias
            shares = ops.softmax(scores + ops.einsum("bnth,tsh->bnts", query, relative[0]))
            context = ops.matmul(shares, value)
            context = context + ops.einsum("bnts,tsh->bnth", shares, relative[1])
        context = fast.transpose(context, (0, 2, 1, 3))
        rows = fast.reshape(context, (-1, heads * size))
        rows = rows if computed is None else take(rows, computed)
        return self._add(weights, x, fast.product(rows, *weights.output))

    def _by_head(self, encoded, linear, parts, heads):
        """Projects tokens to queries, keys or values: `[parts, B, N, S, H]`.

        The values at padding are meaningless but finite.
        """
        fast = self._fast
        sentences, length = ops.shape(encoded.mask)
        projected = take(fast.product(encoded.rows, *linear), encoded.indices)  # [B S, parts N H]
        shape = (sentences, length, parts, heads.num_heads, heads.head_size)
        return fast.transpose(fast.reshape(projected, shape), (2, 0, 3, 1, 4))

    def _bias(self, mask):
        """Returns the bias `[B, 1, 1, S]` that hides padding in scores `[B, N, T, S]`."""
        shape = (ops.shape(mask)[0], 1, 1, ops.shape(mask)[1])
        return self._fast.reshape(ops.where(mask, 0.0, MASKED), shape)


def _rotary_factors(attention, length):
    """Returns cosines and sines `[length, H]` of rotary positions; `None` without them."""
    if attention.rotary is None:
        return None
    positions = ops.arange(length, dtype="int32")
    return rotary_factors(positions, attention.head_size, **attention.rotary)
