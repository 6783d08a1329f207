"""Multi-head scaled dot-product attention."""

import keras
import numpy as np
from keras import ops

from kformer.layers.cache import CrossAttentionCache
from kformer.layers.counter_hash import derive_seed, drawn_seed
from kformer.layers.dropout import Dropout
from kformer.layers.initializers import seeded
from kformer.layers.masks import causal_mask, combine_masks
from kformer.layers.relative_positions import check_rotary_size, rotate_positions
from kformer.layers.shapes import linear, reshape

# Stands for minus infinity in float32 scores: exp(_MASKED - max) is 0, and a row of it alone still has a finite softmax.
_MASKED = -1e30

# Scores of sequences up to this length are no burden to memory.
_SHORT = 256


@keras.saving.register_keras_serializable(package="kformer")
class MultiHeadAttention(keras.layers.Layer):
    """Attention of several heads: `softmax(Q K^T / sqrt(H)) V` per head, heads joined by a linear map.

    Built with one input it is self-attention and projects queries, keys and values by one matrix product; built with two
    (`layer(query, value)`) it is cross-attention, where keys and values come from the second.

    A query with nothing to attend to (all keys masked) gets zeros from every head, hence the output bias alone; never
    NaN, never the mean of the values. Scores and softmax are computed in float32 whatever the compute dtype.

    Args:
        num_heads: N, the number of heads.
        head_dim: H, the size of a head; `None` takes D / N, which must be whole.
        num_key_value_heads: G, heads of keys and values, each of which N / G heads of queries share (grouped-query attention); `None` for
            N, 1 for multi-query attention. A cache then holds G heads instead of N.
        rotary: dict of `base` and `interleaved` as in `rotate_positions`, for rotary positions in self-attention, counted from the
            cache's first token; `{}` for its defaults, `None` for no rotation.
        scale: what scores are multiplied by; `None` for 1 / sqrt(H), as in the paper, 1 for T5's models.
        dropout: dropout rate on the attention probabilities. The paper has none there; while it is active the fused
            kernel cannot be used.
        use_bias: whether the projections add a bias.
        fused: whether to use the backend's fused kernel where possible. `None` uses it on JAX and PyTorch, but not for
            float16 on JAX without a GPU, nor for short sequences in training by PyTorch on CPU; TensorFlow has none on CPU.
        kernel_initializer: initializer of every projection, each as a `[D, N H]` matrix of its own.
        seed: int, for the initializers and the dropout.

    Call arguments:
        query: float tensor `[B, T, D]`.
        value: float tensor `[B, S, E]` that keys and values are projected from; `None` for self-attention.
        attention_mask: boolean, `[T, S]`, `[B, T, S]` or `[B, N, T, S]`; `True` where attending is allowed.
        padding_mask: boolean `[B, S]`, `True` at real keys.
        attention_bias: float tensor `[N, T, S]` or `[B, N, T, S]`, added to the scaled scores, as `alibi_bias` gives it.
        use_causal_mask: bool; a query sees no later key. A self-attention cache implies it, positions counted from the
            cache's first token.
        cache: for self-attention a `KeyValueCache` or `StaticKeyValueCache` with the tokens before `query`; for
            cross-attention what `compute_cache` gave, in place of `value`. The cross-attention cache may have fewer
            rows than `query`, which then holds several rows (beams) for each of the cache's, next to each other.
        return_attention_scores: bool; also return the probabilities.
        training: bool.
        mask, query_mask, value_mask: implicit Keras masks (boolean `[B, T]`, `[B, S]`), filled in by Keras when an
            input carries one. A mask on the keys acts as padding; one on the queries alone has no effect.

    All masks are combined with AND.

    Returns:
        Float tensor `[B, T, D]`; then, if asked for, the attention probabilities `[B, N, T, S]`; then, if a cache was
        given, the cache with the new tokens.

    Example:
        >>> attention = kformer.layers.MultiHeadAttention(num_heads=8)
        >>> attention(keras.ops.ones((2, 5, 512)), use_causal_mask=True).shape
        (2, 5, 512)

    References:
        Vaswani et al. 2017, "Attention is all you need", section 3.2.
        Ainslie et al. 2023, "GQA: training generalized multi-query Transformer models from multi-head checkpoints".
    """

    def __init__(
        self,
        num_heads,
        head_dim=None,
        *,
        num_key_value_heads=None,
        rotary=None,
        scale=None,
        dropout=0.0,
        use_bias=True,
        fused=None,
        kernel_initializer="glorot_uniform",
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if num_heads < 1:
            raise ValueError(f"num_heads must be at least 1, but {num_heads} was given.")
        groups = num_heads if num_key_value_heads is None else num_key_value_heads
        if groups < 1 or num_heads % groups:
            raise ValueError(
                f"num_key_value_heads must divide num_heads, since each serves as many heads of queries, but {num_heads} / {groups} is not "
                "a whole number of at least 1."
            )
        if rotary is not None and not set(rotary) <= {"base", "interleaved"}:
            raise ValueError(f"rotary has the entries base and interleaved, but {', '.join(map(str, rotary))} was given.")
        self.num_heads = num_heads
        self.num_key_value_heads = groups
        self.rotary = None if rotary is None else dict(rotary)
        self.scale = scale
        self.head_dim = head_dim
        self.use_bias = use_bias
        self.fused = fused
        self.seed = drawn_seed(seed)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.supports_masking = True
        self.attention_dropout = Dropout(
            dropout, seed=derive_seed(self.seed, "attention"), dtype=self.dtype_policy, name="attention_dropout"
        )

    def build(self, query_shape, value_shape=None):
        hidden_dim = query_shape[-1]
        if self.head_dim is None and hidden_dim % self.num_heads:
            raise ValueError(
                f"A hidden size of {hidden_dim} cannot be split into {self.num_heads} heads of one size; choose a number of "
                "heads that divides it, or give head_dim."
            )
        self._head_dim = self.head_dim or hidden_dim // self.num_heads
        if self.rotary is not None:
            check_rotary_size(self._head_dim)
        self._scale = self._head_dim**-0.5 if self.scale is None else self.scale
        inner, shared = self.num_heads * self._head_dim, self.num_key_value_heads * self._head_dim
        self._is_self_attention = value_shape is None
        if self._is_self_attention:
            self._add_projection("query_key_value", hidden_dim, (inner, shared, shared))
        else:
            self._add_projection("query", hidden_dim, (inner,))
            self._add_projection("key_value", value_shape[-1], (shared, shared))
        self._add_projection("output", inner, (hidden_dim,))
        self.attention_dropout.build()
        self.built = True

    def _add_projection(self, name, inputs, sizes):
        """Weights of linear maps to the given sizes side by side, each drawn as a matrix of its own."""

        def initial(shape, dtype=None):
            matrices = [
                seeded(self.kernel_initializer, derive_seed(self.seed, f"{name}/{part}"))((inputs, size), dtype)
                for part, size in enumerate(sizes)
            ]
            return ops.concatenate(matrices, axis=1)

        kernel = self.add_weight(shape=(inputs, sum(sizes)), initializer=initial, name=f"{name}_kernel")
        setattr(self, f"{name}_kernel", kernel)
        bias = self.add_weight(shape=(sum(sizes),), initializer="zeros", name=f"{name}_bias") if self.use_bias else None
        setattr(self, f"{name}_bias", bias)

    def _project(self, inputs, name):
        # Cast here too: `compute_cache` runs outside `__call__`, where Keras does not autocast variables.
        bias = getattr(self, f"{name}_bias")
        bias = None if bias is None else ops.cast(bias, self.compute_dtype)
        return linear(inputs, ops.cast(getattr(self, f"{name}_kernel"), self.compute_dtype), bias)

    def _split_heads(self, x):
        """`[B, T, N H]` -> `[B, N, T, H]`, for as many heads as there are"""
        rows, length = ops.shape(x)[:2]
        heads = x.shape[-1] // self._head_dim
        if isinstance(length, int) and length == 1:  # Nothing changes places.
            return reshape(x, (rows, heads, 1, self._head_dim))
        return ops.transpose(reshape(x, (rows, length, heads, self._head_dim)), (0, 2, 1, 3))

    def _rotate(self, x, start):
        """Queries or keys `[B, N, T, H]`, the first of which stands at the place `start`."""
        if self.rotary is None:
            return x
        positions = ops.arange(ops.shape(x)[2], dtype="int32") + ops.cast(start, "int32")
        return rotate_positions(x, positions, **self.rotary)

    def compute_cache(self, value):
        """Projects the keys and values of a cross-attention once, for all steps of a search.

        Args:
            value: float tensor `[B, S, E]`, the encoded source.

        Returns:
            `CrossAttentionCache`.
        """
        value = ops.cast(value, self.compute_dtype)
        key, value = ops.split(self._project(value, "key_value"), 2, axis=-1)
        return CrossAttentionCache(self._split_heads(key), self._split_heads(value))

    def call(
        self,
        query,
        value=None,
        attention_mask=None,
        padding_mask=None,
        attention_bias=None,
        use_causal_mask=False,
        cache=None,
        return_attention_scores=False,
        training=None,
        mask=None,
        query_mask=None,
        value_mask=None,
    ):
        rows, query_length = ops.shape(query)[0], ops.shape(query)[1]
        masks = [attention_mask, None if padding_mask is None else ops.expand_dims(padding_mask, 1)]
        if self._is_self_attention:
            if value is not None and value is not query:
                raise ValueError(
                    f"The attention layer '{self.name}' was built for self-attention, with one input, but was called with two; "
                    "make a new layer and call it as layer(query, value)."
                )
            # Splitting beats indexing: the gradient of a slice is a padded tensor.
            sizes = np.array([self.num_heads, self.num_key_value_heads]) * self._head_dim
            parts = ops.split(self._project(query, "query_key_value"), [int(end) for end in np.cumsum(sizes)], axis=-1)
            query, key, value = (self._split_heads(part) for part in parts)
            start = 0 if cache is None else cache.length
            query, key = self._rotate(query, start), self._rotate(key, start)
            if cache is not None:
                cache = cache.append(key, value)
                key, value = cache.view()
                masks.append(cache.causal_mask(query_length))
                # An implicit mask would speak of the new tokens only; the cached ones are masked explicitly or not at all.
                use_causal_mask = False
            else:
                masks.append(_over_keys(mask if mask is not None else query_mask))
        else:
            query = self._project(query, "query")
            if cache is not None:
                key, value = cache
                # The beams of one sentence become queries of one attention: [B K, T, N H] -> [B, K T, N H].
                query = ops.reshape(query, (ops.shape(key)[0], -1, ops.shape(query)[2]))
            elif value is not None:
                key, value = self.compute_cache(value)
                masks.append(_over_keys(value_mask))
            else:
                raise ValueError(
                    f"The attention layer '{self.name}' was built for cross-attention: give it `value`, or a `cache` that its "
                    "compute_cache made."
                )
            query = self._split_heads(query)

        context, scores = self._attend(
            query, key, value, combine_masks(*masks), attention_bias, use_causal_mask, return_attention_scores, training
        )
        if not (isinstance(ops.shape(context)[2], int) and ops.shape(context)[2] == 1):
            context = ops.transpose(context, (0, 2, 1, 3))  # [B, T, N, H]
        context = reshape(context, (rows, query_length, self.num_heads * self._head_dim))
        outputs = [self._project(context, "output")]
        if return_attention_scores:
            if cache is not None and not self._is_self_attention:  # [B, N, K T, S] -> [B K, N, T, S]
                scores = ops.transpose(scores, (0, 2, 1, 3))
                scores = ops.reshape(scores, (rows, query_length, self.num_heads, ops.shape(scores)[3]))
                scores = ops.transpose(scores, (0, 2, 1, 3))
            outputs.append(scores)
        if cache is not None:
            outputs.append(cache)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _attend(self, query, key, value, mask, bias, is_causal, need_scores, training):
        """Attention over split heads `[B, N, T, H]`; returns the context `[B, N, T, H]` and, by the explicit path, the scores."""
        group = self.num_heads // self.num_key_value_heads
        drops = bool(training) and self.attention_dropout.rate > 0
        query_length, key_length = ops.shape(query)[2], ops.shape(key)[2]
        fused = not need_scores and not drops and self._prefers_fused(query, key_length, training)
        # Under a causal mask alone every query sees itself; any other mask may leave a query without keys.
        may_be_empty = mask is not None
        if is_causal and (mask is not None or bias is not None or not fused):
            mask = combine_masks(mask, causal_mask(query_length, key_length))
            is_causal = False
        if bias is not None:
            bias = ops.cast(bias if len(bias.shape) == 4 else ops.expand_dims(bias, 0), "float32")
        if fused:
            if group > 1:
                key, value = (ops.repeat(x, group, axis=1) for x in (key, value))
            shown = mask
            if bias is not None:
                # The kernels take a bias or a mask.
                lowest = -3e4 if self.compute_dtype == "float16" else _MASKED
                bias = ops.cast(bias if mask is None else ops.where(mask, bias, lowest), self.compute_dtype)
                shown = None
            context = ops.dot_product_attention(
                *(ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value)),
                bias=bias,
                mask=shown,
                scale=self._scale,
                is_causal=is_causal,
            )
            context, scores = ops.transpose(context, (0, 2, 1, 3)), None
        else:
            # Half-precision products would overflow (float16) or be rounded to steps of 1/8 from 16 on (bfloat16) before the
            # softmax sees them; the fused kernels sum in float32, too.
            query, key = ops.cast(query, "float32") * self._scale, ops.cast(key, "float32")
            # einsum spares the transposed copy of the keys.
            scores = self._ungrouped(ops.einsum("bnth,bnsh->bnts", self._grouped(query), key), query_length)
            if bias is not None:
                scores = scores + bias
            if mask is not None:
                scores = ops.where(mask, scores, _MASKED)
            # Over one key, which the first step of a search has, Keras warns that a softmax is of no use.
            scores = ops.ones_like(scores) if isinstance(key_length, int) and key_length == 1 else ops.softmax(scores, axis=-1)
            scores = ops.cast(scores, self.compute_dtype)
            weights = self.attention_dropout(scores, training=training)
            context = self._ungrouped(ops.matmul(self._grouped(weights), value), query_length)
        if may_be_empty:
            # Over no key at all the kernels of all backends give the mean of the values.
            attends = ops.cast(ops.any(mask, axis=-1, keepdims=True), self.compute_dtype)
            context = context * attends
            scores = None if scores is None else scores * attends
        return context, scores

    def _grouped(self, x):
        """`[B, N, T, K]` -> `[B, G, N / G T, K]`: the heads that share keys become queries of one head."""
        if self.num_key_value_heads == self.num_heads:
            return x
        return reshape(x, (ops.shape(x)[0], self.num_key_value_heads, -1, ops.shape(x)[3]))

    def _ungrouped(self, x, length):
        """The way back, for T queries."""
        if self.num_key_value_heads == self.num_heads:
            return x
        return reshape(x, (ops.shape(x)[0], self.num_heads, length, ops.shape(x)[3]))

    def _prefers_fused(self, query, key_length, training):
        """Whether to use the fused kernel in a call that allows it."""
        backend = keras.backend.backend()
        if self.fused is not None or backend == "tensorflow":
            return bool(self.fused)
        if backend == "jax" and self.compute_dtype == "float16":
            # The kernel's float16 product with float32 sums exists on GPUs only; elsewhere its compilation fails.
            return keras.distribution.list_devices()[0].startswith("gpu")
        if backend == "torch" and training and getattr(query, "device", None) and query.device.type == "cpu":
            # PyTorch's backward pass of the kernel is the slower one on processors. What it spares is memory, where sequences are long.
            return query.shape[2] * key_length > _SHORT**2
        return True

    def compute_output_spec(self, query, value=None, cache=None, return_attention_scores=False, **kwargs):
        output = keras.KerasTensor(query.shape, dtype=self.compute_dtype)
        if cache is not None:
            raise ValueError("A cache belongs to a search; it cannot be an input of a functional model.")
        if not return_attention_scores:
            return output
        keys = (query if value is None else value).shape[1]
        return output, keras.KerasTensor((query.shape[0], self.num_heads, query.shape[1], keys), dtype=self.compute_dtype)

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "head_dim": self.head_dim,
            "num_key_value_heads": self.num_key_value_heads,
            "rotary": self.rotary,
            "scale": self.scale,
            "dropout": self.attention_dropout.rate,
            "use_bias": self.use_bias,
            "fused": self.fused,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "seed": self.seed,
        }


def _over_keys(mask):
    """An implicit Keras mask `[B, S]` as a mask over keys, `[B, 1, S]`; `None` stays `None`."""
    return None if mask is None else ops.expand_dims(mask, 1)
