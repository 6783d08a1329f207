"""Multi-head scaled dot-product attention."""

from typing import Unpack

import keras
from keras import ops

from kformer.layers.cache import CrossAttentionCache
from kformer.layers.counter_hash import settled_seed
from kformer.layers.dropout import Dropout
from kformer.layers.full_attention import AttentionCall, FullAttention
from kformer.layers.initializers import seeded
from kformer.layers.inputs import (
    LayerArguments,
    ReadsLists,
    check_further_inputs,
    check_rank,
    is_boolean,
)
from kformer.layers.linear_attention import LinearAttention
from kformer.layers.local_attention import LocalAttention
from kformer.layers.low_rank import adapted
from kformer.layers.masks import after_padding, both, check_masks, combine_masks
from kformer.layers.relative_positions import check_rotary_size, rotate_positions
from kformer.layers.shapes import linear, reshape
from kformer.utils.checks import check_choice, check_whole

KINDS = ("full", "local", "linear")


@keras.saving.register_keras_serializable(package="kformer")
class MultiHeadAttention(ReadsLists):
    """Attention of several heads: `softmax(Q K^T / sqrt(H)) V` per head, then a linear map.

    With one input (`layer(x)`, or `layer(x, x, x)` as Keras's layer is called) it is
    self-attention: one matrix product projects queries, keys and values. With two inputs
    (`layer(query, value)`) it is cross-attention: keys and values come from the second input, by
    projections of their own. `layer(x, x)` is cross-attention, too.

    A query whose keys are all masked gets zeros from every head, so its output is the output bias.
    Scores and softmax are computed in float32, whatever the compute dtype.

    Args:
        num_heads: int. N, the number of heads.
        head_dim: int or `None`, default `None`. H, the size of a head; `None` for D / N, which
            must be whole.
        num_key_value_heads: int or `None`, default `None`. G, the number of heads of keys and
            values; N / G heads of queries share each (grouped-query attention). `None` for N, 1 for
            multi-query attention. A cache holds G heads.
        rotary: dict or `None`, default `None`. `base` and `interleaved` of `rotate_positions`, for
            rotary positions in self-attention; `{}` for its defaults, `None` for no rotation.
        relative_positions: dict or `None`, default `None`. For self-attention of the kind "full",
            learned vectors of distances, as Shaw et al. describe them: `max_distance`, int, from
            which on all distances share a vector, and `shared`, bool, default False, whether keys
            and values have the same vectors. `None` for none.
        scale: float or `None`, default `None`. The factor of the scores; `None` for 1 / sqrt(H), as
            in the paper, 1 for T5's models.
        kind: str, default "full". `"full"`: a query attends to all keys. `"local"`: it attends to
            the keys in a window around it. `"linear"`: a feature map replaces the softmax. The last
            two are for self-attention; their time and memory are linear in the length, and their
            caches do not grow.
        window: int or `None`, default `None`. Of local attention, which requires it: the number of
            steps up to which a query attends to keys, in each direction.
        dilation: int, default 1. Of local attention: the length of a step, in positions.
        global_tokens: int, default 0. Of local attention: the number of first tokens that attend to
            all tokens and to which all tokens attend.
        dropout: float in `[0, 1)`, default 0.0. The dropout rate on the attention probabilities.
            The paper has none there. Training with it does not use the fused kernel. Linear
            attention ignores it.
        use_bias: bool, default True. Whether the projections add a bias.
        fused: bool or `None`, default `None`. Whether to use the backend's fused kernel where
            possible. `None` uses it on JAX and PyTorch, but not for float16 on JAX without a GPU,
            nor for short sequences in training by PyTorch on CPU. TensorFlow has none on CPU.
        kernel_initializer: Keras initializer or its name, default "glorot_uniform". The initializer
            of each kernel.
        seed: int or `None`, default `None`. The seed of the initializers and the dropout; `None`
            for a random seed.
        **kwargs: further arguments of `keras.layers.Layer`.

    Call arguments:
        query: float tensor `[B, T, D]`.
        value: float tensor `[B, S, E]` or `None`, default `None`. The source of keys and values in
            cross-attention.
        key: the same object as `value`, or `None`, default `None`. It is accepted since Keras's
            layer has it. If query, value and key are one object, the call is self-attention.
        attention_mask: boolean tensor `[T, S]`, `[B, T, S]` or `[B, N, T, S]`, default `None`.
            `True` where a query may attend to a key.
        padding_mask: boolean tensor `[B, S]`, default `None`. `True` at real keys.
        left_padding: integer tensor `[B]`, default `None`. The number of padding tokens at the
            start of each row, to which no query attends. A cache counts them among its tokens.
        attention_bias: float tensor `[N, T, S]` or `[B, N, T, S]`, default `None`. The bias that is
            added to the scaled scores, such as `alibi_bias` returns it. Local attention without a
            cache or scores takes `[N, window, 3 window]`, the bias of `band_distances`.
        use_causal_mask: bool, default False. Whether a query attends to no later key. A cache of
            self-attention implies it; positions then count from the cache's first token.
        cache: default `None`. For self-attention the result of `init_cache` or of an earlier call,
            with the tokens before `query`; for cross-attention the result of `compute_cache`, in
            place of `value`. Neighbouring rows of `query` (beams) may share a row of it.
        return_attention_scores: bool, default False. Whether to return the probabilities, too.
            Every kind of attention then computes those of all queries and keys.
        training: bool, default `None`.
        mask, query_mask, value_mask: implicit Keras masks (boolean `[B, T]`, `[B, S]`), passed by
            Keras. A mask on the keys acts as padding; one on the queries alone has no effect.

    All arguments after `key` are keyword arguments. All masks are combined with AND.

    Returns:
        Float tensor `[B, T, D]`; then, with `return_attention_scores`, the attention probabilities
        `[B, N, T, S]`; then, with a cache, the cache with the new tokens.

    Raises:
        ValueError: the options contradict each other or the hidden size, or the inputs contradict
            the options.

    Example:
    ```python
    attention = kformer.layers.MultiHeadAttention(num_heads=8)
    attention(ops.ones((2, 5, 512)), use_causal_mask=True).shape  # (2, 5, 512)
    ```

    References:
        Vaswani et al. 2017, "Attention is all you need", section 3.2.
        Ainslie et al. 2023, "GQA: training generalized multi-query Transformer models from
        multi-head checkpoints". Beltagy et al. 2020, "Longformer: the long-document Transformer"
        (local). Katharopoulos et al. 2020, "Transformers are RNNs: fast autoregressive Transformers
        with linear attention". Shaw et al. 2018, "Self-attention with relative position
        representations".
    """

    saved_arguments = (
        "num_heads head_dim num_key_value_heads rotary relative_positions scale kind window "
        "dilation global_tokens dropout use_bias fused kernel_initializer seed"
    ).split()

    def __init__(
        self,
        num_heads,
        head_dim=None,
        *,
        num_key_value_heads=None,
        rotary=None,
        relative_positions=None,
        scale=None,
        kind="full",
        window=None,
        dilation=1,
        global_tokens=0,
        dropout=0.0,
        use_bias=True,
        fused=None,
        kernel_initializer="glorot_uniform",
        seed=None,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(**kwargs)
        check_whole("num_heads", num_heads)
        check_choice("kind", kind, KINDS)
        groups = num_heads if num_key_value_heads is None else num_key_value_heads
        if groups < 1 or num_heads % groups:
            raise ValueError(
                "num_key_value_heads must divide num_heads, since each serves as many heads "
                f"of queries, but {num_heads} / {groups} is not a whole number of at least 1."
            )
        if rotary is not None and not set(rotary) <= {"base", "interleaved"}:
            raise ValueError(
                "rotary has the entries base and interleaved, but "
                f"{', '.join(map(str, rotary))} was given."
            )
        if relative_positions is not None:
            _check_relative(kind, **relative_positions)
        if kind != "local" and (window is not None or dilation != 1 or global_tokens != 0):
            raise ValueError(
                f"window, dilation and global_tokens belong to kind='local', but it is {kind!r}."
            )
        self.kind, self.window, self.dilation = kind, window, dilation
        self.global_tokens = global_tokens
        if kind == "local":
            self._attention = LocalAttention(window, dilation, global_tokens)
        else:
            self._attention = LinearAttention() if kind == "linear" else FullAttention()
        self.num_heads, self.num_key_value_heads, self.head_dim = num_heads, groups, head_dim
        self.rotary = None if rotary is None else dict(rotary)
        self.relative_positions = None if relative_positions is None else dict(relative_positions)
        self.scale, self.use_bias, self.fused = scale, use_bias, fused
        self.seed, self.adapters = settled_seed(seed), {}
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.attention_dropout = Dropout(dropout, **self._part("attention_dropout", "attention"))
        self.dropout = self.attention_dropout.rate

    def build(self, query_shape, value_shape=None):
        hidden_dim = query_shape[-1]
        if self.head_dim is None and hidden_dim % self.num_heads:
            raise ValueError(
                f"A hidden size of {hidden_dim} cannot be split into {self.num_heads} heads of "
                "one size; choose a number of heads that divides it, or give head_dim."
            )
        self.head_size = self.head_dim or hidden_dim // self.num_heads
        if self.rotary is not None:
            check_rotary_size(self.head_size)
        self.score_scale = self.head_size**-0.5 if self.scale is None else self.scale
        inner, shared = self.num_heads * self.head_size, self.num_key_value_heads * self.head_size
        self.is_self_attention = value_shape is None
        if self.kind != "full" and not self.is_self_attention:
            raise ValueError(
                f"Attention with kind={self.kind!r} is self-attention: give one input, or 'full'."
            )
        if self.is_self_attention:
            self.query_key_value_kernel, self.query_key_value_bias = self._add_projection(
                "query_key_value", hidden_dim, (inner, shared, shared)
            )
        else:
            self.query_kernel, self.query_bias = self._add_projection("query", hidden_dim, (inner,))
            self.key_value_kernel, self.key_value_bias = self._add_projection(
                "key_value", value_shape[-1], (shared, shared)
            )
        self.output_kernel, self.output_bias = self._add_projection("output", inner, (hidden_dim,))
        if self.relative_positions is not None:
            self._add_relative_vectors()
        self.attention_dropout.build()
        self.built = True

    def _add_projection(self, name, inputs, sizes):
        """Returns one kernel and one bias for several linear maps side by side.

        Each matrix in the kernel is initialised as if it stood alone.
        """

        def initial(shape, dtype=None):
            matrices = [
                seeded(self.kernel_initializer, self.seed, f"{name}/{index}")((inputs, size), dtype)
                for index, size in enumerate(sizes)
            ]
            return ops.concatenate(matrices, axis=1)

        shape, bias = (inputs, sum(sizes)), None
        kernel = self.add_weight(shape=shape, initializer=initial, name=f"{name}_kernel")
        if self.use_bias:
            bias = self.add_weight(shape=shape[1:], initializer="zeros", name=f"{name}_bias")
        return kernel, bias

    def _add_relative_vectors(self):
        """Adds the vectors of distances from the least to the greatest, `[2 max_distance + 1, H]`,
        of keys and of values.
        """
        shape = (2 * self.relative_positions["max_distance"] + 1, self.head_size)
        names = ["relative_keys", "relative_values"]
        tables = [
            self.add_weight(
                shape=shape,
                initializer=seeded(self.kernel_initializer, self.seed, name),
                name=name,
            )
            for name in names[: 1 if self.relative_positions.get("shared") else 2]
        ]
        self.relative_keys, self.relative_values = tables[0], tables[-1]

    def relative_vectors(self, distance):
        """Returns the vectors `[T, S, H]` of keys and of values, for distances `[T, S]`; `None`
        without relative positions.
        """
        if self.relative_positions is None:
            return None
        most = self.relative_positions["max_distance"]
        indices = ops.clip(distance, -most, most) + most
        tables = [self.relative_keys, self.relative_values]
        vectors = [
            ops.take(ops.cast(table, self.compute_dtype), indices, axis=0)
            for table in tables[: 1 if tables[0] is tables[1] else 2]
        ]
        return vectors[0], vectors[-1]

    def kernels(self):
        """Returns a dict of the name of each projection to its kernel."""
        kernels = {"output": self.output_kernel}
        if self.is_self_attention:
            return {"query_key_value": self.query_key_value_kernel, **kernels}
        return {"query": self.query_kernel, "key_value": self.key_value_kernel, **kernels}

    def _project(self, name, kernel, bias, inputs):
        # `compute_cache` runs outside `__call__`, where Keras does not autocast variables.
        bias = None if bias is None else ops.cast(bias, self.compute_dtype)
        kernel = ops.cast(kernel, self.compute_dtype)
        return adapted(self, name, inputs, linear(inputs, kernel, bias))

    def _split_heads(self, x):
        """Splits `[B, T, N H]` into `[B, N, T, H]`, for N or G heads."""
        rows, length = ops.shape(x)[:2]
        heads = x.shape[-1] // self.head_size
        if isinstance(length, int) and length == 1:  # There is nothing to transpose.
            return reshape(x, (rows, heads, 1, self.head_size))
        return ops.transpose(reshape(x, (rows, length, heads, self.head_size)), (0, 2, 1, 3))

    def rotate(self, x, start):
        """Rotates queries or keys `[B, N, T, H]` by their positions, which count from `start`."""
        if self.rotary is None:
            return x
        positions = ops.arange(ops.shape(x)[2], dtype="int32") + ops.cast(start, "int32")
        return rotate_positions(x, positions, **self.rotary)

    def init_cache(self, rows, max_length=None):
        """Returns an empty cache for a self-attention.

        Args:
            rows: int or scalar tensor. R, the rows of the batches.
            max_length: int or `None`, default `None`. The capacity of a static cache in tokens;
                `None` for a growing one.

        Returns:
            `KeyValueCache` or `StaticKeyValueCache`; for local and linear attention `WindowCache`
            and `LinearAttentionCache`, which do not grow.
        """
        return self._attention.init_cache(self, rows, max_length)

    def compute_cache(self, value):
        """Projects the keys and values of a cross-attention once, for all steps of a search.

        Args:
            value: float tensor `[B, S, E]`, the encoded source.

        Returns:
            `CrossAttentionCache`.
        """
        value = ops.cast(value, self.compute_dtype)
        projected = self._project("key_value", self.key_value_kernel, self.key_value_bias, value)
        key, value = ops.split(projected, 2, axis=-1)
        return CrossAttentionCache(self._split_heads(key), self._split_heads(value))

    def __call__(self, query, value=None, key=None, **kwargs):
        (query, value, key), kwargs = self._tensors((query, value, key), kwargs)
        check_rank(f"The input of the layer '{self.name}'", query, "[B, T, D]")
        check_further_inputs(self, (value, key))
        if key is not None and key is not value:
            raise ValueError(
                f"The attention layer '{self.name}' projects keys and values from one tensor: call "
                "it as layer(query, value) or layer(x, x, x), or use keras.layers."
                "MultiHeadAttention for keys of their own."
            )
        if key is query and not (self.built and not self.is_self_attention):
            value = None
        return super().__call__(query, value, **kwargs)

    def call(
        self,
        query,
        value=None,
        *,
        attention_mask=None,
        padding_mask=None,
        left_padding=None,
        attention_bias=None,
        use_causal_mask=False,
        cache=None,
        return_attention_scores=False,
        training=None,
        mask=None,
        query_mask=None,
        value_mask=None,
    ):
        rows, length = ops.shape(query)[:2]
        is_cross_step = cache is not None and not self.is_self_attention
        if self.is_self_attention:
            query, key, value = self._self_inputs(query, value)
        else:
            query, key, value = self._cross_inputs(query, value, cache)
        attention_mask = combine_masks(attention_mask)
        # A cache of self-attention adds keys, so their number is not known yet.
        keys = key.shape[2] if cache is None or is_cross_step else None
        check_masks(query, keys, attention_mask, padding_mask)
        if is_boolean(attention_bias):
            raise ValueError(
                "attention_bias is added to the scores, but it is boolean: give a mask as "
                "attention_mask."
            )
        implicit_mask = None if is_cross_step else value_mask
        if self.is_self_attention:
            start = 0 if cache is None else cache.length
            # With a cache an implicit mask would cover the new tokens only.
            implicit_mask = None if cache is not None else mask if mask is not None else query_mask
            if left_padding is not None and (cache is None or self.kind == "linear"):
                positions = start + ops.arange(length, dtype="int32")
                padding_mask = both(padding_mask, after_padding(left_padding, positions))
                left_padding = None
        call = AttentionCall(
            attention_mask,
            both(padding_mask, implicit_mask),
            left_padding,
            attention_bias,
            use_causal_mask,
            return_attention_scores,
            training,
        )
        context, scores, cache = self._attention.attend(self, query, key, value, cache, call)
        if not (isinstance(ops.shape(context)[2], int) and ops.shape(context)[2] == 1):
            context = ops.transpose(context, (0, 2, 1, 3))  # [B, T, N, H]
        context = reshape(context, (rows, length, self.num_heads * self.head_size))
        outputs = [self._project("output", self.output_kernel, self.output_bias, context)]
        if return_attention_scores:
            if is_cross_step:  # The beams were queries: [B, N, K T, S] -> [B K, N, T, S].
                scores = ops.transpose(scores, (0, 2, 1, 3))
                scores = ops.reshape(scores, (rows, length, self.num_heads, ops.shape(scores)[3]))
                scores = ops.transpose(scores, (0, 2, 1, 3))
            outputs.append(scores)
        if cache is not None:
            outputs.append(cache)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _self_inputs(self, x, value):
        """Returns queries, keys and values of a self-attention, split into heads."""
        if value is not None and value is not x:
            raise ValueError(
                f"The attention layer '{self.name}' was built for self-attention, with one input, "
                "but was called with two; make a new layer and call it as layer(query, value)."
            )
        # One split is faster than three slices, whose gradients are padded to the whole tensor.
        end = self.num_heads * self.head_size
        ends = [end, end + self.num_key_value_heads * self.head_size]
        kernel, bias = self.query_key_value_kernel, self.query_key_value_bias
        projected = self._project("query_key_value", kernel, bias, x)
        return tuple(self._split_heads(x) for x in ops.split(projected, ends, axis=-1))

    def _cross_inputs(self, query, value, cache):
        """Returns queries, keys and values of a cross-attention, split into heads."""
        query = self._project("query", self.query_kernel, self.query_bias, query)
        if cache is not None:
            key, value = cache
            # Beams become queries of one attention: [B K, T, N H] -> [B, K T, N H].
            query = ops.reshape(query, (ops.shape(key)[0], -1, ops.shape(query)[2]))
        elif value is not None:
            key, value = self.compute_cache(value)
        else:
            raise ValueError(
                f"The attention layer '{self.name}' was built for cross-attention: give it "
                "`value`, or a `cache` that its compute_cache made."
            )
        return self._split_heads(query), key, value

    def dropout_of_scores(self, training):
        """Returns a function that drops probabilities, or `None` where nothing is dropped."""
        if not training or self.attention_dropout.rate == 0:
            return None
        return lambda weights: self.attention_dropout(weights, training=True)

    def compute_output_spec(
        self, query, value=None, cache=None, return_attention_scores=False, **kwargs
    ):
        if cache is not None:
            raise ValueError(
                "A cache belongs to a search; it cannot be an input of a functional model."
            )
        output = keras.KerasTensor(query.shape, dtype=self.compute_dtype)
        keys = (query if value is None else value).shape[1]
        shape = (query.shape[0], self.num_heads, query.shape[1], keys)
        scores = keras.KerasTensor(shape, dtype=self.compute_dtype)
        return (output, scores) if return_attention_scores else output


def _check_relative(kind, max_distance, shared=False):
    check_whole("max_distance", max_distance)
    if kind != "full":
        raise ValueError(f"relative_positions belong to kind='full', but it is {kind!r}.")
