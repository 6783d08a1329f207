import keras
import numpy as np
import pytest
import torch
from keras import ops

from kformer.layers import MultiHeadAttention
from tests.gradients import gradients
from tests.peers import to_numpy, torch_attention

B, T, S, D, N = 2, 4, 5, 8, 2

fused_and_explicit = pytest.mark.parametrize("fused", [True, False])
# None leaves the choice to the layer, which knows where a kernel fails in half precision.
default_and_explicit = pytest.mark.parametrize("fused", [None, False])
self_and_cross = pytest.mark.parametrize("kind", ["self", "cross"])


@pytest.fixture
def inputs(rng):
    """Query `[B, T, D]` and value `[B, S, D]`."""
    return rng.normal(size=(B, T, D)).astype("float32"), rng.normal(size=(B, S, D)).astype(
        "float32"
    )


@pytest.fixture
def make(randomize):
    """A function that makes a built layer with random weights, for self-attention or
    cross-attention.
    """

    def attention(kind="self", **arguments):
        layer = MultiHeadAttention(N, **arguments)
        layer.build(*[(B, T, D), (B, S, D)][: 1 if kind == "self" else 2])
        return randomize(layer)

    return attention


def oracle(layer, query, value=None, mask=None):
    """Output and probabilities by the formula, in float64; `mask` is broadcastable to `[B, N, T,
    S]`.
    """
    if value is None:
        kernel, bias = to_numpy(layer.query_key_value_kernel), to_numpy(layer.query_key_value_bias)
        q, k, v = np.split(query.astype("float64") @ kernel + bias, 3, axis=-1)
    else:
        q = query.astype("float64") @ to_numpy(layer.query_kernel) + to_numpy(layer.query_bias)
        k, v = np.split(
            value.astype("float64") @ to_numpy(layer.key_value_kernel)
            + to_numpy(layer.key_value_bias),
            2,
            axis=-1,
        )
    q, k, v = (x.reshape(*x.shape[:2], layer.num_heads, -1) for x in (q, k, v))
    scores = np.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(q.shape[-1])
    mask = np.broadcast_to(True if mask is None else mask, scores.shape)
    weights = np.where(mask, np.exp(scores - scores.max(axis=-1, keepdims=True)), 0.0)
    sums = weights.sum(axis=-1, keepdims=True)
    weights = np.divide(weights, sums, out=np.zeros_like(weights), where=sums > 0)
    context = np.einsum("bnts,bsnh->btnh", weights, v).reshape(*query.shape[:2], -1)
    return context @ to_numpy(layer.output_kernel) + to_numpy(layer.output_bias), weights


def draw_masks(rng, keys):
    """A call's mask arguments by name, each with the mask that it stands for, broadcastable to `[B,
    N, T, S]`.
    """
    matrix, per_row, per_head, padding = (
        rng.random(shape) < 0.7 for shape in [(T, keys), (B, T, keys), (B, N, T, keys), (B, keys)]
    )
    causal = np.tril(np.ones((T, keys), bool))
    return {
        "none": ({}, None),
        "matrix": ({"attention_mask": matrix}, matrix),
        "per row": ({"attention_mask": per_row}, per_row[:, None]),
        "per head": ({"attention_mask": per_head}, per_head),
        "padding": ({"padding_mask": padding}, padding[:, None, None]),
        "causal": ({"use_causal_mask": True}, causal),
        "all": (
            {"attention_mask": per_head, "padding_mask": padding, "use_causal_mask": True},
            per_head & padding[:, None, None] & causal,
        ),
    }


@fused_and_explicit
@self_and_cross
@pytest.mark.parametrize(
    "name", ["none", "matrix", "per row", "per head", "padding", "causal", "all"]
)
def test_output_follows_the_formula(make, inputs, rng, kind, name, fused):
    layer = make(kind, fused=fused)
    query, value = inputs[0], inputs[1] if kind == "cross" else None
    arguments, mask = draw_masks(rng, keys=T if kind == "self" else S)[name]
    arguments = {
        key: x if isinstance(x, bool) else ops.convert_to_tensor(x) for key, x in arguments.items()
    }
    expected, _ = oracle(layer, query, value, mask)
    np.testing.assert_allclose(to_numpy(layer(query, value, **arguments)), expected, atol=2e-5)


@self_and_cross
@pytest.mark.parametrize("name", ["none", "padding", "all"])
def test_scores_follow_the_formula(make, inputs, rng, kind, name):
    layer = make(kind)
    query, value = inputs[0], inputs[1] if kind == "cross" else None
    arguments, mask = draw_masks(rng, keys=T if kind == "self" else S)[name]
    expected = oracle(layer, query, value, mask)
    found = layer(query, value, return_attention_scores=True, **arguments)
    for ours, numbers in zip(found, expected, strict=True):
        np.testing.assert_allclose(to_numpy(ours), numbers, atol=2e-5)
    sums = to_numpy(found[1]).sum(axis=-1)
    may_attend = (
        np.ones_like(sums, bool)
        if mask is None
        else np.broadcast_to(mask, expected[1].shape).any(axis=-1)
    )
    np.testing.assert_allclose(sums, may_attend, atol=1e-5)


@fused_and_explicit
@pytest.mark.parametrize("name", ["none", "causal", "padding", "matrix", "per head"])
def test_self_attention_agrees_with_pytorch(make, inputs, rng, name, fused):
    layer = make(fused=fused)
    peer = torch_attention(layer, D)
    x = inputs[0]
    padding = np.array([[1, 1, 1, 1], [1, 1, 0, 0]], bool)
    per_head = (rng.random((B, N, T, T)) < 0.6) | np.eye(T, dtype=bool)
    ours, theirs = {
        "none": ({}, {}),
        "causal": ({"use_causal_mask": True}, {"attn_mask": np.triu(np.ones((T, T), bool), 1)}),
        "padding": ({"padding_mask": padding}, {"key_padding_mask": ~padding}),
        "matrix": ({"attention_mask": per_head[0, 0]}, {"attn_mask": ~per_head[0, 0]}),
        "per head": (
            {"attention_mask": per_head, "padding_mask": padding},
            {"attn_mask": ~per_head.reshape(B * N, T, T), "key_padding_mask": ~padding},
        ),
    }[name]
    x_peer = torch.tensor(x)
    with torch.no_grad():
        expected = peer(
            x_peer,
            x_peer,
            x_peer,
            need_weights=False,
            **{k: torch.tensor(m) for k, m in theirs.items()},
        )[0].numpy()
    found = to_numpy(layer(x, **ours))
    # Where a query may attend to nothing PyTorch gives NaN.
    np.testing.assert_allclose(
        found[np.isfinite(expected)], expected[np.isfinite(expected)], atol=1e-5
    )
    assert np.isfinite(expected).mean() > 0.8 and np.isfinite(found).all()


def test_cross_attention_and_scores_agree_with_pytorch(make, inputs):
    layer = make("cross")
    peer = torch_attention(layer, D)
    query, value = inputs
    padding = np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], bool)
    query_peer, value_peer = torch.tensor(query), torch.tensor(value)
    with torch.no_grad():
        expected = peer(
            query_peer,
            value_peer,
            value_peer,
            key_padding_mask=torch.tensor(~padding),
            average_attn_weights=False,
        )
    found = layer(query, value, padding_mask=padding, return_attention_scores=True)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(to_numpy(ours), theirs.numpy(), atol=1e-5)
    np.testing.assert_allclose(
        to_numpy(layer(query, value, padding_mask=padding)), expected[0].numpy(), atol=1e-5
    )


def test_gradients_agree_with_pytorch(make, inputs, rng):
    for kind, fused in (("self", True), ("self", False), ("cross", True)):
        layer = make(kind, fused=fused)
        peer = torch_attention(layer, D)
        query, value = inputs[0], inputs[0] if kind == "self" else inputs[1]
        weights = rng.normal(size=(B, T, D)).astype("float32")

        def loss(layer=layer, kind=kind, query=query, value=value, weights=weights):
            output = layer(query, None if kind == "self" else value, use_causal_mask=True)
            return ops.sum(ops.multiply(output, weights))

        causal = torch.tensor(np.triu(np.ones(query.shape[1:2] + value.shape[1:2], bool), 1))
        query_peer, value_peer = torch.tensor(query), torch.tensor(value)
        output = peer(query_peer, value_peer, value_peer, attn_mask=causal, need_weights=False)[0]
        (output * torch.tensor(weights)).sum().backward()
        expected = [
            *(
                (peer.in_proj_weight.grad.T,)
                if kind == "self"
                else peer.in_proj_weight.grad.T.split([D, 2 * D], 1)
            ),
            peer.out_proj.weight.grad.T,
            peer.out_proj.bias.grad,
        ]
        kernels = [weight for weight in layer.trainable_weights if "kernel" in weight.name] + [
            layer.output_bias
        ]
        for ours, theirs in zip(gradients(loss, kernels), expected, strict=True):
            np.testing.assert_allclose(ours, theirs.numpy(), atol=5e-5)


def keras_attention(layer, kind):
    """`keras.layers.MultiHeadAttention` with the weights of ours."""
    head_dim = D // N
    peer = keras.layers.MultiHeadAttention(N, head_dim)
    peer.build((B, T, D), (B, T if kind == "self" else S, D))
    if kind == "self":
        kernels = np.split(to_numpy(layer.query_key_value_kernel), 3, axis=1)
        biases = np.split(to_numpy(layer.query_key_value_bias), 3)
    else:
        kernels = [
            to_numpy(layer.query_kernel),
            *np.split(to_numpy(layer.key_value_kernel), 2, axis=1),
        ]
        biases = [to_numpy(layer.query_bias), *np.split(to_numpy(layer.key_value_bias), 2)]
    arrays = []
    for kernel, bias in zip(kernels, biases, strict=True):
        arrays += [kernel.reshape(D, N, head_dim), bias.reshape(N, head_dim)]
    peer.set_weights(
        [
            *arrays,
            to_numpy(layer.output_kernel).reshape(N, head_dim, D),
            to_numpy(layer.output_bias),
        ]
    )
    return peer


@self_and_cross
def test_agrees_with_keras(make, inputs, rng, kind):
    layer = make(kind)
    peer = keras_attention(layer, kind)
    query, value = inputs[0], inputs[0] if kind == "self" else inputs[1]
    mask = rng.random((B, T, value.shape[1])) < 0.6
    mask[:, :, 0] = True  # Keras's layer gives the mean of the values where nothing may be attended
    for ours, theirs in [({}, {}), ({"attention_mask": mask, "use_causal_mask": True},) * 2]:
        found = layer(
            query, None if kind == "self" else value, return_attention_scores=True, **ours
        )
        expected = peer(query, value, return_attention_scores=True, **theirs)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(to_numpy(a), to_numpy(b), atol=1e-5)


def test_implicit_masks_of_a_users_model(randomize, rng):
    """A mask that an Embedding layer brings has the effect of the same `padding_mask`; lengths are
    unknown to the graph.
    """
    source, target = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    embedding = keras.layers.Embedding(7, D, mask_zero=True)
    self_attention, cross_attention = MultiHeadAttention(N), MultiHeadAttention(N)
    encoded = self_attention(embedding(source))
    decoded = cross_attention(embedding(target), encoded)
    model = randomize(keras.Model([source, target], [encoded, decoded]))
    sizes = [(2, 5, 4), (1, 3, 3)]
    for rows, source_length, target_length in (
        sizes[:1] if keras.backend.backend() == "jax" else sizes
    ):
        source_ids = rng.integers(1, 7, (rows, source_length)).astype("int32")
        source_ids[0, 2:] = 0
        target_ids = rng.integers(0, 7, (rows, target_length)).astype("int32")
        vectors = to_numpy(embedding(source_ids)), to_numpy(embedding(target_ids))
        expected = to_numpy(self_attention(vectors[0], padding_mask=source_ids != 0))
        unmasked = to_numpy(self_attention(vectors[0]))
        found = model.predict([source_ids, target_ids], verbose=0)
        np.testing.assert_allclose(found[0], expected, atol=1e-5)
        assert np.abs(expected - unmasked)[0].max() > 1e-3
        expected = to_numpy(cross_attention(vectors[1], expected, padding_mask=source_ids != 0))
        np.testing.assert_allclose(found[1], expected, atol=1e-5)


def test_implicit_mask_of_a_masking_layer_joins_the_explicit_ones(make, inputs):
    layer = make()
    x = inputs[0].copy()
    x[1, 2:] = 0.0
    masked = keras.layers.Masking()(x)
    found = to_numpy(
        layer(
            masked,
            use_causal_mask=True,
            attention_mask=np.array([0, 1, 1, 1], bool)[None].repeat(T, 0),
        )
    )
    mask = (
        np.tril(np.ones((T, T), bool))
        & [False, True, True, True]
        & np.array([[1, 1, 1, 1], [1, 1, 0, 0]], bool)[:, None, None]
    )
    np.testing.assert_allclose(found, oracle(layer, x, mask=mask)[0], atol=1e-5)


@default_and_explicit
def test_a_query_without_keys_gets_zeros(make, inputs, policy, fused):
    """Row 1 is padding altogether: zeros come out of every head, so the output is the bias;
    gradients are finite.
    """
    layer = make("cross", fused=fused)
    layer.output_bias.assign(np.zeros(D, "float32"))
    padding = np.array([[True] * S, [False] * S])

    def loss():
        return ops.sum(ops.cast(layer(*inputs, padding_mask=padding), "float32") ** 2)

    output = to_numpy(layer(*inputs, padding_mask=padding))
    assert (output[1] == 0).all() and (output[0] != 0).all()
    scores = to_numpy(layer(*inputs, padding_mask=padding, return_attention_scores=True)[1])
    assert (scores[1] == 0).all()
    found = gradients(loss, layer.trainable_weights)
    assert all(np.isfinite(gradient).all() for gradient in found)
    assert any(np.abs(gradient).max() > 0 for gradient in found)


def test_the_first_queries_of_a_row_padded_on_the_left_have_no_keys(make, inputs):
    layer = make()
    padding = np.array([[0, 0, 1, 1], [1, 1, 1, 1]], bool)
    output = to_numpy(layer(inputs[0], padding_mask=padding, use_causal_mask=True))
    np.testing.assert_allclose(
        output[0, :2], np.tile(to_numpy(layer.output_bias), (2, 1)), atol=1e-6
    )
    assert np.abs(output[0, 2:] - to_numpy(layer.output_bias)).max() > 1e-3


@default_and_explicit
def test_mixed_precision_is_near_float32(make, inputs, policy, fused):
    layer = make("cross", fused=fused)
    query, value = inputs
    output = layer(query, value, padding_mask=np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], bool))
    assert keras.backend.standardize_dtype(output.dtype) == layer.compute_dtype
    mask = np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], bool)[:, None, None]
    tolerance = {"float32": 1e-5, "mixed_float16": 5e-3, "mixed_bfloat16": 4e-2}[policy]
    np.testing.assert_allclose(
        to_numpy(output), oracle(layer, query, value, mask)[0], atol=tolerance
    )


@default_and_explicit
@pytest.mark.parametrize("size", [60.0, 400.0])
def test_large_scores_are_safe_in_half_precision(fused, size):
    """Scores of 1.8e3, where float16 numbers are 1 apart, and of 8e4, beyond its largest, 65504."""
    layer = MultiHeadAttention(1, fused=fused, use_bias=False, dtype="mixed_float16")
    layer.build((1, 3, 4))
    layer.query_key_value_kernel.assign(np.tile(np.eye(4, dtype="float32"), (1, 3)))
    layer.output_kernel.assign(np.eye(4, dtype="float32"))
    # The last column alone, small against the scores, decides between the first two keys.
    x = np.array([[[size, 0, 0, 2], [size, 0, 0, 1], [-size, 0, 0, 0]]], dtype="float32")
    found = to_numpy(layer(x, padding_mask=np.ones((1, 3), bool)))
    scores = (x[0] @ x[0].T).astype("float64") / 2
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected = weights / weights.sum(axis=1, keepdims=True) @ x[0]
    np.testing.assert_allclose(found[0], expected, rtol=2e-3, atol=2e-3)


def test_half_precision_compiles(policy):
    """In a compiled step JAX's kernel refuses float16 on a CPU."""
    x = keras.Input((T, D))
    model = keras.Model(x, MultiHeadAttention(N)(x, use_causal_mask=True))
    model.compile("sgd", "mse", jit_compile=keras.backend.backend() == "jax")
    inputs = np.ones((B, T, D), "float32")
    assert np.isfinite(model.train_on_batch(inputs, inputs))
    assert np.isfinite(model.predict(inputs, verbose=0)).all()


def test_the_fused_kernel_is_used_where_it_can_be(make, inputs, monkeypatch, backend):
    calls = []
    kernel = ops.dot_product_attention
    monkeypatch.setattr(
        ops,
        "dot_product_attention",
        lambda *args, **kwargs: calls.append(1) or kernel(*args, **kwargs),
    )

    def count(layer, **arguments):
        calls.clear()
        layer(inputs[0], **arguments)
        return len(calls)

    assert count(make()) == (0 if backend == "tensorflow" else 1)
    assert count(make(fused=True), training=True) == 1
    assert count(make(fused=False)) == 0
    assert count(make(fused=True), return_attention_scores=True) == 0
    assert count(make(fused=True, dropout=0.5)) == 1
    assert count(make(fused=True, dropout=0.5), training=True) == 0


def test_dropout_acts_on_probabilities(make, inputs):
    layer = make(dropout=0.5, seed=1)
    plain = to_numpy(layer(inputs[0]))
    np.testing.assert_array_equal(to_numpy(layer(inputs[0], training=False)), plain)
    first, second = (to_numpy(layer(inputs[0], training=True)) for _ in range(2))
    assert np.abs(first - plain).max() > 1e-2 and np.abs(first - second).max() > 1e-2
    assert int(layer.attention_dropout.step) == 2


def test_sizes_of_heads_and_values_may_differ(rng):
    layer = MultiHeadAttention(3, head_dim=2, seed=0)
    query, value = (
        rng.normal(size=(B, T, D)).astype("float32"),
        rng.normal(size=(B, S, 7)).astype("float32"),
    )
    output, scores = layer(query, value, return_attention_scores=True)
    assert tuple(output.shape) == (B, T, D) and tuple(scores.shape) == (B, 3, T, S)
    np.testing.assert_allclose(to_numpy(output), oracle(layer, query, value)[0], atol=1e-5)


def test_without_bias(inputs):
    layer = MultiHeadAttention(N, use_bias=False)
    layer(inputs[0])
    assert [weight.name for weight in layer.weights] == ["query_key_value_kernel", "output_kernel"]


def test_projections_start_from_different_numbers_and_seeds_repeat(inputs):
    def kernels(**arguments):
        layer = MultiHeadAttention(N, **arguments)
        layer(inputs[0])
        return [
            *np.split(to_numpy(layer.query_key_value_kernel), 3, axis=1),
            to_numpy(layer.output_kernel),
        ]

    parts = kernels(seed=5)
    assert all(np.abs(a - b).max() > 1e-2 for i, a in enumerate(parts) for b in parts[:i])
    # Each is drawn as a [D, D] matrix, so the limit is glorot's for D inputs and D outputs.
    assert all(0.8 < np.abs(part).max() / np.sqrt(6 / (2 * D)) <= 1 for part in parts)
    np.testing.assert_array_equal(kernels(seed=5), parts)
    assert np.abs(np.subtract(kernels(seed=6), parts)).max() > 1e-2
    assert np.abs(np.subtract(kernels(), kernels())).max() > 1e-2


def test_config_round_trip(inputs):
    layer = MultiHeadAttention(
        N,
        head_dim=3,
        dropout=0.1,
        use_bias=False,
        fused=False,
        kernel_initializer="ones",
        seed=3,
        name="a",
    )
    again = MultiHeadAttention.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    np.testing.assert_allclose(to_numpy(again(inputs[0])), to_numpy(layer(inputs[0])))


def test_scores_and_shapes_in_a_functional_model():
    query, value = keras.Input((None, D)), keras.Input((S, D))
    output, scores = MultiHeadAttention(N)(query, value, return_attention_scores=True)
    assert output.shape == (None, None, D) and scores.shape == (None, N, None, S)
    found = keras.Model([query, value], scores).predict(
        [np.ones((3, T, D)), np.ones((3, S, D))], verbose=0
    )
    np.testing.assert_allclose(found, np.full((3, N, T, S), 1 / S), atol=1e-6)


def test_errors(make, inputs):
    with pytest.raises(ValueError, match="num_heads must be a whole number of at least 1"):
        MultiHeadAttention(0)
    with pytest.raises(ValueError, match="hidden size of 8 cannot be split into 3 heads"):
        MultiHeadAttention(3)(inputs[0])
    with pytest.raises(ValueError, match="built for self-attention"):
        make("self")(*inputs)
    with pytest.raises(ValueError, match="built for cross-attention: give it `value`"):
        make("cross")(inputs[0])
    with pytest.raises(ValueError, match="expand_dims"):
        make()(inputs[0], attention_mask=np.ones(T, bool))
    with pytest.raises(ValueError, match="cannot be an input of a functional model"):
        MultiHeadAttention(N)(keras.Input((T, D)), cache=())


def test_calls_of_keras():
    x, other = ops.ones((2, T, D)), ops.zeros((2, 3, D))
    layer = MultiHeadAttention(N, seed=1)
    expected = to_numpy(layer(x))
    fresh = MultiHeadAttention(N, seed=1)
    np.testing.assert_array_equal(to_numpy(fresh(x, x, x)), expected)
    assert fresh.is_self_attention
    np.testing.assert_array_equal(to_numpy(layer(x, x, x)), expected)
    # Without a key the projections of keys and values are their own, as in version 0.1.
    pair = MultiHeadAttention(N, seed=1)
    pair(x, x)
    assert not pair.is_self_attention
    assert [weight.name for weight in pair.weights][:2] == ["query_kernel", "query_bias"]
    cross = MultiHeadAttention(N, seed=1)
    expected = to_numpy(cross(x, other))
    np.testing.assert_array_equal(to_numpy(cross(x, other, other)), expected)
    # A layer that was built as cross-attention stays one.
    assert cross(x, x).shape == x.shape and not cross.is_self_attention
    with pytest.raises(ValueError, match="projects keys and values from one tensor"):
        cross(x, other, x)
    mask = ops.ones((T, 3), dtype="bool")
    with pytest.raises(ValueError, match="takes masks by name .*attention_mask=mask.* boolean"):
        cross(x, other, mask)
    with pytest.raises(TypeError):
        cross(x, other, None, mask)
